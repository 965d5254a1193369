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
        /* oh_env_choice logs a bad ONEHOP_DEBUG, for which this function must return a level. */
        atomic_store_explicit(&level, OH_LOG_WARN, memory_order_relaxed);
        now = oh_env_choice(OH_ENV_DEBUG, level_names, OH_LOG_TRACE + 1, OH_LOG_WARN);
        atomic_store_explicit(&level, now, memory_order_relaxed);
    }
    return (enum oh_log_level)now;
}

#define FD_UNREAD (-1)
static atomic_int log_fd = FD_UNREAD;
static dev_t log_device; /* these two: written once, before log_fd, if it is a file's */
static ino_t log_inode;

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

/* The application may have closed the descriptor, as daemons do, and opened another file under its number. */
static bool is_still_ours(int fd)
{
    struct stat status;
    return fd == STDERR_FILENO ||
           (fstat(fd, &status) == 0 && status.st_dev == log_device && status.st_ino == log_inode);
}

/* The first thread opens the file. Lines of other threads, and of this function, go to stderr meanwhile. */
static int destination(void)
{
    static atomic_flag taken = ATOMIC_FLAG_INIT;
    int fd = atomic_load_explicit(&log_fd, memory_order_acquire); /* pairs with the release store below */
    if (fd != FD_UNREAD || atomic_flag_test_and_set(&taken)) {
        return fd == FD_UNREAD ? STDERR_FILENO : fd;
    }
    fd = open_destination();
    atomic_store_explicit(&log_fd, fd, memory_order_release); /* publishes log_device and log_inode */
    return fd;
}

void oh_log_raw(const char *line, size_t length)
{
    int saved = errno, fd = destination();
    oh_output_write(is_still_ours(fd) ? fd : STDERR_FILENO, line, length);
    errno = saved;
}

/* FNV-1a; never 0. */
static uint32_t hash_of(const char *text)
{
    uint32_t hash = 2166136261U;
    for (; *text; text++) {
        hash = (hash ^ (unsigned char)*text) * 16777619U;
    }
    return hash ? hash : 1;
}

/* Returns true if the site has not had this text and has room for it; *last_p: for no other. */
static bool note(struct oh_log_site *site, uint32_t hash, bool *last_p)
{
    for (int i = 0; i < OH_LOG_CAUSES; i++) {
        uint32_t there = 0;
        if (atomic_compare_exchange_strong(&site->said[i], &there, hash)) {
            *last_p = i == OH_LOG_CAUSES - 1;
            return true;
        }
        if (there == hash) {
            return false;
        }
    }
    return false;
}

void oh_log_write(struct oh_log_site *site, const char *tag, const char *format, ...)
{
    static const char no_more[] = " (more of this kind are not shown)";
    char line[LINE_MAX_BYTES], host[65] = "";
    bool last = false;
    int saved = errno;
    va_list args;
    gethostname(host, sizeof host - 1);
    const size_t head = (size_t)snprintf(line, sizeof line, "onehop: %s:%d %s ", host, (int)getpid(), tag);
    errno = saved; /* for %m */
    va_start(args, format);
    vsnprintf(line + head, sizeof line - head - 1, format, args); /* leaves a byte for the newline */
    va_end(args);
    if (site && !note(site, hash_of(line + head), &last)) {
        return;
    }
    size_t length = strlen(line);
    if (last && length + sizeof no_more < sizeof line) {
        memcpy(line + length, no_more, sizeof no_more);
        length += sizeof no_more - 1;
    }
    line[length] = '\n';
    oh_log_raw(line, length + 1);
}
