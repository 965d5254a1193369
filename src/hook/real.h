/* SPDX-License-Identifier: MIT */
/*
 * real.h - the NCCL that the application has loaded, or several copies
 *
 * Does: Finds each loaded object that defines pncclAllReduce; loads none. Calls its pncclX functions, which are the
 *    public functions under names that nobody interposes. Forwards each call to the copy that the caller means
 *    (PyTorch's and a wheel's, say):
 *      a call with a communicator that onehop knows: the copy that made it;
 *      a call through a thunk: the thunk's copy; with several copies every object gets thunks;
 *      another call: the copy to which the object at the return address is bound. A tail call has its caller's address.
 * Threads: any, but oh_hooks_update not from within dl_iterate_phdr: it takes the loader's locks.
 * Owns: the tables, which are never freed, and references to the libraries.
 */
#ifndef OH_HOOK_REAL_H_
#define OH_HOOK_REAL_H_

#include <nccl.h>
#include <stdbool.h>

#include "hook/elf.h"

#define OH_REAL_MAX 4     /* copies of NCCL in one process that are told apart */
#define OH_REAL_PATH 4096 /* PATH_MAX. Not on the heap: without memory the job must still find its NCCL */

/*
 * X(name without the prefix, parameters, arguments); all return ncclResult_t. onehop exports a function for each name,
 * except the queries. NCCL 2.19 has all but the optional ones.
 */
#define OH_ON_STREAM(...) (__VA_ARGS__, ncclComm_t comm, cudaStream_t stream)
#define OH_REAL_REQUIRED(X)                                                                                            \
    X(CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank), (comm, nranks, id, rank))              \
    X(CommInitRankConfig, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config),            \
      (comm, nranks, id, rank, config))                                                                                \
    X(CommInitAll, (ncclComm_t * comms, int count, const int *devices), (comms, count, devices))                       \
    X(CommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config),                        \
      (comm, color, key, made, config))                                                                                \
    X(CommFinalize, (ncclComm_t comm), (comm))                                                                         \
    X(CommDestroy, (ncclComm_t comm), (comm))                                                                          \
    X(CommAbort, (ncclComm_t comm), (comm))                                                                            \
    X(CommGetAsyncError, (ncclComm_t comm, ncclResult_t * error), (comm, error))                                       \
    X(AllReduce, OH_ON_STREAM(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op),          \
      (from, to, count, type, op, comm, stream))                                                                       \
    X(RedOpCreatePreMulSum,                                                                                            \
      (ncclRedOp_t * op, void *scalar, ncclDataType_t type, ncclScalarResidence_t where, ncclComm_t comm),             \
      (op, scalar, type, where, comm))                                                                                 \
    X(RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm), (op, comm))                                                     \
    X(GroupStart, (void), ())                                                                                          \
    X(GroupEnd, (void), ())

#define OH_REAL_OPTIONAL(X)                                                                                            \
    X(GroupSimulateEnd, (struct ncclSimInfo_v22200 * info), (info))                                                    \
    X(CommInitRankScalable,                                                                                            \
      (ncclComm_t * comm, int nranks, int rank, int count, ncclUniqueId *ids, ncclConfig_t *config),                   \
      (comm, nranks, rank, count, ids, config))                                                                        \
    X(CommGrow,                                                                                                        \
      (ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *made, ncclConfig_t *config),         \
      (comm, nranks, id, rank, made, config))                                                                          \
    X(CommRevoke, (ncclComm_t comm, int flags), (comm, flags))                                                         \
    X(CommShrink, (ncclComm_t comm, int *excluded, int count, ncclComm_t *made, ncclConfig_t *config, int flags),      \
      (comm, excluded, count, made, config, flags))

/*
 * Calls that onehop forwards, with the order between their streams and its own. X(name, parameters, arguments,
 * condition under which NCCL enqueues something). A send of nothing is enqueued (2.28.9, src/enqueue.cc, taskAppend).
 */
#define OH_REAL_FORWARDED(X)                                                                                           \
    X(Reduce, OH_ON_STREAM(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root),   \
      (from, to, count, type, op, root, comm, stream), count)                                                          \
    X(Bcast, OH_ON_STREAM(void *data, size_t count, ncclDataType_t type, int root),                                    \
      (data, count, type, root, comm, stream), count)                                                                  \
    X(Broadcast, OH_ON_STREAM(const void *from, void *to, size_t count, ncclDataType_t type, int root),                \
      (from, to, count, type, root, comm, stream), count)                                                              \
    X(ReduceScatter, OH_ON_STREAM(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op),      \
      (from, to, count, type, op, comm, stream), count)                                                                \
    X(AllGather, OH_ON_STREAM(const void *from, void *to, size_t count, ncclDataType_t type),                          \
      (from, to, count, type, comm, stream), count)                                                                    \
    X(Send, OH_ON_STREAM(const void *from, size_t count, ncclDataType_t type, int peer),                               \
      (from, count, type, peer, comm, stream), 1)                                                                      \
    X(Recv, OH_ON_STREAM(void *to, size_t count, ncclDataType_t type, int peer),                                       \
      (to, count, type, peer, comm, stream), 1)                                                                        \
    X(AlltoAll, OH_ON_STREAM(const void *from, void *to, size_t count, ncclDataType_t type),                           \
      (from, to, count, type, comm, stream), count)                                                                    \
    X(Gather, OH_ON_STREAM(const void *from, void *to, size_t count, ncclDataType_t type, int root),                   \
      (from, to, count, type, root, comm, stream), count)                                                              \
    X(Scatter, OH_ON_STREAM(const void *from, void *to, size_t count, ncclDataType_t type, int root),                  \
      (from, to, count, type, root, comm, stream), count)

