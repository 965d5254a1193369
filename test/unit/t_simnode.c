/* SPDX-License-Identifier: MIT */
/*
 * t_simnode.c - what the simulated driver and NVML refuse as the real ones do, report, and let a test set
 *
 * What they do when all is well is seen by every test of test/e2e and test/conformance; a refusal that is missing is
 * not. Each scenario is one test point and runs in a process of its own, so with libraries that nobody has used and
 * with its own environment. Within a scenario, CHECK notes what went wrong and goes on.
 */
#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/abi.h"
#include "test/tap.h"
#include "topo/nvml.h"

#define SCENARIO_SECONDS 120 /* one that takes longer hangs; on a busy machine it may take many */

#define DECLARE(field_, symbol_, args_) int symbol_ args_;
OH_NVML_FUNCTIONS(DECLARE)
#undef DECLARE

/* Not the names that this cuda.h gives them. */
CUresult cuStreamGetCaptureInfo_v2(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **,
                                   size_t *);
#undef cuStreamUpdateCaptureDependencies
#undef cuGraphAddDependencies
#undef cuGraphRemoveDependencies
CUresult cuStreamUpdateCaptureDependencies(CUstream, CUgraphNode *, size_t, unsigned);
CUresult cuGraphAddDependencies(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);
CUresult cuGraphRemoveDependencies(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);

static int failures;     /* checks of this process */
static pid_t last_child; /* of run_child */

#define CHECK(condition_) check((condition_), __LINE__, #condition_)
#define OK(call_) CHECK((call_) == CUDA_SUCCESS)
#define FAILS(call_, error_) CHECK((call_) == (error_))
static void check(bool condition, int line, const char *text)
{
    if (!condition) {
        failures++;
        tap_note("line %d: not so: %s", line, text);
    }
}

/* Runs part of a test in a child process; true: all its checks held. */
static bool run_child(void (*part)(void))
{
    int status;
    last_child = fork();
    if (last_child == 0) {
        failures = 0;
        alarm(SCENARIO_SECONDS);
        part();
        exit(failures ? 1 : 0);
    }
    return last_child > 0 && waitpid(last_child, &status, 0) == last_child && status == 0;
}

/* cuInit and the context of one device. */
static CUcontext start(int device)
{
    CUcontext ctx = NULL;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, device));
    OK(cuCtxSetCurrent(ctx));
    return ctx;
}

static CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr address = 0;
    OK(cuMemAlloc(&address, bytes));
    return address;
}

