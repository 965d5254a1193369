/* SPDX-License-Identifier: MIT */
/*
 * pipeline.c - see pipeline.h
 */
#include "gpu/pipeline.h"

#include <stdbool.h>
#include <string.h>

/* Bytes of the parameter of a kernel of the set; 0: the function is none of the set. */
static size_t args_bytes(const struct oh_kernel_set *set, CUfunction function)
{
    for (int a = 0; a < ONEHOP_ALGORITHMS; a++) {
        for (int t = 0; t < OH_KERNEL_TYPES; t++) {
            if (set->any[a][t] == function) {
                return sizeof(struct oh_kernel_list_args);
            }
            if (t < OH_SUM_TYPES && set->sum[a][t] == function) {
                return sizeof(struct oh_kernel_args);
            }
        }
    }
    return 0;
}

static uint32_t threads_of(const CUDA_KERNEL_NODE_PARAMS *params)
{
    return params->gridDimX * params->blockDimX;
}

CUresult oh_pipeline_link(const struct oh_driver *driver, const struct oh_kernel_set *set, uint32_t max_blocks,
                          CUgraphNode first, CUgraphNode next)
{
    CUDA_KERNEL_NODE_PARAMS params, next_params;
    CUresult result = driver->graph_kernel_node_get_params(first, &params);
    if (result == CUDA_SUCCESS) {
        result = driver->graph_kernel_node_get_params(next, &next_params);
    }
    if (result != CUDA_SUCCESS || !params.kernelParams || !args_bytes(set, next_params.func)) {
        return result;
    }
    struct oh_kernel_list_args args; /* or only its base, with which it begins */
    void *parameter[] = {&args};
    const size_t bytes = args_bytes(set, params.func);
    memcpy(&args, params.kernelParams[0], bytes);
    if (bytes == 0 || threads_of(&params) + threads_of(&next_params) > oh_plan_grid_threads(args.base.nranks) ||
        params.gridDimX + next_params.gridDimX > max_blocks) {
        return result;
    }
    args.base.early_trigger = 1;
    params.kernelParams = parameter;
    return driver->graph_kernel_node_set_params(first, &params);
}
