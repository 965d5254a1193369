/* SPDX-License-Identifier: MIT */
/* t_process.c - the end of another process is seen, with a descriptor and without, and a number used again is not it.
 */
#include "test/tap.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/process.h"

#define WAIT_MS 20000

static pid_t start_child(void)
{
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        for (;;) {
            pause();
        }
    }
    return child;
}

static void bury(pid_t child)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* Not buried yet: a zombie has ended, too. */
static void kill_and_await(pid_t child)
{
    siginfo_t info;
    kill(child, SIGKILL);
    waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT);
}

static void test_end(int epoll_fd, const char *how)
{
    struct epoll_event event;
    pid_t child = start_child();
    struct oh_process *process = oh_process_watch(child, oh_process_start_time(child), epoll_fd);
    struct oh_process *again = oh_process_watch(child, oh_process_start_time(child), epoll_fd);
    tap_ok(process == again, "%s: one entry serves two", how);
    oh_processes_poll(epoll_fd);
    tap_ok(!process->ended, "%s: a process that runs has not ended", how);
    kill_and_await(child);
    if (process->fd >= 0 && epoll_fd >= 0) {
        tap_ok(epoll_wait(epoll_fd, &event, 1, WAIT_MS) == 1, "%s: the end wakes the epoll_fd", how);
    }
    oh_processes_poll(epoll_fd);
    tap_ok(process->ended && process->fd < 0, "%s: the end is seen", how);
    if (epoll_fd >= 0) {
        tap_ok(epoll_wait(epoll_fd, &event, 1, 0) == 0, "%s: the epoll_fd is woken once", how);
    }
    bury(child);
    oh_process_unwatch(process, epoll_fd);
    oh_process_unwatch(again, epoll_fd);
}

/* No descriptor is to be had, so the process is looked for. */
static void test_without_descriptor(void)
{
    struct rlimit before, none;
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = 0;
    pid_t child = start_child();
    uint64_t start = oh_process_start_time(child);
    setrlimit(RLIMIT_NOFILE, &none);
    struct oh_process *process = oh_process_watch(child, start, -1);
    setrlimit(RLIMIT_NOFILE, &before);
    tap_ok(process->fd < 0 && !process->ended, "no descriptor: it is watched all the same");
    oh_processes_poll(-1);
    tap_ok(!process->ended, "no descriptor: a process that runs has not ended");
    kill_and_await(child);
    oh_processes_poll(-1);
    tap_ok(process->ended, "no descriptor: the end is seen, before anyone buries it");
    bury(child);
    oh_process_unwatch(process, -1);
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
static void test_first_thread_ends(int epoll_fd, const char *how)
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
    struct oh_process *process = oh_process_watch(child, oh_process_start_time(child), epoll_fd);
    if (epoll_fd < 0 && process->fd >= 0) { /* as where the kernel gives none */
        close(process->fd);
        process->fd = -1;
    }
    oh_processes_poll(epoll_fd);
    tap_ok(is_zombie(child) && !process->ended, "%s: a process is not over with its first thread", how);
    bury(child);
    oh_process_unwatch(process, epoll_fd);
}

static void test_number_used_again(void)
{
    pid_t child = start_child();
    struct oh_process *process = oh_process_watch(child, oh_process_start_time(child) + 1, -1);
    tap_ok(process->ended, "a process of the same number that was started at another time is not it");
    bury(child);
    oh_process_unwatch(process, -1);
}

int main(void)
{
    tap_ok(oh_process_start_time(getpid()) > 0, "this process has a time of start");
    tap_ok(oh_process_start_time(1 << 30) == 0, "a process that is not there has none");
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    test_end(epoll_fd, "with a epoll_fd");
    test_end(-1, "without a epoll_fd");
    test_first_thread_ends(epoll_fd, "with a descriptor");
    test_first_thread_ends(-1, "without a descriptor");
    test_without_descriptor();
    test_number_used_again();
    return tap_done();
}
