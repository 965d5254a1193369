/* SPDX-License-Identifier: MIT */
/*
 * cuda_memory.c - the simulated driver's memory: device, pinned host, IPC
 *
 * An allocation on a device is a memfd of its own, mapped shared; its addresses are good for the CPU too. An IPC
 * handle says where to find the memfd (/proc/PID/fd/FD) and carries a nonce, which is the memfd's name, so that a
 * file descriptor number that means something else by now is not mistaken. New memory is filled with garbage: the
 * driver promises no zeros. Of onehop's staging that would be most of the time of many tests: it cannot be touched
 * before it is set, and what makes it empty makes a hole (simcuda_memory_empty).
 */
#include "kernels/abi.h"
#include "test/simnode/cuda_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define GARBAGE 0xA5
#define FREED 0xDE
#define NONCE_NAME "simnode-%016llx"

/* What is in a CUipcMemHandle. */
struct ipc_handle {
    uint64_t nonce;
    uint64_t bytes;
    int32_t pid;
    int32_t fd;
    char bus_id[32];
};

_Static_assert(sizeof(struct ipc_handle) <= sizeof(CUipcMemHandle), "a handle must fit");

/* The memory of that kind that holds the address; NULL: none. */
static struct simcuda_memory *find(enum simcuda_kind kind, const void *address)
{
    for (struct simcuda_object *object = simcuda.objects[kind]; object; object = object->next) {
        struct simcuda_memory *memory = (struct simcuda_memory *)object;
        if ((const char *)address >= memory->base && (const char *)address < memory->base + memory->bytes) {
            return memory;
        }
    }
    return NULL;
}

static struct simcuda_memory *find_any(const void *address)
{
    static const enum simcuda_kind kinds[] = {SIMCUDA_DEVICE_MEMORY, SIMCUDA_HOST_MEMORY, SIMCUDA_IPC_MEMORY};
    struct simcuda_memory *memory = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !memory; i++) {
        memory = find(kinds[i], address);
    }
    return memory;
}

/* The memory of that kind that begins at the address; NULL: none. */
static struct simcuda_memory *find_base(enum simcuda_kind kind, const void *base)
{
    struct simcuda_memory *memory = find(kind, base);
    return memory && memory->base == base ? memory : NULL;
}

static bool covers(const struct simcuda_memory *memory, const void *address, size_t bytes)
{
    return memory && bytes <= (size_t)(memory->base + memory->bytes - (const char *)address);
}

bool simcuda_reaches(CUcontext ctx, const void *address, size_t bytes)
{
    const struct simcuda_memory *memory = find_any(address);
    if (!covers(memory, address, bytes)) {
        return false;
    }
    return !memory->ctx || memory->ctx == ctx ||
           (memory->object.kind != SIMCUDA_IPC_MEMORY && ctx->peer[memory->ctx->device]);
}

