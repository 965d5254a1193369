/* SPDX-License-Identifier: MIT */
/*
 * outfile.c - a temporary file beside the place, and a rename
 *
 * Does: Opens, commits and drops files; holds signals meanwhile.
 * Threads: one.
 * Owns: the temporary files, and the mask of signals before they were held.
 */
#include "tools/shared/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/shared/tool.h"
#include "util/scope.h"

static struct oh_outfile *open_files;
static pid_t owner;           /* of these */
static sigset_t held, before; /* signals; the mask before they were held */
static int holds;

/* --- signals ---------------------------------------------------------------------------------------------------- */

void oh_signals_hold(void)
{
    static const int ending[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    if (holds++ > 0) {
        return;
    }
    sigemptyset(&held);
    for (size_t i = 0; i < sizeof ending / sizeof *ending; i++) {
        struct sigaction action;
        if (sigaction(ending[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) { /* as nohup wants it */
            sigaddset(&held, ending[i]);
        }
    }
    sigprocmask(SIG_BLOCK, &held, &before);
}

void oh_signals_release(void)
{
    if (--holds == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
    }
}

int oh_signals_wait(struct timespec time)
{
    int number = sigtimedwait(&held, NULL, &time);
    return number > 0 ? number : 0;
}

static bool has_signal(void)
{
    sigset_t waiting, both;
    sigpending(&waiting);
    sigandset(&both, &waiting, &held);
    return !sigisemptyset(&both);
}

/* In the process that has opened them: a fork of it has other work. */
static void drop_all(void)
{
    while (open_files && getpid() == owner) {
        oh_outfile_drop(open_files);
    }
}

void oh_signals_end_by(int number)
{
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    fflush(NULL);
    drop_all();
    signal(number, SIG_DFL);
    raise(number);
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    _exit(128 + number); /* not reached: the signal's default is to end the process */
}

/* --- the file --------------------------------------------------------------------------------------------------- */

/* All return a descriptor, or -1 with errno. */

static int open_temporary(struct oh_outfile *file, mode_t mode)
{
    if (snprintf(file->temporary, sizeof file->temporary, "%s.XXXXXX", file->target) >= (int)sizeof file->temporary) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = mkostemp(file->temporary, O_CLOEXEC);
    if (fd >= 0) {
        fchmod(fd, mode);
    }
    return fd;
}

/*
 * A pipe may have no reader yet: a signal ends the wait for it. A write of no bytes to a device that holds no more, as
 * /dev/full, fails now, and not when the work is done.
 */
static int open_special(const char *path, bool is_pipe)
{
    int fd;
    while ((fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK)) < 0 && is_pipe && errno == ENXIO) {
        const int number = oh_signals_wait((struct timespec){0, 50000000});
        if (number > 0) {
            oh_signals_end_by(number);
        }
    }
    if (fd >= 0) {
        fcntl(fd, F_SETFL, 0);
    }
    if (fd >= 0 && write(fd, "", 0) < 0) {
        OH_KEEP_ERRNO();
        close(fd);
        return -1;
    }
    return fd;
}

static int open_new(struct oh_outfile *file)
{
    const char *slash = strrchr(file->path, '/'), *name = slash ? slash + 1 : file->path;
    char *folder = slash ? strndupa(file->path, (size_t)(name - file->path)) : ".", real[PATH_MAX];
    mode_t mask = umask(0);
    umask(mask);
    if (!realpath(folder, real)) {
        return -1;
    }
    if (snprintf(file->target, sizeof file->target, "%s/%s", real, name) >= (int)sizeof file->target) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return open_temporary(file, 0666 & ~mask);
}

static bool is_one_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static int open_file(struct oh_outfile *file)
{
    struct stat there, out;
    if (strcmp(file->path, "-") == 0) {
        return fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    }
    if (stat(file->path, &there) != 0) {
        return open_new(file);
    }
    if (!S_ISREG(there.st_mode)) {
        return open_special(file->path, S_ISFIFO(there.st_mode));
    }
    if (fstat(STDOUT_FILENO, &out) == 0 && is_one_file(&there, &out)) {
        return fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0); /* a rename would take what stdout has got */
    }
    if (access(file->path, W_OK) != 0 || !realpath(file->path, file->target)) {
        return -1; /* a rename does not check that */
    }
    return open_temporary(file, there.st_mode & 0777);
}

static const char *name_of(const struct oh_outfile *file)
{
    return strcmp(file->path, "-") ? file->path : "stdout";
}

/* Ends the command because of the file. */
static _Noreturn void fail(const struct oh_outfile *file)
{
    OH_TOOL_FAIL("%s: %m", name_of(file));
}

/* Whether one would replace what is written to the other, or mix with it. A device, as /dev/null, takes both. */
static bool is_same(const struct oh_outfile *a, const struct oh_outfile *b)
{
    struct stat x, y;
    if (a->temporary[0] || b->temporary[0]) {
        return strcmp(a->target, b->target) == 0;
    }
    return fstat(fileno(a->stream), &x) == 0 && fstat(fileno(b->stream), &y) == 0 && is_one_file(&x, &y) &&
           !S_ISCHR(x.st_mode);
}

void oh_outfile_open(const char *path, struct oh_outfile *file)
{
    *file = (struct oh_outfile){.path = path, .next = open_files};
    if (!owner) {
        owner = getpid();
        atexit(drop_all);
    }
    oh_signals_hold();
    int fd = open_file(file);
    file->stream = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file->stream) {
        fail(file);
    }
    open_files = file;
    for (const struct oh_outfile *other = file->next; other; other = other->next) {
        if (is_same(file, other)) {
            OH_TOOL_REFUSE("%s: the same file as %s; expected another", name_of(file), name_of(other));
        }
    }
}

void oh_outfile_drop(struct oh_outfile *file)
{
    if (!file->stream) {
        return;
    }
    struct oh_outfile **at = &open_files;
    while (*at != file) {
        at = &(*at)->next;
    }
    *at = file->next;
    fclose(file->stream);
    file->stream = NULL;
    if (file->temporary[0]) {
        unlink(file->temporary); /* fails if it has been renamed */
    }
    oh_signals_release();
}

void oh_outfile_commit(struct oh_outfile *file)
{
    if (!file->stream) {
        return;
    }
    bool good = fflush(file->stream) == 0 && !ferror(file->stream);
    if (file->temporary[0]) {
        good = good && fsync(fileno(file->stream)) == 0 && (has_signal() || rename(file->temporary, file->target) == 0);
    }
    if (!good) {
        fail(file); /* which drops it */
    }
    oh_outfile_drop(file);
}
