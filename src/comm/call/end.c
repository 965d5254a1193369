/* SPDX-License-Identifier: MIT */
/*
 * end.c - the NCCL functions that end a communicator, and its asynchronous error
 *
 * Does: Waits for kernels as NCCL does for its own. A kernel may leave without its result only where the program is
 *    told: ncclCommDestroy and ncclCommFinalize return the failure of a communicator with kernels that wait.
 * Threads: the one that ends the communicator; oh_comm_get_async_error any.
 * Owns: nothing.
 */
#include "comm/call/internal.h"

#include <unistd.h>

#include "comm/attach/attach.h"
#include "comm/launch/launch.h"
#include "comm/watch/watch.h"
#include "util/scope.h"

#define QUERY_TRIES 20 /* after which a driver whose queries fail has failed for good */
#define QUERY_US 50

/* The program waits for kernels that may run. Those of a suspended communicator are replays of its graphs. */
static bool may_await_kernels(const struct oh_comm *comm)
{
    switch (oh_comm_state(comm)) {
    case OH_COMM_SERVED:
    case OH_COMM_FAILING:
        return true;
    case OH_COMM_ENDED:
        return atomic_load(&comm->health.end) < OH_END_FINALIZED && oh_comm_error(comm) == ncclSuccess;
    default:
        return false;
    }
}

/*
 * As ncclCommDestroy does for NCCL's kernels: the process may end right after, while peers still need data that these
 * kernels send. The wait ends: the monitor fails a call whose peer has departed, and so does a driver that fails.
 * Returns false if another thread has aborted the communicator meanwhile.
 */
static bool await_kernels(struct oh_comm *comm, CUresult (*query)(const struct oh_comm *comm))
{
    CUresult result;
    unsigned failures = 0;
    const bool was_aborted = oh_comm_is_aborted(comm); /* or revoked: NCCL still has it */
    while (may_await_kernels(comm) && (result = query(comm)) != CUDA_SUCCESS) {
        failures += result != CUDA_ERROR_NOT_READY;
        if (failures >= QUERY_TRIES) {
            oh_order_fail(comm, result, "waiting for the kernels of a communicator that ends");
        }
        usleep(QUERY_US);
    }
    return was_aborted || !oh_comm_is_aborted(comm);
}

/* The failure of a communicator with kernels that wait; ncclSuccess: none. */
static ncclResult_t failure_of_kernels(const struct oh_comm *comm)
{
    const ncclResult_t failure = oh_comm_error(comm);
    return failure != ncclSuccess && oh_order_query_end(comm) != CUDA_SUCCESS ? failure : ncclSuccess;
}

/* At the end of the group, if one is open. */
static bool await_end(struct oh_comm *comm)
{
    if (!oh_group_is_open()) {
        return await_kernels(comm, oh_order_query_end);
    }
    oh_group_add_end(comm);
    return true;
}

ncclResult_t oh_comm_await(struct oh_comm *comm)
{
    OH_KEEP_ERRNO();
    return comm->id.config.blocking && !await_end(comm) ? ncclInternalError : ncclSuccess;
}

ncclResult_t oh_comm_finalize(struct oh_comm *comm, ncclResult_t res)
{
    OH_KEEP_ERRNO();
    if (oh_nccl_is_rejected(res)) {
        return ncclSuccess;
    }
    const ncclResult_t differs = oh_difference_log(comm);
    oh_comm_leave(comm, OH_END_FINALIZED);
    return differs != ncclSuccess ? differs : failure_of_kernels(comm);
}

/* Ends the caller's use. Returns false if another thread was faster, which ends the communicator. */
static bool forget(struct oh_comm *comm, bool reports)
{
    oh_initial_comm_forget(comm);
    oh_group_forget(comm);
    if (!oh_registry_remove(comm)) { /* first: writing the report may take long */
        oh_comm_release(comm);
        return false;
    }
    if (reports) {
        oh_comm_report_end(comm);
    }
    oh_comm_retire(comm);
    return true;
}

void oh_comm_forget(struct oh_comm *comm)
{
    OH_KEEP_ERRNO();
    forget(comm, true);
}

ncclResult_t oh_comm_destroy(struct oh_comm *comm, bool *is_there_p)
{
    OH_KEEP_ERRNO();
    /* Also if it is non-blocking: NCCL's call blocks then, too (2.28.9, src/group.cc: destroyFlag). */
    *is_there_p = await_end(comm);
    if (!*is_there_p) { /* the thread that has aborted it forgets it */
        oh_comm_release(comm);
        return ncclInternalError;
    }
    const ncclResult_t differs = oh_difference_log(comm), failure = failure_of_kernels(comm);
    if (failure != ncclSuccess) { /* the program is told */
        oh_kernels_abort(comm);
    }
    *is_there_p = forget(comm, !oh_group_is_open()); /* else the group's end reports */
    if (!*is_there_p) {
        return ncclInternalError;
    }
    return failure != ncclSuccess ? failure : differs;
}

ncclResult_t oh_comm_suspend(struct oh_comm *comm)
{
    OH_KEEP_ERRNO();
    const bool waits = comm->id.config.blocking && !oh_group_is_open(); /* else NCCL suspends it later */
    if ((waits && !await_kernels(comm, oh_order_query)) || !oh_comm_is_registered(comm)) {
        return ncclInternalError; /* another thread has aborted it meanwhile */
    }
    if (atomic_load(&comm->order.graphs) == 0 && oh_order_query(comm) == CUDA_SUCCESS) {
        oh_comm_retain(comm); /* the use that ends; the caller's goes on */
        oh_comm_forget(comm);
        return ncclSuccess;
    }
    oh_comm_pass_calls(comm, "the program suspended it");
    return failure_of_kernels(comm);
}

/* NCCL has finalized its part: the program waits for onehop's as well. */
static ncclResult_t state_of_finalized(const struct oh_comm *comm)
{
    const ncclResult_t failure = failure_of_kernels(comm);
    return failure == ncclSuccess && oh_order_query_end(comm) == CUDA_ERROR_NOT_READY ? ncclInProgress : failure;
}

static ncclResult_t state_for_program(struct oh_comm *comm, ncclResult_t state)
{
    if (state == ncclSuccess && atomic_load(&comm->health.end) == OH_END_FINALIZED) {
        return state_of_finalized(comm);
    }
    const bool is_told = state == ncclSuccess || state == ncclInProgress;
    const ncclResult_t failure = is_told ? oh_comm_error(comm) : ncclSuccess;
    return failure != ncclSuccess && oh_comm_is_in_use(comm) ? failure : state; /* while it ends, the state is NCCL's */
}

ncclResult_t oh_comm_get_async_error(struct oh_comm *comm, const struct oh_nccl *nccl, ncclResult_t *error_p)
{
    OH_TRY(oh_comm_query_nccl(comm, nccl, error_p));
    OH_KEEP_ERRNO();
    oh_attach_note_poll(comm);
    *error_p = state_for_program(comm, *error_p);
    return ncclSuccess;
}
