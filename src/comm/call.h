/* SPDX-License-Identifier: MIT */
/*
 * call.h - calls that a program makes on communicators, alone and in groups
 *
 * Does: An entry point describes its call and makes it: oh_call_begin decides who executes the call, NCCL's function
 *    follows if NCCL does, and oh_call_end ends the call. All kinds of calls go this way, eager, captured and grouped.
 *    A group keeps the calls of a communicator whose ranks have not agreed yet, and decides them at its end, in the
 *    order in which the program has made them.
 * Threads: one thread at a time uses a communicator, by NCCL's own rules. Each thread has its own group, as in NCCL.
 * Owns: the calls of groups, from oh_call_begin to the end of the group.
 */
#ifndef OH_COMM_CALL_H_
#define OH_COMM_CALL_H_

#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/nccl.h"
#include "comm/stats/record.h"
#include "gpu/driver.h"
#include "plan/plan.h"

struct oh_comm;

/* The first kinds are those of enum onehop_collective, for which there are kernels. */
enum oh_call_kind {
    OH_CALL_ALLREDUCE = ONEHOP_ALLREDUCE,
    OH_CALL_ALL_GATHER = ONEHOP_ALLGATHER,
    OH_CALL_REDUCE_SCATTER = ONEHOP_REDUCESCATTER,
    OH_CALL_BROADCAST = ONEHOP_BROADCAST,
    OH_CALL_REDUCE = ONEHOP_COLLECTIVE_COUNT,
    OH_CALL_SEND,
    OH_CALL_RECV,
    OH_CALL_ALL_TO_ALL,
    OH_CALL_GATHER,
    OH_CALL_SCATTER,
    OH_CALL_OP_DESTROY /* ncclRedOpDestroy: no work, but after the calls that need the op */
};

/* Returns whether onehop has kernels for calls of this kind. */
static inline bool oh_kind_has_kernels(enum oh_call_kind kind)
{
    return (int)kind < ONEHOP_COLLECTIVE_COUNT;
}

/* Who executes a call. */
enum oh_route {
    OH_ROUTE_PENDING, /* the group's end decides */
    OH_ROUTE_ONEHOP,
    OH_ROUTE_NCCL,
    OH_ROUTE_NONE /* the call is refused */
};

/* Where a stream is: in a graph, or out of all. */
struct oh_stream_state {
    bool known; /* the driver has told the rest */
    CUstream stream;
    CUgraph graph; /* that it is captured into, NULL: eager */
    cuuint64_t capture_id;
    unsigned long long stream_id; /* eager only */
};

/* The order of a call that NCCL serves (launch/nccl.c). */
struct oh_nccl_call {
    struct oh_stream_state stream_state;
    bool needs_all_ranks; /* no rank completes it without all others */
    CUresult result;      /* of what has put it in order so far */
};

/* A call. The entry point sets the first part, oh_call_begin the second. */
struct oh_call {
    struct oh_comm *comm; /* NULL: onehop does not know the communicator; then the call is only forwarded */
    const struct oh_nccl *nccl;
    ncclComm_t handle;
    enum oh_call_kind kind;
    const void *sendbuff;
    void *recvbuff;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t redop;
    int root; /* or peer */
    CUstream stream;
    bool is_bcast;   /* a broadcast by the name ncclBcast, which NCCL gets, too */
    bool has_config; /* ncclXConfig: the program configures the call, so NCCL executes it */
    const oh_nccl_call_config *config;

    enum oh_route route;
    enum oh_fallback fallback; /* why NCCL executes a call for which there are kernels */
    uint64_t number;           /* among the calls before the cutover that NCCL executes; 0: none */
    bool is_ordered;           /* NCCL's call is ordered with onehop's, outside of groups by `order` */
    struct oh_nccl_call order;
    struct oh_op op; /* this and the plan: of a call that onehop executes */
    struct oh_plan plan;
    size_t serial; /* place in its group */
    struct {
        uint64_t number;                /* of the call, as its launch has it */
        uint64_t count;                 /* elements of each row of the result that are compared; 0: none */
        uint64_t reference, magnitudes; /* offsets in the memory for it */
    } verified;                         /* a call of ONEHOP_VERIFY (launch/verify.c) */
};

/*
 * Begins a call. Returns OH_ROUTE_NCCL: the caller makes the call (oh_call_forward), and passes its result to
 * oh_call_end. Else sets *result_p, the result of the call: onehop executes it, the group keeps it, or it is refused
 * with an error, which is logged. `call` may end with the caller's block. The caller uses the communicator until after
 * oh_call_end.
 */
enum oh_route oh_call_begin(struct oh_call *call, ncclResult_t *result_p);

/* Makes the call to NCCL, and returns its result. */
ncclResult_t oh_call_forward(const struct oh_call *call);

/* Ends a call after oh_call_begin, with its result. Returns the result for the program. */
ncclResult_t oh_call_end(struct oh_call *call, ncclResult_t result);

/* NCCL gets a call of a communicator that onehop does not know, in this thread's group if one is open. */
void oh_group_add_unknown(const struct oh_nccl *nccl, ncclComm_t comm);

/* Returns whether this thread's open group has calls of the communicator. */
bool oh_group_has_calls(const struct oh_comm *comm);

/* --- groups ------------------------------------------------------------------------------------------------------- */

/* ncclGroupStart has succeeded. */
void oh_group_begin(void);

/*
 * Around ncclGroupEnd, or ncclGroupSimulateEnd (`is_estimate`), which returned `result`. Before: the outermost group
 * decides the calls that it has kept. After: launches onehop's calls, unless NCCL has failed. Returns the first
 * failure. Then every communicator with calls in the group has failed, unless the program caused the failure: other
 * ranks may have launched the group.
 */
void oh_group_decide(bool is_estimate);
ncclResult_t oh_group_end(const struct oh_nccl *nccl, ncclResult_t result, bool is_estimate);

#endif
