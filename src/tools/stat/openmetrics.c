/* SPDX-License-Identifier: MIT */
/*
 * stat/openmetrics.c - `onehop stat --openmetrics`
 *
 * Does: Adds up the communicators of each process and writes one sample for each process and label. TYPE and HELP name
 * the samples, with _total, as promtool and the textfile collector of node_exporter expect.
 * Threads: pure functions but for the stream.
 * Owns: nothing.
 */
#include <inttypes.h>
#include <stddef.h>

#include "plan/plan.h"
#include "tools/stat/stat.h"

/* The numbers of a process; counters include communicators that have ended. */
struct sums {
    struct oh_stats_record record;
    uint64_t states[OH_STATE_COUNT];
};

static const char *state_key(int state)
{
    return oh_state_key((uint64_t)state);
}

/* A family of samples: one for each process and key, or one for each process. */
static const struct family {
    const char *name, *type, *unit, *help;
    const char *label; /* NULL: none */
    int keys;
    const char *(*key)(int);
    size_t offset; /* of its first number in struct sums */
} families[] = {
    {"onehop_served_calls_total", "counter", NULL, "ncclAllReduce calls that onehop served.", "algorithm",
     ONEHOP_ALGORITHM_COUNT, oh_algorithm_name, offsetof(struct sums, record.calls)},
    {"onehop_served_bytes_total", "counter", "bytes", "Message bytes of the served calls.", NULL, 1, NULL,
     offsetof(struct sums, record.bytes)},
    {"onehop_fallback_calls_total", "counter", NULL, "ncclAllReduce calls that fell back to NCCL.", "reason",
     OH_FALLBACK_COUNT, oh_fallback_name, offsetof(struct sums, record.fallbacks)},
    {"onehop_fallback_bytes_total", "counter", "bytes", "Message bytes of the calls that fell back.", NULL, 1, NULL,
     offsetof(struct sums, record.fallback_bytes)},
    {"onehop_communicators", "gauge", NULL, "Communicators and ranks that exist now, by state.", "state",
     OH_STATE_COUNT, state_key, offsetof(struct sums, states)},
    {"onehop_memory_bytes", "gauge", "bytes", "GPU memory that onehop holds.", NULL, 1, NULL,
     offsetof(struct sums, record.memory)},
};

static void add_up(const struct oh_live_view *view, struct sums *sums_p)
{
    struct sums sums = {.record = view->ended_totals};
    sums.record.memory = 0;
    for (size_t i = 0; i < view->entries; i++) {
        const struct oh_stats_record *record = &view->entry[i];
        for (int a = 0; a < ONEHOP_ALGORITHM_COUNT; a++) {
            sums.record.calls[a] += record->calls[a];
        }
        for (int b = 0; b < OH_FALLBACK_COUNT; b++) {
            sums.record.fallbacks[b] += record->fallbacks[b];
        }
        sums.record.bytes += record->bytes;
        sums.record.fallback_bytes += record->fallback_bytes;
        sums.record.memory += record->memory;
        sums.states[record->state < OH_STATE_COUNT ? record->state : OH_STATE_IDLE]++;
    }
    *sums_p = sums;
}

/* A label's value; the command of a process may hold anything printable. */
static void write_label(FILE *stream, const char *name, const char *value)
{
    fprintf(stream, "%s=\"", name);
    for (; *value; value++) {
        fprintf(stream, "%s%c", *value == '"' || *value == '\\' ? "\\" : "", *value);
    }
    fputc('"', stream);
}

static void write_samples(FILE *stream, const struct family *family, const struct oh_live_view *view)
{
    struct sums sums;
    add_up(view, &sums);
    const uint64_t *number = (const uint64_t *)((const char *)&sums + family->offset);
    for (int i = 0; i < family->keys; i++) {
        fprintf(stream, "%s{pid=\"%d\",", family->name, (int)view->pid);
        write_label(stream, "command", view->command);
        if (family->label) {
            fputc(',', stream);
            write_label(stream, family->label, family->key(i));
        }
        fprintf(stream, "} %" PRIu64 "\n", number[i]);
    }
}

void oh_stat_openmetrics(FILE *stream, const struct oh_stat *stat)
{
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        const struct family *family = &families[f];
        fprintf(stream, "# TYPE %s %s\n", family->name, family->type);
        if (family->unit) {
            fprintf(stream, "# UNIT %s %s\n", family->name, family->unit);
        }
        fprintf(stream, "# HELP %s %s\n", family->name, family->help);
        for (size_t i = 0; i < stat->views; i++) {
            write_samples(stream, family, &stat->view[i]);
        }
    }
    fprintf(stream,
            "# TYPE onehop_processes gauge\n# HELP onehop_processes Processes that show communicators.\n"
            "onehop_processes %zu\n# EOF\n",
            stat->views);
}
