/* SPDX-License-Identifier: MIT */
/*
 * staging.c - a rank's staging memory, and the mappings of its peers'
 *
 * Does: Implements staging.h.
 * Threads: one at a time for a staging; `mutex` guards the table of those of this process.
 * Owns: that table.
 */
#include "comm/shared/staging.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "util/clock.h"
#include "util/log.h"
#include "util/scope.h"

#define HOLD_NS (UINT64_C(150) * 1000 * 1000) /* the error is returned within 200 ms (doc/faults.md) */
#define CONTROL_BYTES 4096u                   /* a page, as it is registered */
#define MOST_OWNED 2048                       /* 57 GiB of staging memory and more */

/* The staging memory of this process. Of the pointers in peer infos, only those in this table are used. */
static struct own {
    CUdeviceptr base; /* 0: free */
    CUcontext context;
    struct oh_key key;
    uint32_t rank;
} owned[MOST_OWNED];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards it */

static struct own own_of(const struct oh_staging *staging)
{
    return (struct own){staging->base, staging->context.handle, staging->key, staging->rank};
}

/* Replaces an entry. Returns whether there was one. */
static bool replace_own(struct own from, struct own to)
{
    OH_LOCK(&mutex);
    for (int i = 0; i < MOST_OWNED; i++) {
        if (owned[i].base == from.base && owned[i].context == from.context && owned[i].rank == from.rank &&
            oh_key_compare(&owned[i].key, &from.key) == 0) {
            owned[i] = to;
            return true;
        }
    }
    return false;
}

CUresult oh_staging_bind(CUdevice device, CUcontext context, struct oh_staging *staging_p)
{
    struct oh_staging staging = {.device = device, .context.handle = context, .primary_retained = !context};
    if (!context) {
        OH_CU_TRY(primary_ctx_retain(&staging.context.handle, device));
    }
    CUresult result = OH_CU(ctx_get_id(staging.context.handle, &staging.context.id));
    if (result == CUDA_SUCCESS) {
        *staging_p = staging;
    } else if (!context) {
        oh_driver.primary_ctx_release(device);
    }
    return result;
}

void oh_staging_move(struct oh_staging *staging, struct oh_staging *to_p)
{
    *to_p = *staging;
    staging->base = 0;
    staging->verify = 0;
    staging->stream = NULL;
    staging->control = NULL;
    staging->control_device = 0;
    memset(staging->peer, 0, sizeof staging->peer);
}

void oh_staging_share_context(struct oh_staging *staging)
{
    CUcontext same;
    if (staging->primary_retained) {
        staging->primary_retained = oh_driver.primary_ctx_retain(&same, staging->device) == CUDA_SUCCESS;
    }
}

/* A stream that cannot be waited for is kept: it may be clearing the memory, and cuMemFree waits for it then. */
static CUresult end_stream(struct oh_staging *staging)
{
    if (staging->stream) {
        OH_TRY(oh_driver.stream_synchronize(staging->stream));
        OH_TRY(oh_driver.stream_destroy(staging->stream));
        staging->stream = NULL;
    }
    return CUDA_SUCCESS;
}

static CUresult fill(struct oh_staging *staging, size_t begin, size_t end, uint32_t value)
{
    return OH_CU(memset_d32_async(staging->base + begin, value, (end - begin) / sizeof value, staging->stream));
}

/*
 * Starts to write the state between kernels (kernels/abi.h): every Lamport word empty, all before them 0. On a stream
 * of its own, since the default stream may be under capture; oh_staging_finish waits for it.
 */
static CUresult start_clearing(struct oh_staging *staging)
{
    const uint32_t words = OH_WORDS_OFFSET;
    OH_CU_TRY(stream_create(&staging->stream, CU_STREAM_NON_BLOCKING));
    OH_TRY(fill(staging, 0, words, 0));
    return fill(staging, words, staging->bytes, OH_SENTINEL);
}

