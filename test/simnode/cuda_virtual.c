/* SPDX-License-Identifier: MIT */
/*
 * cuda_virtual.c - the stand-in driver's virtual memory: addresses on one side, memory on the other
 *
 * A handle's memory is a memfd; mapped at reserved addresses, several times if need be, it is what streams may touch.
 * As the driver's (580.159, H200): a handle that was imported has a block of its own and cannot be exported again.
 */
#include "test/simnode/cuda_internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRANULARITY ((size_t)2 << 20)
#define GARBAGE 0xA5

/* What a CUmemGenericAllocationHandle is. Held by handles and by mappings. */
struct simcuda_allocation {
    struct simcuda_object object;
    CUmemAllocationProp properties;
    size_t bytes;
    int fd;
    uint64_t block;
    unsigned references;
    bool imported; /* so that its memory is counted already */
};

static struct simcuda_allocation *find_allocation(CUmemGenericAllocationHandle handle)
{
    void *allocation = (void *)(uintptr_t)handle;
    return simcuda_has(SIMCUDA_ALLOCATION, allocation) ? allocation : NULL;
}

static CUcontext context_of(const struct simcuda_allocation *allocation)
{
    return &simcuda.context[allocation->properties.location.id];
}

static void drop(struct simcuda_allocation *allocation)
{
    if (--allocation->references == 0) {
        simcuda_remove(&allocation->object);
        if (!allocation->imported) {
            context_of(allocation)->live_bytes -= allocation->bytes;
        }
        close(allocation->fd);
        free(allocation);
    }
}

/* Lists what is behind fd, which it takes over. */
static CUmemGenericAllocationHandle list(const CUmemAllocationProp *properties, size_t bytes, int fd, bool imported)
{
    struct simcuda_allocation *allocation = simcuda_new(sizeof *allocation);
    allocation->properties = *properties;
    allocation->bytes = bytes;
    allocation->fd = fd;
    allocation->block = ++simcuda.blocks;
    allocation->references = 1;
    allocation->imported = imported;
    simcuda_add(SIMCUDA_ALLOCATION, &allocation->object);
    if (!imported) {
        context_of(allocation)->live_bytes += bytes;
    }
    return (CUmemGenericAllocationHandle)(uintptr_t)allocation;
}

