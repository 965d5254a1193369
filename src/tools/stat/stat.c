/* SPDX-License-Identifier: MIT */
/*
 * stat.c - `onehop stat`: what onehop has served in running processes
 *
 * Does: Reads the live pages, and writes them as text, JSON or OpenMetrics.
 * Threads: one.
 * Owns: the views.
 */
#include <glob.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "plan/plan.h"
#include "tools/shared/live_reader.h"
#include "tools/shared/options.h"
#include "tools/shared/outfile.h"
#include "tools/shared/tool.h"

static const char help[] = "usage: onehop stat [--pid N] [--json | --openmetrics] [--output FILE]\n"
                           "\n"
                           "Shows served calls and fallbacks of running processes: process N,\n"
                           "or all that this user may read. The processes are not stopped or slowed.\n"
                           "\n"
                           "  --pid N        process N alone\n"
                           "  --json         one line of JSON for each process (fields: doc/statistics.md)\n"
                           "  --openmetrics  counters for Prometheus, of all processes together\n"
                           "  --output FILE  write to FILE, whole or not at all\n"
                           "  -h, --help     this text\n"
                           "\n"
                           "Exit status: 0 something was shown (--openmetrics: it was written), 1 nothing\n"
                           "was, or it could not be written, 2 wrong usage.\n"
                           "\n"
                           "Example: watch onehop stat --pid 4711\n";

/* All processes that show something. */
struct views {
    struct oh_live_view *view;
    size_t count;
};

/* --- forms ------------------------------------------------------------------------------------------------------ */

static void print_json(FILE *stream, const struct oh_live_view *view)
{
    char line[OH_STATS_LINE];
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    fprintf(stream, "{\"schema\":1,\"time\":%lld.%03ld,\"pid\":%d,\"command\":\"", (long long)time.tv_sec,
            time.tv_nsec / 1000000, (int)view->pid);
    oh_tool_put_escaped(view->command, stream);
    fprintf(stream,
            "\",\"ended\":%" PRIu64 ",\"ended_served\":%" PRIu64 ",\"ended_bytes\":%" PRIu64
            ",\"ended_fallback\":%" PRIu64 ",\"communicators\":[",
            view->ended, oh_stats_served(&view->ended_totals), view->ended_totals.bytes,
            oh_stats_fallbacks(&view->ended_totals));
    for (size_t i = 0; i < view->entries; i++) {
        oh_stats_json(&view->entry[i], line);
        fprintf(stream, "%s%s", i > 0 ? "," : "", line);
    }
    fprintf(stream, "]}\n");
}

/* "key number" for those that are not 0. */
static void print_parts(FILE *stream, const char *before, int count, const char *(*key)(int), const uint64_t *numbers)
{
    for (int i = 0; i < count; i++) {
        if (numbers[i] > 0) {
            fprintf(stream, "%s%s %" PRIu64, before, key(i), numbers[i]);
            before = ", ";
        }
    }
}

static void print_comm(FILE *stream, const struct oh_stats_record *record)
{
    char rank[48];
    const char *state = oh_state_key(record->state);
    snprintf(rank, sizeof rank, "%" PRIu64 "/%" PRIu64, record->rank, record->nranks);
    fprintf(stream, "  %016" PRIx64 " %5s %-11s %9" PRIu64 " %11" PRIu64 " %14" PRIu64 " %4" PRIu64 " MiB\n",
            record->comm, rank, state ? state : "?", oh_stats_served(record), oh_stats_fallbacks(record), record->bytes,
            record->memory >> 20);
    fprintf(stream, "      attached in %.1f ms", (double)record->attach_us / 1000);
    print_parts(stream, "; served: ", ONEHOP_ALGORITHM_COUNT, oh_algorithm_name, record->calls);
    print_parts(stream, "; collectives: ", ONEHOP_COLLECTIVE_COUNT, oh_collective_name, record->collectives);
    print_parts(stream, "; fallbacks: ", OH_FALLBACK_COUNT, oh_fallback_name, record->fallbacks);
    if (record->verified > 0) {
        fprintf(stream, "; verified: %" PRIu64 ", differing: %" PRIu64, record->verified, record->differing);
    }
    fprintf(stream, "%s%s\n", record->invariant ? "; invariant: " : "",
            record->invariant ? oh_stats_invariant(record) : "");
    if (record->reason[0]) {
        fprintf(stream, "      not served: %s\n", record->reason);
    }
}

static void print_view(FILE *stream, const struct oh_live_view *view)
{
    fprintf(stream, "process %d (%s): %zu communicator%s", (int)view->pid, view->command, view->entries,
            view->entries == 1 ? "" : "s");
    if (view->ended > 0) {
        fprintf(stream, "; %" PRIu64 " ended before, which had served %" PRIu64 " calls, with %" PRIu64 " fallbacks",
                view->ended, oh_stats_served(&view->ended_totals), oh_stats_fallbacks(&view->ended_totals));
    }
    fprintf(stream, "\n");
    if (view->entries > 0) {
        fprintf(stream, "  %-16s %5s %-11s %9s %11s %14s %8s\n", "communicator", "rank", "state", "served", "fallbacks",
                "bytes", "memory");
    }
    for (size_t i = 0; i < view->entries; i++) {
        print_comm(stream, &view->entry[i]);
    }
    if (view->torn > 0) {
        fprintf(stream, "  %zu not shown: they were being changed\n", view->torn);
    }
}

