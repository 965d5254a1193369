/* SPDX-License-Identifier: MIT */
/*
 * t_alias.c - which ranges of addresses may be the same memory
 *
 * Memory of all kinds on the simulated node: cuMemAlloc, mapped once, mapped twice, exported and imported, the host's.
 */
#include "gpu/alias.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "test/tap.h"
#include "test/unit/topologies.h"

#define CHUNK ((size_t)2 << 20)
#define CHUNKS 16

static const struct oh_driver *driver;
static CUdeviceptr plain, other_plain, mapped, twice, imported, imported_twice, of_one_process;
static char *host;

static void must(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        printf("Bail out! %s: %s\n", what, oh_driver_error_name(driver, result));
        exit(1);
    }
}
#define CU(call_) must(call_, #call_)

static CUmemGenericAllocationHandle create(CUmemAllocationHandleType shareable)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = shareable,
                                      .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemGenericAllocationHandle handle;
    CU(cuMemCreate(&handle, CHUNK, &properties, 0));
    return handle;
}

static CUmemGenericAllocationHandle import(CUmemGenericAllocationHandle exported)
{
    CUmemGenericAllocationHandle handle;
    int fd;
    CU(cuMemExportToShareableHandle(&fd, exported, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CU(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    return handle;
}

static CUdeviceptr map(CUdeviceptr reserved, int chunk, CUmemGenericAllocationHandle handle)
{
    const CUmemAccessDesc access = {{.type = CU_MEM_LOCATION_TYPE_DEVICE}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUdeviceptr at = reserved + (size_t)chunk * CHUNK;
    CU(cuMemMap(at, CHUNK, 0, handle, 0));
    CU(cuMemSetAccess(at, CHUNK, &access, 1));
    return at;
}

/* mapped: two chunks one behind the other; the others are the first of them again, but of_one_process. */
static void make_memory(void)
{
    const CUmemGenericAllocationHandle first = create(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                                       second = create(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUcontext context;
    CUdeviceptr reserved;
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    CU(cuMemAlloc(&plain, CHUNK));
    CU(cuMemAlloc(&other_plain, CHUNK));
    CU(cuMemHostAlloc((void **)&host, CHUNK, CU_MEMHOSTALLOC_DEVICEMAP));
    CU(cuMemAddressReserve(&reserved, CHUNKS * CHUNK, 0, 0, 0));
    mapped = map(reserved, 0, first);
    map(reserved, 1, second);
    twice = map(reserved, 4, first);
    imported = map(reserved, 6, import(first));
    imported_twice = map(reserved, 8, import(first));
    of_one_process = map(reserved, 10, create(CU_MEM_HANDLE_TYPE_NONE));
}

static bool never(CUdeviceptr a, size_t a_bytes, CUdeviceptr b, size_t b_bytes)
{
    const void *one = (const void *)(uintptr_t)a, *other = (const void *)(uintptr_t)b;
    return oh_alias_never(driver, one, a_bytes, other, b_bytes);
}

/* Both ways round. */
static void expect(CUdeviceptr a, size_t a_bytes, CUdeviceptr b, size_t b_bytes, bool apart, const char *what)
{
    bool one = never(a, a_bytes, b, b_bytes), other = never(b, b_bytes, a, a_bytes);
    tap_ok(one == apart && other == apart, "%s: %s (%d, %d)", what, apart ? "apart" : "perhaps the same", one, other);
}

int main(void)
{
    use_topologies();
    if (oh_driver_get(&driver) != ncclSuccess) {
        tap_skip_all("no driver");
    }
    make_memory();
    const size_t n = 4096, second = CHUNK;
    const CUdeviceptr of_host = (CUdeviceptr)(uintptr_t)host;
    expect(plain, n, other_plain, n, true, "two of cuMemAlloc");
    expect(plain, n, plain + n, n, true, "one behind the other in one of cuMemAlloc");
    expect(plain, n, plain + n - 1, n, false, "the last byte of one is the first of the other");
    expect(plain, n, mapped, n, true, "cuMemAlloc and mapped");
    expect(plain, n, imported, n, true, "cuMemAlloc and imported");
    expect(mapped, n, mapped + n, n, true, "one behind the other in one mapping");
    expect(mapped, n, mapped + second, n, true, "two handles, both made here");
    expect(mapped, n, twice, n, false, "a handle mapped twice");
    expect(mapped, n, twice + n, n, false, "... elsewhere in it, which is not looked at");
    expect(mapped + second, n, twice, n, true, "another handle than that which is mapped twice");
    expect(mapped + second - n, n, mapped + second, n, true, "across two mappings: one behind the other");
    expect(mapped + second - n, 2 * n, twice, n, false, "across two mappings, the first of them mapped twice");
    expect(mapped + second, n, imported, n, false, "a handle made here, and one that was imported");
    expect(mapped, n, imported, n, false, "... which is the same memory");
    expect(imported, n, imported + n, n, true, "one behind the other in an imported mapping");
    expect(imported, n, imported_twice, n, false, "imported twice");
    expect(of_one_process, n, imported, n, false, "a handle that cannot be shared, which an imported one looks like");
    expect(of_one_process, n, of_one_process + n, n, true, "... in one mapping");
    expect(of_one_process, n, mapped, n, false, "... and another");
    expect(of_host, n, plain, n, false, "host memory");
    expect(of_host, n, of_host + n, n, false, "... which may be two mappings of a file");
    expect(mapped + 2 * CHUNK - n, 2 * n, plain, n, false, "beyond what is mapped");
    return tap_done();
}
