/* SPDX-License-Identifier: MIT */
/*
 * comm.h - a communicator's life in onehop
 *
 * The application's ncclComm_t stays what NCCL made; onehop keeps a struct oh_comm beside it, found by the pointer.
 *
 *   attach    from before its creation to the first call that is served: attach.h
 *   calls     oh_comm_find, oh_call_decide, oh_call_launch or oh_submission_*
 *   death     oh_comm_retire before NCCL destroys it; memory is freed when kernels, graphs and peers are done with it
 *
 * Threads: different communicators are independent. One communicator is used by one thread at a time, which is NCCL's
 * own rule. oh_comm_find may run beside anything. This module knows nothing of how calls reach it (src/hook).
 */
#ifndef OH_COMM_COMM_H_
#define OH_COMM_COMM_H_

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/stats/live.h"
#include "comm/core/key.h"
#include "comm/core/segment.h"
#include "comm/core/staging.h"
#include "comm/stats/record.h"
#include "gpu/kernels.h"
#include "onehop/onehop.h"
#include "plan/op.h"
#include "plan/plan.h"

struct oh_creation;
struct oh_process;

/* What the program asks of a communicator when it creates it (src/hook/comm_config.h). */
struct oh_comm_config {
    bool blocking;
    uint32_t max_ctas; /* blocks of all its kernels that run at a time: so it occupies at most so many SMs */
    bool zero_cta;     /* CTAPolicy: NCCL is to use no SM */
};
#define OH_COMM_CONFIG_DEFAULT                                                                                         \
    {                                                                                                                  \
        .blocking = true, .max_ctas = UINT32_MAX                                                                       \
    }

/*
 * What a communicator needs until it is settled: served, or fallen back for good. The mutex guards the fields of struct
 * oh_comm that settling changes (rank, nranks, segment, reason, staging), `creation` and `children`; it is never held
 * over a call to NCCL or CUDA. The other fields belong to the thread that uses the communicator.
 */
struct oh_attach {
    pthread_mutex_t mutex;
    struct oh_creation *creation; /* NCCL still works on it; NULL: done, and who this rank is, is known */
    struct oh_creation *children; /* splits of this communicator that NCCL still works on */
    int cuda_device;
    bool ordering;         /* calls that NCCL serves are to be ordered with ours: there are events for it */
    bool unordered;        /* NCCL got work of this communicator before that */
    bool voted;            /* this rank has voted yes; what serving needs is ready. Guarded by the mutex */
    atomic_bool ordered;   /* OH_EVENT_NCCL is behind all work of it that NCCL has; any thread */
    bool patient;          /* has not waited for the other ranks in vain */
    bool first_call;       /* of those that oh_attach_wants, no earlier one has been decided */
    pthread_t thread;      /* that has created it */
    uint64_t calls;        /* allreduces so far; counted while unsettled */
    uint64_t cutover_call; /* the number of the first call that is served; 0: not known yet */
};

/* What the monitor knows of a communicator; guarded by its mutex. */
struct oh_watch {
    struct oh_comm *next; /* list of all that are watched */
    bool watched;
    struct oh_process *peer[OH_MAX_RANKS]; /* NULL: in this process, or cannot be watched */
    uint32_t spins;                        /* these two as the kernels left them last */
    uint32_t epoch;
    uint64_t since_ns;                  /* when a kernel was first seen to wait after that epoch; 0: never */
    uint64_t departed_ns[OH_MAX_RANKS]; /* when a rank was first seen to have departed; 0: it has not */
    bool asks;                          /* the driver is to be asked whether NCCL's calls are complete */
    atomic_bool asking;                 /* it is being asked; not guarded by the mutex */
    bool waits_in_nccl;                 /* what it has said last */
    unsigned answered;                  /* so many of NCCL's allreduces are known to be complete */
    uint64_t failed_ns;                 /* when the communicator was first seen to have failed; 0: it has not */
    bool trapped;                       /* kernels have been told to trap */
};

