/* SPDX-License-Identifier: MIT */
/* graph_structure.c - what graphs of captured calls must look like where onehop has served them */
#include "test/gpu/graph_mixing.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/abi.h"

#define MOST_NODES 64
#define MOST_EDGES 256

struct view {
    struct cf_worker *worker;
    CUgraphNode nodes[MOST_NODES], from[MOST_EDGES], to[MOST_EDGES];
    CUgraphEdgeData data[MOST_EDGES];
    size_t count, edges;
};

static void look_at(struct cf_worker *worker, CUgraph graph, struct view *view_p)
{
    view_p->worker = worker;
    view_p->count = MOST_NODES;
    view_p->edges = MOST_EDGES;
    CF_CU(worker, GraphGetNodes(graph, view_p->nodes, &view_p->count));
    CF_CU(worker, GraphGetEdges(graph, view_p->from, view_p->to, view_p->data, &view_p->edges));
}

static CUgraphNodeType type_of(const struct view *view, CUgraphNode node)
{
    CUgraphNodeType type;
    CF_CU(view->worker, GraphNodeGetType(node, &type));
    return type;
}

static const struct oh_kernel_args *args_of(const struct view *view, CUgraphNode kernel, unsigned *blocks_p)
{
    CUDA_KERNEL_NODE_PARAMS params;
    CF_CU(view->worker, GraphKernelNodeGetParams(kernel, &params));
    *blocks_p = params.gridDimX;
    return params.kernelParams[0];
}

/*
 * When `before` triggers the launch of `kernel`: if both are of one communicator, and the second comes after the first
 * alone; early if they have few enough blocks to wait together (oh_plan_pair_blocks, on a whole GPU).
 */
static enum oh_trigger trigger_between(const struct view *view, CUgraphNode before, CUgraphNode kernel)
{
    size_t into = 0;
    unsigned first, second;
    if (type_of(view, kernel) != CU_GRAPH_NODE_TYPE_KERNEL) {
        return OH_TRIGGER_NONE;
    }
    for (size_t i = 0; i < view->edges; i++) {
        into += view->to[i] == kernel;
    }
    const struct oh_kernel_args *one = args_of(view, before, &first), *other = args_of(view, kernel, &second);
    if (into != 1 || one->staging[0] != other->staging[0]) {
        return OH_TRIGGER_NONE;
    }
    return first + second <= 128 ? OH_TRIGGER_EARLY : OH_TRIGGER_LATE;
}

static bool all_trigger(void)
{
    const char *text = getenv("ONEHOP_TRIGGER");
    return text && strcmp(text, "1") == 0;
}

void check_early(struct cf_worker *worker, CUgraph graph, int expected)
{
    struct view view;
    int early = 0;
    look_at(worker, graph, &view);
    for (size_t n = 0; n < view.count; n++) {
        enum oh_trigger right = all_trigger() ? OH_TRIGGER_LATE : OH_TRIGGER_NONE;
        unsigned blocks;
        if (type_of(&view, view.nodes[n]) != CU_GRAPH_NODE_TYPE_KERNEL) {
            continue;
        }
        for (size_t i = 0; i < view.edges; i++) {
            if (view.from[i] != view.nodes[n]) {
                continue;
            }
            const enum oh_trigger between = trigger_between(&view, view.nodes[n], view.to[i]);
            right = between != OH_TRIGGER_NONE ? between : right;
            cf_check(worker, between != OH_TRIGGER_NONE || view.data[i].type != CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC,
                     "kernel %zu: a node of the program could be launched by its trigger", n);
        }
        const uint32_t trigger = args_of(&view, view.nodes[n], &blocks)->trigger;
        cf_check(worker, trigger == right, "kernel %zu: trigger is %u, not %u", n, trigger, right);
        early += right == OH_TRIGGER_EARLY;
    }
    cf_check(worker, early == expected, "%d kernels let the next in early, not %d", early, expected);
}

void check_structure(struct cf_worker *worker, CUgraph graph, int kernels)
{
    struct view view;
    CUgraphNode recorded = NULL;
    size_t of_type[32] = {0}, programmatic = 0, into_record = 0, out_of_record = 0;
    look_at(worker, graph, &view);
    for (size_t i = 0; i < view.count; i++) {
        of_type[type_of(&view, view.nodes[i])]++;
    }
    check_early(worker, graph, kernels - 1);
    for (size_t i = 0; i < view.edges; i++) {
        programmatic += view.data[i].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
        out_of_record += type_of(&view, view.from[i]) == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
        if (type_of(&view, view.to[i]) == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
            into_record++;
            recorded = view.from[i];
        }
    }
    for (size_t i = 0; i < view.edges; i++) {
        cf_check(worker, view.from[i] != recorded || type_of(&view, view.to[i]) == CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                 "the record node is not behind the last kernel");
    }
    cf_check(worker, of_type[CU_GRAPH_NODE_TYPE_KERNEL] == (size_t)kernels, "%zu kernels",
             of_type[CU_GRAPH_NODE_TYPE_KERNEL]);
    cf_check(worker, of_type[CU_GRAPH_NODE_TYPE_WAIT_EVENT] == 1 && of_type[CU_GRAPH_NODE_TYPE_EVENT_RECORD] == 1,
             "%zu wait and %zu record nodes", of_type[CU_GRAPH_NODE_TYPE_WAIT_EVENT],
             of_type[CU_GRAPH_NODE_TYPE_EVENT_RECORD]);
    cf_check(worker, programmatic == (size_t)kernels - 1, "%zu programmatic edges", programmatic);
    cf_check(worker, into_record == 1 && out_of_record == 0, "%zu edges into the record node, %zu out of it",
             into_record, out_of_record);
}
