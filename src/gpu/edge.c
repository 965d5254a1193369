/* SPDX-License-Identifier: MIT */
/*
 * edge.c - edges between captured kernels
 *
 * Does: Changes captured nodes and edges.
 * Threads: any.
 * Owns: nothing.
 */
#include "gpu/kernels.h"

#include <stdbool.h>
#include <string.h>

#define MOST_EARLY_BLOCKS 64u
#define MOST_EDGES 16 /* into a kernel; with more, no edge is changed */

uint32_t oh_edge_early_blocks(uint32_t sms)
{
    const uint32_t few = sms > 0 ? (sms - 1) / 2 : 0;
    return few < MOST_EARLY_BLOCKS ? few : MOST_EARLY_BLOCKS;
}

static uint32_t threads_of(const CUDA_KERNEL_NODE_PARAMS *params)
{
    return params->gridDimX * params->blockDimX;
}

/* Reads the arguments of a kernel node, or only their base if it has no list. Returns their bytes; 0: the kernel is not
 * of the set, or cannot be read. */
static size_t read_args(const struct oh_kernel_set *set, CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params_p,
                        struct oh_kernel_list_args *args_p)
{
    if (oh_driver.graph_kernel_node_get_params(node, params_p) != CUDA_SUCCESS || !params_p->kernelParams) {
        return 0;
    }
    const size_t bytes = oh_kernel_args_bytes(set, params_p->func);
    memcpy(args_p, params_p->kernelParams[0], bytes);
    return bytes;
}

/* Both kernels together are as small as one must be. */
static bool fit_together(const struct oh_edge *edge, const CUDA_KERNEL_NODE_PARAMS *from,
                         const CUDA_KERNEL_NODE_PARAMS *to, uint32_t nranks)
{
    return threads_of(from) + threads_of(to) <= oh_plan_grid_threads(nranks) &&
           from->gridDimX + to->gridDimX <= edge->max_blocks;
}

CUresult oh_edge_trigger_early(const struct oh_edge *edge)
{
    CUDA_KERNEL_NODE_PARAMS from, to;
    struct oh_kernel_list_args args;
    void *parameter[] = {&args};
    OH_TRY(oh_driver.graph_kernel_node_get_params(edge->to, &to));
    if (!edge->same_comm || oh_kernel_args_bytes(edge->set, to.func) == 0 ||
        read_args(edge->set, edge->from, &from, &args) == 0 || !fit_together(edge, &from, &to, args.base.nranks)) {
        return CUDA_SUCCESS;
    }
    args.base.trigger = OH_TRIGGER_EARLY;
    from.kernelParams = parameter;
    return oh_driver.graph_kernel_node_set_params(edge->from, &from);
}

static bool is_kernel(CUgraphNode node)
{
    CUgraphNodeType type;
    return oh_driver.graph_node_get_type(node, &type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_KERNEL;
}

/* `to` is launched after all blocks of `from` have ended. */
static bool is_launched_after(const struct oh_edge *edge, CUgraphNode from, const struct oh_edge_data *data)
{
    CUDA_KERNEL_NODE_PARAMS params;
    struct oh_kernel_list_args args;
    if (data->type == OH_EDGE_DEFAULT) {
        return true;
    }
    return edge->same_comm && data->from_port == OH_PORT_PROGRAMMATIC && is_kernel(from) &&
           read_args(edge->set, from, &params, &args) > 0 && args.base.trigger == OH_TRIGGER_NONE;
}

/* The nodes before `from` that may still run when it is launched. */
struct front {
    CUgraphNode node[MOST_EDGES + 1];
    struct oh_edge_data edge[MOST_EDGES + 1];
    size_t count;
};

/* Returns false if the nodes are too many, or unknown. */
static bool get_front(const struct oh_edge *edge, struct front *front_p)
{
    struct front *front = front_p;
    size_t count = MOST_EDGES + 1; /* returned: the number of edges, if there is room for all */
    if (oh_driver.graph_node_get_dependencies(edge->from, front->node, front->edge, &count) != CUDA_SUCCESS ||
        count > MOST_EDGES) {
        return false;
    }
    front->count = 0;
    for (size_t i = 0; i < count; i++) {
        if (!is_launched_after(edge, front->node[i], &front->edge[i])) {
            front->node[front->count] = front->node[i];
            front->edge[front->count++] = (struct oh_edge_data){0};
        }
    }
    return true;
}

/* Both kernels may be on the GPU together. */
static bool may_overlap(const struct oh_edge *edge)
{
    CUDA_KERNEL_NODE_PARAMS from, to;
    struct oh_kernel_list_args args;
    if (oh_driver.graph_kernel_node_get_params(edge->to, &to) != CUDA_SUCCESS) {
        return false;
    }
    if (edge->same_comm) {
        return read_args(edge->set, edge->from, &from, &args) > 0 && fit_together(edge, &from, &to, args.base.nranks);
    }
    return oh_driver.graph_kernel_node_get_params(edge->from, &from) == CUDA_SUCCESS && !oh_kernel_is_ours(from.func) &&
           to.gridDimX <= edge->early_blocks;
}

static bool can_launch_early(const struct oh_edge *edge)
{
    CUlaunchAttributeValue cooperative, from_priority, to_priority;
    CUresult(CUDAAPI * get)(CUgraphNode, CUlaunchAttributeID, CUlaunchAttributeValue *) =
        oh_driver.graph_kernel_node_get_attribute;
    return oh_driver.graph_add_edges && oh_driver.graph_remove_edges && edge->data.type == OH_EDGE_PROGRAMMATIC &&
           edge->data.from_port == OH_PORT_PROGRAMMATIC && is_kernel(edge->from) && may_overlap(edge) &&
           get(edge->from, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &cooperative) == CUDA_SUCCESS && !cooperative.cooperative &&
           get(edge->from, CU_LAUNCH_ATTRIBUTE_PRIORITY, &from_priority) == CUDA_SUCCESS &&
           get(edge->to, CU_LAUNCH_ATTRIBUTE_PRIORITY, &to_priority) == CUDA_SUCCESS &&
           to_priority.priority >= from_priority.priority; /* a lower number is a higher priority */
}

CUresult oh_edge_launch_early(const struct oh_edge *edge)
{
    struct oh_edge_data early = edge->data;
    struct front front;
    if (!can_launch_early(edge) || !get_front(edge, &front) || (front.count > 0 && !edge->same_comm)) {
        return CUDA_SUCCESS;
    }
    /* What is before `from` ends before `to` is launched: so at most two of these kernels are on the GPU together. */
    for (size_t i = 0; i < front.count; i++) {
        if (oh_driver.graph_add_edges(edge->graph, &front.node[i], &edge->to, &front.edge[i], 1) != CUDA_SUCCESS) {
            return CUDA_SUCCESS;
        }
    }
    if (oh_driver.graph_remove_edges(edge->graph, &edge->from, &edge->to, &edge->data, 1) != CUDA_SUCCESS) {
        return CUDA_SUCCESS;
    }
    early.from_port = OH_PORT_LAUNCH_ORDER;
    return oh_driver.graph_add_edges(edge->graph, &edge->from, &edge->to, &early, 1) == CUDA_SUCCESS
               ? CUDA_SUCCESS
               : oh_driver.graph_add_edges(edge->graph, &edge->from, &edge->to, &edge->data, 1);
}
