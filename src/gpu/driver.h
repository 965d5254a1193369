/* SPDX-License-Identifier: MIT */
/*
 * driver.h - the CUDA driver API, opened at run time
 *
 * Does: Opens libcuda.so.1 with the first oh_driver_open, so that a shell under LD_PRELOAD never maps it. Looks
 *    functions up by their versioned names of cuda.h of CUDA 12.0, which drivers for CUDA 12 and 13 keep.
 * Threads: any.
 * Owns: the library, for the life of the process.
 */
#ifndef OH_GPU_DRIVER_H_
#define OH_GPU_DRIVER_H_

#include <cuda.h>
#include <nccl.h>
#include <stdbool.h>

#include "util/scope.h"

/* X(field, exported symbol, parameter list); all return CUresult. */
#define OH_DRIVER_FUNCTIONS(X)                                                                                         \
    X(init, cuInit, (unsigned int))                                                                                    \
    X(get_error_name, cuGetErrorName, (CUresult, const char **))                                                       \
    X(device_get, cuDeviceGet, (CUdevice *, int))                                                                      \
    X(device_get_count, cuDeviceGetCount, (int *))                                                                     \
    X(device_get_name, cuDeviceGetName, (char *, int, CUdevice))                                                       \
    X(device_get_attribute, cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))                               \
    X(device_get_pci_bus_id, cuDeviceGetPCIBusId, (char *, int, CUdevice))                                             \
    X(device_get_by_pci_bus_id, cuDeviceGetByPCIBusId, (CUdevice *, const char *))                                     \
    X(device_get_p2p_attribute, cuDeviceGetP2PAttribute, (int *, CUdevice_P2PAttribute, CUdevice, CUdevice))           \
    X(primary_ctx_retain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                           \
    X(primary_ctx_release, cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                   \
    X(ctx_get_current, cuCtxGetCurrent, (CUcontext *))                                                                 \
    X(ctx_set_current, cuCtxSetCurrent, (CUcontext))                                                                   \
    X(ctx_push, cuCtxPushCurrent_v2, (CUcontext))                                                                      \
    X(ctx_pop, cuCtxPopCurrent_v2, (CUcontext *))                                                                      \
    X(ctx_get_device, cuCtxGetDevice, (CUdevice *))                                                                    \
    X(ctx_get_id, cuCtxGetId, (CUcontext, unsigned long long *))                                                       \
    X(ctx_enable_peer_access, cuCtxEnablePeerAccess, (CUcontext, unsigned int))                                        \
    X(mem_alloc, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                               \
    X(mem_free, cuMemFree_v2, (CUdeviceptr))                                                                           \
    X(mem_host_register, cuMemHostRegister_v2, (void *, size_t, unsigned int))                                         \
    X(mem_host_unregister, cuMemHostUnregister, (void *))                                                              \
    X(mem_host_get_device_pointer, cuMemHostGetDevicePointer_v2, (CUdeviceptr *, void *, unsigned int))                \
    X(memset_d8_async, cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                                \
    X(memset_d32_async, cuMemsetD32Async, (CUdeviceptr, unsigned int, size_t, CUstream))                               \
    X(memcpy_2d_async, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *, CUstream))                                          \
    X(memcpy_htod_async, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                          \
    X(memcpy_dtoh_async, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                \
    X(ipc_get_mem_handle, cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr))                                          \
    X(ipc_open_mem_handle, cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned int))                       \
    X(ipc_close_mem_handle, cuIpcCloseMemHandle, (CUdeviceptr))                                                        \
    X(stream_create, cuStreamCreate, (CUstream *, unsigned int))                                                       \
    X(stream_destroy, cuStreamDestroy_v2, (CUstream))                                                                  \
    X(stream_synchronize, cuStreamSynchronize, (CUstream))                                                             \
    X(stream_query, cuStreamQuery, (CUstream))                                                                         \
    X(stream_wait_event, cuStreamWaitEvent, (CUstream, CUevent, unsigned int))                                         \
    X(stream_get_ctx, cuStreamGetCtx, (CUstream, CUcontext *))                                                         \
    X(stream_get_id, cuStreamGetId, (CUstream, unsigned long long *))                                                  \
    X(stream_begin_capture, cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))                                  \
    X(stream_end_capture, cuStreamEndCapture, (CUstream, CUgraph *))                                                   \
    X(stream_get_capture_info, cuStreamGetCaptureInfo_v2,                                                              \
      (CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **, size_t *))                    \
    X(stream_update_capture_dependencies, cuStreamUpdateCaptureDependencies,                                           \
      (CUstream, CUgraphNode *, size_t, unsigned int))                                                                 \
    X(thread_exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *))                        \
    X(event_create, cuEventCreate, (CUevent *, unsigned int))                                                          \
    X(event_destroy, cuEventDestroy_v2, (CUevent))                                                                     \
    X(event_record, cuEventRecord, (CUevent, CUstream))                                                                \
    X(event_query, cuEventQuery, (CUevent))                                                                            \
    X(event_synchronize, cuEventSynchronize, (CUevent))                                                                \
    X(event_elapsed_time, cuEventElapsedTime, (float *, CUevent, CUevent))                                             \
    X(graph_instantiate, cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                    \
    X(graph_launch, cuGraphLaunch, (CUgraphExec, CUstream))                                                            \
    X(graph_add_empty_node, cuGraphAddEmptyNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t))                \
    X(graph_add_event_record_node, cuGraphAddEventRecordNode,                                                          \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUevent))                                                  \
    X(graph_add_dependencies, cuGraphAddDependencies, (CUgraph, const CUgraphNode *, const CUgraphNode *, size_t))     \
    X(graph_remove_dependencies, cuGraphRemoveDependencies,                                                            \
      (CUgraph, const CUgraphNode *, const CUgraphNode *, size_t))                                                     \
    X(graph_kernel_node_get_params, cuGraphKernelNodeGetParams_v2, (CUgraphNode, CUDA_KERNEL_NODE_PARAMS *))           \
    X(graph_kernel_node_set_params, cuGraphKernelNodeSetParams_v2, (CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *))     \
    X(graph_kernel_node_get_attribute, cuGraphKernelNodeGetAttribute,                                                  \
      (CUgraphNode, CUlaunchAttributeID, CUlaunchAttributeValue *))                                                    \
    X(graph_node_get_type, cuGraphNodeGetType, (CUgraphNode, CUgraphNodeType *))                                       \
    X(graph_destroy, cuGraphDestroy, (CUgraph))                                                                        \
    X(graph_exec_destroy, cuGraphExecDestroy, (CUgraphExec))                                                           \
    X(graph_retain_user_object, cuGraphRetainUserObject, (CUgraph, CUuserObject, unsigned int, unsigned int))          \
    X(user_object_create, cuUserObjectCreate, (CUuserObject *, void *, CUhostFn, unsigned int, unsigned int))          \
    X(user_object_release, cuUserObjectRelease, (CUuserObject, unsigned int))                                          \
    X(library_load_data, cuLibraryLoadData,                                                                            \
      (CUlibrary *, const void *, CUjit_option *, void **, unsigned int, CUlibraryOption *, void **, unsigned int))    \
    X(library_get_kernel, cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))                                   \
    X(kernel_get_function, cuKernelGetFunction, (CUfunction *, CUkernel))                                              \
    X(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *, CUfunction, int, size_t))                        \
    X(func_get_attribute, cuFuncGetAttribute, (int *, CUfunction_attribute, CUfunction))                               \
    X(launch_kernel_ex, cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))

