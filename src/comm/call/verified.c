/* SPDX-License-Identifier: MIT */
/*
 * verified.c - the calls that NCCL makes, too, for ONEHOP_VERIFY
 *
 * Does: Makes them to NCCL (launch/verify.c has which, and why before onehop's own).
 * Threads: the one that uses the communicator.
 * Owns: nothing.
 */
#include "comm/call/internal.h"

#include "comm/launch/launch.h"
#include "comm/watch/watch.h"
#include "util/log.h"

ncclResult_t oh_verified_forward(const struct oh_call *call)
{
    const struct oh_call copy = oh_verify_call(call);
    struct oh_call sum;
    OH_TRY(oh_call_forward(&copy));
    return oh_verify_magnitudes(call, &sum) ? oh_call_forward(&sum) : ncclSuccess;
}

ncclResult_t oh_verified_begin(const struct oh_call *call, CUstream stream)
{
    const struct oh_stream_state stream_state = {.stream = stream};
    return oh_order_check(call->comm, &stream_state, oh_verify_prepare(call, stream), "verifying a call");
}

/* The other ranks may have made the call. */
static ncclResult_t fail(struct oh_comm *comm, ncclResult_t res)
{
    if (!oh_nccl_is_rejected(res) && oh_comm_fail(comm, res, OH_MAX_RANKS)) {
        OH_WARN("comm %p rank %u of %u: NCCL's part of a call that is verified has failed: calls now return error %d",
                OH_COMM_VALUES(comm), (int)res);
    }
    return oh_order_refuse(comm, res);
}

ncclResult_t oh_verified_alone(struct oh_call *call)
{
    struct oh_comm *comm = call->comm;
    struct oh_nccl_call order;
    if (!oh_verify_choose(call, 0)) {
        return ncclSuccess;
    }
    oh_order_before_nccl(comm, call->stream, oh_call_needs_all_ranks(call), &order);
    if (order.result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) { /* the program's error, which the launch returns */
        call->verified.count = 0;
        return ncclSuccess;
    }
    OH_TRY(oh_verified_begin(call, call->stream));
    const ncclResult_t res = oh_verified_forward(call);
    return res == ncclSuccess ? oh_order_after_nccl(comm, &order, 0) : fail(comm, res);
}
