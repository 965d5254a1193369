/* SPDX-License-Identifier: MIT */
/*
 * context.h - work in a CUDA context, with no trace in the calling thread
 *
 * Does: Knows a context by its id: after cudaDeviceReset or cuCtxDestroy another context may get the same handle.
 * Threads: any; a scope belongs to one thread.
 * Owns: nothing.
 */
#ifndef OH_GPU_CONTEXT_H_
#define OH_GPU_CONTEXT_H_

#include <stdbool.h>

#include "gpu/driver.h"

struct oh_context {
    CUcontext handle;
    unsigned long long id; /* unique in the process (cuCtxGetId) */
};

struct oh_context_scope {
    bool pushed, relaxed;
    CUstreamCaptureMode mode; /* to put back, if relaxed */
};

/* Restores what was current. */
void oh_context_leave(const struct oh_context_scope *scope);

/* A scope that ends with the enclosing block. */
#define OH_CONTEXT_SCOPE(name_) __attribute__((cleanup(oh_context_leave))) struct oh_context_scope name_ = {false}

/*
 * Makes `context` current in this thread, for a launch. Returns the driver's result, or CUDA_ERROR_CONTEXT_IS_DESTROYED
 * if another context has the handle.
 */
CUresult oh_context_enter(const struct oh_context *context, struct oh_context_scope *scope_p);

/*
 * The same for attach and retire, in the relaxed capture mode: this thread may allocate, load and synchronise while
 * other streams are captured, as NCCL does (src/include/alloc.h of 2.28).
 */
CUresult oh_context_enter_relaxed(const struct oh_context *context, struct oh_context_scope *scope_p);

/* The same up to the end of the enclosing block. On failure returns the driver's result from the function. */
#define OH_CONTEXT_RELAXED(context_)                                                                                   \
    OH_CONTEXT_SCOPE(scope_);                                                                                          \
    OH_TRY(oh_context_enter_relaxed((context_), &scope_))

/*
 * Returns the context of a call on `stream`: the current one, if it is of this device; else the stream's, for a thread
 * that drives many GPUs. NULL: unknown.
 */
CUcontext oh_context_of_call(CUdevice device, CUstream stream);

/*
 * Returns CUDA_SUCCESS if the result means that a context is destroyed or unusable for good: nothing in it runs or is
 * left to free. Else `result`: other failures may pass.
 */
CUresult oh_context_ignore_lost(CUresult result);

#endif