enum oh_event {
    OH_EVENT_LAUNCH, /* recorded after every eager launch, and by each replay of a graph */
    OH_EVENT_NCCL,   /* recorded after every eager call that NCCL has served */
    OH_EVENT_JOIN,   /* between the streams of a group */
    OH_EVENTS
};

/* core/state.c has the transitions. Up to CUTOVER, NCCL serves the calls, and onehop counts them. */
enum oh_comm_state {
    OH_COMM_CREATING,  /* NCCL works on it; rank and nranks are unknown */
    OH_COMM_IDLE,      /* no call yet that onehop could serve */
    OH_COMM_ATTACHING, /* the set-up has begun */
    OH_COMM_CUTOVER,   /* the number of the first served call is known, and not reached */
    OH_COMM_SERVED,
    OH_COMM_FAILING,  /* a peer has departed: the next call fails */
    OH_COMM_FAILED,   /* calls return an error */
    OH_COMM_FALLBACK, /* NCCL serves all calls, for a reason */
    OH_COMM_ENDED     /* finalized, aborted, destroyed or revoked after CUTOVER */
};

struct oh_comm {
    ncclComm_t nccl;
    struct oh_key key;
    const void *library;          /* the NCCL that made it, for src/hook */
    int nccl_version;             /* of that, as ncclGetVersion gives it; 0: unknown */
    struct oh_comm_config config; /* inherited by splits */
    uint64_t splits;              /* ncclCommSplit calls made on it: the same number on every rank */
    uint64_t shrinks;             /* ncclCommShrink calls, likewise */
    uint64_t grows;               /* ncclCommGrow calls, likewise */
    uint32_t rank;
    uint32_t nranks;

    atomic_uint state;   /* enum oh_comm_state; changed by oh_comm_enter (core/state.h) alone */
    atomic_uint awaited; /* creations that NCCL works on: of this communicator, and of splits of it */
    bool in_background;  /* guarded by attach.c's mutex, as is the next */
    bool retired;        /* retired while the set-up is under way, which will release it */
    struct oh_attach attach;
    char reason[OH_REASON_BYTES];
    struct oh_plan_table table;
    uint32_t max_blocks; /* the least that the ranks ask for */
    struct oh_segment segment;
    struct oh_staging staging;
    const struct oh_kernel_set *kernels;
    struct oh_kernel_args args; /* what is the same in every call */

    /* Order between calls on different streams and in graphs (order.c). */
    bool graph_mixing; /* graphs are ordered with everything else */
    bool launch_order; /* small captured calls may be launched while the program's kernel before them runs */
    bool early_send;   /* a part of a call may send before the part before it has ended, on this rank */
    bool overlaps;     /* kernels of every rank may overlap, by what device and code are: the same on all ranks */
    CUevent event[OH_EVENTS];
    unsigned long long last_stream; /* id of the stream of the last eager launch */
    bool launched;
    bool unrecorded;             /* kernels run that OH_EVENT_LAUNCH does not cover: their memory can never be freed */
    atomic_uint nccl_allreduces; /* eager ones that NCCL has served since this rank is served */
    unsigned long long nccl_stream;    /* id of the stream of that call */
    bool nccl_event_pending;           /* no launch of ours is behind that event yet */
    atomic_int nccl_launch;            /* order.c: NCCL launches a call in the background */
    CUstream nccl_launch_stream;       /* of that call */
    bool nccl_launch_allreduce;        /* it is one */
    unsigned long long nccl_launch_id; /* its id, once the call's event is recorded */
    struct oh_capture *captures;       /* newest first */
    atomic_uint graphs;                /* captured graphs that hold calls of this communicator */
    bool peers_closed;                 /* peers' memory closed (retire.c) */
    unsigned reclaim_failures;         /* of the driver, while memory was freed */

    struct oh_user_op *user_ops; /* redop.c */

