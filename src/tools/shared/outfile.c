/* SPDX-License-Identifier: MIT */
/*
 * outfile.c - a temporary file beside the place, and a rename
 *
 * Does: Opens, commits and drops the file; holds signals meanwhile.
 * Threads: one.
 * Owns: the temporary file.
 */
#include "tools/shared/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/shared/tool.h"

void oh_signals_hold(sigset_t *held_p, sigset_t *before_p)
{
    static const int ending[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    sigemptyset(held_p);
    for (size_t i = 0; i < sizeof ending / sizeof *ending; i++) {
        struct sigaction action;
        if (sigaction(ending[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) { /* as nohup wants it */
            sigaddset(held_p, ending[i]);
        }
    }
    sigprocmask(SIG_BLOCK, held_p, before_p);
}

void oh_signals_end_by(int number)
{
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    signal(number, SIG_DFL);
    raise(number);
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    _exit(128 + number); /* not reached: the signal's default is to end the process */
}

/* One of the signals that this file holds has arrived. */
static bool is_ending(const struct oh_outfile *file)
{
    sigset_t waiting, both;
    sigpending(&waiting);
    sigandset(&both, &waiting, &file->held);
    return !sigisemptyset(&both);
}

/* All return a descriptor, or -1 with errno. */

static int open_temporary(struct oh_outfile *file, mode_t mode)
{
    if (snprintf(file->temporary, sizeof file->temporary, "%s.XXXXXX", file->target) >= (int)sizeof file->temporary) {
        errno = ENAMETOOLONG;
        return -1;
    }
    oh_signals_hold(&file->held, &file->before);
    signal(SIGXFSZ, SIG_IGN); /* the write fails instead */
    int fd = mkostemp(file->temporary, O_CLOEXEC), error = errno;
    if (fd >= 0) {
        fchmod(fd, mode);
    } else {
        sigprocmask(SIG_SETMASK, &file->before, NULL);
        errno = error;
    }
    return fd;
}

/* A write of no bytes to a device that holds no more, as /dev/full, fails now, and not when the work is done. */
static int open_special(const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, "", 0) < 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static int open_file(struct oh_outfile *file)
{
    struct stat there;
    if (strcmp(file->path, "-") == 0) {
        return fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    }
    if (stat(file->path, &there) != 0) {
        mode_t mask = umask(0);
        umask(mask);
        snprintf(file->target, sizeof file->target, "%s", file->path); /* one that is too long fails below */
        return open_temporary(file, 0666 & ~mask);
    }
    if (!S_ISREG(there.st_mode)) {
        return open_special(file->path);
    }
    if (access(file->path, W_OK) != 0 || !realpath(file->path, file->target)) {
        return -1; /* a rename does not check that */
    }
    return open_temporary(file, there.st_mode & 0777);
}

static void report(const struct oh_outfile *file)
{
    oh_tool_error("%s: %s: %m", file->command, strcmp(file->path, "-") ? file->path : "stdout");
}

bool oh_outfile_open(const char *command, const char *path, struct oh_outfile *file)
{
    *file = (struct oh_outfile){.command = command, .path = path};
    int fd = open_file(file);
    file->stream = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file->stream) {
        report(file);
    }
    return file->stream != NULL;
}

void oh_outfile_drop(struct oh_outfile *file)
{
    if (file->stream) {
        fclose(file->stream);
    }
    if (file->stream && file->temporary[0]) {
        unlink(file->temporary); /* fails if it has been renamed */
        sigprocmask(SIG_SETMASK, &file->before, NULL);
    }
    file->stream = NULL;
}

bool oh_outfile_commit(struct oh_outfile *file)
{
    bool interrupted = false, good = !file->stream || (fflush(file->stream) == 0 && !ferror(file->stream));
    if (file->stream && file->temporary[0]) {
        good = good && fsync(fileno(file->stream)) == 0;
        interrupted = is_ending(file);
        good = good && !interrupted && rename(file->temporary, file->target) == 0;
    }
    if (!good && !interrupted) {
        report(file);
    }
    oh_outfile_drop(file);
    return good;
}
