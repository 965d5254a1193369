/* SPDX-License-Identifier: MIT */
/*
 * group_entry.c - ncclGroupStart and the two ends of a group
 *
 * Does: Forwards them, with onehop's part of the group around the end.
 * Threads: any; a group belongs to its thread.
 * Owns: nothing; group.c has the queue.
 */
#include "hook/entry.h"
#include "hook/group.h"

EXPORT ncclResult_t ncclGroupStart(void)
{
    GET_REAL(real);
    ncclResult_t res = REAL(real, GroupStart());
    if (res == ncclSuccess && oh_inside == 0) {
        oh_group_enter();
    }
    return res;
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
    GET_REAL(real);
    if (oh_inside > 0) {
        return real->GroupEnd();
    }
    oh_entry_route_deferred();
    oh_group_begin_end(false);
    return oh_group_end(real, REAL(real, GroupEnd()), false);
}

EXPORT ncclResult_t ncclGroupSimulateEnd(struct ncclSimInfo_v22200 *info)
{
    GET_REAL(real);
    NEED_REAL(real, GroupSimulateEnd);
    if (oh_inside > 0) {
        return real->GroupSimulateEnd(info);
    }
    oh_entry_route_deferred();
    oh_group_begin_end(true);
    return oh_group_end(real, REAL(real, GroupSimulateEnd(info)), true);
}
