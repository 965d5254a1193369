/* SPDX-License-Identifier: MIT */
/*
 * comm.h - communicators as the hooks see them
 *
 * Does: The application's ncclComm_t stays what NCCL made; onehop keeps a struct oh_comm beside it, found by the
 *    handle. attach/attach.h has the functions from the creation of a communicator to its first served call, and those
 *    of its end. src/comm knows nothing of how calls reach it (src/hook).
 * Threads: communicators are independent. One communicator is used by one thread at a time, which is NCCL's own rule;
 *    functions that any thread may call say so.
 * Owns: the communicators, from their registration to their release (attach/retire.c).
 */
#ifndef OH_COMM_COMM_H_
#define OH_COMM_COMM_H_

#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/core/key.h"
#include "gpu/driver.h"
#include "kernels/abi.h"
#include "onehop/onehop.h"
#include "plan/plan.h"

struct oh_comm;

/* What the program asks of a communicator when it creates it (src/hook/comm_config.c). */
struct oh_comm_config {
    bool blocking;
    uint32_t max_ctas; /* blocks of all its kernels that run at a time: so it occupies at most so many SMs */
    bool zero_cta;     /* CTAPolicy: NCCL is to use no SM */
};
#define OH_COMM_CONFIG_DEFAULT                                                                                         \
    {                                                                                                                  \
        .blocking = true, .max_ctas = UINT32_MAX                                                                       \
    }

struct oh_comm_identity {
    ncclComm_t nccl;
    struct oh_key key;
    const void *library;          /* the NCCL that made it, for src/hook */
    int nccl_version;             /* of that, as ncclGetVersion gives it; 0: unknown */
    struct oh_comm_config config; /* inherited by splits */
    uint64_t splits;              /* calls of ncclCommSplit on it: the same number on every rank, as the next two */
    uint64_t shrinks;
    uint64_t grows;
    uint32_t rank; /* these two are 0 until NCCL has created the communicator */
    uint32_t nranks;
    struct oh_comm *parent; /* these four are for the creation; parent: of a split, or of one that grows out of it */
    bool is_grow;
    ncclComm_t *nccl_p;   /* where NCCL writes the handle */
    struct oh_comm *next; /* list of creations */
};

/* The communicator of that handle, NULL if onehop does not know it. Lock-free; any thread. */
struct oh_comm *oh_comm_find(ncclComm_t nccl);

/* The identity, which lives as long as the communicator: its first member. */
static inline struct oh_comm_identity *oh_comm_id(const struct oh_comm *comm)
{
    return (struct oh_comm_identity *)(uintptr_t)comm;
}

/* --- states; one atomic load each, any thread --------------------------------------------------------------------- */

/* False: NCCL serves the calls, which go through attach/attach.h. */
bool oh_comm_is_settled(const struct oh_comm *comm);

/* True once NCCL has created the communicator, so that its calls are counted. */
bool oh_comm_is_created(const struct oh_comm *comm);

/* True while NCCL creates the communicator, or a split of it, as far as onehop knows. */
bool oh_comm_is_creating(const struct oh_comm *comm);

/* The program has aborted the communicator: NCCL may have freed its own. */
bool oh_comm_is_aborted(const struct oh_comm *comm);

/* The program has not finalized, revoked or aborted it on this rank. */
bool oh_comm_is_in_use(const struct oh_comm *comm);

/* The error with which the communicator has failed; ncclSuccess: none. A departed peer alone is no failure. */
ncclResult_t oh_comm_error(const struct oh_comm *comm);

/*
 * The error with which the caller must refuse its call; ncclSuccess: none. If a peer has departed, the communicator
 * fails. After an error no replay of this rank's graphs sends anything: another rank may have launched the kernel of
 * the call that is refused here, and the replay's kernel would take its number. Called by the thread that uses the
 * communicator.
 */
ncclResult_t oh_comm_failure(struct oh_comm *comm);

/*
 * Makes the communicator fail with an NCCL error code on this rank, and, through the segment, on all others: with
 * ncclRemoteError there, if the error is one of this rank's driver. departed_rank: the rank whose departure is the
 * reason; OH_MAX_RANKS: none. Returns false if the communicator had failed before. Any thread.
 */
bool oh_comm_fail(struct oh_comm *comm, ncclResult_t error, uint32_t departed_rank);

/* NCCL has revoked the communicator, and refuses calls itself from now on: an earlier failure counts no more. */
void oh_comm_revoked(struct oh_comm *comm);

/*
 * Around what may block, or uses the communicator after it has blocked: another thread may abort the communicator
 * meanwhile, and it must not be freed under this one. Plain stores: one thread uses a communicator at a time, and
 * the thread that frees (retire.c) polls much later than a store takes to be visible.
 */
void oh_comm_begin_use(struct oh_comm *comm);
void oh_comm_end_use(struct oh_comm *comm);

/* --- ops ---------------------------------------------------------------------------------------------------------- */

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

/* --- calls -------------------------------------------------------------------------------------------------------- */

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
 * what is equal on all ranks. The communicator is settled.
 */
