/* SPDX-License-Identifier: MIT */
/*
 * describe.c - state and counters of communicators: for the public API, the live page, and the statistics at their end
 *
 * Does: Describes a communicator and the process, and writes what ONEHOP_STATS and ONEHOP_STATS_FILE ask for.
 * Threads: any; a communicator's facts are read under its attach mutex.
 * Owns: the counters of calls on unknown communicators.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/stats/record.h"
#include "comm/comm_internal.h"
#include "util/env.h"
#include "util/log.h"
#include "util/output.h"
#include "util/scope.h"

/* Calls on communicators that onehop does not follow. */
static atomic_uint_fast64_t unknown_calls;

void oh_stats_count_unknown(void)
{
    const uint64_t before = atomic_fetch_add_explicit(&unknown_calls, 1, memory_order_relaxed);
    if (before == 0 && oh_env_flag(OH_ENV_INVARIANT, false)) {
        OH_WARN("not invariant: NCCL executes the allreduces of a communicator that onehop does not know: it was %s",
                OH_STRANGE_REASON);
    }
}

static atomic_bool expecting;

void oh_stats_expect_calls(bool expects)
{
    atomic_store(&expecting, expects);
}

/* --- one communicator ------------------------------------------------------------------------------------------- */

/* What is shown of each state, and the reason why the communicator is not served; NULL: comm->attach.reason. */
static const struct {
    enum oh_state shown;
    const char *reason;
} views[] = {
    [OH_COMM_CREATING] = {OH_STATE_IDLE, "no call that onehop could serve was made"},
    [OH_COMM_IDLE] = {OH_STATE_IDLE, "no call that onehop could serve was made"},
    [OH_COMM_ATTACHING] = {OH_STATE_ATTACHING, OH_PENDING_REASON},
    [OH_COMM_CUTOVER] = {OH_STATE_ATTACHING, OH_PENDING_REASON},
    [OH_COMM_SERVED] = {OH_STATE_SERVED, ""},
    [OH_COMM_FAILING] = {OH_STATE_ENDED, ""},
    [OH_COMM_FAILED] = {OH_STATE_FAILED, "it has failed: its calls return an error"},
    [OH_COMM_FALLBACK] = {OH_STATE_FALLBACK, NULL},
    [OH_COMM_ENDED] = {OH_STATE_ENDED, NULL},
};

/* All but the counters. With the mutex held. */
static struct oh_stats_record facts_of(const struct oh_comm *comm)
{
    const enum oh_comm_state state = oh_comm_state(comm);
    struct oh_stats_record record = {
        .pid = (uint64_t)getpid(),
        .comm = comm->id.key.word[0],
        .rank = comm->id.rank,
        .nranks = comm->id.nranks,
        .state = views[state].shown,
        .memory = comm->attach.voted ? oh_staging_bytes(&comm->staging) : 0,
        .attach_us = (uint64_t)(comm->attach.ms * 1000),
        .differing = atomic_load(&comm->verify.reported),
        .invariant = comm->id.config.invariant,
    };
    snprintf(record.reason, sizeof record.reason, "%s",
             views[state].reason ? views[state].reason : comm->attach.reason);
    return record;
}

void oh_comm_publish_facts(struct oh_comm *comm)
{
    const struct oh_stats_record record = facts_of(comm);
    oh_live_update(&comm->live, &record);
}

/* A set-up in the background may just be ending. At the end of the process also without the mutex: this only reads. */
static struct oh_stats_record record_of(struct oh_comm *comm)
{
    OH_LOCK(&comm->attach.mutex);
    struct oh_stats_record record = facts_of(comm);
    oh_stats_copy(oh_comm_counters(comm), &record);
    return record;
}

_Static_assert(ONEHOP_ALGORITHM_COUNT <= ONEHOP_MAX_ALGORITHMS && OH_FALLBACK_COUNT <= ONEHOP_MAX_FALLBACKS &&
                   ONEHOP_COLLECTIVE_COUNT <= ONEHOP_MAX_COLLECTIVES,
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
    memcpy(info_p->calls_by_collective, record.collectives, sizeof record.collectives);
}

/* --- all of the process ----------------------------------------------------------------------------------------- */

struct totals {
    struct oh_stats_record sum;
    int communicators, served;
};

static void add_comm(struct oh_comm *comm, void *user)
{
    struct totals *totals = user;
    const struct oh_stats_record record = record_of(comm);
    oh_stats_add(&totals->sum, &record);
    totals->communicators++;
    totals->served += record.state == OH_STATE_SERVED;
}

