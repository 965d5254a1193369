/* SPDX-License-Identifier: MIT */
/*
 * kernels.h - the device code: finding a kernel and launching it
 *
 * The images are embedded in the library (images.S) and loaded once per process, independent of contexts. The
 * functions of one communicator are looked up, and forced into its context, when it is set up: loading device code
 * later could wait for a kernel that itself waits for a peer.
 */
#ifndef OH_GPU_KERNELS_H_
#define OH_GPU_KERNELS_H_

#include <nccl.h>
#include <stdbool.h>

#include "gpu/driver.h"
#include "kernels/abi.h"
#include "plan/plan.h"

#define OH_KERNEL_TYPES 3

/* The kernels of one communicator in its context, by algorithm and type. */
struct oh_kernel_set {
    CUfunction function[ONEHOP_ALGORITHMS][OH_KERNEL_TYPES];
    bool programmatic; /* device and code know programmatic stream serialization (compute capability 9.0) */
};

/*
 * Loads the kernels that a table can choose into the current context, which is one of `device`. Set-up only: allocates
 * and may synchronise. Returns ncclSuccess, or ncclUnhandledCudaError (logged at INFO). Thread-safe.
 */
ncclResult_t oh_kernel_set_load(const struct oh_driver *driver, CUdevice device, const struct oh_plan_table *table,
                                struct oh_kernel_set *set_p);

/*
 * Launches one kernel on `stream` in the current context; asynchronous, allowed under stream capture. `type` must be
 * one that oh_plan_choose accepted. Returns the driver's result.
 */
CUresult oh_kernel_launch(const struct oh_driver *driver, const struct oh_kernel_set *set, const struct oh_plan *plan,
                          ncclDataType_t type, const struct oh_kernel_args *args, CUstream stream);

#endif
