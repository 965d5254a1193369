/* SPDX-License-Identifier: MIT */
/*
 * comm.h - a communicator's life in onehop
 *
 * The application's ncclComm_t stays what NCCL made; onehop keeps a struct oh_comm beside it, found by the pointer.
 *
 *   birth     before NCCL creates a communicator: presence is published (oh_birth_begin)
 *   set-up    after NCCL has created it: the ranks agree (oh_births_complete); served from then on, or handed back
 *   late      where the application does not wait for NCCL, nor shall it for onehop: oh_births_await,
 *             oh_comm_created, and a set-up in the background; served from a call on that the ranks agree on (late.c)
 *   calls     oh_comm_find, oh_call_plan, oh_call_launch or oh_burst_*
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

#include "comm/board.h"
#include "comm/key.h"
#include "comm/segment.h"
#include "comm/staging.h"
#include "comm/stats.h"
#include "gpu/kernels.h"
#include "onehop/onehop.h"
#include "plan/op.h"
#include "plan/plan.h"

struct oh_birth;
struct oh_setup;
struct oh_process;

/*
 * What a communicator needs until it is settled: served, or handed back for good. The mutex guards it, and the fields
 * of struct oh_comm that settling changes (segment, reason, staging); it is never held over a call to NCCL or CUDA.
 */
struct oh_late {
    pthread_mutex_t mutex;
    uint64_t calls;            /* made so far; counted while unsettled */
    uint64_t first;            /* the number of the first call that is served; 0: not known yet */
    bool passing;              /* a call is on its way to NCCL, which may accept it: it is not counted yet */
    struct oh_setup *setup;    /* waits for NCCL to finish the creation */
    struct oh_birth *children; /* splits of this communicator that NCCL still works on */
};

/* What the monitor knows of a communicator; guarded by its mutex. */
struct oh_watch {
    struct oh_comm *next; /* list of all that are watched */
    bool watched;
    struct oh_process *peer[OH_MAX_RANKS]; /* NULL: in this process, or cannot be watched */
    uint32_t looks;                        /* these two as the kernels left them last */
    uint32_t epoch;
    uint64_t since_ns;              /* when a kernel was first seen to wait after that epoch; 0: never */
    uint64_t gone_ns[OH_MAX_RANKS]; /* when a rank was first seen to have departed; 0: it has not */
    bool asks;                      /* the driver is to be asked whether NCCL's calls are complete */
    atomic_bool asking;             /* it is being asked; not guarded by the mutex */
    bool waits_in_nccl;             /* what it has said last */
    unsigned answered;              /* so many of NCCL's allreduces are known to be complete */
    uint64_t failed_ns;             /* when the communicator was first seen to have failed; 0: it has not */
    bool trapped;                   /* kernels have been told to trap */
};

enum oh_event {
    OH_EVENT_LAUNCH, /* recorded after every eager launch, and by each replay of a graph */
    OH_EVENT_NCCL,   /* recorded after every eager call that NCCL has served */
    OH_EVENT_JOIN,   /* between the streams of a group */
    OH_EVENTS
};

struct oh_comm {
    ncclComm_t nccl;
    struct oh_key key;
    const void *library; /* the NCCL that made it, for src/hook */
    int nccl_version;    /* of that, as ncclGetVersion gives it; 0: unknown */
    bool blocking;       /* as the application asked, inherited by splits */
    uint64_t splits;     /* ncclCommSplit calls made on it: the same number on every rank */
    uint64_t shrinks;    /* ncclCommShrink calls, likewise */
    uint64_t grows;      /* ncclCommGrow calls, likewise */
    uint32_t rank;
    uint32_t nranks;

    atomic_bool served;
    atomic_bool settled; /* served, or handed back for good */
    atomic_uint awaited; /* creations that NCCL works on: of this communicator, and of splits of it */
    bool in_background;  /* its set-up is; guarded by late.c's mutex, as is the next */
    bool orphaned;       /* retired meanwhile: the set-up will bury it */
    struct oh_late late;
    char reason[OH_REASON_BYTES];
    struct oh_plan_table table;
    struct oh_segment segment;
    struct oh_staging staging;
    const struct oh_kernel_set *kernels;
    struct oh_kernel_args args; /* what is the same in every call */

