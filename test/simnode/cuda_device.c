/* SPDX-License-Identifier: MIT */
/*
 * cuda_device.c - the simulated driver's start, devices, contexts and error names
 *
 * The devices are the topology's GPUs that CUDA_VISIBLE_DEVICES names, in its order. They do not change after cuInit.
 */
#include "test/simnode/cuda_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STACK_DEPTH 16

static _Thread_local CUcontext stack[STACK_DEPTH];
static _Thread_local int depth;
static _Thread_local bool in_callback;

static CUresult enter_uninitialised(const char *function, const void *caller)
{
    SIMCUDA_FAIL_IF(simnode_call(function, caller), CUDA_ERROR_NOT_SUPPORTED);
    return in_callback ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

/* A context in which a kernel has trapped can only be left; what concerns no context goes on. */
static bool is_ended_by_trap(const char *function)
{
    CUcontext ctx = depth > 0 ? stack[depth - 1] : NULL;
    return ctx && atomic_load(&ctx->trapped) && strncmp(function, "cuCtx", 5) != 0 &&
           strncmp(function, "cuDevice", 8) != 0 && strncmp(function, "cuThread", 8) != 0;
}

CUresult simcuda_enter(const char *function, const void *caller)
{
    SIMCUDA_TRY(enter_uninitialised(function, caller));
    SIMCUDA_FAIL_IF(simcuda.owner != getpid(), CUDA_ERROR_NOT_INITIALIZED);
    return is_ended_by_trap(function) ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

pthread_mutex_t *simcuda_lock(void)
{
    pthread_mutex_lock(&simcuda.lock);
    return &simcuda.lock;
}

void simcuda_unlock(pthread_mutex_t *const *lock)
{
    pthread_mutex_unlock(*lock);
}

CUresult simcuda_after_wait(void)
{
    CUcontext ctx = simcuda_current();
    return ctx && atomic_load(&ctx->trapped) ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

void simcuda_callback(void (*run)(void *), void *data)
{
    in_callback = true;
    run(data);
    in_callback = false;
}

CUcontext simcuda_current(void)
{
    CUcontext ctx = depth > 0 ? stack[depth - 1] : NULL;
    return ctx && ctx->uses > 0 ? ctx : NULL;
}

int simcuda_gpu(const struct CUctx_st *ctx)
{
    return simcuda.gpu_of[ctx->device];
}

/* As CUDA reads it: the list ends at the first entry that is not the index of a GPU. */
static void choose_devices(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!visible) {
        for (simcuda.devices = 0; simcuda.devices < simcuda.topology->gpus; simcuda.devices++) {
            simcuda.gpu_of[simcuda.devices] = simcuda.devices;
        }
        return;
    }
    while (simcuda.devices < SIMNODE_MAX_GPUS) {
        char *end;
        long gpu = strtol(visible, &end, 10);
        if (end == visible || gpu < 0 || gpu >= simcuda.topology->gpus) {
            return;
        }
        simcuda.gpu_of[simcuda.devices++] = (int)gpu;
        if (*end != ',') {
            return;
        }
        visible = end + 1;
    }
}

CUresult cuInit(unsigned flags)
{
    SIMCUDA_TRY(enter_uninitialised(__func__, __builtin_return_address(0)));
    SIMCUDA_FAIL_IF(flags != 0, CUDA_ERROR_INVALID_VALUE);
    if (simcuda.owner != 0) { /* a forked child's lock may be held for ever */
        return simcuda.owner == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    }
    SIMCUDA_HOLD();
    if (simcuda.owner != 0) {
        return CUDA_SUCCESS;
    }
    simcuda.topology = simnode_topology_get();
    SIMCUDA_FAIL_IF(!simcuda.topology, CUDA_ERROR_NO_DEVICE);
    choose_devices();
    SIMCUDA_FAIL_IF(simcuda.devices == 0, CUDA_ERROR_NO_DEVICE);
    for (int i = 0; i < simcuda.devices; i++) {
        simcuda.context[i].device = i;
    }
    simcuda.seed = simnode_setting("SIMNODE_SEED");
    simcuda.delay_us = simnode_setting("SIMNODE_DELAY_US");
    simcuda.copy_2d_us = simnode_setting("SIMNODE_COPY_2D_US");
    simcuda.queue = simnode_setting("SIMNODE_QUEUE");
    simcuda.queue = simcuda.queue > 0 ? simcuda.queue : SIMCUDA_QUEUE;
    simcuda.one_connection = simnode_setting("CUDA_DEVICE_MAX_CONNECTIONS") == 1;
    simcuda.block_threads = simnode_setting("SIMNODE_BLOCK_THREADS") == 1;
    simcuda.memory = (size_t)simnode_setting("SIMNODE_MEMORY_MIB") << 20;
    simcuda.memory = simcuda.memory > 0 ? simcuda.memory : (size_t)simcuda.topology->gpu->memory_gib << 30;
    simcuda.owner = getpid();
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version_p)
{
    SIMCUDA_TRY(enter_uninitialised(__func__, __builtin_return_address(0)));
    *version_p = 13000;
    return CUDA_SUCCESS;
}

#define ERRORS(X)                                                                                                      \
    X(CUDA_SUCCESS)                                                                                                    \
    X(CUDA_ERROR_INVALID_VALUE)                                                                                        \
    X(CUDA_ERROR_OUT_OF_MEMORY)                                                                                        \
    X(CUDA_ERROR_NOT_INITIALIZED)                                                                                      \
    X(CUDA_ERROR_NO_DEVICE)                                                                                            \
    X(CUDA_ERROR_INVALID_DEVICE)                                                                                       \
    X(CUDA_ERROR_INVALID_CONTEXT)                                                                                      \
    X(CUDA_ERROR_MAP_FAILED)                                                                                           \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)                                                                              \
    X(CUDA_ERROR_INVALID_HANDLE)                                                                                       \
    X(CUDA_ERROR_ILLEGAL_STATE)                                                                                        \
    X(CUDA_ERROR_NOT_FOUND)                                                                                            \
    X(CUDA_ERROR_NOT_READY)                                                                                            \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED)                                                                                 \
    X(CUDA_ERROR_LAUNCH_FAILED)                                                                                        \
    X(CUDA_ERROR_ILLEGAL_ADDRESS)                                                                                      \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)                                                                          \
    X(CUDA_ERROR_NOT_PERMITTED)                                                                                        \
    X(CUDA_ERROR_NOT_SUPPORTED)                                                                                        \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)                                                                           \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)                                                                           \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE)                                                                                 \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)                                                                             \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED)                                                                              \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)                                                                             \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)                                                                              \
    X(CUDA_ERROR_CAPTURED_EVENT)                                                                                       \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)                                                                          \
    X(CUDA_ERROR_UNKNOWN)

