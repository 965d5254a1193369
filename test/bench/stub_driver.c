/* SPDX-License-Identifier: MIT */
/*
 * stub_driver.c - preloaded behind onehop, takes the GPU out of a served call, for bench_host
 *
 * onehop asks dlsym for the driver's functions; those of the path of a call lead here. They pass calls on to the
 * driver until bench_stub(true), and from then on return at once with what an idle eager stream would give. So what is
 * left of a call is onehop's own time on the host.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* X(symbol, parameters, arguments, what the stub does) */
#define FUNCTIONS(X)                                                                                                   \
    X(cuLaunchKernelEx, (const CUlaunchConfig *a, CUfunction b, void **c, void **d), (a, b, c, d), (void)0)            \
    X(cuEventRecord, (CUevent a, CUstream b), (a, b), (void)0)                                                         \
    X(cuEventRecordWithFlags, (CUevent a, CUstream b, unsigned c), (a, b, c), (void)0)                                 \
    X(cuStreamWaitEvent, (CUstream a, CUevent b, unsigned c), (a, b, c), (void)0)                                      \
    X(cuStreamGetId, (CUstream a, unsigned long long *b), (a, b), *b = 1)                                              \
    X(cuStreamIsCapturing, (CUstream a, CUstreamCaptureStatus * b), (a, b), *b = CU_STREAM_CAPTURE_STATUS_NONE)        \
    X(cuStreamGetCaptureInfo_v2,                                                                                       \
      (CUstream a, CUstreamCaptureStatus * b, cuuint64_t * c, CUgraph * d, const CUgraphNode **e, size_t *f),          \
      (a, b, c, d, e, f), *b = CU_STREAM_CAPTURE_STATUS_NONE)                                                          \
    X(cuCtxGetId, (CUcontext a, unsigned long long *b), (a, b), *b = bench_context)

EXPORT void *dlsym(void *handle, const char *name);
EXPORT void bench_stub(bool on, CUcontext context);

static bool stubbed;
static unsigned long long bench_context; /* id of the context of all calls */

/* Undone for the names that cuda.h gives a version. */
#undef cuStreamGetCaptureInfo_v2
#define DEFINE(symbol_, parameters_, arguments_, action_)                                                              \
    static CUresult(*real_##symbol_) parameters_;                                                                      \
    static CUresult stub_##symbol_ parameters_                                                                         \
    {                                                                                                                  \
        if (!stubbed) {                                                                                                \
            return real_##symbol_ arguments_;                                                                          \
        }                                                                                                              \
        action_;                                                                                                       \
        return CUDA_SUCCESS;                                                                                           \
    }
FUNCTIONS(DEFINE)

static void *(*next_dlsym)(void *, const char *);

__attribute__((constructor)) static void find_next(void)
{
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    for (size_t i = 0; i < sizeof versions / sizeof *versions && !next_dlsym; i++) {
        void *found = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
        memcpy(&next_dlsym, &found, sizeof found);
    }
}

EXPORT void *dlsym(void *handle, const char *name)
{
    if (!next_dlsym) {
        find_next();
    }
    void *found = next_dlsym(handle, name);
#define LEAD(symbol_, parameters_, arguments_, action_)                                                                \
    if (found && strcmp(name, #symbol_) == 0) {                                                                        \
        memcpy(&real_##symbol_, &found, sizeof found);                                                                 \
        return (void *)stub_##symbol_;                                                                                 \
    }
    FUNCTIONS(LEAD)
    return found;
}

EXPORT void bench_stub(bool on, CUcontext context)
{
    stubbed = on && real_cuCtxGetId && real_cuCtxGetId(context, &bench_context) == CUDA_SUCCESS;
}
