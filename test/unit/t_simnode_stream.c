/* SPDX-License-Identifier: MIT */
/*
 * t_simnode_stream.c - the simulated driver: streams, events, queues and kernels
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/abi.h"
#include "test/unit/scenario.h"

static void streams(void)
{
    CUstream one, two;
    CUevent begin, end, never;
    atomic_int flag = 0, counter = 0;
    float milliseconds = -1;
    CUdeviceptr address;
    start(0);
    address = allocate(4);
    OK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreateWithPriority(&two, CU_STREAM_NON_BLOCKING, -1));
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    OK(cuEventCreate(&never, CU_EVENT_DISABLE_TIMING));
    OK(cuEventQuery(never));
    OK(cuStreamWaitEvent(one, never, 0));

    OK(cuEventRecord(begin, one));
    OK(cuLaunchHostFunc(one, wait_flag, &flag));
    OK(cuMemsetD32Async(address, 1, 1, one));
    OK(cuEventRecord(end, one));
    OK(cuStreamWaitEvent(two, end, 0));
    OK(cuMemsetD32Async(address, 2, 1, two));
    usleep(20000); /* time enough to run ahead, if it could */
    CHECK(*(uint32_t *)pointer(address) == 0xA5A5A5A5);
    FAILS(cuStreamQuery(one), CUDA_ERROR_NOT_READY);
    FAILS(cuStreamQuery(two), CUDA_ERROR_NOT_READY);
    FAILS(cuEventQuery(end), CUDA_ERROR_NOT_READY);
    FAILS(cuEventElapsedTime(&milliseconds, begin, end), CUDA_ERROR_NOT_READY);
    atomic_store(&flag, 1);
    OK(cuStreamSynchronize(two));
    OK(cuEventQuery(end));
    OK(cuEventElapsedTime(&milliseconds, begin, end));
    CHECK(milliseconds >= 0 && milliseconds < 60000);
    FAILS(cuEventElapsedTime(&milliseconds, begin, never), CUDA_ERROR_INVALID_HANDLE);
    CHECK(*(uint32_t *)pointer(address) == 2);

    /* A stream that is destroyed finishes its work. */
    atomic_store(&flag, 0);
    OK(cuLaunchHostFunc(one, wait_flag, &flag));
    OK(cuLaunchHostFunc(one, count, &counter));
    OK(cuEventRecord(end, one));
    OK(cuStreamDestroy(one));
    FAILS(cuStreamSynchronize(one), CUDA_ERROR_INVALID_HANDLE);
    atomic_store(&flag, 1);
    OK(cuEventSynchronize(end));
    CHECK(counter == 1);
    OK(cuStreamDestroy(two));
    OK(cuEventDestroy(begin));
    FAILS(cuEventDestroy(begin), CUDA_ERROR_INVALID_HANDLE);
}

/* The legacy stream waits for blocking streams and they for it; a non-blocking stream does neither. */
static void legacy(void)
{
    CUstream blocking, free_stream;
    atomic_int flag = 0;
    uint32_t word = 0;
    CUdeviceptr address;
    start(0);
    address = allocate(8);
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING));
    OK(cuLaunchHostFunc(blocking, wait_flag, &flag));
    OK(cuMemsetD32Async(address, 1, 1, NULL));
    OK(cuMemsetD32Async(address, 2, 1, blocking));
    OK(cuMemsetD32Async(address + 4, 3, 1, CU_STREAM_PER_THREAD));
    OK(cuStreamSynchronize(free_stream));
    usleep(20000);
    FAILS(cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
    CHECK(*(uint64_t *)pointer(address) == 0xA5A5A5A5A5A5A5A5u);
    atomic_store(&flag, 1);
    OK(cuCtxSynchronize());
    OK(cuMemsetD32Async(address, 4, 1, blocking));
    OK(cuMemcpyDtoH(&word, address, 4));
    CHECK(word == 4);
}

static void CUDA_CB call_driver(void *result)
{
    int number;
    *(CUresult *)result = cuDeviceGetCount(&number);
}

static void host_functions(void)
{
    CUresult result = CUDA_SUCCESS;
    start(0);
    OK(cuLaunchHostFunc(NULL, call_driver, &result));
    OK(cuCtxSynchronize());
    CHECK(result == CUDA_ERROR_NOT_PERMITTED);
}

static void *set_soon(void *flag)
{
    usleep(50000);
    atomic_store((atomic_int *)flag, 1);
    return NULL;
}

