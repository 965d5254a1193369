/* SPDX-License-Identifier: MIT */
/*
 * order.c - the order of a communicator's calls on different streams and in graphs
 *
 * Does: Kernels of one communicator share epochs and slots, and must not overlap, but for the parts of a call. As NCCL
 *    does (2.28.9, src/misc/strongstream.cc), orders them in the order in which the host launches them:
 *      eager      OH_EVENT_LAUNCH is recorded after every call; a call on another stream waits for it. While graphs of
 *                 the communicator exist every call waits: a replay may have been launched since.
 *      captured   a call on another stream of the capture gets edges from the newest call (capture.c).
 *      graphs     the first call of a graph comes after an external wait for OH_EVENT_LAUNCH, and an external record of
 *                 it comes after the last. So a launch of the graph is one more call in the eager order.
 *      NCCL       a captured call that NCCL serves is ordered like onehop's. An eager call waits for OH_EVENT_LAUNCH if
 *                 it is on another stream; OH_EVENT_NCCL or OH_EVENT_NCCL_ALL_RANKS is recorded after it, and onehop's
 *                 next call waits for that event. The monitor queries the second: only an allreduce waits for all
 *                 ranks.
 *    A capture does not show which call is the last. So the record node is created after the first call and moved
 *    behind each further one: a graph under capture allows all changes but the removal of nodes
 *    (cuStreamGetCaptureInfo). The node is a leaf, so that the edges between kernels stay programmatic. A graph holds
 *    a reference on the communicator's memory, as NCCL's graphs do (src/enqueue.cc:1542), and so on OH_EVENT_LAUNCH.
 * Threads: the one that uses the communicator; oh_order_nccl_launched any.
 * Owns: nothing.
 */
#include "comm/launch/launch.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "comm/watch/watch.h"
#include "gpu/context.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/scope.h"

/* Completes it for its stream. */
static CUresult get_stream_state(struct oh_stream_state *stream_state_p)
{
    CUstreamCaptureStatus status;
    struct oh_stream_state stream_state = {.known = true, .stream = stream_state_p->stream};
    OH_TRY(oh_driver.stream_get_capture_info(stream_state.stream, &status, &stream_state.capture_id,
                                             &stream_state.graph, NULL, NULL));
    if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        /* By id, which the driver does not return for a capturing stream: handles are reused, and the handle of the
         * per-thread default stream means another stream in each thread. */
        stream_state.graph = NULL;
        OH_TRY(oh_driver.stream_get_id(stream_state.stream, &stream_state.stream_id));
    }
    *stream_state_p = stream_state;
    return CUDA_SUCCESS;
}

/* --- eager calls -------------------------------------------------------------------------------------------------- */

/*
 * States of nccl_launch, which is a state plus the launch: LAUNCH_SHARED, if it has calls of several communicators,
 * plus a number. The thread that has made the last change owns nccl_launch_stream, nccl_launch_id and nccl_event.
 */
enum {
    LAUNCH_NONE,
    LAUNCH_GOING_ON,  /* since oh_order_after_nccl, by the thread that uses the communicator */
    LAUNCH_RECORDING, /* NCCL has launched the call, and a thread records the event */
    LAUNCH_RECORDED,  /* release: publishes nccl_launch_id. Pairs with the acquire loads in take_recorded() */
    LAUNCH_STATES,
    LAUNCH_SHARED = LAUNCH_STATES,
    LAUNCH_STEP = 2 * LAUNCH_SHARED
};
#define RECORD_NS (UINT64_C(100) * 1000 * 1000) /* a failure is told within 200 ms (doc/faults.md) */
/* Communicators of a launch that one of them notes; the others are noted when they are polled. */
#define MOST_PARTNERS 64

static unsigned launch_state(unsigned launch)
{
    return launch % LAUNCH_STATES;
}

static unsigned launch_in(unsigned launch, unsigned state)
{
    return launch - launch_state(launch) + state;
}

unsigned oh_order_new_launch(bool is_shared)
{
    static atomic_uint last;
    return (atomic_fetch_add(&last, 1) + 1) * LAUNCH_STEP + (is_shared ? LAUNCH_SHARED : 0) + LAUNCH_GOING_ON;
}

unsigned oh_order_launch(const struct oh_comm *comm)
{
    /* acquire: NCCL's state is read after it. Pairs with the store in oh_order_after_nccl(). */
    return atomic_load_explicit(&comm->order.nccl_launch, memory_order_acquire);
}

