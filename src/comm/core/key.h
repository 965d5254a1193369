/* SPDX-License-Identifier: MIT */
/*
 * key.h - the name of a communicator
 *
 * Equal on all ranks of a communicator and on no other: a hash of the unique id, or of the parent's key with the
 * number of the split and its colour. Made from the random part of ncclUniqueId, so another user cannot guess it
 * (with NCCL_COMM_ID set there is none: then the file's mode and owner alone keep others out). A key is a secret of the
 * communicator's ranks: only its name is ever seen by others.
 */
#ifndef OH_COMM_CORE_KEY_H_
#define OH_COMM_CORE_KEY_H_

#include <nccl.h>
#include <stdint.h>

struct oh_key {
    uint64_t word[2];
};

/* Key of a communicator made from a unique id. */
struct oh_key oh_key_of_id(const ncclUniqueId *id);

/* Key of a communicator made from several unique ids. One id: the same as oh_key_of_id. */
struct oh_key oh_key_of_ids(const ncclUniqueId *ids, int count);

/*
 * Key of the communicator that is left of a parent when `count` of its ranks are excluded, in the `sequence`-th
 * shrinking of it. The order in which the ranks are given, and one given twice, make no difference.
 */
struct oh_key oh_key_of_shrink(const struct oh_key *parent, uint64_t sequence, const int *excluded, int count);

/* Key of the communicator that `color` gets in the `sequence`-th split of a parent. */
struct oh_key oh_key_of_split(const struct oh_key *parent, uint64_t sequence, int color);

/* Key under which the ranks of a parent meet before its `sequence`-th growing. */
struct oh_key oh_key_of_grow(const struct oh_key *parent, uint64_t sequence);

/* A key that no one else has, for communicators that live in one process. */
struct oh_key oh_key_random(void);

/* What others may see of a key: nothing can be told from it, neither the key nor what it was made of. */
struct oh_key oh_key_name(const struct oh_key *key);

/* Order used where several communicators are handled together: the same on all ranks. <0, 0, >0. */
int oh_key_compare(const struct oh_key *a, const struct oh_key *b);

#endif
