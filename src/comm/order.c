/* SPDX-License-Identifier: MIT */
/*
 * order.c - see order.h
 *
 * Kernels of one communicator must not overlap: they share epochs and slots. On one stream they do not. Elsewhere they
 * are ordered as NCCL orders its own (2.28.9, src/misc/strongstream.cc), in the order in which the host launches them:
 *
 *   eager      the event last_call is recorded after every call; a call on another stream waits for it. While graphs
 *              of the communicator are alive every call waits: a replay may have come between.
 *   captured   a call on another stream of the capture gets an edge from the newest kernel.
 *   graphs     the first call of a graph comes after an external wait for last_call, and an external record of it
 *              comes after the last. A launch of the graph is thus one call more in the eager order.
 *
 * Which call is the last, a capture does not say. So the record node is made behind the first call and moved behind
 * each further one: all changes but removing nodes are allowed on a graph under capture (cuStreamGetCaptureInfo). It
 * is a leaf, in no stream's way, so that the edges between kernels stay programmatic. One record is enough because
 * the newest kernel comes after all earlier ones of the capture.
 *
 *   NCCL's     a call of the communicator that NCCL serves waits for last_call where its stream is another; an event
 *              after it makes ours wait in turn, once calls have been on several streams. Until then it costs time for
 *              nothing; a program that uses several shows it early, so the first calls have the event.
 *
 * A graph holds a reference on the communicator's memory, as NCCL's do (enqueue.cc:1542), and so on last_call.
 */
#include "comm/order.h"

#include <sched.h>
#include <stdlib.h>

#include "gpu/context.h"
#include "util/log.h"

#define WARY_CALLS 64

static const struct oh_driver *driver_of(const struct oh_comm *comm)
{
    return comm->staging.driver;
}

/* A burst runs on the stream of its first call. */
static CUstream stream_of(const struct oh_burst *burst)
{
    return burst->calls[0].stream;
}

/* --- captures --------------------------------------------------------------------------------------------------- */

/* On a thread of the driver. The last access is to `graphs`: at zero the communicator may be freed. */
static void CUDA_CB graph_is_gone(void *user)
{
    struct oh_capture *capture = user;
    struct oh_comm *comm = capture->comm;
    atomic_store_explicit(&capture->gone, true, memory_order_release); /* pairs with the load in drop_captures */
    atomic_fetch_sub_explicit(&comm->graphs, 1, memory_order_release); /* pairs with the load in retire.c */
}

/*
 * Makes the graph hold the communicator's memory until it, and all made from it, are destroyed. The entry is in the
 * list already: from now on it goes by way of graph_is_gone, also when the graph does not take the reference.
 */
