/* SPDX-License-Identifier: MIT */
/*
 * nccl.c - the order of calls that NCCL serves with onehop's (order.c)
 *
 * Does: Orders a call when NCCL gets it, and notes it when NCCL has it. A call that NCCL launches in the background is
 *    noted by the thread that learns of the launch.
 * Threads: the one that uses the communicator; oh_order_nccl_launched any.
 * Owns: nothing.
 */
#include "comm/launch/launch.h"

#include <sched.h>
#include <stdlib.h>

#include "gpu/context.h"
#include "util/clock.h"
#include "util/scope.h"

/*
 * States of nccl_launch, which is a state plus the launch: LAUNCH_SHARED, if it has calls of several communicators,
 * plus a number. The thread that has made the last change owns nccl_launch_stream, nccl_stream and nccl_event.
 */
enum {
    LAUNCH_NONE,
    LAUNCH_GOING_ON,  /* since oh_order_after_nccl, by the thread that uses the communicator */
    LAUNCH_RECORDING, /* NCCL has launched the call, and a thread records the event */
    LAUNCH_RECORDED,  /* release: publishes nccl_stream. Pairs with the acquire loads in take_recorded() */
    LAUNCH_STATES,
    LAUNCH_SHARED = LAUNCH_STATES,
    LAUNCH_STEP = 2 * LAUNCH_SHARED
};
#define RECORD_NS (UINT64_C(1000) * 1000 * 1000) /* of a healthy communicator: more than a busy machine takes */

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

CUresult oh_order_follow_nccl(struct oh_comm *comm, const struct oh_stream_state *stream_state)
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

/* --- around a call ------------------------------------------------------------------------------------------------ */

/* Queries the stream, and orders an eager call. Before the cutover nothing of ours can be before it. */
static CUresult before_eager(struct oh_comm *comm, struct oh_nccl_call *call)
{
    OH_TRY(oh_order_get_stream(&call->stream_state));
    return call->stream_state.graph || !oh_comm_has_agreed(comm) ? CUDA_SUCCESS
                                                                 : oh_order_follow_launches(comm, &call->stream_state);
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
    if (!oh_comm_is_settled(comm) && !oh_comm_has_declined(comm)) {
        atomic_store(&comm->segment.shared->peer_info[comm->id.rank].withheld, OH_WITHHELD_NOT);
    }
}

static CUresult record_nccl(struct oh_comm *comm, const struct oh_nccl_call *call)
{
    const enum oh_event event = call->needs_all_ranks ? OH_EVENT_NCCL_ALL_RANKS : OH_EVENT_NCCL;
    OH_TRY(oh_driver.event_record(comm->order.event[event], call->stream_state.stream));
    comm->order.nccl_event = event;
    comm->order.nccl_stream = call->stream_state.stream_id;
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
    comm->order.nccl_event_pending = true;
    return CUDA_SUCCESS;
}

typedef CUresult (*nccl_step)(struct oh_comm *, struct oh_nccl_call *);

static CUresult in_context(struct oh_comm *comm, struct oh_nccl_call *call, nccl_step step)
{
    OH_CONTEXT_SCOPE(scope);
    CUresult result = oh_context_enter(&comm->staging.context, &scope);
    return oh_order_pass_on(comm, &call->stream_state, result == CUDA_SUCCESS ? step(comm, call) : result);
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
    const bool has_handle = stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
    const CUresult result = has_handle && !call->stream_state.graph ? step(comm, call) : CUDA_ERROR_INVALID_CONTEXT;
    return result == CUDA_ERROR_INVALID_CONTEXT ? in_context(comm, call, step)
                                                : oh_order_pass_on(comm, &call->stream_state, result);
}

/* NCCL has the call, in no known order with onehop's: an error, unless all ranks fall back. */
static ncclResult_t check_ordered(struct oh_comm *comm, CUresult result)
{
    return result == CUDA_SUCCESS || oh_order_is_void(result)
               ? ncclSuccess
               : oh_order_fail(comm, result, "order around a call that NCCL serves");
}

