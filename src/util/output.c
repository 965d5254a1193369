/* SPDX-License-Identifier: MIT */
/*
 * output.c - output files that the user names
 *
 * Does: Expands %h and %p, and opens the file.
 * Threads: any.
 * Owns: nothing; the caller owns the descriptor.
 */
#include "util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void oh_output_expand(const char *pattern, char *path_p)
{
    char host[65] = "";
    size_t used = 0;
    gethostname(host, sizeof host - 1);
    host[strcspn(host, "./")] = '\0';
    for (const char *at = pattern; *at && used < OH_OUTPUT_PATH - 1; at++) {
        char *to = path_p + used;
        const size_t room = OH_OUTPUT_PATH - used;
        if (at[0] == '%' && at[1] == 'h') {
            used += (size_t)snprintf(to, room, "%s", host);
        } else if (at[0] == '%' && at[1] == 'p') {
            used += (size_t)snprintf(to, room, "%d", (int)getpid());
        } else {
            path_p[used++] = *at;
        }
        at += at[0] == '%' && (at[1] == 'h' || at[1] == 'p' || at[1] == '%');
    }
    path_p[used < OH_OUTPUT_PATH ? used : OH_OUTPUT_PATH - 1] = '\0';
}

int oh_output_open(const char *pattern, int create)
{
    char path[OH_OUTPUT_PATH];
    struct stat status;
    oh_output_expand(pattern, path);
    /* O_NONBLOCK: a pipe without a reader must not hold the application up. */
    int fd = open(path, O_WRONLY | O_APPEND | create | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK, 0600);
    if (fd < 0) {
        return -1;
    }
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid() || status.st_nlink != 1) {
        close(fd);
        errno = EPERM;
        return -1;
    }
    return fd;
}

void oh_output_write(int fd, const char *text, size_t length)
{
    while (length > 0) {
        ssize_t written = write(fd, text, length);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return; /* nowhere to complain */
        }
        text += written;
        length -= (size_t)written;
    }
}
