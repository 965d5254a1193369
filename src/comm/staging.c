/* SPDX-License-Identifier: MIT */
#include "comm/staging.h"

#include <string.h>

#include "gpu/context.h"
#include "util/log.h"

/* The application's context if it is one of this device, else the primary one, as the CUDA runtime would choose. */
static ncclResult_t choose_context(struct oh_staging *staging)
{
    const struct oh_driver *driver = staging->driver;
    CUcontext context = NULL;
    CUdevice device;
    ncclResult_t res = ncclSuccess;

    if (driver->ctx_get_current(&context) == CUDA_SUCCESS && context &&
        driver->ctx_get_device(&device) == CUDA_SUCCESS && device == staging->device) {
        staging->context = context;
        return ncclSuccess;
    }
    OH_CU_GOTO(driver, primary_ctx_retain(&staging->context, staging->device), res, out);
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

/* Fills memory with a value and waits: on a stream of its own, since the default stream may be under capture. */
static ncclResult_t fill(const struct oh_driver *driver, CUdeviceptr at, uint32_t value, size_t bytes)
{
    CUstream stream;
    ncclResult_t res = ncclSuccess;
    OH_CU_GOTO(driver, stream_create(&stream, CU_STREAM_NON_BLOCKING), res, out);
    OH_CU_GOTO(driver, memset_d32_async(at, value, bytes / sizeof value, stream), res, err_stream);
    OH_CU_GOTO(driver, stream_synchronize(stream), res, err_stream);
err_stream:
    driver->stream_destroy(stream);
out:
    return res;
}

/* The state between kernels (kernels/abi.h): no flag set, every marker word empty. */
static ncclResult_t clear_all(const struct oh_staging *staging)
{
    ncclResult_t res = fill(staging->driver, staging->base, 0, OH_STAGING_BYTES);
    if (res == ncclSuccess) {
        res = fill(staging->driver, staging->base + OH_MARKER_OFFSET, OH_MARKER, 4 * OH_MARKER_SCATTER_BYTES);
    }
    return res;
}

ncclResult_t oh_staging_create(const struct oh_driver *driver, CUdevice device, struct oh_staging *staging_p)
{
    struct oh_staging staging = {.driver = driver, .device = device};
    struct oh_context_scope scope;
    ncclResult_t res = choose_context(&staging);

    if (res != ncclSuccess) {
        goto out;
    }
    if (oh_context_enter_relaxed(driver, staging.context, &scope) != CUDA_SUCCESS) {
        OH_INFO("device %d: its context cannot be made current", device);
        res = ncclUnhandledCudaError;
        goto err_context;
    }
    OH_CU_GOTO(driver, mem_alloc(&staging.base, OH_STAGING_BYTES), res, err_scope);
    res = clear_all(&staging);
    if (res != ncclSuccess) {
        goto err_memory;
    }
    OH_CU_GOTO(driver,
               mem_host_alloc((void **)&staging.abort_word, sizeof *staging.abort_word,
                              CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
               res, err_memory);
    *staging.abort_word = 0;
    OH_CU_GOTO(driver, mem_host_get_device_pointer(&staging.abort_word_device, staging.abort_word, 0), res, err_host);
    oh_context_leave_relaxed(driver, &scope);
    *staging_p = staging;
    return ncclSuccess;

err_host:
    driver->mem_free_host(staging.abort_word);
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

ncclResult_t oh_staging_set_epoch(const struct oh_staging *staging, uint32_t epoch)
{
    struct oh_context_scope scope;
    if (oh_context_enter_relaxed(staging->driver, staging->context, &scope) != CUDA_SUCCESS) {
        return ncclUnhandledCudaError;
    }
    ncclResult_t res = fill(staging->driver, staging->base + OH_EPOCH_OFFSET, epoch, OH_MAX_BLOCKS * sizeof epoch);
    oh_context_leave_relaxed(staging->driver, &scope);
    return res;
}

static ncclResult_t open_in_process(struct oh_staging *staging, const struct oh_slot *slot, CUdeviceptr *base_p)
{
    const struct oh_driver *driver = staging->driver;
    CUresult result = driver->ctx_enable_peer_access((CUcontext)(uintptr_t)slot->context, 0);
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
    if (oh_context_enter_relaxed(staging->driver, staging->context, &scope) == CUDA_SUCCESS) {
        staging->driver->mem_free(staging->base);
        staging->driver->mem_free_host(staging->abort_word);
        oh_context_leave_relaxed(staging->driver, &scope);
    }
    release_context(staging);
}
