/* SPDX-License-Identifier: MIT */
/*
 * attach.h - what onehop does between the creation of a communicator and its first served call
 *
 *   presence   before NCCL creates a communicator, its ranks open one segment (segment.h) and count themselves in
 *   set-up     begins at the first allreduce that onehop could serve: memory, peers, kernels, a vote (agreement.c)
 *   cut-over   once all ranks have voted yes, the number of the first served call follows from the calls that went to
 *              NCCL meanwhile (cutover.h): the same number on all ranks
 *
 * Threads: a communicator's functions run in the thread that uses it, which is one at a time, unless they say
 * otherwise. The set-up runs in a thread of its own, one for all communicators, which ends when no set-up is left.
 * doc/design.md, "Attach", argues why ranks always agree and why no wait can deadlock a program.
 */
#ifndef OH_COMM_ATTACH_ATTACH_H_
#define OH_COMM_ATTACH_ATTACH_H_

#include "comm/comm.h"
#include "comm/core/segment.h"

/* A communicator that NCCL is about to create, or creates. Plain memory of the caller; no field is touched by others.
 */
struct oh_creation {
    struct oh_key key;
    struct oh_segment segment;
    bool is_grow;                     /* by ncclCommGrow */
    uint32_t parent_ranks;            /* for a rank of the parent: the parent's ranks; 0: a new rank */
    struct oh_segment parent_segment; /* for a rank of the parent: where the others learn the key */
    bool present;                     /* this rank is counted in */
    struct oh_comm_config config;
    char decline_reason[OH_REASON_BYTES]; /* not empty: this rank takes no part, and why */
    uint64_t spent_ns;
    ncclComm_t *nccl_p;       /* where NCCL writes the handle */
    struct oh_comm *parent;   /* of a split */
    struct oh_creation *next; /* list of a parent's children */
    const void *library;      /* these two are the caller's: the NCCL that creates it, and its version (0: unknown) */
    int nccl_version;
};

/*
 * Counts this rank in under the key, before NCCL creates the communicator. Cannot fail: what goes wrong becomes the
 * refusal. nccl_p: where NCCL writes the handle. Makes no call to the driver.
 */
void oh_creation_begin(struct oh_creation *creation, const struct oh_key *key, const struct oh_comm_config *config,
                       ncclComm_t *nccl_p);

/*
 * Does the same for a communicator that grows out of `parent`. The new ranks (parent NULL) and those of the parent that
 * have the unique id know the key; the parent's other ranks learn it from these, through a segment of the parent's
 * ranks, the parent segment, after NCCL's barrier. id: NULL where this rank has none.
 */
void oh_creation_begin_grow(struct oh_creation *creation, struct oh_comm *parent, const ncclUniqueId *id,
                            const struct oh_comm_config *config, ncclComm_t *nccl_p);

/* NCCL has not created it after all. Ends the creation. */
void oh_creation_cancel(struct oh_creation *creation);

/*
 * NCCL has returned the handle; the creation itself may still go on in the background. Registers a struct oh_comm and
 * ends the creation. oh_comm_created or oh_comm_not_created follows. NULL: no memory or no room (logged at INFO).
 */
struct oh_comm *oh_creation_register(struct oh_creation *creation, ncclComm_t nccl);

/*
 * NCCL creates a split in the background, and writes its handle when the parent is ready again: a copy waits with the
 * parent. oh_comm_take_children returns the copies when NCCL says that the parent is ready; the caller registers or
 * cancels each, frees it, and then calls oh_comm_children_done, so that meanwhile the parent counts as awaited.
 */
void oh_creation_watch(struct oh_creation *creation);
struct oh_creation *oh_comm_take_children(struct oh_comm *comm);
void oh_comm_children_done(struct oh_comm *comm, unsigned count);

/*
 * NCCL has created the communicator, and says who this rank is. All ranks were counted before NCCL's own barrier, so
 * what can be decided now is decided: a communicator of which a rank has no onehop falls back. False: it was known
 * already, and nothing is done. Any thread.
 */
bool oh_comm_created(struct oh_comm *comm, int rank, int nranks, int cuda_device);

/* NCCL has failed to create it: it falls back. Any thread. */
void oh_comm_not_created(struct oh_comm *comm);

/* --- calls of a communicator that is not settled, in this order -------------------------------------------------- */

/* NCCL has got work on the communicator, of any kind, which no event of onehop's is behind. */
void oh_attach_note_work(struct oh_comm *comm);

/*
 * True when the call could be served: then oh_attach_begin and oh_attach_wait are called for it before
 * oh_attach_decide. Depends on what is equal on all ranks.
 */
bool oh_attach_wants(const struct oh_call *call, ncclRedOp_t op);

/* Begins the set-up if no earlier call has. `stream`: of the call, whose context becomes the communicator's. */
void oh_attach_begin(struct oh_comm *comm, CUstream stream);

/*
 * Waits until the ranks of these communicators have decided, if it may: at most 2 s in all, and once in vain for each
 * communicator. The thread has made calls of all of them and has not yet passed on any.
 */
void oh_attach_wait(struct oh_comm *const *comms, size_t count);

/* Counts the call. True: it is served on every rank, as all later ones. False: it goes to NCCL on every rank. */
bool oh_attach_decide(struct oh_comm *comm);

/* NCCL has returned `result` for a call for which oh_attach_decide has returned false, or (not counted) was not asked.
 */
void oh_attach_note_result(struct oh_comm *comm, bool counted, ncclResult_t result);

/* --- the end ------------------------------------------------------------------------------------------------------ */

/* Lets kernels of this communicator that wait leave, and passes later calls to NCCL. Any thread. */
void oh_comm_abort(struct oh_comm *comm);

/*
 * Waits until the calls of a served communicator have left the GPU; ends early when it fails or is aborted. Keeps no
 * lock.
 */
void oh_comm_drain(const struct oh_comm *comm);

/* Hands later calls to NCCL (the communicator is being finalized). */
void oh_comm_suspend(struct oh_comm *comm);

/* Forgets the communicator: its pointer may be reused at once. Its memory goes when no one uses it any more. */
void oh_comm_retire(struct oh_comm *comm);

/* The process ends, and says so; communicators that are not settled yet fall back, and leave no file behind. */
void oh_comms_end_process(void);

/* The communicator falls back for good, if it is not settled. Any thread. */
void oh_attach_cancel(struct oh_comm *comm, const char *reason);

/* The communicator has left the registry. True when a set-up is under way, which will release it. */
bool oh_attach_leave(struct oh_comm *comm);

/* Nobody knows the communicator any more: frees it, once kernels, graphs and peers are done with it. */
void oh_comm_release(struct oh_comm *comm);

/* The communicator is not served: gives up segment and staging memory. */
void oh_comm_detach(struct oh_comm *comm);

#endif
