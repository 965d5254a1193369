/* SPDX-License-Identifier: MIT */
/*
 * patch.h - leads callers to onehop whom the dynamic linker has bound, or would bind, to NCCL itself
 *
 * When a copy of NCCL is first seen, the addresses of its public nccl* functions in its symbol table (.dynsym, in this
 * process's memory only) are replaced by thunks (thunks.h). So whatever is looked up or bound from then on leads to
 * onehop: dlsym on any handle, ctypes, objects loaded later, lazy calls. What was bound before, in whatever object, is
 * replaced in that object's table of addresses (GOT). pncclX stay as they are: onehop forwards to them.
 *
 * Not reached: addresses that the application took by dlsym before that, and NCCL linked into a program statically.
 */
#ifndef OH_HOOK_PATCH_H_
#define OH_HOOK_PATCH_H_

#include <stdbool.h>

enum oh_hooks_urgency {
    OH_HOOKS_TRY, /* leave it to a thread that is at it already */
    OH_HOOKS_WAIT /* wait for that thread, for a bounded time */
};

/*
 * Looks at the objects that have been loaded since the last time. Cheap when there are none. Nothing is changed with
 * ONEHOP_DISABLE=1, in a set-user-ID program, nor when another onehop is in front of this one. Thread-safe; keeps
 * errno. It takes the loader's locks, so it must not be called from within dl_iterate_phdr.
 */
void oh_hooks_update(enum oh_hooks_urgency urgency);

/* Is this object in the global scope, which means preloaded, and not opened by someone (as NCCL opens plugins)? */
bool oh_hooks_preloaded(void);

/* dlsym.c. Calls the next definition of dlsym, behind onehop's: looks at no new objects. */
void *oh_dlsym_next(void *handle, const char *name);

#endif
