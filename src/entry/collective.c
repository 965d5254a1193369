/* SPDX-License-Identifier: MIT */
/*
 * collective.c - the NCCL functions that communicate, and the ops of reductions
 *
 * Does: Describes each call, and makes it (comm/call.h).
 * Threads: one at a time for a communicator, by NCCL's own rules.
 * Owns: nothing.
 */
#include "comm/call.h"
#include "entry/entry.h"

ncclResult_t oh_entry_make(struct oh_call *call, ncclComm_t comm, const void *caller)
{
    ncclResult_t res;
    call->handle = comm;
    OH_TRY(oh_handle_find(comm, caller, oh_kind_has_kernels(call->kind), &call->comm, &call->nccl));
    if (!call->comm) {
        if (oh_kind_has_kernels(call->kind) && oh_nccl_depth == 0) {
            oh_stats_count_unknown();
        }
        return oh_call_forward(call);
    }
    if (oh_call_begin(call, &res) == OH_ROUTE_NCCL) {
        res = oh_call_forward(call);
    }
    return oh_call_end(call, res);
}

OH_EXPORT ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                                     ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    struct oh_call call = OH_ENTRY_CALL(ALLREDUCE, sendbuff, recvbuff, .redop = op);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                                  ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    struct oh_call call = OH_ENTRY_CALL(REDUCE, sendbuff, recvbuff, .redop = op, .root = root);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                                 cudaStream_t stream)
{
    struct oh_call call = OH_ENTRY_CALL(BROADCAST, buff, buff, .root = root, .is_bcast = true);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type, int root,
                                     ncclComm_t comm, cudaStream_t stream)
{
    struct oh_call call = OH_ENTRY_CALL(BROADCAST, sendbuff, recvbuff, .root = root);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                                         ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    struct oh_call call = OH_ENTRY_CALL(REDUCE_SCATTER, sendbuff, recvbuff, .redop = op);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                                     ncclComm_t comm, cudaStream_t stream)
{
    struct oh_call call = OH_ENTRY_CALL(ALL_GATHER, sendbuff, recvbuff);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                cudaStream_t stream)
{
    struct oh_call call = OH_ENTRY_CALL(SEND, sendbuff, NULL, .root = peer);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                cudaStream_t stream)
{
    struct oh_call call = OH_ENTRY_CALL(RECV, NULL, recvbuff, .root = peer);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                                    ncclComm_t comm, cudaStream_t stream)
{
    struct oh_call call = OH_ENTRY_CALL(ALL_TO_ALL, sendbuff, recvbuff);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type, int root,
                                  ncclComm_t comm, cudaStream_t stream)
{
    struct oh_call call = OH_ENTRY_CALL(GATHER, sendbuff, recvbuff, .root = root);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type, int root,
                                   ncclComm_t comm, cudaStream_t stream)
{
    struct oh_call call = OH_ENTRY_CALL(SCATTER, sendbuff, recvbuff, .root = root);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    struct oh_call call = {.kind = OH_CALL_OP_DESTROY, .redop = op};
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                                ncclScalarResidence_t residence, ncclComm_t comm)
{
    struct oh_comm *ours;
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
