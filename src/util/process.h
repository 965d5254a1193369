/* SPDX-License-Identifier: MIT */
/*
 * process.h - the end of other processes
 *
 * A process is named by its number and its time of start, so that a number used again does not pass for it. One
 * function decides: oh_process_has_ended. A descriptor (pidfd, Linux 5.3) only wakes a epoll_fd for it; without one (an
 * older Linux, a filter of system calls, no descriptor left) the function is asked each time. Threads: one mutex of the
 * user's guards all functions and the entries, but for the first two functions, which any thread may call.
 */
#ifndef OH_UTIL_PROCESS_H_
#define OH_UTIL_PROCESS_H_

#include <stdbool.h>
#include <stdint.h>

struct oh_process {
    struct oh_process *next;
    int32_t pid;
    uint64_t start; /* 0: unknown */
    unsigned users;
    int fd;     /* -1: none, or it has ended */
    bool ended; /* as of oh_processes_poll */
};

/* When a process was started, in ticks since the machine was; 0: it cannot be told. */
uint64_t oh_process_start_time(int32_t pid);

/*
 * Has it ended: no process of that number is left, or only a zombie, or one that was started at another time? start: 0,
 * if it is not known. Keeps errno.
 */
bool oh_process_has_ended(int32_t pid, uint64_t start);

/* Watches a process; one entry serves all who watch it. epoll_fd: of epoll; -1: none. NULL: no memory. */
struct oh_process *oh_process_watch(int32_t pid, uint64_t start, int epoll_fd);
void oh_process_unwatch(struct oh_process *process, int epoll_fd);

/* Looks at all that are watched; those that have ended leave the epoll_fd. */
void oh_processes_poll(int epoll_fd);

#endif