    /* Failures, and what ranks tell each other (failure.h). */
    atomic_int failure;           /* the error that calls now return; ncclSuccess: none */
    atomic_uint departed_peer;    /* in FAILING: the rank */
    bool held;                    /* kernels that begin send nothing any more (oh_comm_failure) */
    atomic_bool aborted;          /* by the program: NCCL may have freed its communicator */
    atomic_bool destroyed;        /* by the program: kernels that wait in vain may leave */
    struct oh_progress *progress; /* this rank's in the segment, once it is served */
    uint64_t launched_calls;      /* calls launched */
    bool check;                   /* calls are compared between ranks */
    uint64_t checked;             /* so many were */
    uint64_t check_hash;
    atomic_uint users; /* threads between oh_comm_begin_use and oh_comm_end_use */
    struct oh_watch watch;

    struct oh_live_ref live; /* its counters, and what `onehop stat` shows of it */
    double attach_ms;

    struct oh_comm *next; /* list of the retired */
};

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

/* Counts a call that oh_call_decide has declined, by the reason. */
void oh_comm_count_fallback(struct oh_comm *comm, size_t count, ncclDataType_t type, ncclRedOp_t op);

/* Counts a call on a communicator that onehop does not know. */
void oh_stats_count_unknown(void);

/* NCCL has loaded this library as a plugin: there is a communicator. The program has made or ended one by onehop. */
void oh_stats_mark_plugin_loaded(void);
void oh_stats_mark_reached(void);

/* The state. Acquire: pairs with oh_comm_enter (core/state.h). Any thread. */
static inline enum oh_comm_state oh_comm_state(const struct oh_comm *comm)
{
    return (enum oh_comm_state)atomic_load_explicit(&comm->state, memory_order_acquire);
}

/* False: NCCL serves the calls, which go through attach.h. */
static inline bool oh_comm_is_settled(const struct oh_comm *comm)
{
    return oh_comm_state(comm) >= OH_COMM_SERVED;
}

/* True once NCCL has created it, so that its calls are counted. */
static inline bool oh_comm_is_created(const struct oh_comm *comm)
{
    return oh_comm_state(comm) != OH_COMM_CREATING;
}

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

/* Where a stream is: in a graph, or out of all. */
struct oh_stream_state {
    bool known; /* the driver has told the rest */
    CUstream stream;
    CUgraph graph; /* that it is captured into, NULL: eager */
    cuuint64_t capture_id;
    unsigned long long stream_id; /* eager only */
};

/* A call that NCCL serves, of a communicator that is ordered. */
struct oh_nccl_call {
    struct oh_stream_state stream_state;
    bool allreduce;  /* so no rank completes it without all others */
    CUresult result; /* of what has put it in order so far */
};

/*
 * Calls of one communicator that the application made together: one alone, or those of a group. As in NCCL, a group
 * on several streams starts after the earlier work of each of these streams, and their later work after all of it.
 * Use: begin, advance until launched == count, end. Submissions of other communicators may advance in between.
 */
