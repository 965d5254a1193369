/* SPDX-License-Identifier: MIT */
/*
 * loader.c - what the loader says of an object
 *
 * Does: See loader.h.
 * Threads: any.
 * Owns: nothing.
 */
#include "interpose/loader.h"

#include <dlfcn.h>

#include "onehop/onehop.h"

void *oh_dlsym_in(const char *path, const char *name)
{
    void *handle = dlopen(path[0] ? path : NULL, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    oh_next_dlsym_find();
    void *found = handle ? atomic_load_explicit(&oh_next_dlsym, memory_order_relaxed)(handle, name) : NULL;
    if (handle) {
        dlclose(handle);
    }
    if (!found) {
        dlerror();
    }
    return found;
}

const struct link_map *oh_object_at(const void *address)
{
    Dl_info info;
    struct link_map *object = NULL;
    return dladdr1(address, &info, (void **)&object, RTLD_DL_LINKMAP) ? object : NULL;
}

bool oh_object_has(const void *dynamic, const void *address)
{
    const struct link_map *object = oh_object_at(address);
    return object && object->l_ld == dynamic;
}

void *oh_object_open(const char *path, const void *dynamic)
{
    struct link_map *map;
    void *handle = dlopen(path[0] ? path : NULL, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle && (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map->l_ld != dynamic)) {
        dlclose(handle);
        handle = NULL;
    }
    if (!handle) {
        dlerror();
    }
    return handle;
}

bool oh_onehop_is_preloaded(void)
{
    return oh_dlsym_in("", "onehopVersion") == (const void *)(uintptr_t)onehopVersion;
}
