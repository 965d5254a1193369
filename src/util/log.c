/* SPDX-License-Identifier: MIT */
/*
 * log.c - the log, texts, and files that the user names
 *
 * Does: Writes a line in one write, at the level of ONEHOP_DEBUG, to where ONEHOP_DEBUG_FILE says. Opens files by
 *    patterns.
 * Threads: any; atomics.
 * Owns: nothing.
 */
#include "util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/env.h"

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

/* --- files that the user names ------------------------------------------------------------------------------------ */

void oh_output_expand(const char *pattern, char *path_p)
{
    char host[65] = "";
    size_t used = 0;
    gethostname(host, sizeof host - 1);
    host[strcspn(host, "./")] = '\0';
    for (const char *at = pattern; *at && used < OH_OUTPUT_PATH - 1; at++) {
        char *to = path_p + used;
        const size_t room = OH_OUTPUT_PATH - used;
        if (at[0] == '%' && at[1] == 'h') {
            used += (size_t)snprintf(to, room, "%s", host);
        } else if (at[0] == '%' && at[1] == 'p') {
            used += (size_t)snprintf(to, room, "%d", (int)getpid());
        } else {
            path_p[used++] = *at;
        }
        at += at[0] == '%' && (at[1] == 'h' || at[1] == 'p' || at[1] == '%');
    }
    path_p[used < OH_OUTPUT_PATH ? used : OH_OUTPUT_PATH - 1] = '\0';
}

int oh_output_open(const char *pattern, int create)
{
    char path[OH_OUTPUT_PATH];
    struct stat status;
    oh_output_expand(pattern, path);
    /* O_NONBLOCK: a pipe without a reader must not hold the application up. */
    int fd = open(path, O_WRONLY | O_APPEND | create | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK, 0600);
    if (fd < 0) {
        return -1;
    }
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid() || status.st_nlink != 1) {
        close(fd);
        errno = EPERM;
        return -1;
    }
    return fd;
}

/* Takes back the signal of a write that has failed, unless one was pending before. */
static void take_back(int signal, const sigset_t *pending)
{
    static const struct timespec now = {0, 0};
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    if (!sigismember(pending, signal)) {
        sigtimedwait(&one, NULL, &now);
    }
}

/*
 * A pipe without a reader, or a limit on the size of files, must not end the program: SIGPIPE and SIGXFSZ are held
 * meanwhile. A write's signal is its thread's. The program's handlers and mask stay as they are.
 */
bool oh_output_write(int fd, const char *text, size_t length)
{
    sigset_t held, pending, before;
    ssize_t written;
    sigemptyset(&held);
    sigaddset(&held, SIGPIPE);
    sigaddset(&held, SIGXFSZ);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &held, &before);
    do {
        written = write(fd, text, length);
        if (written > 0) {
            text += written;
            length -= (size_t)written;
        }
    } while (length > 0 && (written > 0 || (written < 0 && errno == EINTR)));
    const int error = errno;
    if (written < 0 && error == EPIPE) {
        take_back(SIGPIPE, &pending);
    } else if (written < 0 && error == EFBIG) {
        take_back(SIGXFSZ, &pending);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return length == 0;
}
