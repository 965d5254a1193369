/* SPDX-License-Identifier: MIT */
/*
 * real.h - the NCCL that the application has loaded, or several copies
 *
 * Does: Finds each loaded object that defines pncclGetVersion; loads none. Finds its pncclX functions, which are the
 *    public functions under names that no tool defines. Forwards each call to the copy that the caller means
 *    (PyTorch's and a wheel's, say):
 *      a call with a communicator that onehop knows: the copy that made it;
 *      a call through a thunk: the thunk's copy; with several copies every object gets thunks;
 *      another call: the copy to which the object at the return address is bound. A tail call has its caller's address.
 * Threads: any, but oh_hooks_update not from within dl_iterate_phdr: it opens objects.
 * Owns: the tables, which are never freed, and references to the libraries.
 */
#ifndef OH_INTERPOSE_REAL_H_
#define OH_INTERPOSE_REAL_H_

#include <link.h>
#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "comm/nccl.h"
#include "interpose/elf.h"

#define OH_REAL_MAX 4     /* copies of NCCL in one process that are told apart */
#define OH_REAL_PATH 4096 /* PATH_MAX. Not on the heap: without memory the job must still find its NCCL */

enum oh_real_state {
    OH_REAL_FOUND,     /* it may be unloaded */
    OH_REAL_HELD,      /* by a reference */
    OH_REAL_UNPATCHED, /* likewise; its symbol table cannot be changed */
    OH_REAL_PATCHED    /* likewise; its symbol table has the thunks */
};

struct oh_real {
    struct oh_nccl own, seen; /* seen: with the functions of a tool behind onehop */
    struct oh_elf elf;
    char path[OH_REAL_PATH];
    const char *lacking; /* a required function, until it is reported */
    _Atomic(enum oh_real_state) state;
    atomic_bool announced;
};

/*
 * caller.c. Finds the copy for a call from the address `caller`, and its table: NCCL's own functions for a call through
 * a thunk or from within NCCL, else those that the program would call. Returns ncclSuccess, or ncclSystemError (one
 * WARN) while no NCCL is loaded. Keeps errno.
 */
ncclResult_t oh_real_get(const void *caller, const struct oh_nccl **nccl_p);

/* Returns the copy alone; NULL: none is loaded. */
const struct oh_real *oh_real_find(const void *caller);

/* Returns the table of a call for a communicator that `own` has made. */
const struct oh_nccl *oh_real_table(const struct oh_nccl *own);

/* The library of this thread's call through a thunk or by pncclX; NULL: none. Only these set it. */
extern __thread const struct oh_real *oh_real_of_thunk __attribute__((visibility("hidden")));

/*
 * Returns the copy to which an object with this dynamic section and path is bound: that of the global scope, or else of
 * the object's own; NULL: none. is_unsure_p: both scopes have one. Then the loader alone knows to which of the two it
 * binds the object: RTLD_DEEPBIND puts its own scope first. Opens objects, so not from dl_iterate_phdr.
 */
const struct oh_real *oh_real_of_object(const void *dynamic, const char *path, bool *is_unsure_p);

/* Number of copies known so far, and each of them. */
int oh_real_count(void);
struct oh_real *oh_real_at(int index);

/* For patch.c, one thread at a time. Adds the object if it is an NCCL, and calls no function of another object. */
void oh_real_add(const struct link_map *object);

/*
 * Keeps added copies loaded for good, also where nothing is patched: onehop's functions forward to them. Logs what was
 * found. Forgets a copy that was unloaded, if it is the last. A loaded copy that cannot be opened is called
 * nevertheless; the next call tries again.
 */
void oh_real_hold(void);

/*
 * A function of NCCL. An exported one has a thunk for each copy, an entry that notes the copy and calls the function,
 * so that creators and group calls, which carry no communicator, go to the copy that the caller meant.
 */
struct oh_function {
    const char *real_name; /* "pncclAllReduce"; the public name begins behind the p */
    size_t offset;         /* of the function in struct oh_nccl */
    bool required;
    void (*thunk[OH_REAL_MAX])(void);
};
#define OH_REAL_COUNT(...) +1
enum {
    OH_EXPORTED_COUNT = OH_NCCL_REQUIRED(OH_REAL_COUNT) OH_NCCL_OPTIONAL(OH_REAL_COUNT),
    OH_FUNCTION_COUNT = OH_EXPORTED_COUNT OH_NCCL_QUERIES(OH_REAL_COUNT)
};
#undef OH_REAL_COUNT
extern const struct oh_function oh_functions[OH_FUNCTION_COUNT]; /* the exported ones first */

/* The function of a copy; NULL: it has none. */
static inline void *oh_real_function(const struct oh_real *real, const struct oh_function *function)
{
    void *address;
    memcpy(&address, (const char *)&real->own + function->offset, sizeof address);
    return address;
}

/* --- patch.c ------------------------------------------------------------------------------------------------------ */

