/* SPDX-License-Identifier: MIT */
/*
 * describe.c - state and counters of communicators: for the public API, the live page, and the statistics at their end
 *
 * Does: Describes a communicator and the process, and writes what ONEHOP_STATS and ONEHOP_STATS_FILE ask for.
 * Threads: any; a communicator's facts are read under its attach mutex, sums under sum_mutex.
 * Owns: the counters of calls on unknown communicators.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/stats/live.h"
#include "comm/comm_internal.h"
#include "util/env.h"
#include "util/log.h"
#include "util/output.h"
#include "util/keep_errno.h"

/* Calls on communicators that onehop does not follow. */
static atomic_uint_fast64_t unknown_calls;

void oh_stats_count_unknown(void)
{
    atomic_fetch_add_explicit(&unknown_calls, 1, memory_order_relaxed);
}

static atomic_bool expecting;

void oh_stats_mark_plugin_loaded(void)
{
    atomic_store(&expecting, true);
}

void oh_stats_mark_reached(void)
{
    atomic_store(&expecting, false);
}

/* --- one communicator ------------------------------------------------------------------------------------------- */

/* What is shown of each state, and the reason why the communicator is not served; NULL: comm->attach.reason. */
static const struct {
    enum oh_state shown;
    const char *reason;
} views[] = {
    [OH_COMM_CREATING] = {OH_STATE_IDLE, "no allreduce that onehop could serve was made"},
    [OH_COMM_IDLE] = {OH_STATE_IDLE, "no allreduce that onehop could serve was made"},
    [OH_COMM_ATTACHING] = {OH_STATE_ATTACHING, "its ranks have not agreed yet"},
    [OH_COMM_CUTOVER] = {OH_STATE_ATTACHING, "its ranks have not agreed yet"},
    [OH_COMM_SERVED] = {OH_STATE_SERVED, ""},
    [OH_COMM_FAILING] = {OH_STATE_ENDED, ""},
    [OH_COMM_FAILED] = {OH_STATE_FAILED, "it has failed: its calls return an error"},
    [OH_COMM_FALLBACK] = {OH_STATE_FALLBACK, NULL},
    [OH_COMM_ENDED] = {OH_STATE_ENDED, ""},
};

void oh_comm_facts(const struct oh_comm *comm, struct oh_stats_record *record_p)
{
    const enum oh_comm_state state = oh_comm_state(comm);
    *record_p = (struct oh_stats_record){
        .pid = (uint64_t)getpid(),
        .comm = comm->id.key.word[0],
        .rank = comm->id.rank,
        .nranks = comm->id.nranks,
        .state = views[state].shown,
        .memory = comm->attach.voted && comm->staging.base ? OH_STAGING_BYTES : 0,
        .attach_us = (uint64_t)(comm->attach.ms * 1000),
    };
    snprintf(record_p->reason, sizeof record_p->reason, "%s",
             views[state].reason ? views[state].reason : comm->attach.reason);
}

void oh_comm_publish_facts(struct oh_comm *comm)
{
    struct oh_stats_record record;
    oh_comm_facts(comm, &record);
    oh_live_update(&comm->live, &record);
}

/* A set-up in the background may just be ending. */
static struct oh_stats_record record_of(struct oh_comm *comm)
{
    struct oh_stats_record record;
    pthread_mutex_lock(&comm->attach.mutex);
    oh_comm_facts(comm, &record);
    pthread_mutex_unlock(&comm->attach.mutex);
    oh_stats_copy(oh_comm_counters(comm), &record);
    return record;
}

_Static_assert(ONEHOP_ALGORITHM_COUNT <= ONEHOP_MAX_ALGORITHMS && OH_FALLBACK_COUNT <= ONEHOP_MAX_FALLBACKS,
               "the public API's room");

void oh_comm_describe(struct oh_comm *comm, onehop_comm_info_t *info_p)
{
    struct oh_stats_record record = record_of(comm);
    *info_p = (onehop_comm_info_t){
        .served = oh_comm_state(comm) == OH_COMM_SERVED,
        .rank = (int)record.rank,
        .nranks = (int)record.nranks,
        .fallback_calls = oh_stats_fallbacks(&record),
        .bytes = record.bytes,
        .staging_bytes = record.memory,
        .attach_ms = (double)record.attach_us / 1000,
        .fallback_bytes = record.fallback_bytes,
    };
    memcpy(info_p->reason, record.reason, sizeof info_p->reason);
    memcpy(info_p->calls_by_algorithm, record.calls, sizeof record.calls);
    memcpy(info_p->fallback_by_reason, record.fallbacks, sizeof record.fallbacks);
}

/* --- all of the process ----------------------------------------------------------------------------------------- */

/* A visitor has no argument; the registry's mutex is held while it runs, and this one around it. */
static pthread_mutex_t sum_mutex = PTHREAD_MUTEX_INITIALIZER;
static onehop_process_info_t sum;

static void add_record(const struct oh_stats_record *record)
{
    sum.served_calls += oh_stats_served(record);
    sum.bytes += record->bytes;
    sum.fallback_calls += oh_stats_fallbacks(record);
    sum.fallback_bytes += record->fallback_bytes;
    for (int a = 0; a < ONEHOP_ALGORITHM_COUNT; a++) {
        sum.calls_by_algorithm[a] += record->calls[a];
    }
    for (int b = 0; b < OH_FALLBACK_COUNT; b++) {
        sum.fallback_by_reason[b] += record->fallbacks[b];
    }
}

