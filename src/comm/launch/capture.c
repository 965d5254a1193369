/* SPDX-License-Identifier: MIT */
/*
 * capture.c - captured calls of a communicator: their order, and the edges of their nodes
 *
 * Does: Keeps the frontier of each capture, its record node (order.c has why), and links kernels (gpu/edge.c).
 * Threads: the thread that uses the communicator; a graph's destructor runs on a thread of the driver and touches
 *    atomics only.
 * Owns: the entries of comm->order.captures, until their graph and the communicator are gone.
 */
#include "comm/launch/launch.h"

#include <stdlib.h>
#include <string.h>

#include "gpu/kernels.h"

/* On a thread of the driver. The last access is to `graphs`: at zero the communicator may be freed. */
static void CUDA_CB note_graph_destroyed(void *user)
{
    struct oh_capture *capture = user;
    struct oh_comm *comm = capture->comm;
    atomic_store_explicit(&capture->destroyed, true,
                          memory_order_release); /* pairs with the load in oh_captures_free */
    atomic_fetch_sub_explicit(&comm->order.graphs, 1, memory_order_release); /* pairs with the load in reclaim.c */
}

/*
 * Makes the graph hold the communicator's memory until it, and all that is instantiated from it, are destroyed. The
 * entry is in the list already: from now on it is freed after note_graph_destroyed, also when the graph does not take
 * the reference.
 */
