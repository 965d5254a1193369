/* SPDX-License-Identifier: MIT */
/*
 * internal.h - what the files of src/comm/call share
 *
 * Does: route.c decides who executes a call; call.c begins and ends every call. group.c has the calls of a group,
 *    members.c its communicators, parts.c the order and the launches of NCCL's part and onehop's.
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

/* --- members.c ---------------------------------------------------------------------------------------------------- */

/* The parts of a group, as bits: NCCL's is first. */
enum oh_group_part {
    OH_GROUP_PART_ONEHOP = 1,
    OH_GROUP_PART_NCCL = 2
};

/* A stream with calls of a communicator that is ordered. */
struct oh_group_stream {
    struct oh_group_stream *next;
    CUstream stream;
    bool is_capture_known; /* the driver has been asked: not if the group has no other stream */
    cuuint64_t capture;    /* 0: not captured */
    unsigned parts;        /* that have calls on it; 0: calls are kept on it */
    struct oh_nccl_call nccl_call;
};

/* A communicator with calls in the group, or that ends in it. */
struct oh_group_member {
    struct oh_group_member *next;
    struct oh_comm *comm; /* retained; NULL: onehop does not know it */
    ncclComm_t handle;
    const struct oh_nccl *nccl;
    bool has_nccl_call;                  /* NCCL executes a call of it */
    bool needs_all_ranks;                /* no rank completes these calls of NCCL's without all others */
    bool ends;                           /* the group's end waits for its kernels */
    struct oh_group_stream *streams;     /* in the order of their first calls */
    struct oh_group_stream first_stream; /* the memory of the first: most members have no other */
};

/* This thread's group. What it has lives from the first use to the group's end. */
struct oh_group {
    int depth;
    ncclResult_t error;    /* of the first call that onehop or NCCL has refused: nothing of the group runs */
    struct oh_call *calls; /* in the order made: those that are kept, and those for which there are kernels */
    size_t call_count, call_room;
    bool serves;                     /* onehop executes a call */
    bool keeps;                      /* a call is kept, and so are all further calls */
    struct oh_kept_config *configs;  /* of kept calls */
    struct oh_group_member *members; /* of all calls; in the order of their first calls */
    struct oh_comm *creations;       /* communicators that NCCL creates; a list */
};
extern __thread struct oh_group oh_group __attribute__((visibility("hidden")));

/* Returns whether this thread is between ncclGroupStart and ncclGroupEnd. */
static inline bool oh_group_is_open(void)
{
    return oh_group.depth > 0;
}

/* In a group, NCCL has returned `result` for a call. Returns `result`; after an error nothing of the group runs. */
ncclResult_t oh_group_note_result(ncclResult_t result);

/*
 * With an error, a call of the communicator has failed before NCCL got it: nothing of the group runs. Returns the
 * error.
 */
ncclResult_t oh_group_fail(const struct oh_comm *comm, ncclResult_t error);

/*
 * Finds the member that is a communicator of `nccl`, or adds it; comm NULL: onehop does not know it. Returns NULL
 * (logged) without memory.
 */
struct oh_group_member *oh_group_member_add(struct oh_comm *comm, const struct oh_nccl *nccl, ncclComm_t handle);

/* Finds the member that is a communicator of onehop's; NULL: none. */
struct oh_group_member *oh_group_member_find(const struct oh_comm *comm);

/* NCCL gets the call of a member. */
void oh_group_note_nccl(struct oh_group_member *member, const struct oh_call *call);

/* In a group, a communicator ends: the group's end waits for its kernels, as NCCL does for its own. */
void oh_group_add_end(struct oh_comm *comm);

/* Drops the calls of a communicator that the program destroys or aborts inside a group. */
void oh_group_forget(struct oh_comm *comm);

void oh_group_members_free(void);

/* Makes the communicators with streams fail, which is logged. */
void oh_group_members_fail(ncclResult_t res);

/*
 * NCCL launches its part in the background, as for non-blocking communicators. Waits until it has: on a stream of both
 * parts the order must be the same on all ranks. The wait ends, because NCCL launches or fails, the monitor fails the
 * communicator, or another thread aborts it. A rank that is alive and does not call blocks stock NCCL here, too.
 */
ncclResult_t oh_group_await_nccl(const struct oh_nccl *nccl);

/*
 * If nothing has failed (`res`), waits for the kernels of communicators that end. The wait ends: the monitor fails a
 * communicator whose peer has departed. Returns as oh_difference_log does.
 */
ncclResult_t oh_group_await_ends(ncclResult_t res);

/* --- parts.c ------------------------------------------------------------------------------------------------------ */

/* Finds the stream of a call of the member, which is ordered, or adds it. Returns as oh_group_add does. */
ncclResult_t oh_group_stream_add(struct oh_group_member *member, const struct oh_call *call,
                                 struct oh_group_stream **stream_p);

/*
 * Before NCCL's part: orders it after the earlier work of all streams, and launches what runs before it
 * (ONEHOP_VERIFY). Nothing of the group runs if that fails.
 */
void oh_group_begin_nccl(void);

/* NCCL has launched its part, or is launching it in the background. Returns the first failure. */
ncclResult_t oh_group_end_nccl(bool in_background);

/* After NCCL's part: launches the calls that onehop executes, and forgets the group's other calls. */
ncclResult_t oh_group_launch(void);

/* --- kept_config.c ------------------------------------------------------------------------------------------------ */

/* Copies the configuration of a call, which is the program's until the call returns. Returns as oh_group_add does. */
ncclResult_t oh_kept_config_add(struct oh_kept_config **list, struct oh_call *call);
void oh_kept_configs_free(struct oh_kept_config *list);

/* --- group.c ------------------------------------------------------------------------------------------------------ */

/*
 * In a group, begins a call: sets its route. Returns ncclSuccess; ncclInvalidUsage (its stream is captured, or not,
 * unlike those of other calls of the communicator), ncclSystemError (out of memory), ncclUnhandledCudaError, or the
 * error of the communicator, all logged: then nothing of the group runs.
 */
ncclResult_t oh_group_add(struct oh_call *call);

#endif