static CUresult retain_for_graph(struct oh_capture *capture)
{
    const struct oh_driver *driver = driver_of(capture->comm);
    CUuserObject object;
    CUresult result = driver->user_object_create(&object, capture, graph_is_gone, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (result != CUDA_SUCCESS) {
        atomic_store(&capture->gone, true);
        return result;
    }
    atomic_fetch_add(&capture->comm->graphs, 1);
    result = driver->graph_retain_user_object(capture->graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    if (result != CUDA_SUCCESS) {
        driver->user_object_release(object, 1); /* runs graph_is_gone, sooner or later */
    }
    return result;
}

/* Frees the entries whose graphs are gone, or all. */
static void drop_captures(struct oh_comm *comm, bool all)
{
    struct oh_capture **link = &comm->captures;
    while (*link) {
        struct oh_capture *capture = *link;
        if (all || atomic_load_explicit(&capture->gone, memory_order_acquire)) {
            *link = capture->next;
            free(capture);
        } else {
            link = &capture->next;
        }
    }
}

void oh_order_free(struct oh_comm *comm)
{
    drop_captures(comm, true);
}

static struct oh_capture *find_capture(const struct oh_comm *comm, cuuint64_t id)
{
    struct oh_capture *capture = comm->captures;
    while (capture && (capture->id != id || !capture->graph)) {
        capture = capture->next;
    }
    return capture;
}

/* The communicator's first call in a capture. */
static CUresult open_capture(struct oh_burst *burst)
{
    struct oh_comm *comm = burst->calls[0].comm;
    drop_captures(comm, false);
    struct oh_capture *capture = malloc(sizeof *capture);
    if (!capture) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *capture =
        (struct oh_capture){.comm = comm, .id = burst->capture_id, .graph = burst->graph, .stream = stream_of(burst)};
    capture->next = comm->captures;
    comm->captures = capture;
    CUresult result = retain_for_graph(capture);
    if (result == CUDA_SUCCESS && comm->graph_mixing) {
        result = driver_of(comm)->stream_wait_event(stream_of(burst), comm->last_call, CU_EVENT_WAIT_EXTERNAL);
    }
    if (result != CUDA_SUCCESS) {
        capture->graph = NULL;
    }
    burst->capture = capture;
    return result;
}

/* The node that the next work on a capturing stream comes after; for a stream that has just got a kernel, that. */
static CUresult tip_of(const struct oh_driver *driver, CUstream stream, CUgraphNode *node_p)
{
    CUstreamCaptureStatus status;
    const CUgraphNode *nodes = NULL;
    const void *edges;
    size_t count = 0;
    /* The older form fails where edges carry data, which drivers before 12.3 do not know. */
    CUresult result = driver->stream_get_capture_info_v3
                          ? driver->stream_get_capture_info_v3(stream, &status, NULL, NULL, &nodes, &edges, &count)
                          : driver->stream_get_capture_info(stream, &status, NULL, NULL, &nodes, &count);
    if (result == CUDA_SUCCESS && (status != CU_STREAM_CAPTURE_STATUS_ACTIVE || count == 0)) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (result == CUDA_SUCCESS) {
        *node_p = nodes[0];
    }
    return result;
}

/* An edge from the newest kernel, unless the stream is where that is. The per-thread stream is one in each thread. */
static CUresult follow_newest(struct oh_capture *capture, CUstream stream)
{
    const struct oh_driver *driver = driver_of(capture->comm);
    CUgraphNode tip;
    if (!capture->newest || (stream == capture->stream && stream != CU_STREAM_PER_THREAD)) {
        return CUDA_SUCCESS;
    }
    if (tip_of(driver, stream, &tip) == CUDA_SUCCESS && tip == capture->newest) {
        return CUDA_SUCCESS;
    }
    return driver->stream_update_capture_dependencies(stream, &capture->newest, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
}

/* The record node comes after `tip` instead of after the kernel before. */
static CUresult move_record(struct oh_capture *capture, CUgraphNode tip)
{
    const struct oh_driver *driver = driver_of(capture->comm);
    if (!capture->record) {
        return driver->graph_add_event_record_node(&capture->record, capture->graph, &tip, 1, capture->comm->last_call);
    }
    CUresult result = driver->graph_add_dependencies(capture->graph, &tip, &capture->record, 1);
    if (result == CUDA_SUCCESS) {
        result = driver->graph_remove_dependencies(capture->graph, &capture->newest, &capture->record, 1);
    }
    return result;
}

static CUresult after_captured(struct oh_capture *capture, CUstream stream)
{
    CUgraphNode tip;
    CUresult result = tip_of(driver_of(capture->comm), stream, &tip);
    if (result != CUDA_SUCCESS || tip == capture->newest) {
        return result;
    }
    if (capture->comm->graph_mixing) {
        result = move_record(capture, tip);
    }
    if (result == CUDA_SUCCESS) {
        capture->newest = tip;
        capture->stream = stream;
    }
    return result;
}

/* --- a burst ---------------------------------------------------------------------------------------------------- */

static CUresult before_captured(struct oh_burst *burst)
{
    struct oh_comm *comm = burst->calls[0].comm;
    burst->capture = find_capture(comm, burst->capture_id);
    return burst->capture ? follow_newest(burst->capture, stream_of(burst)) : open_capture(burst);
}

static void note_stream(struct oh_comm *comm, CUstream stream)
{
    comm->many_streams |= comm->any_stream && stream != comm->latest_stream;
    comm->latest_stream = stream;
    comm->any_stream = true;
}

/* What `launching` says. The stream belongs to whoever has made the last change. */
enum {
    LAUNCH_NONE,      /* or noted */
    LAUNCH_GOING_ON,  /* since oh_comm_handed_back_later: the thread that uses the communicator */
    LAUNCH_RECORDING, /* a thread has heard that it is done, and records the event */
    LAUNCH_RECORDED,  /* release; pairs with the load in take_recorded */
};

/* The event of a call that NCCL has launched in the background is taken over by the thread that uses the communicator.
 */
static void take_recorded(struct oh_comm *comm)
{
    int state = atomic_load_explicit(&comm->launching, memory_order_acquire);
    while (state == LAUNCH_RECORDING) { /* by another thread: an event is being recorded */
        sched_yield();
        state = atomic_load_explicit(&comm->launching, memory_order_acquire);
    }
    if (state == LAUNCH_RECORDED) {
        comm->handed_back_stream = comm->launching_stream;
        comm->handed_back_since = true;
        atomic_store_explicit(&comm->launching, LAUNCH_NONE, memory_order_relaxed);
    }
}

/* NCCL has, or will have, a later call: its own calls are in order, so that the event behind that one is enough. */
static void drop_launching(struct oh_comm *comm)
{
    int expected = LAUNCH_GOING_ON;
    if (!atomic_compare_exchange_strong(&comm->launching, &expected, LAUNCH_NONE)) {
        take_recorded(comm);
    }
}

/* Behind the last call that NCCL has served, if there is none of ours behind it yet. */
static CUresult follow_handed_back(struct oh_comm *comm, CUstream stream)
{
    take_recorded(comm);
    if (!comm->handed_back_since) {
        return CUDA_SUCCESS;
    }
    comm->handed_back_since = false;
    return stream == comm->handed_back_stream ? CUDA_SUCCESS
                                              : driver_of(comm)->stream_wait_event(stream, comm->handed_back_call, 0);
}

static CUresult before_eager(struct oh_burst *burst)
{
    struct oh_comm *comm = burst->calls[0].comm;
    const struct oh_driver *driver = driver_of(comm);
    /* By id: handles come again after a stream is destroyed, and the per-thread default stream is one in each thread.
     */
    CUresult result = driver->stream_get_id(stream_of(burst), &burst->stream_id);
    bool moved = comm->launched && burst->stream_id != comm->last_stream;
    bool replayed = comm->graph_mixing && atomic_load_explicit(&comm->graphs, memory_order_relaxed) > 0;
    if (result == CUDA_SUCCESS && (moved || replayed)) {
        result = driver->stream_wait_event(stream_of(burst), comm->last_call, 0);
    }
    note_stream(comm, stream_of(burst));
    return result == CUDA_SUCCESS ? follow_handed_back(comm, stream_of(burst)) : result;
}

CUresult oh_order_look(const struct oh_comm *comm, CUstream stream, cuuint64_t *id_p, CUgraph *graph_p)
{
    CUstreamCaptureStatus status;
    CUresult result = driver_of(comm)->stream_get_capture_info(stream, &status, id_p, graph_p, NULL, NULL);
    if (result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        *graph_p = NULL;
    }
    return result;
}

CUresult oh_order_before(struct oh_burst *burst)
{
    CUresult result = oh_order_look(burst->calls[0].comm, stream_of(burst), &burst->capture_id, &burst->graph);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return burst->graph ? before_captured(burst) : before_eager(burst);
}

CUresult oh_order_after(struct oh_burst *burst)
{
    struct oh_comm *comm = burst->calls[0].comm;
    if (burst->capture) {
        return after_captured(burst->capture, stream_of(burst));
    }
    comm->launched = true;
    comm->last_stream = burst->stream_id;
    comm->last_handle = stream_of(burst);
    return driver_of(comm)->event_record(comm->last_call, stream_of(burst));
}

/* --- calls that NCCL serves --------------------------------------------------------------------------------------- */

/* By handle: a stream destroyed and made again under the same handle counts as one. */
static bool is_in_order(const struct oh_comm *comm, CUstream stream)
{
    bool nothing = !comm->launched && !comm->captures;
    return nothing ||
           (comm->launched && !comm->captures && stream == comm->last_handle && stream != CU_STREAM_PER_THREAD);
}

static CUresult follow_launches(struct oh_comm *comm, CUstream stream)
{
    cuuint64_t id;
    CUgraph graph;
    CUresult result = oh_order_look(comm, stream, &id, &graph);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (graph) {
        struct oh_capture *capture = find_capture(comm, id);
        return capture ? follow_newest(capture, stream) : CUDA_SUCCESS;
    }
    return driver_of(comm)->stream_wait_event(stream, comm->last_call, 0);
}

/* *recorded_p: false where the stream is captured. */
static CUresult record_event(struct oh_comm *comm, CUstream stream, bool *recorded_p)
{
    cuuint64_t id;
    CUgraph graph;
    CUresult result = oh_order_look(comm, stream, &id, &graph);
    *recorded_p = false;
    if (result == CUDA_SUCCESS && !graph) {
        result = driver_of(comm)->event_record(comm->handed_back_call, stream);
        *recorded_p = result == CUDA_SUCCESS;
    }
    return result;
}

static CUresult record_handed_back(struct oh_comm *comm, CUstream stream)
{
    bool recorded;
    CUresult result = record_event(comm, stream, &recorded);
    if (recorded) {
        comm->handed_back_stream = stream;
        comm->handed_back_since = true;
    }
    return result;
}

static void in_context(struct oh_comm *comm, CUstream stream, CUresult (*step)(struct oh_comm *, CUstream))
{
    const struct oh_staging *staging = &comm->staging;
    struct oh_context_scope scope;
    CUresult result = oh_context_enter(staging->driver, staging->context, &scope);
    if (result == CUDA_SUCCESS) {
        result = step(comm, stream);
        oh_context_leave(staging->driver, &scope);
    }
    if (result != CUDA_SUCCESS) {
        OH_INFO("comm %p rank %u: ordering a call that NCCL serves: %s", (void *)comm->nccl, comm->rank,
                oh_driver_error_name(staging->driver, result));
    }
}

void oh_comm_before_handed_back(struct oh_comm *comm, CUstream stream)
{
    if (!is_in_order(comm, stream)) {
        in_context(comm, stream, follow_launches);
    }
}

/* Does a call that NCCL has served, on that stream, get an event? */
static bool needs_event(struct oh_comm *comm, CUstream stream)
{
    note_stream(comm, stream);
    return comm->many_streams || (comm->wary < WARY_CALLS && ++comm->wary);
}

void oh_comm_after_handed_back(struct oh_comm *comm, CUstream stream)
{
    if (needs_event(comm, stream)) {
        drop_launching(comm);
        in_context(comm, stream, record_handed_back);
    }
}

void oh_comm_handed_back_later(struct oh_comm *comm, CUstream stream)
{
    if (needs_event(comm, stream)) {
        drop_launching(comm);
        comm->launching_stream = stream;
        atomic_store_explicit(&comm->launching, LAUNCH_GOING_ON, memory_order_release); /* pairs with the exchange */
    }
}

static CUresult record_launched(struct oh_comm *comm, CUstream stream)
{
    bool recorded;
    CUresult result = record_event(comm, stream, &recorded);
    int state = recorded ? LAUNCH_RECORDED : LAUNCH_NONE;
    atomic_store_explicit(&comm->launching, state, memory_order_release); /* pairs with the load in take_recorded */
    return result;
}

void oh_comm_launched(struct oh_comm *comm)
{
    int expected = LAUNCH_GOING_ON;
    if (atomic_compare_exchange_strong(&comm->launching, &expected, LAUNCH_RECORDING)) {
        in_context(comm, comm->launching_stream, record_launched);
        expected = LAUNCH_RECORDING; /* the context could not be entered */
        atomic_compare_exchange_strong(&comm->launching, &expected, LAUNCH_NONE);
    }
}
