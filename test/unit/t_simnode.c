/* SPDX-License-Identifier: MIT */
/*
 * t_simnode.c - the stand-in driver and NVML behave as the real ones where onehop relies on it
 *
 * Each scenario is one test point and runs in a process of its own, so with libraries that nobody has used and with
 * its own environment. Within a scenario, CHECK notes what went wrong and goes on.
 */
#include <cuda.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/abi.h"
#include "test/tap.h"
#include "topo/nvml.h"

/* Not the names that this cuda.h gives them. */
CUresult cuStreamGetCaptureInfo_v2(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **,
                                   size_t *);
#undef cuStreamUpdateCaptureDependencies
#undef cuGraphAddDependencies
#undef cuGraphRemoveDependencies
CUresult cuStreamUpdateCaptureDependencies(CUstream, CUgraphNode *, size_t, unsigned);
CUresult cuGraphAddDependencies(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);
CUresult cuGraphRemoveDependencies(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);
#define DECLARE(field_, symbol_, args_) int symbol_ args_;
OH_NVML_FUNCTIONS(DECLARE)
#undef DECLARE

static int failures;

#define CHECK(condition_)                                                                                              \
    do {                                                                                                               \
        if (!(condition_)) {                                                                                           \
            failures++;                                                                                                \
            tap_note("line %d: not so: %s", __LINE__, #condition_);                                                    \
        }                                                                                                              \
    } while (0)
#define OK(call_) CHECK((call_) == CUDA_SUCCESS)
#define FAILS(call_, error_) CHECK((call_) == (error_))

/* Runs part of a test in a child process; true: all its checks held. */
static bool run_child(void (*part)(void))
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        failures = 0;
        alarm(60);
        part();
        exit(failures ? 1 : 0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
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

/* Waits in a host function until the flag is set, so that a test can look at a stream that is busy. */
static void CUDA_CB wait_flag(void *flag)
{
    while (!atomic_load((atomic_int *)flag)) {
        usleep(100);
    }
}

static void CUDA_CB count(void *counter)
{
    atomic_fetch_add((atomic_int *)counter, 1);
}

/* ---- devices, contexts, report, faults ---- */

static void devices(void)
{
    int number, value;
    char text[64];
    CUcontext ctx;
    FAILS(cuDeviceGetCount(&number), CUDA_ERROR_NOT_INITIALIZED);
    setenv("SIMNODE_TOPOLOGY", "h200x8", 1);
    setenv("CUDA_VISIBLE_DEVICES", "5,2", 1);
    OK(cuInit(0));
    OK(cuInit(0));
    OK(cuDeviceGetCount(&number));
    CHECK(number == 2);
    OK(cuDeviceGetPCIBusId(text, sizeof text, 0));
    CHECK(strcmp(text, "0000:BB:00.0") == 0);
    OK(cuDeviceGetByPCIBusId(&value, "0000:4c:00.0"));
    CHECK(value == 1);
    FAILS(cuDeviceGetByPCIBusId(&value, "0000:19:00.0"), CUDA_ERROR_INVALID_DEVICE);
    OK(cuDeviceGetName(text, sizeof text, 1));
    CHECK(strncmp(text, "SIMULATED ", 10) == 0);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    CHECK(value == 132);
    OK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 0, 1));
    CHECK(value == 1);
    OK(cuCtxGetCurrent(&ctx));
    CHECK(ctx == NULL);
}

static void no_topology(void)
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
    CUcontext one, two, seen;
    CUdevice device;
    one = start(0);
    OK(cuDevicePrimaryCtxRetain(&two, 1));
    OK(cuCtxPushCurrent(two));
    OK(cuCtxGetDevice(&device));
    CHECK(device == 1);
    OK(cuCtxPopCurrent(&seen));
    CHECK(seen == two);
    OK(cuCtxGetCurrent(&seen));
    CHECK(seen == one);
    OK(cuCtxEnablePeerAccess(two, 0));
    FAILS(cuCtxEnablePeerAccess(two, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    OK(cuDevicePrimaryCtxRelease(1));
    FAILS(cuCtxPushCurrent(two), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuDevicePrimaryCtxRelease(0));
    FAILS(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
}

/* The number behind a name in this process's parent's scratch report; -1: no such line. */
static long report_value(const char *path, const char *name)
{
    char line[256];
    long value = -1;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ' ') {
            value = strtol(strrchr(line, ' '), NULL, 10);
        }
    }
    if (file) {
        fclose(file);
    }
    return value;
}

