/* SPDX-License-Identifier: MIT */
/*
 * hooks.h - when onehop looks at new objects, and when the process starts and ends
 *
 * Does: Finds copies of NCCL, and has the callers patched (patch.h), whenever objects may have been loaded. Changes
 *    nothing with ONEHOP_DISABLE=1, in a set-user-ID program, and behind another onehop. Keeps errno.
 * Threads: any, but not from within dl_iterate_phdr: objects are opened.
 * Owns: nothing.
 */
#ifndef OH_INTERPOSE_HOOKS_H_
#define OH_INTERPOSE_HOOKS_H_

#include <stdbool.h>

enum oh_hooks_urgency {
    OH_HOOKS_TRY, /* returns if another thread is at it */
    OH_HOOKS_WAIT /* waits for that thread, for a bounded time */
};

/* Patches the objects that were loaded since the last call. */
void oh_hooks_update(enum oh_hooks_urgency urgency);

/*
 * The same (OH_HOOKS_WAIT) for a call from the address `caller`. Takes no lock if one copy is known, and the caller's
 * object was there when it was last looked for copies: that object cannot mean another (glibc 2.35).
 */
void oh_hooks_update_for(const void *caller);

/* Prepares for forks, once: called before any other function of hooks.c can be. */
void oh_hooks_begin(void);

/*
 * At exit, if no communicator was seen: logs if NCCL is loaded, and another object's dlsym keeps look-ups from onehop.
 * At INFO, since the program may have had no communicator.
 */
void oh_hooks_end(void);

/* Returns whether this process was forked: another thread may have been changing the loader's list. */
bool oh_hooks_are_forked(void);

/* --- dlsym.c ------------------------------------------------------------------------------------------------------ */

/* Returns whether the start of the program passes onehop, as far as constructors can tell: it is loaded with it. */
bool oh_hooks_start_seen(void);

/* Returns whether oh_hooks_last_action acts at the end: the start has passed, maybe by way of an object in front. */
bool oh_hooks_acts_last(void);

/* Called at exit(), behind the destructors of all objects, where the start of the program passes onehop. Set once. */
extern void (*oh_hooks_last_action)(void);

#endif
