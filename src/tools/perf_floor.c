/* SPDX-License-Identifier: MIT */
/*
 * perf_floor.c - what the floor of an allreduce is made of, measured on this machine (kernels/floor.cu)
 *
 * An empty kernel, a flag exchange and the bandwidth of all ranks writing to all others, in the modes that are
 * measured, before the first row. Each rank has its own memory for it, opened by the others as onehop opens staging.
 */
#include <stdio.h>
#include <string.h>

#include "kernels/floor.h"
#include "tools/perf_crew.h"
#include "tools/tool.h"

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
    } seat[OH_MAX_RANKS];
};

/* What a job runs. */
struct launch {
    const struct floor *floor;
    enum kind kind;
};

static void issue(struct oh_crew *crew, const struct oh_job *job, int i)
{
    (void)i;
    const struct launch *launch = job->floor;
    CUlaunchAttribute attribute = {
        .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        .value.programmaticStreamSerializationAllowed = 1,
    };
    CUlaunchConfig config = oh_launch_config(kernels[launch->kind].blocks, kernels[launch->kind].threads, NULL);
    config.attrs = &attribute;
    config.numAttrs = launch->floor->programmatic ? 1 : 0;
    OH_CREW_EACH(crew, seat)
    {
        size_t index = (size_t)(seat - crew->seat);
        void *args = (void *)&launch->floor->seat[index].args;
        config.hStream = seat->stream;
        OH_CREW_CU(crew, launch_kernel_ex(&config, launch->floor->seat[index].function[launch->kind], &args, NULL));
    }
}

static void load_kernels(struct oh_crew *crew, struct floor *floor)
{
    int major, code;
    OH_CREW_CU(crew, device_get_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, crew->seat[0].device));
    floor->programmatic = major >= 9;
    OH_CREW_EACH(crew, seat)
    {
        for (int kind = 0; kind < KINDS; kind++) {
            CUfunction *function = &floor->seat[seat - crew->seat].function[kind];
            *function = oh_perf_kernel(crew, kernels[kind].name);
            OH_CREW_CU(crew, func_get_attribute(&code, CU_FUNC_ATTRIBUTE_PTX_VERSION, *function));
            floor->programmatic &= code >= PROGRAMMATIC_CODE;
        }
    }
}

/* Allocates each seat's memory and tells the others of it. */
static void offer_memory(struct oh_crew *crew, struct floor *floor)
{
    int ranks = crew->options->ranks;
    size_t all =
        oh_tool_is_simulated(crew->shared->rank[crew->seat[0].rank].name) ? WRITE_BYTES_SIMULATED : WRITE_BYTES;
    floor->bytes = all / (size_t)(ranks - 1) / 4096 * 4096;
    OH_CREW_EACH(crew, seat)
    {
        CUdeviceptr *memory = &floor->seat[seat - crew->seat].memory;
        struct oh_perf_window *window = &crew->shared->window[seat->rank];
        CUipcMemHandle handle;
        OH_CREW_CU(crew, mem_alloc(memory, OH_FLOOR_DATA + (size_t)ranks * floor->bytes));
        OH_CREW_CU(crew, memset_d8_async(*memory, 0, OH_FLOOR_DATA, seat->stream));
        OH_CREW_CU(crew, stream_synchronize(seat->stream));
        if (crew->options->layout == OH_PERF_PROCESSES) {
            OH_CREW_CU(crew, ipc_get_mem_handle(&handle, *memory));
            memcpy(window->handle, &handle, sizeof window->handle);
        }
        window->base = *memory;
        window->context = (uintptr_t)seat->context;
    }
}

static CUdeviceptr open_peer(struct oh_crew *crew, const struct oh_perf_window *window)
{
    CUdeviceptr base = window->base;
    if (crew->options->layout == OH_PERF_PROCESSES) {
        CUipcMemHandle handle;
        memcpy(&handle, window->handle, sizeof handle);
        OH_CREW_CU(crew, ipc_open_mem_handle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    } else {
        CUresult result = crew->driver->ctx_enable_peer_access((CUcontext)(uintptr_t)window->context, 0);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
            OH_CREW_FAIL(crew, "--floor: peer access: %s", oh_driver_error_name(crew->driver, result));
        }
    }
    return base;
}

