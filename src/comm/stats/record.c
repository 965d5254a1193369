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
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"

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

/* Appends to a line of OH_STATS_LINE bytes, of which *used_p are used. */
static void __attribute__((format(printf, 3, 4))) add(char *line, size_t *used_p, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line + *used_p, OH_STATS_LINE - *used_p, format, args);
    va_end(args);
    *used_p += length > 0 ? (size_t)length : 0;
    *used_p = *used_p < OH_STATS_LINE ? *used_p : OH_STATS_LINE - 1;
}

/* Each of `count` numbers with its key: key=number ... or "key":number,... */
static void add_list(char *line, size_t *used_p, bool json, int count, const char *(*key)(int), const uint64_t *numbers)
{
    for (int i = 0; i < count; i++) {
        const char *separator = i == 0 ? "" : json ? "," : " ";
        add(line, used_p, json ? "%s\"%s\":%" PRIu64 : "%s%s=%" PRIu64, separator, key(i), numbers[i]);
    }
}

size_t oh_stats_text(const struct oh_stats_record *record, char line_p[OH_STATS_LINE])
{
    size_t used = 0;
    add(line_p, &used, "rank %" PRIu64 " nranks %" PRIu64 " served=%" PRIu64 " (", record->rank, record->nranks,
        oh_stats_served(record));
    add_list(line_p, &used, false, ONEHOP_ALGORITHM_COUNT, oh_algorithm_name, record->calls);
    add(line_p, &used, ") fallback=%" PRIu64 " (", oh_stats_fallbacks(record));
    add_list(line_p, &used, false, OH_FALLBACK_COUNT, oh_fallback_name, record->fallbacks);
    add(line_p, &used, ") collectives (");
    add_list(line_p, &used, false, ONEHOP_COLLECTIVE_COUNT, oh_collective_name, record->collectives);
    add(line_p, &used, ") bytes=%" PRIu64 " fallback_bytes=%" PRIu64 " memory=%" PRIu64 " attach_us=%" PRIu64,
        record->bytes, record->fallback_bytes, record->memory, record->attach_us);
    if (record->invariant) {
        add(line_p, &used, " invariant=%s", oh_stats_invariant(record));
    }
    if (record->verified > 0) {
        add(line_p, &used, " verified=%" PRIu64 " differing=%" PRIu64, record->verified, record->differing);
    }
    add(line_p, &used, "%s%.*s", record->reason[0] ? " reason: " : "", OH_REASON_BYTES - 1, record->reason);
    return used;
}

/* A string; what is not printable ASCII has been cleaned away. */
static void add_string(char *line, size_t *used_p, const char *text)
{
    add(line, used_p, "\"");
    for (; *text; text++) {
        add(line, used_p, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    }
    add(line, used_p, "\"");
}

size_t oh_stats_json(const struct oh_stats_record *record, char line_p[OH_STATS_LINE])
{
    char reason[OH_REASON_BYTES];
    const char *state = oh_state_key(record->state);
    size_t used = 0;
    memcpy(reason, record->reason, sizeof reason);
    oh_stats_clean(reason, sizeof reason);
    add(line_p, &used, "{\"pid\":%" PRIu64 ",\"comm\":\"%016" PRIx64 "\",\"rank\":%" PRIu64 ",\"nranks\":%" PRIu64,
        record->pid, record->comm, record->rank, record->nranks);
    add(line_p, &used, ",\"state\":\"%s\",\"served\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"served_by_algorithm\":{",
        state ? state : "unknown", oh_stats_served(record), record->bytes);
    add_list(line_p, &used, true, ONEHOP_ALGORITHM_COUNT, oh_algorithm_name, record->calls);
    add(line_p, &used, "},\"served_by_collective\":{");
    add_list(line_p, &used, true, ONEHOP_COLLECTIVE_COUNT, oh_collective_name, record->collectives);
    add(line_p, &used, "},\"fallback\":%" PRIu64 ",\"fallback_bytes\":%" PRIu64 ",\"fallback_reasons\":{",
        oh_stats_fallbacks(record), record->fallback_bytes);
    add_list(line_p, &used, true, OH_FALLBACK_COUNT, oh_fallback_name, record->fallbacks);
    add(line_p, &used, "},\"staging_bytes\":%" PRIu64 ",\"attach_us\":%" PRIu64, record->memory, record->attach_us);
    add(line_p, &used, ",\"verified\":%" PRIu64 ",\"differing\":%" PRIu64, record->verified, record->differing);
    add(line_p, &used, ",\"invariant\":\"%s\",\"reason\":", oh_stats_invariant(record));
    add_string(line_p, &used, reason);
    add(line_p, &used, "}");
    return used;
}

void oh_stats_clean(char *text, size_t size)
{
    text[size - 1] = '\0';
    for (char *c = text; *c; c++) {
        if (*c < ' ' || *c > '~') {
            *c = '?';
        }
    }
}
