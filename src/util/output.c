/* SPDX-License-Identifier: MIT */
/*
 * output.c - files that the user names
 *
 * Does: See output.h.
 * Threads: any; no state.
 * Owns: nothing.
 */
#include "util/output.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
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

/* Takes back the signal of a write that has failed, unless one was pending before. */
static void take_back(int signal, const sigset_t *pending)
{
    static const struct timespec now = {0, 0};
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    if (!sigismember(pending, signal)) {
        sigtimedwait(&one, NULL, &now);
    }
}

/*
 * A pipe without a reader, or a limit on the size of files, must not end the program: SIGPIPE and SIGXFSZ are held
 * meanwhile. A write's signal is its thread's. The program's handlers and mask stay as they are.
 */
bool oh_output_write(int fd, const char *text, size_t length)
{
    sigset_t held, pending, before;
    ssize_t written;
    sigemptyset(&held);
    sigaddset(&held, SIGPIPE);
    sigaddset(&held, SIGXFSZ);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &held, &before);
    do {
        written = write(fd, text, length);
        if (written > 0) {
            text += written;
            length -= (size_t)written;
        }
    } while (length > 0 && (written > 0 || (written < 0 && errno == EINTR)));
    const int error = errno;
    if (written < 0 && error == EPIPE) {
        take_back(SIGPIPE, &pending);
    } else if (written < 0 && error == EFBIG) {
        take_back(SIGXFSZ, &pending);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return length == 0;
}
