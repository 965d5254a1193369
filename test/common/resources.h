/* SPDX-License-Identifier: MIT */
/*
 * resources.h - what this process holds of the machine, and whether it has grown
 *
 * For programs that do something many times over and must leave nothing behind. Reads /proc; GPU memory comes from the
 * caller, who knows the driver. Measure when nothing is under way.
 */
#ifndef TEST_COMMON_RESOURCES_H_
#define TEST_COMMON_RESOURCES_H_

#include <stdbool.h>
#include <stddef.h>

/* Room for the largest mappings, as text. */
#define HOLDINGS_LARGEST 160

/* files: of onehop in shared memory. */
struct resources {
    long host_kib, gpu_kib, descriptors, threads, mappings, files;
    char largest[HOLDINGS_LARGEST]; /* those that hold most of host_kib: MiB of the address, name, KiB */
};

/* Growth that is allowed. */
struct resources_bounds {
    long host_kib, gpu_kib;
    long handles; /* of descriptors, threads, mappings each */
};

/* GPU memory in use, in KiB. */
typedef long (*resources_gpu_fn)(void *user);

struct resources resources_measure(resources_gpu_fn gpu_kib, void *user);

bool resources_have_grown(const struct resources_bounds *bounds, const struct resources *from,
                          const struct resources *to);

/* Measures once nothing has grown; what is freed in the background has some seconds for it. */
struct resources resources_settle(const struct resources_bounds *bounds, const struct resources *from,
                                  resources_gpu_fn gpu_kib, void *user);

/* "host 1 -> 2 KiB, ..." */
void resources_describe(const struct resources *from, const struct resources *to, char *text, size_t bytes);

#endif
