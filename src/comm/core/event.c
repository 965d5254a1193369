/* SPDX-License-Identifier: MIT */
/*
 * event.c - whether a communicator's eager work has ended
 *
 * Does: queries OH_EVENT_NCCL and OH_EVENT_LAUNCH in the communicator's context.
 * Threads: any thread, as long as no other thread ends the communicator.
 * Owns: nothing; launch/order.c records the events.
 */
#include "comm/core/event.h"

#include "gpu/context.h"

CUresult oh_event_query_nccl(const struct oh_comm *comm)
{
    const struct oh_staging *staging = &comm->staging;
    struct oh_context_scope scope;
    CUresult result = oh_context_enter_relaxed(staging->driver, &staging->context, &scope);
    if (result == CUDA_SUCCESS) {
        result = staging->driver->event_query(comm->event[OH_EVENT_NCCL]);
        oh_context_leave_relaxed(staging->driver, &scope);
    }
    return result;
}

CUresult oh_event_query_launches(const struct oh_comm *comm)
{
    const struct oh_staging *staging = &comm->staging;
    struct oh_context_scope scope;
    if (!comm->launched) {
        return CUDA_SUCCESS;
    }
    CUresult result = oh_context_enter_relaxed(staging->driver, &staging->context, &scope);
    if (result == CUDA_SUCCESS) {
        result = staging->driver->event_query(comm->event[OH_EVENT_LAUNCH]);
        oh_context_leave_relaxed(staging->driver, &scope);
    }
    return oh_context_is_lost(result) ? CUDA_SUCCESS : result; /* then nothing runs in it */
}
