/* SPDX-License-Identifier: MIT */
/*
 * t_simnode_device.c - the simulated driver: devices, contexts, faults on request, memory and its IPC
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/unit/scenario.h"
#include "topo/nvml.h"

#define DECLARE(field_, symbol_, args_) int symbol_ args_;
OH_NVML_FUNCTIONS(DECLARE)
#undef DECLARE

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

int main(void)
{
    static const struct scenario scenarios[] = {
        {devices, "devices, in the order of CUDA_VISIBLE_DEVICES"},
        {no_topology, "no topology, or no visible device: no device"},
        {contexts, "contexts and peer access"},
        {report, "report of what a process leaves"},
        {faults, "faults on request, and the trace"},
        {forked, "a forked child cannot use the driver"},
        {memory, "device and host memory"},
        {ipc, "IPC memory between two processes"},
        {ipc_without_access, "no IPC without peer access"},
    };
    return run_scenarios(scenarios, sizeof scenarios / sizeof *scenarios);
}
