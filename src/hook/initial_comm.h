/* SPDX-License-Identifier: MIT */
/*
 * initial_comm.h - the communicator that NCCL creates when it opens onehop as a network plugin
 *
 * Does: Recognises its handle: its creator was called before the hooks were in place. NCCL calls a profiler plugin
 *    (ncclProfiler_v5; src/plugin/profiler.cc of 2.28.9) for every communicator, before the last barrier of its
 *    creation, with an id that is equal on all ranks, and when it ends. So onehop counts communicators, and those whose
 *    creator passed the hooks. If there is one more, the first, an unknown handle with its rank and number of ranks is
 *    its. What stays unknown goes to NCCL: with another profiler plugin, or if several communicators passed no hook.
 * Threads: any.
 * Owns: the creation of that communicator, until its handle is known.
 */
#ifndef OH_HOOK_INITIAL_COMM_H_
#define OH_HOOK_INITIAL_COMM_H_

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/attach/attach.h"
#include "hook/real.h"

/*
 * The copy of NCCL at the address `caller` creates a communicator. Publishes this rank's presence if it is the first.
 * Returns the context, not NULL, that NCCL passes to oh_initial_comm_add_end when the communicator ends.
 */
void *oh_initial_comm_add_creation(uint64_t id, int nranks, int rank, const void *caller);
void oh_initial_comm_add_end(const void *context);

/* A creator that passes the hooks begins, or has succeeded. */
void oh_initial_comm_creation_begin(void);
void oh_initial_comm_creation_end(const struct oh_real *real);

/* True until the communicator is registered or given up. Load it (acquire) before a search for a handle. */
extern atomic_bool oh_initial_comm_expected __attribute__((visibility("hidden")));

/*
 * Registers the communicator if an unknown handle, in a call from the address `caller`, is its; returns NULL if not, or
 * if that is unknown. `counts`: for an allreduce, which all ranks count: then an unknown one is given up. Keeps errno.
 */
struct oh_comm *oh_initial_comm_find(ncclComm_t comm, const void *caller, bool counts);

/*
 * The communicator, once it is registered, and whether it has ended: the program may end it by an address that it took
 * before the hooks were in place, and NCCL may then reuse the handle.
 */
extern _Atomic(struct oh_comm *) oh_initial_comm __attribute__((visibility("hidden")));
extern atomic_bool oh_initial_comm_is_stale __attribute__((visibility("hidden")));

/* A communicator ends, this one or another. */
void oh_initial_comm_forget(const struct oh_comm *comm);

#endif