static void add_comm(struct oh_comm *comm)
{
    struct oh_stats_record record = record_of(comm);
    add_record(&record);
    sum.communicators++;
    sum.served_communicators += record.state == OH_STATE_SERVED;
    sum.staging_bytes += record.memory;
}

void oh_comms_describe(onehop_process_info_t *info_p)
{
    struct oh_stats_record gone;
    pthread_mutex_lock(&sum_mutex);
    sum = (onehop_process_info_t){.unknown_calls = atomic_load(&unknown_calls)};
    sum.ended_communicators = oh_live_ended_totals(&gone);
    add_record(&gone);
    oh_registry_visit(add_comm);
    *info_p = sum;
    pthread_mutex_unlock(&sum_mutex);
}

/* --- at the end ------------------------------------------------------------------------------------------------- */

/* What ONEHOP_STATS asks for. */
struct destination {
    bool wanted;
    bool json;
    const char *path; /* NULL: where the log goes */
};

/* "0", "1", or "text" or "json", with a colon and a path or without. */
static bool parse_destination(const char *text, struct destination *destination_p)
{
    if (strcmp(text, "0") == 0 || strcmp(text, "1") == 0) {
        *destination_p = (struct destination){.wanted = text[0] == '1'};
        return true;
    }
    bool json = strncasecmp(text, "json", 4) == 0;
    if (!json && strncasecmp(text, "text", 4) != 0) {
        return false;
    }
    *destination_p = (struct destination){.wanted = true, .json = json, .path = text[4] == ':' ? text + 5 : NULL};
    return destination_p->path ? oh_env_is_path(destination_p->path) : text[4] == '\0';
}

static struct destination get_destination(void)
{
    struct destination destination = {.wanted = false};
    const char *text = oh_env_text(OH_ENV_STATS);
    if (text && !parse_destination(text, &destination)) {
        oh_env_reject(OH_ENV_STATS);
        destination = (struct destination){.wanted = false};
    }
    return destination;
}

/* One write, so that processes do not mix. */
static void append_line(const char *path, const char *line, size_t length)
{
    int fd = oh_output_open(path);
    if (fd < 0) {
        OH_WARN("ONEHOP_STATS: %s cannot be opened: %m", path);
        return;
    }
    oh_output_write(fd, line, length);
    close(fd);
}

static void give_out(const struct destination *destination, const struct oh_stats_record *record)
{
    char line[OH_STATS_LINE];
    size_t length = destination->json ? oh_stats_json(record, line) : oh_stats_text(record, line);
    if (!destination->path && !destination->json) {
        oh_log_stats("%s", line);
        return;
    }
    line[length] = '\n'; /* in the place of the final zero */
    if (destination->path) {
        append_line(destination->path, line, length + 1);
    } else {
        oh_log_raw(line, length + 1);
    }
}

/*
 * Appends the record to the file that `onehop run` has made: one write, so that processes do not mix. The file is not
 * created: a process that ends after the reader finds none, and that is all.
 */
static void append_record(const struct oh_stats_record *record, const char *path)
{
    char line[OH_STATS_LINE];
    struct stat status;
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
    if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
        const size_t length = oh_stats_json(record, line);
        line[length] = '\n'; /* in the place of the final zero */
        if (write(fd, line, length + 1) != (ssize_t)length + 1) {
            OH_INFO("%s: %m", path);
        }
    }
    if (fd >= 0) {
        close(fd);
    }
}

void oh_comm_print_stats(struct oh_comm *comm)
{
    OH_KEEP_ERRNO();
    const char *path = oh_env_path(OH_ENV_STATS_FILE, NULL);
    struct destination destination = get_destination();
    if (path || destination.wanted) {
        struct oh_stats_record record = record_of(comm);
        if (path) {
            append_record(&record, path);
        }
        if (destination.wanted) {
            give_out(&destination, &record);
        }
    }
}

/* NCCL brought onehop in, for a communicator, and no call of the program was seen: only NCCL's looks at that one. */
static bool is_passed_by(void)
{
    onehop_process_info_t info;
    if (!atomic_load(&expecting)) {
        return false;
    }
    oh_comms_describe(&info);
    return info.served_calls + info.fallback_calls + info.unknown_calls == 0;
}

/* In the sum of `onehop run --stats` only: with onehop off a program prints what it always did. */
static void append_process(const char *path)
{
    struct oh_stats_record record = {.pid = (uint64_t)getpid(),
                                     .state = OH_STATE_FALLBACK,
                                     .fallbacks = {[OH_FALLBACK_COMM] = atomic_load(&unknown_calls)},
                                     .reason = OH_STRANGE_REASON};
    if (record.fallbacks[OH_FALLBACK_COMM] > 0) {
        append_record(&record, path);
    } else if (is_passed_by()) {
        append_record(
            &(struct oh_stats_record){.pid = record.pid, .state = OH_STATE_UNREACHED, .reason = OH_UNREACHED_REASON},
            path);
    }
}

void oh_comms_print_stats(void)
{
    OH_KEEP_ERRNO();
    const char *path = oh_env_path(OH_ENV_STATS_FILE, NULL);
    oh_registry_visit(oh_comm_print_stats);
    if (path) {
        append_process(path);
    }
}
