/* SPDX-License-Identifier: MIT */
/*
 * key.h - the name of a communicator
 *
 * Does: Identifies a communicator: equal on all its ranks, and different for each communicator. A hash of the unique
 *    id, or of the parent's key with the number and colour of the split. The random part of ncclUniqueId makes it a
 *    secret of the ranks (NCCL_COMM_ID has none: then the file's mode and owner alone keep others out); others see its
 *    name.
 * Threads: pure functions.
 * Owns: nothing.
 */
#ifndef OH_COMM_SHARED_KEY_H_
#define OH_COMM_SHARED_KEY_H_

#include <nccl.h>
#include <stddef.h>
#include <stdint.h>

struct oh_key {
    uint64_t word[2];
};

/* SipHash-2-4 with 128 bits of result, of `count` 64-bit words. It reveals neither the words nor the secret. */
struct oh_key oh_key_hash(const struct oh_key *secret, const void *words, size_t count);

/* Key of a communicator made from `count` unique ids. */
struct oh_key oh_key_of_ids(const ncclUniqueId *ids, int count);

/*
 * Key of the communicator that the `sequence`-th ncclCommShrink makes of a parent without `count` of its ranks, in any
 * order, also with repetitions.
 */
struct oh_key oh_key_of_shrink(const struct oh_key *parent, uint64_t sequence, const int *excluded, int count);

/* Key of the communicator that `color` gets in the `sequence`-th split of a parent. */
struct oh_key oh_key_of_split(const struct oh_key *parent, uint64_t sequence, int color);

/* Key of the segment in which the ranks of a parent exchange the key of its `sequence`-th grown communicator. */
struct oh_key oh_key_of_grow(const struct oh_key *parent, uint64_t sequence);

/* A key that no other communicator has, for communicators of one process. */
struct oh_key oh_key_random(void);

/* The part of a key that others may see: neither the key nor its source follows from it. */
struct oh_key oh_key_name(const struct oh_key *key);

/* Compares two keys: <0, 0, >0. All ranks submit the communicators of a group in this order. */
int oh_key_compare(const struct oh_key *a, const struct oh_key *b);

#endif
