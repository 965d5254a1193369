/* SPDX-License-Identifier: MIT */
/*
 * topo/measure.c - bandwidth and latency of every pair of GPUs, on this machine
 *
 * Does: copies from GPU to GPU by the driver, one ordered pair at a time, for the bandwidth. For the latency, two ranks
 *    in this process exchange flags (kernels/floor.cu), many times in a graph on each GPU. Every wait is bounded.
 * Threads: one.
 * Owns: what it allocates, which ends with the process soon after.
 */
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/shared/kernel.h"
#include "tools/shared/tool.h"
#include "tools/topo/node.h"
#include "util/clock.h"

#define STEP_LIMIT_NS UINT64_C(20000000000)   /* of one measurement */
#define WHOLE_LIMIT_NS UINT64_C(300000000000) /* of all of them */

struct gpu {
    CUdevice device;
    CUcontext context;
    CUdeviceptr buffer;
    CUstream stream, rescue;
    CUevent begin, end;
    struct oh_tool_kernel exchange;
    /* of the exchange under way */
    CUgraphExec exec;
};

struct effort {
    size_t bytes;
    int copies, calls, rounds;
};
static const struct effort effort_real = {64u << 20, 16, 100, 7};
static const struct effort effort_simulated = {256u << 10, 2, 5, 2};

struct bench {
    const struct oh_driver *driver;
    struct oh_node *node;
    struct gpu *gpu;
    struct effort effort;
    uint64_t deadline_ns;
    char problem[160]; /* the first failure; nothing is tried after it */
};

static bool well(const struct bench *bench)
{
    return !bench->problem[0];
}

static void fail(struct bench *bench, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail(struct bench *bench, const char *format, ...)
{
    va_list args;
    if (well(bench)) {
        va_start(args, format);
        vsnprintf(bench->problem, sizeof bench->problem, format, args);
        va_end(args);
    }
}

static void check(struct bench *bench, CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS) {
        fail(bench, "%.*s: %s", (int)strcspn(call, "("), call, oh_driver_error_name(bench->driver, result));
    }
}