CUresult cuGetErrorName(CUresult error, const char **name_p)
{
    SIMCUDA_TRY(enter_uninitialised(__func__, __builtin_return_address(0)));
    switch (error) {
#define ERROR_CASE(name_)                                                                                              \
    case name_:                                                                                                        \
        *name_p = #name_;                                                                                              \
        return CUDA_SUCCESS;
        ERRORS(ERROR_CASE)
#undef ERROR_CASE
    default:
        *name_p = NULL;
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static bool is_device(CUdevice device)
{
    return device >= 0 && device < simcuda.devices;
}

CUresult cuDeviceGetCount(int *count_p)
{
    SIMCUDA_ENTER();
    *count_p = simcuda.devices;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device_p, int ordinal)
{
    SIMCUDA_ENTER();
    SIMCUDA_FAIL_IF(!is_device(ordinal), CUDA_ERROR_INVALID_DEVICE);
    *device_p = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name_p, int size, CUdevice device)
{
    SIMCUDA_ENTER();
    SIMCUDA_FAIL_IF(!is_device(device), CUDA_ERROR_INVALID_DEVICE);
    SIMCUDA_FAIL_IF(size <= 0, CUDA_ERROR_INVALID_VALUE);
    const char *name = getenv("SIMNODE_NAME");
    snprintf(name_p, (size_t)size, "%s", name ? name : simcuda.topology->gpu->name);
    return CUDA_SUCCESS;
}

static int attribute_of(const struct simnode_gpu *gpu, CUdevice_attribute attribute)
{
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return gpu->cc_major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        return gpu->cc_minor;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return gpu->sms;
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED: /* which stands for IPC memory, too */
        return 1;
    default:
        return 0;
    }
}

CUresult cuDeviceGetAttribute(int *value_p, CUdevice_attribute attribute, CUdevice device)
{
    SIMCUDA_ENTER();
    SIMCUDA_FAIL_IF(!is_device(device), CUDA_ERROR_INVALID_DEVICE);
    *value_p = attribute_of(simcuda.topology->gpu, attribute);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *text_p, int size, CUdevice device)
{
    SIMCUDA_ENTER();
    SIMCUDA_FAIL_IF(!is_device(device), CUDA_ERROR_INVALID_DEVICE);
    SIMCUDA_FAIL_IF(size <= 0, CUDA_ERROR_INVALID_VALUE);
    simnode_bus_id(simnode_gpu_bus(simcuda.gpu_of[device]), 4, text_p, (size_t)size);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device_p, const char *text)
{
    SIMCUDA_ENTER();
    int gpu = simnode_topology_find(simcuda.topology, text);
    for (int i = 0; i < simcuda.devices; i++) {
        if (simcuda.gpu_of[i] == gpu) {
            *device_p = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

static const struct simnode_pair *pair_of(CUdevice a, CUdevice b)
{
    return simnode_topology_pair(simcuda.topology, simcuda.gpu_of[a], simcuda.gpu_of[b]);
}

CUresult cuDeviceGetP2PAttribute(int *value_p, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice target)
{
    SIMCUDA_ENTER();
    SIMCUDA_FAIL_IF(!is_device(source) || !is_device(target) || source == target, CUDA_ERROR_INVALID_DEVICE);
    const struct simnode_pair *pair = pair_of(source, target);
    switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
        *value_p = pair->access;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value_p = pair->atomics;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx_p, CUdevice device)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!is_device(device), CUDA_ERROR_INVALID_DEVICE);
    CUcontext ctx = &simcuda.context[device];
    if (ctx->uses++ == 0) {
        ctx->id = ++simcuda.contexts_created;
    }
    *ctx_p = ctx;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!is_device(device), CUDA_ERROR_INVALID_DEVICE);
    CUcontext ctx = &simcuda.context[device];
    SIMCUDA_FAIL_IF(ctx->uses == 0, CUDA_ERROR_INVALID_CONTEXT);
    if (--ctx->uses == 0) {
        memset(ctx->peer, 0, sizeof ctx->peer);
    }
    return CUDA_SUCCESS;
}

/* Its handle stays, and is that of another context from now on. */
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!is_device(device), CUDA_ERROR_INVALID_DEVICE);
    CUcontext ctx = &simcuda.context[device];
    if (ctx->uses > 0) {
        simcuda_context_wait(ctx);
        simcuda_streams_reset(ctx);
        simcuda_memory_reset(ctx);
        memset(ctx->peer, 0, sizeof ctx->peer);
        atomic_store(&ctx->trapped, false);
        ctx->id = ++simcuda.contexts_created;
    }
    return CUDA_SUCCESS;
}

