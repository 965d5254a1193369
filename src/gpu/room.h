/* SPDX-License-Identifier: MIT */
/*
 * room.h - how many blocks of the kernels fit at once in a context
 *
 * Does: Asks the driver for the multiprocessors of the context, and for the occupancy of the kernels on them.
 * Threads: any.
 * Owns: nothing.
 */
#ifndef OH_GPU_ROOM_H_
#define OH_GPU_ROOM_H_

#include "gpu/context.h"
#include "gpu/kernels.h"
#include "plan/plan.h"

/*
 * Finds the room that the current context, which is `context` on `device`, has for all kernels of a set with the grids
 * of the table. A green context and a share of MPS have fewer multiprocessors than the device. Kernels of others are
 * not counted, because they end. Returns ncclSuccess, or ncclUnhandledCudaError (logged at INFO).
 */
ncclResult_t oh_room_query(const struct oh_driver *driver, CUdevice device, const struct oh_context *context,
                           const struct oh_kernel_set *set, const struct oh_plan_table *table,
                           struct oh_plan_room *room_p);

#endif