/* Called by onehop, not exported by it. */
#define OH_REAL_QUERIES(X)                                                                                             \
    X(CommCount, (const ncclComm_t, int *))                                                                            \
    X(CommCuDevice, (const ncclComm_t, int *))                                                                         \
    X(CommUserRank, (const ncclComm_t, int *))                                                                         \
    X(GetVersion, (int *))

struct ncclSimInfo_v22200; /* ncclSimInfo_t since NCCL 2.22; older headers do not have it */

/* nccl.h declares GroupStart and GroupEnd without a prototype, and some others only in newer versions. */
#define OH_REAL_DECLARE(name_, parameters_, ...) ncclResult_t nccl##name_ parameters_;
OH_REAL_REQUIRED(OH_REAL_DECLARE)
OH_REAL_OPTIONAL(OH_REAL_DECLARE)
OH_REAL_FORWARDED(OH_REAL_DECLARE)
#undef OH_REAL_DECLARE

struct oh_real {
#define OH_REAL_FIELD(name_, parameters_, ...) ncclResult_t(*name_) parameters_;
    OH_REAL_REQUIRED(OH_REAL_FIELD)
    OH_REAL_QUERIES(OH_REAL_FIELD)
    OH_REAL_OPTIONAL(OH_REAL_FIELD) /* these and the next: NULL where this NCCL has none */
    OH_REAL_FORWARDED(OH_REAL_FIELD)
#undef OH_REAL_FIELD
    struct oh_elf elf;
    char path[OH_REAL_PATH];
    bool pinned;  /* onehop holds a reference */
    bool tried;   /* to patch it */
    bool patched; /* its symbol table has the thunks */
};

/*
 * Finds the library for a call from the address `caller`. Returns ncclSuccess, or ncclSystemError (one WARN) while no
 * NCCL 2.19 or later is loaded. Keeps errno.
 */
ncclResult_t oh_real_get(const struct oh_real **real_p, const void *caller);

/* The library of this thread's call through a thunk; NULL: none. Only thunks set it. */
extern __thread const struct oh_real *oh_real_of_thunk __attribute__((visibility("hidden")));

/*
 * Returns the copy to which an object with this dynamic section and path is bound: that of the global scope, or else of
 * the object's own; NULL: none. Opens objects, so not from dl_iterate_phdr.
 */
const struct oh_real *oh_real_of_object(const void *dynamic, const char *path);

/* Number of copies known so far, and each of them. */
int oh_real_count(void);
struct oh_real *oh_real_at(int index);

/* For patch.c, one thread at a time. Adds the object if it is an NCCL; forgets the last one, which was unloaded. */
void oh_real_add(const struct oh_elf *elf, const char *path);
void oh_real_drop(int index);

/*
 * A function of NCCL. An exported one has a thunk for each copy, an entry that notes the copy and calls the function,
 * so that creators and group calls, which carry no communicator, go to the copy that the caller meant.
 */
struct oh_function {
    const char *real_name; /* "pncclAllReduce"; the public name begins behind the p */
    size_t offset;         /* of the function in struct oh_real */
    bool required;
    void (*plain)(void); /* the exported function; NULL: onehop only calls it */
    void (*thunk[OH_REAL_MAX])(void);
};
extern const struct oh_function oh_functions[];
extern const size_t oh_function_count;

/* --- patch.c ------------------------------------------------------------------------------------------------------ */

/*
 * Leads callers to onehop whom the dynamic linker has bound, or would bind, to NCCL itself. Replaces the public nccl*
 * functions in the symbol table (.dynsym, in this process's memory) of each copy of NCCL by thunks, so that later
 * look-ups and bindings lead to onehop: dlsym, ctypes, objects loaded later, lazy calls. Replaces earlier bindings in
 * the table of addresses (GOT) of their object. pncclX stay. Not reached: addresses that the application took by dlsym
 * before, and NCCL linked into a program statically.
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

/* Returns whether this object is in the global scope: preloaded, not opened as NCCL opens plugins. */
bool oh_hooks_preloaded(void);

/*
 * dlsym.c. Looks a name up from a loaded object; path "": in the global scope. Calls the next definition of dlsym,
 * behind onehop's, which looks at no new objects. Leaves no dlerror.
 */
void *oh_dlsym_in(const char *path, const char *name);

#endif
