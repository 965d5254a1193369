/* SPDX-License-Identifier: MIT */
/*
 * caller.c - the copy of NCCL that a caller means
 *
 * Does: Finds the copy by the thunk, or by the object at the return address, and remembers it by return address. Finds
 *    the table of the call.
 * Threads: any.
 * Owns: the table of return addresses.
 */
#include <link.h>
#include <stdatomic.h>

#include "interpose/hooks.h"
#include "interpose/loader.h"
#include "interpose/real.h"
#include "util/log.h"
#include "util/scope.h"

#define SITES 256 /* power of two */

/* By return address: the address, shifted, and the number of the copy that the call means, in one word. */
static _Atomic uint64_t sites[SITES];

/* With several copies, the one of the object that has the return address. */
static const struct oh_real *copy_for(const void *caller)
{
    const struct link_map *object = oh_object_at(caller);
    const char *path = object ? object->l_name : "";
    bool is_unsure;
    const struct oh_real *real = oh_real_of_object(object ? object->l_ld : NULL, path, &is_unsure);
    if (!real) {
        real = oh_real_at(0);
        OH_WARN("several copies of NCCL are loaded, and nothing says which one %s calls; taking %s",
                path[0] ? path : "the program", real->path);
    }
    return real;
}

static _Atomic uint64_t *site_of(const void *caller)
{
    return &sites[((uintptr_t)caller * UINT64_C(0x9e3779b97f4a7c15) >> 32) % SITES];
}

/* A site's first call. */
static const struct oh_real *look_up(const void *caller)
{
    const struct oh_real *real = NULL;
    OH_KEEP_ERRNO();
    oh_hooks_update_for(caller);
    int count = oh_real_count();
    if (count > 0) {
        real = count == 1 ? oh_real_at(0) : copy_for(caller);
        atomic_store_explicit(site_of(caller), (uint64_t)(uintptr_t)caller << 3 | (uint64_t)(real - oh_real_at(0)),
                              memory_order_relaxed);
    }
    return real;
}

const struct oh_real *oh_real_find(const void *caller)
{
    const struct oh_real *real = oh_real_of_thunk;
    if (!real) {
        uint64_t site = atomic_load_explicit(site_of(caller), memory_order_relaxed);
        real = site >> 3 == (uint64_t)(uintptr_t)caller ? oh_real_at(site & 7) : look_up(caller);
    }
    return real;
}

const struct oh_nccl *oh_real_table(const struct oh_nccl *own)
{
    return oh_real_of_thunk || oh_nccl_depth > 0 ? own : own->seen;
}

ncclResult_t oh_real_get(const void *caller, const struct oh_nccl **nccl_p)
{
    const struct oh_real *real = oh_real_find(caller);
    if (!real) {
        OH_WARN("no NCCL is loaded in this process: the call returns ncclSystemError");
        return ncclSystemError;
    }
    *nccl_p = oh_real_table(&real->own);
    return ncclSuccess;
}
