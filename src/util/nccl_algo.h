/* SPDX-License-Identifier: MIT */
/*
 * nccl_algo.h - what NCCL_ALGO leaves of NCCL's algorithms for a function
 *
 * Does: Reads the variable's value as NCCL does.
 * Threads: pure functions.
 * Owns: nothing.
 */
#ifndef OH_UTIL_NCCL_ALGO_H_
#define OH_UTIL_NCCL_ALGO_H_

#include <stdbool.h>

/*
 * Returns whether the value of NCCL_ALGO leaves at most one algorithm inside a host for an allreduce, or for a
 * reduce-scatter: NCCL's order of sums is pinned. value NULL: not set. A value that NCCL rejects may give either
 * result.
 */
bool oh_nccl_algo_is_pinned(const char *value);

#endif
