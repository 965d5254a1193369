/* SPDX-License-Identifier: MIT */
/*
 * context.c - makes a communicator's CUDA context current for a while
 *
 * Does: Enters and leaves it, in the caller's or in the relaxed capture mode.
 * Threads: any; a scope belongs to one thread.
 * Owns: the reference to a primary context.
 */
#include "gpu/context.h"

CUresult oh_context_enter(const struct oh_context *context, struct oh_context_scope *scope_p)
{
    unsigned long long id;
    CUcontext popped;
    if (oh_driver.ctx_get_id(NULL, &id) == CUDA_SUCCESS && id == context->id) {
        return CUDA_SUCCESS;
    }
    OH_TRY(oh_driver.ctx_push(context->handle));
    CUresult result = oh_driver.ctx_get_id(NULL, &id);
    if (result == CUDA_SUCCESS && id != context->id) {
        result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    scope_p->pushed = result == CUDA_SUCCESS;
    if (!scope_p->pushed) {
        oh_driver.ctx_pop(&popped);
    }
    return result;
}

CUresult oh_context_enter_relaxed(const struct oh_context *context, struct oh_context_scope *scope_p)
{
    scope_p->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    OH_TRY(oh_driver.thread_exchange_capture_mode(&scope_p->mode));
    scope_p->relaxed = true;
    return oh_context_enter(context, scope_p);
}

void oh_context_leave(const struct oh_context_scope *scope)
{
    CUcontext popped;
    CUstreamCaptureMode mode = scope->mode;
    if (scope->pushed) {
        oh_driver.ctx_pop(&popped);
    }
    if (scope->relaxed) {
        oh_driver.thread_exchange_capture_mode(&mode);
    }
}

CUresult oh_context_ignore_lost(CUresult result)
{
    static const CUresult lost[] = {
        CUDA_ERROR_DEINITIALIZED,        CUDA_ERROR_INVALID_CONTEXT,
        CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_ECC_UNCORRECTABLE,
        CUDA_ERROR_NVLINK_UNCORRECTABLE, CUDA_ERROR_ILLEGAL_ADDRESS,
        CUDA_ERROR_LAUNCH_TIMEOUT,       CUDA_ERROR_ASSERT,
        CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ILLEGAL_INSTRUCTION,
        CUDA_ERROR_MISALIGNED_ADDRESS,   CUDA_ERROR_INVALID_ADDRESS_SPACE,
        CUDA_ERROR_INVALID_PC,           CUDA_ERROR_LAUNCH_FAILED,
    };
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        if (result == lost[i]) {
            return CUDA_SUCCESS;
        }
    }
    return result;
}

CUcontext oh_context_of_call(CUdevice device, CUstream stream)
{
    CUcontext context;
    CUdevice current;
    CUstreamCaptureStatus status;
    if (oh_driver.ctx_get_current(&context) == CUDA_SUCCESS && context &&
        oh_driver.ctx_get_device(&current) == CUDA_SUCCESS && current == device) {
        return context;
    }
    /* The driver may not know the context of other streams than those with a handle that are not captured. */
    const bool is_known = stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD &&
                          oh_driver.stream_get_capture_info(stream, &status, NULL, NULL, NULL, NULL) == CUDA_SUCCESS &&
                          status == CU_STREAM_CAPTURE_STATUS_NONE &&
                          oh_driver.stream_get_ctx(stream, &context) == CUDA_SUCCESS;
    return is_known ? context : NULL;
}
