/* SPDX-License-Identifier: MIT */
#include "util/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "util/env.h"

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

static void write_line(const char *line, size_t length)
{
    while (length > 0) {
        ssize_t written = write(STDERR_FILENO, line, length);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return; /* nowhere to complain */
        }
        line += written;
        length -= (size_t)written;
    }
}

static void write_formatted(const char *tag, const char *format, va_list args)
{
    char line[LINE_MAX_BYTES];
    char host[65] = "";
    int saved = errno;

    gethostname(host, sizeof host - 1);
    int head = snprintf(line, sizeof line, "onehop: %s:%d %s ", host, (int)getpid(), tag);
    errno = saved; /* for %m */
    int text = vsnprintf(line + head, sizeof line - (size_t)head, format, args);
    size_t length = (size_t)head + (size_t)(text > 0 ? text : 0);
    if (length > sizeof line - 2) {
        length = sizeof line - 2;
    }
    line[length] = '\n';
    write_line(line, length + 1);
    errno = saved;
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
