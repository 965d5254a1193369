/* SPDX-License-Identifier: MIT */
/*
 * graph_mixing.h - the parts of graph_mixing.c: the libraries, lanes (graph_lane.c), captures (graph_capture.c), what
 * is done with them (graph_scenarios.c, graph_chains.c)
 *
 * A file of these defines CHECK_WHO, its name for reports, before this. Every rank is a thread or process of its own,
 * and has its struct rank; `options` does not change while they run.
 */
#ifndef TEST_GPU_GRAPH_MIXING_H_
#define TEST_GPU_GRAPH_MIXING_H_

#include <cuda.h>
#include <nccl.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/abi.h"
#include "test/gpu/check.h"

#define MAX_RANKS 8
#define COUNT 3001
#define CALLS 3    /* in a graph, one after the other */
#define RING 16    /* rounds of a lane between looks at the results */
#define PATTERN 61 /* values of the input */
#define LANES 3

/* X(field, symbol, parameters): under the names that drivers have had since CUDA 12.3. */
#define DRIVER(X)                                                                                                      \
    X(init, cuInit, (unsigned))                                                                                        \
    X(device_count, cuDeviceGetCount, (int *))                                                                         \
    X(retain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                       \
    X(set_context, cuCtxSetCurrent, (CUcontext))                                                                       \
    X(alloc, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                   \
    X(free, cuMemFree_v2, (CUdeviceptr))                                                                               \
    X(host_alloc, cuMemHostAlloc, (void **, size_t, unsigned))                                                         \
    X(host_free, cuMemFreeHost, (void *))                                                                              \
    X(upload, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                                     \
    X(download, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                         \
    X(stream_create, cuStreamCreate, (CUstream *, unsigned))                                                           \
    X(stream_destroy, cuStreamDestroy_v2, (CUstream))                                                                  \
    X(synchronize, cuStreamSynchronize, (CUstream))                                                                    \
    X(begin_capture, cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))                                         \
    X(exchange_mode, cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *))                                       \
    X(end_capture, cuStreamEndCapture, (CUstream, CUgraph *))                                                          \
    X(event_create, cuEventCreate, (CUevent *, unsigned))                                                              \
    X(event_destroy, cuEventDestroy_v2, (CUevent))                                                                     \
    X(event_record, cuEventRecord, (CUevent, CUstream))                                                                \
    X(wait_event, cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                                    \
    X(memset, cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                                         \
    X(graph_create, cuGraphCreate, (CUgraph *, unsigned))                                                              \
    X(graph_clone, cuGraphClone, (CUgraph *, CUgraph))                                                                 \
    X(graph_add_child, cuGraphAddChildGraphNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph))       \
    X(graph_nodes, cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))                                                \
    X(graph_edges, cuGraphGetEdges_v2, (CUgraph, CUgraphNode *, CUgraphNode *, CUgraphEdgeData *, size_t *))           \
    X(node_type, cuGraphNodeGetType, (CUgraphNode, CUgraphNodeType *))                                                 \
    X(kernel_params, cuGraphKernelNodeGetParams_v2, (CUgraphNode, CUDA_KERNEL_NODE_PARAMS *))                          \
    X(instantiate, cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                          \
    X(update, cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *))                             \
    X(graph_launch, cuGraphLaunch, (CUgraphExec, CUstream))                                                            \
    X(graph_destroy, cuGraphDestroy, (CUgraph))                                                                        \
    X(exec_destroy, cuGraphExecDestroy, (CUgraphExec))

#define LIBRARY(X)                                                                                                     \
    X(unique_id, ncclGetUniqueId, (ncclUniqueId *))                                                                    \
    X(init_rank, ncclCommInitRank, (ncclComm_t *, int, ncclUniqueId, int))                                             \
    X(destroy, ncclCommDestroy, (ncclComm_t))                                                                          \
    X(all_reduce, ncclAllReduce,                                                                                       \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))                           \
    X(group_start, ncclGroupStart, (void))                                                                             \
    X(group_end, ncclGroupEnd, (void))

#define DRIVER_FIELD(field_, symbol_, parameters_) CUresult(*field_) parameters_;
#define LIBRARY_FIELD(field_, symbol_, parameters_) ncclResult_t(*field_) parameters_;
struct driver {
    DRIVER(DRIVER_FIELD)
};
struct library {
    LIBRARY(LIBRARY_FIELD)
};
extern struct driver cu;
extern struct library nccl;

struct options {
    int ranks;
    bool threads;
    int rounds;
    unsigned delay_us;
    uint32_t seed;
    uint32_t floats; /* of a buffer of the scenario chains, whose calls have half as many at most */
    bool structure;
    unsigned timeout;            /* seconds until everything ends by a signal */
    const char *const *scenario; /* to run; NULL: all */
    int scenarios;
};
extern struct options options;

/* What the ranks share. */
struct board {
    atomic_int ids; /* published so far */
    atomic_int met; /* times that a rank has come to meet() */
    ncclUniqueId id[64];
};

/* One way in which calls are made: a stream with buffers of its own. */
struct lane {
    CUstream stream;
    CUdeviceptr in, out[CALLS]; /* each call reduces what the one before has left */
    float *upload, *download;   /* RING rounds each, pinned */
    uint32_t input[RING];       /* which input a round has had */
    int filled;
    CUgraphExec exec; /* NULL: eager */
};

struct rank {
    int rank;
    struct board *board;
    int ids; /* used so far */
    CUcontext context;
    ncclComm_t comm;
    struct lane lane[LANES];
    uint32_t common; /* random numbers: the same on all ranks, and this rank's own */
    uint32_t own;
};

#define CU(call_)                                                                                                      \
    do {                                                                                                               \
        CUresult cu_ = cu.call_;                                                                                       \
        CHECK(cu_ == CUDA_SUCCESS, "%s gave CUDA error %d", #call_, (int)cu_);                                         \
    } while (0)
#define NCCL(call_)                                                                                                    \
    do {                                                                                                               \
        ncclResult_t nccl_ = nccl.call_;                                                                               \
        CHECK(nccl_ == ncclSuccess, "%s gave NCCL result %d", #call_, (int)nccl_);                                     \
    } while (0)

/* --- graph_lane.c ------------------------------------------------------------------------------------------------- */

/* Before anything else in a process. */
void open_libraries(void);

/* A number below `below`. */
uint32_t draw(uint32_t *state, uint32_t below);

void lane_open(struct lane *lane, CUstream stream);
void lane_close(struct lane *lane);

/* One call of the chain, on any stream; and all of them, on the lane's. */
void call(const struct rank *rank, const struct lane *lane, int c, CUstream stream);
void call_chain(const struct rank *rank, const struct lane *lane);

/* The input of a round at an element, times (rank + 1). */
float input_value(uint32_t input, size_t i);

/* A round of a lane: new input, the calls, the result on its way back. Nothing waits. */
void lane_round(struct rank *rank, struct lane *lane);

/* Waits for the lane, or all, and compares what has come back. */
void lane_flush(const struct rank *rank, struct lane *lane, const char *name);
void flush_all(struct rank *rank);

/* Rounds on lanes in a random order, the same on all ranks. */
void mix(struct rank *rank, int rounds);

/* --- graph_capture.c ---------------------------------------------------------------------------------------------- */

CUgraphNodeType type_of(CUgraphNode node);

/* A kernel of onehop lets the next in early where that is known to be right, and nowhere else; so many do. */
void check_early(CUgraph graph, int expected);

/* Ends a capture of the lane's chain and nothing else. */
CUgraph end_capture(const struct lane *lane);
CUgraph capture(const struct rank *rank, const struct lane *lane, CUstreamCaptureMode mode);
CUstreamCaptureMode usual_mode(void);

/* Another lane may be in a global capture, during which instantiating is allowed in relaxed mode only. Destroys the
 * graph. */
CUgraphExec instantiate(CUgraph graph);

/* The first two lanes as graphs, and as none. */
void capture_both(struct rank *rank);
void destroy_both(struct rank *rank);

/* --- graph_chains.c -------------------------------------------------------------------------------------------- */

/*
 * Calls that follow one another, of which some depend on the one before; between two ranks, large ones go in parts that
 * send early.
 */
void chains(struct rank *rank);

/* --- graph_scenarios.c -------------------------------------------------------------------------------------------- */

/* Each begins and ends with a communicator and without graphs. */
struct scenario {
    const char *name;
    void (*run)(struct rank *rank);
};
extern const struct scenario scenarios[]; /* the last has no name */

/* A new communicator in place of rank->comm. */
void make_comm(struct rank *rank);

#endif
