/* SPDX-License-Identifier: MIT */
/*
 * t_log.c - where lines go, and how often a warning is given; names of files with signs in them
 */
#include "util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/unit/unit.h"
#include "util/output.h"

static char folder[] = "/tmp/onehop-log.XXXXXX";

static void name_in_folder(char *path_p, const char *name)
{
    snprintf(path_p, OH_OUTPUT_PATH, "%s/%s", folder, name);
}

static void test_names(void)
{
    char path[OH_OUTPUT_PATH], wanted[OH_OUTPUT_PATH], host[65] = "", longest[600];
    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = '\0';
    oh_output_expand("/a/%p-%h-%%-%x-%", path);
    snprintf(wanted, sizeof wanted, "/a/%d-%s-%%-%%x-%%", (int)getpid(), host);
    tap_ok(strcmp(path, wanted) == 0, "signs in a name: %s", path);
    memset(longest, '%', sizeof longest);
    memcpy(longest + sizeof longest - 3, "%p", 3);
    memset(longest, 'x', 505);
    oh_output_expand(longest, path);
    tap_ok(strlen(path) < OH_OUTPUT_PATH, "a name that is too long is cut: %zu", strlen(path));
}

static void expect_refused(bool is_made, const char *path, const char *what)
{
    int fd = oh_output_open(path, O_CREAT);
    tap_ok(is_made && fd < 0, "not opened: %s: %s", what, strerror(errno));
    if (fd >= 0) {
        close(fd);
    }
}

static void test_files(void)
{
    char path[OH_OUTPUT_PATH], other[OH_OUTPUT_PATH];
    struct stat status;
    umask(0);
    name_in_folder(path, "new");
    int fd = oh_output_open(path, O_CREAT);
    tap_ok(fd >= 0 && fstat(fd, &status) == 0 && (status.st_mode & 07777) == 0600, "a new file is the user's alone");
    tap_ok((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0 && (fcntl(fd, F_GETFL) & O_APPEND) != 0,
           "closed by exec, appended to");
    close(fd);
    name_in_folder(other, "soft");
    expect_refused(symlink("new", other) == 0, other, "a link");
    name_in_folder(other, "hard");
    expect_refused(link(path, other) == 0, path, "a file with two names");
    name_in_folder(other, "pipe");
    expect_refused(mkfifo(other, 0600) == 0, other, "a pipe without a reader");
    expect_refused(true, "/dev/null", "a device");
    expect_refused(true, folder, "a folder");
    expect_refused(true, "/nowhere/at/all", "no folder");
}

/* Descriptors that are open on a file. */
static int count_descriptors(const char *path)
{
    struct stat wanted, status;
    int count = stat(path, &wanted) != 0;
    for (int fd = 3; fd < 1000; fd++) {
        count += fstat(fd, &status) == 0 && status.st_dev == wanted.st_dev && status.st_ino == wanted.st_ino;
    }
    return count;
}

static void warn(int cause)
{
    OH_WARN("cause %d.", cause);
}

static void test_once(const char *path)
{
    for (int i = 0; i < 1000; i++) {
        warn(1);
    }
    tap_ok(unit_count_lines(path, "WARN cause 1.") == 1, "a cause is warned of once");
    for (int i = 0; i < 1000; i++) {
        warn(i);
    }
    tap_ok(unit_count_lines(path, "WARN cause ") == OH_LOG_CAUSES, "one place warns of so many causes: %d",
           unit_count_lines(path, "WARN cause "));
    tap_ok(unit_count_lines(path, "(more of this kind are not shown)") == 1 &&
               unit_count_lines(path, "cause 15. (more of this kind are not shown)") == 1,
           "and says so with the last");
    for (int i = 0; i < 3; i++) {
        OH_INFO("not warned");
    }
    tap_ok(unit_count_lines(path, "INFO not warned") == 3, "what is no warning is not held back");
    tap_ok(count_descriptors(path) == 0, "no descriptor stays open, which the application could close");
    errno = 4711;
    OH_WARN("errno");
    OH_INFO("errno");
    tap_ok(errno == 4711, "errno stays");
}

static volatile sig_atomic_t signals;

static void count_signal(int number)
{
    (void)number;
    signals++;
}

/* Writes into a pipe that has no reader. Returns whether the mask is as it was. */
static bool write_into_nothing(void)
{
    int end[2];
    sigset_t before, after;
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    if (pipe(end) != 0) {
        return false;
    }
    close(end[0]);
    oh_output_write(end[1], "lost\n", 5);
    close(end[1]);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    return sigismember(&before, SIGPIPE) == sigismember(&after, SIGPIPE);
}

static int cannot_write_into_nothing(void)
{
    return !write_into_nothing();
}

static bool is_pending(void)
{
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, SIGPIPE);
}

static void test_pipe(void)
{
    sigset_t set;
    const int status = unit_child(cannot_write_into_nothing);
    tap_ok(status == 0, "a reader that is gone does not end the program: wait status %d", status);
    signal(SIGPIPE, count_signal);
    tap_ok(write_into_nothing() && signals == 0, "and its handler is not called");
    raise(SIGPIPE);
    tap_ok(signals == 1, "the handler is still there");
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    tap_ok(write_into_nothing() && !is_pending(), "nor does a signal wait for a program that holds it");
    raise(SIGPIPE);
    tap_ok(write_into_nothing() && is_pending(), "and the program's own stays");
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    tap_ok(signals == 2, "until it takes it");
    signal(SIGPIPE, SIG_DFL);
}

/* A log that meets a limit on the size of files. */
static int write_too_much(void)
{
    char path[OH_OUTPUT_PATH];
    const struct rlimit limit = {4, 4};
    name_in_folder(path, "small");
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    setrlimit(RLIMIT_FSIZE, &limit);
    oh_output_write(fd, "much\nmore\n", 10);
    return fd < 0;
}

static void test_file_size_limit(void)
{
    const int status = unit_child(write_too_much);
    tap_ok(status == 0, "a limit on the size of files does not end the program: wait status %d", status);
}

int main(void)
{
    char path[OH_OUTPUT_PATH], pattern[OH_OUTPUT_PATH], command[OH_OUTPUT_PATH + 16];
    if (!mkdtemp(folder)) {
        return 1;
    }
    test_names();
    test_files();
    name_in_folder(pattern, "log.%p");
    oh_output_expand(pattern, path);
    setenv("ONEHOP_DEBUG", "INFO", 1);
    setenv("ONEHOP_DEBUG_FILE", pattern, 1);
    test_once(path);
    test_pipe();
    test_file_size_limit();
    snprintf(command, sizeof command, "rm -rf %s", folder);
    tap_ok(system(command) == 0, "cleaned up");
    return tap_done();
}
