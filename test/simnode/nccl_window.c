/* SPDX-License-Identifier: MIT */
/*
 * nccl_window.c - windows of the simulated NCCL: accepted, and without effect on what is computed
 *
 * As NCCL does where it has no symmetric memory, it answers success and makes no window with SIMNODE_NCCL_WINDOWS=0. A
 * window is a small allocation, so that a sanitizer sees one that is not given back. libncclcopy does not export these
 * (nccl_copy.map): it stands for an NCCL before 2.27.
 */
#include "nccl_internal.h"

#include <stdlib.h>
#include <string.h>

/* Under names of our own: nccl.h may be older than them, or say the same with a type that an older one lacks. */
SIMNCCL_EXPORT ncclResult_t window_register(ncclComm_t comm, void *buff, size_t size, void **win,
                                            int flags) __asm__("ncclCommWindowRegister");
SIMNCCL_EXPORT ncclResult_t window_deregister(ncclComm_t comm, void *win) __asm__("ncclCommWindowDeregister");

ncclResult_t window_register(ncclComm_t comm, void *buff, size_t size, void **win, int flags)
{
    const char *wish = getenv("SIMNODE_NCCL_WINDOWS");
    (void)comm, (void)buff, (void)size, (void)flags;
    *win = wish == NULL || strcmp(wish, "0") != 0 ? simnode_new(1) : NULL;
    return ncclSuccess;
}

ncclResult_t window_deregister(ncclComm_t comm, void *win)
{
    free(win);
    return comm == NULL ? ncclInvalidArgument : ncclSuccess;
}
