/* SPDX-License-Identifier: MIT */
/*
 * comm_internal.h - struct oh_comm, for src/comm alone
 *
 * Does: The parts of a communicator, by concern.
 * Threads: attach.mutex guards what the attach changes; it is never held over a call of NCCL or the driver. Atomic
 *    fields are for any thread, fields of struct oh_watch for the monitor; the rest belongs to the thread that uses the
 *    communicator. Locks, outer first: completion.c's; initial.c's; the registry's and those of background threads;
 *    attach.mutex; those of live.c and staging.c.
 * Owns: see comm.h.
 */
#ifndef OH_COMM_COMM_INTERNAL_H_
#define OH_COMM_COMM_INTERNAL_H_

#include <pthread.h>
#include <stdatomic.h>

#include "comm/call.h"
#include "comm/comm.h"
#include "comm/shared/segment.h"
#include "comm/shared/staging.h"
#include "comm/stats/record.h"
#include "gpu/kernels.h"
#include "kernels/abi.h"
#include "plan/plan.h"
#include "topo/topo.h"
#include "util/bgthread.h"

struct oh_process;

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

/*
 * From the creation to the first served call. The mutex guards `creating`, `children`, `calls`, `voted`,
 * `cutover_call`, `reason` and `ms`, and rank, nranks, segment and staging as long as the communicator is not settled.
 */
struct oh_attach {
    pthread_mutex_t mutex;
    bool creating;                    /* NCCL still works on it */
    struct oh_comm *children;         /* splits of this communicator that NCCL still works on */
    atomic_uint children_begun;       /* so many have been in that list; changed with the mutex held */
    atomic_uint awaited;              /* creations that NCCL works on: of this communicator, and of splits of it */
    struct oh_segment parent_segment; /* of one that grows, in a rank of the parent: holds the key, and votes no */
    uint32_t parent_ranks;            /* the ranks of the parent */
    int cuda_device;
    bool unordered;               /* NCCL got work of it before the set-up had made events */
    bool voted;                   /* this rank has voted yes; what serving needs is ready */
    atomic_bool used;             /* NCCL got a call of it */
    atomic_bool polled;           /* the program asked for NCCL's state before the first call; any thread */
    atomic_bool ordered;          /* OH_EVENT_NCCL is behind all work of it that NCCL has; any thread */
    bool patient;                 /* may wait for peers: no earlier wait has timed out */
    bool first_call;              /* of those that oh_attach_wants, no earlier one has been decided */
    uint32_t steps;               /* oh_agreement_steps() as a call that waits has seen it last, */
    uint64_t step_ns;             /* and when that was another number than before */
    pthread_t thread;             /* that has created it */
    uint64_t calls;               /* with a number, so far; counted while unsettled */
    uint64_t cutover_call;        /* the number of the first call that is served; 0: not known yet */
    char reason[OH_REASON_BYTES]; /* why it falls back; empty: it does not */
    double ms;                    /* that onehop's part of creation and set-up has taken */
    bool in_background;           /* its set-up is, and uses it; guarded by the mutex of setup.c's thread */
};

/* A set-up under way, from a rank's first call to the decision (attach/agreement.c): the background thread's. */
struct oh_agreement {
    struct oh_job job;
    unsigned step; /* number of the steps taken */
    bool alive;    /* has not given up */
    struct oh_topo_gpu gpu;
    uint64_t start_ns;
};

/* What is the same in every served call, and the calls as other ranks see them. */
struct oh_serve {
    struct oh_plan_table table;
    struct oh_plan_room room; /* the least of all ranks */
    uint32_t early_blocks;    /* this rank's: most blocks of a kernel that waits beside the program's; 0: none waits */
    const struct oh_kernel_set *kernels;
    struct oh_kernel_args args;
    struct oh_user_op *user_ops;  /* redop.c */
    struct oh_progress *progress; /* this rank's in the segment, from CUTOVER on */
    uint64_t launched_calls;
    bool warned_variant; /* NCCL executes its allreduces, although it is to be invariant: the user knows */
    bool check;          /* calls are compared between ranks */
    uint64_t checked;    /* so many were */
    uint64_t check_hash;
};

enum oh_event {
    OH_EVENT_LAUNCH,         /* recorded after every eager launch, and by each replay of a graph */
    OH_EVENT_NCCL,           /* recorded after eager calls that NCCL has served, but for those of the next event */
    OH_EVENT_NCCL_ALL_RANKS, /* recorded after eager calls that need all ranks, with no other call beside them */
    OH_EVENT_JOIN,           /* between the streams of a group */
    OH_EVENTS
};

