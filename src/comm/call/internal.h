/* SPDX-License-Identifier: MIT */
/*
 * internal.h - what the files of src/comm/call share
 *
 * Does: route.c decides who executes a call; group.c has the calls of a group; call.c begins and ends every call.
 * Threads: see comm/call.h.
 * Owns: nothing.
 */
#ifndef OH_COMM_CALL_INTERNAL_H_
#define OH_COMM_CALL_INTERNAL_H_

#include "comm/comm_internal.h"

/* --- route.c ------------------------------------------------------------------------------------------------------ */

/* Decides who executes the call, and counts it up to the cutover: sets route, fallback, number, op and plan. */
void oh_call_route(struct oh_call *call);

/* Returns the error with which the communicator refuses the call; ncclSuccess: none. */
ncclResult_t oh_call_check(const struct oh_call *call);

/*
 * NCCL may still be launching an earlier call of a non-blocking communicator whose state the program has not queried.
 * NCCL rejects further calls then (ncclCommEnsureReady, src/init.cc of 2.28.9). Returns what NCCL would.
 */
ncclResult_t oh_call_check_launched(struct oh_comm *comm);

/*
 * NCCL executes the call: counts it, and compares it where calls are compared. Returns ncclSuccess, or ncclInvalidUsage
 * (logged): it differs from another rank's.
 */
ncclResult_t oh_call_note_executed(const struct oh_call *call);

/* --- verified.c --------------------------------------------------------------------------------------------------- */

/*
 * ONEHOP_VERIFY: a call that oh_verify_choose has chosen (launch/launch.h). oh_verified_forward makes it to NCCL, and
 * returns NCCL's result. oh_verified_begin launches what runs before NCCL's part, on a stream on which the call's data
 * is ready; returns ncclSuccess or ncclUnhandledCudaError (logged). oh_verified_alone does both for a call outside of a
 * group, if it is chosen, in order with other calls; returns either error.
 */
ncclResult_t oh_verified_forward(const struct oh_call *call);
ncclResult_t oh_verified_begin(const struct oh_call *call, CUstream stream);
ncclResult_t oh_verified_alone(struct oh_call *call);

/* --- group.c ------------------------------------------------------------------------------------------------------ */

/* Returns whether this thread is between ncclGroupStart and ncclGroupEnd. */
bool oh_group_is_open(void);

/*
 * In a group, begins a call: sets its route. Returns ncclSuccess; ncclInvalidUsage (its stream is captured, or not,
 * unlike those of other calls of the communicator), ncclSystemError (out of memory), ncclUnhandledCudaError, or the
 * error of the communicator, all logged: then nothing of the group runs.
 */
ncclResult_t oh_group_add(struct oh_call *call);

/* In a group, NCCL has returned `result` for a call. Returns `result`; after an error nothing of the group runs. */
ncclResult_t oh_group_note_result(ncclResult_t result);

/* In a group, a communicator ends: the group's end waits for its kernels, as NCCL does for its own. */
void oh_group_add_end(struct oh_comm *comm);

/* Drops the calls of a communicator that the program destroys or aborts inside a group. */
void oh_group_forget(struct oh_comm *comm);

#endif
