/* SPDX-License-Identifier: MIT */
/*
 * locked_file.c - a file in a folder that everybody may write to
 *
 * Does: Opens, locks and removes the segment's file, and rejects one that another user could have made.
 * Threads: any; each call stands alone. The lock is flock, held by the descriptor.
 * Owns: nothing; the caller owns the descriptor.
 */
#include "comm/shared/segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/log.h"
#include "util/reserve.h"

/* O_NONBLOCK: no wait for another user's FIFO or lease. */
#define OPEN_FLAGS (O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)

#define PATIENCE_NS (UINT64_C(1) * 1000 * 1000 * 1000) /* with a name that is removed again and again */
#define PAUSE_NS (UINT64_C(100) * 1000)
#define SPARE_DESCRIPTORS 32
#define SWEEP_MAX 4096 /* entries of the folder that are looked at */

/* Of try_open(), in place of a descriptor. */
enum {
    AGAIN = -1, /* the file is being removed */
    FAILED = -2
};

/* A file with a second name may be any file of this user. Size 0: just created. */
static bool is_acceptable(const struct stat *status, size_t size)
{
    return S_ISREG(status->st_mode) && status->st_uid == geteuid() && (status->st_mode & 077) == 0 &&
           status->st_nlink <= 1 && (status->st_size == 0 || status->st_size == (off_t)size);
}

/* Returns the descriptor, AGAIN or FAILED. */
static int lock_own(const char *path, size_t size, int fd)
{
    struct stat status;
    if (fstat(fd, &status) != 0) {
        OH_INFO("%s: fstat: %m", path);
        return FAILED;
    }
    if (!is_acceptable(&status, size)) {
        OH_WARN(
            "%s: not a regular file of this user with mode 0600, one link and the expected size: falls back to NCCL",
            path);
        return FAILED;
    }
    /* Another error than EWOULDBLOCK: the file system has no locks, so nothing is removed there either. */
    const bool is_locked = flock(fd, LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    return is_locked && fstat(fd, &status) == 0 && status.st_nlink > 0 ? fd : AGAIN; /* it may have lost its name */
}

/*
 * Gives a new file its name when it is locked: a sweep in another rank must not take it for one that is left. Returns
 * the descriptor, AGAIN if the name is taken, or FAILED if the file system cannot do so.
 */
static int create_locked(const char *path)
{
    char folder[OH_SEGMENT_PATH], self[32];
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        return FAILED;
    }
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    if (flock(fd, LOCK_SH | LOCK_NB) == 0 && linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0) {
        return fd;
    }
    int error = errno;
    close(fd);
    return error == EEXIST ? AGAIN : FAILED;
}

/* O_EXCL: never creates a file through a link that another user has put there. */
static int create(const char *path)
{
    int fd = create_locked(path);
    if (fd == FAILED) {
        fd = open(path, OPEN_FLAGS | O_CREAT | O_EXCL, 0600);
        fd = fd < 0 && errno == EEXIST ? AGAIN : fd < 0 ? FAILED : fd;
    }
    return fd;
}

static int try_open(const char *path, size_t size)
{
    int fd = open(path, OPEN_FLAGS);
    if (fd < 0) {
        fd = errno == ENOENT ? create(path) : FAILED;
    }
    if (fd < 0) {
        if (fd == FAILED) {
            OH_INFO("%s cannot be opened: %m", path);
        }
        return fd;
    }
    const int locked = lock_own(path, size, fd);
    if (locked < 0) {
        close(fd);
    }
    return locked;
}

/* The descriptor stays open while NCCL creates the communicator, which needs descriptors of its own. */
static bool leaves_enough(const char *path, int fd)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        (rlim_t)fd + SPARE_DESCRIPTORS >= limit.rlim_cur) {
        OH_INFO("%s: the limit of %llu descriptors is near", path, (unsigned long long)limit.rlim_cur);
        return false;
    }
    return true;
}

static ncclResult_t give_room(const char *path, size_t size, int fd)
{
    const int error = oh_file_reserve(fd, size);
    if (error != 0) {
        OH_INFO("%s: no room: %s", path, strerror(error));
    }
    return error == 0 ? ncclSuccess : ncclSystemError;
}

ncclResult_t oh_locked_file_open(const char *path, size_t size, int *fd_p)
{
    uint64_t deadline = oh_now_ns() + PATIENCE_NS;
    int fd;
    while ((fd = try_open(path, size)) == AGAIN) {
        if (oh_now_ns() > deadline) {
            OH_INFO("%s is removed again and again", path);
            return ncclSystemError;
        }
        oh_sleep_ns(PAUSE_NS);
    }
    if (fd == FAILED) {
        return ncclSystemError;
    }
    if (!leaves_enough(path, fd) || give_room(path, size, fd) != ncclSuccess) {
        oh_locked_file_remove(path, fd); /* this rank is not counted, so all fall back */
        return ncclSystemError;
    }
    *fd_p = fd;
    return ncclSuccess;
}

void oh_locked_file_remove(const char *path, int fd)
{
    struct stat status;
    bool named = fstat(fd, &status) != 0 || status.st_nlink > 0;
    if (named && unlink(path) != 0 && errno != ENOENT) {
        OH_INFO("%s cannot be removed: %m", path);
    }
    close(fd);
}

static void remove_if_left(DIR *folder, const char *name, size_t size)
{
    struct stat status;
    int fd = openat(dirfd(folder), name, OPEN_FLAGS);
    if (fd < 0) {
        return;
    }
    if (fstat(fd, &status) == 0 && is_acceptable(&status, size) && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        fstat(fd, &status) == 0 && status.st_nlink == 1 && unlinkat(dirfd(folder), name, 0) == 0) {
        OH_INFO("removed %s, which no process has locked", name);
    }
    close(fd);
}

void oh_locked_files_sweep(const char *folder, const char *prefix, size_t size)
{
    const struct dirent *entry;
    DIR *listing = opendir(folder);
    if (!listing) {
        return;
    }
    for (int i = 0; i < SWEEP_MAX && (entry = readdir(listing)); i++) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0) {
            remove_if_left(listing, entry->d_name, size);
        }
    }
    closedir(listing);
}
