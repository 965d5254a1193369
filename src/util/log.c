/* SPDX-License-Identifier: MIT */
/*
 * log.c - the log
 *
 * Does: Writes a line in one write, at the level of ONEHOP_DEBUG, to where ONEHOP_DEBUG_FILE says.
 * Threads: any; atomics. One thread opens the file, others write to stderr meanwhile.
 * Owns: the log file's descriptor.
 */
#include "util/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/env.h"
#include "util/output.h"

#define LINE_MAX_BYTES 1024
#define LEVEL_UNREAD (-1)

static const char *const level_names[] = {"NONE", "WARN", "INFO", "TRACE"};

enum oh_log_level oh_log_level(void)
{
    static atomic_int level = LEVEL_UNREAD;
    int now = atomic_load_explicit(&level, memory_order_relaxed);
    if (now == LEVEL_UNREAD) {
        /* A bad ONEHOP_DEBUG is itself reported through here: that report must find a level. */
        atomic_store_explicit(&level, OH_LOG_WARN, memory_order_relaxed);
        now = oh_env_choice(OH_ENV_DEBUG, level_names, OH_LOG_TRACE + 1, OH_LOG_WARN);
        atomic_store_explicit(&level, now, memory_order_relaxed);
    }
    return (enum oh_log_level)now;
}

#define FD_UNREAD (-1)

static atomic_int log_fd = FD_UNREAD;
static dev_t log_device; /* these two are written once, before log_fd, if that is a file's */
static ino_t log_inode;

/* Opens the file that the user wants, or takes stderr. */
static int open_destination(void)
{
    const char *pattern = oh_env_path(OH_ENV_DEBUG_FILE, NULL);
    struct stat status;
    int fd = pattern ? oh_output_open(pattern) : STDERR_FILENO;
    if (fd < 0) {
        OH_WARN("ONEHOP_DEBUG_FILE=%s cannot be opened (%s); the log goes to stderr", pattern, strerror(errno));
        return STDERR_FILENO;
    }
    if (fd != STDERR_FILENO && fstat(fd, &status) == 0) {
        log_device = status.st_dev;
        log_inode = status.st_ino;
    }
    return fd;
}

/* The application may have closed it, as daemons do, and opened something else by its number. */
static bool is_still_ours(int fd)
{
    struct stat status;
    return fd == STDERR_FILENO ||
           (fstat(fd, &status) == 0 && status.st_dev == log_device && status.st_ino == log_inode);
}

/* One thread opens the file; what others say meanwhile, and what opening it gives rise to, goes to stderr. */
static int destination(void)
{
    static atomic_flag taken = ATOMIC_FLAG_INIT;
    int fd = atomic_load_explicit(&log_fd, memory_order_acquire);
    if (fd != FD_UNREAD || atomic_flag_test_and_set(&taken)) {
        return fd == FD_UNREAD ? STDERR_FILENO : fd;
    }
    fd = open_destination();
    atomic_store_explicit(&log_fd, fd, memory_order_release);
    return fd;
}

/* Puts the line together; returns its length, the newline included. */
static size_t compose(char line_p[LINE_MAX_BYTES], size_t *head_p, const char *tag, const char *format, va_list args)
{
    char host[65] = "";
    int saved = errno;

    gethostname(host, sizeof host - 1);
    int head = snprintf(line_p, LINE_MAX_BYTES, "onehop: %s:%d %s ", host, (int)getpid(), tag);
    errno = saved; /* for %m */
    int text = vsnprintf(line_p + head, LINE_MAX_BYTES - (size_t)head, format, args);
    size_t length = (size_t)head + (size_t)(text > 0 ? text : 0);
    if (length > LINE_MAX_BYTES - 2) {
        length = LINE_MAX_BYTES - 2;
    }
    line_p[length] = '\n';
    *head_p = (size_t)head;
    return length + 1;
}

void oh_log_raw(const char *line, size_t length)
{
    int saved = errno, fd = destination();
    oh_output_write(is_still_ours(fd) ? fd : STDERR_FILENO, line, length);
    errno = saved;
}

static void write_formatted(const char *tag, const char *format, va_list args)
{
    char line[LINE_MAX_BYTES];
    size_t head, length = compose(line, &head, tag, format, args);
    oh_log_raw(line, length);
}

void oh_log_write(enum oh_log_level level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_formatted(level_names[level], format, args);
    va_end(args);
}

void oh_log_stats(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_formatted("stats:", format, args);
    va_end(args);
}

/* FNV-1a; never 0. */
static uint32_t hash_of(const char *text, size_t length)
{
    uint32_t hash = 2166136261U;
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ (unsigned char)text[i]) * 16777619U;
    }
    return hash ? hash : 1;
}

/* True when the text has a new place in the list; *last_p: there is none left. */
static bool note(struct oh_log_site *place, uint32_t hash, bool *last_p)
{
    for (int i = 0; i < OH_LOG_CAUSES; i++) {
        uint32_t there = 0;
        if (atomic_compare_exchange_strong(&place->said[i], &there, hash)) {
            *last_p = i == OH_LOG_CAUSES - 1;
            return true;
        }
        if (there == hash) {
            return false;
        }
    }
    return false;
}

void oh_log_warn(struct oh_log_site *place, const char *format, ...)
{
    static const char no_more[] = " (more of this kind are not shown)\n";
    char line[LINE_MAX_BYTES];
    size_t head;
    bool last;
    va_list args;
    va_start(args, format);
    size_t length = compose(line, &head, level_names[OH_LOG_WARN], format, args);
    va_end(args);
    if (!note(place, hash_of(line + head, length - head), &last)) {
        return;
    }
    if (last && length + sizeof no_more < sizeof line) {
        memcpy(line + length - 1, no_more, sizeof no_more - 1);
        length += sizeof no_more - 2;
    }
    oh_log_raw(line, length);
}
