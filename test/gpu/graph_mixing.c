/* SPDX-License-Identifier: MIT */
/*
 * graph_mixing.c - graphs and eager calls of one communicator on streams that nothing orders
 *
 *   graph_mixing [--ranks N] [--threads] [--rounds N] [--delay US] [--seed N] [--timeout S] [--structure]
 *                [SCENARIO...]
 *
 * NCCL puts all launches of a communicator, replays of graphs among them, into the order in which the host makes them.
 * This program relies on that: it launches in an order that is random but the same on all ranks, with random pauses
 * that differ from rank to rank, and compares every result. It knows nothing of onehop, but for --structure, opens
 * libcuda.so.1 and libnccl.so.2 itself, and so runs on GPUs and on the simulated node, with a preloaded library or
 * without.
 *
 * A rank is a process, or with --threads a thread. Every result is exact: sums of small whole numbers in fp32.
 * --structure checks what onehop has served: one wait and one record node in a graph, programmatic edges between all
 * its kernels, and which of them let the next in early. Exit status 0 when all was right, 77 without two GPUs.
 */
#include <cuda.h>
#include <nccl.h>

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/abi.h"
#include "test/gpu/check.h"

#define MAX_RANKS 8
#define COUNT 3001
#define CALLS 3    /* in a graph, one after the other */
#define RING 16    /* rounds of a lane between looks at the results */
#define PATTERN 61 /* values of the input */
#define LANES 3

