/* SPDX-License-Identifier: MIT */
/*
 * group_entry.c - ncclGroupStart and ncclGroupEnd
 *
 * Does: Forwards them, and ends the group's part that onehop serves.
 * Threads: any; a group belongs to its thread.
 * Owns: nothing; group.c has the queue.
 */
#include "hook/entry.h"
#include "hook/group.h"
#include "util/log.h"

EXPORT ncclResult_t ncclGroupStart(void)
{
    GET_REAL(real);
    ncclResult_t res = REAL(real, GroupStart());
    if (res == ncclSuccess && oh_inside == 0) {
        oh_group_enter();
    }
    return res;
}

static ncclResult_t end_group(const struct oh_real *real, void *unused)
{
    (void)unused;
    return REAL(real, GroupEnd());
}

static ncclResult_t simulate_group(const struct oh_real *real, void *info)
{
    return REAL(real, GroupSimulateEnd(info));
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
    GET_REAL(real);
    if (oh_inside > 0) {
        return real->GroupEnd();
    }
    oh_entry_route_deferred();
    return oh_group_leave(real, end_group, NULL, false);
}

EXPORT ncclResult_t ncclGroupSimulateEnd(struct ncclSimInfo_v22200 *info)
{
    GET_REAL(real);
    if (!real->GroupSimulateEnd) {
        OH_WARN("this NCCL has no ncclGroupSimulateEnd");
        return ncclInvalidUsage;
    }
    if (oh_inside > 0) {
        return real->GroupSimulateEnd(info);
    }
    oh_entry_route_deferred();
    return oh_group_leave(real, simulate_group, info, true);
}