static CUresult map_control(struct oh_staging *staging)
{
    void *page = mmap(NULL, CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        OH_INFO("device %d: the control block cannot be mapped: %m", staging->device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result =
        OH_CU(mem_host_register(page, CONTROL_BYTES, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    if (result != CUDA_SUCCESS) {
        goto err_page;
    }
    result = OH_CU(mem_host_get_device_pointer(&staging->control_device, page, 0));
    if (result != CUDA_SUCCESS) {
        goto err_registered;
    }
    staging->control = page;
    return CUDA_SUCCESS;
err_registered:
    oh_driver.mem_host_unregister(page);
err_page:
    munmap(page, CONTROL_BYTES);
    return result;
}

CUresult oh_staging_create(struct oh_staging *staging, const struct oh_key *key, uint32_t rank, uint32_t nranks)
{
    OH_CONTEXT_RELAXED(&staging->context);
    staging->key = *key;
    staging->rank = rank;
    staging->bytes = OH_STAGING_BYTES(nranks);
    OH_CU_TRY(mem_alloc(&staging->base, staging->bytes));
    if (!replace_own((struct own){0}, own_of(staging))) {
        OH_INFO("more than %d communicators with staging memory", MOST_OWNED);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    OH_TRY(map_control(staging));
    return start_clearing(staging);
}

CUresult oh_staging_create_verify(struct oh_staging *staging)
{
    OH_CONTEXT_RELAXED(&staging->context);
    return OH_CU(mem_alloc(&staging->verify, OH_VERIFY_BYTES));
}

uint64_t oh_staging_bytes(const struct oh_staging *staging)
{
    return (staging->base ? staging->bytes : 0) + (staging->verify ? OH_VERIFY_BYTES : 0);
}

CUresult oh_staging_describe(const struct oh_staging *staging, struct oh_peer_info *info)
{
    OH_CONTEXT_RELAXED(&staging->context);
    OH_CU_TRY(ipc_get_mem_handle(&info->handle, staging->base));
    info->staging = staging->base;
    info->context = (uintptr_t)staging->context.handle;
    return CUDA_SUCCESS;
}

/* The registered page: what kernels read, and what set_epochs copies. */
struct page {
    struct oh_control control;
    uint32_t value[OH_MAX_BLOCKS];
};
_Static_assert(sizeof(struct page) <= CONTROL_BYTES, "the page has room");

/*
 * Starts to set a field of every epoch word: by a copy from registered memory, since a memset is a kernel, which does
 * not start while kernels that wait fill the GPU (2 x H100: not within 300 ms, and the copy within 4 ms).
 */
static CUresult set_epochs(struct oh_staging *staging, size_t offset, uint32_t value)
{
    struct page *page = (struct page *)staging->control;
    const CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                                .srcHost = page->value,
                                .srcPitch = sizeof value,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = staging->base + OH_EPOCH_OFFSET + offset,
                                .dstPitch = sizeof(struct oh_epoch),
                                .WidthInBytes = sizeof value,
                                .Height = OH_MAX_BLOCKS};
    for (int b = 0; b < OH_MAX_BLOCKS; b++) {
        page->value[b] = value;
    }
    return OH_CU(memcpy_2d_async(&copy, staging->stream));
}

CUresult oh_staging_finish(struct oh_staging *staging, uint32_t epoch)
{
    OH_CONTEXT_RELAXED(&staging->context);
    OH_TRY(set_epochs(staging, offsetof(struct oh_epoch, last), epoch));
    OH_CU_TRY(stream_synchronize(staging->stream));
    end_stream(staging); /* what fails is tried again by oh_staging_destroy */
    return CUDA_SUCCESS;
}

static CUresult open_in_process(const struct oh_staging *staging, uint32_t rank, const struct oh_peer_info *info,
                                CUdeviceptr *base_p)
{
    CUcontext context = (CUcontext)(uintptr_t)info->context;
    const struct own own = {(CUdeviceptr)info->staging, context, staging->key, rank};
    if (!own.base || !replace_own(own, own)) {
        OH_INFO("what GPU %s has published is no memory of that rank in this process", info->bus_id);
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = oh_driver.ctx_enable_peer_access(context, 0);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
        OH_INFO("peer access to GPU %s: %s", info->bus_id, oh_driver_error_name(result));
        return result;
    }
    *base_p = own.base;
    return CUDA_SUCCESS;
}

CUresult oh_staging_open_peer(struct oh_staging *staging, uint32_t rank, const struct oh_peer_info *info,
                              bool same_process)
{
    CUdeviceptr base;
    OH_CONTEXT_RELAXED(&staging->context);
    CUresult result = same_process
                          ? open_in_process(staging, rank, info, &base)
                          : OH_CU(ipc_open_mem_handle(&base, info->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    if (result == CUDA_SUCCESS) {
        staging->peer[rank].base = base;
        staging->peer[rank].ipc = !same_process;
    }
    return result;
}

CUresult oh_staging_hold(struct oh_staging *staging)
{
    OH_CONTEXT_RELAXED(&staging->context);
    if (!staging->stream) { /* oh_staging_destroy ends it */
        OH_CU_TRY(stream_create(&staging->stream, CU_STREAM_NON_BLOCKING));
    }
    OH_TRY(set_epochs(staging, offsetof(struct oh_epoch, held), 1));
    const uint64_t end = oh_now_ns() + HOLD_NS;
    CUresult result;
    while ((result = oh_driver.stream_query(staging->stream)) == CUDA_ERROR_NOT_READY && oh_now_ns() < end) {
        sched_yield();
    }
    return result;
}

CUresult oh_staging_query(const struct oh_staging *staging, CUevent event)
{
    OH_CONTEXT_RELAXED(&staging->context);
    return oh_driver.event_query(event);
}

static CUresult close_peers(struct oh_staging *staging)
{
    CUresult first = CUDA_SUCCESS;
    OH_CONTEXT_RELAXED(&staging->context);
    for (int r = 0; r < OH_MAX_RANKS; r++) {
        if (staging->peer[r].ipc) {
            CUresult result = oh_driver.ipc_close_mem_handle(staging->peer[r].base);
            staging->peer[r].ipc = result != CUDA_SUCCESS;
            first = first == CUDA_SUCCESS ? result : first;
        }
    }
    return first;
}

CUresult oh_staging_close_peers(struct oh_staging *staging)
{
    return staging->context.handle ? oh_context_ignore_lost(close_peers(staging)) : CUDA_SUCCESS;
}

/* The memory last: once it is free, all is. */
static CUresult free_memory(struct oh_staging *staging)
{
    OH_CONTEXT_RELAXED(&staging->context);
    OH_TRY(end_stream(staging));
    if (staging->control_device) {
        OH_TRY(oh_driver.mem_host_unregister(staging->control));
        staging->control_device = 0;
    }
    if (staging->verify) {
        OH_TRY(oh_driver.mem_free(staging->verify));
        staging->verify = 0;
    }
    if (staging->base) {
        OH_TRY(oh_driver.mem_free(staging->base));
        staging->base = 0;
    }
    return CUDA_SUCCESS;
}

CUresult oh_staging_destroy(struct oh_staging *staging)
{
    if (!staging->context.handle) {
        return CUDA_SUCCESS;
    }
    if (staging->base) {
        replace_own(own_of(staging), (struct own){0});
    }
    OH_TRY(oh_context_ignore_lost(free_memory(staging)));
    if (staging->primary_retained) {
        oh_driver.primary_ctx_release(staging->device);
    }
    if (staging->control) {
        munmap(staging->control, CONTROL_BYTES);
    }
    *staging = (struct oh_staging){.base = 0};
    return CUDA_SUCCESS;
}

void oh_staging_abandon(struct oh_staging *staging)
{
    if (staging->context.handle) {
        OH_INFO("device %d: the driver keeps %u MiB until the process ends", staging->device,
                (unsigned)(oh_staging_bytes(staging) >> 20));
    }
    *staging = (struct oh_staging){.base = 0};
}
