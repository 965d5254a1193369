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

static FILE *open_temporary(struct oh_outfile *file, mode_t mode)
{
    if (snprintf(file->temporary, sizeof file->temporary, "%s.XXXXXX", file->target) >= (int)sizeof file->temporary) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    oh_signals_hold(&file->held, &file->before);
    signal(SIGXFSZ, SIG_IGN); /* the write fails instead */
    int fd = mkostemp(file->temporary, O_CLOEXEC);
    FILE *stream = fd < 0 ? NULL : fdopen(fd, "w");
    if (!stream) {
        int error = errno;
        if (fd >= 0) {
            close(fd);
            unlink(file->temporary);
        }
        sigprocmask(SIG_SETMASK, &file->before, NULL);
        errno = error;
        return NULL;
    }
    fchmod(fd, mode);
    return stream;
}

/* A write of no bytes to a device that holds no more, as /dev/full, fails now, and not when the work is done. */
static FILE *open_special(const char *path)
{
    FILE *stream = fopen(path, "we");
    if (stream && write(fileno(stream), "", 0) < 0) {
        int error = errno;
        fclose(stream);
        errno = error;
        return NULL;
    }
    return stream;
}

/* NULL: errno says why. */
static FILE *open_stream(struct oh_outfile *file)
{
    struct stat there;
    if (strcmp(file->path, "-") == 0) {
        return stdout;
    }
    if (stat(file->path, &there) != 0) {
        mode_t mask = umask(0);
        umask(mask);
        if (snprintf(file->target, sizeof file->target, "%s", file->path) >= (int)sizeof file->target) {
            errno = ENAMETOOLONG;
            return NULL;
        }
        return open_temporary(file, 0666 & ~mask);
    }
    if (!S_ISREG(there.st_mode)) {
        return open_special(file->path);
    }
    if (access(file->path, W_OK) != 0 || !realpath(file->path, file->target)) {
        return NULL; /* a rename does not check that */
    }
    return open_temporary(file, there.st_mode & 0777);
}

bool oh_outfile_open(const char *name, const char *path, struct oh_outfile *file)
{
    *file = (struct oh_outfile){.path = path};
    file->stream = open_stream(file);
    if (!file->stream) {
        oh_tool_error("%s: %s: %m", name, path);
    }
    return file->stream != NULL;
}

/* Closes the stream, but stdout, and removes the temporary file or renames it. */
static bool end(struct oh_outfile *file, bool good)
{
    if (file->stream != stdout) {
        good = fclose(file->stream) == 0 && good;
    }
    if (file->temporary[0]) {
        int error = errno;
        good = good && !is_ending(file) && rename(file->temporary, file->target) == 0;
        error = good ? error : errno;
        if (!good) {
            unlink(file->temporary);
        }
        sigprocmask(SIG_SETMASK, &file->before, NULL);
        errno = error;
    }
    file->stream = NULL;
    return good;
}

bool oh_outfile_commit(const char *name, struct oh_outfile *file)
{
    if (!file->stream) {
        return true;
    }
    errno = 0;
    bool good =
        fflush(file->stream) == 0 && !ferror(file->stream) && (!file->temporary[0] || fsync(fileno(file->stream)) == 0);
    int error = errno;
    good = end(file, good);
    if (!good && !(file->temporary[0] && is_ending(file))) {
        errno = error ? error : errno ? errno : EIO;
        oh_tool_error("%s: %s: %m", name, strcmp(file->path, "-") ? file->path : "stdout");
    }
    return good;
}

void oh_outfile_drop(struct oh_outfile *file)
{
    if (file->stream) {
        end(file, false);
    }
}
