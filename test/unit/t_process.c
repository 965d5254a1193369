/* SPDX-License-Identifier: MIT */
/* t_process.c - the end of another process is seen, with a descriptor and without, and a number used again is not it */
#include "test/unit/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/process.h"

#define WAIT_MS 20000

static const char *no_descriptor_for; /* a path */

/* In place of the C library's. */
int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (no_descriptor_for && strcmp(path, no_descriptor_for) == 0) {
        errno = EMFILE;
        return -1;
    }
    return openat(AT_FDCWD, path, flags, mode);
}

static void bury(pid_t child, struct oh_process *process)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    oh_process_unwatch(process);
}

/* Returns how long oh_processes_wait slept. */
static uint64_t sleep_ms(int limit_ms)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    const uint64_t begin_ns = oh_now_ns();
    pthread_mutex_lock(&mutex);
    oh_processes_wait(&mutex, limit_ms);
    pthread_mutex_unlock(&mutex);
    return (oh_now_ns() - begin_ns) / 1000000;
}

static void test_end(void)
{
    pid_t child = unit_idle_child();
    struct oh_process *process = oh_process_watch(child, oh_process_start_time(child));
    struct oh_process *again = oh_process_watch(child, oh_process_start_time(child));
    tap_ok(process == again, "one entry serves two");
    oh_processes_poll();
    tap_ok(!process->ended, "a process that runs has not ended");
    tap_ok(sleep_ms(50) >= 50, "while it runs, the caller sleeps");
    const bool has_descriptor = process->fd >= 0;
    unit_kill(child);
    tap_ok(!has_descriptor || sleep_ms(WAIT_MS) < WAIT_MS, "its end interrupts the sleep");
    oh_processes_poll();
    tap_ok(process->ended && process->fd < 0, "the end is seen");
    tap_ok(sleep_ms(50) >= 50, "and interrupts once");
    bury(child, process);
    oh_process_unwatch(again);
}

/* The application closes the descriptor, and may open another file under its number. */
static void test_closed(bool replaced)
{
    pid_t child = unit_idle_child();
    struct oh_process *process = oh_process_watch(child, oh_process_start_time(child));
    const int fd = process->fd, null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        replaced ? dup2(null, fd) : close(fd);
    }
    oh_processes_poll();
    tap_ok(!process->ended && process->fd < 0, "descriptor %s: it is not used again", replaced ? "replaced" : "closed");
    unit_kill(child);
    oh_processes_poll();
    tap_ok(process->ended, "the end is seen all the same");
    bury(child, process);
    close(null);
    if (replaced && fd >= 0) {
        tap_ok(close(fd) == 0, "the application's file was left open");
    }
}

/* No descriptor is to be had, so the process is looked for. */
static void test_without_descriptor(void)
{
    struct rlimit before, none;
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = 0;
    pid_t child = unit_idle_child();
    uint64_t start = oh_process_start_time(child);
    setrlimit(RLIMIT_NOFILE, &none);
    struct oh_process *process = oh_process_watch(child, start);
    setrlimit(RLIMIT_NOFILE, &before);
    tap_ok(process->fd < 0 && !process->ended, "no descriptor: it is watched all the same");
    oh_processes_poll();
    tap_ok(!process->ended, "no descriptor: a process that runs has not ended");
    unit_kill(child);
    oh_processes_poll();
    tap_ok(process->ended, "no descriptor: the end is seen, before anyone buries it");
    bury(child, process);
}

static void *live_on(void *unused)
{
    (void)unused;
    for (;;) {
        pause();
    }
    return NULL;
}

static bool is_zombie(pid_t pid)
{
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    return strstr(text, ") Z ") != NULL;
}

/* A process is not over with its first thread. */
static void test_first_thread_ends(bool with_descriptor)
{
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        alarm(60);
        pthread_create(&thread, NULL, live_on, NULL);
        pthread_exit(NULL);
    }
    for (int i = 0; i < WAIT_MS && !is_zombie(child); i++) {
        usleep(1000);
    }
    struct oh_process *process = oh_process_watch(child, oh_process_start_time(child));
    if (!with_descriptor && process->fd >= 0) { /* as where the kernel gives none */
        close(process->fd);
        process->fd = -1;
    }
    oh_processes_poll();
    tap_ok(is_zombie(child) && !process->ended, "a process is not over with its first thread, %s a descriptor",
           with_descriptor ? "with" : "without");
    bury(child, process);
}

static void test_number_used_again(void)
{
    pid_t child = unit_idle_child();
    struct oh_process *process = oh_process_watch(child, oh_process_start_time(child) + 1);
    tap_ok(process->ended, "a process of the same number that was started at another time is not it");
    bury(child, process);
}

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

/* Looks at `pid` from a time namespace whose boot was 28 hours earlier. 0: it lives; 1: not; 2: there is none here */
static int look_from_elsewhere(pid_t pid, uint64_t start)
{
    int status = 0;
    FILE *offsets = unshare(CLONE_NEWTIME) == 0 ? fopen("/proc/self/timens_offsets", "w") : NULL;
    const bool written = offsets && fprintf(offsets, "boottime 100000 0\n") > 0;
    if (!offsets || fclose(offsets) != 0 || !written) {
        return 2;
    }
    const pid_t child = fork();
    if (child == 0) {
        const bool ended = oh_process_has_ended(pid, start);
        no_descriptor_for = "/proc/self/timens_offsets"; /* another thread may have the last descriptor meanwhile */
        _exit(ended || oh_process_has_ended(pid, start));
    }
    waitpid(child, &status, 0);
    return status != 0;
}

static void test_time_namespace(void)
{
    int status = 0;
    const pid_t self = getpid(), child = fork();
    if (child == 0) {
        _exit(look_from_elsewhere(self, oh_process_start_time(self)));
    }
    waitpid(child, &status, 0);
    const bool none = WIFEXITED(status) && WEXITSTATUS(status) == 2;
    tap_ok(status == 0 || none, "a process of another time namespace lives%s", none ? " (there is none here)" : "");
}

int main(void)
{
    tap_ok(oh_process_start_time(getpid()) > 0, "this process has a time of start");
    tap_ok(oh_process_start_time(1 << 30) == 0, "a process that is not there has none");
    test_end();
    test_closed(false);
    test_closed(true);
    test_first_thread_ends(true);
    test_first_thread_ends(false);
    test_without_descriptor();
    test_number_used_again();
    test_time_namespace();
    return tap_done();
}
