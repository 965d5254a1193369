/* SPDX-License-Identifier: MIT */
/*
 * shared/stats_summary.c - the records of a program's processes, added up
 *
 * Does: Makes the file, reads it, prints the sums.
 * Threads: one.
 * Owns: the file.
 */
#include "tools/shared/stats_summary.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plan/plan.h"
#include "tools/shared/tool.h"

#define PLURAL(number_) ((number_) == 1 ? "" : "s")

bool oh_stats_summary_open(struct oh_stats_summary *tally_p)
{
    const char *folder = getenv("TMPDIR");
    struct oh_stats_summary summary = {.records = 0};
    if (!folder || folder[0] != '/' || strlen(folder) > 150) { /* the plugin takes 200 characters */
        folder = "/tmp";
    }
    snprintf(summary.path, sizeof summary.path, "%s/onehop-stats.XXXXXX", folder);
    int fd = mkostemp(summary.path, O_CLOEXEC);
    if (fd < 0) {
        oh_tool_error("%s: %s", summary.path, strerror(errno));
        return false;
    }
    close(fd);
    if (setenv("ONEHOP_STATS_FILE", summary.path, 1) != 0) {
        oh_tool_error("ONEHOP_STATS_FILE: %s", strerror(errno));
        unlink(summary.path);
        return false;
    }
    *tally_p = summary;
    return true;
}

static void add_reason(struct oh_stats_summary *summary, const struct oh_stats_record *record)
{
    uint64_t calls = record->fallbacks[OH_FALLBACK_COMM];
    if (!record->reason[0] && calls == 0) {
        return;
    }
    int i = 0;
    while (i < summary->reasons && strcmp(summary->reason[i].text, record->reason) != 0) {
        i++;
    }
    if (i == OH_MAX_SUMMARY_REASONS) {
        summary->other_calls += calls;
        return;
    }
    if (i == summary->reasons) {
        memcpy(summary->reason[i].text, record->reason, sizeof record->reason);
        summary->reasons++;
    }
    summary->reason[i].calls += calls;
    summary->reason[i].ranks++;
}

/* Adds a pid to those seen so far, unless it is among them. */
static void add_pid(uint64_t **pids, uint64_t *count, uint64_t pid)
{
    for (uint64_t i = 0; *pids && i < *count; i++) {
        if ((*pids)[i] == pid) {
            return;
        }
    }
    uint64_t *larger = realloc(*pids, (*count + 1) * sizeof *larger);
    if (larger) {
        *pids = larger;
        larger[(*count)++] = pid;
    }
}

/* The number of `key`; 0: there is none. */
static uint64_t number_of(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

/* Reads what is added up of a line of oh_stats_json(). False: the line is none, or is cut. */
static bool read_record(const char *line, struct oh_stats_record *record_p)
{
    json_t *object = json_loads(line, 0, NULL);
    const char *state = json_string_value(json_object_get(object, "state"));
    const char *reason = json_string_value(json_object_get(object, "reason"));
    const bool known = state && reason;
    if (known) {
        struct oh_stats_record record = {.pid = number_of(object, "pid"), .bytes = number_of(object, "bytes")};
        while (record.state < OH_STATE_COUNT && strcmp(oh_state_key(record.state), state) != 0) {
            record.state++;
        }
        for (int a = 0; a < ONEHOP_ALGORITHM_COUNT; a++) {
            record.calls[a] = number_of(json_object_get(object, "served_by_algorithm"), oh_algorithm_name(a));
        }
        for (int f = 0; f < OH_FALLBACK_COUNT; f++) {
            record.fallbacks[f] = number_of(json_object_get(object, "fallback_reasons"), oh_fallback_name(f));
        }
        snprintf(record.reason, sizeof record.reason, "%s", reason);
        *record_p = record;
    }
    json_decref(object);
    return known;
}

void oh_stats_summary_read(struct oh_stats_summary *summary)
{
    char line[OH_STATS_LINE];
    struct oh_stats_record record;
    uint64_t *pids = NULL;
    FILE *file = fopen(summary->path, "re");
    if (!file) {
        oh_tool_error("%s: %s", summary->path, strerror(errno));
        return;
    }
    while (fgets(line, sizeof line, file)) {
        if (!read_record(line, &record)) {
            continue;
        }
        summary->records++;
        add_pid(&pids, &summary->processes, record.pid);
        if (record.state == OH_STATE_UNREACHED) {
            summary->unreached++;
            continue;
        }
        oh_stats_add(&summary->total, &record);
        add_reason(summary, &record);
    }
    free(pids);
    fclose(file);
}

void oh_stats_summary_close(struct oh_stats_summary *summary)
{
    unlink(summary->path);
}

void oh_stats_summary_print(const struct oh_stats_summary *summary, FILE *stream, const char *prefix)
{
    uint64_t served = oh_stats_served(&summary->total), calls = served + oh_stats_fallbacks(&summary->total);
    if (summary->records == 0) {
        fprintf(stream,
                "%sno communicator was seen: onehop was in no process that made one and ended orderly; onehop doctor "
                "tells more\n",
                prefix);
        return;
    }
    if (summary->unreached > 0) {
        fprintf(stream, "%sin %" PRIu64 " process%s no ncclAllReduce call came to onehop: %s\n", prefix,
                summary->unreached, summary->unreached == 1 ? "" : "es", OH_UNREACHED_REASON);
    }
    if (summary->unreached > 0 && calls == 0) {
        return;
    }
    fprintf(stream,
            "%s%" PRIu64 " of %" PRIu64 " ncclAllReduce call%s served, %" PRIu64 " bytes, in %" PRIu64 " process%s\n",
            prefix, served, calls, PLURAL(calls), summary->total.bytes, summary->processes,
            summary->processes == 1 ? "" : "es");
    for (int b = OH_FALLBACK_COMM + 1; b < OH_FALLBACK_COUNT; b++) {
        if (summary->total.fallbacks[b] > 0) {
            fprintf(stream, "%s%" PRIu64 " fallbacks: %s\n", prefix, summary->total.fallbacks[b], oh_fallback_text(b));
        }
    }
    for (int i = 0; i < summary->reasons; i++) {
        fprintf(stream, "%s%" PRIu64 " fallbacks: %s: %s\n", prefix, summary->reason[i].calls,
                oh_fallback_text(OH_FALLBACK_COMM),
                summary->reason[i].text[0] ? summary->reason[i].text
                                           : "its ranks had not agreed yet, or it was finalized, aborted or revoked");
    }
    if (summary->other_calls > 0) {
        fprintf(stream, "%s%" PRIu64 " fallbacks: %s: other reasons\n", prefix, summary->other_calls,
                oh_fallback_text(OH_FALLBACK_COMM));
    }
}