    /* Order between calls on different streams and in graphs (order.c). */
    bool graph_mixing; /* graphs are ordered with everything else */
    bool rows;         /* kernels of this rank that follow one another may overlap (gpu/row.h) */
    bool overlaps;     /* those of every rank may, by what device and code are: the same on all ranks */
    CUevent event[OH_EVENTS];
    unsigned long long last_stream; /* id of the stream of the last eager launch */
    bool launched;
    bool unrecorded;             /* kernels run that OH_EVENT_LAUNCH does not cover: their memory can never be freed */
    atomic_uint nccl_allreduces; /* eager ones that NCCL has served since this rank is served */
    unsigned long long handed_back_stream; /* id of the stream of that call */
    bool handed_back_since;                /* no launch of ours is behind that event yet */
    atomic_int launching;                  /* order.c: NCCL launches a call in the background */
    CUstream launching_stream;             /* of that call */
    bool launching_allreduce;              /* it is one */
    unsigned long long launching_id;       /* its id, once the call's event is recorded */
    struct oh_capture *captures;           /* newest first */
    atomic_uint graphs;                    /* captured graphs that hold calls of this communicator */
    bool said_goodbye;                     /* peers' memory closed (retire.c) */
    unsigned reclaim_failures;             /* of the driver, while memory was freed */

    struct oh_user_op *user_ops; /* redop.c */

    /* Failures, and what ranks tell each other (failure.h). */
    atomic_int failure;           /* the error that calls now give; ncclSuccess: none */
    atomic_uint lost;             /* a rank that has departed, plus 1: the next call fails; 0: none */
    bool held;                    /* kernels that begin send nothing any more (oh_comm_failure) */
    atomic_bool destroyed;        /* by the program: kernels that wait in vain may leave */
    struct oh_progress *progress; /* this rank's in the meeting, once it is served */
    uint64_t issued;              /* calls launched */
    bool check;                   /* calls are compared between ranks */
    uint64_t checked;             /* so many were */
    uint64_t check_hash;
    atomic_uint entered; /* threads between oh_comm_enter and oh_comm_leave */
    struct oh_watch watch;

    struct oh_board_row *row;    /* where its calls are counted; NULL: in the next (board.h) */
    struct oh_counters counters; /* see oh_comm_counters */
    double setup_ms;

    struct oh_comm *next; /* list of the retired */
};

/* A communicator on its way. Plain memory of the caller; no field is touched by others. */
struct oh_birth {
    struct oh_key key;
    struct oh_segment segment;
    bool grows;             /* by ncclCommGrow */
    uint32_t grown_from;    /* of a rank of the parent: the parent's ranks; 0: a new rank */
    struct oh_segment gate; /* of a rank of the parent: where the others learn the key */
    bool present;           /* this rank has been counted in */
    bool blocking;
    bool unbarred; /* no barrier has passed since the ranks published their presence: they may still come */
    char refusal[OH_REASON_BYTES]; /* not empty: this rank will not take part, and why */
    uint64_t spent_ns;

    ncclComm_t *nccl_p;     /* where NCCL puts the handle */
    struct oh_comm *parent; /* of a split */
    struct oh_birth *next;  /* list of a parent's children */

    /* Filled in by the caller when NCCL has created it. */
    ncclComm_t nccl; /* NULL: it has not */
    const void *library;
    int nccl_version; /* 0: unknown */
    int rank;
    int nranks;
    int cuda_device;
};

/*
 * Starts a birth: counts this rank in under the key. Cannot fail; what goes wrong becomes the refusal. nccl_p: where
 * NCCL will put the handle.
 */
void oh_birth_begin(struct oh_birth *birth, const struct oh_key *key, bool blocking, ncclComm_t *nccl_p);

