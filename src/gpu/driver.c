/* SPDX-License-Identifier: MIT */
/*
 * driver.c - the CUDA driver, opened at run time
 *
 * Does: Opens libcuda.so.1 and looks up the functions of driver.h.
 * Threads: any; pthread_once.
 * Owns: the handle, for the life of the process.
 */
#include "gpu/driver.h"

#include <pthread.h>
#include <stdio.h>

#include "util/log.h"
#include "util/symbols.h"

struct oh_driver oh_driver;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static ncclResult_t status;
static char error[160];

static const struct oh_symbol functions[] = {
#define OH_DRIVER_ROW(field_, symbol_, args_) {#symbol_, offsetof(struct oh_driver, field_), true},
#define OH_DRIVER_LATER_ROW(field_, symbol_, args_) {#symbol_, offsetof(struct oh_driver, field_), false},
    OH_DRIVER_FUNCTIONS(OH_DRIVER_ROW) OH_DRIVER_LATER_FUNCTIONS(OH_DRIVER_LATER_ROW)};

/* The soname finds the copy that the application already uses. It stays open, unless a symbol is missing. */
static ncclResult_t open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(error, sizeof error, "libcuda.so.1 cannot be opened");
        return ncclSystemError;
    }
    const char *missing = oh_symbols_load(library, functions, sizeof functions / sizeof *functions, &oh_driver);
    if (missing) {
        snprintf(error, sizeof error, "the CUDA driver lacks %s (CUDA 12.0 or later is needed)", missing);
        dlclose(library);
        return ncclSystemError;
    }
    CUresult result = oh_driver.init(0);
    if (result != CUDA_SUCCESS) {
        snprintf(error, sizeof error, "cuInit: %s (%d)", oh_driver_error_name(result), (int)result);
        return ncclUnhandledCudaError;
    }
    return ncclSuccess;
}

static void open_driver_once(void)
{
    status = open_driver();
    if (status != ncclSuccess) {
        OH_INFO("%s", error);
    }
}

ncclResult_t oh_driver_open(void)
{
    pthread_once(&once, open_driver_once);
    return status;
}

const char *oh_driver_error(void)
{
    return error;
}

const char *oh_driver_error_name(CUresult result)
{
    const char *name;
    return oh_driver.get_error_name(result, &name) == CUDA_SUCCESS && name ? name : "unknown CUDA error";
}

CUresult oh_driver_check(CUresult result, const char *function, int line, const char *call)
{
    if (result != CUDA_SUCCESS) {
        OH_INFO("%s:%d: %s: %s", function, line, call, oh_driver_error_name(result));
    }
    return result;
}

CUresult oh_driver_launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream, bool is_programmatic,
                          const void *args)
{
    CUlaunchAttribute attribute = {
        .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        .value.programmaticStreamSerializationAllowed = 1,
    };
    const CUlaunchConfig config = {.gridDimX = blocks,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = threads,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .hStream = stream,
                                   .attrs = &attribute,
                                   .numAttrs = is_programmatic ? 1 : 0};
    void *parameters[] = {(void *)args};
    return oh_driver.launch_kernel_ex(&config, function, parameters, NULL);
}
