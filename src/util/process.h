/* SPDX-License-Identifier: MIT */
/*
 * process.h - is another process still there?
 *
 * A process is named by its number and its time of start, so that a number used again does not pass for it. The kernel
 * tells by a descriptor (pidfd, Linux 5.3) that a poller waits for; where it gives none (an older one, a filter of
 * system calls, no descriptor left), the process is looked for each time. Not thread-safe: one mutex of the user's
 * guards all functions but oh_process_start_time, and the entries.
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
    bool ended; /* as of oh_processes_look */
};

/* When a process was started, in ticks since the machine was; 0: it cannot be told. */
uint64_t oh_process_start_time(int32_t pid);

/* Watches a process; one entry serves all who watch it. poller: of epoll; -1: none. NULL: no memory. */
struct oh_process *oh_process_watch(int32_t pid, uint64_t start, int poller);
void oh_process_unwatch(struct oh_process *process, int poller);

/* Looks at all that are watched; those that have ended leave the poller. */
void oh_processes_look(int poller);

#endif
