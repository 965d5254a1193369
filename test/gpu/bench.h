/* SPDX-License-Identifier: MIT */
/* bench.h - what the benches that use the driver share: `driver`, and an end with one line where a call of it fails */
#ifndef TEST_GPU_BENCH_H_
#define TEST_GPU_BENCH_H_

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu/driver.h"

static const struct oh_driver *driver;

static inline void must(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, oh_driver_error_name(driver, result));
        exit(EXIT_FAILURE);
    }
}
#define CU(call_) must(driver->call_, #call_)

#endif
