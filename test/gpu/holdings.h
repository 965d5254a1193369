/* SPDX-License-Identifier: MIT */
/*
 * holdings.h - what this process holds of the machine, and whether it has grown
 *
 * For programs that do something many times over and must leave nothing behind. Reads /proc; GPU memory comes from the
 * caller, who knows the driver. Measure when nothing is under way.
 */
#ifndef TEST_GPU_HOLDINGS_H_
#define TEST_GPU_HOLDINGS_H_

#include <stdbool.h>
#include <stddef.h>

/* Room for the largest mappings, as text. */
#define HOLDINGS_LARGEST 160

/* files: of onehop in shared memory. */
struct holdings {
    long host_kib, gpu_kib, descriptors, threads, mappings, files;
    char largest[HOLDINGS_LARGEST]; /* those that hold most of host_kib: MiB of the address, name, KiB */
};

/* Growth that is allowed. */
struct holdings_bounds {
    long host_kib, gpu_kib;
    long handles; /* of descriptors, threads, mappings each */
};

/* GPU memory in use, in KiB. */
typedef long (*holdings_gpu_fn)(void *user);

struct holdings holdings_measure(holdings_gpu_fn gpu_kib, void *user);

bool holdings_have_grown(const struct holdings_bounds *bounds, const struct holdings *from, const struct holdings *to);

/* Measures once nothing has grown; what is freed in the background has some seconds for it. */
struct holdings holdings_settle(const struct holdings_bounds *bounds, const struct holdings *from,
                                holdings_gpu_fn gpu_kib, void *user);

/* "host 1 -> 2 KiB, ..." */
void holdings_describe(const struct holdings *from, const struct holdings *to, char *text, size_t bytes);

#endif
