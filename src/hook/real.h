/* SPDX-License-Identifier: MIT */
/*
 * real.h - the NCCL that the application brought
 *
 * Found among the objects that are loaded already, never loaded by onehop: the next definition after ours, or, where
 * NCCL was loaded out of the global scope (Python extensions), the loaded object that defines pncclAllReduce. Its
 * pncclX entry points are called, which are the same functions under a name that nobody interposes.
 */
#ifndef OH_HOOK_REAL_H_
#define OH_HOOK_REAL_H_

#include <nccl.h>
#include <stdbool.h>

/* X(name without the prefix, parameters); all return ncclResult_t. The first group must exist (NCCL 2.19 has it). */
#define OH_REAL_REQUIRED(X)                                                                                            \
    X(CommInitRank, (ncclComm_t *, int, ncclUniqueId, int))                                                            \
    X(CommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *))                                      \
    X(CommInitAll, (ncclComm_t *, int, const int *))                                                                   \
    X(CommSplit, (ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *))                                                 \
    X(CommFinalize, (ncclComm_t))                                                                                      \
    X(CommDestroy, (ncclComm_t))                                                                                       \
    X(CommAbort, (ncclComm_t))                                                                                         \
    X(CommCount, (const ncclComm_t, int *))                                                                            \
    X(CommCuDevice, (const ncclComm_t, int *))                                                                         \
    X(CommUserRank, (const ncclComm_t, int *))                                                                         \
    X(AllReduce, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))                \
    X(RedOpCreatePreMulSum, (ncclRedOp_t *, void *, ncclDataType_t, ncclScalarResidence_t, ncclComm_t))                \
    X(RedOpDestroy, (ncclRedOp_t, ncclComm_t))                                                                         \
    X(GroupStart, (void))                                                                                              \
    X(GroupEnd, (void))

#define OH_REAL_OPTIONAL(X)                                                                                            \
    X(GroupSimulateEnd, (struct ncclSimInfo_v22200 *))                                                                 \
    X(CommRevoke, (ncclComm_t, int))                                                                                   \
    X(CommShrink, (ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int))

struct ncclSimInfo_v22200; /* ncclSimInfo_t since NCCL 2.22; older headers do not have it */

struct oh_real {
#define OH_REAL_FIELD(name_, args_) ncclResult_t(*name_) args_;
    OH_REAL_REQUIRED(OH_REAL_FIELD)
    OH_REAL_OPTIONAL(OH_REAL_FIELD) /* NULL where this NCCL has none */
#undef OH_REAL_FIELD
};

/*
 * Gives the table of the real library. *real_p: static storage, set only on success. Returns ncclSuccess, or
 * ncclSystemError (one WARN) when no loaded object is an NCCL of version 2.19 or later. Thread-safe; a failure is
 * not remembered, since the library may be loaded later.
 */
ncclResult_t oh_real_get(const struct oh_real **real_p);

#endif
