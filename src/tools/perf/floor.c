/* SPDX-License-Identifier: MIT */
/*
 * perf/floor.c - what the floor of an allreduce is made of (kernels/floor.cu)
 *
 * Does: Measures an empty kernel, a flag exchange and the bandwidth of all ranks writing to all others, in the modes
 *    that are measured, before the first row. The ranks open each other's memory as onehop opens staging.
 * Threads: a rank's.
 * Owns: the rank's memory for it, until the end of the process.
 */
#include "tools/perf/thread.h"
#include "tools/shared/tool.h"

#define WRITE_ITERS 10                 /* at most */
#define WRITE_BYTES ((size_t)64 << 20) /* that a rank writes, to all peers together */
#define WRITE_BYTES_SIMULATED ((size_t)1 << 20)

enum kind {
    EMPTY,
    EXCHANGE,
    WRITE,
    KINDS
};

static const struct {
    const char *name;
    unsigned int blocks;
    unsigned int threads;
} kernels[KINDS] = {
    [EMPTY] = {"oh_floor_empty", 1, 32},
    [EXCHANGE] = {"oh_floor_exchange", 1, 32},
    [WRITE] = {"oh_floor_write", OH_FLOOR_BLOCKS, OH_FLOOR_THREADS},
};

struct floor {
    struct oh_tool_kernel kernel[KINDS];
    CUdeviceptr memory;
    struct oh_kernel_args args; /* count: bytes that a rank writes to each peer */
};

static void issue(struct oh_perf_thread *thread, const struct oh_perf_workload *workload, int i)
{
    (void)i;
    const struct floor *floor = workload->floor;
    const int kind = workload->kind;
    oh_perf_check(thread, "launch",
                  oh_driver_launch(floor->kernel[kind].function, kernels[kind].blocks, kernels[kind].threads,
                                   thread->stream, floor->kernel[kind].programmatic, &floor->args));
}

/* Allocates this rank's memory and publishes it. */
static void offer_memory(struct oh_perf_thread *thread, struct floor *floor)
{
    struct oh_perf_floor_memory *window = &thread->shared->window[thread->rank];
    const int ranks = thread->options->ranks;
    const size_t all =
        oh_tool_is_simulated(thread->shared->rank[thread->rank].name) ? WRITE_BYTES_SIMULATED : WRITE_BYTES;
    floor->args = (struct oh_kernel_args){
        .count = all / (size_t)(ranks - 1) / 4096 * 4096, .rank = (uint32_t)thread->rank, .nranks = (uint32_t)ranks};
    OH_PERF_CU(thread, mem_alloc(&floor->memory, OH_FLOOR_DATA + (size_t)ranks * floor->args.count));
    OH_PERF_CU(thread, memset_d8_async(floor->memory, 0, OH_FLOOR_DATA, thread->stream));
    OH_PERF_CU(thread, stream_synchronize(thread->stream));
    if (!thread->options->threads) {
        OH_PERF_CU(thread, ipc_get_mem_handle(&window->handle, floor->memory));
    }
    window->base = floor->memory;
    window->context = thread->context;
}

static CUdeviceptr open_peer(struct oh_perf_thread *thread, const struct oh_perf_floor_memory *window)
{
    CUdeviceptr base = window->base;
    if (!thread->options->threads) {
        OH_PERF_CU(thread, ipc_open_mem_handle(&base, window->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    } else {
        CUresult result = oh_driver.ctx_enable_peer_access(window->context, 0);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
            OH_PERF_FAIL(thread, "--floor: peer access: %s", oh_driver_error_name(result));
        }
    }
    return base;
}

/*
 * The result of a kind in a mode: median over the rounds of the slowest rank. A block has as many calls as in the rows,
 * so that its share of a graph's launch is the same. An empty kernel and a flag exchange are measured in the pattern of
 * the rows, with the program's kernel for the smallest message; bandwidth needs none.
 */
static double measure(struct oh_perf_thread *thread, const struct floor *floor, enum oh_perf_mode mode, enum kind kind)
{
    const int iters = thread->options->iters;
    struct oh_perf_workload workload[OH_PERF_TIMES] = {{
        .issue = issue,
        .iterations = kind == WRITE && iters > WRITE_ITERS ? WRITE_ITERS : iters,
        .aggregate = 1,
        .program = kind != WRITE && thread->program,
        .bytes = thread->options->min_bytes,
        .floor = floor,
        .kind = kind,
    }};
    double median = 0, p99;
    oh_perf_time(thread, mode, workload);
    oh_perf_barrier(thread);
    if (thread->rank == 0) {
        oh_perf_summarise(thread, 0, &median, &p99);
    }
    return median;
}

void oh_perf_measure_floor(struct oh_perf_thread *thread)
{
    const int ranks = thread->options->ranks;
    struct floor floor;
    uint32_t gave_up;
    for (int kind = 0; kind < KINDS; kind++) {
        floor.kernel[kind] = oh_perf_kernel(thread, kernels[kind].name);
    }
    offer_memory(thread, &floor);
    oh_perf_barrier(thread);
    floor.args.staging[0] = (char *)(uintptr_t)floor.memory;
    for (int j = 1; j < ranks; j++) {
        const struct oh_perf_floor_memory *window = &thread->shared->window[(thread->rank + j) % ranks];
        floor.args.staging[j] = (char *)(uintptr_t)open_peer(thread, window);
    }
    oh_perf_barrier(thread);
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        double us[KINDS];
        for (int kind = 0; kind < KINDS && thread->options->mode[mode]; kind++) {
            us[kind] = measure(thread, &floor, mode, kind);
        }
        if (thread->options->mode[mode] && thread->rank == 0) {
            double written = (double)floor.args.count * (ranks - 1);
            thread->shared->floor[mode] = (struct oh_perf_floor){us[EMPTY], us[EXCHANGE], written / us[WRITE] / 1000};
        }
    }
    OH_PERF_CU(thread, memcpy_dtoh_async(&gave_up, floor.memory + OH_FLOOR_GAVE_UP, sizeof gave_up, thread->stream));
    OH_PERF_CU(thread, stream_synchronize(thread->stream));
    if (gave_up) {
        OH_PERF_FAIL(thread, "--floor: a flag of another rank did not arrive");
    }
}