/* Takes over the event of a call that NCCL has launched in the background. */
static void take_recorded(struct oh_comm *comm)
{
    unsigned launch = oh_order_launch(comm);
    while (launch_state(launch) == LAUNCH_RECORDING) { /* another thread records the event */
        sched_yield();
        launch = oh_order_launch(comm);
    }
    if (launch_state(launch) == LAUNCH_RECORDED) {
        comm->order.nccl_stream = comm->order.nccl_launch_id;
        comm->order.nccl_event_pending = true;
        atomic_store_explicit(&comm->order.nccl_launch, launch_in(launch, LAUNCH_NONE), memory_order_relaxed);
    }
}

/* NCCL has, or will have, a later call. NCCL orders its own calls, so the event after that call is enough. */
static void drop_launching(struct oh_comm *comm)
{
    unsigned launch = launch_in(oh_order_launch(comm), LAUNCH_GOING_ON);
    if (!atomic_compare_exchange_strong(&comm->order.nccl_launch, &launch, launch_in(launch, LAUNCH_NONE))) {
        take_recorded(comm);
    }
}

/* Orders the stream after the last call that NCCL has served, if no call of onehop's follows that yet. */
static CUresult follow_nccl(struct oh_comm *comm, const struct oh_stream_state *stream_state)
{
    take_recorded(comm);
    if (!comm->order.nccl_event_pending) {
        return CUDA_SUCCESS;
    }
    comm->order.nccl_event_pending = false;
    return stream_state->stream_id == comm->order.nccl_stream
               ? CUDA_SUCCESS
               : oh_driver.stream_wait_event(stream_state->stream, comm->order.event[comm->order.nccl_event], 0);
}

/* Orders the stream after the last launch: while there are graphs, a replay may have been launched since. */
static CUresult follow_launches(struct oh_comm *comm, const struct oh_stream_state *stream_state)
{
    bool moved = comm->order.launched && stream_state->stream_id != comm->order.last_stream;
    bool replayed = comm->order.graph_mixing && atomic_load_explicit(&comm->order.graphs, memory_order_relaxed) > 0;
    return moved || replayed ? oh_driver.stream_wait_event(stream_state->stream, comm->order.event[OH_EVENT_LAUNCH], 0)
                             : CUDA_SUCCESS;
}

/* --- a submission ------------------------------------------------------------------------------------------------- */

CUresult oh_order_before(struct oh_submission *submission)
{
    struct oh_comm *comm = submission->calls[0].comm;
    OH_TRY(get_stream_state(&submission->stream_state));
    if (submission->stream_state.graph) {
        OH_TRY(oh_capture_before(comm, &submission->stream_state, &submission->capture));
        return oh_capture_unfence(submission->capture, submission->stream_state.stream);
    }
    OH_TRY(follow_launches(comm, &submission->stream_state));
    return follow_nccl(comm, &submission->stream_state);
}

/* A communicator whose memory is freed waits for OH_EVENT_LAUNCH: so a record that fails is tried once more. */
static CUresult record_launch(struct oh_comm *comm, const struct oh_stream_state *stream_state)
{
    CUresult result = oh_driver.event_record(comm->order.event[OH_EVENT_LAUNCH], stream_state->stream);
    comm->order.launched = true;
    if (result == CUDA_SUCCESS) {
        comm->order.last_stream = stream_state->stream_id;
    } else {
        comm->order.unrecorded =
            oh_driver.event_record(comm->order.event[OH_EVENT_LAUNCH], stream_state->stream) != CUDA_SUCCESS;
    }
    return result;
}

CUresult oh_order_after(struct oh_submission *submission)
{
    const CUstream stream = submission->stream_state.stream;
    if (!submission->capture) {
        return record_launch(submission->calls[0].comm, &submission->stream_state);
    }
    OH_TRY(oh_capture_fence(submission->capture, stream));
    return oh_capture_after(submission->capture, stream);
}

CUresult oh_order_query(const struct oh_comm *comm)
{
    return comm->order.event[OH_EVENT_LAUNCH]
               ? oh_context_ignore_lost(oh_staging_query(&comm->staging, comm->order.event[OH_EVENT_LAUNCH]))
               : CUDA_SUCCESS;
}

CUresult oh_order_query_end(const struct oh_comm *comm)
{
    const bool may_replay = !comm->order.graph_mixing && atomic_load(&comm->order.graphs) > 0;
    return may_replay ? CUDA_ERROR_NOT_READY : oh_order_query(comm);
}

