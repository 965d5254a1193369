/* SPDX-License-Identifier: MIT */
/*
 * context.h - working in a CUDA context without leaving a trace in the calling thread
 *
 * A context is known by its id: cudaDeviceReset and cuCtxDestroy end a context, and another one may get its handle.
 */
#ifndef OH_GPU_CONTEXT_H_
#define OH_GPU_CONTEXT_H_

#include <nccl.h>
#include <stdbool.h>

#include "gpu/driver.h"

struct oh_context {
    CUcontext handle;
    unsigned long long id; /* unique in the process (cuCtxGetId) */
};

struct oh_context_scope {
    bool pushed;
    CUstreamCaptureMode mode;
};

/* The calling thread's context. Returns false if it has none. */
bool oh_context_get_current(const struct oh_driver *driver, struct oh_context *context_p);

/*
 * Makes `context` current in this thread if it is not, for a launch. Returns the driver's result, and
 * CUDA_ERROR_CONTEXT_IS_DESTROYED if the handle is another context's by now; on success oh_context_leave puts back what
 * was.
 */
CUresult oh_context_enter(const struct oh_driver *driver, const struct oh_context *context,
                          struct oh_context_scope *scope_p);
void oh_context_leave(const struct oh_driver *driver, const struct oh_context_scope *scope);

/*
 * The same for set-up and teardown: also lets this thread allocate, load and synchronise while other streams are
 * being captured (the relaxed mode; NCCL does the same around its allocations, src/include/alloc.h of 2.28).
 */
CUresult oh_context_enter_relaxed(const struct oh_driver *driver, const struct oh_context *context,
                                  struct oh_context_scope *scope_p);
void oh_context_leave_relaxed(const struct oh_driver *driver, struct oh_context_scope *scope);

/*
 * The context that a call of the program on `stream` means: the current one, if it is one of this device; else, as
 * where one thread drives many GPUs, the stream's. NULL: neither is known.
 */
CUcontext oh_context_of_call(const struct oh_driver *driver, CUdevice device, CUstream stream);

/*
 * True of a result that says that a context, and all that was made in it, is gone or beyond use for good: it is
 * destroyed, or a kernel or the hardware has failed in it. Any other failure may pass.
 */
bool oh_context_is_lost(CUresult result);

#endif