/* X(field, symbol, parameters): under the names that drivers have had since CUDA 12.3. */
#define DRIVER(X)                                                                                                      \
    X(init, cuInit, (unsigned))                                                                                        \
    X(device_count, cuDeviceGetCount, (int *))                                                                         \
    X(retain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                       \
    X(set_context, cuCtxSetCurrent, (CUcontext))                                                                       \
    X(alloc, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                   \
    X(free, cuMemFree_v2, (CUdeviceptr))                                                                               \
    X(host_alloc, cuMemHostAlloc, (void **, size_t, unsigned))                                                         \
    X(host_free, cuMemFreeHost, (void *))                                                                              \
    X(upload, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                                     \
    X(download, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                         \
    X(stream_create, cuStreamCreate, (CUstream *, unsigned))                                                           \
    X(stream_destroy, cuStreamDestroy_v2, (CUstream))                                                                  \
    X(synchronize, cuStreamSynchronize, (CUstream))                                                                    \
    X(begin_capture, cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))                                         \
    X(exchange_mode, cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *))                                       \
    X(end_capture, cuStreamEndCapture, (CUstream, CUgraph *))                                                          \
    X(event_create, cuEventCreate, (CUevent *, unsigned))                                                              \
    X(event_destroy, cuEventDestroy_v2, (CUevent))                                                                     \
    X(event_record, cuEventRecord, (CUevent, CUstream))                                                                \
    X(wait_event, cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                                    \
    X(memset, cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                                         \
    X(graph_create, cuGraphCreate, (CUgraph *, unsigned))                                                              \
    X(graph_clone, cuGraphClone, (CUgraph *, CUgraph))                                                                 \
    X(graph_add_child, cuGraphAddChildGraphNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph))       \
    X(graph_nodes, cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))                                                \
    X(graph_edges, cuGraphGetEdges_v2, (CUgraph, CUgraphNode *, CUgraphNode *, CUgraphEdgeData *, size_t *))           \
    X(node_type, cuGraphNodeGetType, (CUgraphNode, CUgraphNodeType *))                                                 \
    X(kernel_params, cuGraphKernelNodeGetParams_v2, (CUgraphNode, CUDA_KERNEL_NODE_PARAMS *))                          \
    X(instantiate, cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                          \
    X(update, cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *))                             \
    X(graph_launch, cuGraphLaunch, (CUgraphExec, CUstream))                                                            \
    X(graph_destroy, cuGraphDestroy, (CUgraph))                                                                        \
    X(exec_destroy, cuGraphExecDestroy, (CUgraphExec))

#define LIBRARY(X)                                                                                                     \
    X(unique_id, ncclGetUniqueId, (ncclUniqueId *))                                                                    \
    X(init_rank, ncclCommInitRank, (ncclComm_t *, int, ncclUniqueId, int))                                             \
    X(destroy, ncclCommDestroy, (ncclComm_t))                                                                          \
    X(all_reduce, ncclAllReduce,                                                                                       \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))                           \
    X(group_start, ncclGroupStart, (void))                                                                             \
    X(group_end, ncclGroupEnd, (void))

#define DRIVER_FIELD(field_, symbol_, parameters_) CUresult(*field_) parameters_;
#define LIBRARY_FIELD(field_, symbol_, parameters_) ncclResult_t(*field_) parameters_;
static struct {
    DRIVER(DRIVER_FIELD)
} cu;
static struct {
    LIBRARY(LIBRARY_FIELD)
} nccl;

static struct {
    int ranks;
    bool threads;
    int rounds;
    unsigned delay_us;
    uint32_t seed;
    bool structure;
    unsigned timeout;            /* seconds until everything ends by a signal */
    const char *const *scenario; /* to run; NULL: all */
    int scenarios;
} options = {.ranks = 0, .rounds = 1000, .delay_us = 200, .seed = 1, .timeout = 300};

/* What the ranks share. */
struct board {
    atomic_int ids; /* published so far */
    atomic_int met; /* times that a rank has come to meet() */
    ncclUniqueId id[64];
};

/* One way in which calls are made: a stream with buffers of its own. */
struct lane {
    CUstream stream;
    CUdeviceptr in, out[CALLS]; /* each call reduces what the one before has left */
    float *upload, *download;   /* RING rounds each, pinned */
    uint32_t input[RING];       /* which input a round has had */
    int filled;
    CUgraphExec exec; /* NULL: eager */
};

struct rank {
    int rank;
    struct board *board;
    int ids; /* used so far */
    CUcontext context;
    ncclComm_t comm;
    struct lane lane[LANES];
    uint32_t common; /* random numbers: the same on all ranks, and this rank's own */
    uint32_t own;
};

#define CHECK_WHO ""
#define CU(call_)                                                                                                      \
    do {                                                                                                               \
        CUresult cu_ = cu.call_;                                                                                       \
        CHECK(cu_ == CUDA_SUCCESS, "%s gave CUDA error %d", #call_, (int)cu_);                                         \
    } while (0)
#define NCCL(call_)                                                                                                    \
    do {                                                                                                               \
        ncclResult_t nccl_ = nccl.call_;                                                                               \
        CHECK(nccl_ == ncclSuccess, "%s gave NCCL result %d", #call_, (int)nccl_);                                     \
    } while (0)

static void *look_up(void *library, const char *symbol)
{
    void *address = dlsym(library, symbol);
    CHECK(address, "no %s", symbol);
    return address;
}

/* NCCL's functions from the global scope: a preloaded library comes first there, as for a program linked with NCCL. */
static void open_libraries(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *address;
    CHECK(driver, "%s", dlerror());
    CHECK(dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL), "%s", dlerror());
#define DRIVER_LOOK_UP(field_, symbol_, parameters_)                                                                   \
    address = look_up(driver, #symbol_);                                                                               \
    memcpy(&cu.field_, &address, sizeof address);
#define LIBRARY_LOOK_UP(field_, symbol_, parameters_)                                                                  \
    address = look_up(RTLD_DEFAULT, #symbol_);                                                                         \
    memcpy(&nccl.field_, &address, sizeof address);
    DRIVER(DRIVER_LOOK_UP)
    LIBRARY(LIBRARY_LOOK_UP)
}

static uint32_t draw(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(*state >> 4) * below >> 28);
}

/* --- a lane ----------------------------------------------------------------------------------------------------- */

static float input_value(uint32_t input, size_t i)
{
    return (float)((input + i) % PATTERN);
}

static void lane_open(struct lane *lane, CUstream stream)
{
    size_t bytes = COUNT * sizeof(float);
    lane->stream = stream;
    CU(alloc(&lane->in, bytes));
    for (int c = 0; c < CALLS; c++) {
        CU(alloc(&lane->out[c], bytes));
    }
    CU(host_alloc((void **)&lane->upload, RING * bytes, 0));
    CU(host_alloc((void **)&lane->download, RING * bytes, 0));
}

static void lane_close(struct lane *lane)
{
    CU(free(lane->in));
    for (int c = 0; c < CALLS; c++) {
        CU(free(lane->out[c]));
    }
    CU(host_free(lane->upload));
    CU(host_free(lane->download));
    if (lane->stream != CU_STREAM_PER_THREAD) {
        CU(stream_destroy(lane->stream));
    }
}

/* One call of the chain, on any stream. */
static void call(const struct rank *rank, const struct lane *lane, int c, CUstream stream)
{
    CUdeviceptr from = c == 0 ? lane->in : lane->out[c - 1];
    NCCL(all_reduce((const void *)from, (void *)lane->out[c], COUNT, ncclFloat, ncclSum, rank->comm,
                    (cudaStream_t)stream));
}

static void call_chain(const struct rank *rank, const struct lane *lane)
{
    for (int c = 0; c < CALLS; c++) {
        call(rank, lane, c, lane->stream);
    }
}

/* Waits for the lane and compares what has come back. */
static void lane_flush(const struct rank *rank, struct lane *lane, const char *name)
{
    float scale = (float)(options.ranks * (options.ranks + 1) / 2);
    for (int c = 1; c < CALLS; c++) {
        scale *= (float)options.ranks;
    }
    CU(synchronize(lane->stream));
    for (int r = 0; r < lane->filled; r++) {
        for (size_t i = 0; i < COUNT; i++) {
            float got = lane->download[(size_t)r * COUNT + i], expected = scale * input_value(lane->input[r], i);
            CHECK(got == expected, "rank %d lane %s round %d element %zu is %g, expected %g", rank->rank, name, r, i,
                  (double)got, (double)expected);
        }
    }
    lane->filled = 0;
}

static const char *const lane_names[LANES] = {"first graph", "second graph", "eager"};

static void flush_all(struct rank *rank)
{
    for (int l = 0; l < LANES; l++) {
        lane_flush(rank, &rank->lane[l], lane_names[l]);
    }
}

/* A round of a lane: new input, the calls, the result on its way back. Nothing waits. */
static void lane_round(struct rank *rank, struct lane *lane)
{
    size_t at = (size_t)lane->filled * COUNT, bytes = COUNT * sizeof(float);
    uint32_t input = draw(&rank->common, PATTERN);
    if (options.delay_us > 0) {
        usleep(draw(&rank->own, options.delay_us));
    }
    for (size_t i = 0; i < COUNT; i++) {
        lane->upload[at + i] = (float)(rank->rank + 1) * input_value(input, i);
    }
    lane->input[lane->filled++] = input;
    CU(upload(lane->in, &lane->upload[at], bytes, lane->stream));
    if (lane->exec) {
        CU(graph_launch(lane->exec, lane->stream));
    } else {
        call_chain(rank, lane);
    }
    CU(download(&lane->download[at], lane->out[CALLS - 1], bytes, lane->stream));
}

/* Rounds on lanes in a random order, the same on all ranks. */
static void mix(struct rank *rank, int rounds)
{
    for (int r = 0; r < rounds; r++) {
        struct lane *lane = &rank->lane[draw(&rank->common, LANES)];
        lane_round(rank, lane);
        if (lane->filled == RING) {
            flush_all(rank);
        }
    }
    flush_all(rank);
}

/* --- graphs ----------------------------------------------------------------------------------------------------- */

static CUgraphNodeType type_of(CUgraphNode node)
{
    CUgraphNodeType type;
    CU(node_type(node, &type));
    return type;
}

/* Both of onehop, of one communicator, small enough to be on the GPU together, and one comes after the other alone. */
static bool may_be_let_in(CUgraphNode before, CUgraphNode kernel, const CUgraphNode *to, size_t edges)
{
    CUDA_KERNEL_NODE_PARAMS first, second;
    size_t into = 0;
    if (type_of(kernel) != CU_GRAPH_NODE_TYPE_KERNEL) {
        return false;
    }
    CU(kernel_params(before, &first));
    CU(kernel_params(kernel, &second));
    const struct oh_kernel_args *one = first.kernelParams[0], *other = second.kernelParams[0];
    for (size_t i = 0; i < edges; i++) {
        into += to[i] == kernel;
    }
    return into == 1 && one->staging[0] == other->staging[0] &&
           first.gridDimX * first.blockDimX + second.gridDimX * second.blockDimX <= (options.ranks > 4 ? 16384 : 32768);
}

/* A kernel of onehop lets the next in early where that is known to be right, and nowhere else. */
static void check_early(CUgraph graph, int expected)
{
    CUgraphNode nodes[64], from[256], to[256];
    CUgraphEdgeData data[256];
    size_t count = 64, edges = 256;
    int early = 0;
    CU(graph_nodes(graph, nodes, &count));
    CU(graph_edges(graph, from, to, data, &edges));
    for (size_t n = 0; n < count; n++) {
        CUDA_KERNEL_NODE_PARAMS params;
        bool right = false;
        if (type_of(nodes[n]) != CU_GRAPH_NODE_TYPE_KERNEL) {
            continue;
        }
        for (size_t i = 0; i < edges; i++) {
            right |= from[i] == nodes[n] && may_be_let_in(nodes[n], to[i], to, edges);
        }
        CU(kernel_params(nodes[n], &params));
        const struct oh_kernel_args *args = params.kernelParams[0];
        CHECK(args->early == (right ? 1 : 0), "kernel %zu: early is %u", n, args->early);
        CHECK(right || !args->leads, "kernel %zu leads, and lets none in early", n);
        early += right;
    }
    CHECK(early == expected, "%d kernels let the next in early, not %d", early, expected);
}

/* One wait, one record as a leaf behind the last kernel, and kernels that follow one another programmatically. */
static void check_structure(CUgraph graph, int kernels_expected)
{
    CUgraphNode recorded = NULL;
    CUgraphNode nodes[64], from[256], to[256];
    CUgraphEdgeData data[256];
    size_t count = 64, edges = 256, of_type[32] = {0}, programmatic = 0, into_record = 0, out_of_record = 0;
    CU(graph_nodes(graph, nodes, &count));
    for (size_t i = 0; i < count; i++) {
        of_type[type_of(nodes[i])]++;
    }
    CU(graph_edges(graph, from, to, data, &edges));
    check_early(graph, kernels_expected - 1);
    for (size_t i = 0; i < edges; i++) {
        programmatic += data[i].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
        out_of_record += type_of(from[i]) == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
        if (type_of(to[i]) == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
            into_record++;
            recorded = from[i];
        }
    }
    for (size_t i = 0; i < edges; i++) {
        CHECK(from[i] != recorded || type_of(to[i]) == CU_GRAPH_NODE_TYPE_EVENT_RECORD,
              "the record node is not behind the last kernel");
    }
    CHECK(of_type[CU_GRAPH_NODE_TYPE_KERNEL] == (size_t)kernels_expected, "%zu kernels",
          of_type[CU_GRAPH_NODE_TYPE_KERNEL]);
    CHECK(of_type[CU_GRAPH_NODE_TYPE_WAIT_EVENT] == 1 && of_type[CU_GRAPH_NODE_TYPE_EVENT_RECORD] == 1,
          "%zu wait and %zu record nodes", of_type[CU_GRAPH_NODE_TYPE_WAIT_EVENT],
          of_type[CU_GRAPH_NODE_TYPE_EVENT_RECORD]);
    CHECK(programmatic == (size_t)kernels_expected - 1, "%zu programmatic edges", programmatic);
    CHECK(into_record == 1 && out_of_record == 0, "%zu edges into the record node, %zu out of it", into_record,
          out_of_record);
}

/* Of a capture of the lane's chain and nothing else. */
static CUgraph end_capture(const struct lane *lane)
{
    CUgraph graph;
    CU(end_capture(lane->stream, &graph));
    if (options.structure) {
        check_structure(graph, CALLS);
    }
    return graph;
}

static CUgraph capture(const struct rank *rank, const struct lane *lane, CUstreamCaptureMode mode)
{
    CU(begin_capture(lane->stream, mode));
    call_chain(rank, lane);
    return end_capture(lane);
}

/* Another lane may be in a global capture, during which instantiating is allowed in this mode only. */
static void instantiate(struct lane *lane, CUgraph graph)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CU(exchange_mode(&mode));
    CU(instantiate(&lane->exec, graph, 0));
    CU(exchange_mode(&mode));
    CU(graph_destroy(graph));
}

/* In a process of several ranks other threads make calls that a global capture would forbid. */
static CUstreamCaptureMode usual_mode(void)
{
    return options.threads ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : CU_STREAM_CAPTURE_MODE_GLOBAL;
}

static void capture_both(struct rank *rank)
{
    for (int l = 0; l < 2; l++) {
        instantiate(&rank->lane[l], capture(rank, &rank->lane[l], usual_mode()));
    }
}

static void destroy_both(struct rank *rank)
{
    for (int l = 0; l < 2; l++) {
        CU(exec_destroy(rank->lane[l].exec));
        rank->lane[l].exec = NULL;
    }
}

/* --- scenarios: each begins and ends with a communicator and without graphs --------------------------------------- */

static void modes(struct rank *rank)
{
    static const CUstreamCaptureMode all[] = {CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                              CU_STREAM_CAPTURE_MODE_GLOBAL};
    for (int m = 0; m < (options.threads ? 2 : 3); m++) {
        for (int l = 0; l < 2; l++) {
            instantiate(&rank->lane[l], capture(rank, &rank->lane[l], all[m]));
        }
        mix(rank, options.rounds);
        destroy_both(rank);
        mix(rank, 2 * RING); /* eager again, on all lanes */
    }
}

/* Two captures at the same time, call by call. */
static void turns(struct rank *rank)
{
    CU(begin_capture(rank->lane[0].stream, usual_mode()));
    CU(begin_capture(rank->lane[1].stream, usual_mode()));
    for (int c = 0; c < CALLS; c++) {
        call(rank, &rank->lane[0], c, rank->lane[0].stream);
        call(rank, &rank->lane[1], c, rank->lane[1].stream);
    }
    instantiate(&rank->lane[0], end_capture(&rank->lane[0]));
    instantiate(&rank->lane[1], end_capture(&rank->lane[1]));
    mix(rank, options.rounds);
    destroy_both(rank);
}

/* A graph captured again takes the place of the one in use, while that may still run. */
static void update(struct rank *rank)
{
    capture_both(rank);
    for (int i = 0; i < 4; i++) {
        CUgraphExecUpdateResultInfo info;
        struct lane *lane = &rank->lane[i % 2];
        mix(rank, options.rounds / 4);
        lane_round(rank, lane);
        CUgraph graph = capture(rank, lane, usual_mode());
        CUresult result = cu.update(lane->exec, graph, &info);
        CHECK(result == CUDA_SUCCESS, "update: CUDA error %d, result %d", (int)result, (int)info.result);
        CU(graph_destroy(graph));
    }
    mix(rank, options.rounds / 4);
    destroy_both(rank);
}

/* The lane's chain as the child of a graph, behind a clone of itself. */
static void children(struct rank *rank)
{
    for (int l = 0; l < 2; l++) {
        CUgraph parent, graph = capture(rank, &rank->lane[l], usual_mode()), clone;
        CUgraphNode first, second;
        CU(graph_clone(&clone, graph));
        CU(graph_create(&parent, 0));
        CU(graph_add_child(&first, parent, NULL, 0, clone));
        CU(graph_add_child(&second, parent, &first, 1, graph));
        CU(graph_destroy(graph));
        CU(graph_destroy(clone));
        instantiate(&rank->lane[l], parent);
    }
    mix(rank, options.rounds);
    destroy_both(rank);
}

/* Makes `to` wait for `from`; under capture this takes `to` into it. */
static void follow(CUstream from, CUstream to)
{
    CUevent event;
    CU(event_create(&event, CU_EVENT_DISABLE_TIMING));
    CU(event_record(event, from));
    CU(wait_event(to, event, 0));
    CU(event_destroy(event));
}

/* Captures on two streams: the first graph's calls change stream; others on a branch that nothing orders with them. */
static void branches(struct rank *rank)
{
    struct lane *lane = &rank->lane[0], spare = {0};
    CUstream side, branch;
    CUgraph graph;
    CU(stream_create(&side, CU_STREAM_NON_BLOCKING));
    CU(stream_create(&branch, CU_STREAM_NON_BLOCKING));
    lane_open(&spare, branch);
    CU(begin_capture(lane->stream, usual_mode()));
    follow(lane->stream, branch);
    call(rank, lane, 0, lane->stream);
    call(rank, &spare, 0, branch);
    follow(lane->stream, side);
    call(rank, lane, 1, side);
    call(rank, &spare, 1, branch);
    NCCL(group_start());
    call(rank, lane, 2, side);
    NCCL(group_end());
    call(rank, &spare, 2, branch);
    follow(branch, lane->stream);
    follow(side, lane->stream);
    CU(end_capture(lane->stream, &graph));
    instantiate(lane, graph);
    instantiate(&rank->lane[1], capture(rank, &rank->lane[1], usual_mode()));
    mix(rank, options.rounds);
    destroy_both(rank);
    lane_close(&spare);
    CU(stream_destroy(side));
}

static void make_comm(struct rank *rank)
{
    struct board *board = rank->board;
    int number = rank->ids++;
    CHECK(number < 64, "too many communicators");
    if (rank->rank == 0) {
        NCCL(unique_id(&board->id[number]));
        atomic_store(&board->ids, number + 1);
    }
    for (int i = 0; atomic_load(&board->ids) <= number; i++) {
        CHECK(i < 60000, "rank 0 has published no id");
        usleep(1000);
    }
    NCCL(init_rank(&rank->comm, options.ranks, board->id[number], rank->rank));
}

/* Calls of which some are followed by another of the same communicator, some by something else; to see which let in the
 * next early. What comes of them is looked at elsewhere. */
static void early(struct rank *rank)
{
    const struct lane *lane = &rank->lane[0];
    const size_t large = 1 << 20;
    CUdeviceptr in, out;
    CUgraph graph;
    CUgraphExec exec;
    ncclComm_t comm = rank->comm, other;
    make_comm(rank);
    other = rank->comm;
    rank->comm = comm;
    CU(alloc(&in, large * sizeof(float)));
    CU(alloc(&out, large * sizeof(float)));
    CU(begin_capture(lane->stream, usual_mode()));
    CU(memset(in, 0, large * sizeof(float), lane->stream));
    call(rank, lane, 0, lane->stream); /* the first that lets in the next */
    call(rank, lane, 1, lane->stream);
    CU(memset(out, 0, sizeof(float), lane->stream));
    call(rank, lane, 0, lane->stream);
    rank->comm = other;
    call(rank, lane, 1, lane->stream);
    rank->comm = comm;
    call(rank, lane, 0, lane->stream);
    for (int i = 0; i < 2; i++) {
        NCCL(all_reduce((const void *)in, (void *)out, large, ncclFloat, ncclSum, comm, (cudaStream_t)lane->stream));
    }
    NCCL(group_start()); /* two types, two kernels: the second and third that do */
    call(rank, lane, 0, lane->stream);
    NCCL(all_reduce((const void *)in, (void *)out, 100, ncclInt, ncclSum, comm, (cudaStream_t)lane->stream));
    NCCL(group_end());
    call(rank, lane, 1, lane->stream);
    follow(lane->stream, rank->lane[2].stream);
    CU(memset(out, 0, sizeof(float), rank->lane[2].stream));
    follow(rank->lane[2].stream, lane->stream);
    call(rank, lane, 2, lane->stream); /* behind the call before and the branch */
    CU(end_capture(lane->stream, &graph));
    if (options.structure) {
        check_early(graph, 3);
    }
    CU(instantiate(&exec, graph, 0));
    CU(graph_launch(exec, lane->stream));
    CU(graph_launch(exec, lane->stream));
    CU(synchronize(lane->stream));
    CU(exec_destroy(exec));
    CU(graph_destroy(graph));
    CU(free(in));
    CU(free(out));
    NCCL(destroy(other));
}

/* Graphs destroyed as soon as they are launched, before the communicator and after it; first use under capture. */
static void destroy(struct rank *rank)
{
    for (int i = 0; i < 6; i++) {
        NCCL(destroy(rank->comm));
        make_comm(rank);
        capture_both(rank);
        lane_round(rank, &rank->lane[0]);
        lane_round(rank, &rank->lane[1]);
        if (i % 3 == 1) {
            lane_round(rank, &rank->lane[2]);
        }
        if (i % 3 == 2) {
            flush_all(rank);
        }
        destroy_both(rank);
    }
    flush_all(rank);
}

/* The chain in another way: each call on the next lane's stream, some whole, some in two halves. */
static void relay_round(struct rank *rank)
{
    struct lane *first = &rank->lane[0], *last = &rank->lane[LANES - 1];
    size_t at = (size_t)last->filled * COUNT, bytes = COUNT * sizeof(float);
    uint32_t input = draw(&rank->common, PATTERN);
    for (size_t i = 0; i < COUNT; i++) {
        last->upload[at + i] = (float)(rank->rank + 1) * input_value(input, i);
    }
    last->input[last->filled++] = input;
    CU(upload(first->in, &last->upload[at], bytes, first->stream));
    for (int c = 0; c < CALLS; c++) {
        CUdeviceptr from = c == 0 ? first->in : first->out[c - 1], to = first->out[c];
        size_t half = draw(&rank->common, 2) ? COUNT / 2 : COUNT;
        bool grouped = draw(&rank->common, 2);
        if (grouped) {
            NCCL(group_start());
        }
        for (size_t begin = 0; begin < COUNT; begin += half) {
            size_t count = COUNT - begin < half ? COUNT - begin : half;
            NCCL(all_reduce((const void *)(from + begin * sizeof(float)), (void *)(to + begin * sizeof(float)), count,
                            ncclFloat, ncclSum, rank->comm, (cudaStream_t)rank->lane[c % LANES].stream));
        }
        if (grouped) {
            NCCL(group_end());
        }
    }
    CU(download(&last->download[at], first->out[CALLS - 1], bytes, last->stream));
}

/* Data that goes from stream to stream in the order of the calls alone, with whoever serves them. */
static void relay(struct rank *rank)
{
    CHECK(CALLS == LANES, "the last call must be on the last lane");
    for (int l = 0; l < 2; l++) { /* a communicator's first change of stream is not ordered: doc/design.md, "Order" */
        call(rank, &rank->lane[l], 0, rank->lane[l].stream);
        CU(synchronize(rank->lane[l].stream));
    }
    for (int r = 0; r < options.rounds; r++) {
        relay_round(rank);
        if (rank->lane[LANES - 1].filled == RING) {
            lane_flush(rank, &rank->lane[LANES - 1], "relay");
        }
    }
    lane_flush(rank, &rank->lane[LANES - 1], "relay");
}

/* Graphs that outlive their communicator. NCCL waits for its own graphs; onehop must not need them to end first. */
static void outlive(struct rank *rank)
{
    for (int i = 0; i < 4; i++) {
        capture_both(rank);
        lane_round(rank, &rank->lane[i % LANES]);
        lane_round(rank, &rank->lane[0]);
        if (i % 2 == 1) {
            flush_all(rank);
        }
        NCCL(destroy(rank->comm));
        make_comm(rank);
        destroy_both(rank);
        flush_all(rank);
    }
}

/* Waits until all ranks have come here as often. Where ranks are threads, a call that allocates may wait for the
 * kernels of all GPUs, and those for the rank that makes it: so no rank launches before all have made such calls. */
static void meet(const struct rank *rank)
{
    int came = atomic_fetch_add(&rank->board->met, 1) + 1;
    while (atomic_load(&rank->board->met) < (came + options.ranks - 1) / options.ranks * options.ranks) {
        usleep(50);
    }
}

/* --- rows ------------------------------------------------------------------------------------------------------- */

#define POOL 5
#define POOL_COUNT 12000 /* floats of a buffer */
#define ROW 24           /* calls of a graph */

/* A call from one buffer of the pool to another, or in place. */
struct row_call {
    int from, to;
    size_t send, recv, count;
};

/* Sums in a buffer stay whole numbers that fp32 has, after so many sums one on another. */
static int most_sums(void)
{
    int sums = 0;
    for (double value = 4.0 * options.ranks; value < 1 << 24; value *= options.ranks) {
        sums++;
    }
    return sums;
}

/* Each call reads what the one before has written, or an earlier one, in whole, in part or not at all. */
static void draw_row(uint32_t *state, struct row_call *row)
{
    int sums[POOL] = {0};
    for (int i = 0; i < ROW; i++) {
        struct row_call *call = &row[i];
        do {
            call->from = i > 0 && draw(state, 3) == 0 ? row[i - 1].to : (int)draw(state, POOL);
        } while (sums[call->from] == most_sums());
        call->to = 1 + (int)draw(state, POOL - 1); /* the first one stays as it is */
        call->count = 1 + draw(state, draw(state, 3) ? 300 : POOL_COUNT / 2);
        call->send = draw(state, 4) ? 0 : draw(state, (uint32_t)(POOL_COUNT - call->count));
        call->recv = call->to == call->from ? call->send
                     : draw(state, 4)       ? draw(state, 200)
                                            : draw(state, (uint32_t)(POOL_COUNT - call->count));
        sums[call->to] = sums[call->from] >= sums[call->to] ? sums[call->from] + 1 : sums[call->to];
    }
}

static float *pool_of(float *pools, int rank, int buffer)
{
    return pools + ((size_t)rank * POOL + (size_t)buffer) * POOL_COUNT;
}

/* What the pools of all ranks hold then. */
static void reckon_row(const struct row_call *row, float *pools)
{
    for (int i = 0; i < ROW; i++) {
        for (size_t k = 0; k < row[i].count; k++) {
            float sum = 0;
            for (int r = 0; r < options.ranks; r++) {
                sum += pool_of(pools, r, row[i].from)[row[i].send + k];
            }
            for (int r = 0; r < options.ranks; r++) {
                pool_of(pools, r, row[i].to)[row[i].recv + k] = sum;
            }
        }
    }
}

/* Of the kernels behind another: those that run ahead of it, and those that do not. */
struct tally {
    size_t ahead, behind;
};

static void tally_row(CUgraph graph, struct tally *tally)
{
    CUgraphNode nodes[2 * ROW];
    size_t count = 2 * ROW, kernels = 0, ahead = 0;
    CU(graph_nodes(graph, nodes, &count));
    for (size_t n = 0; n < count; n++) {
        CUDA_KERNEL_NODE_PARAMS params;
        if (type_of(nodes[n]) == CU_GRAPH_NODE_TYPE_KERNEL) {
            CU(kernel_params(nodes[n], &params));
            kernels++;
            ahead += ((const struct oh_kernel_args *)params.kernelParams[0])->ahead > 0;
        }
    }
    tally->ahead += ahead;
    tally->behind += kernels - 1 - ahead;
}

static void capture_row(const struct rank *rank, CUstream stream, const struct row_call *row, CUdeviceptr pool,
                        CUgraphExec *exec_p, struct tally *tally)
{
    CUgraph graph;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CU(begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < ROW; i++) {
        CUdeviceptr from = pool + ((size_t)row[i].from * POOL_COUNT + row[i].send) * sizeof(float);
        CUdeviceptr to = pool + ((size_t)row[i].to * POOL_COUNT + row[i].recv) * sizeof(float);
        NCCL(all_reduce((const void *)from, (void *)to, row[i].count, ncclFloat, ncclSum, rank->comm,
                        (cudaStream_t)stream));
    }
    CU(end_capture(stream, &graph));
    if (options.structure) {
        tally_row(graph, tally);
    }
    CU(exchange_mode(&mode));
    CU(instantiate(exec_p, graph, 0));
    CU(exchange_mode(&mode));
    CU(graph_destroy(graph));
}

/* Calls in a row, of which some depend on the one before, and others can run ahead of it. */
static void rows(struct rank *rank)
{
    const size_t bytes = POOL * POOL_COUNT * sizeof(float);
    const CUstream stream = rank->lane[0].stream;
    struct row_call row[ROW];
    struct tally tally = {0, 0};
    CUdeviceptr pool;
    CUgraphExec exec;
    float *before, *after, *pools = malloc((size_t)options.ranks * bytes);
    CHECK(pools, "no memory");
    CU(alloc(&pool, bytes));
    CU(host_alloc((void **)&before, bytes, 0));
    CU(host_alloc((void **)&after, bytes, 0));
    for (int r = 0; r < options.ranks; r++) {
        for (size_t i = 0; i < POOL * POOL_COUNT; i++) {
            pool_of(pools, r, 0)[i] = (float)((i * 7 + (size_t)r * 3) % 4);
        }
    }
    memcpy(before, pool_of(pools, rank->rank, 0), bytes);
    float *start = malloc((size_t)options.ranks * bytes);
    CHECK(start, "no memory");
    memcpy(start, pools, (size_t)options.ranks * bytes);
    for (int round = 0; round < 1 + options.rounds / 20; round++) {
        draw_row(&rank->common, row);
        capture_row(rank, stream, row, pool, &exec, &tally);
        memcpy(pools, start, (size_t)options.ranks * bytes);
        reckon_row(row, pools);
        meet(rank);
        for (int replay = 0; replay < 2; replay++) {
            CU(upload(pool, before, bytes, stream));
            CU(graph_launch(exec, stream));
            CU(download(after, pool, bytes, stream));
            CU(synchronize(stream));
            const float *expected = pool_of(pools, rank->rank, 0);
            for (size_t i = 0; i < POOL * POOL_COUNT; i++) {
                CHECK(after[i] == expected[i], "rank %d row %d replay %d buffer %zu element %zu is %g, expected %g",
                      rank->rank, round, replay, i / POOL_COUNT, i % POOL_COUNT, (double)after[i], (double)expected[i]);
            }
        }
        meet(rank);
        CU(exec_destroy(exec));
    }
    CHECK(!options.structure || tally.ahead > 0, "no kernel runs ahead, of %zu behind another", tally.behind);
    CHECK(!options.structure || tally.behind > 0, "all %zu kernels behind another run ahead", tally.ahead);
    free(start);
    free(pools);
    CU(host_free(after));
    CU(host_free(before));
    CU(free(pool));
}

/* The last with --structure only, unless asked for. */
static const struct {
    const char *name;
    void (*run)(struct rank *rank);
} scenarios[] = {
    {"modes", modes}, {"turns", turns}, {"update", update},   {"children", children}, {"branches", branches},
    {"early", early}, {"rows", rows},   {"destroy", destroy}, {"relay", relay},       {"outlive", outlive},
};

static bool is_wanted(const char *name)
{
    bool wanted = options.scenarios == 0 && (options.structure || strcmp(name, "outlive") != 0);
    for (int i = 0; i < options.scenarios; i++) {
        wanted |= strcmp(options.scenario[i], name) == 0;
    }
    return wanted;
}

/* --- ranks ------------------------------------------------------------------------------------------------------ */

/* The second graph lives on the per-thread default stream. */
static void open_lanes(struct rank *rank)
{
    for (int l = 0; l < LANES; l++) {
        CUstream stream = CU_STREAM_PER_THREAD;
        if (l != 1) {
            CU(stream_create(&stream, CU_STREAM_NON_BLOCKING));
        }
        lane_open(&rank->lane[l], stream);
    }
}

static void *run_rank(void *argument)
{
    struct rank *rank = argument;
    rank->common = options.seed;
    rank->own = options.seed * 7919u + (uint32_t)rank->rank;
    CU(retain(&rank->context, rank->rank));
    CU(set_context(rank->context));
    open_lanes(rank);
    make_comm(rank);
    for (size_t s = 0; s < sizeof scenarios / sizeof *scenarios; s++) {
        if (is_wanted(scenarios[s].name)) {
            scenarios[s].run(rank);
            if (rank->rank == 0) {
                printf("ok %s\n", scenarios[s].name);
                fflush(stdout);
            }
        }
    }
    NCCL(destroy(rank->comm));
    for (int l = 0; l < LANES; l++) {
        lane_close(&rank->lane[l]);
    }
    return NULL;
}

static int run_threads(struct rank *ranks)
{
    pthread_t thread[MAX_RANKS];
    alarm(options.timeout);
    open_libraries();
    CU(init(0));
    for (int r = 1; r < options.ranks; r++) {
        CHECK(pthread_create(&thread[r], NULL, run_rank, &ranks[r]) == 0, "no thread");
    }
    run_rank(&ranks[0]);
    for (int r = 1; r < options.ranks; r++) {
        pthread_join(thread[r], NULL);
    }
    return 0;
}

/* Runs `part` in a process of its own: nothing of CUDA survives a fork. */
static pid_t start_process(int (*part)(struct rank *), struct rank *rank)
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0, "no process");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(options.timeout);
        exit(part(rank));
    }
    return child;
}

