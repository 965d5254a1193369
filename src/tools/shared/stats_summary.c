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
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plan/plan.h"
#include "tools/shared/tool.h"

#define RESERVED_BYTES 65536 /* a hundred records */

/* A full disk is told before the program begins. Not every file system can reserve room. */
static bool reserve(int fd)
{
    return fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, RESERVED_BYTES) == 0 || (errno != ENOSPC && errno != EDQUOT);
}

void oh_stats_summary_open(struct oh_stats_summary *summary_p)
{
    const char *folder = getenv("TMPDIR");
    struct oh_stats_summary summary = {.records = 0};
    if (!folder || folder[0] != '/' || strlen(folder) > 150) { /* the plugin takes 200 characters */
        folder = "/tmp";
    }
    snprintf(summary.path, sizeof summary.path, "%s/onehop-stats.XXXXXX", folder);
    int fd = mkostemp(summary.path, O_CLOEXEC);
    if (fd < 0 || !reserve(fd) || setenv("ONEHOP_STATS_FILE", summary.path, 1) != 0) {
        oh_tool_error("%s: %m", summary.path);
        if (fd >= 0) {
            unlink(summary.path);
        }
        exit(oh_tool_failure);
    }
    close(fd);
    summary.reasons = json_object();
    *summary_p = summary;
}

/* Adds to the calls that have fallen back for a reason. */
static void add_reason(struct oh_stats_summary *summary, const char *reason, uint64_t calls)
{
    json_int_t before = json_integer_value(json_object_get(summary->reasons, reason));
    if (reason[0] || calls > 0) {
        json_object_set_new(summary->reasons, reason, json_integer(before + (json_int_t)calls));
    }
}

/* The number of `key`; 0: there is none. */
static uint64_t number_of(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

/* The first communicator that is not invariant has its reason in the summary. */
static void add_invariant(struct oh_stats_summary *summary, const char *invariant, const char *reason)
{
    const bool is_asked = strcmp(invariant, "off") != 0;
    summary->invariant += is_asked;
    if (is_asked && strcmp(invariant, "yes") != 0 && summary->variant++ == 0) {
        snprintf(summary->variant_reason, sizeof summary->variant_reason, "%s", reason);
    }
}

/* The numbers of a list's keys. */
static void read_list(const json_t *object, const char *list, int count, const char *(*key)(int), uint64_t *numbers_p)
{
    const json_t *numbers = json_object_get(object, list);
    for (int i = 0; i < count; i++) {
        numbers_p[i] = number_of(numbers, key(i));
    }
}

/* Adds a line of oh_stats_json(). The process becomes a key of pids. Returns false for a line that is cut. */
static bool add_line(struct oh_stats_summary *summary, const char *line, json_t *pids)
{
    const char *state, *reason, *invariant;
    char pid[24];
    json_t *object = json_loads(line, 0, NULL);
    const bool whole =
        json_unpack(object, "{s:s,s:s,s:s}", "state", &state, "reason", &reason, "invariant", &invariant) == 0;
    if (whole) {
        struct oh_stats_record record = {.bytes = number_of(object, "bytes"),
                                         .verified = number_of(object, "verified"),
                                         .differing = number_of(object, "differing")};
        read_list(object, "served_by_algorithm", ONEHOP_ALGORITHM_COUNT, oh_algorithm_name, record.calls);
        read_list(object, "served_by_collective", ONEHOP_COLLECTIVE_COUNT, oh_collective_name, record.collectives);
        read_list(object, "fallback_reasons", OH_FALLBACK_COUNT, oh_fallback_name, record.fallbacks);
        summary->records++;
        add_invariant(summary, invariant, reason);
        snprintf(pid, sizeof pid, "%" PRIu64, number_of(object, "pid"));
        json_object_set_new(pids, pid, json_true());
        if (strcmp(state, oh_state_key(OH_STATE_UNREACHED)) == 0) {
            summary->unreached++;
        } else {
            oh_stats_add(&summary->total, &record);
            add_reason(summary, reason, record.fallbacks[OH_FALLBACK_COMM]);
        }
    }
    json_decref(object);
    return whole;
}

void oh_stats_summary_read(struct oh_stats_summary *summary)
{
    char line[OH_STATS_LINE];
    bool cut = false;
    json_t *pids = json_object();
    FILE *file = fopen(summary->path, "re");
    while (file && fgets(line, sizeof line, file)) {
        cut |= !add_line(summary, line, pids);
    }
    if (cut) {
        oh_tool_error("%s: a record is cut, as on a full disk: calls are missing here", summary->path);
    }
    if (file) {
        fclose(file);
    } else {
        oh_tool_error("%s: %m", summary->path);
    }
    unlink(summary->path);
    summary->processes = json_object_size(pids);
    json_decref(pids);
}

void oh_stats_summary_free(struct oh_stats_summary *summary)
{
    json_decref(summary->reasons);
}

void oh_stats_summary_print(const struct oh_stats_summary *summary, FILE *stream, const char *prefix)
{
    uint64_t served = oh_stats_served(&summary->total), calls = served + oh_stats_fallbacks(&summary->total);
    const char *reason;
    json_t *fallbacks;
    if (summary->records == 0) {
        fprintf(stream,
                "%sno communicator was seen: onehop was in no process that made one and ended orderly; onehop doctor "
                "tells more\n",
                prefix);
        return;
    }
    if (summary->unreached > 0) {
        fprintf(stream, "%sin %" PRIu64 " process%s no collective call came to onehop: %s\n", prefix,
                summary->unreached, summary->unreached == 1 ? "" : "es", OH_UNREACHED_REASON);
    }
    if (summary->unreached > 0 && calls == 0) {
        return;
    }
    fprintf(stream,
            "%s%" PRIu64 " of %" PRIu64 " collective call%s served, %" PRIu64 " bytes, in %" PRIu64 " process%s\n",
            prefix, served, calls, calls == 1 ? "" : "s", summary->total.bytes, summary->processes,
            summary->processes == 1 ? "" : "es");
    for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT; c++) {
        if (summary->total.collectives[c] > 0) {
            fprintf(stream, "%s%" PRIu64 " served: %s\n", prefix, summary->total.collectives[c], oh_collective_name(c));
        }
    }
    for (int b = OH_FALLBACK_COMM + 1; b < OH_FALLBACK_COUNT; b++) {
        if (summary->total.fallbacks[b] > 0) {
            fprintf(stream, "%s%" PRIu64 " fallbacks: %s\n", prefix, summary->total.fallbacks[b], oh_fallback_text(b));
        }
    }
    json_object_foreach(summary->reasons, reason, fallbacks)
    {
        fprintf(stream, "%s%" JSON_INTEGER_FORMAT " fallbacks: %s: %s\n", prefix, json_integer_value(fallbacks),
                oh_fallback_text(OH_FALLBACK_COMM),
                reason[0] ? reason : "its ranks had not agreed yet, or it was finalized, aborted or revoked");
    }
    if (summary->total.verified > 0) {
        fprintf(stream, "%s%" PRIu64 " verified, %" PRIu64 " results differ from NCCL's\n", prefix,
                summary->total.verified, summary->total.differing);
    }
    if (summary->variant > 0) {
        fprintf(stream, "%sinvariant: no: %" PRIu64 " of %" PRIu64 " communicators and ranks had sums by NCCL%s%s\n",
                prefix, summary->variant, summary->invariant, summary->variant_reason[0] ? ": " : "",
                summary->variant_reason);
    } else if (summary->invariant > 0) {
        fprintf(stream, "%sinvariant: yes\n", prefix);
    }
}
