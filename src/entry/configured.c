/* SPDX-License-Identifier: MIT */
/*
 * configured.c - the NCCL functions of calls that the program configures (NCCL 2.31 and later)
 *
 * Does: Describes each call, and makes it (comm/call.h). NCCL executes it, in order with onehop's calls: a
 *    configuration may select an algorithm, or name an event that NCCL records.
 * Threads: one at a time for a communicator, by NCCL's own rules.
 * Owns: nothing.
 */
#include "comm/call.h"
#include "entry/entry.h"

#define CALL(kind_, ...) OH_ENTRY_CALL(kind_, from, to, .has_config = true, .config = config, ##__VA_ARGS__)

OH_EXPORT ncclResult_t ncclAllReduceConfig(const void *from, void *to, size_t count, ncclDataType_t type,
                                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                           const oh_nccl_call_config *config)
{
    struct oh_call call = CALL(ALLREDUCE, .redop = op);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclReduceConfig(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                        int root, ncclComm_t comm, cudaStream_t stream,
                                        const oh_nccl_call_config *config)
{
    struct oh_call call = CALL(REDUCE, .redop = op, .root = root);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclBroadcastConfig(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                                           ncclComm_t comm, cudaStream_t stream, const oh_nccl_call_config *config)
{
    struct oh_call call = CALL(BROADCAST, .root = root);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclReduceScatterConfig(const void *from, void *to, size_t count, ncclDataType_t type,
                                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                               const oh_nccl_call_config *config)
{
    struct oh_call call = CALL(REDUCE_SCATTER, .redop = op);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclAllGatherConfig(const void *from, void *to, size_t count, ncclDataType_t type,
                                           ncclComm_t comm, cudaStream_t stream, const oh_nccl_call_config *config)
{
    struct oh_call call = CALL(ALL_GATHER);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclAlltoAllConfig(const void *from, void *to, size_t count, ncclDataType_t type,
                                          ncclComm_t comm, cudaStream_t stream, const oh_nccl_call_config *config)
{
    struct oh_call call = CALL(ALL_TO_ALL);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclGatherConfig(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                                        ncclComm_t comm, cudaStream_t stream, const oh_nccl_call_config *config)
{
    struct oh_call call = CALL(GATHER, .root = root);
    return oh_entry_make(&call, comm, OH_CALLER());
}

OH_EXPORT ncclResult_t ncclScatterConfig(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                                         ncclComm_t comm, cudaStream_t stream, const oh_nccl_call_config *config)
{
    struct oh_call call = CALL(SCATTER, .root = root);
    return oh_entry_make(&call, comm, OH_CALLER());
}
