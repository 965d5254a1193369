/* SPDX-License-Identifier: MIT */
/*
 * public_api.c - the functions of onehop.h
 *
 * Does: Describes communicators and the process. Finds NCCL's own functions.
 * Threads: any.
 * Owns: nothing.
 */
#include <string.h>

#include "comm/stats/record.h"
#include "entry/entry.h"
#include "onehop/onehop.h"
#include "plan/plan.h"

OH_EXPORT int onehopVersion(void)
{
    return ONEHOP_VERSION_CODE;
}

OH_EXPORT const char *onehopAlgorithmName(int algorithm)
{
    return oh_algorithm_name(algorithm);
}

OH_EXPORT const char *onehopCollectiveName(int collective)
{
    return oh_collective_name(collective);
}

OH_EXPORT const char *onehopFallbackName(int reason)
{
    return oh_fallback_name(reason);
}

OH_EXPORT const char *onehopFallbackText(int reason)
{
    return oh_fallback_text(reason);
}

OH_EXPORT int onehopProcessInfo(onehop_process_info_t *info, size_t size)
{
    onehop_process_info_t full;
    if (!info) {
        return -1;
    }
    oh_comms_describe(&full);
    memcpy(info, &full, size < sizeof full ? size : sizeof full);
    return 0;
}

OH_EXPORT int onehopCommInfo(const void *nccl_comm, onehop_comm_info_t *info, size_t size)
{
    OH_COMM_SCOPE(comm);
    onehop_comm_info_t full;
    comm = oh_comm_find((ncclComm_t)nccl_comm);
    if (!comm || !info) {
        return -1;
    }
    oh_comm_describe(comm, &full);
    memcpy(info, &full, size < sizeof full ? size : sizeof full);
    return 0;
}

OH_EXPORT void *onehopStockFunction(const char *name)
{
    const struct oh_real *real = oh_real_find(OH_CALLER());
    void *found = NULL;
    for (int i = 0; real && name && i < OH_EXPORTED_COUNT; i++) {
        if (strcmp(oh_functions[i].real_name + 1, name) == 0) {
            found = oh_real_function(real, &oh_functions[i]);
        }
    }
    return found;
}