static void *as_pointer(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

static bool map(struct simcuda_memory *memory, int flags)
{
    void *base = mmap(NULL, memory->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, memory->fd, 0);
    memory->base = base;
    return base != MAP_FAILED;
}

/* By write(2), which takes half of the time of stores into new pages. */
static bool fill_with_garbage(int fd, size_t bytes)
{
    static char garbage[1 << 18];
    if (garbage[0] == 0) {
        memset(garbage, GARBAGE, sizeof garbage); /* under the lock */
    }
    for (ssize_t written; bytes > 0; bytes -= (size_t)written) {
        written = write(fd, garbage, bytes < sizeof garbage ? bytes : sizeof garbage);
        if (written <= 0) {
            return false;
        }
    }
    return true;
}

/* No other memory of the tests has such a size. */
static bool is_staging(const struct simcuda_memory *memory)
{
    bool staging = false;
    for (uint32_t n = 2; n <= OH_MAX_RANKS; n++) {
        staging |= memory->bytes == OH_STAGING_BYTES(n);
    }
    return staging;
}

static bool map_new(struct simcuda_memory *memory)
{
    if (!is_staging(memory)) {
        return fill_with_garbage(memory->fd, memory->bytes) && map(memory, MAP_POPULATE);
    }
    return ftruncate(memory->fd, (off_t)memory->bytes) == 0 && map(memory, 0) &&
           mprotect(memory->base, memory->bytes, PROT_NONE) == 0;
}

/* Whether this is what simcuda_memory_empty does. */
static bool can_empty(const void *address, uint32_t value, size_t bytes)
{
    const struct simcuda_memory *memory = find(SIMCUDA_DEVICE_MEMORY, address);
    const size_t at = memory ? (size_t)((const char *)address - memory->base) : 0;
    return memory && is_staging(memory) &&
           ((value == 0 && at == 0 && bytes == OH_WORDS_OFFSET) ||
            (value == OH_SENTINEL && at == OH_WORDS_OFFSET && bytes == memory->bytes - OH_WORDS_OFFSET));
}

void simcuda_memory_empty(void *address, size_t bytes)
{
    if (madvise(address, bytes, MADV_REMOVE) != 0 || mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0) {
        perror("simnode: a hole");
        abort();
    }
}

/* A device allocation, not listed yet; NULL when there is no memory. */
static struct simcuda_memory *allocate(CUcontext ctx, size_t bytes)
{
    char name[32];
    struct simcuda_memory *memory = simnode_new(sizeof *memory);
    memory->ctx = ctx;
    memory->bytes = bytes;
    if (getrandom(&memory->nonce, sizeof memory->nonce, 0) != (ssize_t)sizeof memory->nonce) {
        goto err_free;
    }
    snprintf(name, sizeof name, NONCE_NAME, (unsigned long long)memory->nonce);
    memory->fd = memfd_create(name, MFD_CLOEXEC);
    if (memory->fd < 0) {
        goto err_free;
    }
    if (!map_new(memory)) {
        goto err_close;
    }
    return memory;

err_close:
    close(memory->fd);
err_free:
    free(memory);
    return NULL;
}

/*
 * Ends a device allocation. If the program has freed it, processes that have it open find SIGBUS: what CUDA leaves
 * undefined is an error here. If its context has ended, as after a reset of the device, the memory stays for them, with
 * garbage.
 */
static void end_device_memory(const struct simcuda_memory *memory, bool is_freed)
{
    if (!is_freed) {
        mprotect(memory->base, memory->bytes, PROT_READ | PROT_WRITE);
        memset(memory->base, FREED, memory->bytes);
    }
    munmap(memory->base, memory->bytes);
    if (is_freed && ftruncate(memory->fd, 0) != 0) {
        perror("simnode: ftruncate");
        abort();
    }
    close(memory->fd);
}

CUresult cuMemAlloc_v2(CUdeviceptr *address_p, size_t bytes)
{
    SIMCUDA_LOCK();
    CUcontext ctx;
    SIMCUDA_TRY(simcuda_usable(&ctx));
    SIMCUDA_FAIL_IF(bytes == 0, CUDA_ERROR_INVALID_VALUE);
    struct simcuda_memory *memory = NULL;
    if (bytes <= simcuda.memory - ctx->live_bytes) {
        memory = allocate(ctx, bytes);
    }
    SIMCUDA_FAIL_IF(!memory, CUDA_ERROR_OUT_OF_MEMORY);
    simcuda_add(SIMCUDA_DEVICE_MEMORY, &memory->object);
    ctx->live_bytes += bytes;
    *address_p = (CUdeviceptr)(uintptr_t)memory->base;
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    SIMCUDA_LOCK();
    CUcontext ctx;
    SIMCUDA_TRY(simcuda_usable(&ctx));
    if (address == 0) {
        return CUDA_SUCCESS;
    }
    struct simcuda_memory *memory = find_base(SIMCUDA_DEVICE_MEMORY, as_pointer(address));
    SIMCUDA_FAIL_IF(!memory, CUDA_ERROR_INVALID_VALUE);
    simcuda_remove(&memory->object);
    simcuda_context_wait(memory->ctx); /* as the driver does; what is queued may still use it */
    memory->ctx->live_bytes -= memory->bytes;
    end_device_memory(memory, true);
    free(memory);
    return CUDA_SUCCESS;
}

/* Frees memory of this context: on its device, opened or registered in it. */
static void free_of(enum simcuda_kind kind, CUcontext ctx)
{
    for (struct simcuda_object *object = simcuda.objects[kind], *next; object; object = next) {
        struct simcuda_memory *memory = (struct simcuda_memory *)object;
        next = object->next;
        if (memory->ctx != ctx && memory->owner != ctx) {
            continue;
        }
        simcuda_remove(object);
        if (kind == SIMCUDA_DEVICE_MEMORY) {
            ctx->live_bytes -= memory->bytes;
            end_device_memory(memory, false);
        } else if (kind == SIMCUDA_IPC_MEMORY) {
            munmap(memory->base, memory->bytes);
        }
        free(memory);
    }
}

void simcuda_memory_reset(CUcontext ctx)
{
    free_of(SIMCUDA_DEVICE_MEMORY, ctx);
    free_of(SIMCUDA_IPC_MEMORY, ctx);
    free_of(SIMCUDA_HOST_MEMORY, ctx);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base_p, size_t *bytes_p, CUdeviceptr address)
{
    SIMCUDA_LOCK();
    const struct simcuda_memory *memory = find_any(as_pointer(address));
    SIMCUDA_FAIL_IF(!memory, CUDA_ERROR_NOT_FOUND);
    *base_p = (CUdeviceptr)(uintptr_t)memory->base;
    *bytes_p = memory->bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_p, size_t *total_p)
{
    SIMCUDA_LOCK();
    CUcontext ctx = simcuda_current();
    SIMCUDA_FAIL_IF(!ctx, CUDA_ERROR_INVALID_CONTEXT);
    *total_p = simcuda.memory;
    *free_p = *total_p - ctx->live_bytes;
    return CUDA_SUCCESS;
}

/* owner NULL: of the driver's own */
static void add_host_memory(void *base, size_t bytes, CUcontext owner)
{
    struct simcuda_memory *memory = simnode_new(sizeof *memory);
    memory->base = base;
    memory->bytes = bytes;
    memory->owner = owner;
    simcuda_add(SIMCUDA_HOST_MEMORY, &memory->object);
}

CUresult cuMemHostAlloc(void **address_p, size_t bytes, unsigned flags)
{
    SIMCUDA_LOCK();
    CUcontext ctx;
    (void)flags; /* all host memory is portable and mapped */
    SIMCUDA_TRY(simcuda_usable(&ctx));
    void *base;
    SIMCUDA_FAIL_IF(bytes == 0, CUDA_ERROR_INVALID_VALUE);
    SIMCUDA_FAIL_IF(posix_memalign(&base, 4096, bytes) != 0, CUDA_ERROR_OUT_OF_MEMORY);
    memset(base, GARBAGE, bytes);
    add_host_memory(base, bytes, NULL);
    *address_p = base;
    return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
    SIMCUDA_LOCK();
    CUcontext ctx;
    (void)flags;
    SIMCUDA_TRY(simcuda_usable(&ctx));
    SIMCUDA_FAIL_IF(!address || bytes == 0, CUDA_ERROR_INVALID_VALUE);
    SIMCUDA_FAIL_IF(find(SIMCUDA_HOST_MEMORY, address), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    add_host_memory(address, bytes, ctx);
    return CUDA_SUCCESS;
}

/* Lets go of host memory: of the program's, which it registered, or of the driver's. `stranger`: if it is not so. */
static CUresult end_host_memory(void *address, bool registered, CUresult stranger)
{
    CUcontext ctx;
    SIMCUDA_TRY(simcuda_usable(&ctx));
    struct simcuda_memory *memory = find_base(SIMCUDA_HOST_MEMORY, address);
    SIMCUDA_FAIL_IF(!memory || (memory->owner != NULL) != registered, stranger);
    simcuda_remove(&memory->object);
    simcuda_context_wait(ctx);
    if (!registered) {
        free(memory->base);
    }
    free(memory);
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *address)
{
    SIMCUDA_LOCK();
    return end_host_memory(address, true, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUresult cuMemFreeHost(void *address)
{
    SIMCUDA_LOCK();
    return end_host_memory(address, false, CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device_p, void *address, unsigned flags)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(flags != 0 || !find(SIMCUDA_HOST_MEMORY, address), CUDA_ERROR_INVALID_VALUE);
    *device_p = (CUdeviceptr)(uintptr_t)address;
    return CUDA_SUCCESS;
}

/* As the driver: an address in the middle of an allocation gives the handle of the whole. */
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle_p, CUdeviceptr address)
{
    SIMCUDA_LOCK();
    struct ipc_handle handle = {0};
    const struct simcuda_memory *memory = find(SIMCUDA_DEVICE_MEMORY, as_pointer(address));
    SIMCUDA_FAIL_IF(!memory, CUDA_ERROR_INVALID_VALUE);
    handle.nonce = memory->nonce;
    handle.bytes = memory->bytes;
    handle.pid = getpid();
    handle.fd = memory->fd;
    simnode_bus_id(simnode_gpu_bus(simcuda_gpu(memory->ctx)), 4, handle.bus_id, sizeof handle.bus_id);
    *handle_p = (CUipcMemHandle){0};
    memcpy(handle_p, &handle, sizeof handle);
    char nonce[20];
    snprintf(nonce, sizeof nonce, "%016llx", (unsigned long long)handle.nonce);
    simnode_tell("handle", nonce);
    return CUDA_SUCCESS;
}

/* Opens the exporter's memfd; -1 when the memory is gone, or has another size than the handle says. */
static int open_exported(const struct ipc_handle *handle)
{
    char path[64], name[64], target[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)handle->pid, (int)handle->fd);
    snprintf(name, sizeof name, "/memfd:" NONCE_NAME, (unsigned long long)handle->nonce);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, target, sizeof target);
    struct stat status;
    if (length < (ssize_t)strlen(name) || memcmp(target, name, strlen(name)) != 0 || fstat(fd, &status) != 0 ||
        (uint64_t)status.st_size != handle->bytes) {
        close(fd);
        return -1;
    }
    return fd;
}

static struct simcuda_memory *find_opened(CUcontext ctx, uint64_t nonce)
{
    for (struct simcuda_object *object = simcuda.objects[SIMCUDA_IPC_MEMORY]; object; object = object->next) {
        struct simcuda_memory *memory = (struct simcuda_memory *)object;
        if (memory->ctx == ctx && memory->nonce == nonce) {
            return memory;
        }
    }
    return NULL;
}

static CUresult open_mapping(CUcontext ctx, const struct ipc_handle *handle, struct simcuda_memory **memory_p)
{
    struct simcuda_memory *memory = simnode_new(sizeof *memory);
    memory->ctx = ctx;
    memory->bytes = handle->bytes;
    memory->nonce = handle->nonce;
    memory->fd = open_exported(handle);
    if (memory->fd < 0) {
        free(memory);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    bool mapped = map(memory, 0);
    close(memory->fd);
    if (!mapped) {
        free(memory);
        return CUDA_ERROR_MAP_FAILED;
    }
    simcuda_add(SIMCUDA_IPC_MEMORY, &memory->object);
    *memory_p = memory;
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address_p, CUipcMemHandle exported, unsigned flags)
{
    SIMCUDA_LOCK();
    struct ipc_handle handle;
    CUcontext ctx;
    memcpy(&handle, &exported, sizeof handle);
    handle.bus_id[sizeof handle.bus_id - 1] = '\0';
    SIMCUDA_FAIL_IF(flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUDA_ERROR_INVALID_VALUE);
    SIMCUDA_FAIL_IF(handle.pid == getpid(), CUDA_ERROR_INVALID_CONTEXT);
    SIMCUDA_TRY(simcuda_usable(&ctx));
    int gpu = simnode_topology_find(simcuda.topology, handle.bus_id);
    SIMCUDA_FAIL_IF(gpu < 0, CUDA_ERROR_INVALID_HANDLE);
    SIMCUDA_FAIL_IF(gpu != simcuda_gpu(ctx) && !simnode_topology_pair(simcuda.topology, simcuda_gpu(ctx), gpu)->access,
                    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    struct simcuda_memory *memory = find_opened(ctx, handle.nonce);
    if (!memory) {
        SIMCUDA_TRY(open_mapping(ctx, &handle, &memory));
    }
    memory->opened++;
    *address_p = (CUdeviceptr)(uintptr_t)memory->base;
    return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    SIMCUDA_LOCK();
    CUcontext ctx;
    SIMCUDA_TRY(simcuda_usable(&ctx));
    struct simcuda_memory *memory = find_base(SIMCUDA_IPC_MEMORY, as_pointer(address));
    SIMCUDA_FAIL_IF(!memory, CUDA_ERROR_INVALID_VALUE);
    if (--memory->opened == 0) {
        simcuda_remove(&memory->object);
        simcuda_context_wait(memory->ctx);
        munmap(memory->base, memory->bytes);
        free(memory);
    }
    return CUDA_SUCCESS;
}

static bool known(const void *address, size_t bytes)
{
    return bytes == 0 || covers(find_any(address), address, bytes);
}

/* A copy to pageable memory is done on return. */
static CUresult copy(CUstream handle, void *to, const void *from, size_t bytes)
{
    struct simcuda_op op = {.kind = SIMCUDA_OP_COPY, .copy = {to, from, bytes, false}};
    CUstream stream;
    SIMCUDA_TRY(simcuda_stream_find(handle, &stream));
    if (bytes == 0) {
        return CUDA_SUCCESS;
    }
    op.copy.pageable = !stream->capture && !find_any(from);
    SIMCUDA_TRY(simcuda_submit(stream, &op));
    if (!stream->capture && !find_any(to)) {
        simcuda_stream_wait(stream);
    }
    return CUDA_SUCCESS;
}

/* The memory on the device must be known; that on the host may be anything. */
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!known(as_pointer(to), bytes), CUDA_ERROR_INVALID_VALUE);
    return copy(stream, as_pointer(to), from, bytes);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!known(as_pointer(from), bytes), CUDA_ERROR_INVALID_VALUE);
    return copy(stream, to, as_pointer(from), bytes);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!known(as_pointer(to), bytes) || !known(as_pointer(from), bytes), CUDA_ERROR_INVALID_VALUE);
    return copy(stream, as_pointer(to), as_pointer(from), bytes);
}

