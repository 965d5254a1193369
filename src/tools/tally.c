/* SPDX-License-Identifier: MIT */
/*
 * tally.c - adds up the records of a program's processes
 */
#include "tools/tally.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/tool.h"

#define PLURAL(number_) ((number_) == 1 ? "" : "s")

bool oh_tally_open(struct oh_tally *tally_p)
{
    const char *folder = getenv("TMPDIR");
    struct oh_tally tally = {.records = 0};
    if (!folder || folder[0] != '/' || strlen(folder) > 150) { /* the plugin takes 200 characters */
        folder = "/tmp";
    }
    snprintf(tally.path, sizeof tally.path, "%s/onehop-stats.XXXXXX", folder);
    int fd = mkostemp(tally.path, O_CLOEXEC);
    if (fd < 0) {
        oh_tool_error("%s: %s", tally.path, strerror(errno));
        return false;
    }
    close(fd);
    if (setenv("ONEHOP_STATS_FILE", tally.path, 1) != 0) {
        oh_tool_error("ONEHOP_STATS_FILE: %s", strerror(errno));
        unlink(tally.path);
        return false;
    }
    *tally_p = tally;
    return true;
}

static void add_reason(struct oh_tally *tally, const struct oh_stats_record *record)
{
    uint64_t calls = record->fallbacks[OH_FALLBACK_COMM];
    if (!record->reason[0] && calls == 0) {
        return;
    }
    int i = 0;
    while (i < tally->reasons && strcmp(tally->reason[i].text, record->reason) != 0) {
        i++;
    }
    if (i == OH_TALLY_REASONS) {
        tally->other_calls += calls;
        return;
    }
    if (i == tally->reasons) {
        memcpy(tally->reason[i].text, record->reason, sizeof record->reason);
        tally->reasons++;
    }
    tally->reason[i].calls += calls;
    tally->reason[i].ranks++;
}

/* Pids seen so far, for the number of processes. */
struct pids {
    uint64_t *pid;
    size_t count;
};

static void add_pid(struct pids *pids, uint64_t pid)
{
    for (size_t i = 0; i < pids->count; i++) {
        if (pids->pid[i] == pid) {
            return;
        }
    }
    uint64_t *larger = realloc(pids->pid, (pids->count + 1) * sizeof *larger);
    if (larger) {
        pids->pid = larger;
        pids->pid[pids->count++] = pid;
    }
}

void oh_tally_read(struct oh_tally *tally)
{
    char line[OH_STATS_LINE];
    struct oh_stats_record record;
    struct pids pids = {NULL, 0};
    FILE *file = fopen(tally->path, "re");
    if (!file) {
        oh_tool_error("%s: %s", tally->path, strerror(errno));
        return;
    }
    while (fgets(line, sizeof line, file)) {
        if (!oh_stats_parse(line, &record)) {
            continue;
        }
        tally->records++;
        add_pid(&pids, record.pid);
        if (record.state == OH_STATE_UNREACHED) {
            tally->unreached++;
            continue;
        }
        tally->served += oh_stats_served(&record);
        tally->bytes += record.bytes;
        for (int b = 0; b < OH_FALLBACK_COUNT; b++) {
            tally->fallbacks[b] += record.fallbacks[b];
        }
        add_reason(tally, &record);
    }
    tally->processes = pids.count;
    free(pids.pid);
    fclose(file);
}

void oh_tally_close(struct oh_tally *tally)
{
    unlink(tally->path);
}

uint64_t oh_tally_back(const struct oh_tally *tally)
{
    uint64_t sum = 0;
    for (int b = 0; b < OH_FALLBACK_COUNT; b++) {
        sum += tally->fallbacks[b];
    }
    return sum;
}

static void print_unseen(const struct oh_tally *tally, FILE *stream, const char *prefix)
{
    if (tally->unreached > 0) {
        fprintf(stream, "%sin %" PRIu64 " process%s no ncclAllReduce call came to onehop: %s\n", prefix,
                tally->unreached, tally->unreached == 1 ? "" : "es", OH_UNREACHED_REASON);
    }
}

void oh_tally_print(const struct oh_tally *tally, FILE *stream, const char *prefix)
{
    uint64_t calls = tally->served + oh_tally_back(tally);
    if (tally->records == 0) {
        fprintf(stream,
                "%sno communicator was seen: onehop was in no process that made one and ended orderly; onehop doctor "
                "tells more\n",
                prefix);
        return;
    }
    print_unseen(tally, stream, prefix);
    if (tally->unreached > 0 && calls == 0) {
        return;
    }
    fprintf(stream,
            "%s%" PRIu64 " of %" PRIu64 " ncclAllReduce call%s served, %" PRIu64 " bytes, in %" PRIu64 " process%s\n",
            prefix, tally->served, calls, PLURAL(calls), tally->bytes, tally->processes,
            tally->processes == 1 ? "" : "es");
    for (int b = OH_FALLBACK_COMM + 1; b < OH_FALLBACK_COUNT; b++) {
        if (tally->fallbacks[b] > 0) {
            fprintf(stream, "%s%" PRIu64 " fallbacks: %s\n", prefix, tally->fallbacks[b], oh_fallback_text(b));
        }
    }
    for (int i = 0; i < tally->reasons; i++) {
        fprintf(stream, "%s%" PRIu64 " fallbacks: %s: %s\n", prefix, tally->reason[i].calls,
                oh_fallback_text(OH_FALLBACK_COMM),
                tally->reason[i].text[0] ? tally->reason[i].text
                                         : "its ranks had not agreed yet, or it was finalized, aborted or revoked");
    }
    if (tally->other_calls > 0) {
        fprintf(stream, "%s%" PRIu64 " fallbacks: %s: other reasons\n", prefix, tally->other_calls,
                oh_fallback_text(OH_FALLBACK_COMM));
    }
}
