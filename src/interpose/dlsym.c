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

#include "interpose/elf.h"
#include "interpose/real.h"

__attribute__((visibility("hidden"))) void oh_dlsym_before(const char *name);

static bool ready;           /* this object's constructors have begun */
static atomic_bool in_child; /* of fork, where another thread may have left the lock of dl_iterate_phdr locked */

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
    oh_next_dlsym_find();
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
