/* SPDX-License-Identifier: MIT */
/*
 * process.h - the end of other processes
 *
 * Does: Finds out whether a process has ended, by its pid and start time, since a pid is used again. A pidfd (Linux
 *    5.3) only interrupts oh_processes_wait; without one the caller polls.
 * Threads: the first two functions: any. The others and the entries: under one mutex of the caller.
 * Owns: the entries, until their last user calls oh_process_unwatch.
 */
#ifndef OH_UTIL_PROCESS_H_
#define OH_UTIL_PROCESS_H_

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct oh_process {
    struct oh_process *next;
    int32_t pid;
    uint64_t start; /* 0: unknown */
    unsigned users;
    int fd;     /* a pidfd; -1: none, or it has signalled */
    bool ended; /* as of oh_processes_poll */
};

/* Returns the start time of a process in ticks since boot, the same in all time namespaces; 0: unknown. */
uint64_t oh_process_start_time(int32_t pid);

/*
 * Returns whether no such process is left, or only a zombie, or one with another start time. start 0: unknown. Keeps
 * errno.
 */
bool oh_process_has_ended(int32_t pid, uint64_t start);

/* Watches a process; all who watch it share one entry. Returns NULL without memory. */
struct oh_process *oh_process_watch(int32_t pid, uint64_t start);
void oh_process_unwatch(struct oh_process *process);

/* Updates `ended` of all entries. */
void oh_processes_poll(void);

/* Sleeps without the mutex, until the time is over or a watched process ends. */
void oh_processes_wait(pthread_mutex_t *mutex, int timeout_ms);

#endif
