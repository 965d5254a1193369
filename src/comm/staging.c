/* SPDX-License-Identifier: MIT */
#include "comm/staging.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/context.h"
#include "util/log.h"

/*
 * The staging memory of this process. What a slot says of a peer in the same process are pointers, and only those that
 * stand here are followed.
 */
struct own {
    CUdeviceptr base;
    CUcontext context;
    struct own *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct own *owned; /* guarded by mutex */

static bool add_own(CUdeviceptr base, CUcontext context)
{
    struct own *own = malloc(sizeof *own);
    if (!own) {
        OH_INFO("out of memory for the list of staging memory");
        return false;
    }
    *own = (struct own){.base = base, .context = context};
    pthread_mutex_lock(&mutex);
    own->next = owned;
    owned = own;
    pthread_mutex_unlock(&mutex);
    return true;
}

static void remove_own(CUdeviceptr base)
{
    pthread_mutex_lock(&mutex);
    struct own **at = &owned;
    while (*at && (*at)->base != base) {
        at = &(*at)->next;
    }
    struct own *own = *at;
    if (own) {
        *at = own->next;
    }
    pthread_mutex_unlock(&mutex);
    free(own);
}

static bool is_own(CUdeviceptr base, CUcontext context)
{
    pthread_mutex_lock(&mutex);
    const struct own *own = owned;
    while (own && (own->base != base || own->context != context)) {
        own = own->next;
    }
    pthread_mutex_unlock(&mutex);
    return own != NULL;
}

CUcontext oh_staging_current_context(int cuda_device)
{
    const struct oh_driver *driver;
    CUcontext context;
    CUdevice wanted, device;
    bool fits = oh_driver_get(&driver) == ncclSuccess && driver->ctx_get_current(&context) == CUDA_SUCCESS && context &&
                driver->device_get(&wanted, cuda_device) == CUDA_SUCCESS &&
                driver->ctx_get_device(&device) == CUDA_SUCCESS && device == wanted;
    return fits ? context : NULL;
}

/* The application's context, else the primary one. */
static ncclResult_t choose_context(struct oh_staging *staging, CUcontext context)
{
    ncclResult_t res = ncclSuccess;
    if (context) {
        staging->context = context;
        return ncclSuccess;
    }
    OH_CU_GOTO(staging->driver, primary_ctx_retain(&staging->context, staging->device), res, out);
    staging->primary_retained = true;
out:
    return res;
}

static void release_context(struct oh_staging *staging)
{
    if (staging->primary_retained) {
        staging->driver->primary_ctx_release(staging->device);
    }
}

/*
 * Enough for all that is done to the memory until the ranks have agreed. A stream that cannot be waited for is left as
 * it is: it may be clearing the memory, and the driver waits for it, before it frees that, only as long as it knows it.
 */
static void end_stream(struct oh_staging *staging)
{
    if (staging->stream && staging->driver->stream_synchronize(staging->stream) == CUDA_SUCCESS) {
        staging->driver->stream_destroy(staging->stream);
    }
    staging->stream = NULL;
}

/*
 * Starts to bring the memory into the state between kernels (kernels/abi.h): every marker word empty, every escape cell
 * 0. On a stream of its own, since the default stream may be under capture; oh_staging_finish waits for it.
 */
static ncclResult_t start_clearing(struct oh_staging *staging)
{
    const struct oh_driver *driver = staging->driver;
    static const struct {
        size_t begin, end;
        uint32_t value;
    } parts[] = {{0, OH_MARKER_OFFSET, 0},
                 {OH_MARKER_OFFSET, OH_ESCAPE_OFFSET, OH_MARKER},
                 {OH_ESCAPE_OFFSET, OH_STAGING_BYTES, 0}};
    ncclResult_t res = ncclSuccess;
    OH_CU_GOTO(driver, stream_create(&staging->stream, CU_STREAM_NON_BLOCKING), res, out);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t words = (parts[i].end - parts[i].begin) / sizeof(uint32_t);
        OH_CU_GOTO(driver, memset_d32_async(staging->base + parts[i].begin, parts[i].value, words, staging->stream),
                   res, err_stream);
    }
    return ncclSuccess;
err_stream:
    end_stream(staging);
out:
    return res;
}

ncclResult_t oh_staging_create(const struct oh_driver *driver, CUdevice device, CUcontext context,
                               struct oh_staging *staging_p)
{
    struct oh_staging staging = {.driver = driver, .device = device};
    struct oh_context_scope scope;
    ncclResult_t res = choose_context(&staging, context);