/* Order between calls on different streams and in graphs (launch/order.c, nccl.c, capture.c). */
struct oh_order {
    CUevent event[OH_EVENTS];
    bool graph_mixing;              /* graphs are ordered with everything else */
    unsigned long long last_stream; /* id of the stream of the last eager launch */
    bool launched;
    bool unrecorded;            /* kernels run that OH_EVENT_LAUNCH does not cover: their memory can never be freed */
    atomic_uint nccl_all_ranks; /* calls before OH_EVENT_NCCL_ALL_RANKS since this rank is served */
    unsigned long long nccl_stream; /* id of the stream of NCCL's last call that has an event, */
    enum oh_event nccl_event;       /* and the event */
    bool nccl_event_pending;        /* no launch of onehop's is behind that event yet */
    atomic_uint nccl_launch;        /* nccl.c: NCCL launches a call in the background */
    CUstream nccl_launch_stream;    /* of that call */
    struct oh_capture *captures;    /* newest first */
    atomic_uint graphs;             /* captured graphs that hold calls of this communicator */
};

/* ONEHOP_VERIFY (launch/verify.c) */
struct oh_verify {
    uint64_t interval; /* one in so many calls; 0: none */
    bool is_fatal;
    struct oh_verify_kernels kernels;
    uint64_t used;        /* bytes of the memory that calls of the group have */
    atomic_uint reported; /* results that differ, as far as they are reported */
};

/* What the monitor knows of a communicator; guarded by its mutex. */
struct oh_watch {
    struct oh_comm *next;                  /* list of all that are watched */
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
};

/* How the program has ended the communicator on this rank: the largest value counts. A suspended one has none. */
enum oh_end {
    OH_END_NONE,
    OH_END_EXITED,    /* the process is in exit(), where destructors may still use the communicator */
    OH_END_FINALIZED, /* kernels may still run */
    OH_END_DESTROYED,
    OH_END_ABORTED /* or revoked, or shrunk with the abort flag: NCCL may have freed its communicator */
};

/* Failures (watch/watch.h). */
struct oh_health {
    atomic_int failure;        /* the error that calls now return; ncclSuccess: none */
    atomic_uint departed_peer; /* in FAILING: the rank */
    bool held;                 /* kernels that begin send nothing any more (oh_comm_refuse_call) */
    atomic_uint end;           /* enum oh_end; changed by oh_comm_leave and at exit() */
    struct oh_watch watch;
};

/* attach/reclaim.c */
struct oh_reclaim {
    bool peers_closed;
    unsigned failures; /* of the driver, while memory was freed */
    struct oh_job job;
};

struct oh_comm {
    struct oh_comm_identity id;
    struct oh_comm_slot *slot; /* in the registry, until it is freed; NULL: it was never registered */
    atomic_uint state;         /* enum oh_comm_state; changed by oh_comm_enter alone */
    struct oh_segment segment;
    struct oh_staging staging;
    struct oh_attach attach;
    struct oh_agreement agreement;
    struct oh_serve serve;
    struct oh_order order;
    struct oh_verify verify;
    struct oh_health health;
    struct oh_reclaim reclaim;
    struct oh_live_ref live; /* its counters, and what `onehop stat` shows of it */
};

_Static_assert(offsetof(struct oh_comm, id) == 0, "oh_comm_id");

/* For "comm %p rank %u of %u" or "comm %p rank %u nranks %u", with which messages begin. */
#define OH_COMM_VALUES(comm_) (void *)(comm_)->id.nccl, (comm_)->id.rank, (comm_)->id.nranks

/* Calls that onehop may serve have a number, equal on all ranks. An empty call has none: NCCL does nothing for it. */
static inline bool oh_call_is_counted(const struct oh_call *call)
{
    return oh_kind_has_kernels(call->kind) && call->count > 0;
}

/* No rank completes the call in NCCL without all others. The root of a broadcast may. */
static inline bool oh_call_needs_all_ranks(const struct oh_call *call)
{
    return oh_call_is_counted(call) && call->kind != OH_CALL_BROADCAST;
}

/* The call cannot complete without a peer that has departed. Of NCCL's broadcast the peer may have done its part. */
static inline bool oh_call_needs_peers(const struct oh_call *call)
{
    return call->route == OH_ROUTE_NCCL ? oh_call_needs_all_ranks(call) : oh_call_is_counted(call);
}

/* NCCL enqueues something for the call. A send of nothing is enqueued (2.28.9, src/enqueue.cc, taskAppend). */
static inline bool oh_call_has_work(const struct oh_call *call)
{
    return call->kind != OH_CALL_OP_DESTROY &&
           (call->count > 0 || call->kind == OH_CALL_SEND || call->kind == OH_CALL_RECV);
}

/* The state. Acquire: pairs with oh_comm_enter. Any thread. */
static inline enum oh_comm_state oh_comm_state(const struct oh_comm *comm)
{
    return (enum oh_comm_state)atomic_load_explicit(&comm->state, memory_order_acquire);
}

