/* SPDX-License-Identifier: MIT */
/*
 * shared/kernel.h - the kernels of kernels/floor.cu, which only the command carries
 *
 * Threads: any.
 * Owns: the loaded image, until the end of the process.
 */
#ifndef OH_TOOLS_SHARED_KERNEL_H_
#define OH_TOOLS_SHARED_KERNEL_H_

#include <stdbool.h>

#include "gpu/driver.h"
#include "kernels/floor.h"

struct oh_tool_kernel {
    CUfunction function;
    bool programmatic; /* device and code know programmatic stream serialization (compute capability 9.0) */
};

/* Loads a kernel into the current context, which is one of `device`. Returns the driver's result. */
CUresult oh_tool_kernel_load(CUdevice device, const char *name, struct oh_tool_kernel *kernel_p);

#endif