/*
 * Redirects to onehop the callers that the dynamic linker has bound, or would bind, to NCCL itself. Replaces ncclX and
 * pncclX in the symbol table (.dynsym, in this process's memory) of each copy of NCCL by thunks, so that later look-ups
 * and bindings lead to onehop: dlsym, ctypes, objects loaded later, lazy calls. Replaces earlier bindings in the table
 * of addresses (GOT) of their object. Hides onehop's functions that no copy of NCCL has. Not reached: addresses that
 * the application took by dlsym before, and NCCL linked into a program statically.
 */

enum oh_hooks_urgency {
    OH_HOOKS_TRY, /* returns if another thread is at it */
    OH_HOOKS_WAIT /* waits for that thread, for a bounded time */
};

/*
 * Patches the objects that were loaded since the last call. Changes nothing with ONEHOP_DISABLE=1, in a set-user-ID
 * program, and behind another onehop. Keeps errno.
 */
void oh_hooks_update(enum oh_hooks_urgency urgency);

/*
 * The same (OH_HOOKS_WAIT) for a call from the address `caller`. Takes no lock if one copy is known, and the caller's
 * object was there when it was last looked for copies: that object cannot mean another (glibc 2.35).
 */
void oh_hooks_update_for(const void *caller);

/* Prepares for forks, once: called before any other function of patch.c can be. */
void oh_hooks_begin(void);

/*
 * At exit, if no communicator was seen: logs if NCCL is loaded, and another object's dlsym keeps look-ups from onehop.
 * At INFO, since the program may have had no communicator.
 */
void oh_hooks_end(void);

/* Returns whether this process was forked: another thread may have been changing the loader's list. */
bool oh_hooks_are_forked(void);

/* --- what the loader knows: real.c -------------------------------------------------------------------------------- */

/*
 * Looks a name up from a loaded object; path "": in the global scope. Calls the next definition of dlsym, behind
 * onehop's, which looks at no new objects. Leaves no dlerror.
 */
void *oh_dlsym_in(const char *path, const char *name);

/* Returns the object that has the address, of its code or data; NULL: none. */
const struct link_map *oh_object_at(const void *address);

/* Returns whether the object with this dynamic section has the address. */
bool oh_object_has(const void *dynamic, const void *address);

/* Opens a loaded object again. Returns NULL if it was unloaded, or another is at its path. Leaves no dlerror. */
void *oh_object_open(const char *path, const void *dynamic);

/* Returns whether this object is in the global scope: preloaded, not opened as NCCL opens plugins. */
bool oh_onehop_is_preloaded(void);

/* --- next_dlsym.c, dlsym.c: run before the program's main, and call nothing --------------------------------------- */

/* dlvsym has a parameter more, which only its caller sees. */
typedef void *(*oh_dlsym_function)(void *handle, const char *name);

/*
 * The definitions of dlsym and dlvsym behind onehop's: another preloaded object's, or libc's. dlsym_entry.S jumps to
 * them. NULL: not searched for. oh_next_dlsym_find sets them, unless they are known.
 */
extern _Atomic(oh_dlsym_function) oh_next_dlsym, oh_next_dlvsym;
void oh_next_dlsym_find(void);

/*
 * Returns a value that changes with the loader's list of objects; 0: unknown. Takes only the lock that dlsym takes in
 * any case. An object that takes another's place in all respects does not change it.
 */
uintptr_t oh_next_objects(void);

/*
 * The same, and calls visit for each object, with that lock held: for those that were appended since the list had the
 * value `after`, or for all if its begin is not as it was then. The visitor opens no object, and calls no function of
 * another object but malloc, as the loader does: an object that stands for a function may look up the next one while
 * another thread waits for that, and dlsym waits for the lock.
 */
typedef void oh_object_visitor(const struct link_map *object, void *user);
uintptr_t oh_next_visit(uintptr_t after, oh_object_visitor *visit, void *user);

/* Returns whether the loader changes the list, maybe in this thread: no object may be opened. */
bool oh_next_is_changing(void);

/* Calls libc's own on_exit. */
void oh_next_on_exit(void (*function)(int status, void *argument));

/* Reads onehop's own dynamic section. Returns false if the loader does not list it. */
bool oh_next_own(struct oh_elf *elf_p);

/* A name that nobody else looks up, by its address, and the number of its look-ups that have passed onehop. */
extern const char oh_dlsym_probe[];
extern atomic_uint oh_dlsym_probes;

/* Returns the definition of a function behind onehop's, in the order of loading; NULL: none. */
void *oh_next_definition(const char *name);

/* Returns whether the program refers to a function, and its definition is the first in the order of loading. */
bool oh_program_calls(const char *name, const void *definition);

/* Returns whether the start of the program passes onehop, as far as constructors can tell: it is loaded with the
 * program. */
bool oh_hooks_start_seen(void);

/* Returns whether oh_hooks_last_action acts at the end: the start has passed, maybe by way of an object in front. */
bool oh_hooks_acts_last(void);

/* Called at exit(), behind the destructors of all objects, where the start of the program passes onehop. Set once. */
extern void (*oh_hooks_last_action)(void);

#endif
