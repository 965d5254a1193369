/* SPDX-License-Identifier: MIT */
/*
 * keep_errno.h - errno as it was, at the end of a block
 *
 * Does: OH_KEEP_ERRNO() saves errno, and the end of the enclosing block restores it: a program may rely on what its
 *    NCCL does to errno, so onehop's own work must not change it.
 * Threads: any.
 * Owns: nothing.
 */
#ifndef OH_UTIL_KEEP_ERRNO_H_
#define OH_UTIL_KEEP_ERRNO_H_

#include <errno.h>

static inline void oh_errno_restore(const int *saved)
{
    errno = *saved;
}

#define OH_KEEP_ERRNO() int saved_errno_ __attribute__((cleanup(oh_errno_restore), unused)) = errno

#endif