/*
 * Enters the state if a transition leads there from the present one. Returns true if this call has changed the state.
 * Transitions up to SERVED are the using thread's or the background thread's; those to FAILING, FAILED, FALLBACK and
 * ENDED any thread's.
 * Release: what the caller stored before is visible to a thread whose oh_comm_state returns `state`.
 */
bool oh_comm_enter(struct oh_comm *comm, enum oh_comm_state state);

static inline struct oh_counters *oh_comm_counters(struct oh_comm *comm)
{
    return oh_live_counters(&comm->live);
}

/* --- questions about the state: one atomic load each, any thread -------------------------------------------------- */

/*
 * All ranks have voted yes: what serving needs is ready, and lives as long as the communicator; the number of the first
 * call that onehop serves is known.
 */
static inline bool oh_comm_has_agreed(const struct oh_comm *comm)
{
    const enum oh_comm_state state = oh_comm_state(comm);
    return state >= OH_COMM_CUTOVER && state != OH_COMM_FALLBACK;
}

/*
 * A rank has voted no, and the set-up has ended and given up the segment: the next call enters FALLBACK. With the mutex
 * held.
 */
static inline bool oh_comm_has_declined(const struct oh_comm *comm)
{
    return oh_comm_state(comm) == OH_COMM_ATTACHING && !comm->segment.shared;
}

/* False: NCCL serves the calls, which go through attach/attach.h. */
static inline bool oh_comm_is_settled(const struct oh_comm *comm)
{
    return oh_comm_state(comm) >= OH_COMM_SERVED;
}

/* True once NCCL has created the communicator, so that its calls are counted. */
static inline bool oh_comm_is_created(const struct oh_comm *comm)
{
    return oh_comm_state(comm) != OH_COMM_CREATING;
}

/* True while NCCL creates the communicator, or a split of it, as far as onehop knows. */
static inline bool oh_comm_has_pending_creations(const struct oh_comm *comm)
{
    return atomic_load_explicit(&comm->attach.awaited, memory_order_acquire) > 0; /* pairs with oh_comm_children_done */
}

/* Read it before NCCL's state, which says nothing of later splits. acquire: pairs with oh_creation_watch. */
static inline unsigned oh_comm_children_begun(const struct oh_comm *comm)
{
    return atomic_load_explicit(&comm->attach.children_begun, memory_order_acquire);
}

/* The program has aborted the communicator: NCCL may have freed its own. */
static inline bool oh_comm_is_aborted(const struct oh_comm *comm)
{
    return atomic_load(&comm->health.end) == OH_END_ABORTED;
}

/* The error with which the communicator has failed; ncclSuccess: none. A departed peer alone is no failure. */
static inline ncclResult_t oh_comm_error(const struct oh_comm *comm)
{
    return (ncclResult_t)atomic_load(&comm->health.failure); /* pairs with oh_comm_fail() */
}

/* --- core: state.c, registry.c, redop.c --------------------------------------------------------------------------- */

/* Frees what oh_comm_shrinks keeps; with the communicator. */
void oh_comm_shrinks_free(struct oh_comm *comm);

/*
 * oh_registry_add counts a use of the caller's, as oh_comm_find does. oh_registry_remove: the counts move to those of
 * ended communicators. Returns false if another thread was faster: then that thread ends the communicator.
 * oh_registry_free_slot: before the communicator is freed.
 */
ncclResult_t oh_registry_add(struct oh_comm *comm);
bool oh_registry_remove(struct oh_comm *comm);
void oh_registry_free_slot(struct oh_comm *comm);

/* Returns whether a thread uses a communicator that this thread has removed. Any thread. */
bool oh_comm_is_used(const struct oh_comm *comm);

/* Visits all registered communicators, with the registry's mutex held: `visit` may retain them. */
void oh_registry_visit(void (*visit)(struct oh_comm *comm, void *user), void *user);

/* Forgets one op, if it is known; all. */
void oh_comm_op_remove(struct oh_comm *comm, ncclRedOp_t handle);
void oh_comm_ops_forget(struct oh_comm *comm);

/* What an op means on the communicator. False: NCCL would not take it for that type. */
bool oh_comm_op_find(const struct oh_comm *comm, ncclRedOp_t op, ncclDataType_t type, struct oh_op *op_p);

/* Returns whether the program has made the op on the communicator. */
bool oh_comm_op_is_known(const struct oh_comm *comm, ncclRedOp_t op);

/* --- stats/describe.c --------------------------------------------------------------------------------------------- */

void oh_comm_print_stats(struct oh_comm *comm);
void oh_comm_publish_facts(struct oh_comm *comm); /* to the live page; mutex held */

/*
 * For `onehop run --stats` alone, so that with onehop off a program prints what it always did: counts calls on
 * communicators that onehop does not know, or says that no call has come.
 */
void oh_stats_print_process(void);

#endif
