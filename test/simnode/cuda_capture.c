/* SPDX-License-Identifier: MIT */
/*
 * cuda_capture.c - the simulated driver's stream capture
 *
 * Each stream of a capture has a frontier: the nodes that its next operation comes after. Work becomes a node that
 * takes the frontier's place; an event recorded keeps a copy of it, a wait adds that copy to another stream's. While
 * the capture is under way the graph may be changed by hand, and so may frontiers; nodes and edges are never taken
 * back by the capture itself.
 */
#include "test/simnode/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

struct simcuda_capture {
    struct simcuda_object object;
    cuuint64_t id;
    CUstreamCaptureMode mode;
    pthread_t thread;
    bool invalid;
    CUgraph graph;
    int streams;
    CUstream stream[SIMCUDA_MAX_CAPTURED];
    struct simcuda_frontier frontier[SIMCUDA_MAX_CAPTURED];
    CUgraphEdgeData *edges; /* of the latest frontier shown: all zero */
};

static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static void frontier_clear(struct simcuda_frontier *frontier)
{
    free(frontier->node);
    *frontier = (struct simcuda_frontier){0};
}

static void frontier_add(struct simcuda_frontier *frontier, CUgraphNode node)
{
    for (size_t i = 0; i < frontier->count; i++) {
        if (frontier->node[i] == node) {
            return;
        }
    }
    frontier->node = simnode_grown(frontier->node, frontier->count, sizeof(CUgraphNode));
    frontier->node[frontier->count++] = node;
}

static void frontier_merge(struct simcuda_frontier *to, const struct simcuda_frontier *from)
{
    for (size_t i = 0; i < from->count; i++) {
        frontier_add(to, from->node[i]);
    }
}

static CUresult capture_fail(struct simcuda_capture *capture, CUresult result)
{
    capture->invalid = true;
    return result;
}

static struct simcuda_frontier *frontier_of(CUstream stream)
{
    return &stream->capture->frontier[stream->lane];
}

/* The stream becomes the capture's next one. */
static void add_stream(struct simcuda_capture *capture, CUstream stream)
{
    stream->lane = capture->streams++;
    capture->stream[stream->lane] = stream;
    stream->capture = capture;
    simcuda_stream_retain(stream);
}

static struct simcuda_capture *capture_by_id(cuuint64_t id)
{
    for (struct simcuda_object *object = simcuda.objects[SIMCUDA_CAPTURE]; object; object = object->next) {
        if (((struct simcuda_capture *)object)->id == id) {
            return (struct simcuda_capture *)object;
        }
    }
    return NULL;
}

