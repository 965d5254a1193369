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

static const struct oh_kernel_args *args_of(const struct view *view, CUgraphNode kernel, unsigned *threads_p)
{
    CUDA_KERNEL_NODE_PARAMS params;
    CF_CU(view->worker, GraphKernelNodeGetParams(kernel, &params));
    *threads_p = params.gridDimX * params.blockDimX;
    return params.kernelParams[0];
}

/* Both of onehop, of one communicator, small enough to be on the GPU together, and one comes after the other alone. */
static bool may_be_let_in(const struct view *view, CUgraphNode before, CUgraphNode kernel)
{
    size_t into = 0;
    unsigned first, second;
    if (type_of(view, kernel) != CU_GRAPH_NODE_TYPE_KERNEL) {
        return false;
    }
    for (size_t i = 0; i < view->edges; i++) {
        into += view->to[i] == kernel;
    }
    const struct oh_kernel_args *one = args_of(view, before, &first), *other = args_of(view, kernel, &second);
    return into == 1 && one->staging[0] == other->staging[0] &&
           first + second <= (view->worker->nranks > 4 ? 16384 : 32768);
}

bool all_trigger(void)
{
    const char *text = getenv("ONEHOP_TRIGGER");
    return text && strcmp(text, "1") == 0;
}

void check_early(struct cf_worker *worker, CUgraph graph, int triggers, int ordered)
{
    struct view view;
    const uint32_t otherwise = all_trigger() ? OH_TRIGGER_LATE : OH_TRIGGER_NONE;
    int early = 0;
    look_at(worker, graph, &view);
    for (size_t n = 0; n < view.count; n++) {
        unsigned threads;
        if (type_of(&view, view.nodes[n]) == CU_GRAPH_NODE_TYPE_KERNEL) {
            const uint32_t trigger = args_of(&view, view.nodes[n], &threads)->trigger;
            cf_check(worker, trigger == OH_TRIGGER_EARLY || trigger == otherwise, "kernel %zu: trigger %u", n, trigger);
            early += trigger == OH_TRIGGER_EARLY;
        }
    }
    for (size_t i = 0; i < view.edges; i++) {
        unsigned threads;
        if (view.data[i].type != CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC) {
            continue;
        }
        const bool together = may_be_let_in(&view, view.from[i], view.to[i]);
        cf_check(worker, together || args_of(&view, view.from[i], &threads)->trigger != OH_TRIGGER_EARLY,
                 "edge %zu: a kernel triggers the launch of a kernel that it must not", i);
        cf_check(worker, together || view.data[i].from_port != CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER,
                 "edge %zu: a kernel is launched with one that it must not be launched with", i);
        ordered -= view.data[i].from_port == CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER;
    }
    cf_check(worker, early == triggers, "%d kernels trigger early, not %d", early, triggers);
    cf_check(worker, ordered == 0, "%d kernels too few are launched when those before have begun", ordered);
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
    check_early(worker, graph, all_trigger() ? kernels - 1 : 0, all_trigger() ? 0 : kernels / 2);
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