/* --- calls that NCCL serves --------------------------------------------------------------------------------------- */

/* Queries the stream, and orders an eager call. Before the cutover nothing of ours can be before it. */
static CUresult before_eager(struct oh_comm *comm, struct oh_nccl_call *call)
{
    OH_TRY(get_stream_state(&call->stream_state));
    return call->stream_state.graph || !oh_comm_has_agreed(comm) ? CUDA_SUCCESS
                                                                 : follow_launches(comm, &call->stream_state);
}

static CUresult before_captured(struct oh_comm *comm, struct oh_nccl_call *call)
{
    struct oh_capture *capture;
    return oh_capture_before(comm, &call->stream_state, &capture);
}

/* The event is after all work that NCCL has of the communicator, so this rank may vote. */
static void note_ordered(struct oh_comm *comm)
{
    OH_LOCK(&comm->attach.mutex);
    atomic_store(&comm->attach.ordered, true);
    if (!oh_comm_is_settled(comm) && !comm->attach.declined) {
        atomic_store(&comm->segment.shared->peer_info[comm->id.rank].withheld, OH_WITHHELD_NOT);
    }
}

static CUresult record_nccl(struct oh_comm *comm, const struct oh_nccl_call *call)
{
    const enum oh_event event = call->needs_all_ranks ? OH_EVENT_NCCL_ALL_RANKS : OH_EVENT_NCCL;
    OH_TRY(oh_driver.event_record(comm->order.event[event], call->stream_state.stream));
    comm->order.nccl_event = event;
    if (comm->attach.unordered && !atomic_load(&comm->attach.ordered)) {
        note_ordered(comm);
    }
    if (call->needs_all_ranks) {
        /* release: after the record. Pairs with the acquire load in query_nccl() of monitor.c: it reads the event. */
        atomic_fetch_add_explicit(&comm->order.nccl_all_ranks, 1, memory_order_release);
    }
    return CUDA_SUCCESS;
}

static CUresult after_nccl(struct oh_comm *comm, struct oh_nccl_call *call)
{
    if (call->stream_state.graph) {
        struct oh_capture *capture = oh_capture_find(comm, call->stream_state.capture_id);
        return capture ? oh_capture_after(capture, call->stream_state.stream) : CUDA_SUCCESS;
    }
    OH_TRY(record_nccl(comm, call));
    comm->order.nccl_stream = call->stream_state.stream_id;
    comm->order.nccl_event_pending = true;
    return CUDA_SUCCESS;
}

typedef CUresult (*nccl_step)(struct oh_comm *, struct oh_nccl_call *);

/*
 * Returns `result`. After a failure invalidates the capture of the stream, unless there is none, so that nothing of it
 * can be replayed. A query of a stream under capture does so (CUDA programming guide, "Prohibited and Unhandled
 * Operations").
 */
static CUresult pass_on(struct oh_comm *comm, const struct oh_stream_state *stream_state, CUresult result)
{
    if (result != CUDA_SUCCESS && oh_comm_has_agreed(comm) && (stream_state->graph || !stream_state->known)) {
        oh_driver.stream_query(stream_state->stream);
    }
    return result;
}

static CUresult in_context(struct oh_comm *comm, struct oh_nccl_call *call, nccl_step step)
{
    OH_CONTEXT_SCOPE(scope);
    CUresult result = oh_context_enter(&comm->staging.context, &scope);
    return pass_on(comm, &call->stream_state, result == CUDA_SUCCESS ? step(comm, call) : result);
}

/*
 * For an eager call on a stream with a handle of its own the driver takes the context from the stream. CUDA does not
 * promise that for a thread without a current context: on CUDA_ERROR_INVALID_CONTEXT the step is repeated in the
 * communicator's context. A step on a call known to be captured always needs that context, since graph nodes are
 * created in the current one.
 */
static CUresult order_call(struct oh_comm *comm, struct oh_nccl_call *call, nccl_step step)
{
    const CUstream stream = call->stream_state.stream;
    if (stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD && !call->stream_state.graph) {
        const CUresult result = step(comm, call);
        if (result != CUDA_ERROR_INVALID_CONTEXT) {
            return pass_on(comm, &call->stream_state, result);
        }
    }
    return in_context(comm, call, step);
}