static int run_process(struct rank *rank)
{
    open_libraries();
    CU(init(0));
    run_rank(rank);
    return 0;
}

static int run_processes(struct rank *ranks)
{
    pid_t child[MAX_RANKS];
    int status, left = options.ranks, failed = 0;
    for (int r = 0; r < options.ranks; r++) {
        child[r] = start_process(run_process, &ranks[r]);
    }
    while (left > 0) {
        pid_t ended = wait(&status);
        left--;
        if (!failed && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
            failed = 1;
            for (int r = 0; r < options.ranks; r++) { /* the others wait for it */
                if (child[r] != ended) {
                    kill(child[r], SIGKILL);
                }
            }
        }
    }
    return failed;
}

static int count_devices(struct rank *unused)
{
    int devices;
    (void)unused;
    open_libraries();
    return cu.init(0) == CUDA_SUCCESS && cu.device_count(&devices) == CUDA_SUCCESS ? devices : 0;
}

static void parse(int argc, char **argv)
{
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "0";
        if (strcmp(argv[i], "--threads") == 0) {
            options.threads = true;
        } else if (strcmp(argv[i], "--structure") == 0) {
            options.structure = true;
        } else {
            unsigned number = (unsigned)strtoul(value, NULL, 10);
            if (strcmp(argv[i], "--ranks") == 0) {
                options.ranks = (int)number;
            } else if (strcmp(argv[i], "--rounds") == 0) {
                options.rounds = (int)number;
            } else if (strcmp(argv[i], "--delay") == 0) {
                options.delay_us = number;
            } else if (strcmp(argv[i], "--seed") == 0) {
                options.seed = number;
            } else if (strcmp(argv[i], "--timeout") == 0) {
                options.timeout = number;
            } else {
                check_failed(CHECK_WHO, __LINE__, "no option %s", argv[i]);
            }
            i++;
        }
    }
    options.scenario = (const char *const *)&argv[i];
    options.scenarios = argc - i;
}

int main(int argc, char **argv)
{
    static struct rank ranks[MAX_RANKS];
    int status = 0;
    parse(argc, argv);
    waitpid(start_process(count_devices, NULL), &status, 0);
    int devices = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    if (options.ranks == 0) {
        options.ranks = devices < MAX_RANKS ? devices : MAX_RANKS;
    }
    if (options.ranks < 2 || options.ranks > devices || options.ranks > MAX_RANKS) {
        printf("SKIP %d GPUs\n", devices);
        return 77;
    }
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED, "no memory");
    for (int r = 0; r < options.ranks; r++) {
        ranks[r] = (struct rank){.rank = r, .board = board};
    }
    status = options.threads ? run_threads(ranks) : run_processes(ranks);
    printf("%s %d ranks, seed %u\n", status == 0 ? "ok" : "FAIL", options.ranks, options.seed);
    return status;
}