static bool is_whole(size_t bytes)
{
    return bytes > 0 && bytes % GRANULARITY == 0;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes_p, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags flags)
{
    SIMCUDA_ENTER();
    (void)properties;
    (void)flags;
    *bytes_p = GRANULARITY;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle_p, size_t bytes, const CUmemAllocationProp *properties,
                     unsigned long long flags)
{
    SIMCUDA_ENTER();
    pthread_mutex_lock(&simcuda.lock);
    const CUmemLocation *location = &properties->location;
    if (flags != 0 || !is_whole(bytes) || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        location->type != CU_MEM_LOCATION_TYPE_DEVICE || location->id < 0 || location->id >= simcuda.devices) {
        return simcuda_leave(CUDA_ERROR_INVALID_VALUE);
    }
    const CUcontext ctx = &simcuda.context[location->id];
    if (bytes > simcuda.topology.gpu[simcuda_gpu(ctx)].memory - ctx->live_bytes) {
        return simcuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    int fd = memfd_create("simnode-virtual", MFD_CLOEXEC);
    void *memory = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0) {
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (memory == MAP_FAILED) {
        if (fd >= 0) {
            close(fd);
        }
        return simcuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    memset(memory, GARBAGE, bytes);
    munmap(memory, bytes);
    *handle_p = list(properties, bytes, fd, false);
    return simcuda_leave(CUDA_SUCCESS);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    SIMCUDA_ENTER();
    pthread_mutex_lock(&simcuda.lock);
    struct simcuda_allocation *allocation = find_allocation(handle);
    if (!allocation) {
        return simcuda_leave(CUDA_ERROR_INVALID_VALUE);
    }
    drop(allocation);
    return simcuda_leave(CUDA_SUCCESS);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle_p, void *address)
{
    SIMCUDA_ENTER();
    pthread_mutex_lock(&simcuda.lock);
    struct simcuda_memory *memory = simcuda_memory_find(SIMCUDA_MAPPED_MEMORY, address);
    if (!memory) {
        return simcuda_leave(CUDA_ERROR_INVALID_VALUE);
    }
    memory->allocation->references++;
    *handle_p = (CUmemGenericAllocationHandle)(uintptr_t)memory->allocation;
    return simcuda_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties_p, CUmemGenericAllocationHandle handle)
{
    SIMCUDA_ENTER();
    pthread_mutex_lock(&simcuda.lock);
    const struct simcuda_allocation *allocation = find_allocation(handle);
    if (!allocation) {
        return simcuda_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *properties_p = allocation->properties;
    return simcuda_leave(CUDA_SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
    SIMCUDA_ENTER();
    pthread_mutex_lock(&simcuda.lock);
    const struct simcuda_allocation *allocation = find_allocation(handle);
    if (!allocation || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !(allocation->properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) {
        return simcuda_leave(CUDA_ERROR_INVALID_VALUE);
    }
    int fd = fcntl(allocation->fd, F_DUPFD_CLOEXEC, 0);
    if (fd >= 0) {
        *(int *)shareable = fd;
    }
    return simcuda_leave(fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM);
}

/* On the current device: what a descriptor stands for does not say on which it is. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle_p, void *shareable,
                                        CUmemAllocationHandleType type)
{
    SIMCUDA_ENTER();
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    struct stat status;
    pthread_mutex_lock(&simcuda.lock);
    CUcontext ctx = simcuda_current();
    int fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 0);
    if (fd < 0 || !ctx || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(fd, &status) != 0) {
        if (fd >= 0) {
            close(fd);
        }
        return simcuda_leave(CUDA_ERROR_INVALID_VALUE);
    }
    properties.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ctx->device};
    *handle_p = list(&properties, (size_t)status.st_size, fd, true);
    return simcuda_leave(CUDA_SUCCESS);
}

/* Is anything mapped there? */
static bool is_mapped(const char *address, size_t bytes)
{
    bool found = false;
    for (struct simcuda_object *object = simcuda.objects[SIMCUDA_MAPPED_MEMORY]; object; object = object->next) {
        const struct simcuda_memory *memory = (const struct simcuda_memory *)object;
        found |= memory->base < address + bytes && address < memory->base + memory->bytes;
    }
    return found;
}

CUresult cuMemAddressReserve(CUdeviceptr *address_p, size_t bytes, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags)
{
    SIMCUDA_ENTER();
    (void)wish;
    pthread_mutex_lock(&simcuda.lock);
    if (!is_whole(bytes) || alignment > 4096 || flags != 0) {
        return simcuda_leave(CUDA_ERROR_INVALID_VALUE);
    }
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        return simcuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    struct simcuda_memory *reserved = simcuda_new(sizeof *reserved);
    reserved->base = base;
    reserved->bytes = bytes;
    simcuda_add(SIMCUDA_RESERVED, &reserved->object);
    *address_p = (CUdeviceptr)(uintptr_t)base;
    return simcuda_leave(CUDA_SUCCESS);
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    SIMCUDA_ENTER();
    pthread_mutex_lock(&simcuda.lock);
    struct simcuda_memory *reserved = simcuda_memory_find(SIMCUDA_RESERVED, (void *)(uintptr_t)address);
    if (!reserved || reserved->base != (char *)(uintptr_t)address || reserved->bytes != bytes ||
        is_mapped(reserved->base, bytes)) {
        return simcuda_leave(CUDA_ERROR_INVALID_VALUE);
    }
    simcuda_remove(&reserved->object);
    munmap(reserved->base, reserved->bytes);
    free(reserved);
    return simcuda_leave(CUDA_SUCCESS);
}

/* Is [address, address + bytes) reserved, and nothing mapped there? */
static bool is_free(const char *address, size_t bytes)
{
    const struct simcuda_memory *reserved = simcuda_memory_find(SIMCUDA_RESERVED, address);
    return reserved && bytes <= (size_t)(reserved->base + reserved->bytes - address) && !is_mapped(address, bytes);
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    SIMCUDA_ENTER();
    char *base = (char *)(uintptr_t)address;
    pthread_mutex_lock(&simcuda.lock);
    struct simcuda_allocation *allocation = find_allocation(handle);
    if (!allocation || bytes != allocation->bytes || offset != 0 || flags != 0 || !is_free(base, bytes)) {
        return simcuda_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (mmap(base, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation->fd, 0) == MAP_FAILED) {
        return simcuda_leave(CUDA_ERROR_MAP_FAILED);
    }
    struct simcuda_memory *memory = simcuda_new(sizeof *memory);
    memory->ctx = context_of(allocation);
    memory->base = base;
    memory->bytes = bytes;
    memory->block = allocation->block;
    memory->allocation = allocation;
    allocation->references++;
    simcuda_add(SIMCUDA_MAPPED_MEMORY, &memory->object);
    return simcuda_leave(CUDA_SUCCESS);
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    SIMCUDA_ENTER();
    char *base = (char *)(uintptr_t)address;
    pthread_mutex_lock(&simcuda.lock);
    struct simcuda_memory *memory = simcuda_memory_find(SIMCUDA_MAPPED_MEMORY, base);
    if (!memory || memory->base != base || memory->bytes != bytes) {
        return simcuda_leave(CUDA_ERROR_INVALID_VALUE);
    }
    simcuda_remove(&memory->object);
    simcuda_context_wait(memory->ctx); /* what is queued may still use it */
    mmap(base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    drop(memory->allocation);
    free(memory);
    return simcuda_leave(CUDA_SUCCESS);
}

/* For the device that has the memory; others reach it as they reach memory of cuMemAlloc. */
CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    SIMCUDA_ENTER();
    pthread_mutex_lock(&simcuda.lock);
    const struct simcuda_memory *memory = simcuda_memory_find(SIMCUDA_MAPPED_MEMORY, (const void *)(uintptr_t)address);
    bool own = false;
    for (size_t i = 0; i < count; i++) {
        own |= memory && access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
               access[i].location.id == memory->ctx->device;
    }
    if (!own || bytes > (size_t)(memory->base + memory->bytes - (const char *)(uintptr_t)address)) {
        return simcuda_leave(CUDA_ERROR_INVALID_VALUE);
    }
    int error = mprotect((void *)(uintptr_t)address, bytes, PROT_READ | PROT_WRITE);
    return simcuda_leave(error ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS);
}
