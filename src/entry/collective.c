/* SPDX-License-Identifier: MIT */
/*
 * collective.c - the NCCL functions that communicate, and the ops of reductions
 *
 * Does: Describes each call, and makes it (comm/call.h). NCCL executes a call that the program configures (NCCL 2.31
 *    and later), in order with onehop's calls: a configuration may select an algorithm, or name an event that NCCL
 *    records.
 * Threads: one at a time for a communicator, by NCCL's own rules.
 * Owns: nothing.
 */
#include "comm/call.h"
#include "entry/entry.h"

static ncclResult_t make(struct oh_call *call, ncclComm_t comm, const void *caller)
{
    ncclResult_t res;
    OH_COMM_SCOPE(ours);
    call->handle = comm;
    OH_TRY(oh_handle_find(comm, caller, oh_kind_has_kernels(call->kind), &ours, &call->nccl));
    call->comm = ours;
    if (!call->comm) {
        if (oh_nccl_depth == 0) {
            oh_group_add_unknown(call->nccl->own, comm);
        }
        res = oh_call_forward(call);
        if (oh_kind_has_kernels(call->kind) && oh_nccl_depth == 0 && !oh_nccl_is_rejected(res)) {
            oh_stats_count_unknown();
        }
        return res;
    }
    if (oh_call_begin(call, &res) == OH_ROUTE_NCCL) {
        res = oh_call_forward(call);
    }
    return oh_call_end(call, res);
}

/*
 * The entry points have the parameters of comm/nccl.h. MAKE makes the call of one that has count, type, comm and
 * stream, and describes the rest.
 */
#define MAKE(kind_, from_, to_, ...)                                                                                   \
    make(&(struct oh_call){.kind = OH_CALL_##kind_,                                                                    \
                           .sendbuff = (from_),                                                                        \
                           .recvbuff = (to_),                                                                          \
                           .count = count,                                                                             \
                           .type = type,                                                                               \
                           .stream = (CUstream)stream,                                                                 \
                           ##__VA_ARGS__},                                                                             \
         comm, OH_CALLER())

OH_EXPORT ncclResult_t ncclAllReduce OH_ON_STREAM(OH_FROM_TO_OP)
{
    return MAKE(ALLREDUCE, from, to, .redop = op);
}

OH_EXPORT ncclResult_t ncclReduce OH_ON_STREAM(OH_FROM_TO_OP, int root)
{
    return MAKE(REDUCE, from, to, .redop = op, .root = root);
}

OH_EXPORT ncclResult_t ncclBcast OH_ON_STREAM(void *data, size_t count, ncclDataType_t type, int root)
{
    return MAKE(BROADCAST, data, data, .root = root, .is_bcast = true);
}

OH_EXPORT ncclResult_t ncclBroadcast OH_ON_STREAM(OH_FROM_TO, int root)
{
    return MAKE(BROADCAST, from, to, .root = root);
}

OH_EXPORT ncclResult_t ncclReduceScatter OH_ON_STREAM(OH_FROM_TO_OP)
{
    return MAKE(REDUCE_SCATTER, from, to, .redop = op);
}

OH_EXPORT ncclResult_t ncclAllGather OH_ON_STREAM(OH_FROM_TO)
{
    return MAKE(ALL_GATHER, from, to);
}

OH_EXPORT ncclResult_t ncclSend OH_ON_STREAM(const void *from, size_t count, ncclDataType_t type, int peer)
{
    return MAKE(SEND, from, NULL, .root = peer);
}

OH_EXPORT ncclResult_t ncclRecv OH_ON_STREAM(void *to, size_t count, ncclDataType_t type, int peer)
{
    return MAKE(RECV, NULL, to, .root = peer);
}

OH_EXPORT ncclResult_t ncclAlltoAll OH_ON_STREAM(OH_FROM_TO)
{
    return MAKE(ALL_TO_ALL, from, to);
}

OH_EXPORT ncclResult_t ncclGather OH_ON_STREAM(OH_FROM_TO, int root)
{
    return MAKE(GATHER, from, to, .root = root);
}

OH_EXPORT ncclResult_t ncclScatter OH_ON_STREAM(OH_FROM_TO, int root)
{
    return MAKE(SCATTER, from, to, .root = root);
}

OH_EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    struct oh_call call = {.kind = OH_CALL_OP_DESTROY, .redop = op};
    return make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                                ncclScalarResidence_t residence, ncclComm_t comm)
{
    OH_COMM_SCOPE(ours);
    const struct oh_nccl *nccl;
    OH_TRY(oh_handle_find(comm, OH_CALLER(), false, &ours, &nccl));
    ncclResult_t res = OH_NCCL(nccl, RedOpCreatePreMulSum(op, scalar, type, residence, comm));
    if (ours && res == ncclSuccess) {
        OH_KEEP_ERRNO();
        res = oh_comm_op_add(ours, *op, type, scalar, residence == ncclScalarDevice);
        if (res != ncclSuccess) { /* a rank that does not know the op would decide unlike the other ranks */
            OH_NCCL(nccl, RedOpDestroy(*op, comm));
        }
    }
    return res;
}

/* --- calls that the program configures ---------------------------------------------------------------------------- */

#define MAKE_CONFIGURED(kind_, ...) MAKE(kind_, from, to, .has_config = true, .config = config, ##__VA_ARGS__)

OH_EXPORT ncclResult_t ncclAllReduceConfig OH_WITH_CONFIG(OH_FROM_TO_OP)
{
    return MAKE_CONFIGURED(ALLREDUCE, .redop = op);
}

OH_EXPORT ncclResult_t ncclReduceConfig OH_WITH_CONFIG(OH_FROM_TO_OP, int root)
{
    return MAKE_CONFIGURED(REDUCE, .redop = op, .root = root);
}

OH_EXPORT ncclResult_t ncclBroadcastConfig OH_WITH_CONFIG(OH_FROM_TO, int root)
{
    return MAKE_CONFIGURED(BROADCAST, .root = root);
}

OH_EXPORT ncclResult_t ncclReduceScatterConfig OH_WITH_CONFIG(OH_FROM_TO_OP)
{
    return MAKE_CONFIGURED(REDUCE_SCATTER, .redop = op);
}

OH_EXPORT ncclResult_t ncclAllGatherConfig OH_WITH_CONFIG(OH_FROM_TO)
{
    return MAKE_CONFIGURED(ALL_GATHER);
}

OH_EXPORT ncclResult_t ncclAlltoAllConfig OH_WITH_CONFIG(OH_FROM_TO)
{
    return MAKE_CONFIGURED(ALL_TO_ALL);
}

OH_EXPORT ncclResult_t ncclGatherConfig OH_WITH_CONFIG(OH_FROM_TO, int root)
{
    return MAKE_CONFIGURED(GATHER, .root = root);
}

OH_EXPORT ncclResult_t ncclScatterConfig OH_WITH_CONFIG(OH_FROM_TO, int root)
{
    return MAKE_CONFIGURED(SCATTER, .root = root);
}
