/* SPDX-License-Identifier: MIT */
/*
 * handle.c - the communicator of a handle
 *
 * Does: Finds it, and the NCCL that made it.
 * Threads: any.
 * Owns: nothing.
 */
#include "entry/entry.h"

ncclResult_t oh_handle_find(ncclComm_t handle, const void *caller, bool is_counted, struct oh_comm **comm_p,
                            const struct oh_nccl **nccl_p)
{
    const bool looks = oh_nccl_depth == 0 && !oh_entry_is_forked();
    /* acquire, before the search: pairs with the release store in adopt(). Else it could miss a registration. */
    const bool expected = atomic_load_explicit(&oh_initial_comm_expected, memory_order_acquire);
    struct oh_comm *comm = looks ? oh_comm_find(handle) : NULL;
    if (comm) {
        *nccl_p = oh_real_table(oh_comm_id(comm)->library);
    } else {
        OH_TRY(oh_real_get(caller, nccl_p));
        comm =
            looks && expected && oh_entry_is_active() ? oh_initial_comm_find((*nccl_p)->own, handle, is_counted) : NULL;
    }
    *comm_p = comm;
    return ncclSuccess;
}
