/* SPDX-License-Identifier: MIT */
/*
 * edge.h - edges between captured kernels, the later of which starts before the earlier has ended
 *
 * Does: Changes captured nodes and edges. A kernel of onehop triggers the launch of the next one early, or starts while
 *    a kernel of the program runs. Each waits (griddepcontrol.wait) before it reads or sends data.
 * Threads: any; the capture belongs to the caller.
 * Owns: nothing.
 */
#ifndef OH_GPU_EDGE_H_
#define OH_GPU_EDGE_H_

#include "gpu/kernels.h"

/*
 * Sets early_trigger of `first`, if both are kernels of the set, whose grids together are as small as one grid must be
 * and have at most max_blocks blocks. `next` depends on `first` alone. Returns the driver's result; after a failure
 * `first` is unchanged.
 */
CUresult oh_edge_trigger_early(const struct oh_kernel_set *set, uint32_t max_blocks, CUgraphNode first,
                               CUgraphNode next);

/* An edge of a graph under capture. */
struct oh_edge {
    CUgraph graph;
    CUgraphNode from, to;
    struct oh_edge_data data;
};

/*
 * Launches the kernel `to`, of onehop, when all blocks of the kernel `from` have started. The edge, the only one into
 * `to`, gets the launch order port (CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER). It stays programmatic, so `to` waits for
 * `from` to complete as before. Only if
 *
 *   `to` has few blocks: while `from` runs, they keep kernels of other branches that need whole SMs off theirs;
 *   `from` is not a kernel of onehop, and not cooperative;
 *   all edges into `from` are of the default type, so that at most one kernel of a branch waits in this way, and the
 *   epoch of `to` is final;
 *   `to` has no higher priority than `from`, all of whose blocks must be scheduled first.
 *
 * Returns CUDA_SUCCESS, also if the edge is unchanged, or the driver's error: then the order of the two is lost.
 */
CUresult oh_edge_launch_early(const struct oh_edge *edge);

#endif
