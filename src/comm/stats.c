/* SPDX-License-Identifier: MIT */
/*
 * stats.c - what was served, for people and for the public API
 */
#include "comm/stats.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/comm.h"

#include "util/env.h"
#include "util/log.h"

static const struct {
    const char *key;
    const char *words;
} backs[OH_BACKS] = {
#define OH_BACK_ROW(identifier_, key_, words_) {key_, words_},
    OH_BACK_REASONS(OH_BACK_ROW)
#undef OH_BACK_ROW
};

const char *oh_back_words(int back)
{
    return back >= 0 && back < OH_BACKS ? backs[back].words : NULL;
}

/* Asks about calls that differ in one thing, so that this holds whatever is served. */
static enum oh_back why_handed_back(struct oh_comm *comm, ncclDataType_t type, ncclRedOp_t op)
{
    struct oh_call fitting = {.comm = comm, .count = oh_plan_some_count(&comm->table, type), .type = type};
    if (!atomic_load_explicit(&comm->served, memory_order_relaxed)) {
        return OH_BACK_OFF;
    }
    if (oh_call_plan(&fitting, op)) {
        return OH_BACK_SIZE;
    }
    return oh_call_plan(&fitting, ncclSum) ? OH_BACK_OP : OH_BACK_TYPE;
}

void oh_comm_count_handed_back(struct oh_comm *comm, ncclDataType_t type, ncclRedOp_t op)
{
    atomic_fetch_add_explicit(&comm->back[why_handed_back(comm, type, op)], 1, memory_order_relaxed);
}

/* Calls on communicators that onehop does not follow. */
static atomic_uint_fast64_t strange_calls;

void oh_stats_count_strange(void)
{
    atomic_fetch_add_explicit(&strange_calls, 1, memory_order_relaxed);
}

/* A set-up in the background may just be ending. */
static void copy_reason(struct oh_comm *comm, char *reason_p)
{
    pthread_mutex_lock(&comm->late.mutex);
    const char *reason = oh_comm_is_settled(comm) ? comm->reason : "its ranks have not agreed yet";
    snprintf(reason_p, OH_REASON_BYTES, "%s", reason);
    pthread_mutex_unlock(&comm->late.mutex);
}

void oh_comm_describe(struct oh_comm *comm, onehop_comm_info_t *info_p)
{
    pthread_mutex_lock(&comm->late.mutex); /* a set-up in the background may just be ending */
    *info_p = (onehop_comm_info_t){
        .served = atomic_load(&comm->served),
        .rank = (int)comm->rank,
        .nranks = (int)comm->nranks,
        .bytes = atomic_load(&comm->bytes),
        .staging_bytes = comm->late.first != 0 && comm->staging.base ? OH_STAGING_BYTES : 0,
        .setup_ms = comm->setup_ms,
    };
    pthread_mutex_unlock(&comm->late.mutex);
    copy_reason(comm, info_p->reason);
    for (int b = 0; b < OH_BACKS; b++) {
        info_p->handed_back += atomic_load(&comm->back[b]);
    }
    for (int a = 0; a < ONEHOP_ALGORITHMS; a++) {
        info_p->calls[a] = atomic_load(&comm->calls[a]);
    }
}

/* "key=number ..." for the reasons. */
static int format_backs(const uint64_t *back, char *text_p, size_t size)
{
    int used = 0;
    for (int b = 0; b < OH_BACKS; b++) {
        used += snprintf(text_p + used, size - (size_t)used, "%s%s=%" PRIu64, b > 0 ? " " : "", backs[b].key, back[b]);
    }
    return used;
}

#define RECORD_HEAD "onehop-stats 1 "

size_t oh_stats_format(const struct oh_stats_record *record, char line_p[OH_STATS_LINE])
{
    int used =
        snprintf(line_p, OH_STATS_LINE, RECORD_HEAD "pid=%d rank=%u nranks=%u served=%" PRIu64 " bytes=%" PRIu64 " ",
                 record->pid, record->rank, record->nranks, record->served, record->bytes);
    used += format_backs(record->back, line_p + used, OH_STATS_LINE - (size_t)used);
    used +=
        snprintf(line_p + used, OH_STATS_LINE - (size_t)used, " reason=%.*s\n", OH_REASON_BYTES - 1, record->reason);
    return (size_t)used;
}

