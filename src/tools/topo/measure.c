/* SPDX-License-Identifier: MIT */
/*
 * topo/measure.c - bandwidth and latency of every pair of GPUs, on this machine
 *
 * Does: copies from GPU to GPU by the driver, one ordered pair at a time, for the bandwidth. For the latency, two ranks
 *    in this process exchange flags (kernels/floor.cu), many times in a graph on each GPU. A call that fails, or a wait
 *    that is too long, ends the command, and the driver ends with the process whatever runs on the GPUs.
 * Threads: one.
 * Owns: what it allocates, which ends with the process soon after.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/shared/kernel.h"
#include "tools/shared/tool.h"
#include "tools/topo/node.h"
#include "util/clock.h"

#define STEP_LIMIT_NS UINT64_C(20000000000) /* of one measurement */

struct gpu {
    CUdevice device;
    CUcontext context;
    CUdeviceptr buffer;
    CUstream stream;
    CUevent begin, end;
    struct oh_tool_kernel exchange;
    CUgraphExec exec; /* of the exchange under way */
};

struct effort {
    size_t bytes;
    int copies, calls, rounds;
};
static const struct effort effort_real = {64u << 20, 16, 100, 7};
static const struct effort effort_simulated = {256u << 10, 2, 5, 2};

struct bench {
    struct oh_node *node;
    struct gpu *gpu;
    struct effort effort;
    int row, column; /* the pair under way, or one GPU twice */
};

/* Not by exit: a kernel may poll for a peer that will never be launched. */
static _Noreturn void fail(const struct bench *bench, const char *call, const char *reason)
{
    char other[32] = "";
    if (bench->row != bench->column) {
        snprintf(other, sizeof other, " and GPU%d", bench->column);
    }
    oh_tool_error("--measure: GPU%d%s: %.*s: %s", bench->row, other, (int)strcspn(call, "("), call, reason);
    _exit(OH_EXIT_USAGE);
}

static void check(const struct bench *bench, const char *call, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        fail(bench, call, oh_driver_error_name(result));
    }
}
#define CU(bench_, call_) check((bench_), #call_, oh_driver.call_)

static void wait_for(const struct bench *bench, CUevent event)
{
    const uint64_t limit = oh_now_ns() + STEP_LIMIT_NS;
    CUresult result;
    while ((result = oh_driver.event_query(event)) == CUDA_ERROR_NOT_READY) {
        if (oh_now_ns() > limit) {
            fail(bench, "event_query", "no answer in time");
        }
        usleep(50);
    }
    check(bench, "event_query", result);
}

static void prepare_gpu(struct bench *bench, int ordinal)
{
    struct gpu *gpu = &bench->gpu[ordinal];
    bench->row = bench->column = ordinal;
    CU(bench, device_get(&gpu->device, ordinal));
    CU(bench, primary_ctx_retain(&gpu->context, gpu->device));
    CU(bench, ctx_set_current(gpu->context));
    CU(bench, mem_alloc(&gpu->buffer, bench->effort.bytes));
    CU(bench, stream_create(&gpu->stream, CU_STREAM_NON_BLOCKING));
    CU(bench, event_create(&gpu->begin, CU_EVENT_DEFAULT));
    CU(bench, event_create(&gpu->end, CU_EVENT_DEFAULT));
    if (bench->node->gpu[ordinal].topo.compute_major >= 8) {
        check(bench, "load", oh_tool_kernel_load(gpu->device, "oh_floor_exchange", &gpu->exchange));
    }
}

static bool has_access(const struct bench *bench, int row, int column)
{
    return oh_node_pair_at(bench->node, row, column)->topo.cuda_access == OH_YES;
}

/* Without access, copies go through the host, which is then what is measured. */
static void enable_access(const struct bench *bench, int row, int column)
{
    CU(bench, ctx_set_current(bench->gpu[row].context));
    if (has_access(bench, row, column)) {
        CUresult result = oh_driver.ctx_enable_peer_access(bench->gpu[column].context, 0);
        check(bench, "enable_peer_access", result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? CUDA_SUCCESS : result);
    }
}

static int bounded(double value)
{
    return value < 1 ? 1 : value > INT_MAX ? INT_MAX : (int)value;
}

