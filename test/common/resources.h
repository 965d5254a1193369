/* SPDX-License-Identifier: MIT */
/*
 * resources.h - what the process of a worker holds of the machine, and whether it has grown
 *
 * For programs that do something many times over and must leave nothing behind. Reads /proc. Measure when nothing is
 * under way.
 */
#ifndef TEST_COMMON_RESOURCES_H_
#define TEST_COMMON_RESOURCES_H_

#include "test/common/worker.h"

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

struct resources resources_measure(struct cf_worker *worker);

/* Checks that nothing has grown, and returns the last measurement. What is freed in the background has some seconds. */
struct resources resources_compare(struct cf_worker *worker, const struct resources_bounds *bounds,
                                   const struct resources *from);

/* "host 1 -> 2 KiB, ..." */
void resources_describe(const struct resources *from, const struct resources *to, char *text, size_t bytes);

#endif