/*
 * Starts the birth of a communicator that grows out of `parent`. The new ranks (parent NULL) and those of the parent
 * that have the unique id know the key; the parent's other ranks learn it from these, through a meeting of the parent's
 * ranks, the gate, when NCCL's barrier has passed. id: NULL where this rank has none.
 */
void oh_birth_begin_grown(struct oh_birth *birth, struct oh_comm *parent, const ncclUniqueId *id, bool blocking,
                          ncclComm_t *nccl_p);

/* Makes this rank refuse: all ranks will hand back with this reason. */
void oh_birth_refuse(struct oh_birth *birth, const char *reason);

/* NCCL did not create it after all: withdraws. */
void oh_birth_cancel(struct oh_birth *birth);

/*
 * NCCL is still creating these communicators in the background. They are registered where there is a handle yet, or
 * wait with their parent for one; oh_comm_created or oh_comm_not_created goes on. Ends the births.
 */
void oh_births_await(struct oh_birth *births, size_t count);

/* True while NCCL works on the communicator, or on a split of it, as far as onehop has been told. One atomic load. */
static inline bool oh_comm_is_awaited(const struct oh_comm *comm);

/*
 * NCCL has created a communicator that was awaited: its set-up begins, in the background. Does nothing for one that was
 * not. The current context is used for its memory if it is one of that device, else the device's primary one.
 */
void oh_comm_created(struct oh_comm *comm, int rank, int nranks, int cuda_device);

/* NCCL has failed to create a communicator that was awaited: all ranks will hand back. */
void oh_comm_not_created(struct oh_comm *comm);

/*
 * Takes over the splits of a communicator that NCCL had been working on, when it says that it is done. The list's
 * births have nccl_p set; the caller looks there, and gives each to oh_births_late or oh_birth_cancel, then frees it.
 */
struct oh_birth *oh_comm_take_children(struct oh_comm *comm);
/* They are registered, or cancelled. Until then the communicator counts as awaited, so that whoever asks about it
 * waits. */
void oh_comm_children_done(struct oh_comm *comm, unsigned count);

/*
 * Sets up, in the background, communicators that NCCL has created, and registers them at once. Nobody waits: the calls
 * go to NCCL until the ranks have agreed on the call from which onehop serves. Also for communicators that onehop first
 * meets at a call: their births begin when the communicator is found (with a key that all ranks share, and `unbarred`
 * where no barrier has passed since). All ranks must be registered before the same numbered call. Ends the births.
 */
void oh_births_late(struct oh_birth *births, size_t count);

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
void oh_comm_count_handed_back(struct oh_comm *comm, size_t count, ncclDataType_t type, ncclRedOp_t op);

/* Counts a call on a communicator that onehop does not know. */
void oh_stats_count_strange(void);

/* NCCL has loaded this library as a plugin: there is a communicator. The program has made or ended one by onehop. */
void oh_stats_expect_calls(void);
void oh_stats_heard_program(void);

/*
 * Until a communicator is settled, calls are counted, the same on all ranks: those that NCCL has accepted. A call that
 * goes to NCCL is therefore put between these two. The first is asked before oh_call_plan; when it returns true, NCCL
 * is still creating the communicator as far as onehop knows, and oh_call_plan is not asked. `counted`: it was asked.
 */
static inline bool oh_comm_is_settled(const struct oh_comm *comm);
bool oh_comm_pass_unborn(struct oh_comm *comm);
void oh_comm_note_result(struct oh_comm *comm, bool counted, ncclResult_t result);

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
 * what is equal on all ranks. To be asked once for each call, in the order of the calls: until the communicator is
 * settled, they are counted.
 */
bool oh_call_plan(struct oh_call *call, ncclRedOp_t op);

/* Where a stream is: in a graph, or out of all. */
struct oh_place {
    bool known; /* the driver has told the rest */
    CUstream stream;
    CUgraph graph; /* that it is captured into, NULL: eager */
    cuuint64_t capture_id;
    unsigned long long stream_id; /* eager only */
};

/* A call that NCCL serves, of a communicator that is ordered. */
struct oh_nccl_call {
    struct oh_place place;
    bool allreduce;  /* so no rank completes it without all others */
    CUresult result; /* of what has put it in order so far */
};

