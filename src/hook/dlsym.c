/* SPDX-License-Identifier: MIT */
/*
 * dlsym.c - what happens before a dlsym of the application is answered
 *
 * A caller that opens NCCL and takes an address from it (ctypes, JAX) gives onehop no other moment to see that NCCL
 * has been loaded. So dlsym and dlvsym (dlsym_entry.S) first have new objects looked at, and then jump to the real
 * function, which does all the answering; its errors, its RTLD_NEXT and its order of search stay what they are. Runs in
 * any thread, and in every program that onehop is preloaded into: where no object has been loaded since the last time
 * it costs one call of dl_iterate_phdr that stops at the first object.
 */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "hook/elf.h"
#include "hook/patch.h"
#include "hook/real.h"

#define INTERNAL __attribute__((visibility("hidden")))

typedef void *(*dlsym_function)(void *handle, const char *name);
typedef void *(*dlvsym_function)(void *handle, const char *name, const char *version);

/* Read by dlsym_entry.S after oh_dlsym_before. */
INTERNAL extern _Atomic(dlsym_function) oh_next_dlsym;
INTERNAL extern _Atomic(dlvsym_function) oh_next_dlvsym;
INTERNAL void oh_dlsym_before(const char *name);

_Atomic(dlsym_function) oh_next_dlsym;
_Atomic(dlvsym_function) oh_next_dlvsym;

static bool ready;           /* constructors run: the sanitizers' runtimes and libc are up */
static atomic_bool in_child; /* of fork, where another thread may have held the lock of dl_iterate_phdr for ever */

OH_EARLY static void *no_dlsym(void *handle, const char *name)
{
    (void)handle, (void)name;
    return NULL;
}

OH_EARLY static void *no_dlvsym(void *handle, const char *name, const char *version)
{
    (void)handle, (void)name, (void)version;
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
 * The definition that stands behind ours: of another preloaded object, or libc's. Not by dlsym, of course. The objects
 * from the start of the process, which stand first in the list, are never unloaded.
 */
OH_EARLY static void *next_definition(const char *name)
{
    Dl_info info;
    struct link_map *own = NULL;
    void *found = NULL;
    if (!dladdr1(&ready, &info, (void **)&own, RTLD_DL_LINKMAP) || !own) {
        return NULL;
    }
    for (const struct link_map *object = own->l_next; object && !found; object = object->l_next) {
        found = definition_in(object, name);
    }
    const struct link_map *first = own;
    while (first->l_prev) {
        first = first->l_prev;
    }
    for (; first != own && !found; first = first->l_next) { /* opened after libc, not preloaded */
        found = definition_in(first, name);
    }
    return found;
}

/* Zero until the loader has relocated this object: resolvers of indirect functions may call dlsym before. */
static const void *const volatile relocated = &ready;

OH_EARLY static void find_next(void)
{
    if (relocated != &ready) { /* nothing can be called yet: "not found", until the next time */
        atomic_store_explicit(&oh_next_dlvsym, no_dlvsym, memory_order_relaxed);
        atomic_store_explicit(&oh_next_dlsym, no_dlsym, memory_order_relaxed);
        return;
    }
    dlvsym_function known = atomic_load_explicit(&oh_next_dlvsym, memory_order_relaxed);
    if (!known || known == no_dlvsym) {
        dlvsym_function next = (dlvsym_function)next_definition("dlvsym");
        atomic_store_explicit(&oh_next_dlvsym, next ? next : no_dlvsym, memory_order_relaxed);
    }
    dlsym_function known_dlsym = atomic_load_explicit(&oh_next_dlsym, memory_order_relaxed);
    if (!known_dlsym || known_dlsym == no_dlsym) {
        dlsym_function next = (dlsym_function)next_definition("dlsym");
        atomic_store_explicit(&oh_next_dlsym, next ? next : no_dlsym, memory_order_release);
    }
}

OH_EARLY static bool is_nccl(const char *name)
{
    return name && name[0] == 'n' && name[1] == 'c' && name[2] == 'c' && name[3] == 'l';
}

/* What a malloc replacement looks up, maybe called by the loader itself, where no object may be opened. */
OH_EARLY static bool is_allocator(const char *name)
{
    static const char names[][16] = {"malloc",   "calloc",         "realloc",      "free",
                                     "memalign", "posix_memalign", "aligned_alloc"};
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++) {
        size_t at = 0;
        while (name[at] && name[at] == names[i][at]) {
            at++;
        }
        if (name[at] == names[i][at]) {
            return true;
        }
    }
    return false;
}

OH_EARLY void oh_dlsym_before(const char *name)
{
    dlsym_function next = atomic_load_explicit(&oh_next_dlsym, memory_order_acquire);
    if (!next || next == no_dlsym) {
        find_next();
    }
    if (!ready) {
        return;
    }
    bool child = atomic_load_explicit(&in_child, memory_order_relaxed);
    if (is_nccl(name)) {
        if (!child || oh_real_count() == 0) { /* its table was changed before the fork; the loader's lock may be lost */
            oh_hooks_update(OH_HOOKS_WAIT);
        }
    } else if (!is_allocator(name) && !child) {
        oh_hooks_update(OH_HOOKS_TRY); /* for objects that the loader has bound to NCCL itself (RTLD_DEEPBIND) */
    }
}

void *oh_dlsym_next(void *handle, const char *name)
{
    if (!atomic_load_explicit(&oh_next_dlsym, memory_order_acquire)) {
        find_next();
    }
    return atomic_load_explicit(&oh_next_dlsym, memory_order_relaxed)(handle, name);
}

static void after_fork_in_child(void)
{
    atomic_store_explicit(&in_child, true, memory_order_relaxed);
}

__attribute__((constructor)) static void get_ready(void)
{
    find_next();
    pthread_atfork(NULL, NULL, after_fork_in_child);
    ready = true;
}
