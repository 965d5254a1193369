/* SPDX-License-Identifier: MIT */
/*
 * save.c - temporary file, fsync, rename (save.h)
 */
#include "tools/save.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/tool.h"

static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
#define SIGNALS (sizeof signals / sizeof *signals)

static char temporary[PATH_MAX]; /* read by the handler; complete before that is installed */

static void take_along(int signal)
{
    unlink(temporary);
    raise(signal); /* SA_RESETHAND: ends the process as it would have ended, once this returns */
}

/* signals[], and SIGXFSZ, which is ignored: the write fails instead. */
static void watch(struct sigaction *before)
{
    struct sigaction action = {.sa_handler = take_along, .sa_flags = (int)SA_RESETHAND};
    for (size_t i = 0; i < SIGNALS; i++) {
        sigaction(signals[i], NULL, &before[i]);
        if (before[i].sa_handler == SIG_DFL) { /* who ignores a signal, as under nohup, goes on doing so */
            sigaction(signals[i], &action, NULL);
        }
    }
    action = (struct sigaction){.sa_handler = SIG_IGN};
    sigaction(SIGXFSZ, &action, &before[SIGNALS]);
}

static void unwatch(const struct sigaction *before)
{
    for (size_t i = 0; i < SIGNALS; i++) {
        sigaction(signals[i], &before[i], NULL);
    }
    sigaction(SIGXFSZ, &before[SIGNALS], NULL);
}

static bool write_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t written = write(fd, data, size);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            return false;
        }
        data += written;
        size -= (size_t)written;
    }
    return true;
}

/* Closes; false when that, or what came before, failed. A full disk may show only here. */
static bool close_whole(int fd, bool good, bool sync)
{
    good = good && (!sync || fsync(fd) == 0);
    int error = errno;
    if (close(fd) != 0) {
        return false;
    }
    errno = error;
    return good;
}

static bool replace(const char *path, mode_t mode, const char *data, size_t size)
{
    struct sigaction before[SIGNALS + 1];
    if (snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid()) >= (int)sizeof temporary) {
        errno = ENAMETOOLONG;
        return false;
    }
    watch(before);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    bool good = fd >= 0 && close_whole(fd, write_all(fd, data, size), true) && rename(temporary, path) == 0;
    int error = errno;
    if (fd >= 0 && !good) {
        unlink(temporary);
    }
    unwatch(before);
    errno = error;
    return good;
}

static bool write_directly(const char *path, const char *data, size_t size)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    return fd >= 0 && close_whole(fd, write_all(fd, data, size), false);
}

bool oh_save_file(const char *path, const char *data, size_t size)
{
    struct stat status;
    bool exists = stat(path, &status) == 0, good = false;
    if (exists && !S_ISREG(status.st_mode)) {
        good = write_directly(path, data, size);
    } else if (!exists) {
        good = replace(path, 0666, data, size);
    } else {
        char *target = realpath(path, NULL); /* what a symbolic link leads to is replaced, not the link */
        good = target && access(target, W_OK) == 0 && replace(target, status.st_mode & 0777, data, size);
        int error = errno;
        free(target);
        errno = error;
    }
    if (!good) {
        oh_tool_error("%s: %s", path, strerror(errno));
    }
    return good;
}
