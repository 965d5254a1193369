/* SPDX-License-Identifier: MIT */
/*
 * log.c - the log, and texts
 *
 * Does: Writes a line in one write, at the level of ONEHOP_DEBUG, to where ONEHOP_DEBUG_FILE says.
 * Threads: any; atomics.
 * Owns: nothing.
 */
#include "util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "util/env.h"
#include "util/output.h"

#define LINE_MAX_BYTES 3072 /* more than the monitor writes about eight ranks */
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

/* Opens the file for each line: a descriptor that stays open may be closed by the application, as daemons do. */
void oh_log_raw(const char *line, size_t length)
{
    const int saved = errno;
    const char *pattern = oh_env_path(OH_ENV_DEBUG_FILE, NULL);
    const int fd = pattern ? oh_output_open(pattern, O_CREAT) : STDERR_FILENO;
    const bool is_written = fd >= 0 && oh_output_write(fd, line, length);
    if (pattern && !is_written) {
        OH_WARN("ONEHOP_DEBUG_FILE=%s cannot be %s (%s); the log goes to stderr", pattern,
                fd < 0 ? "opened" : "written", strerror(errno));
        oh_output_write(STDERR_FILENO, line, length);
    }
    if (pattern && fd >= 0) {
        close(fd);
    }
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

void oh_text_append(char *text, size_t size, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

void oh_text_clean(char *text, size_t size)
{
    text[size - 1] = '\0';
    for (; *text; text++) {
        *text = *text >= ' ' && *text <= '~' ? *text : '?';
    }
}
