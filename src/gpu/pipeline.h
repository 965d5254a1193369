/* SPDX-License-Identifier: MIT */
/*
 * pipeline.h - early triggers of captured kernels
 *
 * Does: has a captured kernel trigger the launch of the kernel behind it early. Which kernel comes behind is known only
 * when that kernel has been captured, so the parameters of the first are changed afterwards. No other rank can tell.
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

#endif
