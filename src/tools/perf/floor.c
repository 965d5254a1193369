/* SPDX-License-Identifier: MIT */
/*
 * perf/floor.c - what the floor of an allreduce is made of, measured on this machine (kernels/floor.cu)
 *
 * An empty kernel, a flag exchange and the bandwidth of all ranks writing to all others, in the modes that are
 * measured, before the first row. Each rank has its own memory for it, opened by the others as onehop opens staging.
 */
#include <stdio.h>
#include <string.h>

#include "kernels/floor.h"
#include "tools/perf/thread.h"
#include "tools/shared/tool.h"

#define WRITE_ITERS 10                 /* at most */
#define WRITE_BYTES ((size_t)64 << 20) /* that a rank writes, to all peers together */
#define WRITE_BYTES_SIMULATED ((size_t)1 << 20)
#define PROGRAMMATIC_CODE 90 /* as in src/gpu/kernels.c */

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
    [WRITE] = {"oh_floor_write", OH_MAX_BLOCKS, OH_MAX_THREADS},
};

struct floor {
    size_t bytes; /* that a rank writes to each peer */
    bool programmatic;
    struct {
        CUfunction function[KINDS];
        CUdeviceptr memory;
        CUdeviceptr peer[OH_MAX_RANKS];
        struct oh_kernel_args args;
    } member[OH_MAX_RANKS];
};

/* What a workload runs. */
struct launch {
    const struct floor *floor;
    enum kind kind;
};

static void issue(struct oh_perf_thread *thread, const struct oh_perf_workload *workload, int i)
{
    (void)i;
    const struct launch *launch = workload->floor;
    CUlaunchAttribute attribute = {
        .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        .value.programmaticStreamSerializationAllowed = 1,
    };
    CUlaunchConfig config = oh_launch_config(kernels[launch->kind].blocks, kernels[launch->kind].threads, NULL);
    config.attrs = &attribute;
    config.numAttrs = launch->floor->programmatic ? 1 : 0;
    OH_PERF_EACH_RANK(thread, member)
    {
        size_t index = (size_t)(member - thread->member);
        void *args = (void *)&launch->floor->member[index].args;
        config.hStream = member->stream;
        OH_PERF_CU(thread, launch_kernel_ex(&config, launch->floor->member[index].function[launch->kind], &args, NULL));
    }
}

static void load_kernels(struct oh_perf_thread *thread, struct floor *floor)
{
    int major, code;
    OH_PERF_CU(thread,
               device_get_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, thread->member[0].device));
    floor->programmatic = major >= 9;
    OH_PERF_EACH_RANK(thread, member)
    {
        for (int kind = 0; kind < KINDS; kind++) {
            CUfunction *function = &floor->member[member - thread->member].function[kind];
            *function = oh_perf_kernel(thread, kernels[kind].name);
            OH_PERF_CU(thread, func_get_attribute(&code, CU_FUNC_ATTRIBUTE_PTX_VERSION, *function));
            floor->programmatic &= code >= PROGRAMMATIC_CODE;
        }
    }
}

/* Allocates each member's memory and tells the others of it. */
static void offer_memory(struct oh_perf_thread *thread, struct floor *floor)
{
    int ranks = thread->options->ranks;
    size_t all =
        oh_tool_is_simulated(thread->shared->rank[thread->member[0].rank].name) ? WRITE_BYTES_SIMULATED : WRITE_BYTES;
    floor->bytes = all / (size_t)(ranks - 1) / 4096 * 4096;
    OH_PERF_EACH_RANK(thread, member)
    {
        CUdeviceptr *memory = &floor->member[member - thread->member].memory;
        struct oh_perf_floor_memory *window = &thread->shared->window[member->rank];
        CUipcMemHandle handle;
        OH_PERF_CU(thread, mem_alloc(memory, OH_FLOOR_DATA + (size_t)ranks * floor->bytes));
        OH_PERF_CU(thread, memset_d8_async(*memory, 0, OH_FLOOR_DATA, member->stream));
        OH_PERF_CU(thread, stream_synchronize(member->stream));
        if (thread->options->layout == OH_PERF_PROCESSES) {
            OH_PERF_CU(thread, ipc_get_mem_handle(&handle, *memory));
            memcpy(window->handle, &handle, sizeof window->handle);
        }
        window->base = *memory;
        window->context = (uintptr_t)member->context;
    }
}

static CUdeviceptr open_peer(struct oh_perf_thread *thread, const struct oh_perf_floor_memory *window)
{
    CUdeviceptr base = window->base;
    if (thread->options->layout == OH_PERF_PROCESSES) {
        CUipcMemHandle handle;
        memcpy(&handle, window->handle, sizeof handle);
        OH_PERF_CU(thread, ipc_open_mem_handle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    } else {
        CUresult result = thread->driver->ctx_enable_peer_access((CUcontext)(uintptr_t)window->context, 0);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
            OH_PERF_FAIL(thread, "--floor: peer access: %s", oh_driver_error_name(thread->driver, result));
        }
    }
    return base;
}

