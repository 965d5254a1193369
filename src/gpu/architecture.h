/* SPDX-License-Identifier: MIT */
/*
 * architecture.h - which GPUs this build has kernels for
 *
 * Does: Compares a compute capability with what nvcc was asked for (NVCC_GENCODE).
 * Threads: pure functions.
 * Owns: nothing.
 */
#ifndef OH_GPU_ARCHITECTURE_H_
#define OH_GPU_ARCHITECTURE_H_

#include <stdbool.h>

/* The targets of nvcc with blanks between, "sm_80 sm_90 compute_90"; "any": not known; "": the build has no kernels. */
extern const char oh_architectures[] __attribute__((visibility("hidden")));

/*
 * Returns whether a GPU can run code of one of the targets: sm_XY runs on X.Z with Z >= Y, and the driver compiles
 * compute_XY for X.Y and later. A target with a letter is for its own X.Y alone.
 */
bool oh_architectures_include(const char *architectures, int major, int minor);

#endif
