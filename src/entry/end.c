/* SPDX-License-Identifier: MIT */
/*
 * end.c - the NCCL functions that end communicators, and their asynchronous error
 *
 * Does: Has onehop's part end before NCCL's, and forgets a communicator before NCCL frees it.
 * Threads: any, by NCCL's own rules.
 * Owns: nothing.
 */
#include "comm/call.h"
#include "entry/entry.h"
#include "util/clock.h"
#include "util/log.h"

/* The failure of onehop's part counts where NCCL's part has none. */
static ncclResult_t first_failure(ncclResult_t res, ncclResult_t failure)
{
    const bool has_failed = res != ncclSuccess && res != ncclInProgress;
    return has_failed || failure == ncclSuccess ? res : failure;
}

OH_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    OH_COMM_SCOPE(ours);
    const struct oh_nccl *nccl;
    OH_TRY(oh_handle_find(comm, OH_CALLER(), false, &ours, &nccl));
    if (!ours) {
        return OH_NCCL(nccl, CommFinalize(comm));
    }
    ncclResult_t res = oh_comm_await(ours);
    if (res == ncclSuccess) {
        res = OH_NCCL(nccl, CommFinalize(comm));
        res = first_failure(res, oh_comm_finalize(ours, res));
    }
    return res;
}

OH_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    struct oh_comm *ours;
    const struct oh_nccl *nccl;
    bool is_there;
    oh_stats_expect_calls(false);
    OH_TRY(oh_handle_find(comm, OH_CALLER(), false, &ours, &nccl));
    if (!ours) {
        return nccl->CommDestroy(comm);
    }
    const ncclResult_t failure = oh_comm_destroy(ours, &is_there);
    if (!is_there) {
        return failure;
    }
    const ncclResult_t res = OH_NCCL(nccl, CommDestroy(comm));
    OH_KEEP_ERRNO();
    oh_comms_reclaim();
    return first_failure(res, failure);
}

/* NCCL's threads may take a second to see an abort or a revocation (doc/faults.md). */
static void log_end(ncclComm_t comm, const char *how, uint64_t begin_ns, uint64_t nccl_ns)
{
    OH_INFO("comm %p: %s in %.0f ms, of which NCCL took %.0f", (void *)comm, how,
            (double)(oh_now_ns() - begin_ns) / 1e6, (double)nccl_ns / 1e6);
}

OH_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    struct oh_comm *ours;
    const struct oh_nccl *nccl;
    oh_stats_expect_calls(false);
    OH_TRY(oh_handle_find(comm, OH_CALLER(), false, &ours, &nccl));
    if (!ours) {
        return nccl->CommAbort(comm);
    }
    uint64_t begin_ns = oh_now_ns();
    oh_comm_abort(ours); /* ends kernels first: NCCL waits for the device */
    oh_comm_forget(ours);
    uint64_t nccl_ns = oh_now_ns();
    ncclResult_t res = OH_NCCL(nccl, CommAbort(comm));
    OH_KEEP_ERRNO();
    nccl_ns = oh_now_ns() - nccl_ns;
    oh_comms_reclaim();
    log_end(comm, "aborted", begin_ns, nccl_ns);
    return res;
}

OH_EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    OH_COMM_SCOPE(ours);
    const struct oh_nccl *nccl;
    OH_TRY(oh_handle_find(comm, OH_CALLER(), false, &ours, &nccl));
    OH_TRY(nccl->CommRevoke ? ncclSuccess : oh_nccl_refuse_missing("ncclCommRevoke"));
    if (!ours) {
        return OH_NCCL(nccl, CommRevoke(comm, flags));
    }
    /* NCCL waits for the device, so kernels end before, unless NCCL will reject the call: 2.28.9 rejects flags, and
     * communicators that are finalized or revoked. */
    bool first = flags == 0 && oh_comm_is_in_use(ours);
    const uint64_t begin_ns = oh_now_ns();
    if (first) {
        oh_comm_abort(ours);
    }
    uint64_t nccl_ns = oh_now_ns();
    ncclResult_t res = OH_NCCL(nccl, CommRevoke(comm, flags));
    nccl_ns = oh_now_ns() - nccl_ns;
    if (res == ncclSuccess || res == ncclInProgress) {
        if (!first) {
            oh_comm_abort(ours);
        }
        oh_comm_revoked(ours);
    }
    if (res == ncclSuccess) {
        log_end(comm, "revoked", begin_ns, nccl_ns);
    }
    return res;
}

/*
 * NCCL frees the communicator's memory until ncclCommResume; all ranks take part. From then on its calls are NCCL's, on
 * all ranks. Before that NCCL may reject the call.
 */
OH_EXPORT ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags)
{
    OH_COMM_SCOPE(ours);
    const struct oh_nccl *nccl;
    OH_TRY(oh_handle_find(comm, OH_CALLER(), false, &ours, &nccl));
    OH_TRY(nccl->CommSuspend ? ncclSuccess : oh_nccl_refuse_missing("ncclCommSuspend"));
    if (ours && oh_group_has_calls(ours)) {
        OH_WARN("comm %p: ncclCommSuspend in a group with calls of the communicator: not supported", (void *)comm);
        return ncclInvalidUsage;
    }
    if (!ours) {
        return OH_NCCL(nccl, CommSuspend(comm, flags));
    }
    ncclResult_t res = OH_NCCL(nccl, CommSuspend(comm, flags));
    OH_KEEP_ERRNO();
    if (res == ncclSuccess || res == ncclInProgress) {
        res = first_failure(res, oh_comm_suspend(ours));
        OH_INFO("comm %p: suspended: NCCL executes all later calls", (void *)comm);
    }
    oh_comm_release(ours); /* before: what is used is not freed */
    ours = NULL;
    oh_comms_reclaim();
    return res;
}

OH_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    OH_COMM_SCOPE(ours);
    const struct oh_nccl *nccl;
    OH_TRY(oh_handle_find(comm, OH_CALLER(), false, &ours, &nccl));
    return ours ? oh_comm_get_async_error(ours, nccl, error) : OH_NCCL(nccl, CommGetAsyncError(comm, error));
}