static void open_peers(struct oh_perf_thread *thread, struct floor *floor)
{
    int ranks = thread->options->ranks;
    OH_PERF_EACH_RANK(thread, member)
    {
        size_t index = (size_t)(member - thread->member);
        struct oh_kernel_args *args = &floor->member[index].args;
        *args =
            (struct oh_kernel_args){.count = floor->bytes, .rank = (uint32_t)member->rank, .nranks = (uint32_t)ranks};
        args->staging[0] = (char *)(uintptr_t)floor->member[index].memory;
        for (int j = 1; j < ranks; j++) {
            floor->member[index].peer[j] = open_peer(thread, &thread->shared->window[(member->rank + j) % ranks]);
            args->staging[j] = (char *)(uintptr_t)floor->member[index].peer[j];
        }
    }
}

/* Closes the peers' memory and, when all have done so, frees this thread's. */
static void close_all(struct oh_perf_thread *thread, struct floor *floor)
{
    OH_PERF_EACH_RANK(thread, member)
    {
        for (int j = 1; j < thread->options->ranks && thread->options->layout == OH_PERF_PROCESSES; j++) {
            OH_PERF_CU(thread, ipc_close_mem_handle(floor->member[member - thread->member].peer[j]));
        }
    }
    oh_perf_thread_barrier(thread);
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_CU(thread, mem_free(floor->member[member - thread->member].memory));
    }
}

/*
 * The result of a kind in a mode: median over the rounds of the slowest rank. As many calls in a block as in the rows,
 * whose share of what a graph's launch takes is then the same. An empty kernel and a flag exchange stand in the pattern
 * of the rows, with the program's kernel for the smallest message; bandwidth needs none.
 */
static double measure(struct oh_perf_thread *thread, const struct floor *floor, enum oh_perf_mode mode, enum kind kind)
{
    const struct oh_perf_options *options = thread->options;
    const struct launch launch = {floor, kind};
    struct oh_perf_workload workload = {
        .issue = issue, .iterations = options->iters, .aggregate = 1, .bytes = options->min_bytes, .floor = &launch};
    double median = 0, p99;
    if (kind == WRITE) {
        workload.iterations = options->iters > WRITE_ITERS ? WRITE_ITERS : options->iters;
    } else {
        workload.program = oh_perf_program_of(options->pattern);
    }
    struct oh_perf_workload bare = workload;
    bare.bare = true;
    oh_perf_workload_capture(thread, mode, &workload);
    if (bare.program != OH_PERF_NO_PROGRAM) {
        oh_perf_workload_capture(thread, mode, &bare);
    }
    for (int round = 0; round < options->rounds; round++) {
        double(*us)[OH_PERF_RANKS] = thread->shared->us[round];
        oh_perf_workload_time(thread, &workload, us[OH_PERF_STOCK]);
        if (bare.program != OH_PERF_NO_PROGRAM) {
            oh_perf_workload_time(thread, &bare, us[OH_PERF_BARE]);
            oh_perf_workload_subtract(thread, us[OH_PERF_BARE], us[OH_PERF_STOCK]);
        }
    }
    oh_perf_workload_discard(thread, &workload);
    oh_perf_workload_discard(thread, &bare);
    oh_perf_thread_barrier(thread);
    if (oh_perf_thread_is_main(thread)) {
        oh_perf_summarise(thread->shared, options->ranks, options->rounds, OH_PERF_STOCK, &median, &p99);
    }
    return median;
}

static void expect_no_one_gave_up(struct oh_perf_thread *thread, const struct floor *floor)
{
    OH_PERF_EACH_RANK(thread, member)
    {
        uint32_t gave_up;
        CUdeviceptr memory = floor->member[member - thread->member].memory;
        OH_PERF_CU(thread, memcpy_dtoh_async(&gave_up, memory + OH_FLOOR_GAVE_UP, sizeof gave_up, member->stream));
        OH_PERF_CU(thread, stream_synchronize(member->stream));
        if (gave_up) {
            OH_PERF_FAIL(thread, "--floor: a flag of another rank has not come");
        }
    }
}

void oh_perf_measure_floor(struct oh_perf_thread *thread)
{
    struct floor floor = {.bytes = 0};
    load_kernels(thread, &floor);
    offer_memory(thread, &floor);
    oh_perf_thread_barrier(thread);
    open_peers(thread, &floor);
    oh_perf_thread_barrier(thread);
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        if (thread->options->mode[mode]) {
            double us[KINDS];
            for (int kind = 0; kind < KINDS; kind++) {
                us[kind] = measure(thread, &floor, mode, kind);
            }
            if (oh_perf_thread_is_main(thread)) {
                double written = (double)floor.bytes * (thread->options->ranks - 1);
                thread->shared->floor[mode] =
                    (struct oh_perf_floor){us[EMPTY], us[EXCHANGE], written / us[WRITE] / 1000};
            }
        }
    }
    expect_no_one_gave_up(thread, &floor);
    close_all(thread, &floor);
}
