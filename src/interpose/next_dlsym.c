/* SPDX-License-Identifier: MIT */
/*
 * next_dlsym.c - the definitions of dlsym and dlvsym behind onehop's
 *
 * Does: Finds them without dlsym, and looks names up by them.
 * Threads: any.
 * Owns: nothing.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>

#include "interpose/elf.h"
#include "interpose/real.h"

/* dlvsym has a parameter more, which only its caller sees. */
typedef void *(*dlsym_function)(void *handle, const char *name);

/* dlsym_entry.S jumps to them. NULL: not searched for; not_found: search again. */
extern _Atomic(dlsym_function) oh_next_dlsym, oh_next_dlvsym;
_Atomic(dlsym_function) oh_next_dlsym, oh_next_dlvsym;

OH_EARLY static void *not_found(void *handle, const char *name)
{
    (void)handle, (void)name;
    return NULL;
}

OH_EARLY static void *definition_in(const struct link_map *object, const char *name)
{
    struct oh_elf elf;
    if (!oh_elf_read(object->l_addr, object->l_ld, &elf)) {
        return NULL;
    }
    const ElfW(Sym) *symbol = oh_elf_find(&elf, name);
    return symbol ? (void *)(elf.base + symbol->st_value) : NULL;
}

/*
 * Finds the definition behind onehop's: another preloaded object's, or libc's. Objects from the start of the process
 * are first in the list, and never unloaded.
 */
OH_EARLY static void *next_definition(const char *name)
{
    Dl_info info;
    struct link_map *own = NULL;
    void *found = NULL;
    if (!dladdr1(&oh_next_dlsym, &info, (void **)&own, RTLD_DL_LINKMAP) || !own) {
        return NULL;
    }
    const struct link_map *first = own, *object = own;
    while (first->l_prev) {
        first = first->l_prev;
    }
    do { /* behind the last object the first: this one may be opened after libc, not preloaded */
        object = object->l_next ? object->l_next : first;
    } while (object != own && !(found = definition_in(object, name)));
    return found;
}

/* Zero until the loader has relocated this object: resolvers of indirect functions may call dlsym before. */
static const void *const volatile relocated = &oh_next_dlsym;

OH_EARLY static void find_next(_Atomic(dlsym_function) *next_p, const char *name)
{
    dlsym_function known = atomic_load_explicit(next_p, memory_order_relaxed);
    if (!known || known == not_found) {
        dlsym_function next = relocated == &oh_next_dlsym ? (dlsym_function)next_definition(name) : NULL;
        atomic_store_explicit(next_p, next ? next : not_found, memory_order_relaxed); /* publishes nothing else */
    }
}

OH_EARLY void oh_next_dlsym_find(void)
{
    find_next(&oh_next_dlvsym, "dlvsym");
    find_next(&oh_next_dlsym, "dlsym");
}

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
