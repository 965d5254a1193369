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

struct simnccl_window {
    void *memory;
    size_t size;
};

/* Under names of our own: nccl.h may be older than them, or say the same with a type that an older one lacks. */
SIMNCCL_EXPORT ncclResult_t window_register(ncclComm_t comm, void *buff, size_t size, void **win,
                                            int flags) __asm__("ncclCommWindowRegister");
SIMNCCL_EXPORT ncclResult_t window_deregister(ncclComm_t comm, void *win) __asm__("ncclCommWindowDeregister");

ncclResult_t window_register(ncclComm_t comm, void *buff, size_t size, void **win, int flags)
{
    const char *wish = getenv("SIMNODE_NCCL_WINDOWS");
    struct simnccl_window *window = NULL;
    (void)flags;
    simnccl_count(SIMNCCL_CommWindowRegister);
    if (comm == NULL || buff == NULL || size == 0 || win == NULL) {
        return ncclInvalidArgument;
    }
    if (wish == NULL || strcmp(wish, "0") != 0) {
        window = simnode_new(sizeof *window);
        *window = (struct simnccl_window){buff, size};
    }
    *win = window;
    return ncclSuccess;
}

ncclResult_t window_deregister(ncclComm_t comm, void *win)
{
    simnccl_count(SIMNCCL_CommWindowDeregister);
    free(win);
    return comm == NULL ? ncclInvalidArgument : ncclSuccess;
}
