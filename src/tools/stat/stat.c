/* SPDX-License-Identifier: MIT */
/*
 * stat.c - `onehop stat`: what onehop has served in processes that run
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "plan/plan.h"
#include "tools/shared/live_reader.h"
#include "tools/shared/json.h"
#include "tools/shared/options.h"
#include "tools/shared/tool.h"

#define WATCH_LEAST 0.1
#define WATCH_MOST 86400.0

static const char help[] = "usage: onehop stat [--pid N] [--watch SECONDS] [--json]\n"
                           "\n"
                           "Shows served calls and fallbacks of running processes: process N,\n"
                           "or all that this user may look at. The processes are not stopped or slowed.\n"
                           "\n"
                           "  --pid N          process N alone\n"
                           "  --watch SECONDS  again and again, as rates; ends when process N does\n"
                           "  --json           one line of JSON for each process (fields: doc/statistics.md)\n"
                           "  -h, --help       this text\n"
                           "\n"
                           "Exit status: 0 something was shown, 1 nothing was, 2 wrong usage.\n"
                           "\n"
                           "Example: onehop stat --pid 4711 --watch 1\n";

/* The sums of a process, for rates. */
struct totals {
    pid_t pid;
    uint64_t served, bytes, fallbacks;
};

struct request {
    pid_t pid; /* 0: all */
    double watch;
    bool json;
    double elapsed; /* since the last look; 0: this is the first */
    struct totals *before;
    size_t before_count;
    struct totals *now;
    size_t now_count, now_room;
};

static struct totals add_up(const struct oh_live_view *view)
{
    struct totals totals = {view->pid, oh_stats_served(&view->ended_totals), view->ended_totals.bytes,
                            oh_stats_fallbacks(&view->ended_totals)};
    for (size_t i = 0; i < view->entries; i++) {
        totals.served += oh_stats_served(&view->entry[i]);
        totals.bytes += view->entry[i].bytes;
        totals.fallbacks += oh_stats_fallbacks(&view->entry[i]);
    }
    return totals;
}

/* --- one process ------------------------------------------------------------------------------------------------ */

static void print_json(const struct oh_live_view *view)
{
    char line[OH_STATS_LINE];
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    printf("{\"schema\":1,\"time\":%lld.%03ld,\"pid\":%d,\"command\":", (long long)time.tv_sec, time.tv_nsec / 1000000,
           (int)view->pid);
    oh_json_print(stdout, oh_json_text(view->command), JSON_COMPACT | JSON_ENCODE_ANY);
    printf(",\"ended\":%" PRIu64 ",\"ended_served\":%" PRIu64 ",\"ended_bytes\":%" PRIu64 ",\"ended_fallback\":%" PRIu64
           ",\"communicators\":[",
           view->ended, oh_stats_served(&view->ended_totals), view->ended_totals.bytes,
           oh_stats_fallbacks(&view->ended_totals));
    for (size_t i = 0; i < view->entries; i++) {
        oh_stats_json(&view->entry[i], line);
        printf("%s%s", i > 0 ? "," : "", line);
    }
    printf("]}\n");
}

/* "key number" for those that are not 0. */
static void print_parts(const char *before, int count, const char *(*key)(int), const uint64_t *numbers)
{
    for (int i = 0; i < count; i++) {
        if (numbers[i] > 0) {
            printf("%s%s %" PRIu64, before, key(i), numbers[i]);
            before = ", ";
        }
    }
}

static void print_comm(const struct oh_stats_record *record)
{
    char rank[24];
    const char *state = oh_state_key(record->state);
    snprintf(rank, sizeof rank, "%" PRIu64 "/%" PRIu64, record->rank, record->nranks);
    printf("  %016" PRIx64 " %5s %-11s %9" PRIu64 " %11" PRIu64 " %14" PRIu64 " %4" PRIu64 " MiB\n", record->comm, rank,
           state ? state : "?", oh_stats_served(record), oh_stats_fallbacks(record), record->bytes,
           record->memory >> 20);
    printf("      attached in %.1f ms", (double)record->attach_us / 1000);
    print_parts("; served: ", ONEHOP_ALGORITHM_COUNT, oh_algorithm_name, record->calls);
    print_parts("; fallbacks: ", OH_FALLBACK_COUNT, oh_fallback_name, record->fallbacks);
    printf("\n");
    if (record->reason[0]) {
        printf("      not served: %s\n", record->reason);
    }
}

static void print_view(const struct oh_live_view *view)
{
    printf("process %d (%s): %zu communicator%s", (int)view->pid, view->command, view->entries,
           view->entries == 1 ? "" : "s");
    if (view->ended > 0) {
        printf("; %" PRIu64 " ended before, which had served %" PRIu64 " calls, with %" PRIu64 " fallbacks",
               view->ended, oh_stats_served(&view->ended_totals), oh_stats_fallbacks(&view->ended_totals));
    }
    printf("\n");
    if (view->entries > 0) {
        printf("  %-16s %5s %-11s %9s %11s %14s %8s\n", "communicator", "rank", "state", "served", "fallbacks", "bytes",
               "memory");
    }
    for (size_t i = 0; i < view->entries; i++) {
        print_comm(&view->entry[i]);
    }
    if (view->torn > 0) {
        printf("  %zu not shown: they were being changed\n", view->torn);
    }
}

/* --- rates ------------------------------------------------------------------------------------------------------ */

static const struct totals *find_totals(const struct request *request, pid_t pid)
{
    for (size_t i = 0; i < request->before_count; i++) {
        if (request->before[i].pid == pid) {
            return &request->before[i];
        }
    }
    return NULL;
}

