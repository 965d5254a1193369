/* SPDX-License-Identifier: MIT */
/*
 * interpose.c - another preloaded object, as profilers and GPU sharing layers are
 *
 * Passes puts, ncclAllReduce and dlsym on to the next definition, found by RTLD_NEXT (dlsym's own by dlvsym, as such
 * layers do), and says at exit, on stderr, which of them have been called, if INTERPOSE_SAY is set.
 */
#include <dlfcn.h>
#include <nccl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

static atomic_int puts_calls, reduce_calls, dlsym_calls;

EXPORT void *dlsym(void *handle, const char *name);
EXPORT void *user_next(void);

/* The versions that dlsym has had on x86-64: before and since glibc 2.34. On other machines only one exists. */
static void *(*next_dlsym(void))(void *, const char *)
{
    static void *(*_Atomic next)(void *, const char *);
    if (!next) {
        void *found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        found = found ? found : dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        found = found ? found : dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
        next = (void *(*)(void *, const char *))found;
    }
    return next;
}

EXPORT void *dlsym(void *handle, const char *name)
{
    dlsym_calls++;
    /* RTLD_NEXT would now mean the next after this object, as with every layer of this kind. */
    return next_dlsym()(handle, name);
}

EXPORT int puts(const char *text)
{
    static int (*_Atomic next)(const char *);
    puts_calls++;
    if (!next) {
        next = (int (*)(const char *))next_dlsym()(RTLD_NEXT, "puts");
    }
    return next(text);
}

EXPORT ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                  ncclComm_t comm, cudaStream_t stream)
{
    typedef ncclResult_t (*function)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                     cudaStream_t);
    static _Atomic(function) next;
    reduce_calls++;
    if (!next) {
        next = (function)next_dlsym()(RTLD_NEXT, "ncclAllReduce");
    }
    return next ? next(send, recv, count, type, op, comm, stream) : ncclSystemError;
}

EXPORT void *user_next(void)
{
    return next_dlsym()(RTLD_NEXT, "puts");
}

__attribute__((destructor)) static void say(void)
{
    if (getenv("INTERPOSE_SAY")) {
        fprintf(stderr, "interposed: puts %d, ncclAllReduce %d, dlsym %s\n", puts_calls, reduce_calls,
                dlsym_calls ? "called" : "not called");
    }
}
