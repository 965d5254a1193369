/* SPDX-License-Identifier: MIT */
/*
 * record.c - statistics of a communicator as text and as JSON
 *
 * Does: Formats struct oh_stats_record.
 * Threads: pure functions.
 * Owns: nothing.
 */
#include "comm/stats/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"
#include "util/log.h"

#define ADD(line_, ...) oh_text_append((line_), OH_STATS_LINE, __VA_ARGS__)

static const struct {
    const char *key;
    const char *words;
} fallback_reasons[OH_FALLBACK_COUNT] = {
#define OH_FALLBACK_ENTRY(identifier_, key_, words_) {key_, words_},
    OH_FALLBACK_REASONS(OH_FALLBACK_ENTRY)};

static const char *const states[OH_STATE_COUNT] = {
#define OH_STATE_ENTRY(identifier_, key_) key_,
    OH_STATES(OH_STATE_ENTRY)};

const char *oh_fallback_name(int back)
{
    return back >= 0 && back < OH_FALLBACK_COUNT ? fallback_reasons[back].key : NULL;
}

const char *oh_fallback_text(int back)
{
    return back >= 0 && back < OH_FALLBACK_COUNT ? fallback_reasons[back].words : NULL;
}

const char *oh_state_key(uint64_t state)
{
    return state < OH_STATE_COUNT ? states[state] : NULL;
}

static uint64_t sum_of(const uint64_t *numbers, int count)
{
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) {
        sum += numbers[i];
    }
    return sum;
}

uint64_t oh_stats_served(const struct oh_stats_record *record)
{
    return sum_of(record->calls, ONEHOP_ALGORITHM_COUNT);
}

uint64_t oh_stats_fallbacks(const struct oh_stats_record *record)
{
    return sum_of(record->fallbacks, OH_FALLBACK_COUNT);
}

const char *oh_stats_invariant(const struct oh_stats_record *record)
{
    const bool of_unknown = record->nranks == 0 && oh_stats_fallbacks(record) > 0; /* their bytes are not counted */
    const bool is_variant = of_unknown || (record->nranks != 1 && record->nccl_allreduces > 0);
    return record->invariant == 0 ? "off" : is_variant ? "no" : "yes";
}

void oh_stats_add(struct oh_stats_record *sum, const struct oh_stats_record *record)
{
    for (int i = 0; i < OH_COUNTS; i++) {
        sum->counts[i] += record->counts[i];
    }
    sum->memory += record->memory;
    sum->differing += record->differing;
}

void oh_stats_copy(const struct oh_counters *counters, struct oh_stats_record *record_p)
{
    for (int i = 0; i < OH_COUNTS; i++) {
        record_p->counts[i] = atomic_load_explicit(&counters->counts[i], memory_order_relaxed);
    }
}

/* Each of `count` numbers with its key: key=number ... or "key":number,... */
static void add_list(char *line, bool json, int count, const char *(*key)(int), const uint64_t *numbers)
{
    for (int i = 0; i < count; i++) {
        const char *separator = i == 0 ? "" : json ? "," : " ";
        ADD(line, json ? "%s\"%s\":%" PRIu64 : "%s%s=%" PRIu64, separator, key(i), numbers[i]);
    }
}

size_t oh_stats_text(const struct oh_stats_record *record, char line_p[OH_STATS_LINE])
{
    line_p[0] = '\0';
    ADD(line_p, "rank %" PRIu64 " nranks %" PRIu64 " served=%" PRIu64 " (", record->rank, record->nranks,
        oh_stats_served(record));
    add_list(line_p, false, ONEHOP_ALGORITHM_COUNT, oh_algorithm_name, record->calls);
    ADD(line_p, ") fallback=%" PRIu64 " (", oh_stats_fallbacks(record));
    add_list(line_p, false, OH_FALLBACK_COUNT, oh_fallback_name, record->fallbacks);
    ADD(line_p, ") collectives (");
    add_list(line_p, false, ONEHOP_COLLECTIVE_COUNT, oh_collective_name, record->collectives);
    ADD(line_p, ") bytes=%" PRIu64 " fallback_bytes=%" PRIu64 " memory=%" PRIu64 " attach_us=%" PRIu64, record->bytes,
        record->fallback_bytes, record->memory, record->attach_us);
    if (record->invariant) {
        ADD(line_p, " invariant=%s", oh_stats_invariant(record));
    }
    if (record->verified > 0) {
        ADD(line_p, " verified=%" PRIu64 " differing=%" PRIu64, record->verified, record->differing);
    }
    ADD(line_p, "%s%.*s", record->reason[0] ? " reason: " : "", OH_REASON_BYTES - 1, record->reason);
    return strlen(line_p);
}

/* A string; what is not printable ASCII has been cleaned away. */
static void add_string(char *line, const char *text)
{
    ADD(line, "\"");
    for (; *text; text++) {
        ADD(line, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    }
    ADD(line, "\"");
}

size_t oh_stats_json(const struct oh_stats_record *record, char line_p[OH_STATS_LINE])
{
    char reason[OH_REASON_BYTES];
    const char *state = oh_state_key(record->state);
    line_p[0] = '\0';
    memcpy(reason, record->reason, sizeof reason);
    oh_text_clean(reason, sizeof reason);
    ADD(line_p, "{\"pid\":%" PRIu64 ",\"comm\":\"%016" PRIx64 "\",\"rank\":%" PRIu64 ",\"nranks\":%" PRIu64,
        record->pid, record->comm, record->rank, record->nranks);
    ADD(line_p, ",\"state\":\"%s\",\"served\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"served_by_algorithm\":{",
        state ? state : "unknown", oh_stats_served(record), record->bytes);
    add_list(line_p, true, ONEHOP_ALGORITHM_COUNT, oh_algorithm_name, record->calls);
    ADD(line_p, "},\"served_by_collective\":{");
    add_list(line_p, true, ONEHOP_COLLECTIVE_COUNT, oh_collective_name, record->collectives);
    ADD(line_p, "},\"fallback\":%" PRIu64 ",\"fallback_bytes\":%" PRIu64 ",\"fallback_reasons\":{",
        oh_stats_fallbacks(record), record->fallback_bytes);
    add_list(line_p, true, OH_FALLBACK_COUNT, oh_fallback_name, record->fallbacks);
    ADD(line_p, "},\"staging_bytes\":%" PRIu64 ",\"attach_us\":%" PRIu64, record->memory, record->attach_us);
    ADD(line_p, ",\"verified\":%" PRIu64 ",\"differing\":%" PRIu64, record->verified, record->differing);
    ADD(line_p, ",\"invariant\":\"%s\",\"reason\":", oh_stats_invariant(record));
    add_string(line_p, reason);
    ADD(line_p, "}");
    return strlen(line_p);
}
