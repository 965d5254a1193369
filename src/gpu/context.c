/* SPDX-License-Identifier: MIT */
#include "gpu/context.h"

CUresult oh_context_enter(const struct oh_driver *driver, CUcontext context, struct oh_context_scope *scope_p)
{
    CUcontext current;
    CUresult result = driver->ctx_get_current(&current);
    scope_p->pushed = result == CUDA_SUCCESS && current != context;
    if (scope_p->pushed) {
        result = driver->ctx_push(context);
    }
    return result;
}

void oh_context_leave(const struct oh_driver *driver, const struct oh_context_scope *scope)
{
    CUcontext popped;
    if (scope->pushed) {
        driver->ctx_pop(&popped);
    }
}

CUresult oh_context_enter_relaxed(const struct oh_driver *driver, CUcontext context, struct oh_context_scope *scope_p)
{
    scope_p->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result = driver->thread_exchange_capture_mode(&scope_p->mode);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = oh_context_enter(driver, context, scope_p);
    if (result != CUDA_SUCCESS) {
        driver->thread_exchange_capture_mode(&scope_p->mode);
    }
    return result;
}

void oh_context_leave_relaxed(const struct oh_driver *driver, struct oh_context_scope *scope)
{
    oh_context_leave(driver, scope);
    driver->thread_exchange_capture_mode(&scope->mode);
}