static void open_peers(struct oh_crew *crew, struct floor *floor)
{
    int ranks = crew->options->ranks;
    OH_CREW_EACH(crew, seat)
    {
        size_t index = (size_t)(seat - crew->seat);
        struct oh_kernel_args *args = &floor->seat[index].args;
        *args = (struct oh_kernel_args){.count = floor->bytes, .rank = (uint32_t)seat->rank, .nranks = (uint32_t)ranks};
        args->staging[0] = (char *)(uintptr_t)floor->seat[index].memory;
        for (int j = 1; j < ranks; j++) {
            floor->seat[index].peer[j] = open_peer(crew, &crew->shared->window[(seat->rank + j) % ranks]);
            args->staging[j] = (char *)(uintptr_t)floor->seat[index].peer[j];
        }
    }
}

/* Closes the peers' memory and, when all have done so, frees this crew's. */
static void close_all(struct oh_crew *crew, struct floor *floor)
{
    OH_CREW_EACH(crew, seat)
    {
        for (int j = 1; j < crew->options->ranks && crew->options->layout == OH_PERF_PROCESSES; j++) {
            OH_CREW_CU(crew, ipc_close_mem_handle(floor->seat[seat - crew->seat].peer[j]));
        }
    }
    oh_crew_barrier(crew);
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_CU(crew, mem_free(floor->seat[seat - crew->seat].memory));
    }
}

/*
 * The result of a kind in a mode: median over the rounds of the slowest rank. As many calls in a block as in the rows,
 * whose share of what a graph's launch takes is then the same. An empty kernel and a flag exchange stand in the pattern
 * of the rows, with the program's kernel for the smallest message; bandwidth needs none.
 */
static double measure(struct oh_crew *crew, const struct floor *floor, enum oh_perf_mode mode, enum kind kind)
{
    const struct oh_perf_options *options = crew->options;
    const struct launch launch = {floor, kind};
    struct oh_job job = {
        .issue = issue, .iterations = options->iters, .aggregate = 1, .bytes = options->min_bytes, .floor = &launch};
    double median = 0, p99;
    if (kind == WRITE) {
        job.iterations = options->iters > WRITE_ITERS ? WRITE_ITERS : options->iters;
    } else {
        job.program = oh_perf_program_of(options->pattern);
    }
    struct oh_job bare = job;
    bare.bare = true;
    oh_job_capture(crew, mode, &job);
    if (bare.program != OH_PERF_NO_PROGRAM) {
        oh_job_capture(crew, mode, &bare);
    }
    for (int round = 0; round < options->rounds; round++) {
        double(*us)[OH_PERF_RANKS] = crew->shared->us[round];
        oh_job_time(crew, &job, us[OH_PERF_STOCK]);
        if (bare.program != OH_PERF_NO_PROGRAM) {
            oh_job_time(crew, &bare, us[OH_PERF_BARE]);
            oh_job_subtract(crew, us[OH_PERF_BARE], us[OH_PERF_STOCK]);
        }
    }
    oh_job_discard(crew, &job);
    oh_job_discard(crew, &bare);
    oh_crew_barrier(crew);
    if (oh_crew_leads(crew)) {
        oh_perf_summarise(crew->shared, options->ranks, options->rounds, OH_PERF_STOCK, &median, &p99);
    }
    return median;
}

static void expect_no_one_gave_up(struct oh_crew *crew, const struct floor *floor)
{
    OH_CREW_EACH(crew, seat)
    {
        uint32_t gave_up;
        CUdeviceptr memory = floor->seat[seat - crew->seat].memory;
        OH_CREW_CU(crew, memcpy_dtoh_async(&gave_up, memory + OH_FLOOR_GAVE_UP, sizeof gave_up, seat->stream));
        OH_CREW_CU(crew, stream_synchronize(seat->stream));
        if (gave_up) {
            OH_CREW_FAIL(crew, "--floor: a flag of another rank has not come");
        }
    }
}

void oh_perf_measure_floor(struct oh_crew *crew)
{
    struct floor floor = {.bytes = 0};
    load_kernels(crew, &floor);
    offer_memory(crew, &floor);
    oh_crew_barrier(crew);
    open_peers(crew, &floor);
    oh_crew_barrier(crew);
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        if (crew->options->mode[mode]) {
            double us[KINDS];
            for (int kind = 0; kind < KINDS; kind++) {
                us[kind] = measure(crew, &floor, mode, kind);
            }
            if (oh_crew_leads(crew)) {
                double written = (double)floor.bytes * (crew->options->ranks - 1);
                crew->shared->floor[mode] = (struct oh_perf_floor){us[EMPTY], us[EXCHANGE], written / us[WRITE] / 1000};
            }
        }
    }
    expect_no_one_gave_up(crew, &floor);
    close_all(crew, &floor);
}