/*
 * Calls of one communicator that the application made together: one alone, or those of a group. As in NCCL, a group
 * on several streams starts after the earlier work of each of these streams, and their later work after all of it.
 * Use: begin, turns until launched == count, end. Bursts of other communicators may take their turns in between.
 */
#define OH_BURST_TURN 16 /* kernels after which a turn ends; the last call of it goes out whole */
struct oh_burst {
    const struct oh_call *calls;
    size_t count;
    size_t launched; /* calls */
    size_t kernels;  /* that have gone out */
    bool joined;     /* more than one stream */
    struct oh_place place;
    struct oh_capture *capture; /* NULL: eager */
};

/*
 * Each returns ncclSuccess, or ncclUnhandledCudaError (logged at WARN). After an error the burst is over, and the
 * communicator has failed: this rank may have launched fewer kernels than the others. A capture is invalid then. (If
 * the program's capture was invalid before, the communicator stays as it was.)
 */
ncclResult_t oh_burst_begin(struct oh_burst *burst, const struct oh_call *calls, size_t count);
ncclResult_t oh_burst_turn(struct oh_burst *burst);
ncclResult_t oh_burst_end(struct oh_burst *burst);

/*
 * The capture that a stream is in: a number that no other capture has, 0: none. The communicator has been served.
 * Returns ncclSuccess or ncclUnhandledCudaError (logged as WARN).
 */
ncclResult_t oh_comm_capture(struct oh_comm *comm, CUstream stream, cuuint64_t *capture_p);

/* Are calls that NCCL serves to be ordered with ours? True of a communicator that is served, or about to be. */
bool oh_comm_is_ordered(struct oh_comm *comm);

/*
 * Around a call that NCCL serves on `stream`, of a communicator that is ordered: orders it after our launches, and our
 * later launches after it. What is not ordered: doc/design.md, "Order". *call_p is for the second function, which is
 * called if NCCL has accepted the call. It returns ncclSuccess, or ncclUnhandledCudaError (logged at WARN) if the
 * driver has failed in either: then the communicator has failed.
 */
void oh_comm_before_handed_back(struct oh_comm *comm, CUstream stream, bool allreduce, struct oh_nccl_call *call_p);
ncclResult_t oh_comm_after_handed_back(struct oh_comm *comm, struct oh_nccl_call *call);

/*
 * The second behind a call that NCCL launches in the background (ncclInProgress): the call is noted when NCCL has
 * launched it, which oh_comm_launched is told, on any thread.
 */
ncclResult_t oh_comm_handed_back_later(struct oh_comm *comm, const struct oh_nccl_call *call);
void oh_comm_launched(struct oh_comm *comm);
static inline bool oh_comm_is_launching(const struct oh_comm *comm);

/*
 * Puts the later work of the stream `to` behind the earlier work of `from`, of a communicator that is served; both are
 * captured by one graph, or not at all. Returns ncclSuccess or ncclUnhandledCudaError (logged as WARN).
 */
ncclResult_t oh_comm_join(struct oh_comm *comm, CUstream from, CUstream to);

/* A burst of one call, from begin to end. */
ncclResult_t oh_call_launch(const struct oh_call *call);

/*
 * Around what may block, or uses the communicator after it has blocked: another thread may abort the communicator
 * meanwhile, and it must not be freed under this one. Plain stores, since one thread uses a communicator at a time;
 * the one that frees (retire.c) looks much later than a store takes to be seen.
 */
static inline void oh_comm_enter(struct oh_comm *comm);
static inline void oh_comm_leave(struct oh_comm *comm);

/*
 * The error with which the caller must refuse its call; ncclSuccess: the communicator is sound. After an error no
 * replay of this rank's graphs sends anything: another rank may have launched the kernel of the call that is refused
 * here, and the replay's kernel would take its number. Called by the thread that uses the communicator.
 */
ncclResult_t oh_comm_failure(struct oh_comm *comm);

