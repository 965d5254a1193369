/* SPDX-License-Identifier: MIT */
/*
 * cuda_exec.c - the simulated driver's executable graphs
 *
 * An executable graph has an image of a graph: all nodes, those of child graphs too, as steps in an order that respects
 * the edges. A launch queues the steps: a step that follows another directly goes to the same stream, others to streams
 * of the image's own, so that branches run at the same time; the first step's stream is the one that the graph is
 * launched on. An update gives the executable graph another image. As in the driver, an event wait node waits for what
 * had been recorded when the graph was launched, and an event record node counts as recorded from the launch on.
 */
#include "test/simnode/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

#define NO_STEP SIZE_MAX

struct step {
    CUcontext ctx;
    struct simcuda_op op;
    size_t lane;
    size_t previous; /* the step before it in its lane; NO_STEP: it is the first */
    bool followed;   /* there is one after it */
    size_t waits;
    size_t *wait;                  /* steps that it comes after */
    struct simcuda_marker *marker; /* during a launch: its end, or what an event wait waits for */
};

struct simcuda_image {
    unsigned references; /* the executable graph, and each launch that is not finished */
    size_t steps;
    struct step *step;
    size_t lanes;
    CUstream *lane; /* lane 0 is the stream launched on */
    struct simcuda_users users;
};

struct CUgraphExec_st {
    struct simcuda_object object;
    struct simcuda_image *image;
    struct simcuda_marker *last; /* end of the latest launch: launches of one graph do not overlap */
};

/* ---- images ---- */

/* A step behind `waits` others, in the lane of the first of them that nothing follows yet. */
static size_t add_step(struct simcuda_image *image, const struct simcuda_op *op, CUcontext ctx, const size_t *wait,
                       size_t waits)
{
    image->step = simnode_grown(image->step, image->steps, sizeof *image->step);
    struct step *step = &image->step[image->steps];
    *step = (struct step){.ctx = ctx, .op = *op, .previous = NO_STEP, .waits = waits};
    step->wait = simnode_new((waits + 1) * sizeof *step->wait);
    for (size_t i = 0; i < waits; i++) {
        struct step *before = &image->step[wait[i]];
        step->wait[i] = wait[i];
        if (step->previous == NO_STEP && !before->followed && before->ctx == step->ctx) {
            before->followed = true;
            step->previous = wait[i];
            step->lane = before->lane;
        }
    }
    if (step->previous == NO_STEP) {
        step->lane = image->lanes;
        image->lane = simnode_grown(image->lane, image->lanes, sizeof(CUstream));
        image->lane[image->lanes] = image->lanes > 0 ? simcuda_stream_new(step->ctx, CU_STREAM_NON_BLOCKING) : NULL;
        image->lanes++;
    }
    return image->steps++;
}

static size_t add_graph(struct simcuda_image *image, CUgraph graph, CUcontext ctx, const size_t *wait, size_t waits);

/* The node's step, and before it those of all that it comes after. A node without any comes after `entry`. */
static void add_node_steps(struct simcuda_image *image, CUgraphNode node, size_t entry)
{
    if (node->step > 0) {
        return;
    }
    size_t waits = 0, *wait = simnode_new((node->dependencies + 1) * sizeof *wait);
    for (size_t i = 0; i < node->dependencies; i++) {
        add_node_steps(image, node->dependency[i].from, entry);
        wait[waits++] = node->dependency[i].from->step - 1;
    }
    if (waits == 0) {
        wait[waits++] = entry;
    }
    if (node->child) {
        node->step = add_graph(image, node->child, node->ctx, wait, waits) + 1;
    } else {
        node->step = add_step(image, &node->op, node->ctx, wait, waits) + 1;
    }
    free(wait);
}

/* All of a graph between two empty steps, behind the given ones. Returns the last. */
static size_t add_graph(struct simcuda_image *image, CUgraph graph, CUcontext ctx, const size_t *wait, size_t waits)
{
    size_t entry = add_step(image, &simcuda_nothing, ctx, wait, waits), ends = 0;
    size_t *end = simnode_new((graph->nodes + 1) * sizeof *end);
    for (size_t i = 0; i < graph->nodes; i++) {
        graph->node[i]->step = 0;
    }
    for (size_t i = 0; i < graph->nodes; i++) {
        add_node_steps(image, graph->node[i], entry);
        end[ends++] = graph->node[i]->step - 1;
    }
    if (ends == 0) {
        end[ends++] = entry;
    }
    simcuda_users_copy(&image->users, &graph->users);
    size_t last = add_step(image, &simcuda_nothing, ctx, end, ends);
    free(end);
    return last;
}

static struct simcuda_image *image_new(CUgraph graph, CUcontext ctx)
{
    struct simcuda_image *image = simnode_new(sizeof *image);
    image->references = 1;
    add_graph(image, graph, ctx, NULL, 0);
    return image;
}

CUuserObject simcuda_image_release(struct simcuda_image *image)
{
    CUuserObject doomed = NULL;
    if (--image->references > 0) {
        return NULL;
    }
    simcuda_users_drop(&image->users, &doomed);
    for (size_t i = 1; i < image->lanes; i++) {
        simcuda_stream_close(image->lane[i]);
    }
    for (size_t i = 0; i < image->steps; i++) {
        free(image->step[i].wait);
    }
    free(image->lane);
    free(image->step);
    free(image);
    return doomed;
}

