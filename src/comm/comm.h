/* SPDX-License-Identifier: MIT */
/*
 * comm.h - a communicator's life in onehop
 *
 * The application's ncclComm_t stays what NCCL made; onehop keeps a struct oh_comm beside it, found by the pointer.
 *
 *   birth     before NCCL creates a communicator: presence is published (oh_birth_begin)
 *   set-up    after NCCL has created it: the ranks agree (oh_births_complete); served from then on, or handed back
 *   calls     oh_comm_find, oh_comm_plan, oh_call_launch or oh_burst_*
 *   death     oh_comm_retire before NCCL destroys it; memory is freed when kernels, graphs and peers are done with it
 *
 * Threads: different communicators are independent. One communicator is used by one thread at a time, which is NCCL's
 * own rule. oh_comm_find may run beside anything. This module knows nothing of how calls reach it (src/hook).
 */
#ifndef OH_COMM_COMM_H_
#define OH_COMM_COMM_H_

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/key.h"
#include "comm/segment.h"
#include "comm/staging.h"
#include "comm/stats.h"
#include "gpu/kernels.h"
#include "onehop/onehop.h"
#include "plan/op.h"
#include "plan/plan.h"

struct oh_comm {
    ncclComm_t nccl;
    struct oh_key key;
    const void *library; /* the NCCL that made it, for src/hook */
    bool blocking;       /* as the application asked, inherited by splits */
    uint64_t splits;     /* ncclCommSplit calls made on it: the same number on every rank */
    uint32_t rank;
    uint32_t nranks;

    atomic_bool served;
    char reason[OH_REASON_BYTES];
    struct oh_plan_table table;
    struct oh_segment segment;
    struct oh_staging staging;
    const struct oh_kernel_set *kernels;
    struct oh_kernel_args args; /* what is the same in every call */

    /* Order between calls on different streams and in graphs (order.c). */
    bool graph_mixing;              /* graphs are ordered with everything else */
    CUevent last_call;              /* recorded after every eager launch, and by each replay of a graph */
    unsigned long long last_stream; /* id of the stream of the last eager launch */
    CUstream last_handle;           /* of that stream */
    bool launched;
    CUevent handed_back_call;      /* recorded after a call that NCCL has served, once there are many streams */
    CUstream handed_back_stream;   /* of that call */
    bool handed_back_since;        /* no launch of ours is behind that event yet */
    CUstream latest_stream;        /* of any call, served or not */
    bool any_stream, many_streams; /* calls have been on one stream, on several */
    struct oh_capture *captures;   /* newest first */
    atomic_uint graphs;            /* captured graphs that hold launches of this communicator */
    bool said_goodbye;             /* peers' memory closed (retire.c) */

    struct oh_user_op *user_ops; /* redop.c */

    atomic_uint_fast64_t calls[ONEHOP_ALGORITHMS];
    atomic_uint_fast64_t back[OH_BACKS]; /* handed back, by reason */
    atomic_uint_fast64_t bytes;
    double setup_ms;

    struct oh_comm *next; /* list of the retired */
};

/* A communicator on its way. Plain memory of the caller; no field is touched by others. */
struct oh_birth {
    struct oh_key key;
    struct oh_segment segment;
    bool present; /* this rank has been counted in */
    bool blocking;
    char refusal[OH_REASON_BYTES]; /* not empty: this rank will not take part, and why */
    uint64_t spent_ns;

    ncclComm_t *nccl_p; /* where NCCL puts the handle */

    /* Filled in by the caller when NCCL has created it. */
    ncclComm_t nccl; /* NULL: it has not */
    const void *library;
    int rank;
    int nranks;
    int cuda_device;
};

/*
 * Starts a birth: counts this rank in under the key. Cannot fail; what goes wrong becomes the refusal. nccl_p: where
 * NCCL will put the handle.
 */
void oh_birth_begin(struct oh_birth *birth, const struct oh_key *key, bool blocking, ncclComm_t *nccl_p);

/* Makes this rank refuse: all ranks will hand back with this reason. */
void oh_birth_refuse(struct oh_birth *birth, const char *reason);

/* NCCL did not create it after all: withdraws. */
void oh_birth_cancel(struct oh_birth *birth);

/*
 * NCCL is still creating these communicators in the background: they are registered as handed back (where there is a
 * handle yet), so that their calls are counted and their splits have a parent. Ends the births.
 */
void oh_births_decline(struct oh_birth *births, size_t count);

/*
 * Sets up communicators that NCCL has created, all those that this thread has created together: each phase runs for
 * all of them before the next begins, so that ranks of one thread do not wait for one another. Every wait is bounded.
 * Afterwards each is registered, served or not; a birth without a handle is cancelled. Ends the births.
 */
void oh_births_complete(struct oh_birth *births, size_t count);

/* The communicator of that pointer, NULL if onehop does not know it. Lock-free. */
struct oh_comm *oh_comm_find(ncclComm_t nccl);

