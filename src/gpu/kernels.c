/* SPDX-License-Identifier: MIT */
#include "gpu/kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "util/log.h"

extern const unsigned char oh_image_oneshot_ll[], oh_image_twoshot_ll[], oh_image_twoshot_push[],
    oh_image_oneshot_marker[], oh_image_twoshot_marker[];

static const unsigned char *const images[ONEHOP_ALGORITHMS] = {
    [ONEHOP_ONESHOT_LL] = oh_image_oneshot_ll,         [ONEHOP_TWOSHOT_LL] = oh_image_twoshot_ll,
    [ONEHOP_TWOSHOT_PUSH] = oh_image_twoshot_push,     [ONEHOP_ONESHOT_MARKER] = oh_image_oneshot_marker,
    [ONEHOP_TWOSHOT_MARKER] = oh_image_twoshot_marker,
};

static const struct {
    ncclDataType_t type;
    const char *name;
} types[OH_KERNEL_TYPES] = {{ncclFloat32, "f32"}, {ncclFloat16, "f16"}, {ncclBfloat16, "bf16"}};

/* What the code must have been compiled for to know programmatic launch: griddepcontrol is of compute_90. */
#define PROGRAMMATIC_CODE 90

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static CUlibrary libraries[ONEHOP_ALGORITHMS]; /* guarded by mutex; loaded once, never unloaded */

static int type_index(ncclDataType_t type)
{
    for (int i = 0; i < OH_KERNEL_TYPES; i++) {
        if (types[i].type == type) {
            return i;
        }
    }
    return -1;
}

static ncclResult_t load_image(const struct oh_driver *driver, int algorithm)
{
    ncclResult_t res = ncclSuccess;
    pthread_mutex_lock(&mutex);
    if (!libraries[algorithm]) {
        OH_CU_GOTO(driver, library_load_data(&libraries[algorithm], images[algorithm], NULL, NULL, 0, NULL, NULL, 0),
                   res, out);
    }
out:
    pthread_mutex_unlock(&mutex);
    return res;
}

static ncclResult_t load_function(const struct oh_driver *driver, int algorithm, int type, uint32_t nranks,
                                  bool *programmatic, CUfunction *function_p)
{
    ncclResult_t res = ncclSuccess;
    char name[64];
    CUkernel kernel;
    CUfunction function;
    int code;

    snprintf(name, sizeof name, "oh_%s_sum_%s_n%u", oh_algorithm_name(algorithm), types[type].name, nranks);
    OH_CU_GOTO(driver, library_get_kernel(&kernel, libraries[algorithm], name), res, out);
    OH_CU_GOTO(driver, kernel_get_function(&function, kernel), res, out);
    /* Asking for an attribute makes the driver load the code now (CUDA_MODULE_LOADING=LAZY is the default). */
    OH_CU_GOTO(driver, func_get_attribute(&code, CU_FUNC_ATTRIBUTE_PTX_VERSION, function), res, out);
    *programmatic &= code >= PROGRAMMATIC_CODE;
    *function_p = function;
out:
    return res;
}

static ncclResult_t load_algorithm(const struct oh_driver *driver, int algorithm, uint32_t nranks,
                                   struct oh_kernel_set *set)
{
    ncclResult_t res = load_image(driver, algorithm);
    for (int t = 0; t < OH_KERNEL_TYPES && res == ncclSuccess; t++) {
        res = load_function(driver, algorithm, t, nranks, &set->programmatic, &set->function[algorithm][t]);
    }
    return res;
}

ncclResult_t oh_kernel_set_load(const struct oh_driver *driver, CUdevice device, const struct oh_plan_table *table,
                                struct oh_kernel_set *set_p)
{
    struct oh_kernel_set set = {0};
    ncclResult_t res = ncclSuccess;
    int major;

    OH_CU_GOTO(driver, device_get_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device), res, out);
    set.programmatic = major >= 9;
    for (uint32_t i = 0; i < table->rows; i++) {
        uint32_t algorithm = table->row[i].algorithm;
        if (!set.function[algorithm][0]) {
            res = load_algorithm(driver, (int)algorithm, table->nranks, &set);
            if (res != ncclSuccess) {
                goto out;
            }
        }
    }
    *set_p = set;
out:
    return res;
}

CUresult oh_kernel_launch(const struct oh_driver *driver, const struct oh_kernel_set *set, const struct oh_plan *plan,
                          ncclDataType_t type, const struct oh_kernel_args *args, CUstream stream)
{
    CUlaunchAttribute attribute = {
        .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        .value.programmaticStreamSerializationAllowed = 1,
    };
    CUlaunchConfig config = {
        .gridDimX = plan->blocks,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = plan->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .hStream = stream,
        .attrs = &attribute,
        .numAttrs = set->programmatic ? 1 : 0,
    };
    void *parameters[] = {(void *)args};
    return driver->launch_kernel_ex(&config, set->function[plan->algorithm][type_index(type)], parameters, NULL);
}