/* As cuda.h of CUDA 12.3 has CUgraphEdgeData and its enumerators: cuda.h of 12.0 lacks them. */
struct oh_edge_data {
    unsigned char from_port, to_port, type;
    unsigned char reserved[5];
};
#define OH_EDGE_DEFAULT 0
#define OH_EDGE_PROGRAMMATIC 1
#define OH_PORT_PROGRAMMATIC 1 /* all blocks have triggered, or ended */
#define OH_PORT_LAUNCH_ORDER 2 /* all blocks have begun */

/* NULL where the driver lacks them. Types that cuda.h of CUDA 12.0 lacks are void here. */
#define OH_DRIVER_LATER_FUNCTIONS(X)                                                                                   \
    X(get_version, cuDriverGetVersion, (int *)) /* tools only */                                                       \
    X(memcpy_peer_async, cuMemcpyPeerAsync,     /* tools only */                                                       \
      (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream))                                              \
    X(ctx_get_exec_affinity, cuCtxGetExecAffinity, (CUexecAffinityParam *, CUexecAffinityType)) /* with MPS */         \
    X(ctx_get_dev_resource, cuCtxGetDevResource, (CUcontext, void *, int))                      /* 12.4 */             \
    X(stream_get_capture_info_v3, cuStreamGetCaptureInfo_v3,                                    /* 12.3 */             \
      (CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **, const void **, size_t *))     \
    X(graph_node_get_dependencies, cuGraphNodeGetDependencies_v2, /* 12.3, as the next two */                          \
      (CUgraphNode, CUgraphNode *, struct oh_edge_data *, size_t *))                                                   \
    X(graph_add_edges, cuGraphAddDependencies_v2,                                                                      \
      (CUgraph, const CUgraphNode *, const CUgraphNode *, const struct oh_edge_data *, size_t))                        \
    X(graph_remove_edges, cuGraphRemoveDependencies_v2,                                                                \
      (CUgraph, const CUgraphNode *, const CUgraphNode *, const struct oh_edge_data *, size_t))

struct oh_driver {
#define OH_DRIVER_FIELD(field_, symbol_, args_) CUresult(CUDAAPI *field_) args_;
    OH_DRIVER_FUNCTIONS(OH_DRIVER_FIELD)
    OH_DRIVER_LATER_FUNCTIONS(OH_DRIVER_FIELD)
#undef OH_DRIVER_FIELD
};

/* The driver's functions, after oh_driver_open has succeeded, for the life of the process. */
extern struct oh_driver oh_driver __attribute__((visibility("hidden")));

/*
 * Opens the driver; the first call calls cuInit. Returns ncclSuccess, ncclSystemError (library or symbol missing) or
 * ncclUnhandledCudaError (cuInit failed). A failure is remembered, and logged once at INFO.
 */
ncclResult_t oh_driver_open(void);

/* Why oh_driver_open has failed, in one clause; "": it has not. */
const char *oh_driver_error(void);

/* "CUDA_ERROR_X" for any result. */
const char *oh_driver_error_name(CUresult result);

/* Returns `result`; logs a failure at INFO, with what was called in which function and line. */
CUresult oh_driver_check(CUresult result, const char *function, int line, const char *call);

/* Calls a driver function. A failure is logged. */
#define OH_CU(call_) oh_driver_check(oh_driver.call_, __func__, __LINE__, #call_)
#define OH_CU_TRY(call_) OH_TRY(OH_CU(call_))

/* The least target of nvcc whose code knows programmatic launch: griddepcontrol is of compute_90. */
#define OH_PROGRAMMATIC_CODE 90

/*
 * Launches blocks in one dimension, with one parameter. is_programmatic: with programmatic stream serialization, which
 * device and code must know. Returns the driver's result.
 */
CUresult oh_driver_launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream, bool is_programmatic,
                          const void *args);

#endif