static bool same_topology(const struct simcuda_image *a, const struct simcuda_image *b)
{
    bool same = a->steps == b->steps;
    for (size_t i = 0; i < a->steps && same; i++) {
        const struct step *x = &a->step[i], *y = &b->step[i];
        same = x->op.kind == y->op.kind && x->ctx == y->ctx && x->waits == y->waits &&
               memcmp(x->wait, y->wait, x->waits * sizeof *x->wait) == 0;
    }
    return same;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec_p, CUgraph graph, unsigned long long flags)
{
    SIMCUDA_LOCK();
    (void)flags; /* about memory of graphs and where they are launched from */
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_GRAPH, graph) || graph->capturing || !simcuda_current(),
                    CUDA_ERROR_INVALID_VALUE);
    SIMCUDA_TRY(simcuda_capture_check());
    CUgraphExec exec = simnode_new(sizeof *exec);
    exec->image = image_new(graph, simcuda_current());
    simcuda_add(SIMCUDA_EXEC, &exec->object);
    *exec_p = exec;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_EXEC, exec) || !simcuda_has(SIMCUDA_GRAPH, graph) || graph->capturing,
                    CUDA_ERROR_INVALID_VALUE);
    struct simcuda_image *image = image_new(graph, exec->image->step[0].ctx), *unused = image;
    bool same = same_topology(exec->image, image);
    if (same) {
        unused = exec->image;
        exec->image = image;
    }
    info->result = same ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    simcuda_users_destroy(simcuda_image_release(unused));
    return same ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_EXEC, exec), CUDA_ERROR_INVALID_VALUE);
    simcuda_remove(&exec->object);
    CUuserObject doomed = simcuda_image_release(exec->image);
    simcuda_marker_release(exec->last);
    free(exec);
    simcuda_users_destroy(doomed);
    return CUDA_SUCCESS;
}

/* ---- launch ---- */

/* What event waits wait for is fixed before this launch records anything. */
static CUresult look_at_events(struct simcuda_image *image)
{
    for (size_t i = 0; i < image->steps; i++) {
        struct step *step = &image->step[i];
        step->marker = NULL;
        bool has_event = step->op.kind == SIMCUDA_OP_EVENT_RECORD || step->op.kind == SIMCUDA_OP_EVENT_WAIT;
        SIMCUDA_FAIL_IF(has_event && !simcuda_has(SIMCUDA_EVENT, step->op.event), CUDA_ERROR_INVALID_HANDLE);
    }
    for (size_t i = 0; i < image->steps; i++) {
        struct step *step = &image->step[i];
        if (step->op.kind == SIMCUDA_OP_EVENT_WAIT && step->op.event->marker) {
            step->marker = step->op.event->marker;
            step->marker->references++;
        }
    }
    return CUDA_SUCCESS;
}

/* What the step does, on its lane. */
static void push_work(CUstream lane, struct step *step)
{
    CUevent event = step->op.event;
    switch (step->op.kind) {
    case SIMCUDA_OP_NONE:
        break;
    case SIMCUDA_OP_EVENT_WAIT:
        if (step->marker) {
            simcuda_push_marker(lane, SIMCUDA_OP_WAIT, step->marker);
            simcuda_marker_release(step->marker);
        }
        break;
    case SIMCUDA_OP_EVENT_RECORD:
        simcuda_marker_release(event->marker);
        event->marker = simcuda_marker_new(1);
        event->capture = 0;
        simcuda_push_marker(lane, SIMCUDA_OP_RECORD, event->marker);
        break;
    default:
        simcuda_push(lane, &step->op);
        break;
    }
}

static void launch_steps(struct simcuda_image *image, CUstream stream)
{
    for (size_t i = 0; i < image->steps; i++) {
        struct step *step = &image->step[i];
        CUstream lane = step->lane == 0 ? stream : image->lane[step->lane];
        for (size_t w = 0; w < step->waits; w++) {
            if (step->wait[w] != step->previous) {
                simcuda_push_marker(lane, SIMCUDA_OP_WAIT, image->step[step->wait[w]].marker);
            }
        }
        push_work(lane, step);
        step->marker = simcuda_marker_new(1);
        simcuda_push_marker(lane, SIMCUDA_OP_RECORD, step->marker);
    }
    /* The last step comes after all others: the stream goes on behind it. */
    simcuda_push_marker(stream, SIMCUDA_OP_WAIT, image->step[image->steps - 1].marker);
    for (size_t i = 0; i < image->steps; i++) {
        simcuda_marker_release(image->step[i].marker);
    }
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
    SIMCUDA_LOCK();
    CUstream stream;
    SIMCUDA_TRY(simcuda_stream_find(handle, &stream));
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_EXEC, exec), CUDA_ERROR_INVALID_VALUE);
    SIMCUDA_FAIL_IF(stream->capture, CUDA_ERROR_NOT_SUPPORTED); /* a graph within a graph */
    SIMCUDA_TRY(simcuda_stream_check_legacy(stream));
    SIMCUDA_TRY(look_at_events(exec->image));
    struct simcuda_op retire = {.kind = SIMCUDA_OP_RETIRE, .image = exec->image};
    simcuda_stream_order(stream);
    if (exec->last) {
        simcuda_push_marker(stream, SIMCUDA_OP_WAIT, exec->last);
        simcuda_marker_release(exec->last);
    }
    launch_steps(exec->image, stream);
    exec->last = simcuda_marker_new(1);
    simcuda_push_marker(stream, SIMCUDA_OP_RECORD, exec->last);
    exec->image->references++;
    simcuda_push(stream, &retire);
    return CUDA_SUCCESS;
}
