/* SPDX-License-Identifier: MIT */
/*
 * process.c - whether another process has ended
 *
 * Does: Watches processes by pidfd, or by /proc; the start time tells a reused pid. A descriptor that has signalled
 *    once, or that the application has closed, is not used again.
 * Threads: the monitor's; the list is guarded by its mutex.
 * Owns: a descriptor for each watched process.
 */
#include "util/process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/scope.h"

#ifndef SYS_pidfd_open /* the same number on every architecture */
#define SYS_pidfd_open 434
#endif

#define POLLED_MAX 64 /* processes whose end interrupts oh_processes_wait() */

static struct oh_process *processes;

/* Reads the begin of a file as a text. Returns its length, or -1 and errno. */
static ssize_t read_text(const char *path, char *text_p, size_t size)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t length = fd >= 0 ? read(fd, text_p, size - 1) : -1;
    text_p[length > 0 ? length : 0] = '\0';
    if (fd >= 0) {
        close(fd);
    }
    return length;
}

/*
 * Reads what the kernel adds to start times that this process reads, in ticks: the offset of its time namespace (Linux
 * 5.6). So ranks in several namespaces agree on a start time. Undocumented in proc(5); fs/proc/array.c,
 * timens_add_boottime_ns. Returns false if the offset is unknown: a start time without the offset belongs to no
 * process.
 */
static bool read_namespace_ticks(uint64_t *ticks_p)
{
    char text[256];
    long long seconds = 0;
    if (read_text("/proc/self/timens_offsets", text, sizeof text) < 0 && errno != ENOENT && errno != EACCES &&
        errno != EPERM) {
        return false;
    }
    const char *boot = strstr(text, "boottime");
    const bool has_offset = boot && sscanf(boot, "boottime %lld", &seconds) == 1;
    *ticks_p = has_offset ? (uint64_t)(seconds * sysconf(_SC_CLK_TCK)) : 0;
    return true;
}

/* A zombie with several threads is a process of which only the first thread has ended. */
static bool read_stat(int32_t pid, bool *dead_p, uint64_t *start_p)
{
    char path[32], text[1024], state;
    long threads;
    uint64_t start, offset;
    snprintf(path, sizeof path, "/proc/%" PRId32 "/stat", pid);
    read_text(path, text, sizeof text);
    /* The name in brackets may hold anything. State is field 3, threads 20, start 22 (proc(5)). */
    const char *rest = strrchr(text, ')');
    if (!rest ||
        sscanf(rest + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld %*s %" SCNu64, &state,
               &threads, &start) != 3 ||
        !read_namespace_ticks(&offset)) {
        return false;
    }
    *start_p = start - offset;
    *dead_p = (state == 'Z' || state == 'X') && threads <= 1;
    return true;
}

uint64_t oh_process_start_time(int32_t pid)
{
    bool dead;
    uint64_t start;
    return read_stat(pid, &dead, &start) ? start : 0;
}

bool oh_process_has_ended(int32_t pid, uint64_t start)
{
    bool dead;
    uint64_t now;
    OH_KEEP_ERRNO();
    return (kill(pid, 0) != 0 && errno == ESRCH) ||
           (read_stat(pid, &dead, &now) && (dead || (start != 0 && now != start)));
}

/* The application may have closed the descriptor, and opened another file under its number. */
static bool is_pidfd(int fd)
{
    char path[40], target[40] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return readlink(path, target, sizeof target - 1) > 0 && strstr(target, "pidfd");
}

static void drop_descriptor(struct oh_process *process)
{
    if (process->fd >= 0 && is_pidfd(process->fd)) {
        close(process->fd);
    }
    process->fd = -1;
}

void oh_processes_poll(void)
{
    for (struct oh_process *process = processes; process; process = process->next) {
        struct pollfd look = {.fd = process->fd, .events = POLLIN};
        if (!process->ended && (process->fd < 0 || poll(&look, 1, 0) != 0)) {
            process->ended = oh_process_has_ended(process->pid, process->start);
            drop_descriptor(process);
        }
    }
}

void oh_processes_wait(pthread_mutex_t *mutex, int timeout_ms)
{
    struct pollfd look[POLLED_MAX];
    nfds_t count = 0;
    for (const struct oh_process *process = processes; process && count < POLLED_MAX; process = process->next) {
        look[count++] = (struct pollfd){.fd = process->fd, .events = POLLIN}; /* poll(2) ignores -1 */
    }
    pthread_mutex_unlock(mutex);
    poll(look, count, timeout_ms);
    pthread_mutex_lock(mutex);
}

struct oh_process *oh_process_watch(int32_t pid, uint64_t start)
{
    struct oh_process *process = processes;
    while (process && (process->pid != pid || process->start != start)) {
        process = process->next;
    }
    if (!process) {
        process = malloc(sizeof *process);
        if (!process) {
            return NULL;
        }
        *process = (struct oh_process){.next = processes, .pid = pid, .start = start};
        processes = process;
        process->fd = (int)syscall(SYS_pidfd_open, pid, 0);
        process->ended = oh_process_has_ended(pid, start); /* before the descriptor was taken */
        if (process->ended) {
            drop_descriptor(process);
        }
    }
    process->users++;
    return process;
}

void oh_process_unwatch(struct oh_process *process)
{
    struct oh_process **link = &processes;
    if (--process->users > 0) {
        return;
    }
    while (*link != process) {
        link = &(*link)->next;
    }
    *link = process->next;
    drop_descriptor(process);
    free(process);
}
