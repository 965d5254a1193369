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
 * X(name without the prefix, parameter types); all return ncclResult_t. onehop exports a function for each name, except
 * the queries. NCCL 2.19 has all but the optional ones.
 */
#define OH_REAL_REQUIRED(X)                                                                                            \
    X(CommInitRank, (ncclComm_t *, int, ncclUniqueId, int))                                                            \
    X(CommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *))                                      \
    X(CommInitAll, (ncclComm_t *, int, const int *))                                                                   \
    X(CommSplit, (ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *))                                                 \
    X(CommFinalize, (ncclComm_t))                                                                                      \
    X(CommDestroy, (ncclComm_t))                                                                                       \
    X(CommAbort, (ncclComm_t))                                                                                         \
    X(CommGetAsyncError, (ncclComm_t, ncclResult_t *))                                                                 \
    X(AllReduce, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))                \
    X(RedOpCreatePreMulSum, (ncclRedOp_t *, void *, ncclDataType_t, ncclScalarResidence_t, ncclComm_t))                \
    X(RedOpDestroy, (ncclRedOp_t, ncclComm_t))

#define OH_REAL_PLAIN(X)                                                                                               \
    X(GroupStart, (void))                                                                                              \
    X(GroupEnd, (void))

#define OH_REAL_OPTIONAL(X)                                                                                            \
    X(GroupSimulateEnd, (struct ncclSimInfo_v22200 *))                                                                 \
    X(CommInitRankScalable, (ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *))                             \
    X(CommGrow, (ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *))                            \
    X(CommRevoke, (ncclComm_t, int))                                                                                   \
    X(CommShrink, (ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int))

/*
 * Calls that onehop forwards, with the order between their streams and its own. X(name, types, condition under which
 * NCCL enqueues something: p1 is the last parameter). The last two parameters are communicator and stream. A send of
 * nothing is enqueued (2.28.9, src/enqueue.cc, taskAppend).
 */
#define OH_REAL_FORWARDED(X)                                                                                           \
    X(Reduce, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t), p6)          \
    X(Bcast, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t), p5)                                      \
    X(Broadcast, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t), p5)                    \
    X(ReduceScatter, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t), p5)        \
    X(AllGather, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t), p4)                         \
    X(Send, (const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t), 1)                                  \
    X(Recv, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t), 1)                                        \
    X(AlltoAll, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t), p4)                          \
    X(Gather, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t), p5)                       \
    X(Scatter, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t), p5)

/* Called by onehop, not exported by it. */
#define OH_REAL_QUERIES(X)                                                                                             \
    X(CommCount, (const ncclComm_t, int *))                                                                            \
    X(CommCuDevice, (const ncclComm_t, int *))                                                                         \
    X(CommUserRank, (const ncclComm_t, int *))                                                                         \
    X(GetVersion, (int *))

struct ncclSimInfo_v22200; /* ncclSimInfo_t since NCCL 2.22; older headers do not have it */

/* nccl.h declares GroupStart and GroupEnd without a prototype, and some others only in newer versions. */
#define OH_REAL_DECLARE(name_, types_, ...) ncclResult_t nccl##name_ types_;
OH_REAL_REQUIRED(OH_REAL_DECLARE)
OH_REAL_PLAIN(OH_REAL_DECLARE)
OH_REAL_OPTIONAL(OH_REAL_DECLARE)
OH_REAL_FORWARDED(OH_REAL_DECLARE)
#undef OH_REAL_DECLARE

struct oh_real {
#define OH_REAL_FIELD(name_, args_, ...) ncclResult_t(*name_) args_;
    OH_REAL_REQUIRED(OH_REAL_FIELD)
    OH_REAL_PLAIN(OH_REAL_FIELD)
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

/*
 * From a list of up to eight types, (int, char *, void *), to parameters, (int p3, char *p2, void *p1), and arguments,
 * (p3, p2, p1). Numbered from the last: the last parameters of NCCL's calls are alike.
 */
#define OH_PARAMETERS(types_) (OH_JOIN(OH_PARAMETERS_, OH_NUMBER types_) types_)
#define OH_ARGUMENTS(types_) (OH_JOIN(OH_ARGUMENTS_, OH_NUMBER types_))

#define OH_NUMBER(...) OH_NUMBER_(__VA_ARGS__, 9, 8, 7, 6, 5, 4, 3, 2, 1)
#define OH_NUMBER_(a1_, a2_, a3_, a4_, a5_, a6_, a7_, a8_, a9_, number_, ...) number_
#define OH_JOIN(a_, b_) OH_JOIN_(a_, b_)
#define OH_JOIN_(a_, b_) a_##b_

#define OH_PARAMETERS_1(a_) a_ p1
#define OH_PARAMETERS_2(a_, ...) a_ p2, OH_PARAMETERS_1(__VA_ARGS__)
#define OH_PARAMETERS_3(a_, ...) a_ p3, OH_PARAMETERS_2(__VA_ARGS__)
#define OH_PARAMETERS_4(a_, ...) a_ p4, OH_PARAMETERS_3(__VA_ARGS__)
#define OH_PARAMETERS_5(a_, ...) a_ p5, OH_PARAMETERS_4(__VA_ARGS__)
#define OH_PARAMETERS_6(a_, ...) a_ p6, OH_PARAMETERS_5(__VA_ARGS__)
#define OH_PARAMETERS_7(a_, ...) a_ p7, OH_PARAMETERS_6(__VA_ARGS__)
#define OH_PARAMETERS_8(a_, ...) a_ p8, OH_PARAMETERS_7(__VA_ARGS__)
#define OH_ARGUMENTS_1 p1
#define OH_ARGUMENTS_2 p2, OH_ARGUMENTS_1
#define OH_ARGUMENTS_3 p3, OH_ARGUMENTS_2
#define OH_ARGUMENTS_4 p4, OH_ARGUMENTS_3
#define OH_ARGUMENTS_5 p5, OH_ARGUMENTS_4
#define OH_ARGUMENTS_6 p6, OH_ARGUMENTS_5
#define OH_ARGUMENTS_7 p7, OH_ARGUMENTS_6
#define OH_ARGUMENTS_8 p8, OH_ARGUMENTS_7

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

/* dlsym.c. Calls the next definition of dlsym, behind onehop's: looks at no new objects. */
void *oh_dlsym_next(void *handle, const char *name);

#endif