void oh_comms_describe(onehop_process_info_t *info_p)
{
    struct oh_stats_record later;
    struct totals totals;
    uint64_t ended;
    do { /* a communicator that ends meanwhile is in neither sum */
        totals = (struct totals){.communicators = 0};
        ended = oh_live_ended_totals(&totals.sum);
        oh_registry_visit(add_comm, &totals);
    } while (ended != oh_live_ended_totals(&later));
    *info_p = (onehop_process_info_t){
        .communicators = totals.communicators,
        .served_communicators = totals.served,
        .ended_communicators = ended,
        .served_calls = oh_stats_served(&totals.sum),
        .fallback_calls = oh_stats_fallbacks(&totals.sum),
        .unknown_calls = atomic_load(&unknown_calls),
        .bytes = totals.sum.bytes,
        .staging_bytes = totals.sum.memory,
        .fallback_bytes = totals.sum.fallback_bytes,
    };
    memcpy(info_p->calls_by_algorithm, totals.sum.calls, sizeof totals.sum.calls);
    memcpy(info_p->fallback_by_reason, totals.sum.fallbacks, sizeof totals.sum.fallbacks);
    memcpy(info_p->calls_by_collective, totals.sum.collectives, sizeof totals.sum.collectives);
}

/* --- at the end ------------------------------------------------------------------------------------------------- */

/* What ONEHOP_STATS asks for, or ONEHOP_STATS_FILE. */
struct destination {
    bool wanted;
    bool json;
    bool exists; /* `onehop run` has made the file: a process that ends after the reader finds none, and makes none */
    const char *path; /* NULL: where the log goes */
    const char *variable;
};

static struct destination get_file(void)
{
    const char *path = oh_env_path(OH_ENV_STATS_FILE, NULL);
    return (struct destination){
        .wanted = path != NULL, .json = true, .exists = true, .path = path, .variable = "ONEHOP_STATS_FILE"};
}

/* "0", "1", or "text" or "json", with a colon and a path or without. */
static struct destination get_destination(void)
{
    const char *text = oh_env_text(OH_ENV_STATS);
    struct destination destination = {.wanted = text && strcmp(text, "0") != 0, .variable = "ONEHOP_STATS"};
    if (!destination.wanted || strcmp(text, "1") == 0) {
        return destination;
    }
    destination.json = strncasecmp(text, "json", 4) == 0;
    const bool known = destination.json || strncasecmp(text, "text", 4) == 0;
    destination.path = known && text[4] == ':' ? text + 5 : NULL;
    if (!known || (destination.path ? !oh_env_is_path(destination.path) : text[4] != '\0')) {
        oh_env_reject(OH_ENV_STATS);
        destination.wanted = false;
    }
    return destination;
}

/* One write, so that processes do not mix. */
static void give_out(const struct destination *destination, const struct oh_stats_record *record)
{
    char line[OH_STATS_LINE];
    const size_t length = destination->json ? oh_stats_json(record, line) : oh_stats_text(record, line);
    const int fd = destination->path ? oh_output_open(destination->path, destination->exists ? 0 : O_CREAT) : -1;
    line[length] = '\n'; /* in the place of the final zero */
    if (fd >= 0) {
        if (!oh_output_write(fd, line, length + 1)) {
            OH_WARN("%s: %s cannot be written: %m", destination->variable, destination->path);
        }
        close(fd);
    } else if (!destination->path && destination->json) {
        oh_log_raw(line, length + 1);
    } else if (!destination->path) {
        oh_log_write(NULL, "stats:", "%.*s", (int)length, line); /* whatever the level: the user has asked for it */
    } else {
        OH_WARN("%s: %s cannot be opened: %m", destination->variable, destination->path);
    }
}

void oh_comm_print_stats(struct oh_comm *comm)
{
    OH_KEEP_ERRNO();
    if (atomic_exchange(&comm->live.printed, true)) {
        return; /* at exit(): a destructor of another library ends the communicator afterwards */
    }
    const struct destination destinations[] = {get_file(), get_destination()};
    for (int i = 0; i < 2; i++) {
        if (destinations[i].wanted) {
            const struct oh_stats_record record = record_of(comm);
            give_out(&destinations[i], &record);
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

void oh_stats_print_process(void)
{
    const struct destination file = get_file();
    struct oh_stats_record record = {.pid = (uint64_t)getpid(),
                                     .state = OH_STATE_FALLBACK,
                                     .fallbacks = {[OH_FALLBACK_COMM] = atomic_load(&unknown_calls)},
                                     .invariant = oh_env_flag(OH_ENV_INVARIANT, false),
                                     .reason = OH_STRANGE_REASON};
    const bool all_known = record.fallbacks[OH_FALLBACK_COMM] == 0;
    if (all_known) {
        record =
            (struct oh_stats_record){.pid = record.pid, .state = OH_STATE_UNREACHED, .reason = OH_UNREACHED_REASON};
    }
    if (file.wanted && (!all_known || is_passed_by())) {
        give_out(&file, &record);
    }
}
