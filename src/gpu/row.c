/* SPDX-License-Identifier: MIT */
#include "gpu/row.h"

#include <string.h>

#include "gpu/alias.h"

/* A captured kernel: its node's parameters, and what it is. */
struct captured {
    CUDA_KERNEL_NODE_PARAMS params;
    enum onehop_algorithm algorithm;
    uint32_t element_bytes;
    bool is_list;
    struct oh_kernel_list_args args; /* or only its base */
    void *parameter[1];              /* as cuGraphKernelNodeSetParams wants it: &args */
};

/* What the kernel is; false: none of the set. */
static bool find_kernel(const struct oh_kernel_set *set, CUfunction function, struct captured *kernel)
{
    for (int a = 0; a < ONEHOP_ALGORITHMS; a++) {
        for (int t = 0; t < OH_KERNEL_TYPES; t++) {
            kernel->is_list = set->any[a][t] == function;
            if (kernel->is_list || (t < OH_SUM_TYPES && set->sum[a][t] == function)) {
                kernel->algorithm = (enum onehop_algorithm)a;
                kernel->element_bytes = oh_kernel_type_size(t);
                return true;
            }
        }
    }
    return false;
}

/* *known_p: it is a kernel of the set, and the rest has been filled. */
static CUresult read_node(const struct oh_driver *driver, const struct oh_kernel_set *set, CUgraphNode node,
                          struct captured *kernel, bool *known_p)
{
    CUresult result = driver->graph_kernel_node_get_params(node, &kernel->params);
    *known_p = result == CUDA_SUCCESS && kernel->params.kernelParams && find_kernel(set, kernel->params.func, kernel);
    if (*known_p) {
        size_t bytes = kernel->is_list ? sizeof(struct oh_kernel_list_args) : sizeof(struct oh_kernel_args);
        memcpy(&kernel->args, kernel->params.kernelParams[0], bytes);
        kernel->parameter[0] = &kernel->args;
        kernel->params.kernelParams = kernel->parameter;
    }
    return result;
}

static uint32_t threads_of(const struct captured *kernel)
{
    return kernel->params.gridDimX * kernel->params.blockDimX;
}

/* --- calls of a kernel ------------------------------------------------------------------------------------------ */

static uint32_t calls_of(const struct captured *kernel)
{
    return kernel->is_list ? kernel->args.calls : 1;
}

static struct oh_list_item call_of(const struct captured *kernel, uint32_t i)
{
    const struct oh_kernel_args *base = &kernel->args.base;
    return kernel->is_list ? kernel->args.item[i]
                           : (struct oh_list_item){base->sendbuff, base->recvbuff, base->count, 0};
}

static uint64_t words_of(const struct captured *kernel)
{
    uint64_t bytes = kernel->args.base.count * kernel->element_bytes;
    return kernel->is_list ? kernel->args.words : (bytes + OH_WORD_BYTES - 1) / OH_WORD_BYTES;
}

/* --- running ahead ---------------------------------------------------------------------------------------------- */

/* Can the kernel read any of it? */
static bool may_read(const struct oh_driver *driver, const struct captured *kernel, const void *at, uint64_t bytes)
{
    const struct oh_kernel_args *base = &kernel->args.base;
    bool found = base->op == OH_OP_SCALED_SUM && base->scalar &&
                 !oh_alias_never(driver, at, bytes, base->scalar, kernel->element_bytes);
    for (uint32_t i = 0; i < calls_of(kernel) && !found; i++) {
        const struct oh_list_item call = call_of(kernel, i);
        found = !oh_alias_never(driver, at, bytes, call.sendbuff, call.count * kernel->element_bytes);
    }
    return found;
}

/* Two parts of one call: they have no element in common. */
static bool are_parts(const struct captured *first, const struct captured *next)
{
    return first->args.base.call == next->args.base.call;
}

static bool is_independent(const struct oh_driver *driver, const struct captured *first, const struct captured *next)
{
    bool independent = true;
    for (uint32_t i = 0; i < calls_of(first) && independent && !are_parts(first, next); i++) {
        const struct oh_list_item call = call_of(first, i);
        independent = !may_read(driver, next, call.recvbuff, call.count * first->element_bytes);
    }
    return independent;
}

/*
 * A message of a word or less is what programs use as a barrier (torch.distributed.barrier is a sum of one element):
 * when it is there, all that came before it on the other ranks has ended. That would not hold of the kernel that it
 * runs ahead of, nor of what runs ahead of it.
 */
static bool may_be_barrier(const struct captured *kernel)
{
    bool found = false;
    for (uint32_t i = 0; i < calls_of(kernel) && !found; i++) {
        found = call_of(kernel, i).count * kernel->element_bytes <= OH_WORD_BYTES;
    }
    return found;
}

static bool can_run_ahead(const struct captured *kernel)
{
    return !may_be_barrier(kernel) && kernel->args.base.split == 0 && /* one epoch is what the next counts with */
           oh_plan_can_run_ahead(kernel->algorithm, kernel->args.base.nranks, words_of(kernel));
}

CUresult oh_row_join(const struct oh_driver *driver, const struct oh_kernel_set *set, CUgraphNode first_node,
                     CUgraphNode next_node)
{
    struct captured first, next;
    bool first_known, next_known = false;
    CUresult result = read_node(driver, set, first_node, &first, &first_known);
    if (result == CUDA_SUCCESS) {
        result = read_node(driver, set, next_node, &next, &next_known);
    }
    if (!first_known || !next_known) {
        return result;
    }
    if (threads_of(&first) + threads_of(&next) > oh_plan_grid_threads(first.args.base.nranks)) {
        return result;
    }
    const bool ahead = can_run_ahead(&first) && can_run_ahead(&next) && is_independent(driver, &first, &next);
    first.args.base.early = 1;
    first.args.base.leads = ahead && !first.args.base.ahead;
    result = driver->graph_kernel_node_set_params(first_node, &first.params);
    if (result == CUDA_SUCCESS && ahead) {
        next.args.base.ahead = first.args.base.ahead + 1;
        result = driver->graph_kernel_node_set_params(next_node, &next.params);
    }
    return result;
}