/* With or without peer access; where there is none the driver goes through the host. */
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                           CUstream handle)
{
    SIMCUDA_ENTER();
    SIMCUDA_FAIL_IF(!to_context || !from_context, CUDA_ERROR_INVALID_CONTEXT);
    return cuMemcpyDtoDAsync_v2(to, from, bytes, handle);
}

/* A copy on the legacy stream that is done when the call returns. */
static CUresult copy_now(void *to, const void *from, size_t bytes, const void *device)
{
    CUstream stream;
    SIMCUDA_TRY(simcuda_stream_find(CU_STREAM_LEGACY, &stream));
    SIMCUDA_FAIL_IF(!known(device, bytes), CUDA_ERROR_INVALID_VALUE);
    SIMCUDA_TRY(simcuda_capture_check());
    SIMCUDA_TRY(copy(CU_STREAM_LEGACY, to, from, bytes));
    simcuda_stream_wait(stream);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    SIMCUDA_LOCK();
    return copy_now(as_pointer(to), from, bytes, as_pointer(to));
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    SIMCUDA_LOCK();
    return copy_now(to, as_pointer(from), bytes, as_pointer(from));
}

/* count elements of `width` bytes, `pitch` bytes from one to the next. */
static CUresult fill(CUstream handle, CUdeviceptr to, uint32_t value, unsigned width, size_t pitch, size_t count)
{
    CUstream stream;
    struct simcuda_op op = {.kind = SIMCUDA_OP_SET, .set = {as_pointer(to), value, width, pitch, count, false}};
    size_t bytes = count > 0 ? (count - 1) * pitch + width : 0;
    op.set.empties = width == 4 && pitch == 4 && can_empty(op.set.to, value, bytes);
    SIMCUDA_TRY(simcuda_stream_find(handle, &stream));
    SIMCUDA_FAIL_IF(to % width != 0 || pitch % width != 0 || !known(as_pointer(to), bytes), CUDA_ERROR_INVALID_VALUE);
    return count > 0 ? simcuda_submit(stream, &op) : CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    SIMCUDA_LOCK();
    return fill(stream, to, value, 1, 1, count);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream)
{
    SIMCUDA_LOCK();
    return fill(stream, to, value, 4, 4, count);
}

/* From the host, rows of one 32-bit element, all of the same value, only. */
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    SIMCUDA_LOCK();
    const uint32_t *from = copy->srcHost;
    SIMCUDA_FAIL_IF(copy->srcMemoryType != CU_MEMORYTYPE_HOST || copy->dstMemoryType != CU_MEMORYTYPE_DEVICE ||
                        copy->WidthInBytes != sizeof *from || copy->srcPitch != sizeof *from || copy->Height == 0,
                    CUDA_ERROR_NOT_SUPPORTED);
    for (size_t row = 1; row < copy->Height; row++) {
        SIMCUDA_FAIL_IF(from[row] != from[0], CUDA_ERROR_NOT_SUPPORTED);
    }
    return fill(stream, copy->dstDevice, from[0], sizeof *from, copy->dstPitch, copy->Height);
}