/*
 * Remembers an op that NCCL has made on the communicator; scalar and on_device as for oh_op_scaled. Returns
 * ncclSuccess, ncclInvalidArgument, or ncclSystemError (no memory), each logged.
 */
ncclResult_t oh_comm_op_add(struct oh_comm *comm, ncclRedOp_t handle, ncclDataType_t type, const void *scalar,
                            bool on_device);

/* Forgets one op, if it is known; all. */
void oh_comm_op_remove(struct oh_comm *comm, ncclRedOp_t handle);
void oh_comm_ops_forget(struct oh_comm *comm);

/* What an op means on the communicator. False: NCCL would not take it for that type. */
bool oh_comm_op_find(const struct oh_comm *comm, ncclRedOp_t op, ncclDataType_t type, struct oh_op *op_p);

/* Counts a call that oh_call_plan has declined, by the reason. */
void oh_comm_count_handed_back(struct oh_comm *comm, ncclDataType_t type, ncclRedOp_t op);

/* One allreduce call, as the application made it. */
struct oh_call {
    struct oh_comm *comm;
    const void *sendbuff;
    void *recvbuff;
    size_t count;
    ncclDataType_t type;
    CUstream stream;
    struct oh_op op;
    struct oh_plan plan;
    size_t serial; /* place in its group */
};

/*
 * True when onehop serves the call, whose comm, count and type are set; its op and plan then are, too. Depends only on
 * what is equal on all ranks.
 */
bool oh_call_plan(struct oh_call *call, ncclRedOp_t op);

/*
 * Calls of one communicator that the application made together: one alone, or those of a group. As in NCCL, a group
 * on several streams starts after the earlier work of each of these streams, and their later work after all of it.
 * Use: begin, turns until launched == count, end. Bursts of other communicators may take their turns in between.
 */
#define OH_BURST_TURN 16 /* the most launches in one turn */
struct oh_burst {
    const struct oh_call *calls;
    size_t count;
    size_t launched;
    bool joined;   /* more than one stream */
    CUgraph graph; /* that the stream is captured into, NULL: eager */
    cuuint64_t capture_id;
    struct oh_capture *capture;   /* of that */
    unsigned long long stream_id; /* eager only */
};

/* Each returns ncclSuccess, or ncclUnhandledCudaError (logged as WARN); after an error the burst is over. */
ncclResult_t oh_burst_begin(struct oh_burst *burst, const struct oh_call *calls, size_t count);
ncclResult_t oh_burst_turn(struct oh_burst *burst);
ncclResult_t oh_burst_end(struct oh_burst *burst);

/*
 * The capture that a stream is in: a number that no other capture has, 0: none. The communicator has been served.
 * Returns ncclSuccess or ncclUnhandledCudaError (logged as WARN).
 */
ncclResult_t oh_comm_capture(struct oh_comm *comm, CUstream stream, cuuint64_t *capture_p);

/*
 * Around a call that NCCL serves on `stream`, of a communicator that is served: orders it after our launches, and our
 * later launches after it. Costs a few loads while the communicator has used one stream only, and no graph is alive.
 * What is not ordered: doc/design.md, "Order". Cannot fail; says at INFO what went wrong.
 */
void oh_comm_before_handed_back(struct oh_comm *comm, CUstream stream);
void oh_comm_after_handed_back(struct oh_comm *comm, CUstream stream);

/* A burst of one call, from begin to end. */
ncclResult_t oh_call_launch(const struct oh_call *call);

/* Tells running kernels of this communicator to leave, and hands later calls to NCCL. */
void oh_comm_abort(struct oh_comm *comm);

/* Hands later calls to NCCL (the communicator is being finalized). */
void oh_comm_suspend(struct oh_comm *comm);

/* Forgets the communicator: its pointer may be reused at once. Its memory goes when no one uses it any more. */
void oh_comm_retire(struct oh_comm *comm);

/*
 * Has what retired communicators left freed in the background, as far as kernels, graphs and peers are done with it.
 * Waits 50 ms at most, and mostly far less.
 */
void oh_comms_reap(void);

/* Fills the public description. */
void oh_comm_describe(const struct oh_comm *comm, onehop_comm_info_t *info_p);

/* Gives out the statistics of every registered communicator, where ONEHOP_STATS and ONEHOP_STATS_FILE say. */
void oh_comms_print_stats(void);

/* Between the files of this module. */
ncclResult_t oh_comm_prepare_launch(struct oh_comm *comm); /* kernels, events, arguments */
void oh_comm_strip(struct oh_comm *comm);                  /* not served: lets go of meeting and memory */
ncclResult_t oh_registry_add(struct oh_comm *comm);
void oh_registry_remove(struct oh_comm *comm);
void oh_registry_visit(void (*visit)(const struct oh_comm *comm));
void oh_comm_print_stats(const struct oh_comm *comm);

#endif