static CUresult retain_for_graph(struct oh_capture *capture)
{
    CUuserObject object;
    CUresult result =
        oh_driver.user_object_create(&object, capture, note_graph_destroyed, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (result != CUDA_SUCCESS) {
        atomic_store(&capture->destroyed, true);
        return result;
    }
    atomic_fetch_add(&capture->comm->order.graphs, 1);
    result = oh_driver.graph_retain_user_object(capture->graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    if (result != CUDA_SUCCESS) {
        oh_driver.user_object_release(object, 1); /* runs note_graph_destroyed, sooner or later */
    }
    return result;
}

void oh_captures_free(struct oh_comm *comm, bool all)
{
    struct oh_capture **link = &comm->order.captures;
    while (*link) {
        struct oh_capture *capture = *link;
        if (all || atomic_load_explicit(&capture->destroyed, memory_order_acquire)) {
            *link = capture->next;
            free(capture->frontier);
            free(capture);
        } else {
            link = &capture->next;
        }
    }
}

struct oh_capture *oh_capture_find(const struct oh_comm *comm, cuuint64_t id)
{
    struct oh_capture *capture = comm->order.captures;
    while (capture && (capture->id != id || !capture->graph)) {
        capture = capture->next;
    }
    return capture;
}

/* The nodes that the next work on a capturing stream depends on: the driver's, until the next call on the capture. */
static CUresult get_frontier(CUstream stream, const CUgraphNode **nodes_p, size_t *count_p)
{
    CUstreamCaptureStatus status;
    const void *edges;
    /* The older form fails where edges carry data, which drivers before 12.3 do not know. */
    OH_TRY(oh_driver.stream_get_capture_info_v3
               ? oh_driver.stream_get_capture_info_v3(stream, &status, NULL, NULL, nodes_p, &edges, count_p)
               : oh_driver.stream_get_capture_info(stream, &status, NULL, NULL, nodes_p, count_p));
    return status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

static bool is_frontier(const struct oh_capture *capture, const CUgraphNode *nodes, size_t count)
{
    return count == capture->frontier_count &&
           (count == 0 || memcmp(nodes, capture->frontier, count * sizeof(CUgraphNode)) == 0);
}

/* A copy of the nodes that the stream's next work depends on. */
static CUresult copy_frontier(CUstream stream, CUgraphNode **copy_p, size_t *count_p)
{
    const CUgraphNode *nodes;
    OH_TRY(get_frontier(stream, &nodes, count_p));
    *copy_p = malloc((*count_p + 1) * sizeof(CUgraphNode)); /* there may be none */
    if (*copy_p && *count_p > 0) {
        memcpy(*copy_p, nodes, *count_p * sizeof(CUgraphNode));
    }
    return *copy_p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The nodes, whose memory it takes over, become the frontier. */
static void set_frontier(struct oh_capture *capture, CUgraphNode *nodes, size_t count)
{
    free(capture->frontier);
    capture->frontier = nodes;
    capture->frontier_count = count;
}

/* The capture waits for earlier calls. If its first call fails, a call on another stream still waits. */
static CUresult follow_earlier_calls(struct oh_capture *capture)
{
    CUgraphNode *nodes;
    size_t count;
    OH_TRY(oh_driver.stream_wait_event(capture->stream, capture->comm->order.event[OH_EVENT_LAUNCH],
                                       CU_EVENT_WAIT_EXTERNAL));
    OH_TRY(copy_frontier(capture->stream, &nodes, &count));
    set_frontier(capture, nodes, count);
    return CUDA_SUCCESS;
}

/* The communicator's first call in a capture. */
static CUresult open_capture(struct oh_comm *comm, const struct oh_stream_state *stream_state,
                             struct oh_capture **capture_p)
{
    oh_captures_free(comm, false);
    struct oh_capture *capture = calloc(1, sizeof *capture);
    if (!capture) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->comm = comm;
    capture->id = stream_state->capture_id;
    capture->graph = stream_state->graph;
    capture->stream = stream_state->stream;
    capture->next = comm->order.captures;
    comm->order.captures = capture;
    CUresult result = retain_for_graph(capture);
    if (result == CUDA_SUCCESS && comm->order.graph_mixing) {
        result = follow_earlier_calls(capture);
    }
    if (result != CUDA_SUCCESS) {
        capture->graph = NULL;
        return result;
    }
    *capture_p = capture;
    return CUDA_SUCCESS;
}

/* Adds edges from the newest call, unless that is on this stream. The per-thread stream differs in each thread. */
static CUresult follow_frontier(struct oh_capture *capture, CUstream stream)
{
    const CUgraphNode *nodes;
    size_t count;
    if (capture->frontier_count == 0 || (stream == capture->stream && stream != CU_STREAM_PER_THREAD)) {
        return CUDA_SUCCESS;
    }
    if (get_frontier(stream, &nodes, &count) == CUDA_SUCCESS && is_frontier(capture, nodes, count)) {
        return CUDA_SUCCESS;
    }
    return oh_driver.stream_update_capture_dependencies(stream, capture->frontier, capture->frontier_count,
                                                        CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
}

static bool is_among(CUgraphNode node, const CUgraphNode *nodes, size_t count)
{
    size_t i = 0;
    while (i < count && nodes[i] != node) {
        i++;
    }
    return i < count;
}

/* Moves the record node from behind the newest call to behind these nodes (one at least). */
static CUresult move_record(struct oh_capture *capture, const CUgraphNode *nodes, size_t count)
{
    if (!capture->record) {
        return oh_driver.graph_add_event_record_node(&capture->record, capture->graph, nodes, count,
                                                     capture->comm->order.event[OH_EVENT_LAUNCH]);
    }
    for (size_t i = 0; i < count; i++) {
        if (!is_among(nodes[i], capture->frontier, capture->frontier_count)) {
            OH_TRY(oh_driver.graph_add_dependencies(capture->graph, &nodes[i], &capture->record, 1));
        }
    }
    for (size_t i = 0; i < capture->frontier_count; i++) {
        if (!is_among(capture->frontier[i], nodes, count)) {
            OH_TRY(oh_driver.graph_remove_dependencies(capture->graph, &capture->frontier[i], &capture->record, 1));
        }
    }
    return CUDA_SUCCESS;
}

CUresult oh_capture_after(struct oh_capture *capture, CUstream stream)
{
    CUgraphNode *nodes;
    size_t count;
    OH_TRY(copy_frontier(stream, &nodes, &count));
    const bool moved = count > 0 && !is_frontier(capture, nodes, count);
    const CUresult result =
        moved && capture->comm->order.graph_mixing ? move_record(capture, nodes, count) : CUDA_SUCCESS;
    if (!moved || result != CUDA_SUCCESS) {
        free(nodes);
        return result;
    }
    set_frontier(capture, nodes, count);
    capture->stream = stream;
    return CUDA_SUCCESS;
}

CUresult oh_capture_fence(struct oh_capture *capture, CUstream stream)
{
    capture->fence = NULL;
    if (!capture->kernel) {
        return CUDA_SUCCESS;
    }
    OH_TRY(oh_driver.graph_add_empty_node(&capture->fence, capture->graph, &capture->kernel, 1));
    return oh_driver.stream_update_capture_dependencies(stream, &capture->fence, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES);
}

CUresult oh_capture_unfence(struct oh_capture *capture, CUstream stream)
{
    const CUgraphNode *nodes;
    size_t count;
    const bool is_behind = capture->fence && get_frontier(stream, &nodes, &count) == CUDA_SUCCESS && count == 1 &&
                           nodes[0] == capture->fence;
    return is_behind ? oh_driver.stream_update_capture_dependencies(stream, &capture->kernel, 1,
                                                                    CU_STREAM_SET_CAPTURE_DEPENDENCIES)
                     : CUDA_SUCCESS;
}

CUresult oh_capture_before(struct oh_comm *comm, const struct oh_stream_state *stream_state,
                           struct oh_capture **capture_p)
{
    struct oh_capture *capture = oh_capture_find(comm, stream_state->capture_id);
    if (!capture) {
        return open_capture(comm, stream_state, capture_p);
    }
    *capture_p = capture;
    return follow_frontier(capture, stream_state->stream);
}

/* The result of oh_edge_trigger is not needed: a kernel that cannot be changed does not trigger. */
static CUresult link_captured(const struct oh_comm *comm, const struct oh_capture *capture, CUgraphNode kernel)
{
    CUgraphNode nodes[2];
    struct oh_edge_data edges[2]; /* without room for their data the call fails */
    size_t count = 2;
    if (oh_driver.graph_node_get_dependencies(kernel, nodes, edges, &count) != CUDA_SUCCESS || count != 1) {
        return CUDA_SUCCESS;
    }
    const struct oh_edge edge = {.graph = capture->graph,
                                 .from = nodes[0],
                                 .to = kernel,
                                 .data = edges[0],
                                 .early_blocks = comm->serve.early_blocks};
    if (edge.from == capture->kernel) {
        oh_edge_trigger(comm->serve.kernels, &comm->serve.room, edge.from, kernel);
        return CUDA_SUCCESS;
    }
    return oh_edge_launch_early(&edge);
}

CUresult oh_capture_link(const struct oh_submission *submission)
{
    const struct oh_comm *comm = submission->calls[0].comm;
    struct oh_capture *capture = submission->capture;
    const CUgraphNode *nodes;
    size_t count;
    if (!capture || !comm->serve.kernels->programmatic || !oh_driver.graph_node_get_dependencies) {
        return CUDA_SUCCESS; /* kernels cannot overlap */
    }
    bool known = get_frontier(submission->stream_state.stream, &nodes, &count) == CUDA_SUCCESS && count == 1;
    CUgraphNode kernel = known ? nodes[0] : NULL;
    CUresult result = kernel ? link_captured(comm, capture, kernel) : CUDA_SUCCESS;
    capture->kernel = kernel;
    return result;
}
