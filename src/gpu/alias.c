/* SPDX-License-Identifier: MIT */
#include "gpu/alias.h"

enum kind {
    UNKNOWN,
    MAPPED, /* by cuMemMap, perhaps of a handle that was imported, from this process even */
    OWN,    /* by cuMemMap, of a handle that this process has made */
    PLAIN   /* cuMemAlloc: it has one address */
};

/* The mapping that an address lies in. */
struct mapping {
    enum kind kind;
    uint64_t base;
    uint64_t end;
    unsigned long long block; /* id of the memory behind it, one for all mappings of a handle */
};

static bool get(const struct oh_driver *driver, CUpointer_attribute attribute, uint64_t address, void *value)
{
    return driver->pointer_get_attribute(value, attribute, (CUdeviceptr)address) == CUDA_SUCCESS;
}

/*
 * A handle that was imported is another than the one it was exported from, with another block; it cannot be exported
 * again, and says so in its properties (driver 580.159). So does one that was made for this process alone.
 */
static enum kind kind_of(const struct oh_driver *driver, uint64_t address)
{
    unsigned plain = 0;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties;
    if (get(driver, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address, &plain) && plain) {
        return PLAIN;
    }
    if (driver->mem_retain_allocation_handle(&handle, (void *)(uintptr_t)address) != CUDA_SUCCESS) {
        return UNKNOWN; /* also memory of a pool */
    }
    CUresult result = driver->mem_get_allocation_properties(&properties, handle);
    driver->mem_release(handle);
    if (result != CUDA_SUCCESS) {
        return UNKNOWN;
    }
    return properties.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE ? MAPPED : OWN;
}

static struct mapping mapping_at(const struct oh_driver *driver, uint64_t address)
{
    struct mapping mapping = {.kind = kind_of(driver, address), .end = UINT64_MAX};
    size_t bytes = 0;
    if (mapping.kind == MAPPED || mapping.kind == OWN) {
        if (get(driver, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, address, &mapping.base) &&
            get(driver, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address, &bytes) &&
            get(driver, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, address, &mapping.block) &&
            address - mapping.base < bytes) {
            mapping.end = mapping.base + bytes;
        } else {
            mapping.kind = UNKNOWN;
        }
    }
    return mapping;
}

/* Of two addresses that differ, one in each mapping. */
static bool are_apart(const struct mapping *a, const struct mapping *b)
{
    if (a->kind == UNKNOWN || b->kind == UNKNOWN) {
        return false;
    }
    if (a->kind == PLAIN || b->kind == PLAIN) {
        return true;
    }
    return a->base == b->base || (a->kind == OWN && b->kind == OWN && a->block != b->block);
}

bool oh_alias_never(const struct oh_driver *driver, const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
    const uint64_t a_begin = (uintptr_t)a, b_begin = (uintptr_t)b;
    if (a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes) {
        return false;
    }
    for (uint64_t at = a_begin; at < a_begin + a_bytes;) {
        const struct mapping one = mapping_at(driver, at);
        for (uint64_t other_at = b_begin; other_at < b_begin + b_bytes;) {
            const struct mapping other = mapping_at(driver, other_at);
            if (!are_apart(&one, &other)) {
                return false;
            }
            other_at = other.end;
        }
        at = one.end;
    }
    return true;
}