static void measure_bandwidth(const struct bench *bench, int row, int column)
{
    const struct gpu *from = &bench->gpu[row], *to = &bench->gpu[column];
    size_t bytes = bench->effort.bytes;
    float ms;
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
    if (ms > 0) {
        oh_node_pair_at(bench->node, row, column)->mb_per_s =
            bounded((double)bytes * bench->effort.copies / ms / 1000.0);
    }
}

/* --- latency */

/* Zeroes the words of a GPU, which lie in the buffer that was copied. */
static void clear_flags(const struct bench *bench, const struct gpu *gpu)
{
    CU(bench, ctx_set_current(gpu->context));
    CU(bench, memset_d8_async(gpu->buffer, 0, OH_FLOOR_DATA, gpu->stream));
    CU(bench, event_record(gpu->end, gpu->stream));
    wait_for(bench, gpu->end);
}

/* The exchanges of one GPU as a graph. */
static void record_exchanges(const struct bench *bench, struct gpu *const pair[2], uint32_t rank)
{
    struct gpu *gpu = pair[rank];
    CUgraph graph;
    const struct oh_kernel_args args = {
        .staging = {(char *)(uintptr_t)gpu->buffer, (char *)(uintptr_t)pair[1 - rank]->buffer},
        .rank = rank,
        .nranks = 2,
    };
    CU(bench, ctx_set_current(gpu->context));
    CU(bench, stream_begin_capture(gpu->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < bench->effort.calls; i++) {
        check(bench, "launch",
              oh_driver_launch(gpu->exchange.function, 1, 32, gpu->stream, gpu->exchange.programmatic, &args));
    }
    CU(bench, stream_end_capture(gpu->stream, &graph));
    CU(bench, graph_instantiate(&gpu->exec, graph, 0));
    CU(bench, graph_destroy(graph));
}

/* Both graphs once; the time on the first GPU. The second GPU starts a moment later, which many calls make up for. */
static float exchange(const struct bench *bench, struct gpu *const pair[2])
{
    float ms;
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

static void measure_latency(const struct bench *bench, int row, int column)
{
    struct gpu *const pair[2] = {&bench->gpu[row], &bench->gpu[column]};
    float best = 0;
    clear_flags(bench, pair[0]);
    clear_flags(bench, pair[1]);
    record_exchanges(bench, pair, 0);
    record_exchanges(bench, pair, 1);
    for (int round = -1; round < bench->effort.rounds; round++) { /* the first is not counted */
        float ms = exchange(bench, pair);
        best = round >= 0 && (best == 0 || ms < best) ? ms : best;
    }
    CU(bench, graph_exec_destroy(pair[0]->exec));
    CU(bench, graph_exec_destroy(pair[1]->exec));
    if (best > 0) {
        int ns = bounded((double)best * 1e6 / bench->effort.calls);
        oh_node_pair_at(bench->node, row, column)->latency_ns = ns;
        oh_node_pair_at(bench->node, column, row)->latency_ns = ns;
    }
}

static void measure_pair(struct bench *bench, int row, int column)
{
    const struct oh_node_gpu *gpu = bench->node->gpu;
    bench->row = row;
    bench->column = column;
    enable_access(bench, row, column);
    enable_access(bench, column, row);
    measure_bandwidth(bench, row, column);
    measure_bandwidth(bench, column, row);
    if (has_access(bench, row, column) && has_access(bench, column, row) && gpu[row].topo.compute_major >= 8 &&
        gpu[column].topo.compute_major >= 8) {
        measure_latency(bench, row, column);
    }
}

void oh_node_measure(struct oh_node *node)
{
    struct bench bench = {.node = node, .effort = oh_node_is_simulated(node) ? effort_simulated : effort_real};
    if (oh_driver_open() != ncclSuccess || !oh_driver.memcpy_peer_async) {
        OH_TOOL_FAIL("--measure: the driver cannot copy between GPUs");
    }
    bench.gpu = oh_tool_allocate((size_t)node->visible * sizeof *bench.gpu);
    for (int i = 0; i < node->visible; i++) {
        prepare_gpu(&bench, i);
    }
    for (int row = 0; row < node->visible; row++) {
        for (int column = row + 1; column < node->visible; column++) {
            measure_pair(&bench, row, column);
        }
    }
    free(bench.gpu);
}