/* --- OpenMetrics: TYPE and HELP name the samples, with _total, as promtool and node_exporter expect ----------- */

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
    {"onehop_served_calls_total", "counter", NULL, "Calls that onehop served.", "algorithm", ONEHOP_ALGORITHM_COUNT,
     oh_algorithm_name, offsetof(struct sums, record.calls)},
    {"onehop_served_collectives_total", "counter", NULL, "The same calls, by collective.", "collective",
     ONEHOP_COLLECTIVE_COUNT, oh_collective_name, offsetof(struct sums, record.collectives)},
    {"onehop_served_bytes_total", "counter", "bytes", "Message bytes of the served calls.", NULL, 1, NULL,
     offsetof(struct sums, record.bytes)},
    {"onehop_fallback_calls_total", "counter", NULL, "Calls of these collectives that fell back to NCCL.", "reason",
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
        oh_stats_add(&sums.record, record);
        sums.states[record->state < OH_STATE_COUNT ? record->state : OH_STATE_IDLE]++;
    }
    *sums_p = sums;
}

static void write_samples(FILE *stream, const struct family *family, const struct oh_live_view *view)
{
    struct sums sums;
    add_up(view, &sums);
    const uint64_t *number = (const uint64_t *)((const char *)&sums + family->offset);
    for (int i = 0; i < family->keys; i++) {
        fprintf(stream, "%s{pid=\"%d\",command=\"", family->name, (int)view->pid);
        oh_tool_put_escaped(view->command, stream);
        if (family->label) {
            fprintf(stream, "\",%s=\"%s", family->label, family->key(i));
        }
        fprintf(stream, "\"} %" PRIu64 "\n", number[i]);
    }
}

static void print_openmetrics(FILE *stream, const struct views *views)
{
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        const struct family *family = &families[f];
        fprintf(stream, "# TYPE %s %s\n", family->name, family->type);
        if (family->unit) {
            fprintf(stream, "# UNIT %s %s\n", family->name, family->unit);
        }
        fprintf(stream, "# HELP %s %s\n", family->name, family->help);
        for (size_t i = 0; i < views->count; i++) {
            write_samples(stream, family, &views->view[i]);
        }
    }
    fprintf(stream,
            "# TYPE onehop_processes gauge\n# HELP onehop_processes Processes that show communicators.\n"
            "onehop_processes %zu\n# EOF\n",
            views->count);
}

/* --- reading ---------------------------------------------------------------------------------------------------- */

/* Reads a process. What is not there is reported if the process was asked for. */
static void read_process(struct views *views, pid_t pid, bool asked)
{
    struct oh_live_view view;
    enum oh_live_answer answer = oh_live_read(pid, &view);
    if (answer != OH_LIVE_SEEN) {
        if (asked || answer == OH_LIVE_OTHER || answer == OH_LIVE_DAMAGED) {
            oh_tool_error("process %d %s", (int)pid, oh_live_words(answer));
        }
    } else {
        views->view = oh_tool_resize(views->view, views->count + 1, sizeof view);
        views->view[views->count++] = view;
    }
}

static void read_all(struct views *views)
{
    glob_t found;
    if (glob("/proc/[0-9]*", GLOB_NOSORT, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            read_process(views, (pid_t)strtol(found.gl_pathv[i] + strlen("/proc/"), NULL, 10), false);
        }
        globfree(&found);
    }
}

struct request {
    pid_t pid; /* 0: all */
    bool json, openmetrics;
    const char *output;
};

static void write_all(const struct request *request, const struct views *views)
{
    struct oh_outfile file;
    oh_outfile_open(request->output, &file);
    if (request->openmetrics) {
        print_openmetrics(file.stream, views);
    }
    for (size_t i = 0; i < views->count && !request->openmetrics; i++) {
        (request->json ? print_json : print_view)(file.stream, &views->view[i]);
    }
    oh_outfile_commit(&file);
}

int oh_tool_stat(int argc, char **argv)
{
    struct request request = {.output = "-"};
    struct views views = {.count = 0};
    const struct oh_option options[] = {{"pid", 0, oh_option_int, OH_RANGE(&request.pid, 1, INT_MAX)},
                                        {"json", 0, NULL, &request.json},
                                        {"openmetrics", 0, NULL, &request.openmetrics},
                                        {"output", 0, oh_option_path, &request.output},
                                        {NULL, 0, NULL, NULL}};
    oh_options_only(argc, argv, help, options);
    if (request.json && request.openmetrics) {
        OH_TOOL_REFUSE("--json and --openmetrics: expected one of them");
    }
    if (request.pid) {
        read_process(&views, request.pid, true);
    } else {
        read_all(&views);
    }
    if (views.count > 0 || request.openmetrics) {
        write_all(&request, &views);
    } else if (!request.pid) {
        OH_TOOL_FAIL("no process readable by this user has made a communicator with onehop loaded; run stat as the "
                     "program's user or as root");
    }
    bool shown = views.count > 0 || request.openmetrics;
    for (size_t i = 0; i < views.count; i++) {
        oh_live_view_free(&views.view[i]);
    }
    free(views.view);
    return shown ? OH_EXIT_OK : OH_EXIT_FAILED;
}
