/* SPDX-License-Identifier: MIT */
/*
 * shared/kernel.c - loads the kernels of kernels/floor.cu
 *
 * Threads: any; `mutex` guards the image.
 * Owns: the image, until the end of the process.
 */
#include "tools/shared/kernel.h"

#include <pthread.h>

#include "util/scope.h"

extern const unsigned char oh_image_floor[];

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static CUlibrary image; /* NULL: not loaded yet */

CUresult oh_tool_kernel_load(CUdevice device, const char *name, struct oh_tool_kernel *kernel_p)
{
    CUkernel kernel;
    CUfunction function;
    int major, code;
    OH_LOCK(&mutex);
    if (!image) {
        OH_CU_TRY(library_load_data(&image, oh_image_floor, NULL, NULL, 0, NULL, NULL, 0));
    }
    OH_CU_TRY(library_get_kernel(&kernel, image, name));
    OH_CU_TRY(kernel_get_function(&function, kernel));
    OH_CU_TRY(func_get_attribute(&code, CU_FUNC_ATTRIBUTE_PTX_VERSION, function));
    OH_CU_TRY(device_get_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    *kernel_p = (struct oh_tool_kernel){function, major >= 9 && code >= OH_PROGRAMMATIC_CODE};
    return CUDA_SUCCESS;
}
