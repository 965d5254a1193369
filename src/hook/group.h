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

#include "comm/comm.h"
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
    OH_CALL_SERVED, /* onehop: the call is kept here */
    OH_CALL_NCCL,
    OH_CALL_NCCL_ALLREDUCE
};

/* A call of a served communicator is on that stream. Returns as oh_group_add_call does. */
ncclResult_t oh_group_see(struct oh_comm *comm, CUstream stream, enum oh_group_call kind);

/* A call of that communicator goes to NCCL within the group, and puts something on its stream. */
void oh_group_pass(const struct oh_comm *comm);

/* A call has failed before it came to NCCL: nothing of the group will run, and its end returns the first such error. */
void oh_group_fail(const struct oh_real *real, const struct oh_comm *comm, ncclResult_t error);

/* Keeps a birth for the end of the group, which owns it then. False: no memory; the birth stays the caller's. */
bool oh_group_add_birth(const struct oh_birth *birth);

/*
 * Ends one level by calling `end` (which calls the real ncclGroupEnd or ncclGroupSimulateEnd); at the outermost level
 * does onehop's part, unless NCCL failed or this only `simulate`s. Returns the first failure. After one that is not of
 * the program's making, and so may be this rank's alone, every communicator with calls in the group has failed.
 */
ncclResult_t oh_group_leave(const struct oh_real *real, ncclResult_t (*end)(const struct oh_real *, void *),
                            void *argument, bool simulate);

/*
 * Ends births by how NCCL's creation ended: ncclSuccess, asks NCCL who they are and completes them together;
 * ncclInProgress, waits for news of them (oh_births_look); anything else, cancels them.
 */
void oh_births_finish(const struct oh_real *real, struct oh_birth *births, size_t count, ncclResult_t res);

/* NCCL says what state a communicator is in, on which oh_comm_is_awaited: goes on with it and its splits. */
void oh_births_look(const struct oh_real *real, struct oh_comm *comm, ncclResult_t state);

/* Drops the queued calls of a communicator that is being destroyed or aborted inside a group. */
void oh_group_forget(const struct oh_comm *comm);

#endif
