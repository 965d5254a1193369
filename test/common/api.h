/* SPDX-License-Identifier: MIT */
/*
 * api.h - the CUDA driver API and NCCL, as tables of functions
 *
 * api.c opens them at run time, and so serves programs that are linked with neither, which run on the simulated node,
 * on real GPUs, with a preloaded plugin and without: libnccl.so.2 is opened into the global scope, and its functions
 * are looked up from the start of that scope. What stands before it by LD_PRELOAD is what a program that is linked with
 * NCCL would get. api_linked.c is for a program that is linked with both. Functions that older libraries lack are NULL
 * when absent. The tables are filled before any thread, and then only read.
 */
#ifndef TEST_COMMON_API_H_
#define TEST_COMMON_API_H_

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
    X(DevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, (CUdevice))                                                   \
    X(CtxSetCurrent, cuCtxSetCurrent, (CUcontext))                                                                     \
    X(MemAlloc, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                \
    X(MemFree, cuMemFree_v2, (CUdeviceptr))                                                                            \
    X(MemHostAlloc, cuMemHostAlloc, (void **, size_t, unsigned))                                                       \
    X(MemFreeHost, cuMemFreeHost, (void *))                                                                            \
    X(MemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *))                                                               \
    X(MemsetD8Async, cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                                  \
    X(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                            \
    X(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                  \
    X(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                             \
    X(StreamCreate, cuStreamCreate, (CUstream *, unsigned))                                                            \
    X(StreamDestroy, cuStreamDestroy_v2, (CUstream))                                                                   \
    X(StreamQuery, cuStreamQuery, (CUstream))                                                                          \
    X(StreamSynchronize, cuStreamSynchronize, (CUstream))                                                              \
    X(StreamWaitEvent, cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                               \
    X(StreamBeginCapture, cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))                                    \
    X(StreamEndCapture, cuStreamEndCapture, (CUstream, CUgraph *))                                                     \
    X(ThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *))                     \
    X(EventCreate, cuEventCreate, (CUevent *, unsigned))                                                               \
    X(EventDestroy, cuEventDestroy_v2, (CUevent))                                                                      \
    X(EventRecord, cuEventRecord, (CUevent, CUstream))                                                                 \
    X(EventSynchronize, cuEventSynchronize, (CUevent))                                                                 \
    X(LaunchHostFunc, cuLaunchHostFunc, (CUstream, CUhostFn, void *))                                                  \
    X(GraphInstantiate, cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                     \
    X(GraphGetNodes, cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))                                              \
    X(GraphLaunch, cuGraphLaunch, (CUgraphExec, CUstream))                                                             \
    X(GraphDestroy, cuGraphDestroy, (CUgraph))                                                                         \
    X(GraphExecDestroy, cuGraphExecDestroy, (CUgraphExec))
#define CF_CUDA_OPTIONAL(X)                                                                                            \
    X(GraphCreate, cuGraphCreate, (CUgraph *, unsigned))                                                               \
    X(GraphClone, cuGraphClone, (CUgraph *, CUgraph))                                                                  \
    X(GraphAddChildGraphNode, cuGraphAddChildGraphNode,                                                                \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph))                                                  \
    X(GraphGetEdges, cuGraphGetEdges_v2, (CUgraph, CUgraphNode *, CUgraphNode *, CUgraphEdgeData *, size_t *))         \
    X(GraphNodeGetType, cuGraphNodeGetType, (CUgraphNode, CUgraphNodeType *))                                          \
    X(GraphKernelNodeGetParams, cuGraphKernelNodeGetParams_v2, (CUgraphNode, CUDA_KERNEL_NODE_PARAMS *))               \
    X(ModuleLoadData, cuModuleLoadData, (CUmodule *, const void *))                                                    \
    X(ModuleUnload, cuModuleUnload, (CUmodule))                                                                        \
    X(ModuleGetFunction, cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                  \
    X(LaunchKernelEx, cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))                        \
    X(GraphExecUpdate, cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *))

/* X(name behind "nccl", parameters) */
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
    X(CommCuDevice, (const ncclComm_t, int *))                                                                         \
    X(AllReduce, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream))                    \
    X(Broadcast, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, CUstream))                            \
    X(Bcast, (void *, size_t, ncclDataType_t, int, ncclComm_t, CUstream))                                              \
    X(Reduce, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, CUstream))                  \
    X(ReduceScatter, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream))                \
    X(AllGather, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, CUstream))                                 \
    X(Send, (const void *, size_t, ncclDataType_t, int, ncclComm_t, CUstream))                                         \
    X(Recv, (void *, size_t, ncclDataType_t, int, ncclComm_t, CUstream))                                               \
    X(RedOpCreatePreMulSum, (ncclRedOp_t *, void *, ncclDataType_t, ncclScalarResidence_t, ncclComm_t))                \
    X(RedOpDestroy, (ncclRedOp_t, ncclComm_t))                                                                         \
    X(GroupStart, (void))                                                                                              \
    X(GroupEnd, (void))
#define CF_NCCL_OPTIONAL(X)                                                                                            \
    X(CommInitRankScalable, (ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *))                             \
    X(CommRevoke, (ncclComm_t, int))                                                                                   \
    X(CommSuspend, (ncclComm_t, int))                                                                                  \
    X(CommResume, (ncclComm_t))                                                                                        \
    X(CommShrink, (ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int))                                         \
    X(CommGetUniqueId, (ncclComm_t, ncclUniqueId *))                                                                   \
    X(CommGrow, (ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *))                            \
    X(GroupSimulateEnd, (ncclSimInfo_t *))                                                                             \
    X(AlltoAll, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, CUstream))                                  \
    X(Gather, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, CUstream))                               \
    X(Scatter, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, CUstream))

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