static CUresult query_stream(struct oh_comm *comm, struct oh_nccl_call *call)
{
    (void)comm;
    return oh_order_get_stream(&call->stream_state);
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
    return state < OH_COMM_SERVED ? comm->order.event[OH_EVENTS - 1] != NULL : state == OH_COMM_SERVED;
}

void oh_order_before_nccl(struct oh_comm *comm, CUstream stream, bool needs_all_ranks, struct oh_nccl_call *call_p)
{
    *call_p = (struct oh_nccl_call){.stream_state.stream = stream, .needs_all_ranks = needs_all_ranks};
    call_p->result = order_call(comm, call_p, before_eager);
    if (call_p->result == CUDA_SUCCESS && call_p->stream_state.graph && oh_comm_has_agreed(comm)) {
        call_p->result = in_context(comm, call_p, before_captured);
    }
    if (call_p->result != CUDA_SUCCESS) {
        oh_order_withdraw(comm, call_p->result); /* now: by the time that NCCL returns, all ranks may have voted yes */
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
    OH_TRY(oh_order_get_stream(&call->stream_state));
    return call->stream_state.graph ? CUDA_SUCCESS : record_nccl(comm, call);
}

bool oh_comm_is_launching(const struct oh_comm *comm)
{
    return launch_state(atomic_load_explicit(&comm->order.nccl_launch, memory_order_relaxed)) != LAUNCH_NONE;
}

/*
 * NCCL has launched it: launch is in LAUNCH_GOING_ON. The program may end the stream, or begin a capture on it, when it
 * is told, so this function waits for a thread that records the event. The driver may block that thread until an abort,
 * so the wait has a bound, and ends with a failure, which is told within 200 ms (doc/faults.md).
 */
static void note_launched(struct oh_comm *comm, unsigned launch)
{
    const uint64_t end_ns = oh_now_ns() + RECORD_NS;
    unsigned expected = launch;
    if (atomic_compare_exchange_strong(&comm->order.nccl_launch, &expected, launch_in(launch, LAUNCH_RECORDING))) {
        /* Not OH_EVENT_NCCL_ALL_RANKS: later work of the stream, which may wait for others, may be recorded, too. */
        struct oh_nccl_call call = {.stream_state.stream = comm->order.nccl_launch_stream};
        const CUresult result = in_context(comm, &call, record_launched);
        const bool is_recorded = result == CUDA_SUCCESS && !call.stream_state.graph;
        /* release: publishes nccl_stream. Pairs with the acquire loads in take_recorded(). */
        atomic_store_explicit(&comm->order.nccl_launch, launch_in(launch, is_recorded ? LAUNCH_RECORDED : LAUNCH_NONE),
                              memory_order_release);
        check_ordered(comm, result); /* the asynchronous error tells it */
    }
    while (oh_order_launch(comm) == launch_in(launch, LAUNCH_RECORDING) && oh_now_ns() < end_ns &&
           oh_comm_error(comm) == ncclSuccess && !oh_comm_is_aborted(comm)) {
        sched_yield();
    }
}

static bool is_under_way(unsigned launch)
{
    return launch_state(launch) == LAUNCH_GOING_ON || launch_state(launch) == LAUNCH_RECORDING;
}

/* The communicators of a launch. Without memory, the rest of them are noted when they are polled. */
struct partners {
    unsigned launch;
    size_t count, room;
    struct oh_comm **comm; /* in use */
};

static bool has_room(struct partners *partners)
{
    if (partners->count == partners->room) {
        const size_t room = partners->room ? 2 * partners->room : 16;
        struct oh_comm **grown = realloc(partners->comm, room * sizeof(struct oh_comm *));
        if (!grown) {
            return false;
        }
        partners->comm = grown;
        partners->room = room;
    }
    return true;
}

static void find_partner(struct oh_comm *comm, void *user)
{
    struct partners *partners = user;
    const unsigned launch = oh_order_launch(comm);
    if (is_under_way(launch) && launch_in(launch, LAUNCH_GOING_ON) == partners->launch && has_room(partners)) {
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
    for (size_t i = 0; i < partners.count; i++) {
        note_launched(partners.comm[i], partners.launch);
        oh_comm_release(partners.comm[i]);
    }
    free(partners.comm);
}