/* The fifth finds the queue full, and its caller waits. Host functions do not count. */
static void full_queue(void)
{
    CUstream stream;
    pthread_t thread;
    atomic_int flag = 0, counter = 0;
    setenv("SIMNODE_QUEUE", "4", 1);
    start(0);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUdeviceptr memory = allocate(4);
    OK(cuLaunchHostFunc(stream, wait_flag, &flag));
    for (int i = 0; i < 4; i++) {
        OK(cuMemsetD32Async(memory, 1, 1, stream));
    }
    OK(cuLaunchHostFunc(stream, count, &counter));
    CHECK(pthread_create(&thread, NULL, set_soon, &flag) == 0);
    OK(cuMemsetD32Async(memory, 1, 1, stream));
    CHECK(flag == 1);
    OK(cuStreamSynchronize(stream));
    CHECK(counter == 1);
    pthread_join(thread, NULL);
}

/* What waits at the head of the one queue holds up another stream, and only with one connection. */
static void connections(void)
{
    CUstream first, second, third;
    CUevent event;
    atomic_int flag = 0, counter = 0;
    start(0);
    OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuLaunchHostFunc(first, wait_flag, &flag));
    OK(cuLaunchHostFunc(third, count, &counter)); /* nothing in its way */
    wait_until(&counter, 1);
    OK(cuEventRecord(event, first));
    OK(cuStreamWaitEvent(second, event, 0));
    OK(cuLaunchHostFunc(third, count, &counter));
    if (getenv("CUDA_DEVICE_MAX_CONNECTIONS")) {
        usleep(20000);
        CHECK(counter == 1);
    } else {
        wait_until(&counter, 2);
    }
    atomic_store(&flag, 1);
    wait_until(&counter, 2);
}

static void one_connection(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    connections();
}

#define COUNT 1000

/* One of two ranks, both in this process. */
struct rank {
    CUcontext ctx;
    CUstream stream;
    CUdeviceptr staging, data, out;
};

static void rank_open(struct rank *rank, int device)
{
    float input[COUNT];
    rank->ctx = start(device);
    OK(cuStreamCreate(&rank->stream, CU_STREAM_NON_BLOCKING));
    rank->staging = allocate(OH_STAGING_BYTES);
    rank->data = allocate(sizeof input);
    rank->out = allocate(sizeof input);
    for (int i = 0; i < COUNT; i++) {
        input[i] = (float)(i * (device + 1));
    }
    OK(cuMemcpyHtoD(rank->data, input, sizeof input));
    OK(cuMemsetD8(rank->staging, 0, OH_STAGING_BYTES));
    OK(cuMemsetD32(rank->staging + OH_WORDS_OFFSET, OH_SENTINEL, (OH_ESCAPE_OFFSET - OH_WORDS_OFFSET) / 4));
    OK(cuCtxSynchronize());
}

static CUresult launch(struct rank *ranks, unsigned me, CUfunction function, const void *abort_flag)
{
    struct oh_kernel_args args = {
        .staging = {pointer(ranks[me].staging), pointer(ranks[1 - me].staging)},
        .sendbuff = pointer(ranks[me].data),
        .recvbuff = pointer(ranks[me].out),
        .count = COUNT,
        .abort_flag = abort_flag,
        .rank = me,
    };
    void *parameters[] = {&args};
    CUlaunchAttribute programmatic = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                      .value.programmaticStreamSerializationAllowed = 1};
    CUlaunchConfig config = {.gridDimX = 3,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 128,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = ranks[me].stream,
                             .attrs = &programmatic,
                             .numAttrs = 1};
    OK(cuCtxSetCurrent(ranks[me].ctx));
    return cuLaunchKernelEx(&config, function, parameters, NULL);
}

/* Waits for a rank; the number of elements that are not the sum of both inputs. */
static int rank_wrong(const struct rank *rank)
{
    const float *out = pointer(rank->out);
    int wrong = 0;
    OK(cuStreamSynchronize(rank->stream));
    for (int i = 0; i < COUNT; i++) {
        wrong += out[i] != (float)(3 * i);
    }
    return wrong;
}