static void leave_inert(void)
{
    OK(cuInit(0));
}

static void leave_traces(void)
{
    CUstream stream;
    CUevent event;
    void *host;
    start(0);
    allocate(1000);
    CUdeviceptr freed = allocate(500);
    OK(cuMemFree(freed));
    OK(cuMemHostAlloc(&host, 10, 0));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, 0));
    OK(cuEventDestroy(event));
}

/* Runs `part` in a child and gives the path of its report. */
static void child_report(void (*part)(void), char *path, size_t size)
{
    int status;
    char prefix[] = "/tmp/simnode-report-XXXXXX";
    int file = mkstemp(prefix);
    close(file);
    unlink(prefix);
    setenv("SIMNODE_REPORT", prefix, 1);
    pid_t child = fork();
    if (child == 0) {
        part();
        exit(failures ? 1 : 0);
    }
    unsetenv("SIMNODE_REPORT");
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    snprintf(path, size, "%s.%ld", prefix, (long)child);
}

static void report(void)
{
    char path[128];
    child_report(leave_inert, path, sizeof path);
    CHECK(report_value(path, "context_created") == 0);
    CHECK(report_value(path, "mem_allocs") == 0);
    unlink(path);
    child_report(leave_traces, path, sizeof path);
    CHECK(report_value(path, "context_created") == 1);
    CHECK(report_value(path, "mem_live_bytes") == 1000);
    CHECK(report_value(path, "mem_peak_bytes") == 1500);
    CHECK(report_value(path, "host_live") == 1);
    CHECK(report_value(path, "streams_live") == 1);
    CHECK(report_value(path, "events_live") == 0);
    unlink(path);
}

