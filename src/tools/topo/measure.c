/* SPDX-License-Identifier: MIT */
/*
 * topo/measure.c - bandwidth and latency of every pair of GPUs, on this machine
 *
 * Bandwidth: copies from GPU to GPU by the driver, one ordered pair at a time. Latency: a pair of ranks in this process
 * exchanges 8 bytes with the kernel that the plugin would choose for them, many times in a graph on each GPU; the time
 * of one call. Every wait is bounded. What has been allocated goes with the process, which ends after this.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/core/staging.h"
#include "gpu/kernels.h"
#include "plan/plan.h"
#include "tools/shared/tool.h"
#include "tools/topo/node.h"
#include "util/clock.h"

#define STEP_LIMIT_NS UINT64_C(20000000000)   /* of one measurement */
#define WHOLE_LIMIT_NS UINT64_C(300000000000) /* of all of them */

struct gpu {
    CUdevice device;
    CUcontext context;
    CUdeviceptr buffer;
    CUstream stream;
    CUevent begin, end;
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
    CUresult result; /* the first failure; nothing is tried after it */
    const char *call;
    bool late; /* a wait was given up */
};

#define CU(bench_, call_)                                                                                              \
    do {                                                                                                               \
        if ((bench_)->result == CUDA_SUCCESS) {                                                                        \
            (bench_)->result = (bench_)->driver->call_;                                                                \
            (bench_)->call = #call_;                                                                                   \
        }                                                                                                              \
    } while (0)

static bool well(const struct bench *bench)
{
    return bench->result == CUDA_SUCCESS && !bench->late;
}

static void wait_for(struct bench *bench, CUevent event)
{
    uint64_t limit = oh_now_ns() + STEP_LIMIT_NS;
    while (well(bench)) {
        CUresult result = bench->driver->event_query(event);
        if (result == CUDA_SUCCESS) {
            return;
        }
        if (result != CUDA_ERROR_NOT_READY) {
            bench->result = result;
            bench->call = "event_query";
        } else if (oh_now_ns() > limit) {
            bench->late = true;
        } else {
            usleep(50);
        }
    }
}

static void prepare_gpu(struct bench *bench, struct gpu *gpu, int ordinal)
{
    CU(bench, device_get(&gpu->device, ordinal));
    CU(bench, primary_ctx_retain(&gpu->context, gpu->device));
    CU(bench, ctx_set_current(gpu->context));
    CU(bench, mem_alloc(&gpu->buffer, bench->effort.bytes));
    CU(bench, stream_create(&gpu->stream, CU_STREAM_NON_BLOCKING));
    CU(bench, event_create(&gpu->begin, CU_EVENT_DEFAULT));
    CU(bench, event_create(&gpu->end, CU_EVENT_DEFAULT));
}

