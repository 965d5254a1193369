/* SPDX-License-Identifier: MIT */
/*
 * row.h - captured kernels that follow one another with nothing between
 *
 * What they may do then (protocol.cuh, "Rows") is known only when the second has been captured; so the parameters of
 * both nodes are changed in hindsight. It is each rank's own affair: no other rank can tell.
 */
#ifndef OH_GPU_ROW_H_
#define OH_GPU_ROW_H_

#include "gpu/kernels.h"

/*
 * first, next: nodes of captured kernels of the set, for one communicator, of which the second comes after the first
 * and nothing else. If they have no more threads together than one kernel may have, the first lets the second in early,
 * and the second runs ahead of the first where their kernels can, neither may be meant as a barrier, and it surely
 * reads nothing that the first writes (alias.h; parts of one call do not). Grids stay as they are: a call has the same
 * grid on all ranks. Returns the driver's result; after a failure, too, the nodes are such as may be launched.
 */
CUresult oh_row_join(const struct oh_driver *driver, const struct oh_kernel_set *set, CUgraphNode first,
                     CUgraphNode next);

#endif
