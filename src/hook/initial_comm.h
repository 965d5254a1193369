/* SPDX-License-Identifier: MIT */
/*
 * initial_comm.h - the communicator that NCCL creates when it opens onehop as a network plugin
 *
 * Its creator was called before the hooks were in place, so onehop is not given its handle. NCCL calls a profiler
 * plugin (ncclProfiler_v5; src/plugin/profiler.cc of 2.28.9) for every communicator, before its ranks pass the last
 * barrier of the creation, with an id that is the same on all ranks, and again when the communicator ends. So onehop
 * knows how many communicators there are, and of how many the creator has passed through its hooks. If there is one
 * more, and it was the first, then a handle that onehop does not know means that communicator, if NCCL says the same
 * rank and number of ranks of it. Whatever cannot be known so goes to NCCL: with a profiler plugin of the program's
 * own, or with several communicators whose creation passed no hook.
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
 * The copy of NCCL at the address `caller` creates a communicator with this id. Publishes this rank's presence if it is
 * the first one. Returns what NCCL is to give to oh_initial_comm_add_end when the communicator ends; not NULL. Any
 * thread.
 */
void *oh_initial_comm_add_creation(uint64_t id, int nranks, int rank, const void *caller);
void oh_initial_comm_add_end(const void *context);

/* A creator that passes through the hooks begins; has succeeded, as far as the hooks have been told. Any thread. */
void oh_initial_comm_creation_begin(void);
void oh_initial_comm_creation_end(const struct oh_real *real);

/* True from oh_initial_comm_add_creation on, until the communicator is registered or given up: load it (acquire) before
 * a search for a handle. */
extern atomic_bool oh_initial_comm_expected __attribute__((visibility("hidden")));

/*
 * A handle that onehop does not know, in a call from the address `caller`: is it that communicator? Then it is
 * registered, and returned; NULL: it is not, or cannot be known. `counts`: the call is an allreduce, which all ranks
 * number, so that the communicator is given up if it cannot be known now. Any thread; keeps errno.
 */
struct oh_comm *oh_initial_comm_find(ncclComm_t comm, const void *caller, bool counts);

/*
 * That communicator, once it is found. The program may end it by an address that it took before the hooks were in
 * place; NCCL may then give the same handle to another communicator. oh_initial_comm_is_stale: it has ended.
 * oh_initial_comm_forget: this communicator ends; nothing happens if it is not the first.
 */
extern _Atomic(struct oh_comm *) oh_initial_comm __attribute__((visibility("hidden")));
extern atomic_bool oh_initial_comm_is_stale __attribute__((visibility("hidden")));
void oh_initial_comm_forget(const struct oh_comm *comm);

#endif