#define CU(bench_, call_)                                                                                              \
    do {                                                                                                               \
        if (well(bench_)) {                                                                                            \
            check(bench_, (bench_)->driver->call_, #call_);                                                            \
        }                                                                                                              \
    } while (0)

static void wait_for(struct bench *bench, CUevent event)
{
    uint64_t limit = oh_now_ns() + STEP_LIMIT_NS;
    CUresult result = CUDA_ERROR_NOT_READY;
    limit = limit < bench->deadline_ns ? limit : bench->deadline_ns;
    while (well(bench) && (result = bench->driver->event_query(event)) == CUDA_ERROR_NOT_READY) {
        if (oh_now_ns() > limit) {
            fail(bench, "no answer in time");
        }
        usleep(50);
    }
    if (well(bench)) {
        check(bench, result, "event_query");
    }
}

static void prepare_gpu(struct bench *bench, struct gpu *gpu, int ordinal)
{
    CU(bench, device_get(&gpu->device, ordinal));
    CU(bench, primary_ctx_retain(&gpu->context, gpu->device));
    CU(bench, ctx_set_current(gpu->context));
    CU(bench, mem_alloc(&gpu->buffer, bench->effort.bytes));
    CU(bench, stream_create(&gpu->stream, CU_STREAM_NON_BLOCKING));
    CU(bench, stream_create(&gpu->rescue, CU_STREAM_NON_BLOCKING));
    CU(bench, event_create(&gpu->begin, CU_EVENT_DEFAULT));
    CU(bench, event_create(&gpu->end, CU_EVENT_DEFAULT));
    if (well(bench) && bench->node->gpu[ordinal].topo.compute_major >= 8) {
        check(bench, oh_tool_kernel_load(bench->driver, gpu->device, "oh_floor_exchange", &gpu->exchange), "load");
    }
}

/* Without access, copies go through the host, which is then what is measured. */
static void enable_access(struct bench *bench, int row, int column)
{
    CU(bench, ctx_set_current(bench->gpu[row].context));
    if (well(bench) && oh_node_pair_at(bench->node, row, column)->topo.cuda_access == OH_YES) {
        CUresult result = bench->driver->ctx_enable_peer_access(bench->gpu[column].context, 0);
        check(bench, result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? CUDA_SUCCESS : result, "enable_peer_access");
    }
}

static int bounded(double value)
{
    return value < 1 ? 1 : value > INT_MAX ? INT_MAX : (int)value;
}

static void measure_bandwidth(struct bench *bench, int row, int column)
{
    const struct gpu *from = &bench->gpu[row], *to = &bench->gpu[column];
    size_t bytes = bench->effort.bytes;
    float ms = 0;
    CU(bench, ctx_set_current(from->context));
    for (int i = -1; i < bench->effort.copies; i++) { /* the first is not counted */
        if (i == 0) {
            CU(bench, event_record(from->begin, from->stream));
        }
        CU(bench, memcpy_peer_async(to->buffer, to->context, from->buffer, from->context, bytes, from->stream));
    }
    CU(bench, event_record(from->end, from->stream));
    wait_for(bench, from->end);
    CU(bench, event_elapsed_time(&ms, from->begin, from->end));
    if (well(bench) && ms > 0) {
        oh_node_pair_at(bench->node, row, column)->mb_per_s =
            bounded((double)bytes * bench->effort.copies / ms / 1000.0);
    }
}

/* --- latency */

/* Zeroes the words of both GPUs, which lie in the buffers that were copied. */
static void clear_flags(struct bench *bench, struct gpu *const pair[2])
{
    for (int i = 0; i < 2; i++) {
        CU(bench, ctx_set_current(pair[i]->context));
        CU(bench, memset_d8_async(pair[i]->buffer, 0, OH_FLOOR_DATA, pair[i]->stream));
        CU(bench, event_record(pair[i]->end, pair[i]->stream));
        wait_for(bench, pair[i]->end);
    }
}

/* The exchanges of one GPU as a graph. */
static void record_exchanges(struct bench *bench, struct gpu *const pair[2], uint32_t rank)
{
    struct gpu *gpu = pair[rank];
    CUgraph graph = NULL;
    const struct oh_kernel_args args = {
        .staging = {(char *)(uintptr_t)gpu->buffer, (char *)(uintptr_t)pair[1 - rank]->buffer},
        .rank = rank,
        .nranks = 2,
    };
    CU(bench, ctx_set_current(gpu->context));
    CU(bench, stream_begin_capture(gpu->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < bench->effort.calls && well(bench); i++) {
        check(bench, oh_tool_kernel_launch(bench->driver, &gpu->exchange, 1, 32, gpu->stream, &args), "launch");
    }
    CU(bench, stream_end_capture(gpu->stream, &graph));
    CU(bench, graph_instantiate(&gpu->exec, graph, 0));
    if (graph) {
        bench->driver->graph_destroy(graph);
    }
}

/* Both graphs once; the time on the first GPU. The second GPU starts a moment later, which many calls make up for. */
static float exchange(struct bench *bench, struct gpu *const pair[2])
{
    float ms = 0;
    for (int i = 0; i < 2; i++) {
        CU(bench, ctx_set_current(pair[i]->context));
        CU(bench, event_record(pair[i]->begin, pair[i]->stream));
        CU(bench, graph_launch(pair[i]->exec, pair[i]->stream));
        CU(bench, event_record(pair[i]->end, pair[i]->stream));
    }
    wait_for(bench, pair[0]->end);
    wait_for(bench, pair[1]->end);
    CU(bench, ctx_set_current(pair[0]->context));
    CU(bench, event_elapsed_time(&ms, pair[0]->begin, pair[0]->end));
    return ms;
}

/* After a failure a kernel may poll for its peer. Flags of a far epoch end it; the driver frees the rest at the end. */
static void finish_side(struct bench *bench, struct gpu *gpu)
{
    CU(bench, ctx_set_current(gpu->context));
    CU(bench, graph_exec_destroy(gpu->exec));
    if (!well(bench) && bench->driver->ctx_set_current(gpu->context) == CUDA_SUCCESS) {
        bench->driver->memset_d8_async(gpu->buffer + OH_FLOOR_FLAGS, 0x3f, OH_FLOOR_DATA - OH_FLOOR_FLAGS, gpu->rescue);
    }
}

static void measure_latency(struct bench *bench, int row, int column)
{
    struct gpu *const pair[2] = {&bench->gpu[row], &bench->gpu[column]};
    float best = 0;
    clear_flags(bench, pair);
    record_exchanges(bench, pair, 0);
    record_exchanges(bench, pair, 1);
    for (int round = -1; round < bench->effort.rounds && well(bench); round++) { /* the first is not counted */
        float ms = exchange(bench, pair);
        best = round >= 0 && (best == 0 || ms < best) ? ms : best;
    }
    finish_side(bench, pair[0]);
    finish_side(bench, pair[1]);
    if (well(bench) && best > 0) {
        int ns = bounded((double)best * 1e6 / bench->effort.calls);
        oh_node_pair_at(bench->node, row, column)->latency_ns = ns;
        oh_node_pair_at(bench->node, column, row)->latency_ns = ns;
    }
}

static bool can_exchange(const struct bench *bench, int row, int column)
{
    return oh_node_pair_at(bench->node, row, column)->topo.cuda_access == OH_YES &&
           oh_node_pair_at(bench->node, column, row)->topo.cuda_access == OH_YES &&
           bench->node->gpu[row].topo.compute_major >= 8 && bench->node->gpu[column].topo.compute_major >= 8;
}

/* --- all pairs */

static void measure_pair(struct bench *bench, int row, int column)
{
    enable_access(bench, row, column);
    enable_access(bench, column, row);
    measure_bandwidth(bench, row, column);
    measure_bandwidth(bench, column, row);
    if (well(bench) && can_exchange(bench, row, column)) {
        measure_latency(bench, row, column);
    }
}

bool oh_node_measure(struct oh_node *node)
{
    struct bench bench = {.node = node,
                          .effort = oh_node_is_simulated(node) ? effort_simulated : effort_real,
                          .deadline_ns = oh_now_ns() + WHOLE_LIMIT_NS};
    int row = 0, column = 0;
    if (oh_driver_get(&bench.driver) != ncclSuccess || !bench.driver->memcpy_peer_async) {
        oh_tool_error("topo: --measure: the driver cannot copy between GPUs");
        return false;
    }
    bench.gpu = oh_tool_allocate((size_t)node->visible * sizeof *bench.gpu);
    for (int i = 0; i < node->visible && well(&bench); i++) {
        row = column = i;
        prepare_gpu(&bench, &bench.gpu[i], i);
    }
    for (int i = 0; i < node->visible * node->visible && well(&bench); i++) {
        row = i / node->visible;
        column = i % node->visible;
        if (row < column) {
            measure_pair(&bench, row, column);
        }
    }
    free(bench.gpu);
    if (!well(&bench) && row == column) {
        oh_tool_error("topo: --measure: GPU%d: %s", row, bench.problem);
    } else if (!well(&bench)) {
        oh_tool_error("topo: --measure: GPU%d and GPU%d: %s", row, column, bench.problem);
    }
    return well(&bench);
}
