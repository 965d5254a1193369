/* SPDX-License-Identifier: MIT */
/*
 * tune/trials.c - candidates, measured on the path of a user's table
 *
 * Does: For each table a group of processes does what `onehop perf` does. ONEHOP_TUNING_FILE names a memfd with the
 *    table, so nothing is left of it. A trial that exceeds its time ends the group, and another group measures the
 *    rest.
 * Threads: one.
 * Owns: the memfd.
 */
#include "tools/tune/tune.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/shared/tool.h"
#include "util/clock.h"

#define START_S 90 /* CUDA and NCCL, before the first trial */
#define MAX_TASKS (OH_TUNE_POINTS * OH_PERF_MODES * OH_PERF_TYPES)

enum { /* the columns of a row: the default sides */
    STOCK,
    ONEHOP
};

/* --- one table -------------------------------------------------------------------------------------------------- */

struct trials {
    struct oh_tune *tune;
    int candidate;
    int tables;
    struct oh_perf_shared *shared;
    struct oh_tune_point *point[MAX_TASKS]; /* of each row, which is a task */
    size_t done;                            /* tasks whose times have been taken */
    uint64_t begun_ns;                      /* the task under way, or the members */
    uint64_t shown_s;
    bool too_slow; /* that task */
};

/* Lists the tasks of a candidate that are not done, smallest first. */
static void list_tasks(struct trials *trials)
{
    const struct oh_tune_options *options = trials->tune->options;
    size_t tasks = 0;
    for (int i = 0; i < MAX_TASKS; i++) {
        const int mode = i / OH_TUNE_POINTS / OH_PERF_TYPES, type = i / OH_TUNE_POINTS % OH_PERF_TYPES;
        struct oh_tune_point *point = &trials->tune->point[i % OH_TUNE_POINTS];
        if (i % OH_TUNE_POINTS < trials->tune->points && options->perf.mode[mode] &&
            oh_tune_has_type(options, type, point->bytes) && trials->candidate < point->candidates &&
            !point->too_slow && !point->time[trials->candidate][mode][type].done) {
            const size_t size = oh_perf_types[type].size, count = point->bytes / size;
            trials->point[tasks] = point;
            trials->shared->row[tasks++] = (struct oh_perf_row){
                .mode = mode, .type = type, .op = OH_PERF_SUM, .bytes = count * size, .count = count};
        }
    }
    trials->shared->rows = tasks;
    trials->done = 0;
}

/* The candidates as a table for this machine, whatever it is. */
static void write_table(const struct trials *trials, int fd)
{
    const struct oh_tuning_key key = {"*", trials->tune->key.nranks, "*", "*"};
    struct oh_plan_rows rows = {.count = (uint32_t)trials->tune->points};
    FILE *stream = ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0 ? fdopen(dup(fd), "w") : NULL;
    if (!stream) {
        oh_tool_fail("a trial's table cannot be written: %m");
    }
    for (uint32_t i = 0; i < rows.count; i++) {
        const struct oh_tune_point *point = &trials->tune->point[i];
        rows.row[i] = trials->candidate < point->candidates
                          ? point->candidate[trials->candidate]
                          : (struct oh_plan_row){.max_bytes = point->bytes, .algorithm = OH_PLAN_NCCL};
    }
    oh_tuning_write_head(stream);
    oh_tuning_write_table(stream, &key, "a trial", &rows, NULL);
    fclose(stream);
}

/* On a terminal, once a second. */
static void show_progress(struct trials *trials)
{
    uint64_t now = oh_now_ns(), total = (uint64_t)trials->tune->options->time_s;
    uint64_t left = trials->tune->deadline_ns > now ? (trials->tune->deadline_ns - now) / 1000000000u : 0;
    if (left != trials->shown_s) {
        trials->shown_s = left;
        oh_tool_show_progress("%u ranks, table %d of %d, trial %zu of %zu, %d s of at most %d s",
                              trials->tune->key.nranks, trials->candidate + 1, trials->tables, trials->done + 1,
                              trials->shared->rows, (int)(total - left), (int)total);
    }
}

