/* SPDX-License-Identifier: MIT */
/*
 * attach.h - what onehop does between the creation of a communicator and its first served call
 *
 * Does: Three steps (doc/design.md, "Attach", argues why ranks always agree and why no wait can deadlock a program):
 *      presence   before NCCL creates a communicator, its ranks open one segment (segment.h) and count themselves in
 *      set-up     begins at the first allreduce that onehop could serve: memory, peers, kernels, a vote (agreement.c)
 *      cutover    once all ranks have voted yes, the number of the first served call follows from the calls that NCCL
 *                 has served meanwhile (cutover.c): the same number on all ranks
 * Threads: the thread that uses the communicator, unless a function says any. One background thread advances the
 *    set-ups of all communicators.
 * Owns: a communicator is its creator's until it is registered.
 */
#ifndef OH_COMM_ATTACH_ATTACH_H_
#define OH_COMM_ATTACH_ATTACH_H_

#include "comm/comm.h"
#include "comm/core/segment.h"

/*
 * Counts this rank in under the key, before NCCL creates the communicator. An error becomes the reason to decline. Sets
 * config, parent, nccl_p and is_grow of the identity; the caller sets library and nccl_version. Makes no call of the
 * driver. NULL: no memory; this rank is not counted, so all ranks fall back.
 * is_grow: the communicator grows out of `parent`. The new ranks (parent NULL) and those of the parent that have the
 * unique id know the key. The parent's other ranks (key NULL) read it from the parent segment after NCCL's barrier.
 */
struct oh_comm *oh_creation_begin(const struct oh_key *key, const struct oh_comm_config *config, struct oh_comm *parent,
                                  ncclComm_t *nccl_p, bool is_grow);

/* NCCL has not created it. Frees the communicator. */
void oh_creation_cancel(struct oh_comm *comm);

/*
 * NCCL has returned the handle; the creation itself may still go on in the background. oh_comm_created follows. False:
 * there is no room in the registry, and the communicator is freed.
 */
bool oh_creation_register(struct oh_comm *comm, ncclComm_t nccl);

/* Adds a creation at the end of a list. */
void oh_creations_append(struct oh_comm **list, struct oh_comm *comm);

/*
 * NCCL creates a split in the background, and writes its handle when the parent is ready again: the parent keeps it.
 * oh_comm_take_children returns the list when the parent is ready; the caller registers or cancels each, and then calls
 * oh_comm_children_done: until then oh_comm_is_creating is true of the parent.
 */
void oh_creation_watch(struct oh_comm *comm);
struct oh_comm *oh_comm_take_children(struct oh_comm *comm);
void oh_comm_children_done(struct oh_comm *comm, unsigned count);

/* What NCCL says of this rank. */
struct oh_nccl_rank {
    int rank, nranks, cuda_device;
};

/*
 * NCCL has created the communicator. All ranks were counted before NCCL's barrier: a communicator of which a rank has
 * no onehop falls back now. rank NULL: NCCL has failed to create it, and it falls back. False: this was called before,
 * and nothing is done. Any thread.
 */
bool oh_comm_created(struct oh_comm *comm, const struct oh_nccl_rank *rank);

/* --- calls of a communicator that is not settled, in this order -------------------------------------------------- */

/* NCCL has got work of any kind on the communicator, which no event of onehop's is after. */
void oh_attach_note_work(struct oh_comm *comm);

/*
 * True when the call could be served: then oh_attach_begin and oh_attach_wait are called for it before
 * oh_attach_decide. Depends on what is equal on all ranks.
 */
bool oh_attach_wants(const struct oh_call *call, ncclRedOp_t op);

/* Begins the set-up if no earlier call has. `stream`: of the call, whose context becomes the communicator's. */
void oh_attach_begin(struct oh_comm *comm, CUstream stream);

/*
 * Waits until the ranks of the communicator have decided: up to 2 s after `start_ns`, when a call began to wait, or a
 * group with calls of several communicators; no more after one failed wait. The thread holds back its calls of all of
 * them meanwhile.
 */
void oh_attach_wait(struct oh_comm *comm, uint64_t start_ns);

/* Counts the call. True: it is served on every rank, as all later ones. False: it goes to NCCL on every rank. */
bool oh_attach_decide(struct oh_comm *comm);

/* NCCL has returned `result` for a call that oh_attach_decide has counted, or (not counted) that was made before. */
void oh_attach_note_result(struct oh_comm *comm, bool counted, ncclResult_t result);

/* --- the end ------------------------------------------------------------------------------------------------------ */

/* Makes kernels that wait return, and passes later calls to NCCL. Any thread. */
void oh_comm_abort(struct oh_comm *comm);

/*
 * Waits until the kernels of a served communicator have ended; returns early if it fails or is aborted. Holds no lock.
 */
void oh_comm_drain(const struct oh_comm *comm);

/* Passes later calls to NCCL (the communicator is being finalized). */
void oh_comm_suspend(struct oh_comm *comm);

/* Forgets the communicator: NCCL may reuse its handle at once. Its memory is freed when nothing uses it any more. */
void oh_comm_retire(struct oh_comm *comm);

/* At exit(): publishes that; communicators that are not settled fall back, and leave no file behind. */
void oh_comms_end_process(void);

/* The communicator falls back for good, if it is not settled. Any thread. */
void oh_attach_cancel(struct oh_comm *comm, const char *reason);

/* The communicator has left the registry. True when a set-up is under way, which will release it. */
bool oh_attach_leave(struct oh_comm *comm);

/* Nobody knows the communicator any more: frees it, once kernels, graphs and peers are done with it. */
void oh_comm_release(struct oh_comm *comm);

/* The communicator is not served, which is logged: gives up segment and staging memory. */
void oh_comm_detach(struct oh_comm *comm);

/* --- a set-up under way, for src/comm/attach alone; the background thread's once it has begun --------------------- */

/*
 * Begins a set-up, in the thread that makes the first call, on `stream`: context and events, so that calls that NCCL
 * serves are ordered from now on. A failure makes it decline.
 */
void oh_agreement_begin(struct oh_comm *comm, CUstream stream);

/* Takes the steps that do not wait; true: all ranks have decided. Sets *moved_p if it has taken a step. */
bool oh_agreement_advance(struct oh_comm *comm, bool *moved_p);

/* Ends a set-up after the decision: the communicator falls back, unless all ranks have voted yes. */
void oh_agreement_end(struct oh_comm *comm);

/* Votes no: all ranks fall back with this reason, unless they have agreed before. */
void oh_agreement_decline(struct oh_comm *comm, const char *reason);

/* A rank has voted no: takes over its reason. With the mutex of the communicator's attach held. */
void oh_attach_settle_off(struct oh_comm *comm);

#endif