#define OH_SUBMISSION_QUANTUM 16 /* kernels after which a turn ends; the last call of it goes out whole */
struct oh_submission {
    const struct oh_call *calls;
    size_t count;
    size_t launched; /* calls */
    size_t kernels;  /* that have gone out */
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

/*
 * The capture that a stream is in: a number that no other capture has, 0: none. The communicator has been served.
 * Returns ncclSuccess or ncclUnhandledCudaError (logged as WARN).
 */
ncclResult_t oh_comm_capture(struct oh_comm *comm, CUstream stream, cuuint64_t *capture_p);

/* Are calls that NCCL serves to be ordered with ours? True from the set-up on, unless the communicator falls back.
 */
bool oh_comm_is_ordered(struct oh_comm *comm);

/*
 * Around a call that NCCL serves on `stream`, of a communicator that is ordered: orders it after our launches, and our
 * later launches after it. What is not ordered: doc/design.md, "Order". *call_p is for the second function, which is
 * called if NCCL has accepted the call. It returns ncclSuccess, or ncclUnhandledCudaError (logged at WARN) if the
 * driver has failed in either: then the communicator has failed.
 */
void oh_order_before_nccl(struct oh_comm *comm, CUstream stream, bool allreduce, struct oh_nccl_call *call_p);
ncclResult_t oh_order_after_nccl(struct oh_comm *comm, struct oh_nccl_call *call);

/*
 * The second behind a call that NCCL launches in the background (ncclInProgress): the call is noted when NCCL has
 * launched it, which oh_order_nccl_launched is told, on any thread.
 */
ncclResult_t oh_order_after_nccl_async(struct oh_comm *comm, const struct oh_nccl_call *call);
void oh_order_nccl_launched(struct oh_comm *comm);
static inline bool oh_comm_is_launching(const struct oh_comm *comm);

/*
 * Puts the later work of the stream `to` behind the earlier work of `from`, of a communicator that is served; both are
 * captured by one graph, or not at all. Returns ncclSuccess or ncclUnhandledCudaError (logged as WARN).
 */
ncclResult_t oh_comm_join(struct oh_comm *comm, CUstream from, CUstream to);

/* A submission of one call, from begin to end. */
ncclResult_t oh_call_launch(const struct oh_call *call);

/*
 * Around what may block, or uses the communicator after it has blocked: another thread may abort the communicator
 * meanwhile, and it must not be freed under this one. Plain stores, since one thread uses a communicator at a time;
 * the one that frees (retire.c) looks much later than a store takes to be seen.
 */
static inline void oh_comm_begin_use(struct oh_comm *comm);
static inline void oh_comm_end_use(struct oh_comm *comm);

/*
 * The error with which the caller must refuse its call; ncclSuccess: the communicator is sound. After an error no
 * replay of this rank's graphs sends anything: another rank may have launched the kernel of the call that is refused
 * here, and the replay's kernel would take its number. Called by the thread that uses the communicator.
 */
ncclResult_t oh_comm_failure(struct oh_comm *comm);

/*
 * Has what retired communicators left freed in the background, as far as kernels, graphs and peers are done with it.
 * Waits 50 ms at most, and mostly far less.
 */
void oh_comms_reclaim(void);

/* Fill the public descriptions, of a communicator and of all of the process. */
void oh_comm_describe(struct oh_comm *comm, onehop_comm_info_t *info_p);
void oh_comms_describe(onehop_process_info_t *info_p);

/* Gives out the statistics of every registered communicator, where ONEHOP_STATS and ONEHOP_STATS_FILE say. */
void oh_comms_print_stats(void);

static inline void oh_comm_begin_use(struct oh_comm *comm)
{
    unsigned before = atomic_load_explicit(&comm->users, memory_order_relaxed);
    atomic_store_explicit(&comm->users, before + 1, memory_order_relaxed);
}

static inline void oh_comm_end_use(struct oh_comm *comm)
{
    unsigned before = atomic_load_explicit(&comm->users, memory_order_relaxed);
    atomic_store_explicit(&comm->users, before - 1, memory_order_release); /* pairs with the load in retire.c */
}

static inline struct oh_counters *oh_comm_counters(struct oh_comm *comm)
{
    return oh_live_counters(&comm->live);
}

static inline bool oh_comm_is_launching(const struct oh_comm *comm)
{
    return atomic_load_explicit(&comm->nccl_launch, memory_order_relaxed) != 0;
}

/* Between the files of this module. */
ncclResult_t oh_comm_prepare_order(struct oh_comm *comm);  /* events */
ncclResult_t oh_comm_prepare_launch(struct oh_comm *comm); /* kernels, arguments */
void oh_comm_release(struct oh_comm *comm);                /* nobody knows it any more */
void oh_comm_detach(struct oh_comm *comm);                 /* not served: lets go of segment and staging memory */
ncclResult_t oh_registry_add(struct oh_comm *comm);
void oh_registry_remove(struct oh_comm *comm);
void oh_registry_visit(void (*visit)(struct oh_comm *comm));
void oh_comm_print_stats(struct oh_comm *comm);
void oh_comm_facts(const struct oh_comm *comm, struct oh_stats_record *record_p); /* all but counters; mutex held */
void oh_comm_publish_facts(struct oh_comm *comm);                                 /* to the live page; mutex held */

#endif