/* Takes a task's times. Ends the command if they are of no use. */
static void take(struct trials *trials, size_t i)
{
    const struct oh_perf_row *task = &trials->shared->row[i];
    struct oh_tune_point *point = trials->point[i];
    const struct oh_plan_row *row = &point->candidate[trials->candidate];
    const char *name = oh_algorithm_name((int)row->algorithm);
    uint64_t wrong = task->cell[ONEHOP].wrong + task->cell[STOCK].wrong;
    if (!trials->shared->info.served) {
        oh_tool_fail("onehop hands this communicator back to NCCL: %s", trials->shared->info.reason);
    }
    if (strcmp(task->served_by, name) != 0 || wrong > 0) {
        oh_tool_fail("%" PRIu64 " bytes of %s on %s %ux%u: %" PRIu64 " elements wrong, served by %s", point->bytes,
                     oh_perf_type_names[task->type], name, row->blocks, row->threads, wrong, task->served_by);
    }
    point->time[trials->candidate][task->mode][task->type] =
        (struct oh_tune_time){true, task->cell[ONEHOP].us, task->cell[STOCK].us};
}

/* Takes times, and compares the clock with the limits. Returns false if the ranks must end. */
static bool tick(void *user)
{
    struct trials *trials = user;
    const struct oh_tune *tune = trials->tune;
    size_t done = atomic_load(&trials->shared->rows_done);
    uint64_t now = oh_now_ns(), limit = START_S;
    for (; trials->done < done; trials->done++) {
        trials->begun_ns = now;
        take(trials, trials->done);
    }
    if (atomic_load(&trials->shared->ready)) {
        limit = (uint64_t)tune->options->trial_s;
    }
    show_progress(trials);
    trials->tune->out_of_time = now > tune->deadline_ns;
    trials->too_slow = trials->done < trials->shared->rows && now - trials->begun_ns > limit * 1000000000u;
    return !trials->tune->out_of_time && !trials->too_slow;
}

/* After tick has ended the ranks. Ends the command unless a trial's time, or all time, was over. */
static void go_on(struct trials *trials)
{
    if (trials->too_slow && !atomic_load(&trials->shared->ready)) {
        oh_tool_fail("the ranks did not start within %d s", START_S);
    }
    if (trials->too_slow) {
        struct oh_tune_point *point = trials->point[trials->done];
        const struct oh_plan_row *row = &point->candidate[trials->candidate];
        oh_tool_error("%s %ux%u took more than %d s for %" PRIu64 " bytes: the size is skipped",
                      oh_algorithm_name((int)row->algorithm), row->blocks, row->threads, trials->tune->options->trial_s,
                      point->bytes);
        point->too_slow = true;
    }
}

/* Measures what is left of a table. */
static void run_rest(struct trials *trials)
{
    struct oh_tune *tune = trials->tune;
    struct oh_perf_options options = tune->options->perf;
    options.ranks = (int)tune->key.nranks;
    trials->shared->options = &options;
    trials->begun_ns = oh_now_ns();
    /* tick is faster than the timeout */
    bool well = oh_perf_run(trials->shared, 2 * START_S + tune->options->trial_s, tick, trials);
    oh_tool_clear_progress();
    if (atomic_load(&trials->shared->ready)) {
        oh_tuning_nccl_name(trials->shared->nccl_version, tune->key.nccl);
        tune->ready = true;
    }
    if (!well) {
        go_on(trials);
    }
}

static void run_table(struct oh_tune *tune, int candidate, int tables, int fd)
{
    const size_t bytes = sizeof(struct oh_perf_shared) + MAX_TASKS * sizeof(struct oh_perf_row);
    struct trials trials = {.tune = tune, .candidate = candidate, .tables = tables};
    bool more = true;
    while (more && !tune->out_of_time) {
        trials.shared = oh_workers_map(bytes);
        list_tasks(&trials);
        more = trials.shared->rows > 0;
        if (more) {
            write_table(&trials, fd);
            run_rest(&trials);
        }
        munmap(trials.shared, bytes);
    }
}

/* --- all tables ------------------------------------------------------------------------------------------------- */

void oh_tune_measure(struct oh_tune *tune)
{
    int tables = 0, fd = memfd_create("onehop-trial", 0); /* the ranks inherit it */
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd < 0 || setenv("ONEHOP_TUNING_FILE", path, 1) != 0) {
        oh_tool_fail("no room for a trial's table: %m");
    }
    /* What would stand in its way. */
    unsetenv("ONEHOP_ALGO");
    unsetenv("ONEHOP_MAX_BYTES");
    unsetenv("ONEHOP_DISABLE");
    for (int i = 0; i < tune->points; i++) {
        tables = tune->point[i].candidates > tables ? tune->point[i].candidates : tables;
    }
    for (int k = 0; k < tables && !tune->out_of_time; k++) {
        run_table(tune, k, tables, fd);
    }
    close(fd);
}
