/* SPDX-License-Identifier: MIT */
/*
 * reserve.h - memory for a file that will be mapped
 *
 * Does: Has a full file system, and a limit on the size of files, fail here: later a store would end the program by
 *    SIGBUS, and the system call by SIGXFSZ.
 * Threads: any.
 * Owns: nothing.
 */
#ifndef OH_UTIL_RESERVE_H_
#define OH_UTIL_RESERVE_H_

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/resource.h>
#include <unistd.h>

/* Gives the file its size and its memory. Returns 0, or an error number. */
static inline int oh_file_reserve(int fd, size_t size)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < size) {
        return EFBIG;
    }
    int error = ftruncate(fd, (off_t)size) == 0 ? EINTR : errno;
    while (error == EINTR) {
        error = posix_fallocate(fd, 0, (off_t)size);
    }
    return error;
}

#endif
