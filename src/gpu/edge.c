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

/* A captured kernel of a set. */
struct captured {
    CUDA_KERNEL_NODE_PARAMS params;
    struct oh_kernel_kind kind;
};

/* Returns the driver's result. *is_ours_p: the node has a kernel of the set. */
static CUresult read_node(const struct oh_kernel_set *set, CUgraphNode node, struct captured *kernel_p, bool *is_ours_p)
{
    OH_TRY(oh_driver.graph_kernel_node_get_params(node, &kernel_p->params));
    *is_ours_p = kernel_p->params.kernelParams && oh_kernel_find(set, kernel_p->params.func, &kernel_p->kind);
    return CUDA_SUCCESS;
}

static bool may_wait_together(const struct oh_plan_room *room, const struct captured *a, const struct captured *b)
{
    const uint32_t blocks = a->params.gridDimX + b->params.gridDimX;
    return blocks <= oh_plan_pair_blocks(room, a->kind.collective, a->params.blockDimX) &&
           blocks <= oh_plan_pair_blocks(room, b->kind.collective, b->params.blockDimX) && blocks <= room->max_blocks;
}

CUresult oh_edge_trigger(const struct oh_kernel_set *set, const struct oh_plan_room *room, CUgraphNode first,
                         CUgraphNode next)
{
    struct captured kernel, next_kernel;
    bool is_ours, next_is_ours;
    OH_TRY(read_node(set, first, &kernel, &is_ours));
    OH_TRY(read_node(set, next, &next_kernel, &next_is_ours));
    if (!is_ours || !next_is_ours) {
        return CUDA_SUCCESS;
    }
    struct oh_kernel_list_args args; /* or only its base, with which it begins */
    void *parameter[] = {&args};
    memcpy(&args, kernel.params.kernelParams[0], kernel.kind.args_bytes);
    args.base.trigger = may_wait_together(room, &kernel, &next_kernel) ? OH_TRIGGER_EARLY : OH_TRIGGER_LATE;
    kernel.params.kernelParams = parameter;
    return oh_driver.graph_kernel_node_set_params(first, &kernel.params);
}

#define MOST_EARLY_BLOCKS 64u
#define MOST_EDGES 16 /* into a kernel of the program; with more, no edge is changed */

uint32_t oh_edge_early_blocks(uint32_t sms)
{
    const uint32_t few = sms > 0 ? (sms - 1) / 2 : 0;
    return few < MOST_EARLY_BLOCKS ? few : MOST_EARLY_BLOCKS;
}

static bool is_kernel(CUgraphNode node)
{
    CUgraphNodeType type;
    return oh_driver.graph_node_get_type(node, &type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_KERNEL;
}

static bool has_default_edges(CUgraphNode node)
{
    CUgraphNode nodes[MOST_EDGES];
    struct oh_edge_data edges[MOST_EDGES];
    size_t count = 0;
    bool plain = oh_driver.graph_node_get_dependencies(node, NULL, NULL, &count) == CUDA_SUCCESS &&
                 count <= MOST_EDGES &&
                 oh_driver.graph_node_get_dependencies(node, nodes, edges, &count) == CUDA_SUCCESS;
    for (size_t i = 0; i < count && plain; i++) {
        plain = edges[i].type == OH_EDGE_DEFAULT;
    }
    return plain;
}

static bool can_launch_early(const struct oh_edge *edge)
{
    CUDA_KERNEL_NODE_PARAMS from, to;
    CUlaunchAttributeValue cooperative, from_priority, to_priority;
    CUresult(CUDAAPI * get)(CUgraphNode, CUlaunchAttributeID, CUlaunchAttributeValue *) =
        oh_driver.graph_kernel_node_get_attribute;
    return edge->early_blocks > 0 && oh_driver.graph_add_edges && oh_driver.graph_remove_edges &&
           edge->data.type == OH_EDGE_PROGRAMMATIC && edge->data.from_port == OH_PORT_PROGRAMMATIC &&
           is_kernel(edge->from) && oh_driver.graph_kernel_node_get_params(edge->from, &from) == CUDA_SUCCESS &&
           !oh_kernel_is_ours(from.func) && oh_driver.graph_kernel_node_get_params(edge->to, &to) == CUDA_SUCCESS &&
           to.gridDimX <= edge->early_blocks &&
           get(edge->from, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &cooperative) == CUDA_SUCCESS && !cooperative.cooperative &&
           get(edge->from, CU_LAUNCH_ATTRIBUTE_PRIORITY, &from_priority) == CUDA_SUCCESS &&
           get(edge->to, CU_LAUNCH_ATTRIBUTE_PRIORITY, &to_priority) == CUDA_SUCCESS &&
           to_priority.priority >= from_priority.priority && /* a lower number is a higher priority */
           has_default_edges(edge->from);
}

CUresult oh_edge_launch_early(const struct oh_edge *edge)
{
    struct oh_edge_data early = edge->data;
    if (!can_launch_early(edge) ||
        oh_driver.graph_remove_edges(edge->graph, &edge->from, &edge->to, &edge->data, 1) != CUDA_SUCCESS) {
        return CUDA_SUCCESS;
    }
    early.from_port = OH_PORT_LAUNCH_ORDER;
    return oh_driver.graph_add_edges(edge->graph, &edge->from, &edge->to, &early, 1) == CUDA_SUCCESS
               ? CUDA_SUCCESS
               : oh_driver.graph_add_edges(edge->graph, &edge->from, &edge->to, &edge->data, 1);
}