bool oh_call_decide(struct oh_call *call, ncclRedOp_t op);

/* Counts a call that oh_call_decide has declined, by the reason. */
void oh_comm_count_fallback(struct oh_comm *comm, size_t count, ncclDataType_t type, ncclRedOp_t op);

/* Where a stream is: in a graph, or out of all. */
struct oh_stream_state {
    bool known; /* the driver has told the rest */
    CUstream stream;
    CUgraph graph; /* that it is captured into, NULL: eager */
    cuuint64_t capture_id;
    unsigned long long stream_id; /* eager only */
};

/*
 * Calls of one communicator that the application made together: one alone, or those of a group. As in NCCL, a group
 * on several streams starts after the earlier work of each of these streams, and their later work after all of it.
 * Use: begin, advance until launched == count, end. Submissions of other communicators may advance in between.
 */
#define OH_SUBMISSION_QUANTUM 16 /* kernels after which a turn ends; the last call of it is launched whole */
struct oh_submission {
    const struct oh_call *calls;
    size_t count;
    size_t launched; /* calls */
    size_t kernels;  /* that are launched */
    bool joined;     /* more than one stream */
    struct oh_stream_state stream_state;
    struct oh_capture *capture; /* NULL: eager */
};

/*
 * Each returns ncclSuccess, or ncclUnhandledCudaError (logged at WARN). After an error the submission is over, and the
 * communicator has failed: this rank may have launched fewer kernels than the others. A capture is invalid then. (If
 * the program's capture was invalid before, the communicator stays as it was.)
 */
ncclResult_t oh_submission_begin(struct oh_submission *submission, const struct oh_call *calls, size_t count);
ncclResult_t oh_submission_advance(struct oh_submission *submission);
ncclResult_t oh_submission_end(struct oh_submission *submission);

/* A submission of one call, from begin to end. */
ncclResult_t oh_call_launch(const struct oh_call *call);

/*
 * The capture that a stream is in: a number that no other capture has, 0: none. The communicator has been served.
 * Returns ncclSuccess or ncclUnhandledCudaError (logged as WARN).
 */
ncclResult_t oh_comm_capture(struct oh_comm *comm, CUstream stream, cuuint64_t *capture_p);

/*
 * Orders the later work of the stream `to` after the earlier work of `from`, of a communicator that is served; both are
 * captured by one graph, or neither is. Returns ncclSuccess or ncclUnhandledCudaError (logged as WARN).
 */
ncclResult_t oh_comm_join(struct oh_comm *comm, CUstream from, CUstream to);

/* --- calls that NCCL serves --------------------------------------------------------------------------------------- */

/* Are calls that NCCL serves ordered with onehop's? From the begin of the set-up on, unless it falls back. */
bool oh_comm_is_ordered(struct oh_comm *comm);

/* A call that NCCL serves, of a communicator that is ordered. */
struct oh_nccl_call {
    struct oh_stream_state stream_state;
    bool allreduce;  /* so no rank completes it without all others */
    CUresult result; /* of what has put it in order so far */
};

/*
 * Around a call that NCCL serves on `stream`, of a communicator that is ordered: orders it after our launches, and our
 * later launches after it. What is not ordered: doc/design.md, "Order". *call_p is for the second function, which is
 * called if NCCL has accepted the call. It returns ncclSuccess, or ncclUnhandledCudaError (logged at WARN) if the
 * driver has failed in either: then the communicator has failed.
 */
void oh_order_before_nccl(struct oh_comm *comm, CUstream stream, bool allreduce, struct oh_nccl_call *call_p);
ncclResult_t oh_order_after_nccl(struct oh_comm *comm, struct oh_nccl_call *call);

/*
 * The second after a call that NCCL launches in the background (ncclInProgress): oh_order_nccl_launched, on any thread,
 * notes the call when NCCL has launched it; until then oh_comm_is_launching is true.
 */
ncclResult_t oh_order_after_nccl_async(struct oh_comm *comm, const struct oh_nccl_call *call);
void oh_order_nccl_launched(struct oh_comm *comm);
bool oh_comm_is_launching(const struct oh_comm *comm);

/* --- memory and statistics ---------------------------------------------------------------------------------------- */

/* Has the memory of retired communicators freed in the background. Waits 50 ms at most, and mostly far less. */
void oh_comms_reclaim(void);

/* Fill the public descriptions, of a communicator and of all of the process. */
void oh_comm_describe(struct oh_comm *comm, onehop_comm_info_t *info_p);
void oh_comms_describe(onehop_process_info_t *info_p);

/* Prints the statistics of every registered communicator, where ONEHOP_STATS and ONEHOP_STATS_FILE say. */
void oh_comms_print_stats(void);

/* Counts a call on a communicator that onehop does not know. */
void oh_stats_count_unknown(void);

/* True: NCCL has loaded this library as a plugin: there is a communicator. False: the program has made or ended one. */
void oh_stats_expect_calls(bool expects);

#endif