/* Takes "key=number " from the start of *text_p. */
static bool take_number(const char **text_p, const char *key, uint64_t *number_p)
{
    size_t length = strlen(key);
    int used = 0;
    if (strncmp(*text_p, key, length) != 0 || (*text_p)[length] != '=' ||
        sscanf(*text_p + length, "=%" SCNu64 " %n", number_p, &used) != 1 || used == 0) {
        return false;
    }
    *text_p += length + (size_t)used;
    return true;
}

bool oh_stats_parse(const char *line, struct oh_stats_record *record_p)
{
    struct oh_stats_record record = {0};
    uint64_t pid, rank, nranks;
    if (strncmp(line, RECORD_HEAD, strlen(RECORD_HEAD)) != 0) {
        return false;
    }
    line += strlen(RECORD_HEAD);
    if (!take_number(&line, "pid", &pid) || !take_number(&line, "rank", &rank) ||
        !take_number(&line, "nranks", &nranks) || !take_number(&line, "served", &record.served) ||
        !take_number(&line, "bytes", &record.bytes)) {
        return false;
    }
    for (int b = 0; b < OH_BACKS; b++) {
        if (!take_number(&line, backs[b].key, &record.back[b])) {
            return false;
        }
    }
    if (strncmp(line, "reason=", strlen("reason=")) != 0) {
        return false;
    }
    line += strlen("reason=");
    snprintf(record.reason, sizeof record.reason, "%.*s", (int)strcspn(line, "\n"), line);
    record.pid = (int)pid;
    record.rank = (unsigned)rank;
    record.nranks = (unsigned)nranks;
    *record_p = record;
    return true;
}

/*
 * Appends the record to the file that `onehop run` has made: one write, so that processes do not mix. The file is not
 * created: a process that ends after the reader finds none, and that is all.
 */
static void append_record(const struct oh_stats_record *record, const char *path)
{
    char line[OH_STATS_LINE];
    struct stat status;
    int saved = errno;
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
    if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
        size_t length = oh_stats_format(record, line);
        if (write(fd, line, length) != (ssize_t)length) {
            OH_INFO("%s: %m", path);
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    errno = saved;
}

static struct oh_stats_record record_of(struct oh_comm *comm)
{
    struct oh_stats_record record = {
        .pid = (int)getpid(), .rank = comm->rank, .nranks = comm->nranks, .bytes = atomic_load(&comm->bytes)};
    for (int a = 0; a < ONEHOP_ALGORITHMS; a++) {
        record.served += atomic_load(&comm->calls[a]);
    }
    for (int b = 0; b < OH_BACKS; b++) {
        record.back[b] = atomic_load(&comm->back[b]);
    }
    copy_reason(comm, record.reason);
    return record;
}

void oh_comm_print_stats(struct oh_comm *comm)
{
    char calls[48 * ONEHOP_ALGORITHMS] = ""; /* a name, a number of 20 digits */
    char why[32 * OH_BACKS] = "";
    const char *path = oh_env_path(OH_ENV_STATS_FILE, NULL);
    struct oh_stats_record record = record_of(comm);
    uint64_t handed_back = 0;

    if (path) {
        append_record(&record, path);
    }
    if (!oh_env_flag(OH_ENV_STATS, false)) {
        return;
    }
    for (int a = 0, used = 0; a < ONEHOP_ALGORITHMS; a++) {
        used += snprintf(calls + used, sizeof calls - (size_t)used, "%s%s=%" PRIu64, a > 0 ? " " : "",
                         oh_algorithm_name(a), (uint64_t)atomic_load(&comm->calls[a]));
    }
    for (int b = 0; b < OH_BACKS; b++) {
        handed_back += record.back[b];
    }
    format_backs(record.back, why, sizeof why);
    oh_log_stats("rank %u nranks %u served=%" PRIu64 " (%s) handed_back=%" PRIu64 " (%s) bytes=%" PRIu64 "%s%s",
                 record.rank, record.nranks, record.served, calls, handed_back, why, record.bytes,
                 record.reason[0] ? " reason: " : "", record.reason);
}

/* In the sum of `onehop run --stats` only: with onehop off a program prints what it always did. */
static void append_strange_calls(void)
{
    const char *path = oh_env_path(OH_ENV_STATS_FILE, NULL);
    struct oh_stats_record record = {
        .pid = (int)getpid(), .back = {[OH_BACK_OFF] = atomic_load(&strange_calls)}, .reason = OH_STRANGE_REASON};
    if (path && record.back[OH_BACK_OFF] > 0) {
        append_record(&record, path);
    }
}

void oh_comms_print_stats(void)
{
    oh_registry_visit(oh_comm_print_stats);
    append_strange_calls();
}