static void faults(void)
{
    char path[] = "/tmp/simnode-trace-XXXXXX", text[256] = "";
    CUdeviceptr address;
    int file = mkstemp(path), status;
    setenv("SIMNODE_FAIL", "cuMemAlloc_v2:2,nvmlDeviceGetP2PStatus", 1);
    setenv("SIMNODE_TRACE", path, 1);
    start(0);
    OK(cuMemAlloc(&address, 16));
    FAILS(cuMemAlloc(&address, 16), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuMemAlloc(&address, 16));
    CHECK(read(file, text, sizeof text - 1) > 0);
    CHECK(strcmp(text, "cuInit\ncuDevicePrimaryCtxRetain\ncuCtxSetCurrent\n"
                       "cuMemAlloc_v2\ncuMemAlloc_v2\ncuMemAlloc_v2\n") == 0);
    oh_nvml_device_t device;
    OK((CUresult)nvmlInit_v2());
    OK((CUresult)nvmlDeviceGetHandleByPciBusId_v2("0000:19:00.0", &device));
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

/* ---- memory ---- */

static void memory(void)
{
    unsigned char bytes[64];
    uint32_t words[4];
    void *host;
    CUdeviceptr device, alias;
    start(0);
    device = allocate(4096);
    OK(cuMemcpyDtoH(bytes, device, sizeof bytes));
    CHECK(bytes[0] == 0xA5 && bytes[63] == 0xA5);
    OK(cuMemsetD8(device, 7, 3));
    OK(cuMemsetD32Async(device + 4, 0x01020304, 2, NULL));
    OK(cuMemcpyDtoHAsync(words, device, sizeof words, NULL));
    CHECK(words[0] == 0xA5070707 && words[1] == 0x01020304 && words[2] == 0x01020304 && words[3] == 0xA5A5A5A5);
    words[0] = 42;
    OK(cuMemcpyHtoDAsync(device, words, 4, NULL));
    words[0] = 43; /* pageable memory is free again */
    OK(cuMemcpyDtoDAsync(device + 100, device, 4, NULL));
    OK(cuMemcpyDtoH(words, device + 100, 4));
    CHECK(words[0] == 42);
    FAILS(cuMemcpyHtoD(device + 4090, words, 7), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemFree(device + 4), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(device));
    FAILS(cuMemFree(device), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAlloc(&device, (size_t)1 << 40), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemHostAlloc(&host, 100, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostGetDevicePointer(&alias, host, 0));
    CHECK(pointer(alias) == host);
    OK(cuMemFreeHost(host));
    FAILS(cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
}

/* One process exports memory of device 0, another opens it on device 1; both write. */
static int to_peer[2], to_owner[2];

static void ipc_open(void)
{
    CUipcMemHandle handle;
    CUdeviceptr address, again;
    char *mapped;
    CHECK(read(to_peer[0], &handle, sizeof handle) == sizeof handle);
    start(1);
    FAILS(cuIpcOpenMemHandle(&address, handle, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(address == again);
    mapped = pointer(address);
    CHECK(strcmp(mapped, "from the owner") == 0);
    OK(cuMemcpyHtoD(address, "from the peer", 14));
    OK(cuIpcCloseMemHandle(again));
    CHECK(strcmp(mapped, "from the peer") == 0);
    OK(cuIpcCloseMemHandle(address));
    FAILS(cuIpcCloseMemHandle(address), CUDA_ERROR_INVALID_VALUE);
    CHECK(write(to_owner[1], "x", 1) == 1);
    CHECK(read(to_peer[0], &handle, sizeof handle) == sizeof handle);
    FAILS(cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_HANDLE);
}

static void ipc_export(void)
{
    CUipcMemHandle handle;
    CUdeviceptr opened, address;
    char byte;
    start(0);
    address = allocate(100000);
    OK(cuMemcpyHtoD(address, "from the owner", 15));
    OK(cuIpcGetMemHandle(&handle, address + 64)); /* the handle is that of the whole allocation */
    FAILS(cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(write(to_peer[1], &handle, sizeof handle) == sizeof handle);
    CHECK(read(to_owner[0], &byte, 1) == 1);
    CHECK(strcmp(pointer(address), "from the peer") == 0);
    OK(cuMemFree(address));
    CHECK(write(to_peer[1], &handle, sizeof handle) == sizeof handle);
}

/* Runs the two parts at the same time, in two processes. */
static void run_pair(void (*one)(void), void (*other)(void))
{
    int status;
    CHECK(pipe(to_peer) == 0 && pipe(to_owner) == 0);
    pid_t child = fork();
    if (child == 0) {
        other();
        exit(failures ? 1 : 0);
    }
    one();
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void ipc(void)
{
    run_pair(ipc_export, ipc_open);
}

static void ipc_refused(void)
{
    CUipcMemHandle handle;
    CUdeviceptr address;
    CHECK(read(to_peer[0], &handle, sizeof handle) == sizeof handle);
    start(1);
    FAILS(cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    CHECK(write(to_owner[1], "x", 1) == 1);
}

static void ipc_offer(void)
{
    CUipcMemHandle handle;
    CUcontext peer;
    int can;
    char byte;
    start(0);
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    CHECK(!can);
    OK(cuDevicePrimaryCtxRetain(&peer, 1));
    FAILS(cuCtxEnablePeerAccess(peer, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    OK(cuIpcGetMemHandle(&handle, allocate(100)));
    CHECK(write(to_peer[1], &handle, sizeof handle) == sizeof handle);
    CHECK(read(to_owner[0], &byte, 1) == 1);
}

static void ipc_without_access(void)
{
    setenv("SIMNODE_TOPOLOGY", "nvml-disagrees", 1);
    run_pair(ipc_offer, ipc_refused);
}

/* ---- streams and events ---- */

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

/* ---- capture and graphs ---- */

static CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec exec = NULL;
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    return exec;
}

static void capture(void)
{
    CUstream origin, side;
    CUevent fork_event, join_event;
    CUgraph graph, during;
    CUstreamCaptureStatus status;
    cuuint64_t id, side_id;
    atomic_int counter = 0, on_side = 0;
    start(0);
    OK(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));

    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuLaunchHostFunc(origin, count, &counter));
    OK(cuEventRecord(fork_event, origin));
    OK(cuStreamWaitEvent(side, fork_event, 0));
    OK(cuLaunchHostFunc(side, count, &on_side));
    OK(cuLaunchHostFunc(origin, wait_flag, &on_side)); /* branches run at the same time */
    OK(cuStreamGetCaptureInfo_v2(origin, &status, &id, &during, NULL, NULL));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuStreamGetCaptureInfo_v2(side, &status, &side_id, NULL, NULL, NULL));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id == side_id);
    FAILS(cuEventQuery(fork_event), CUDA_ERROR_CAPTURED_EVENT);
    OK(cuEventRecord(join_event, side));
    OK(cuStreamWaitEvent(origin, join_event, 0));
    OK(cuStreamEndCapture(origin, &graph));
    CHECK(graph == during);
    OK(cuStreamIsCapturing(side, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK(counter == 0);

    CUgraphExec exec = instantiate(graph);
    for (int i = 0; i < 50; i++) {
        OK(cuGraphLaunch(exec, i % 3 == 2 ? side : origin));
    }
    OK(cuGraphExecDestroy(exec)); /* while it runs */
    OK(cuCtxSynchronize());
    CHECK(counter == 50 && on_side == 50);
}

/* origin -> a -> b -> origin: the origin waits for b alone, and so for a too. */
static void capture_chain(void)
{
    CUstream stream[3];
    CUevent event[3];
    CUgraph graph;
    atomic_int counter = 0;
    start(0);
    for (int i = 0; i < 3; i++) {
        OK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
        OK(cuEventCreate(&event[i], CU_EVENT_DISABLE_TIMING));
    }
    OK(cuStreamBeginCapture(stream[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < 3; i++) {
        OK(cuLaunchHostFunc(stream[i], count, &counter));
        OK(cuEventRecord(event[i], stream[i]));
        OK(cuStreamWaitEvent(stream[(i + 1) % 3], event[i], 0));
    }
    OK(cuStreamEndCapture(stream[0], &graph));
    CUgraphExec exec = instantiate(graph);
    OK(cuGraphLaunch(exec, stream[0]));
    OK(cuStreamSynchronize(stream[0]));
    CHECK(counter == 3);
    OK(cuGraphExecDestroy(exec));
}

static void capture_errors(void)
{
    CUstream origin, side, blocking;
    CUevent event;
    CUgraph graph;
    CUdeviceptr address;
    CUstreamCaptureStatus status;
    atomic_int counter = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    start(0);
    OK(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    FAILS(cuStreamEndCapture(origin, &graph), CUDA_ERROR_ILLEGAL_STATE);

    /* A stream that was forked off and not joined. */
    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuEventRecord(event, origin));
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
    OK(cuStreamIsCapturing(origin, &status));
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

/* A graph under capture is changed by hand: edges, a node, what a stream comes after. */
static void capture_by_hand(void)
{
    CUstream origin, side;
    CUevent event, fork_event;
    CUgraph graph, during;
    CUstreamCaptureStatus status;
    CUgraphNode first, second, record;
    atomic_int counter = 0;
    size_t number;
    start(0);
    OK(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
    FAILS(cuStreamUpdateCaptureDependencies(origin, NULL, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES),
          CUDA_ERROR_ILLEGAL_STATE);
    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamGetCaptureInfo_v2(origin, &status, NULL, &during, NULL, &number));
    CHECK(number == 0);
    OK(cuLaunchHostFunc(origin, count, &counter));
    first = tip(origin);
    OK(cuGraphAddEventRecordNode(&record, during, &first, 1, event));
    OK(cuLaunchHostFunc(origin, count, &counter));
    second = tip(origin);
    CHECK(second != first && second != record);
    FAILS(cuGraphAddDependencies(during, &first, &record, 1), CUDA_ERROR_INVALID_VALUE);     /* there is one */
    FAILS(cuGraphAddDependencies(during, &record, &first, 1), CUDA_ERROR_INVALID_VALUE);     /* a cycle */
    FAILS(cuGraphRemoveDependencies(during, &second, &record, 1), CUDA_ERROR_INVALID_VALUE); /* there is none */
    OK(cuGraphAddDependencies(during, &second, &record, 1));
    OK(cuGraphRemoveDependencies(during, &first, &record, 1));
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
    CUgraphExec exec = instantiate(graph);
    OK(cuGraphLaunch(exec, origin));
    OK(cuEventSynchronize(event));
    CHECK(counter >= 2);
    OK(cuStreamSynchronize(origin));
    CHECK(counter == 3);
}

/* Records and waits of graphs meet those of streams, in the order in which the host makes them. */
static void external_events(void)
{
    CUstream origin, other;
    CUevent event;
    CUgraph graph;
    atomic_int counter = 0, flag = 0, later = 0;
    start(0);
    OK(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    FAILS(cuStreamWaitEvent(origin, event, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuEventRecordWithFlags(event, origin, CU_EVENT_RECORD_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamWaitEvent(origin, event, CU_EVENT_WAIT_EXTERNAL));
    OK(cuLaunchHostFunc(origin, count, &counter));
    OK(cuEventRecordWithFlags(event, origin, CU_EVENT_RECORD_EXTERNAL));
    OK(cuStreamEndCapture(origin, &graph));
    OK(cuEventQuery(event)); /* the capture has not touched it */
    CUgraphExec exec = instantiate(graph);
    OK(cuGraphLaunch(exec, origin)); /* an event never recorded holds nothing up */
    OK(cuStreamSynchronize(origin));
    CHECK(counter == 1);

    OK(cuLaunchHostFunc(other, wait_flag, &flag));
    OK(cuEventRecord(event, other));
    OK(cuGraphLaunch(exec, origin)); /* waits for the other stream */
    OK(cuStreamWaitEvent(other, event, 0));
    OK(cuLaunchHostFunc(other, count, &later)); /* and that, now, for the graph */
    usleep(20000);
    CHECK(counter == 1 && later == 0);
    atomic_store(&flag, 1);
    OK(cuStreamSynchronize(other));
    CHECK(counter == 2 && later == 1);
    OK(cuEventDestroy(event));
    FAILS(cuGraphLaunch(exec, origin), CUDA_ERROR_INVALID_HANDLE);
}

/* A graph of one host function, with a user object that counts when it is gone. */
static CUgraph counting_graph(CUstream stream, atomic_int *counter, atomic_int *destroyed, int calls)
{
    CUgraph graph;
    CUuserObject object;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < calls; i++) {
        OK(cuLaunchHostFunc(stream, count, counter));
    }
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuUserObjectCreate(&object, destroyed, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    return graph;
}

static void wait_until(atomic_int *value, int expected)
{
    for (int i = 0; i < 1000 && *value != expected; i++) {
        usleep(1000);
    }
    CHECK(*value == expected);
}

/* Clones, child graphs and updates hold what the graph they are made of holds. */
static void graph_copies(void)
{
    CUstream stream;
    CUgraph clone, parent;
    CUgraphNode child, behind;
    CUgraphExecUpdateResultInfo info;
    atomic_int counter = 0, destroyed = 0, second = 0, second_destroyed = 0;
    start(0);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph = counting_graph(stream, &counter, &destroyed, 2);
    OK(cuGraphClone(&clone, graph));
    OK(cuGraphDestroy(graph));
    OK(cuGraphCreate(&parent, 0));
    OK(cuGraphAddChildGraphNode(&child, parent, NULL, 0, clone));
    OK(cuGraphAddChildGraphNode(&behind, parent, &child, 1, clone));
    CUgraphExec exec = instantiate(parent), single = instantiate(clone);
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(counter == 4);
    OK(cuGraphExecDestroy(exec));
    CHECK(destroyed == 0);

    CUgraph longer = counting_graph(stream, &second, &second_destroyed, 3);
    FAILS(cuGraphExecUpdate_v2(single, longer, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    OK(cuGraphDestroy(longer));
    CUgraph like = counting_graph(stream, &second, &second_destroyed, 2);
    OK(cuGraphExecUpdate_v2(single, like, &info));
    OK(cuGraphDestroy(like));
    wait_until(&destroyed, 1);
    wait_until(&second_destroyed, 1); /* of the longer */
    OK(cuGraphLaunch(single, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(counter == 4 && second == 2);
    OK(cuGraphExecDestroy(single));
    wait_until(&second_destroyed, 2);
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

static void user_objects(void)
{
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUuserObject object;
    CUstreamCaptureStatus status;
    atomic_int destroyed = 0, flag = 0;
    start(0);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, NULL, NULL));
    OK(cuUserObjectCreate(&object, &destroyed, count, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    OK(cuUserObjectRelease(object, 1));
    OK(cuLaunchHostFunc(stream, wait_flag, &flag));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuGraphDestroy(graph));
    OK(cuGraphExecDestroy(exec));
    CHECK(destroyed == 0); /* the launch still runs */
    atomic_store(&flag, 1);
    OK(cuStreamSynchronize(stream));
    for (int i = 0; i < 1000 && destroyed == 0; i++) {
        usleep(1000);
    }
    CHECK(destroyed == 1);

    /* Without a graph. */
    OK(cuUserObjectCreate(&object, &destroyed, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    FAILS(cuUserObjectRelease(object, 2), CUDA_ERROR_INVALID_VALUE);
    OK(cuUserObjectRelease(object, 1));
    CHECK(destroyed == 2);
}

/* ---- kernels ---- */

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
    OK(cuCtxSynchronize());
}

static CUresult launch(struct rank *ranks, unsigned me, CUfunction function, const void *abort_word)
{
    struct oh_kernel_args args = {
        .staging = {pointer(ranks[me].staging), pointer(ranks[1 - me].staging)},
        .sendbuff = pointer(ranks[me].data),
        .recvbuff = pointer(ranks[me].out),
        .count = COUNT,
        .abort_word = abort_word,
        .rank = me,
    };
    void *parameters[] = {&args};
    CUlaunchConfig config = {.gridDimX = 3,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 128,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = ranks[me].stream};
    OK(cuCtxSetCurrent(ranks[me].ctx));
    return cuLaunchKernelEx(&config, function, parameters, NULL);
}

static void kernels(void)
{
    struct rank ranks[2];
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    uint32_t *abort_word;
    setenv("SIMNODE_DELAY_US", "300", 1);
    setenv("SIMNODE_SEED", "5", 1);
    rank_open(&ranks[0], 0);
    OK(cuMemHostAlloc((void **)&abort_word, 4, 0));
    *abort_word = 0;
    OK(cuLibraryLoadData(&library, "not looked at", NULL, NULL, 0, NULL, NULL, 0));
    FAILS(cuLibraryGetKernel(&kernel, library, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
    OK(cuLibraryGetKernel(&kernel, library, "oh_oneshot_marker_sum_f32_n2"));
    OK(cuKernelGetFunction(&function, kernel));
    rank_open(&ranks[1], 1);

    fclose(stderr); /* on which the refusals explain themselves */
    FAILS(launch(ranks, 0, function, abort_word), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxEnablePeerAccess(ranks[1].ctx, 0));
    uint32_t on_stack = 0;
    FAILS(launch(ranks, 0, function, &on_stack), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxSetCurrent(ranks[1].ctx));
    OK(cuCtxEnablePeerAccess(ranks[0].ctx, 0));

    for (int call = 0; call < 5; call++) {
        OK(launch(ranks, 0, function, abort_word));
        OK(launch(ranks, 1, function, abort_word));
    }
    for (int r = 0; r < 2; r++) {
        const float *out = pointer(ranks[r].out);
        int wrong = 0;
        OK(cuStreamSynchronize(ranks[r].stream));
        for (int i = 0; i < COUNT; i++) {
            wrong += out[i] != (float)(3 * i);
        }
        CHECK(wrong == 0);
    }
    OK(cuLibraryUnload(library));
    FAILS(launch(ranks, 0, function, abort_word), CUDA_ERROR_INVALID_HANDLE);
}

static void concurrent_blocks(void)
{
    setenv("SIMNODE_BLOCK_THREADS", "1", 1);
    kernels();
}

/* ---- NVML ---- */

static oh_nvml_device_t nvml_device(const char *bus_id)
{
    oh_nvml_device_t device = NULL;
    CHECK(nvmlDeviceGetHandleByPciBusId_v2(bus_id, &device) == 0);
    return device;
}

static void nvml_switch(void)
{
    int status, type, links = 0, active;
    unsigned current, pending;
    oh_nvml_device_t device;
    CHECK(nvmlDeviceGetHandleByPciBusId_v2("0000:19:00.0", &device) == 1);
    setenv("SIMNODE_TOPOLOGY", "h200x4", 1);
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    CHECK(nvmlInit_v2() == 0);
    oh_nvml_device_t one = nvml_device("0000:19:00.0"), two = nvml_device("00000000:3b:00.0");
    CHECK(nvmlDeviceGetHandleByPciBusId_v2("0000:AA:00.0", &device) == 6);
    CHECK(nvmlDeviceGetP2PStatus(one, two, OH_NVML_P2P_NVLINK, &status) == 0 && status == OH_NVML_P2P_OK);
    CHECK(nvmlDeviceGetMigMode(one, &current, &pending) == 0 && current == 0);
    while (nvmlDeviceGetNvLinkState(one, (unsigned)links, &active) == 0) {
        CHECK(active == 1);
        CHECK(nvmlDeviceGetNvLinkRemoteDeviceType(one, (unsigned)links, &type) == 0 && type == OH_NVML_REMOTE_SWITCH);
        links++;
    }
    CHECK(links == 18);
}

static void nvml_direct(void)
{
    int type, to_two = 0;
    struct oh_nvml_pci pci;
    setenv("SIMNODE_TOPOLOGY", "a100x4-direct", 1);
    CHECK(nvmlInit_v2() == 0);
    oh_nvml_device_t one = nvml_device("0000:19:00.0");
    for (unsigned link = 0; link < 12; link++) {
        CHECK(nvmlDeviceGetNvLinkRemoteDeviceType(one, link, &type) == 0 && type == 0);
        CHECK(nvmlDeviceGetNvLinkRemotePciInfo_v2(one, link, &pci) == 0);
        to_two += strcmp(pci.bus_id, "00000000:3B:00.0") == 0;
    }
    CHECK(to_two == 4);
    CHECK(nvmlDeviceGetNvLinkState(one, 12, &type) == 3);
}

/* What NVML says of NVLink between the first two GPUs, and of MIG on the second; -1: it fails. */
static void nvml_pair(int expected_nvlink, int expected_mig)
{
    int status = -1;
    unsigned current = 0, pending;
    CHECK(nvmlInit_v2() == 0);
    oh_nvml_device_t one = nvml_device("0000:19:00.0"), two = nvml_device("0000:3B:00.0");
    if (nvmlDeviceGetP2PStatus(one, two, OH_NVML_P2P_NVLINK, &status) != 0) {
        status = -1;
    }
    CHECK(status == expected_nvlink);
    CHECK(nvmlDeviceGetMigMode(two, &current, &pending) == 0 && (int)current == expected_mig);
}

static void nvml_pcie(void)
{
    setenv("SIMNODE_TOPOLOGY", "pcie-only", 1);
    nvml_pair(5, 0);
}

static void nvml_mig(void)
{
    setenv("SIMNODE_TOPOLOGY", "mig", 1);
    nvml_pair(OH_NVML_P2P_OK, 1);
}

static void nvml_unknown(void)
{
    setenv("SIMNODE_TOPOLOGY", "vm-hidden", 1);
    nvml_pair(OH_NVML_P2P_UNKNOWN, 0);
}

static void nvml_hidden(void)
{
    setenv("SIMNODE_TOPOLOGY", "vm-hidden-noproof", 1);
    nvml_pair(-1, 0);
}

static const char *topology;

static void load_topology(void)
{
    setenv("SIMNODE_TOPOLOGY", topology, 1);
    OK(cuInit(0));
    CHECK(nvmlInit_v2() == 0);
}

static void topologies(void)
{
    static const char *const names[] = {
        "h200x2",        "h200x3",    "h200x4",         "h200x5",         "h200x6", "h200x7",    "h200x8",
        "a100x4-direct", "pcie-only", "partial-nvlink", "dead-link-pair", "mig",    "vm-hidden", "vm-hidden-noproof",
        "nvml-disagrees"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        topology = names[i];
        CHECK(run_child(load_topology));
    }
}

int main(void)
{
    static const struct {
        void (*run)(void);
        const char *name;
    } scenarios[] = {
        {devices, "devices, in the order of CUDA_VISIBLE_DEVICES"},
        {no_topology, "no topology, or no visible device: no device"},
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
        {capture, "capture with a branch, launched 50 times"},
        {capture_chain, "capture along a chain of streams"},
        {capture_errors, "what a capture forbids"},
        {capture_by_hand, "a graph changed by hand while it is captured"},
        {external_events, "event nodes of graphs and events of streams"},
        {graph_copies, "clones, child graphs, updates"},
        {user_objects, "user objects"},
        {full_queue, "a launch into a full queue blocks"},
        {connections, "streams do not hold each other up"},
        {one_connection, "with one connection they do"},
        {kernels, "kernels of two ranks, and pointers that a GPU could not reach"},
        {concurrent_blocks, "blocks in threads of their own"},
        {nvml_switch, "NVML: GPUs behind switches"},
        {nvml_direct, "NVML: links from GPU to GPU"},
        {nvml_pcie, "NVML: PCIe only"},
        {nvml_mig, "NVML: MIG"},
        {nvml_unknown, "NVML: NVLink unknown"},
        {nvml_hidden, "NVML: NVLink hidden"},
        {topologies, "every topology can be read"},
    };
    char folder[4096];
    const char *source = getenv("abs_top_srcdir");
    if (source) {
        snprintf(folder, sizeof folder, "%s/test/simnode/topologies", source);
        setenv("SIMNODE_TOPOLOGY_DIR", folder, 1);
    }
    unsetenv("CUDA_VISIBLE_DEVICES");
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        tap_ok(run_child(scenarios[i].run), "%s", scenarios[i].name);
    }
    return tap_done();
}