static void kernels(void)
{
    struct rank ranks[2];
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    uint32_t *abort_flag;
    setenv("SIMNODE_DELAY_US", "300", 1);
    setenv("SIMNODE_SEED", "5", 1);
    rank_open(&ranks[0], 0);
    OK(cuMemHostAlloc((void **)&abort_flag, 4, 0));
    *abort_flag = 0;
    OK(cuLibraryLoadData(&library, "not looked at", NULL, NULL, 0, NULL, NULL, 0));
    FAILS(cuLibraryGetKernel(&kernel, library, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
    OK(cuLibraryGetKernel(&kernel, library, "ncclDevKernel_AllReduce_Sum_f32_onehop_oneshot_n2"));
    OK(cuKernelGetFunction(&function, kernel));
    rank_open(&ranks[1], 1);

    fclose(stderr); /* on which the refusals explain themselves */
    FAILS(launch(ranks, 0, function, abort_flag), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxEnablePeerAccess(ranks[1].ctx, 0));
    uint32_t on_stack = 0;
    FAILS(launch(ranks, 0, function, &on_stack), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxSetCurrent(ranks[1].ctx));
    OK(cuCtxEnablePeerAccess(ranks[0].ctx, 0));

    for (int call = 0; call < 5; call++) {
        for (unsigned r = 0; r < 2; r++) {
            OK(cuCtxSetCurrent(ranks[r].ctx));
            OK(cuMemsetD8Async(ranks[r].out, 0xEE, COUNT * sizeof(float), ranks[r].stream));
            OK(launch(ranks, r, function, abort_flag));
        }
        CHECK(rank_wrong(&ranks[0]) + rank_wrong(&ranks[1]) == 0);
    }
    OK(cuLibraryUnload(library));
    FAILS(launch(ranks, 0, function, abort_flag), CUDA_ERROR_INVALID_HANDLE);
}

/* A kernel's parameter changed while its graph is captured, after an edge has come out of it. */
static void kernel_nodes(void)
{
    struct rank ranks[2];
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CUgraph graph;
    CUgraphNode nodes[2], from[2] = {NULL};
    CUgraphEdgeData edge[2];
    CUDA_KERNEL_NODE_PARAMS params;
    struct oh_kernel_args args;
    void *parameters[] = {&args};
    uint32_t *abort_flag;
    size_t number = 2;
    rank_open(&ranks[0], 0);
    ranks[1] = ranks[0];
    OK(cuMemHostAlloc((void **)&abort_flag, 4, 0));
    OK(cuLibraryLoadData(&library, "not looked at", NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "ncclDevKernel_AllReduce_Sum_f32_onehop_oneshot_n2"));
    OK(cuKernelGetFunction(&function, kernel));
    OK(cuStreamBeginCapture(ranks[0].stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(launch(ranks, 0, function, abort_flag));
    OK(launch(ranks, 0, function, abort_flag));
    OK(cuStreamGetCaptureInfo_v3(ranks[0].stream, &(CUstreamCaptureStatus){0}, NULL, &graph, NULL, NULL, NULL));
    OK(cuGraphGetNodes(graph, nodes, &number));
    CHECK(number == 2);

    OK(cuGraphKernelNodeGetParams(nodes[0], &params));
    CHECK(params.func == function && params.gridDimX == 3 && params.blockDimX == 128);
    args = *(const struct oh_kernel_args *)params.kernelParams[0];
    CHECK(args.count == COUNT && args.early_trigger == 0);
    args.early_trigger = 1;
    params.kernelParams = parameters;
    OK(cuGraphKernelNodeSetParams(nodes[0], &params));
    args.early_trigger = 2; /* it is copied */
    OK(cuGraphKernelNodeGetParams(nodes[0], &params));
    CHECK(((const struct oh_kernel_args *)params.kernelParams[0])->early_trigger == 1);
    params.gridDimX = OH_MAX_BLOCKS + 1;
    FAILS(cuGraphKernelNodeSetParams(nodes[0], &params), CUDA_ERROR_INVALID_VALUE);

    number = 2;
    OK(cuGraphNodeGetDependencies_v2(nodes[1], from, edge, &number));
    CHECK(number == 1 && from[0] == nodes[0] && edge[0].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
    FAILS(cuGraphNodeGetDependencies_v2(nodes[1], from, NULL, &number), CUDA_ERROR_LOSSY_QUERY);
    OK(cuStreamEndCapture(ranks[0].stream, &graph));
}

static void concurrent_blocks(void)
{
    setenv("SIMNODE_BLOCK_THREADS", "1", 1);
    kernels();
}

int main(void)
{
    static const struct scenario scenarios[] = {
        {streams, "streams and events"},
        {legacy, "the legacy stream"},
        {host_functions, "host functions may not call the driver"},
        {full_queue, "a launch into a full queue blocks"},
        {connections, "streams do not hold each other up"},
        {one_connection, "with one connection they do"},
        {kernels, "kernels of two ranks, and pointers that a GPU could not reach"},
        {kernel_nodes, "a kernel changed in a graph under capture"},
        {concurrent_blocks, "blocks in threads of their own"},
    };
    return run_scenarios(scenarios, sizeof scenarios / sizeof *scenarios);
}
