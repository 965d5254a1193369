/* SPDX-License-Identifier: MIT */
/*
 * pipeline.h - captured kernels that are launched before the kernel in front of them has ended
 *
 * Does: has a captured kernel of onehop trigger the launch of the kernel behind it early; which kernel comes behind is
 * known only when that kernel has been captured, so the parameters of the first are changed afterwards. And has a
 * kernel of onehop launched while a kernel of the program in front of it runs. Each waits (griddepcontrol.wait) before
 * it reads or sends anything, so no other rank can tell.
 * Threads: any; the capture belongs to the caller. Owns: nothing.
 */
#ifndef OH_GPU_PIPELINE_H_
#define OH_GPU_PIPELINE_H_

#include "gpu/kernels.h"

/*
 * Sets early_trigger of `first`, if both kernels are of the set and have no more threads together than one kernel may
 * have, and no more than max_blocks blocks. first, next: nodes of captured kernels of one communicator; `first` is all
 * that `next` comes after. Changing nodes is allowed during a capture (cuStreamGetCaptureInfo). Returns the driver's
 * result; after a failure `first` is as it was.
 */
CUresult oh_pipeline_link(const struct oh_driver *driver, const struct oh_kernel_set *set, uint32_t max_blocks,
                          CUgraphNode first, CUgraphNode next);

/* An edge of a graph under capture. */
struct oh_pipeline_edge {
    CUgraph graph;
    CUgraphNode from, to;
    struct oh_edge_data data;
};

/*
 * Has the kernel `to`, of onehop, launched when all blocks of the kernel `from` have begun, instead of when they have
 * ended: the edge, which is all that `to` comes after, gets the launch order port (cuda.h,
 * CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER). It stays programmatic, so `to` waits for `from` to complete as before. Only
 * if
 *
 *   `to` has few threads: it holds room on the GPU while `from` runs;
 *   `from` is a kernel of no communicator of onehop, and not cooperative;
 *   all edges into `from` are of the default type: what is before it has ended when it begins, so at most one kernel of
 *   a branch is held so, and the epoch of `to` is final;
 *   `to` has no higher priority than `from`, all of whose blocks must find room first.
 *
 * Returns CUDA_SUCCESS, also if the edge stays as it was; else the driver's error: the order of the two kernels is
 * lost.
 */
CUresult oh_pipeline_launch_early(const struct oh_driver *driver, const struct oh_pipeline_edge *edge);

#endif
