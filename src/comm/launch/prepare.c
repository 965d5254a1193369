/* SPDX-License-Identifier: MIT */
/*
 * prepare.c - what a communicator needs before its first launch: events, kernels, arguments
 *
 * Does: Creates the events at the begin of the attach; finds the kernels and fills in the arguments before the vote.
 * Threads: the one that uses the communicator; oh_comm_prepare_launch the background thread of the attach.
 * Owns: nothing; events end with the communicator (attach/retire.c).
 */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "gpu/context.h"
#include "util/env.h"
#include "util/log.h"

/* NCCL's own switch for the same thing. */
static bool nccl_mixes_graphs(void)
{
    const char *text = getenv("NCCL_GRAPH_MIXING_SUPPORT");
    return !text || strcmp(text, "0") != 0;
}

/* Events are destroyed with the communicator (retire.c), also when this fails half-way. */
ncclResult_t oh_comm_prepare_order(struct oh_comm *comm)
{
    const struct oh_driver *driver = comm->staging.driver;
    struct oh_context_scope scope;
    ncclResult_t res = ncclSuccess;
    if (oh_context_enter_relaxed(driver, &comm->staging.context, &scope) != CUDA_SUCCESS) {
        return ncclUnhandledCudaError;
    }
    for (int e = 0; e < OH_EVENTS; e++) {
        OH_CU_GOTO(driver, event_create(&comm->event[e], CU_EVENT_DISABLE_TIMING), res, out);
    }
    comm->graph_mixing = oh_env_flag(OH_ENV_GRAPH_MIXING, nccl_mixes_graphs());
    comm->early_send = oh_env_flag(OH_ENV_EARLY_SEND, true);
    comm->launch_order = oh_env_flag(OH_ENV_LAUNCH_ORDER, true);
out:
    oh_context_leave_relaxed(driver, &scope);
    return res;
}

ncclResult_t oh_comm_prepare_launch(struct oh_comm *comm)
{
    const struct oh_staging *staging = &comm->staging;
    const struct oh_driver *driver = staging->driver;
    struct oh_context_scope scope;

    if (oh_context_enter_relaxed(driver, &staging->context, &scope) != CUDA_SUCCESS) {
        return ncclUnhandledCudaError;
    }
    ncclResult_t res = oh_kernel_set_get(driver, staging->device, comm->nranks, &comm->kernels);
    oh_context_leave_relaxed(driver, &scope);
    if (res != ncclSuccess) {
        return res;
    }
    for (uint32_t j = 0; j < comm->nranks; j++) {
        comm->args.staging[j] = (char *)(uintptr_t)staging->peer[(comm->rank + j) % comm->nranks].base;
    }
    comm->args.control = (struct oh_control *)(uintptr_t)staging->control_device;
    comm->args.abort_flag = &comm->args.control->abort_flag;
    comm->args.rank = comm->rank;
    comm->args.nranks = comm->nranks;
    return ncclSuccess;
}