static void *pointer(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

static CUstream new_stream(void)
{
    CUstream stream = NULL;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static CUevent new_event(unsigned flags)
{
    CUevent event = NULL;
    OK(cuEventCreate(&event, flags));
    return event;
}

/* A host function: waits until the flag is set, so that a test can look at a stream that is busy. */
static void CUDA_CB wait_flag(void *flag)
{
    while (!atomic_load((atomic_int *)flag)) {
        usleep(100);
    }
}

/* A host function: adds one. */
static void CUDA_CB count(void *counter)
{
    atomic_fetch_add((atomic_int *)counter, 1);
}

/* Waits until a counter has come to what it must be. */
static void wait_until(atomic_int *value, int expected)
{
    for (int i = 0; i < 30000 && *value != expected; i++) {
        usleep(1000);
    }
    CHECK(*value == expected);
}

/* --- devices, contexts, what a test sets -------------------------------------------------------------------------- */

static void devices(void)
{
    int value;
    oh_nvml_device_t device;
    FAILS(cuDeviceGetCount(&value), CUDA_ERROR_NOT_INITIALIZED);
    CHECK(nvmlDeviceGetHandleByPciBusId_v2("0000:19:00.0", &device) == 1);
    setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
    OK(cuInit(0));
    OK(cuInit(0));
    CHECK(nvmlInit_v2() == 0);
    CHECK(nvmlDeviceGetHandleByPciBusId_v2("0000:AA:00.0", &device) == 6);
    FAILS(cuDeviceGetByPCIBusId(&value, "0000:5d:00.0"), CUDA_ERROR_INVALID_DEVICE); /* not visible */
    CHECK(nvmlDeviceGetHandleByPciBusId_v2("0000:5d:00.0", &device) == 0);
    OK(cuDeviceGetByPCIBusId(&value, "0000:3b:00.0"));
    CHECK(value == 0); /* in the order of the variable */
}

static void no_device(void)
{
    fclose(stderr); /* the line it prints is meant for people */
    setenv("SIMNODE_TOPOLOGY", "no-such-node", 1);
    FAILS(cuInit(0), CUDA_ERROR_NO_DEVICE);
    setenv("SIMNODE_TOPOLOGY", "h200x2", 1);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    FAILS(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

static void contexts(void)
{
    CUcontext two;
    CUdevice device;
    OK(cuInit(0));
    FAILS(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    start(0);
    OK(cuDevicePrimaryCtxRetain(&two, 1));
    OK(cuCtxEnablePeerAccess(two, 0));
    FAILS(cuCtxEnablePeerAccess(two, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    OK(cuDevicePrimaryCtxRelease(1));
    FAILS(cuCtxPushCurrent(two), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuDevicePrimaryCtxRelease(0));
    FAILS(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
}

static void leave_traces(void)
{
    void *host;
    start(0);
    allocate(1000);
    CUdeviceptr freed = allocate(500);
    OK(cuMemFree(freed));
    OK(cuMemHostAlloc(&host, 10, 0));
    new_stream();
    OK(cuEventDestroy(new_event(0)));
}

static void report(void)
{
    static const char *const lines[] = {"mem_live_bytes 1000\n", "host_live 1\n", "streams_live 1\n",
                                        "events_live 0\n"};
    char prefix[] = "/tmp/simnode-report-XXXXXX", path[128], text[1024] = "";
    close(mkstemp(prefix));
    unlink(prefix);
    setenv("SIMNODE_REPORT", prefix, 1);
    CHECK(run_child(leave_traces));
    unsetenv("SIMNODE_REPORT");
    snprintf(path, sizeof path, "%s.%ld", prefix, (long)last_child);
    int file = open(path, O_RDONLY);
    CHECK(read(file, text, sizeof text - 1) > 0);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        CHECK(strstr(text, lines[i]));
    }
    close(file);
    unlink(path);
}

static void faults(void)
{
    char path[] = "/tmp/simnode-trace-XXXXXX", text[256] = "";
    CUdeviceptr address;
    int file = mkstemp(path), status;
    oh_nvml_device_t device = NULL;
    setenv("SIMNODE_FAIL", "cuMemAlloc_v2:2,nvmlDeviceGetP2PStatus", 1);
    setenv("SIMNODE_TRACE", path, 1);
    start(0);
    OK(cuMemAlloc(&address, 16));
    FAILS(cuMemAlloc(&address, 16), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuMemAlloc(&address, 16));
    CHECK(read(file, text, sizeof text - 1) > 0);
    CHECK(strcmp(text, "cuInit\ncuDevicePrimaryCtxRetain\ncuCtxSetCurrent\n"
                       "cuMemAlloc_v2\ncuMemAlloc_v2\ncuMemAlloc_v2\n") == 0);
    CHECK(nvmlInit_v2() == 0 && nvmlDeviceGetHandleByPciBusId_v2("0000:19:00.0", &device) == 0);
    CHECK(nvmlDeviceGetP2PStatus(device, device, OH_NVML_P2P_READ, &status) == 3);
    close(file);
    unlink(path);
}

static void use_after_fork(void)
{
    CUdeviceptr address;
    FAILS(cuMemAlloc(&address, 16), CUDA_ERROR_NOT_INITIALIZED);
    FAILS(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
}

static void forked(void)
{
    start(0);
    CHECK(run_child(use_after_fork));
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static void memory(void)
{
    uint32_t words[4];
    void *host;
    start(0);
    CUdeviceptr device = allocate(4096);
    OK(cuMemsetD8Async(device, 7, 3, NULL));
    OK(cuMemsetD32Async(device + 4, 0x01020304, 2, NULL));
    OK(cuMemcpyDtoHAsync(words, device, sizeof words, NULL));
    CHECK(words[0] == 0xA5070707 && words[1] == 0x01020304 && words[2] == 0x01020304 && words[3] == 0xA5A5A5A5);
    words[0] = 42;
    OK(cuMemcpyHtoDAsync(device, words, 4, NULL));
    words[0] = 43; /* pageable memory is free again */
    OK(cuMemcpyDtoH(words, device, 4));
    CHECK(words[0] == 42);
    FAILS(cuMemcpyHtoD(device + 4090, words, 7), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemFree(device + 4), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(device));
    FAILS(cuMemFree(device), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAlloc(&device, (size_t)1 << 40), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemHostAlloc(&host, 100, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemFreeHost(host));
    FAILS(cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
}

static int to_peer[2], to_owner[2];

/* An access ends the process. */
static bool is_unmapped(CUdeviceptr address)
{
    int status;
    pid_t reader = fork();
    if (reader == 0) {
        _exit(*(volatile char *)pointer(address));
    }
    return waitpid(reader, &status, 0) == reader && WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS;
}

/* One process exports memory of device 0, another opens it on device 1, twice; then it is freed while it is open. */
static void open_exported(bool access)
{
    CUipcMemHandle handle;
    CUdeviceptr address, again, open = 0;
    CHECK(read(to_peer[0], &handle, sizeof handle) == sizeof handle);
    start(1);
    if (access) {
        FAILS(cuIpcOpenMemHandle(&address, handle, 0), CUDA_ERROR_INVALID_VALUE);
        OK(cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        OK(cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        CHECK(address == again);
        OK(cuIpcCloseMemHandle(again));
        CHECK(strcmp(pointer(address), "from the owner") == 0);
        OK(cuIpcCloseMemHandle(address));
        FAILS(cuIpcCloseMemHandle(address), CUDA_ERROR_INVALID_VALUE);
        OK(cuIpcOpenMemHandle(&open, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    }
    CHECK(write(to_owner[1], "x", 1) == 1);
    CHECK(read(to_peer[0], &handle, sizeof handle) == sizeof handle);
    if (access) {
        CHECK(is_unmapped(open));
        OK(cuIpcCloseMemHandle(open));
    }
    FAILS(cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
          access ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}

static void export_and_free(bool access)
{
    CUipcMemHandle handle;
    CUdeviceptr opened;
    CUcontext peer;
    char byte;
    start(0);
    OK(cuDevicePrimaryCtxRetain(&peer, 1));
    FAILS(cuCtxEnablePeerAccess(peer, 0), access ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    CUdeviceptr address = allocate(100000);
    OK(cuMemcpyHtoD(address, "from the owner", 15));
    OK(cuIpcGetMemHandle(&handle, address + 64)); /* the handle is that of the whole allocation */
    FAILS(cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(write(to_peer[1], &handle, sizeof handle) == sizeof handle);
    CHECK(read(to_owner[0], &byte, 1) == 1);
    OK(cuMemFree(address));
    CHECK(write(to_peer[1], &handle, sizeof handle) == sizeof handle);
}

static void share(bool access)
{
    int status;
    CHECK(pipe(to_peer) == 0 && pipe(to_owner) == 0);
    pid_t child = fork();
    if (child == 0) {
        open_exported(access);
        exit(failures ? 1 : 0);
    }
    export_and_free(access);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void ipc(void)
{
    share(true);
}

static void ipc_without_access(void)
{
    setenv("SIMNODE_TOPOLOGY", "nvml-disagrees", 1);
    share(false);
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

static void streams(void)
{
    atomic_int flag = 0, counter = 0;
    float milliseconds = -1;
    start(0);
    CUstream one = new_stream(), two = new_stream();
    CUevent begin = new_event(0), end = new_event(0), never = new_event(CU_EVENT_DISABLE_TIMING);
    OK(cuEventQuery(never));
    OK(cuStreamWaitEvent(one, never, 0));
    OK(cuEventRecord(begin, one));
    OK(cuLaunchHostFunc(one, wait_flag, &flag));
    OK(cuEventRecord(end, one));
    OK(cuStreamWaitEvent(two, end, 0));
    usleep(20000); /* time enough to run ahead, if it could */
    FAILS(cuStreamQuery(one), CUDA_ERROR_NOT_READY);
    FAILS(cuStreamQuery(two), CUDA_ERROR_NOT_READY);
    FAILS(cuEventQuery(end), CUDA_ERROR_NOT_READY);
    FAILS(cuEventElapsedTime(&milliseconds, begin, end), CUDA_ERROR_NOT_READY);
    atomic_store(&flag, 1);
    OK(cuStreamSynchronize(two));
    OK(cuEventElapsedTime(&milliseconds, begin, end));
    CHECK(milliseconds >= 0 && milliseconds < 60000);
    FAILS(cuEventElapsedTime(&milliseconds, begin, never), CUDA_ERROR_INVALID_HANDLE);

    /* A stream that is destroyed finishes its work. */
    atomic_store(&flag, 0);
    OK(cuLaunchHostFunc(one, wait_flag, &flag));
    OK(cuLaunchHostFunc(one, count, &counter));
    OK(cuStreamDestroy(one));
    FAILS(cuStreamSynchronize(one), CUDA_ERROR_INVALID_HANDLE);
    atomic_store(&flag, 1);
    wait_until(&counter, 1);
    OK(cuEventDestroy(begin));
    FAILS(cuEventDestroy(begin), CUDA_ERROR_INVALID_HANDLE);
}

/* The legacy stream waits for blocking streams and they for it; a non-blocking stream does neither. */
static void legacy(void)
{
    CUstream blocking;
    atomic_int flag = 0;
    start(0);
    CUdeviceptr address = allocate(8);
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuLaunchHostFunc(blocking, wait_flag, &flag));
    OK(cuMemsetD32Async(address, 1, 1, NULL));
    OK(cuMemsetD32Async(address, 2, 1, blocking));
    OK(cuMemsetD32Async(address + 4, 3, 1, CU_STREAM_PER_THREAD));
    OK(cuStreamSynchronize(new_stream()));
    usleep(20000);
    FAILS(cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
    CHECK(*(uint64_t *)pointer(address) == 0xA5A5A5A5A5A5A5A5u);
    atomic_store(&flag, 1);
    OK(cuCtxSynchronize());
    CHECK(*(uint64_t *)pointer(address) == 0x300000002u);
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
    pthread_t thread;
    atomic_int flag = 0, counter = 0;
    setenv("SIMNODE_QUEUE", "4", 1);
    start(0);
    CUstream stream = new_stream();
    CUdeviceptr word = allocate(4);
    OK(cuLaunchHostFunc(stream, wait_flag, &flag));
    for (int i = 0; i < 4; i++) {
        OK(cuMemsetD32Async(word, 1, 1, stream));
    }
    OK(cuLaunchHostFunc(stream, count, &counter));
    CHECK(pthread_create(&thread, NULL, set_soon, &flag) == 0);
    OK(cuMemsetD32Async(word, 1, 1, stream));
    CHECK(flag == 1);
    OK(cuStreamSynchronize(stream));
    CHECK(counter == 1);
    pthread_join(thread, NULL);
}

/* What waits at the head of the one queue holds up another stream, and only with one connection. */
static void connections(void)
{
    atomic_int flag = 0, counter = 0;
    start(0);
    CUstream first = new_stream(), second = new_stream(), third = new_stream();
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
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

/* --- kernels ------------------------------------------------------------------------------------------------------ */

/* Of rank 0 of two, one element; the peer's memory is on device 1. */
static CUresult launch(CUstream stream, CUfunction function, CUdeviceptr mine, CUdeviceptr theirs,
                       const void *abort_flag)
{
    struct oh_kernel_args args = {.staging = {pointer(mine), pointer(theirs)},
                                  .sendbuff = pointer(mine),
                                  .recvbuff = pointer(mine),
                                  .count = 1,
                                  .abort_flag = abort_flag};
    void *parameters[] = {&args};
    CUlaunchAttribute programmatic = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                      .value.programmaticStreamSerializationAllowed = 1};
    CUlaunchConfig config = {.gridDimX = 3,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 128,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream,
                             .attrs = &programmatic,
                             .numAttrs = 1};
    return cuLaunchKernelEx(&config, function, parameters, NULL);
}

/* Two kernels are captured, and never run. */
static void kernels(void)
{
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CUgraph graph;
    CUgraphNode nodes[2], from[2];
    CUDA_KERNEL_NODE_PARAMS params;
    uint32_t *abort_flag, on_stack = 0;
    size_t number = 2;
    CUcontext peer = start(1);
    CUdeviceptr theirs = allocate(OH_STAGING_BYTES(2));
    start(0);
    CUdeviceptr mine = allocate(OH_STAGING_BYTES(2));
    CUstream stream = new_stream();
    OK(cuMemHostAlloc((void **)&abort_flag, 4, 0));
    OK(cuLibraryLoadData(&library, "not looked at", NULL, NULL, 0, NULL, NULL, 0));
    FAILS(cuLibraryGetKernel(&kernel, library, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
    OK(cuLibraryGetKernel(&kernel, library, "ncclDevKernel_AllReduce_Sum_f32_onehop_oneshot_n2"));
    OK(cuKernelGetFunction(&function, kernel));

    fclose(stderr); /* on which the refusals explain themselves */
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    FAILS(launch(stream, function, mine, theirs, abort_flag), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxEnablePeerAccess(peer, 0));
    FAILS(launch(stream, function, mine, theirs, &on_stack), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(launch(stream, function, mine, theirs, abort_flag));
    OK(launch(stream, function, mine, theirs, abort_flag));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphGetNodes(graph, nodes, &number));
    CHECK(number == 2);
    FAILS(cuGraphNodeGetDependencies_v2(nodes[1], from, NULL, &number), CUDA_ERROR_LOSSY_QUERY);
    OK(cuGraphKernelNodeGetParams(nodes[0], &params));
    struct oh_kernel_args args = *(struct oh_kernel_args *)params.kernelParams[0];
    void *parameter = &args;
    params.kernelParams = &parameter;
    args.trigger = 1;
    OK(cuGraphKernelNodeSetParams(nodes[0], &params));
    args.trigger = 2;
    OK(cuGraphKernelNodeGetParams(nodes[0], &params));
    CHECK(((struct oh_kernel_args *)params.kernelParams[0])->trigger == 1); /* it is copied */
    params.gridDimX = OH_MAX_BLOCKS + 1;
    FAILS(cuGraphKernelNodeSetParams(nodes[0], &params), CUDA_ERROR_INVALID_VALUE);
    FAILS(launch(stream, (CUfunction)&args, mine, theirs, abort_flag), CUDA_ERROR_INVALID_HANDLE);
}

/* --- capture and graphs ------------------------------------------------------------------------------------------- */

static void capture_errors(void)
{
    CUstream blocking;
    CUgraph graph;
    CUdeviceptr address;
    CUstreamCaptureStatus status;
    atomic_int counter = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    start(0);
    CUstream origin = new_stream(), side = new_stream();
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    FAILS(cuStreamEndCapture(origin, &graph), CUDA_ERROR_ILLEGAL_STATE);

    /* A stream that was forked off and not joined. */
    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuEventRecord(event, origin));
    FAILS(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    OK(cuStreamWaitEvent(side, event, 0));
    OK(cuLaunchHostFunc(side, count, &counter));
    FAILS(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    CHECK(graph == NULL);

    /* Allocating: invalid, unless this thread says that it knows what it does. */
    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    OK(cuMemAlloc(&address, 100));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    FAILS(cuMemFree(address), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    OK(cuStreamGetCaptureInfo_v2(origin, &status, NULL, NULL, NULL, NULL));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    FAILS(cuLaunchHostFunc(origin, count, &counter), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    FAILS(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuMemFree(address));

    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
    FAILS(cuStreamSynchronize(origin), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    FAILS(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    /* The legacy stream would have to wait for a stream that captures. */
    OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    FAILS(cuLaunchHostFunc(NULL, count, &counter), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    FAILS(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    /* Waiting for what is not part of the capture. */
    OK(cuEventRecord(event, side));
    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    FAILS(cuStreamWaitEvent(origin, event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    FAILS(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(counter == 0);
}

/* origin -> a -> b -> origin: the origin waits for b alone, and so for a too. What a holds up is b and the end. */
static void capture_chain(void)
{
    CUgraph graph;
    CUgraphExec exec;
    atomic_int counter = 0, flag = 0;
    start(0);
    CUstream stream[] = {new_stream(), new_stream(), new_stream()};
    OK(cuStreamBeginCapture(stream[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < 3; i++) {
        CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
        OK(i == 1 ? cuLaunchHostFunc(stream[i], wait_flag, &flag) : cuLaunchHostFunc(stream[i], count, &counter));
        OK(cuEventRecord(event, stream[i]));
        OK(cuLaunchHostFunc(stream[0], count, &counter));
        OK(cuStreamWaitEvent(stream[(i + 1) % 3], event, 0));
    }
    OK(cuLaunchHostFunc(stream[0], count, &counter));
    OK(cuStreamEndCapture(stream[0], &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream[0]));
    wait_until(&counter, 4);
    usleep(20000); /* time enough to run ahead, if it could */
    CHECK(counter == 4);
    atomic_store(&flag, 1);
    OK(cuStreamSynchronize(stream[0]));
    CHECK(counter == 6);
}

/* The one node that a captured stream's next operation comes after. */
static CUgraphNode tip(CUstream stream)
{
    CUstreamCaptureStatus status;
    const CUgraphNode *nodes;
    size_t number = 0;
    OK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &nodes, &number));
    CHECK(number == 1);
    return number == 1 ? nodes[0] : NULL;
}

/* A graph under capture is changed by hand. */
static void capture_by_hand(void)
{
    CUgraph graph, during;
    CUstreamCaptureStatus status;
    CUgraphNode first, second, record;
    atomic_int counter = 0;
    size_t number;
    start(0);
    CUstream origin = new_stream(), side = new_stream();
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING), fork_event = new_event(CU_EVENT_DISABLE_TIMING);
    FAILS(cuStreamUpdateCaptureDependencies(origin, NULL, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES),
          CUDA_ERROR_ILLEGAL_STATE);
    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamGetCaptureInfo_v2(origin, &status, NULL, &during, NULL, NULL));
    OK(cuLaunchHostFunc(origin, count, &counter));
    first = tip(origin);
    OK(cuGraphAddEventRecordNode(&record, during, &first, 1, event));
    OK(cuLaunchHostFunc(origin, count, &counter));
    second = tip(origin);
    FAILS(cuGraphAddDependencies(during, &first, &record, 1), CUDA_ERROR_INVALID_VALUE);     /* there is one */
    FAILS(cuGraphAddDependencies(during, &record, &first, 1), CUDA_ERROR_INVALID_VALUE);     /* a cycle */
    FAILS(cuGraphRemoveDependencies(during, &second, &record, 1), CUDA_ERROR_INVALID_VALUE); /* there is none */
    FAILS(cuGraphDestroy(during), CUDA_ERROR_INVALID_VALUE);

    /* A branch that is given up by hand need not be joined; the record node never was on a stream. */
    OK(cuEventRecord(fork_event, origin));
    OK(cuStreamWaitEvent(side, fork_event, 0));
    OK(cuLaunchHostFunc(side, count, &counter));
    OK(cuStreamUpdateCaptureDependencies(side, &second, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    CHECK(tip(side) == second);
    OK(cuStreamEndCapture(origin, &graph));
    OK(cuGraphGetNodes(graph, NULL, &number));
    CHECK(number == 4);
}

static CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec exec = NULL;
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    return exec;
}

/* External events, updates and user objects. */
static void graphs(void)
{
    CUgraph graph, other;
    CUuserObject object;
    CUgraphExecUpdateResultInfo info;
    atomic_int counter = 0, destroyed = 0, flag = 0;
    start(0);
    CUstream stream = new_stream();
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
    FAILS(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuLaunchHostFunc(stream, wait_flag, &flag));
    OK(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuEventQuery(event)); /* the capture has not touched it */
    OK(cuUserObjectCreate(&object, &destroyed, count, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    FAILS(cuUserObjectRelease(object, 3), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    OK(cuUserObjectRelease(object, 1));
    OK(cuGraphCreate(&other, 0));
    CUgraphExec exec = instantiate(graph);
    FAILS(cuGraphExecUpdate_v2(exec, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    OK(cuGraphLaunch(exec, stream));
    OK(cuEventDestroy(event));
    FAILS(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_HANDLE);
    OK(cuGraphExecDestroy(exec));
    CHECK(destroyed == 0 && counter == 0); /* the launch still runs */
    atomic_store(&flag, 1);
    wait_until(&destroyed, 1);
}

int main(void)
{
    static const struct {
        void (*run)(void);
        const char *name;
    } scenarios[] = {
        {devices, "devices before and after the start, visible and not"},
        {no_device, "no topology, or no visible device: no device"},
        {contexts, "contexts and peer access"},
        {report, "report of what a process leaves"},
        {faults, "faults on request, and the trace"},
        {forked, "a forked child cannot use the driver"},
        {memory, "device and host memory"},
        {ipc, "IPC memory between two processes"},
        {ipc_without_access, "no IPC without peer access"},
        {streams, "streams and events"},
        {legacy, "the legacy stream"},
        {host_functions, "host functions may not call the driver"},
        {full_queue, "a launch into a full queue blocks"},
        {connections, "streams do not hold each other up"},
        {one_connection, "with one connection they do"},
        {kernels, "kernels with pointers that a GPU could not reach, and in graphs"},
        {capture_errors, "what a capture forbids"},
        {capture_chain, "capture along a chain of streams"},
        {capture_by_hand, "a graph changed by hand while it is captured"},
        {graphs, "event nodes, updates and user objects of graphs"},
    };
    unsetenv("CUDA_VISIBLE_DEVICES");
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        tap_ok(run_child(scenarios[i].run), "%s", scenarios[i].name);
    }
    return tap_done();
}
