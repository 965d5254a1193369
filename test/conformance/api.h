/* SPDX-License-Identifier: MIT */
/*
 * api.h - the CUDA driver API and NCCL, opened at run time
 *
 * Nothing is linked, so one executable runs on the simulated node, on real GPUs, with a preloaded plugin and without.
 * libnccl.so.2 is opened into the global scope and its functions are then looked up from the start of that scope: what
 * stands before it by LD_PRELOAD is what a program that is linked with NCCL would get. Functions that older libraries
 * lack are optional: NULL when absent. The table is filled once, before any thread, and then only read.
 */
#ifndef TEST_CONFORMANCE_API_H_
#define TEST_CONFORMANCE_API_H_

#include <cuda.h>
#include <nccl.h>

#include "onehop/onehop.h"

/* X(field, exported symbol, parameters) */
#define CF_CUDA_REQUIRED(X)                                                                                            \
    X(Init, cuInit, (unsigned))                                                                                        \
    X(GetErrorName, cuGetErrorName, (CUresult, const char **))                                                         \
    X(DeviceGetCount, cuDeviceGetCount, (int *))                                                                       \
    X(DeviceGet, cuDeviceGet, (CUdevice *, int))                                                                       \
    X(DeviceGetAttribute, cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))                                 \
    X(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                       \
    X(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice))                                               \
    X(CtxSetCurrent, cuCtxSetCurrent, (CUcontext))                                                                     \
    X(MemAlloc, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                \
    X(MemFree, cuMemFree_v2, (CUdeviceptr))                                                                            \
    X(MemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *))                                                               \
    X(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                            \
    X(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                  \
    X(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                             \
    X(StreamCreate, cuStreamCreate, (CUstream *, unsigned))                                                            \
    X(StreamDestroy, cuStreamDestroy_v2, (CUstream))                                                                   \
    X(StreamSynchronize, cuStreamSynchronize, (CUstream))                                                              \
    X(StreamWaitEvent, cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                               \
    X(StreamBeginCapture, cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))                                    \
    X(StreamEndCapture, cuStreamEndCapture, (CUstream, CUgraph *))                                                     \
    X(EventCreate, cuEventCreate, (CUevent *, unsigned))                                                               \
    X(EventDestroy, cuEventDestroy_v2, (CUevent))                                                                      \
    X(EventRecord, cuEventRecord, (CUevent, CUstream))                                                                 \
    X(LaunchHostFunc, cuLaunchHostFunc, (CUstream, CUhostFn, void *))                                                  \
    X(GraphInstantiate, cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                     \
    X(GraphLaunch, cuGraphLaunch, (CUgraphExec, CUstream))                                                             \
    X(GraphDestroy, cuGraphDestroy, (CUgraph))                                                                         \
    X(GraphExecDestroy, cuGraphExecDestroy, (CUgraphExec))
#define CF_CUDA_OPTIONAL(X)                                                                                            \
    X(GraphCreate, cuGraphCreate, (CUgraph *, unsigned))                                                               \
    X(GraphAddChildGraphNode, cuGraphAddChildGraphNode,                                                                \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph))                                                  \
    X(GraphExecUpdate, cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *))

#define CF_NCCL_REQUIRED(X)                                                                                            \
    X(GetVersion, (int *))                                                                                             \
    X(GetUniqueId, (ncclUniqueId *))                                                                                   \
    X(CommInitRank, (ncclComm_t *, int, ncclUniqueId, int))                                                            \
    X(CommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *))                                      \
    X(CommInitAll, (ncclComm_t *, int, const int *))                                                                   \
    X(CommSplit, (ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *))                                                 \
    X(CommFinalize, (ncclComm_t))                                                                                      \
    X(CommDestroy, (ncclComm_t))                                                                                       \
    X(CommAbort, (ncclComm_t))                                                                                         \
    X(CommGetAsyncError, (ncclComm_t, ncclResult_t *))                                                                 \
    X(CommCount, (const ncclComm_t, int *))                                                                            \
    X(CommUserRank, (const ncclComm_t, int *))                                                                         \
    X(AllReduce, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream))                    \
    X(Broadcast, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, CUstream))                            \
    X(AllGather, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, CUstream))                                 \
    X(Send, (const void *, size_t, ncclDataType_t, int, ncclComm_t, CUstream))                                         \
    X(Recv, (void *, size_t, ncclDataType_t, int, ncclComm_t, CUstream))                                               \
    X(RedOpCreatePreMulSum, (ncclRedOp_t *, void *, ncclDataType_t, ncclScalarResidence_t, ncclComm_t))                \
    X(RedOpDestroy, (ncclRedOp_t, ncclComm_t))                                                                         \
    X(GroupStart, (void))                                                                                              \
    X(GroupEnd, (void))
#define CF_NCCL_OPTIONAL(X)                                                                                            \
    X(CommInitRankScalable, (ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *))                             \
    X(CommShrink, (ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int))                                         \
    X(CommGetUniqueId, (ncclComm_t, ncclUniqueId *))                                                                   \
    X(CommGrow, (ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *))                            \
    X(GroupSimulateEnd, (ncclSimInfo_t *))

struct cf_cuda {
#define CF_FIELD(field_, symbol_, parameters_) CUresult(CUDAAPI *field_) parameters_;
    CF_CUDA_REQUIRED(CF_FIELD)
    CF_CUDA_OPTIONAL(CF_FIELD)
#undef CF_FIELD
};

struct cf_nccl {
#define CF_FIELD(field_, parameters_) ncclResult_t(*field_) parameters_;
    CF_NCCL_REQUIRED(CF_FIELD)
    CF_NCCL_OPTIONAL(CF_FIELD)
#undef CF_FIELD
    /* of the plugin, where one is loaded */
    int (*onehop_version)(void);
    int (*onehop_comm_info)(const void *, onehop_comm_info_t *, size_t);
};

extern struct cf_cuda cu;
extern struct cf_nccl nccl;

/* Fills the tables. Returns NULL, or what is missing (static storage). */
const char *cf_api_open(void);

/* Opens the CUDA driver alone, for a look at the node; as above. */
const char *cf_api_open_cuda(void);

#endif
