/* SPDX-License-Identifier: MIT */
/*
 * kernels.h - the device code: finding a kernel and launching it
 *
 * The images are embedded in the library (images.S) and loaded once per process, independent of contexts. All functions
 * for a number of ranks are looked up, and forced into the context, when its first communicator of that number is set
 * up: loading device code later could wait for a kernel that itself waits for a peer.
 */
#ifndef OH_GPU_KERNELS_H_
#define OH_GPU_KERNELS_H_

#include <nccl.h>
#include <stdbool.h>

#include "gpu/driver.h"
#include "kernels/abi.h"
#include "plan/op.h"
#include "plan/plan.h"

/* The kernels for one number of ranks in one context. */
struct oh_kernel_set {
    CUfunction sum[ONEHOP_ALGORITHM_COUNT][OH_SUM_TYPES];
    CUfunction any[ONEHOP_ALGORITHM_COUNT][OH_KERNEL_TYPES]; /* any op, for a list of calls */
    bool programmatic; /* device and code know programmatic stream serialization (compute capability 9.0) */
};

/*
 * Gives the kernels for nranks in the current context, which is one of `device`. Set-up only: allocates and may
 * synchronise. *set_p: for the life of the process. Returns ncclSuccess, or ncclUnhandledCudaError or ncclSystemError
 * (logged at INFO). Thread-safe.
 */
ncclResult_t oh_kernel_set_get(const struct oh_driver *driver, CUdevice device, uint32_t nranks,
                               const struct oh_kernel_set **set_p);

/* True when the kernels for nranks are there for the current context. Thread-safe. */
bool oh_kernel_set_is_loaded(const struct oh_driver *driver, uint32_t nranks);

/* Bytes of the parameter of a kernel of the set; 0: the function is none of the set. */
size_t oh_kernel_args_bytes(const struct oh_kernel_set *set, CUfunction function);

/* True of a kernel of any set. Thread-safe. */
bool oh_kernel_is_ours(CUfunction function);

/* What every call of a launch has in common. `plan` and `op` must be such as oh_plan_choose and oh_op_... gave. */
struct oh_launch {
    const struct oh_driver *driver;
    const struct oh_kernel_set *set;
    const struct oh_plan *plan;
    const struct oh_op *op;
    ncclDataType_t type;
    CUstream stream;
    bool serial; /* without programmatic stream serialization, even where the device has it */
};

/*
 * Launches one kernel in the current context; asynchronous, allowed under stream capture. args: staging, abort flag,
 * rank, nranks, and of one call the buffers and count; the op is put in here. Returns the driver's result.
 */
CUresult oh_kernel_launch(const struct oh_launch *launch, const struct oh_kernel_args *args);

/* The same for several calls in one launch. args: as above, but op and per-call fields. */
CUresult oh_kernel_launch_list(const struct oh_launch *launch, struct oh_kernel_list_args *args);

#endif
