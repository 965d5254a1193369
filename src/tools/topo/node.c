/* SPDX-License-Identifier: MIT */
/*
 * topo/node.c - making and freeing a node, and small questions to it (topo/node.h)
 */
#include "tools/topo/node.h"

#include <stdlib.h>

#include "tools/shared/tool.h"
#include "topo/nvml.h"

const char *const oh_node_variable_names[OH_NODE_VARIABLES] = {
    [OH_NODE_VISIBLE_DEVICES] = "CUDA_VISIBLE_DEVICES",
    [OH_NODE_DEVICE_ORDER] = "CUDA_DEVICE_ORDER",
    [OH_NODE_P2P_DISABLE] = "NCCL_P2P_DISABLE",
    [OH_NODE_P2P_LEVEL] = "NCCL_P2P_LEVEL",
    [OH_NODE_CTA_POLICY] = "NCCL_CTA_POLICY",
    [OH_NODE_LAUNCH_ORDER] = "NCCL_LAUNCH_ORDER_IMPLICIT",
    [OH_NODE_ALGO] = "NCCL_ALGO",
    [OH_NODE_INVARIANT] = "ONEHOP_INVARIANT",
    [OH_NODE_PINNED] = "ONEHOP_PINNED",
    [OH_NODE_DISABLE] = "ONEHOP_DISABLE",
    [OH_NODE_MAX_BYTES] = "ONEHOP_MAX_BYTES",
};

void oh_node_gpu_init(struct oh_node_gpu *gpu)
{
    *gpu = (struct oh_node_gpu){.topo = {.cuda_device = -1, .compute_minor = -1},
                                .compute_mode = -1,
                                .fabric = -1,
                                .clique = -1,
                                .links = -1,
                                .links_down = -1};
}

void oh_node_make_pairs(struct oh_node *node)
{
    size_t n = (size_t)node->visible;
    node->pair = oh_tool_allocate(n * n * sizeof *node->pair);
    for (size_t i = 0; i < n * n; i++) {
        node->pair[i].links = -1;
    }
}

void oh_node_free(struct oh_node *node)
{
    free(node->gpu);
    free(node->pair);
    *node = (struct oh_node){0};
}

bool oh_node_has_nvlink(const struct oh_topo_pair *pair)
{
    return pair->nvml_nvlink == OH_YES || (pair->nvml_nvlink == OH_UNKNOWN && pair->cuda_atomics == OH_YES);
}

void oh_node_cell(const struct oh_node_pair *pair, char *text_p, size_t size)
{
    if (oh_node_has_nvlink(&pair->topo)) {
        if (pair->links > 0) {
            snprintf(text_p, size, "NV%d", pair->links);
        } else {
            snprintf(text_p, size, "NV");
        }
    } else if (pair->topo.nvml_nvlink == OH_UNKNOWN && pair->topo.cuda_atomics == OH_UNKNOWN) {
        snprintf(text_p, size, "?");
    } else {
        snprintf(text_p, size, "%s", pair->path[0] ? pair->path : "-");
    }
}

const char *oh_node_fabric(const struct oh_node_gpu *gpu)
{
    static const char *const words[] = {[OH_NVML_FABRIC_NOT_SUPPORTED] = "-",
                                        [OH_NVML_FABRIC_NOT_STARTED] = "not started",
                                        [OH_NVML_FABRIC_IN_PROGRESS] = "in progress",
                                        [OH_NVML_FABRIC_COMPLETED] = "ready"};
    if (gpu->fabric == OH_NVML_FABRIC_COMPLETED && gpu->fabric_status != OH_NVML_SUCCESS) {
        return "failed";
    }
    return gpu->fabric >= 0 && gpu->fabric <= OH_NVML_FABRIC_COMPLETED ? words[gpu->fabric] : "?";
}

bool oh_node_is_simulated(const struct oh_node *node)
{
    return node->by_hand || (node->visible + node->hidden > 0 && oh_tool_is_simulated(node->gpu[0].topo.name));
}

const char *oh_node_origin(const struct oh_node *node)
{
    return node->by_hand ? "SIMULATED node, made by hand: " : oh_node_is_simulated(node) ? "SIMULATED node: " : "";
}

bool oh_node_any_switch(const struct oh_node *node, int gpu)
{
    bool any = false;
    for (int i = 0; i < node->visible * node->visible; i++) {
        any = any || (node->pair[i].via_switch && (gpu < 0 || gpu == i / node->visible));
    }
    return any;
}