/* Counters of a communicator that ends while they are read may be missed once. */
static double rate(uint64_t now, uint64_t before, double seconds)
{
    return now > before ? (double)(now - before) / seconds : 0;
}

static void print_rates(const struct request *request, const struct oh_live_view *view, const struct totals *now)
{
    const struct totals *before = find_totals(request, view->pid);
    if (!before) {
        print_view(view);
        return;
    }
    printf("process %d (%s): served %.0f/s, %.1f MiB/s, fallbacks %.0f/s, %zu communicator%s\n", (int)view->pid,
           view->command, rate(now->served, before->served, request->elapsed),
           rate(now->bytes, before->bytes, request->elapsed) / (1 << 20),
           rate(now->fallbacks, before->fallbacks, request->elapsed), view->entries, view->entries == 1 ? "" : "s");
}

static bool keep_totals(struct request *request, const struct totals *totals)
{
    if (request->now_count == request->now_room) {
        size_t room = request->now_room ? 2 * request->now_room : 16;
        struct totals *larger = realloc(request->now, room * sizeof *larger);
        if (!larger) {
            return false;
        }
        request->now = larger;
        request->now_room = room;
    }
    request->now[request->now_count++] = *totals;
    return true;
}

/* --- looks ------------------------------------------------------------------------------------------------------ */

static void show(struct request *request, const struct oh_live_view *view)
{
    struct totals totals = add_up(view);
    if (request->json) {
        print_json(view);
    } else if (request->watch > 0) {
        print_rates(request, view, &totals);
    } else {
        print_view(view);
    }
    keep_totals(request, &totals);
}

static bool show_process(struct request *request, pid_t pid, enum oh_live_answer *answer_p)
{
    struct oh_live_view view;
    *answer_p = oh_live_read(pid, &view);
    if (*answer_p != OH_LIVE_SEEN) {
        return false;
    }
    show(request, &view);
    oh_live_view_free(&view);
    return true;
}

/* All processes; true when one had something to show. */
static bool show_all(struct request *request)
{
    bool any = false;
    const struct dirent *entry;
    DIR *processes = opendir("/proc");
    while (processes && (entry = readdir(processes))) {
        char *end;
        long pid = strtol(entry->d_name, &end, 10);
        enum oh_live_answer answer;
        if (*end == '\0' && pid > 0 && pid <= INT32_MAX) {
            any |= show_process(request, (pid_t)pid, &answer);
            if (answer == OH_LIVE_OTHER || answer == OH_LIVE_DAMAGED) {
                oh_tool_error("stat: process %ld %s", pid, oh_live_words(answer));
            }
        }
    }
    if (processes) {
        closedir(processes);
    }
    return any;
}

/* One look; true when something was shown. `quiet`: what is not there needs no words. */
static bool look(struct request *request, bool quiet)
{
    enum oh_live_answer answer = (enum oh_live_answer)0; /* set where there is a process to ask for */
    bool any = request->pid ? show_process(request, request->pid, &answer) : show_all(request);
    if (!any && !quiet && request->pid) {
        oh_tool_error("stat: process %d %s", (int)request->pid, oh_live_words(answer));
    } else if (!any && !quiet) {
        oh_tool_error("stat: no process that this user may look at shows a communicator");
    }
    return any;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void wait_until(double time)
{
    struct timespec deadline = {(time_t)time, (long)(fmod(time, 1) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL) == EINTR) {
    }
}

static bool flushed(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return true;
    }
    oh_tool_error("stat: stdout: %s", strerror(errno));
    return false;
}

/* This look's sums become those to compare with. */
static void turn_page(struct request *request)
{
    free(request->before);
    request->before = request->now;
    request->before_count = request->now_count;
    request->now = NULL;
    request->now_count = request->now_room = 0;
}

static int watch(struct request *request)
{
    bool any = look(request, false), good = flushed();
    bool more = any;
    double last = now_s();
    while (more && good) {
        turn_page(request);
        wait_until(last + request->watch);
        double now = now_s();
        request->elapsed = now - last;
        last = now;
        more = look(request, true);
        good = flushed();
    }
    turn_page(request);
    free(request->before);
    return !good ? OH_EXIT_USAGE : any ? OH_EXIT_OK : OH_EXIT_FAILED;
}

static bool take_seconds(const char *name, const char *text, void *value)
{
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end || !(seconds >= WATCH_LEAST && seconds <= WATCH_MOST)) {
        oh_tool_error("stat: --%s %s: %g to %g seconds", name, text, WATCH_LEAST, WATCH_MOST);
        return false;
    }
    *(double *)value = seconds;
    return true;
}

int oh_tool_stat(int argc, char **argv)
{
    struct request request = {0};
    const struct oh_option options[] = {{"pid", 0, oh_option_pid, &request.pid},
                                        {"watch", 0, take_seconds, &request.watch},
                                        {"json", 0, NULL, &request.json},
                                        {NULL, 0, NULL, NULL}};
    int status, first = oh_options_read(argc, argv, help, options, &status);
    if (first < 0) {
        return status;
    }
    if (first < argc) {
        oh_tool_error("stat: '%s' is one argument too many; see onehop stat --help", argv[first]);
        return OH_EXIT_USAGE;
    }
    if (request.watch > 0) {
        return watch(&request);
    }
    bool any = look(&request, false);
    free(request.now);
    return !flushed() ? OH_EXIT_USAGE : any ? OH_EXIT_OK : OH_EXIT_FAILED;
}