static bool is_context(CUcontext ctx)
{
    for (int i = 0; i < simcuda.devices; i++) {
        if (ctx == &simcuda.context[i]) {
            return ctx->uses > 0;
        }
    }
    return false;
}

CUresult cuCtxGetCurrent(CUcontext *ctx_p)
{
    SIMCUDA_ENTER();
    *ctx_p = depth > 0 ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!is_context(ctx) || depth == STACK_DEPTH, CUDA_ERROR_INVALID_CONTEXT);
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *ctx_p)
{
    SIMCUDA_ENTER();
    SIMCUDA_FAIL_IF(depth == 0, CUDA_ERROR_INVALID_CONTEXT);
    depth--;
    if (ctx_p) {
        *ctx_p = stack[depth];
    }
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(ctx && !is_context(ctx), CUDA_ERROR_INVALID_CONTEXT);
    depth = depth > 0 ? depth - 1 : 0;
    if (ctx) {
        stack[depth++] = ctx;
    }
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device_p)
{
    SIMCUDA_LOCK();
    CUcontext ctx = simcuda_current();
    SIMCUDA_FAIL_IF(!ctx, CUDA_ERROR_INVALID_CONTEXT);
    *device_p = ctx->device;
    return CUDA_SUCCESS;
}

/* For SIMNODE_FROM: it does nothing. */
CUresult cuProfilerStart(void)
{
    SIMCUDA_ENTER();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *id_p)
{
    SIMCUDA_LOCK();
    ctx = ctx ? ctx : simcuda_current();
    SIMCUDA_FAIL_IF(!ctx || !is_context(ctx), CUDA_ERROR_INVALID_CONTEXT);
    *id_p = ctx->id;
    return CUDA_SUCCESS;
}

/* SIMNODE_SMS: as a share of MPS limits a process. */
CUresult cuCtxGetExecAffinity(CUexecAffinityParam *affinity_p, CUexecAffinityType type)
{
    SIMCUDA_LOCK();
    CUcontext ctx = simcuda_current();
    const uint32_t limit = simnode_setting("SIMNODE_SMS");
    SIMCUDA_FAIL_IF(!ctx, CUDA_ERROR_INVALID_CONTEXT);
    SIMCUDA_FAIL_IF(type != CU_EXEC_AFFINITY_TYPE_SM_COUNT, CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    affinity_p->type = type;
    affinity_p->param.smCount.val = limit > 0 ? limit : (unsigned)simcuda.topology->gpu->sms;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    SIMCUDA_LOCK();
    CUcontext ctx;
    SIMCUDA_TRY(simcuda_usable(&ctx));
    simcuda_context_wait(ctx);
    return simcuda_after_wait();
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    SIMCUDA_LOCK();
    CUcontext ctx = simcuda_current();
    SIMCUDA_FAIL_IF(!ctx || !is_context(peer) || ctx == peer, CUDA_ERROR_INVALID_CONTEXT);
    SIMCUDA_FAIL_IF(flags != 0, CUDA_ERROR_INVALID_VALUE);
    SIMCUDA_FAIL_IF(!pair_of(ctx->device, peer->device)->access, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    SIMCUDA_FAIL_IF(ctx->peer[peer->device], CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    ctx->peer[peer->device] = true;
    return CUDA_SUCCESS;
}
