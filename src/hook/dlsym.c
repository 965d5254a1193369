/* SPDX-License-Identifier: MIT */
/*
 * dlsym.c - what happens before libc answers the application's dlsym and dlvsym
 *
 * Does: Before each look-up (dlsym_entry.S) has new objects patched: a caller that opens NCCL and takes an address from
 *    it (ctypes, JAX) gives onehop no other moment. If nothing was loaded since, that is one call of dl_iterate_phdr.
 * Threads: any, in every program that onehop is preloaded into.
 * Owns: nothing.
 */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "hook/elf.h"
#include "hook/real.h"

#define INTERNAL __attribute__((visibility("hidden")))

typedef void *(*dlsym_function)(void *handle,
                                const char *name); /* dlvsym has a parameter more, which only its caller sees */

/* dlsym_entry.S jumps to them after oh_dlsym_before. NULL: not looked for; not_found: look again. */
INTERNAL extern _Atomic(dlsym_function) oh_next_dlsym, oh_next_dlvsym;
INTERNAL void oh_dlsym_before(const char *name);

_Atomic(dlsym_function) oh_next_dlsym, oh_next_dlvsym;

static bool ready;           /* constructors run: the sanitizers' runtimes and libc are up */
static atomic_bool in_child; /* of fork, where another thread may have left the lock of dl_iterate_phdr locked */

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
    if (!dladdr1(&ready, &info, (void **)&own, RTLD_DL_LINKMAP) || !own) {
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
static const void *const volatile relocated = &ready;

OH_EARLY static void find_next(_Atomic(dlsym_function) *next_p, const char *name)
{
    dlsym_function known = atomic_load_explicit(next_p, memory_order_relaxed);
    if (!known || known == not_found) {
        dlsym_function next = relocated == &ready ? (dlsym_function)next_definition(name) : NULL;
        atomic_store_explicit(next_p, next ? next : not_found, memory_order_relaxed); /* publishes nothing else */
    }
}

OH_EARLY static bool is_nccl(const char *name)
{
    return name && name[0] == 'n' && name[1] == 'c' && name[2] == 'c' && name[3] == 'l';
}

/* A malloc replacement looks these up, maybe inside of the loader, where no object may be opened. */
OH_EARLY static bool is_allocator(const char *name)
{
    static const char names[][16] = {"malloc",   "calloc",         "realloc",      "free",
                                     "memalign", "posix_memalign", "aligned_alloc"};
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++) {
        if (oh_elf_same_name(name, names[i])) {
            return true;
        }
    }
    return false;
}

OH_EARLY void oh_dlsym_before(const char *name)
{
    find_next(&oh_next_dlvsym, "dlvsym");
    find_next(&oh_next_dlsym, "dlsym");
    if (!ready) {
        return;
    }
    bool child = atomic_load_explicit(&in_child, memory_order_relaxed);
    if (is_nccl(name)) {
        if (!child || oh_real_count() == 0) { /* else the table was patched before the fork */
            oh_hooks_update(OH_HOOKS_WAIT);
        }
    } else if (!is_allocator(name) && !child) {
        oh_hooks_update(OH_HOOKS_TRY); /* for objects that the loader has bound to NCCL itself (RTLD_DEEPBIND) */
    }
}

void *oh_dlsym_in(const char *path, const char *name)
{
    void *handle = dlopen(path[0] ? path : NULL, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    find_next(&oh_next_dlsym, "dlsym");
    void *found = handle ? atomic_load_explicit(&oh_next_dlsym, memory_order_relaxed)(handle, name) : NULL;
    if (handle) {
        dlclose(handle);
    }
    if (!found) {
        dlerror();
    }
    return found;
}

static void after_fork_in_child(void)
{
    atomic_store_explicit(&in_child, true, memory_order_relaxed);
}

__attribute__((constructor)) static void get_ready(void)
{
    oh_dlsym_before(NULL);
    pthread_atfork(NULL, NULL, after_fork_in_child);
    ready = true;
}