CUresult simcuda_capture_check(void)
{
    CUresult result = CUDA_SUCCESS;
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_SUCCESS;
    }
    for (struct simcuda_object *object = simcuda.objects[SIMCUDA_CAPTURE]; object; object = object->next) {
        struct simcuda_capture *capture = (struct simcuda_capture *)object;
        bool mine = pthread_equal(capture->thread, pthread_self());
        bool all_global =
            thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (mine ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED : all_global) {
            result = capture_fail(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    return result;
}

CUresult simcuda_usable(CUcontext *ctx_p)
{
    *ctx_p = simcuda_current();
    return *ctx_p ? simcuda_capture_check() : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult simcuda_capture_check_legacy(CUcontext ctx, bool invalidate)
{
    CUresult result = CUDA_SUCCESS;
    for (struct simcuda_object *object = simcuda.objects[SIMCUDA_CAPTURE]; object; object = object->next) {
        struct simcuda_capture *capture = (struct simcuda_capture *)object;
        for (int i = 0; i < capture->streams; i++) {
            const struct CUstream_st *stream = capture->stream[i];
            if (stream->ctx == ctx && !(stream->flags & CU_STREAM_NON_BLOCKING)) {
                capture->invalid = capture->invalid || invalidate;
                result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
            }
        }
    }
    return result;
}

void simcuda_capture_invalidate(CUstream stream)
{
    stream->capture->invalid = true;
}

/* The operation becomes a node behind the stream's frontier, and the frontier. */
CUresult simcuda_capture_work(CUstream stream, const struct simcuda_op *op)
{
    SIMCUDA_FAIL_IF(stream->capture->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    bool programmatic = op->kind == SIMCUDA_OP_KERNEL && op->kernel.programmatic;
    struct simcuda_frontier *frontier = frontier_of(stream);
    CUgraphNode node = simcuda_node_new(stream->capture->graph, op, stream->ctx);
    for (size_t i = 0; i < frontier->count; i++) {
        CUgraphNode from = frontier->node[i];
        simcuda_node_depend(node, from, programmatic && from->op.kind == SIMCUDA_OP_KERNEL);
    }
    frontier_clear(frontier);
    frontier_add(frontier, node);
    return CUDA_SUCCESS;
}

CUresult simcuda_capture_record(CUstream stream, CUevent event)
{
    SIMCUDA_FAIL_IF(stream->capture->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    simcuda_marker_release(event->marker);
    event->marker = NULL;
    event->capture = stream->capture->id;
    frontier_clear(&event->after);
    frontier_merge(&event->after, frontier_of(stream));
    return CUDA_SUCCESS;
}

CUresult simcuda_capture_wait(CUstream stream, CUevent event)
{
    struct simcuda_capture *capture = capture_by_id(event->capture);
    if (stream->capture && stream->capture != capture) {
        if (capture) {
            capture->invalid = true;
        }
        return capture_fail(stream->capture,
                            capture ? CUDA_ERROR_STREAM_CAPTURE_MERGE : CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    SIMCUDA_FAIL_IF(!capture, CUDA_ERROR_CAPTURED_EVENT);
    SIMCUDA_FAIL_IF(capture->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    if (!stream->capture) {
        if (stream->legacy || capture->streams == SIMCUDA_MAX_CAPTURED) {
            return capture_fail(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        add_stream(capture, stream);
    }
    frontier_merge(frontier_of(stream), &event->after);
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    SIMCUDA_ENTER();
    CUstreamCaptureMode old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
    SIMCUDA_LOCK();
    CUstream stream;
    SIMCUDA_FAIL_IF(mode > CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
    SIMCUDA_TRY(simcuda_stream_find(handle, &stream));
    SIMCUDA_FAIL_IF(stream->legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    SIMCUDA_FAIL_IF(stream->capture, CUDA_ERROR_ILLEGAL_STATE);
    struct simcuda_capture *capture = simnode_new(sizeof *capture);
    capture->id = ++simcuda.captures;
    capture->mode = mode;
    capture->thread = pthread_self();
    capture->graph = simcuda_graph_new();
    capture->graph->capturing = true;
    simcuda_add(SIMCUDA_CAPTURE, &capture->object);
    add_stream(capture, stream);
    return CUDA_SUCCESS;
}

/* The first stream must come after all that the others come after. Nodes added by hand may come after anything. */
static bool is_joined(const struct simcuda_capture *capture)
{
    bool joined = true;
    for (size_t i = 0; i < capture->frontier[0].count; i++) {
        simcuda_node_visit(capture->frontier[0].node[i]);
    }
    for (int s = 1; s < capture->streams; s++) {
        for (size_t i = 0; i < capture->frontier[s].count; i++) {
            joined &= capture->frontier[s].node[i]->visited;
        }
    }
    simcuda_graph_unvisit(capture->graph);
    return joined;
}

static void capture_free(struct simcuda_capture *capture)
{
    for (int i = 0; i < capture->streams; i++) {
        capture->stream[i]->capture = NULL;
        simcuda_stream_release(capture->stream[i]);
        frontier_clear(&capture->frontier[i]);
    }
    simcuda_remove(&capture->object);
    free(capture->edges);
    free(capture);
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph_p)
{
    SIMCUDA_LOCK();
    CUstream stream;
    SIMCUDA_TRY(simcuda_stream_find(handle, &stream));
    SIMCUDA_FAIL_IF(!stream->capture, CUDA_ERROR_ILLEGAL_STATE);
    struct simcuda_capture *capture = stream->capture;
    if (stream->lane != 0) {
        return capture_fail(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self())) {
        return capture_fail(capture, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    CUgraph graph = capture->graph;
    CUresult result = capture->invalid     ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                      : is_joined(capture) ? CUDA_SUCCESS
                                           : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    capture_free(capture);
    graph->capturing = false;
    *graph_p = graph;
    if (result != CUDA_SUCCESS) {
        *graph_p = NULL;
        simcuda_users_destroy(simcuda_graph_free(graph));
    }
    return result;
}

/* The frontier as the caller sees it: valid until the next operation on the stream. */
static void show_frontier(CUstream stream, const CUgraphNode **dependencies_p, const CUgraphEdgeData **edges_p,
                          size_t *count_p)
{
    struct simcuda_capture *capture = stream->capture;
    const struct simcuda_frontier *frontier = frontier_of(stream);
    if (dependencies_p) {
        *dependencies_p = frontier->node;
    }
    if (edges_p) {
        free(capture->edges);
        capture->edges = simnode_new((frontier->count + 1) * sizeof *capture->edges);
        *edges_p = capture->edges;
    }
    if (count_p) {
        *count_p = frontier->count;
    }
}

/* Every output but the status may be NULL, and is set only while the stream captures. */
static CUresult capture_info(CUstream handle, CUstreamCaptureStatus *status_p, cuuint64_t *id_p, CUgraph *graph_p,
                             const CUgraphNode **dependencies_p, const CUgraphEdgeData **edges_p, size_t *count_p)
{
    CUstream stream;
    SIMCUDA_TRY(simcuda_stream_find(handle, &stream));
    if (stream->legacy) {
        SIMCUDA_TRY(simcuda_capture_check_legacy(stream->ctx, false));
    }
    const struct simcuda_capture *capture = stream->capture;
    *status_p = CU_STREAM_CAPTURE_STATUS_NONE;
    if (capture && capture->invalid) {
        *status_p = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    } else if (capture) {
        *status_p = CU_STREAM_CAPTURE_STATUS_ACTIVE;
        if (id_p) {
            *id_p = capture->id;
        }
        if (graph_p) {
            *graph_p = capture->graph;
        }
        show_frontier(stream, dependencies_p, edges_p, count_p);
    }
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status_p, cuuint64_t *id_p, CUgraph *graph_p,
                                   const CUgraphNode **dependencies_p, size_t *count_p)
{
    SIMCUDA_LOCK();
    return capture_info(stream, status_p, id_p, graph_p, dependencies_p, NULL, count_p);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status_p, cuuint64_t *id_p, CUgraph *graph_p,
                                   const CUgraphNode **dependencies_p, const CUgraphEdgeData **edges_p, size_t *count_p)
{
    SIMCUDA_LOCK();
    return capture_info(stream, status_p, id_p, graph_p, dependencies_p, edges_p, count_p);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *dependencies, size_t count, unsigned flags)
{
    SIMCUDA_LOCK();
    CUstream stream;
    SIMCUDA_TRY(simcuda_stream_find(handle, &stream));
    SIMCUDA_FAIL_IF(!stream->capture, CUDA_ERROR_ILLEGAL_STATE);
    SIMCUDA_FAIL_IF(stream->capture->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    for (size_t i = 0; i < count; i++) {
        SIMCUDA_FAIL_IF(!simcuda_graph_has(stream->capture->graph, dependencies[i]), CUDA_ERROR_INVALID_VALUE);
    }
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
        frontier_clear(frontier_of(stream));
    }
    for (size_t i = 0; i < count; i++) {
        frontier_add(frontier_of(stream), dependencies[i]);
    }
    return CUDA_SUCCESS;
}
