/* SPDX-License-Identifier: MIT */
/*
 * room.c - how many blocks of the kernels fit at once, as room.h says
 *
 * Does: See room.h. Threads: any. Owns: nothing.
 */
#include "gpu/room.h"

#include <stdbool.h>
#include <string.h>

#include "util/log.h"

/* As cuda.h of CUDA 12.4 has CUdevResource and CU_DEV_RESOURCE_TYPE_SM: cuda.h of 12.0 lacks both. */
#define DEV_RESOURCE_TYPE_SM 1
struct dev_resource {
    int type;
    unsigned char padding[92];
    unsigned sm_count; /* the first field of the union */
    unsigned char oversize[256];
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* What a driver cannot tell limits nothing. */
static uint32_t limited_sms(const struct oh_driver *driver, const struct oh_context *context, uint32_t sms)
{
    CUexecAffinityParam affinity;
    struct dev_resource resource;
    memset(&resource, 0, sizeof resource);
    if (driver->ctx_get_exec_affinity &&
        driver->ctx_get_exec_affinity(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT) == CUDA_SUCCESS &&
        affinity.param.smCount.val > 0) {
        sms = least(sms, affinity.param.smCount.val);
    }
    if (driver->ctx_get_dev_resource &&
        driver->ctx_get_dev_resource(context->handle, &resource, DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS &&
        resource.sm_count > 0) {
        sms = least(sms, resource.sm_count);
    }
    return sms;
}

/* Threads of the function that fit on a multiprocessor, in blocks of each size of the table; at most *threads_p. */
static ncclResult_t limit_threads(const struct oh_driver *driver, CUfunction function,
                                  const struct oh_plan_table *table, uint32_t *threads_p)
{
    ncclResult_t res = ncclSuccess;
    uint32_t asked = 0;
    for (uint32_t i = 0; i < table->rows.count; i++) {
        const struct oh_plan_row *row = &table->rows.row[i];
        int blocks;
        if (row->algorithm == OH_PLAN_NCCL || row->threads == asked) {
            continue;
        }
        asked = row->threads;
        OH_CU_GOTO(driver, occupancy(&blocks, function, (int)asked, 0), res, out);
        *threads_p = least(*threads_p, (uint32_t)blocks * asked);
    }
out:
    return res;
}

ncclResult_t oh_room_query(const struct oh_driver *driver, CUdevice device, const struct oh_context *context,
                           const struct oh_kernel_set *set, const struct oh_plan_table *table,
                           struct oh_plan_room *room_p)
{
    ncclResult_t res = ncclSuccess;
    uint32_t threads = UINT32_MAX;
    int sms;
    OH_CU_GOTO(driver, device_get_attribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device), res, out);
    for (int a = 0; a < ONEHOP_ALGORITHM_COUNT && res == ncclSuccess; a++) {
        for (int t = 0; t < OH_SUM_TYPES && res == ncclSuccess; t++) {
            res = limit_threads(driver, set->sum[a][t], table, &threads);
        }
        for (int t = 0; t < OH_KERNEL_TYPES && res == ncclSuccess; t++) {
            res = limit_threads(driver, set->any[a][t], table, &threads);
        }
    }
    if (res == ncclSuccess) {
        *room_p = (struct oh_plan_room){
            .sms = limited_sms(driver, context, (uint32_t)sms), .sm_threads = threads, .max_blocks = UINT32_MAX};
    }
out:
    return res;
}
