/* SPDX-License-Identifier: MIT */
/*
 * public_api.c - the functions of onehop.h, and the end of the process
 *
 * Does: Describes communicators and the process; at exit tells the other ranks and writes the statistics.
 * Threads: any.
 * Owns: nothing.
 */
#include <string.h>

#include "comm/attach/attach.h"
#include "hook/entry.h"
#include "onehop/onehop.h"

EXPORT int onehopVersion(void)
{
    return ONEHOP_VERSION_CODE;
}

EXPORT const char *onehopAlgorithmName(int algorithm)
{
    return oh_algorithm_name(algorithm);
}

EXPORT const char *onehopFallbackName(int reason)
{
    return oh_fallback_name(reason);
}

EXPORT const char *onehopFallbackText(int reason)
{
    return oh_fallback_text(reason);
}

EXPORT int onehopProcessInfo(onehop_process_info_t *info, size_t size)
{
    onehop_process_info_t full;
    if (!info) {
        return -1;
    }
    oh_comms_describe(&full);
    memcpy(info, &full, size < sizeof full ? size : sizeof full);
    return 0;
}

EXPORT int onehopCommInfo(const void *nccl_comm, onehop_comm_info_t *info, size_t size)
{
    struct oh_comm *comm = oh_comm_find((ncclComm_t)nccl_comm);
    onehop_comm_info_t full;
    if (!comm || !info) {
        return -1;
    }
    oh_comm_describe(comm, &full);
    memcpy(info, &full, size < sizeof full ? size : sizeof full);
    return 0;
}

__attribute__((destructor)) static void leave_at_exit(void)
{
    if (!oh_entry_is_forked()) {
        oh_comms_print_stats();
        oh_comms_end_process();
    }
}
