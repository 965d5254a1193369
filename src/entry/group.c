/* SPDX-License-Identifier: MIT */
/*
 * group.c - the NCCL functions for groups
 *
 * Does: Begins and ends groups (comm/call.h).
 * Threads: any. Each has its own group, as in NCCL.
 * Owns: nothing.
 */
#include "comm/call.h"
#include "entry/entry.h"

OH_EXPORT ncclResult_t ncclGroupStart(void)
{
    const struct oh_nccl *nccl;
    OH_TRY(oh_real_get(OH_CALLER(), &nccl));
    const ncclResult_t res = OH_NCCL(nccl, GroupStart());
    if (res == ncclSuccess && oh_nccl_depth == 0) {
        oh_group_begin();
    }
    return res;
}

OH_EXPORT ncclResult_t ncclGroupEnd(void)
{
    const struct oh_nccl *nccl;
    OH_TRY(oh_real_get(OH_CALLER(), &nccl));
    if (oh_nccl_depth > 0) {
        return nccl->GroupEnd();
    }
    oh_group_decide(false);
    return oh_group_end(nccl->own, OH_NCCL(nccl, GroupEnd()), false);
}

OH_EXPORT ncclResult_t ncclGroupSimulateEnd(struct ncclSimInfo_v22200 *info)
{
    const struct oh_nccl *nccl;
    OH_TRY(oh_real_get(OH_CALLER(), &nccl));
    OH_TRY(nccl->GroupSimulateEnd ? ncclSuccess : oh_nccl_refuse_missing("ncclGroupSimulateEnd"));
    if (oh_nccl_depth > 0) {
        return nccl->GroupSimulateEnd(info);
    }
    oh_group_decide(true);
    return oh_group_end(nccl->own, OH_NCCL(nccl, GroupSimulateEnd(info)), true);
}
