/* SPDX-License-Identifier: MIT */
/*
 * patch.h - leads callers to onehop whom the dynamic linker has bound, or would bind, to NCCL itself
 *
 * Does: Replaces the public nccl* functions in the symbol table (.dynsym, in this process's memory) of each copy of
 *    NCCL by thunks (real.h), so that later look-ups and bindings lead to onehop: dlsym, ctypes, objects loaded later,
 *    lazy calls. Replaces earlier bindings in the table of addresses (GOT) of their object. pncclX stay. Not reached:
 *    addresses that the application took by dlsym before, and NCCL linked into a program statically.
 * Threads: any, but not from within dl_iterate_phdr: takes the loader's locks.
 * Owns: nothing.
 */
#ifndef OH_HOOK_PATCH_H_
#define OH_HOOK_PATCH_H_

#include <stdbool.h>

enum oh_hooks_urgency {
    OH_HOOKS_TRY, /* returns if another thread is at it */
    OH_HOOKS_WAIT /* waits for that thread, for a bounded time */
};

/*
 * Patches the objects that were loaded since the last call. Changes nothing with ONEHOP_DISABLE=1, in a set-user-ID
 * program, and behind another onehop. Keeps errno.
 */
void oh_hooks_update(enum oh_hooks_urgency urgency);

/* Returns whether this object is in the global scope: preloaded, not opened as NCCL opens plugins. */
bool oh_hooks_preloaded(void);

/* dlsym.c. Calls the next definition of dlsym, behind onehop's: looks at no new objects. */
void *oh_dlsym_next(void *handle, const char *name);

#endif