/* Lets kernels of this communicator that wait leave, and passes later calls to NCCL. */
void oh_comm_abort(struct oh_comm *comm);

/* Waits until the calls of a served communicator have left the GPU; ends early when it fails or is aborted. Keeps no
 * lock. */
void oh_comm_drain(const struct oh_comm *comm);

/* Hands later calls to NCCL (the communicator is being finalized). */
void oh_comm_suspend(struct oh_comm *comm);

/* Forgets the communicator: its pointer may be reused at once. Its memory goes when no one uses it any more. */
void oh_comm_retire(struct oh_comm *comm);

/*
 * Has what retired communicators left freed in the background, as far as kernels, graphs and peers are done with it.
 * Waits 50 ms at most, and mostly far less.
 */
void oh_comms_reap(void);

/* Fill the public descriptions, of a communicator and of all of the process. */
void oh_comm_describe(struct oh_comm *comm, onehop_comm_info_t *info_p);
void oh_comms_describe(onehop_process_info_t *info_p);

/* Gives out the statistics of every registered communicator, where ONEHOP_STATS and ONEHOP_STATS_FILE say. */
void oh_comms_print_stats(void);

static inline void oh_comm_enter(struct oh_comm *comm)
{
    unsigned before = atomic_load_explicit(&comm->entered, memory_order_relaxed);
    atomic_store_explicit(&comm->entered, before + 1, memory_order_relaxed);
}

static inline void oh_comm_leave(struct oh_comm *comm)
{
    unsigned before = atomic_load_explicit(&comm->entered, memory_order_relaxed);
    atomic_store_explicit(&comm->entered, before - 1, memory_order_release); /* pairs with the load in retire.c */
}

static inline struct oh_counters *oh_comm_counters(struct oh_comm *comm)
{
    struct oh_board_row *row = comm->row; /* once: it may be taken away */
    return row ? &row->counters : &comm->counters;
}

static inline bool oh_comm_is_awaited(const struct oh_comm *comm)
{
    return atomic_load_explicit(&comm->awaited, memory_order_acquire) > 0;
}

static inline bool oh_comm_is_launching(const struct oh_comm *comm)
{
    return atomic_load_explicit(&comm->launching, memory_order_relaxed) != 0;
}

static inline bool oh_comm_is_settled(const struct oh_comm *comm)
{
    return atomic_load_explicit(&comm->settled, memory_order_acquire);
}

/* The process ends, and says so; communicators that are not settled yet are handed back, and leave no file behind. */
void oh_comms_abandon(void);

/* Between the files of this module. */
bool oh_late_decide(struct oh_comm *comm);     /* counts a call: is it served? */
void oh_late_switch_on(struct oh_comm *comm);  /* all ranks are ready; called with the mutex held */
void oh_late_note_early(struct oh_comm *comm); /* notes the calls made before it was born; with the mutex held */
void oh_comm_expect(struct oh_comm *comm, struct oh_setup *setup);
void oh_comm_add_child(struct oh_comm *comm, struct oh_birth *birth);
struct oh_setup *oh_comm_take_setup(struct oh_comm *comm);     /* mutex held; NULL: not unborn, or a call is passing */
void oh_late_cancel(struct oh_comm *comm, const char *reason); /* hands back for good, if it is not settled */
bool oh_late_leave(struct oh_comm *comm);                      /* retired: true when a set-up under way will bury it */
void oh_comm_bury(struct oh_comm *comm);                       /* nobody knows it any more */
ncclResult_t oh_comm_prepare_launch(struct oh_comm *comm);     /* kernels, events, arguments */
void oh_comm_strip(struct oh_comm *comm);                      /* not served: lets go of meeting and memory */
ncclResult_t oh_registry_add(struct oh_comm *comm);
void oh_registry_remove(struct oh_comm *comm);
void oh_registry_visit(void (*visit)(struct oh_comm *comm));
void oh_comm_print_stats(struct oh_comm *comm);
void oh_comm_facts(const struct oh_comm *comm, struct oh_stats_record *record_p); /* all but counters; mutex held */

#endif
