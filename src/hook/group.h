/* SPDX-License-Identifier: MIT */
/*
 * group.h - what happens between ncclGroupStart and ncclGroupEnd
 *
 * NCCL starts nothing before the outermost ncclGroupEnd; neither does onehop. Calls that it will serve and
 * communicators being created are kept here, by thread (NCCL's groups are by thread, too), until then. The order at
 * the end is the same on all ranks: NCCL's part of the group first, then the new communicators, then the queued
 * calls, communicator by communicator in the order of their keys, a few launches each in turn, so that one thread that
 * drives many GPUs never fills one GPU's launch queue before its peers have got theirs.
 */
#ifndef OH_HOOK_GROUP_H_
#define OH_HOOK_GROUP_H_

#include <nccl.h>
#include <stdbool.h>

#include "comm/attach/attach.h"
#include "hook/real.h"

/* Depth of this thread's public groups. */
int oh_group_depth(void);

/* ncclGroupStart succeeded. */
void oh_group_enter(void);

/*
 * Keeps a call for the end of the group. Returns ncclSuccess; ncclInvalidUsage (its stream is captured, or not, unlike
 * those of other calls of the communicator), ncclSystemError (out of memory) or ncclUnhandledCudaError, all logged.
 */
ncclResult_t oh_group_add_call(const struct oh_call *call);

/* Who serves a call of a group. */
enum oh_group_call {
    OH_CALL_SERVED,   /* onehop: the call is kept here */
    OH_CALL_DEFERRED, /* not decided yet */
    OH_CALL_NCCL,
    OH_CALL_NCCL_ALLREDUCE
};

/* A call of a served communicator is on that stream. Returns as oh_group_add_call does. */
ncclResult_t oh_group_add_stream(struct oh_comm *comm, CUstream stream, enum oh_group_call kind);

/* A call of that communicator goes to NCCL within the group, and puts something on its stream. */
void oh_group_note_forwarded(const struct oh_comm *comm);

/* A call has failed before it came to NCCL: nothing of the group will run, and its end returns the first such error. */
void oh_group_fail(const struct oh_real *real, const struct oh_comm *comm, ncclResult_t error);

/* Keeps a creation for the end of the group, which owns it then. False: no memory; it stays the caller's. */
bool oh_group_add_creation(const struct oh_creation *creation);

/*
 * An allreduce of a communicator that is not settled: who serves it is decided at the end of the outermost group, when
 * the ranks of all its communicators, which one thread may drive, can be waited for together. oh_group_take_deferred
 * returns the calls, in the order made, to the caller, who frees them.
 */
struct oh_deferred {
    struct oh_call call;
    ncclRedOp_t op;
    bool op_ends; /* the program has destroyed it since, as it may when the call has returned */
};
ncclResult_t oh_group_defer(const struct oh_call *call, ncclRedOp_t op); /* returns as oh_group_add_call does */
struct oh_deferred *oh_group_take_deferred(size_t *count_p);

/* The program destroys an op. True: a deferred call needs it, and whoever takes the calls destroys it. */
bool oh_group_keeps_op(const struct oh_comm *comm, ncclRedOp_t op);

/*
 * Ends one level by calling `end` (which calls the real ncclGroupEnd or ncclGroupSimulateEnd); at the outermost level
 * does onehop's part, unless NCCL failed or this only `simulate`s. Returns the first failure. After one that is not of
 * the program's making, and so may be this rank's alone, every communicator with calls in the group has failed.
 */
ncclResult_t oh_group_leave(const struct oh_real *real, ncclResult_t (*end)(const struct oh_real *, void *),
                            void *argument, bool simulate);

/*
 * Ends creations by how NCCL's ended: ncclSuccess, asks NCCL who this rank is in each, and registers it;
 * ncclInProgress, registers it, or waits for its handle (oh_creations_poll); anything else, cancels it. To be called
 * with oh_inside raised, as is the next.
 */
void oh_creations_finish(const struct oh_real *real, struct oh_creation *creations, size_t count, ncclResult_t res);

/* NCCL says what state a communicator is in, on which oh_comm_is_creating: goes on with it and its splits. */
void oh_creations_poll(const struct oh_real *real, struct oh_comm *comm, ncclResult_t state);

/* Drops the queued calls of a communicator that is being destroyed or aborted inside a group. */
void oh_group_forget(const struct oh_comm *comm);

#endif