    if (res != ncclSuccess) {
        goto out;
    }
    if (oh_context_enter_relaxed(driver, staging.context, &scope) != CUDA_SUCCESS) {
        OH_INFO("device %d: its context cannot be made current", device);
        res = ncclUnhandledCudaError;
        goto err_context;
    }
    OH_CU_GOTO(driver, mem_alloc(&staging.base, OH_STAGING_BYTES), res, err_scope);
    if (!add_own(staging.base, staging.context)) {
        res = ncclSystemError;
        goto err_memory;
    }
    res = start_clearing(&staging);
    if (res != ncclSuccess) {
        goto err_own;
    }
    OH_CU_GOTO(driver,
               mem_host_alloc((void **)&staging.signal, sizeof *staging.signal,
                              CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
               res, err_clearing);
    *staging.signal = (struct oh_signal){0};
    OH_CU_GOTO(driver, mem_host_get_device_pointer(&staging.signal_device, staging.signal, 0), res, err_host);
    oh_context_leave_relaxed(driver, &scope);
    *staging_p = staging;
    return ncclSuccess;

err_host:
    driver->mem_free_host(staging.signal);
err_clearing:
    end_stream(&staging);
err_own:
    remove_own(staging.base);
err_memory:
    driver->mem_free(staging.base);
err_scope:
    oh_context_leave_relaxed(driver, &scope);
err_context:
    release_context(&staging);
out:
    return res;
}

ncclResult_t oh_staging_describe(const struct oh_staging *staging, struct oh_slot *slot)
{
    ncclResult_t res = ncclSuccess;
    struct oh_context_scope scope;
    if (oh_context_enter_relaxed(staging->driver, staging->context, &scope) != CUDA_SUCCESS) {
        return ncclUnhandledCudaError;
    }
    OH_CU_GOTO(staging->driver, ipc_get_mem_handle(&slot->handle, staging->base), res, out);
    slot->staging = staging->base;
    slot->context = (uintptr_t)staging->context;
out:
    oh_context_leave_relaxed(staging->driver, &scope);
    return res;
}

ncclResult_t oh_staging_finish(struct oh_staging *staging, uint32_t epoch)
{
    struct oh_context_scope scope;
    ncclResult_t res = ncclSuccess;
    if (oh_context_enter_relaxed(staging->driver, staging->context, &scope) != CUDA_SUCCESS) {
        return ncclUnhandledCudaError;
    }
    OH_CU_GOTO(staging->driver,
               memset_d32_async(staging->base + OH_EPOCH_OFFSET, epoch, OH_MAX_BLOCKS, staging->stream), res, out);
    OH_CU_GOTO(staging->driver, stream_synchronize(staging->stream), res, out);
    end_stream(staging);
out:
    oh_context_leave_relaxed(staging->driver, &scope);
    return res;
}

static ncclResult_t open_in_process(struct oh_staging *staging, const struct oh_slot *slot, CUdeviceptr *base_p)
{
    const struct oh_driver *driver = staging->driver;
    CUcontext context = (CUcontext)(uintptr_t)slot->context;
    if (!is_own((CUdeviceptr)slot->staging, context)) {
        OH_INFO("what GPU %s has published is no memory of this process", slot->bus_id);
        return ncclSystemError;
    }
    CUresult result = driver->ctx_enable_peer_access(context, 0);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
        OH_INFO("peer access to GPU %s: %s", slot->bus_id, oh_driver_error_name(driver, result));
        return ncclUnhandledCudaError;
    }
    *base_p = (CUdeviceptr)slot->staging;
    return ncclSuccess;
}

static ncclResult_t open_by_ipc(struct oh_staging *staging, const struct oh_slot *slot, CUdeviceptr *base_p)
{
    ncclResult_t res = ncclSuccess;
    OH_CU_GOTO(staging->driver, ipc_open_mem_handle(base_p, slot->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), res,
               out);
out:
    return res;
}

ncclResult_t oh_staging_open_peer(struct oh_staging *staging, uint32_t rank, const struct oh_slot *slot,
                                  bool same_process)
{
    struct oh_context_scope scope;
    CUdeviceptr base;
    if (oh_context_enter_relaxed(staging->driver, staging->context, &scope) != CUDA_SUCCESS) {
        return ncclUnhandledCudaError;
    }
    ncclResult_t res = same_process ? open_in_process(staging, slot, &base) : open_by_ipc(staging, slot, &base);
    oh_context_leave_relaxed(staging->driver, &scope);
    if (res == ncclSuccess) {
        staging->peer[rank].base = base;
        staging->peer[rank].ipc = !same_process;
    }
    return res;
}

void oh_staging_close_peers(struct oh_staging *staging)
{
    struct oh_context_scope scope;
    if (oh_context_enter_relaxed(staging->driver, staging->context, &scope) != CUDA_SUCCESS) {
        return; /* the context is gone, and every mapping with it */
    }
    for (int r = 0; r < OH_MAX_RANKS; r++) {
        if (staging->peer[r].ipc) {
            staging->driver->ipc_close_mem_handle(staging->peer[r].base);
            staging->peer[r].ipc = false;
        }
    }
    oh_context_leave_relaxed(staging->driver, &scope);
}

void oh_staging_destroy(struct oh_staging *staging)
{
    struct oh_context_scope scope;
    remove_own(staging->base);
    if (oh_context_enter_relaxed(staging->driver, staging->context, &scope) == CUDA_SUCCESS) {
        end_stream(staging);
        staging->driver->mem_free_host(staging->signal);
        staging->driver->mem_free(staging->base); /* last: who sees that it is back knows that all is */
        oh_context_leave_relaxed(staging->driver, &scope);
    }
    release_context(staging);
}
