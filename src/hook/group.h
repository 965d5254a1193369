/* SPDX-License-Identifier: MIT */
/*
 * group.h - the calls between ncclGroupStart and ncclGroupEnd
 *
 * Does: Keeps calls that onehop serves and communicators that NCCL creates until the outermost ncclGroupEnd, when NCCL
 *    starts its part, too. The order is the same on all ranks: NCCL's part, the new communicators, the queued calls by
 *    communicator in the order of their keys. Communicators take turns of a few launches, so that a thread that drives
 *    many GPUs never fills the launch queue of one GPU before its peers have got their kernels.
 * Threads: any; each has its own group, as in NCCL.
 * Owns: the queued calls and creations.
 */
#ifndef OH_HOOK_GROUP_H_
#define OH_HOOK_GROUP_H_

#include <nccl.h>
#include <stdbool.h>

#include "comm/attach/attach.h"
#include "hook/real.h"

/* Returns the depth of this thread's public groups. */
int oh_group_depth(void);

/* ncclGroupStart has succeeded. */
void oh_group_enter(void);

/*
 * Queues a call. Returns ncclSuccess; ncclInvalidUsage (its stream is captured, or not, unlike those of other calls of
 * the communicator), ncclSystemError (out of memory) or ncclUnhandledCudaError, all logged.
 */
ncclResult_t oh_group_add_call(const struct oh_call *call);

/* Who serves a call of a group. */
enum oh_group_call {
    OH_CALL_SERVED, /* onehop */
    OH_CALL_DEFERRED,
    OH_CALL_NCCL,
    OH_CALL_NCCL_ALLREDUCE
};

/* Notes a stream with a call of a served communicator. Returns as oh_group_add_call does. */
ncclResult_t oh_group_add_stream(struct oh_comm *comm, CUstream stream, enum oh_group_call kind);

/* In a group, notes a call of the communicator that NCCL serves, and that enqueues something. */
void oh_group_note_forwarded(const struct oh_comm *comm);

/*
 * In a group, a call has failed before NCCL got it: nothing of the group will run, and its end returns the first such
 * error. Returns `error`. Outside of groups, and for ncclSuccess, does nothing else.
 */
ncclResult_t oh_group_fail(const struct oh_comm *comm, ncclResult_t error);

/* Queues a list of creations, which the group then owns. */
void oh_group_add_creations(struct oh_comm *list);

/*
 * Queues an allreduce of a communicator that is not settled. Who serves it is decided at the end of the outermost
 * group, when all its communicators can be waited for together: one thread may drive their ranks.
 */
struct oh_deferred {
    struct oh_call call;
    ncclRedOp_t op;
    bool op_ends; /* the program has destroyed it since */
};
ncclResult_t oh_group_defer(const struct oh_call *call, ncclRedOp_t op); /* returns as oh_group_add_call does */

/* Returns the deferred calls, in the order made, to the caller, who frees them. */
struct oh_deferred *oh_group_take_deferred(size_t *count_p);

/* The program destroys an op. Returns true if a deferred call needs it: who takes the calls then destroys it. */
bool oh_group_keeps_op(const struct oh_comm *comm, ncclRedOp_t op);

/*
 * Around the real ncclGroupEnd, or ncclGroupSimulateEnd (`simulate`), which returned `res`: onehop's part of the
 * outermost group, unless NCCL fails. The second returns the first failure. Then every communicator with calls in the
 * group has failed, unless the program caused the failure: other ranks may have launched the group.
 */
void oh_group_begin_end(bool simulate);
ncclResult_t oh_group_end(const struct oh_real *real, ncclResult_t res, bool simulate);

/* Drops the queued calls of a communicator that the program destroys or aborts inside a group. */
void oh_group_forget(const struct oh_comm *comm);

#endif