/* Where the driver denies it, copies go through the host, which is then what is measured. */
static void enable_access(struct bench *bench, int row, int column)
{
    if (well(bench) && oh_node_pair_at(bench->node, row, column)->topo.cuda_access == OH_YES) {
        CU(bench, ctx_set_current(bench->gpu[row].context));
        CU(bench, ctx_enable_peer_access(bench->gpu[column].context, 0));
        if (bench->result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
            bench->result = CUDA_SUCCESS;
        }
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

/* One side of an exchange. */
struct side {
    const struct gpu *gpu;
    const struct oh_kernel_set *kernels;
    struct oh_staging staging;
    bool staged;
    CUgraphExec exec;
};

static void refuse(struct bench *bench, const char *what)
{
    if (bench->result == CUDA_SUCCESS) {
        bench->result = CUDA_ERROR_UNKNOWN;
        bench->call = what;
    }
}

static void prepare_side(struct bench *bench, struct side *side)
{
    CU(bench, ctx_set_current(side->gpu->context));
    if (!well(bench)) {
        return;
    }
    if (oh_kernel_set_get(bench->driver, side->gpu->device, 2, &side->kernels) != ncclSuccess) {
        refuse(bench, "the kernels cannot be loaded");
        return;
    }
    side->staged =
        oh_staging_bind(bench->driver, side->gpu->device, side->gpu->context, &side->staging) == ncclSuccess &&
        oh_staging_create(&side->staging) == ncclSuccess;
    if (!side->staged || oh_staging_finish(&side->staging, 1) != ncclSuccess) {
        refuse(bench, "the staging memory cannot be made");
    }
}

/* The calls of one rank as a graph. The buffers are the first bytes of those that were copied. */
static void record_calls(struct bench *bench, struct side *sides, uint32_t rank)
{
    struct side *side = &sides[rank];
    struct oh_plan_table table;
    struct oh_plan plan;
    struct oh_op op;
    CUgraph graph = NULL;
    struct oh_kernel_args args = {
        .staging = {(char *)(uintptr_t)side->staging.base, (char *)(uintptr_t)sides[1 - rank].staging.base},
        .sendbuff = (const void *)(uintptr_t)side->gpu->buffer,
        .recvbuff = (void *)(uintptr_t)side->gpu->buffer,
        .count = 2,
        .abort_flag = &((struct oh_control *)(uintptr_t)side->staging.control_device)->abort_flag,
        .rank = rank,
        .nranks = 2,
    };
    oh_plan_table_default(2, UINT64_MAX, -1, &table);
    if (!oh_plan_choose(&table, args.count, ncclFloat32, &plan) || !oh_op_builtin(ncclSum, ncclFloat32, &op)) {
        refuse(bench, "no kernel serves 8 bytes");
        return;
    }
    const struct oh_launch launch = {.driver = bench->driver,
                                     .set = side->kernels,
                                     .plan = &plan,
                                     .op = &op,
                                     .type = ncclFloat32,
                                     .stream = side->gpu->stream,
                                     .serial = !bench->driver->stream_get_capture_info_v3};
    CU(bench, ctx_set_current(side->gpu->context));
    CU(bench, memset_d8_async(side->gpu->buffer, 0, 8, side->gpu->stream));
    CU(bench, stream_begin_capture(side->gpu->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < bench->effort.calls && well(bench); i++) {
        bench->result = oh_kernel_launch(&launch, &args);
        bench->call = "launch";
    }
    CU(bench, stream_end_capture(side->gpu->stream, &graph));
    CU(bench, graph_instantiate(&side->exec, graph, 0));
    if (graph) {
        bench->driver->graph_destroy(graph);
    }
}

/* Both graphs once; the time on the first GPU. The other one starts a moment later, which many calls make up for. */
static float exchange(struct bench *bench, const struct side *sides)
{
    float ms = 0;
    for (int i = 0; i < 2; i++) {
        const struct gpu *gpu = sides[i].gpu;
        CU(bench, ctx_set_current(gpu->context));
        CU(bench, event_record(gpu->begin, gpu->stream));
        CU(bench, graph_launch(sides[i].exec, gpu->stream));
        CU(bench, event_record(gpu->end, gpu->stream));
    }
    wait_for(bench, sides[0].gpu->end);
    wait_for(bench, sides[1].gpu->end);
    CU(bench, ctx_set_current(sides[0].gpu->context));
    CU(bench, event_elapsed_time(&ms, sides[0].gpu->begin, sides[0].gpu->end));
    return ms;
}

/* After a failure a kernel may be waiting for its peer: it is told to leave, and the memory stays for the driver to
 * free. */
static void finish_side(struct bench *bench, struct side *side)
{
    if (!side->staged) {
        return;
    }
    if (!well(bench)) {
        __atomic_store_n(&side->staging.control->abort_flag, 1, __ATOMIC_RELAXED); /* kernels poll it */
        return;
    }
    CU(bench, ctx_set_current(side->gpu->context));
    CU(bench, graph_exec_destroy(side->exec));
    oh_staging_destroy(&side->staging);
}

static void measure_latency(struct bench *bench, int row, int column)
{
    struct side sides[2] = {{.gpu = &bench->gpu[row]}, {.gpu = &bench->gpu[column]}};
    float best = 0;
    prepare_side(bench, &sides[0]);
    prepare_side(bench, &sides[1]);
    record_calls(bench, sides, 0);
    record_calls(bench, sides, 1);
    for (int round = -1; round < bench->effort.rounds && well(bench); round++) { /* the first is not counted */
        float ms = exchange(bench, sides);
        best = round >= 0 && (best == 0 || ms < best) ? ms : best;
    }
    finish_side(bench, &sides[0]);
    finish_side(bench, &sides[1]);
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

static bool failed(const struct bench *bench, int row, int column)
{
    if (bench->late || oh_now_ns() > bench->deadline_ns) {
        oh_tool_error("topo: --measure: GPU%d and GPU%d did not answer in time", row, column);
    } else if (bench->result != CUDA_SUCCESS) {
        oh_tool_error("topo: --measure: GPU%d and GPU%d: %.*s: %s", row, column, (int)strcspn(bench->call, "("),
                      bench->call, oh_driver_error_name(bench->driver, bench->result));
    } else {
        return false;
    }
    return true;
}

static bool measure_pairs(struct bench *bench)
{
    int n = bench->node->visible;
    for (int i = 0; i < n * n; i++) {
        int row = i / n, column = i % n;
        if (row == column) {
            continue;
        }
        enable_access(bench, row, column);
        if (row > column) { /* the other direction was enabled before */
            measure_bandwidth(bench, column, row);
            measure_bandwidth(bench, row, column);
            if (well(bench) && can_exchange(bench, column, row)) {
                measure_latency(bench, column, row);
            }
        }
        if (failed(bench, row, column)) {
            return false;
        }
    }
    return true;
}

bool oh_node_measure(struct oh_node *node)
{
    struct bench bench = {.node = node,
                          .effort = oh_node_is_simulated(node) ? effort_simulated : effort_real,
                          .deadline_ns = oh_now_ns() + WHOLE_LIMIT_NS};
    if (oh_driver_get(&bench.driver) != ncclSuccess || !bench.driver->memcpy_peer_async) {
        oh_tool_error("topo: --measure: the driver cannot copy between GPUs");
        return false;
    }
    bench.gpu = calloc((size_t)node->visible, sizeof *bench.gpu);
    if (!bench.gpu) {
        oh_tool_error("topo: out of memory");
        return false;
    }
    for (int i = 0; i < node->visible; i++) {
        prepare_gpu(&bench, &bench.gpu[i], i);
        if (failed(&bench, i, i)) {
            free(bench.gpu);
            return false;
        }
    }
    bool good = measure_pairs(&bench);
    free(bench.gpu);
    return good;
}
