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
 * Threads: any.
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

/* For hooks.c, one thread at a time. Adds the object if it is an NCCL, and calls no function of another object. */
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

#endif
