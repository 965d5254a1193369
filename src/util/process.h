/* SPDX-License-Identifier: MIT */
/*
 * process.h - the end of other processes
 *
 * Does: Finds out whether a process has ended, by its pid and start time, since a pid is used again. A pidfd (Linux
 *    5.3) only wakes an epoll; without one the caller polls.
 * Threads: the first two functions: any. The others and the entries: under one mutex of the caller.
 * Owns: the entries, until their last user calls oh_process_unwatch.
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

/* Returns the start time of a process in ticks since boot; 0: unknown. */
uint64_t oh_process_start_time(int32_t pid);

/*
 * Returns whether no such process is left, or only a zombie, or one with another start time. start 0: unknown. Keeps
 * errno.
 */
bool oh_process_has_ended(int32_t pid, uint64_t start);

/* Watches a process; all who watch it share one entry. epoll_fd -1: none. Returns NULL without memory. */
struct oh_process *oh_process_watch(int32_t pid, uint64_t start, int epoll_fd);
void oh_process_unwatch(struct oh_process *process, int epoll_fd);

/* Updates `ended` of all entries. */
void oh_processes_poll(int epoll_fd);

#endif