/*
 * The capture of the stream was invalid before. Such a capture is never replayed, so no rank has launched more kernels
 * than another.
 */
static bool is_void(CUresult result)
{
    return result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

/* True: the ranks had not agreed, and all fall back. False: the communicator is served, or will be. */
static bool withdraw(struct oh_comm *comm, CUresult result)
{
    char reason[OH_REASON_BYTES];
    snprintf(reason, sizeof reason, "rank %u: calls cannot be put in order: %s", comm->id.rank,
             oh_driver_error_name(result));
    OH_LOCK(&comm->attach.mutex);
    if (oh_comm_is_settled(comm) || comm->attach.declined) {
        return !oh_comm_has_agreed(comm); /* another rank, or the program, was faster */
    }
    oh_segment_vote_no(&comm->segment, reason);
    return oh_segment_decision(&comm->segment) == OH_DECISION_OFF;
}

ncclResult_t oh_order_fail(struct oh_comm *comm, CUresult result, const char *what)
{
    if (withdraw(comm, result)) {
        return ncclSuccess;
    }
    bool first = !is_void(result) && oh_comm_fail(comm, ncclUnhandledCudaError, OH_MAX_RANKS);
    OH_WARN("comm %p rank %u: %s: %s%s", (void *)comm->id.nccl, comm->id.rank, what, oh_driver_error_name(result),
            first ? ": calls now return ncclUnhandledCudaError" : "");
    return ncclUnhandledCudaError;
}

ncclResult_t oh_order_refuse(struct oh_comm *comm, ncclResult_t res)
{
    if (res != ncclSuccess) {
        oh_comm_refuse_call(comm, false);
    }
    return res;
}

ncclResult_t oh_order_check(struct oh_comm *comm, const struct oh_stream_state *stream_state, CUresult result,
                            const char *what)
{
    return pass_on(comm, stream_state, result) == CUDA_SUCCESS
               ? ncclSuccess
               : oh_order_refuse(comm, oh_order_fail(comm, result, what));
}

/* NCCL has the call, in no known order with onehop's: an error, unless all ranks fall back. */
static ncclResult_t check_ordered(struct oh_comm *comm, CUresult result)
{
    return result == CUDA_SUCCESS || is_void(result)
               ? ncclSuccess
               : oh_order_fail(comm, result, "order around a call that NCCL serves");
}

static CUresult query_stream(struct oh_comm *comm, struct oh_nccl_call *call)
{
    (void)comm;
    return get_stream_state(&call->stream_state);
}

bool oh_order_is_captured(struct oh_comm *comm, CUstream stream)
{
    struct oh_nccl_call call = {.stream_state.stream = stream};
    return in_context(comm, &call, query_stream) == CUDA_SUCCESS && call.stream_state.graph;
}

ncclResult_t oh_comm_capture(struct oh_comm *comm, CUstream stream, cuuint64_t *capture_p)
{
    struct oh_nccl_call call = {.stream_state.stream = stream};
    const CUresult result = order_call(comm, &call, query_stream);
    OH_TRY(result == CUDA_SUCCESS ? ncclSuccess
                                  : oh_order_refuse(comm, oh_order_fail(comm, result, "launching a call")));
    *capture_p = call.stream_state.graph ? call.stream_state.capture_id + 1 : 0;
    return ncclSuccess;
}

bool oh_comm_is_ordered(const struct oh_comm *comm)
{
    const enum oh_comm_state state = oh_comm_state(comm);
    return state < OH_COMM_SERVED ? comm->attach.ordering : state == OH_COMM_SERVED;
}

void oh_order_before_nccl(struct oh_comm *comm, CUstream stream, bool needs_all_ranks, struct oh_nccl_call *call_p)
{
    *call_p = (struct oh_nccl_call){.stream_state.stream = stream, .needs_all_ranks = needs_all_ranks};
    call_p->result = order_call(comm, call_p, before_eager);
    if (call_p->result == CUDA_SUCCESS && call_p->stream_state.graph && oh_comm_has_agreed(comm)) {
        call_p->result = in_context(comm, call_p, before_captured);
    }
    if (call_p->result != CUDA_SUCCESS && !is_void(call_p->result)) {
        withdraw(comm, call_p->result); /* now: by the time that NCCL returns, all ranks may have voted yes */
    }
}

ncclResult_t oh_order_after_nccl(struct oh_comm *comm, struct oh_nccl_call *call, unsigned launch)
{
    drop_launching(comm);
    if (launch != 0) {
        comm->order.nccl_launch_stream = call->stream_state.stream;
        /* release: publishes the stream, after NCCL has begun. Pairs with the load in oh_order_launch(). */
        atomic_store_explicit(&comm->order.nccl_launch, launch, memory_order_release);
    } else if (call->result == CUDA_SUCCESS) {
        call->result = order_call(comm, call, after_nccl);
    }
    return oh_order_refuse(comm, check_ordered(comm, call->result));
}

/* On any thread. A captured call stays without: captures belong to the thread that uses the communicator. */
static CUresult record_launched(struct oh_comm *comm, struct oh_nccl_call *call)
{
    CUresult result = get_stream_state(&call->stream_state);
    bool recorded = false;
    if (result == CUDA_SUCCESS && !call->stream_state.graph) {
        result = record_nccl(comm, call);
        recorded = result == CUDA_SUCCESS;
        comm->order.nccl_launch_id = call->stream_state.stream_id;
    }
    const unsigned launch = launch_in(oh_order_launch(comm), recorded ? LAUNCH_RECORDED : LAUNCH_NONE);
    /* release: publishes nccl_launch_id. Pairs with the acquire loads in take_recorded(). */
    atomic_store_explicit(&comm->order.nccl_launch, launch, memory_order_release);
    return result;
}

bool oh_comm_is_launching(const struct oh_comm *comm)
{
    return launch_state(atomic_load_explicit(&comm->order.nccl_launch, memory_order_relaxed)) != LAUNCH_NONE;
}

/*
 * NCCL has launched it: launch is in LAUNCH_GOING_ON. The program may end the stream, or begin a capture on it, when it
 * is told, so this function waits for a thread that records the event. The driver may block that thread until an abort.
 */
static void note_launched(struct oh_comm *comm, unsigned launch)
{
    const uint64_t end_ns = oh_now_ns() + RECORD_NS;
    unsigned expected = launch;
    if (atomic_compare_exchange_strong(&comm->order.nccl_launch, &expected, launch_in(launch, LAUNCH_RECORDING))) {
        /* Not OH_EVENT_NCCL_ALL_RANKS: later work of the stream, which may wait for others, may be recorded, too. */
        struct oh_nccl_call call = {.stream_state.stream = comm->order.nccl_launch_stream};
        CUresult result = in_context(comm, &call, record_launched);
        expected = launch_in(launch, LAUNCH_RECORDING); /* the context could not be entered */
        atomic_compare_exchange_strong(&comm->order.nccl_launch, &expected, launch_in(launch, LAUNCH_NONE));
        check_ordered(comm, result); /* the asynchronous error tells it */
    }
    while (oh_order_launch(comm) == launch_in(launch, LAUNCH_RECORDING) && oh_now_ns() < end_ns) {
        sched_yield();
    }
}

static bool is_under_way(unsigned launch)
{
    return launch_state(launch) == LAUNCH_GOING_ON || launch_state(launch) == LAUNCH_RECORDING;
}

/* The communicators of a launch. */
struct partners {
    unsigned launch;
    unsigned count;
    struct oh_comm *comm[MOST_PARTNERS]; /* in use */
};

static void find_partner(struct oh_comm *comm, void *user)
{
    struct partners *partners = user;
    const unsigned launch = oh_order_launch(comm);
    if (is_under_way(launch) && launch_in(launch, LAUNCH_GOING_ON) == partners->launch &&
        partners->count < MOST_PARTNERS) {
        oh_comm_retain(comm);
        partners->comm[partners->count++] = comm;
    }
}

/*
 * NCCL tells the end of a launch when it has launched the calls of all communicators (src/group.cc of 2.28.9,
 * groupLaunch). The program may poll one of them, and end the streams of all.
 */
void oh_order_nccl_launched(struct oh_comm *comm, unsigned launch)
{
    struct partners partners = {.launch = launch_in(launch, LAUNCH_GOING_ON)};
    if (is_under_way(launch)) {
        note_launched(comm, partners.launch);
    }
    if (launch_state(launch) != LAUNCH_NONE && (launch & LAUNCH_SHARED)) { /* another thread may be at the others */
        oh_registry_visit(find_partner, &partners);
    }
    for (unsigned i = 0; i < partners.count; i++) {
        note_launched(partners.comm[i], partners.launch);
        oh_comm_release(partners.comm[i]);
    }
}
