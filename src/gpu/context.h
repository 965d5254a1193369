/* SPDX-License-Identifier: MIT */
/*
 * context.h - working in a CUDA context without leaving a trace in the calling thread
 */
#ifndef OH_GPU_CONTEXT_H_
#define OH_GPU_CONTEXT_H_

#include <nccl.h>
#include <stdbool.h>

#include "gpu/driver.h"

struct oh_context_scope {
    bool pushed;
    CUstreamCaptureMode mode;
};

/*
 * Makes `context` current in this thread if it is not, for a launch. Returns the driver's result; on success
 * oh_context_leave puts back what was.
 */
CUresult oh_context_enter(const struct oh_driver *driver, CUcontext context, struct oh_context_scope *scope_p);
void oh_context_leave(const struct oh_driver *driver, const struct oh_context_scope *scope);

/*
 * The same for set-up and teardown: also lets this thread allocate, load and synchronise while other streams are
 * being captured (the relaxed mode; NCCL does the same around its allocations, src/include/alloc.h of 2.28).
 */
CUresult oh_context_enter_relaxed(const struct oh_driver *driver, CUcontext context, struct oh_context_scope *scope_p);
void oh_context_leave_relaxed(const struct oh_driver *driver, struct oh_context_scope *scope);

#endif
