/* SPDX-License-Identifier: MIT */
/*
 * tune/trials.c - candidates, measured on the path of a user's table
 *
 * Does: For each table a group of processes does what `onehop perf` does. ONEHOP_TUNING_FILE names a memfd with the
 *    table, so nothing is left of it.
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

#define MAX_TASKS (OH_TUNE_POINTS * OH_PERF_MODES * OH_PERF_TYPES)

enum { /* the columns of a row: the default sides */
    STOCK,
    ONEHOP
};

/* One table under way. */
struct trials {
    struct oh_tune *tune;
    int candidate;
    struct oh_perf_shared *shared;
    struct oh_tune_point *point[MAX_TASKS]; /* of each row, which is a task */
    size_t done;                            /* tasks whose times have been taken */
};

/* Lists the tasks of a candidate: rows of a size that has it. A row may have some bytes less than its point. */
static void list_tasks(struct trials *trials)
{
    struct oh_perf_row *row = trials->shared->row;
    const size_t rows = oh_perf_list_rows(&trials->tune->options->perf, row);
    size_t tasks = 0;
    for (size_t i = 0; i < rows; i++) {
        struct oh_tune_point *point = trials->tune->point;
        while (point->bytes < row[i].bytes) {
            point++;
        }
        if (trials->candidate < point->candidates) {
            trials->point[tasks] = point;
            row[tasks++] = row[i];
        }
    }
    trials->shared->rows = tasks;
}

/* The candidates as a table for this machine, whatever it is. */
static void write_table(const struct trials *trials, int fd)
{
    const struct oh_tuning_key key = {"*", trials->tune->key.nranks, "*", "*"};
    struct oh_plan_table table = {.nranks = trials->tune->key.nranks};
    struct oh_plan_rows *rows = &table.rows[trials->tune->collective];
    FILE *stream = ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0 ? fdopen(dup(fd), "w") : NULL;
    if (!stream) {
        OH_TOOL_FAIL("a trial's table cannot be written: %m");
    }
    rows->count = (uint32_t)trials->tune->points;
    for (uint32_t i = 0; i < rows->count; i++) {
        const struct oh_tune_point *point = &trials->tune->point[i];
        rows->row[i] = trials->candidate < point->candidates
                           ? point->candidate[trials->candidate]
                           : (struct oh_plan_row){.max_bytes = point->bytes, .algorithm = OH_PLAN_NCCL};
    }
    oh_tuning_write(stream, &key, "a trial", &table, trials->tune->collective, NULL);
    fclose(stream);
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
        OH_TOOL_FAIL("onehop hands this communicator back to NCCL: %s", trials->shared->info.reason);
    }
    if (strcmp(task->served_by, name) != 0 || wrong > 0) {
        OH_TOOL_FAIL("%" PRIu64 " bytes of %s on %s %ux%u: %" PRIu64 " elements wrong, served by %s", point->bytes,
                     oh_perf_type_names[task->type], name, row->blocks, row->threads, wrong, task->served_by);
    }
    point->time[trials->candidate][task->mode][task->type] =
        (struct oh_tune_time){task->cell[ONEHOP].us, task->cell[STOCK].us};
}

static void tick(void *user)
{
    struct trials *trials = user;
    const size_t before = trials->done, done = atomic_load(&trials->shared->rows_done);
    for (; trials->done < done; trials->done++) {
        take(trials, trials->done);
    }
    if (done != before) {
        oh_tool_show_progress("table %d of %d, trial %zu of %zu", trials->candidate + 1, trials->tune->candidates, done,
                              trials->shared->rows);
    }
}

static void run_table(struct oh_tune *tune, int candidate, int fd)
{
    const size_t bytes = sizeof(struct oh_perf_shared) + (size_t)MAX_TASKS * sizeof(struct oh_perf_row);
    struct trials trials = {.tune = tune, .candidate = candidate, .shared = oh_workers_map(bytes)};
    trials.shared->options = &tune->options->perf;
    list_tasks(&trials);
    write_table(&trials, fd);
    oh_perf_run(trials.shared, tick, &trials);
    oh_tool_clear_progress();
    oh_tuning_nccl_name(trials.shared->nccl_version, tune->key.nccl);
    munmap(trials.shared, bytes);
}

void oh_tune_measure(struct oh_tune *tune)
{
    const uint64_t deadline_ns = oh_now_ns() + (uint64_t)tune->options->time_s * 1000000000u;
    const char *const asked = getenv("ONEHOP_TUNING_FILE");
    const char *const before = asked ? strdupa(asked) : NULL; /* the next setenv() may free it */
    int fd = memfd_create("onehop-trial", 0);                 /* the ranks inherit it */
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd < 0 || setenv("ONEHOP_TUNING_FILE", path, 1) != 0) {
        OH_TOOL_FAIL("no room for a trial's table: %m");
    }
    /* What would stand in its way. */
    unsetenv("ONEHOP_ALGO");
    unsetenv("ONEHOP_MAX_BYTES");
    unsetenv("ONEHOP_DISABLE");
    unsetenv("ONEHOP_COLLECTIVES");
    for (int i = 0; i < tune->points; i++) {
        tune->candidates = tune->point[i].candidates > tune->candidates ? tune->point[i].candidates : tune->candidates;
    }
    while (tune->measured < tune->candidates && (tune->measured == 0 || oh_now_ns() < deadline_ns)) {
        run_table(tune, tune->measured++, fd);
    }
    close(fd);
    if (before ? setenv("ONEHOP_TUNING_FILE", before, 1) : unsetenv("ONEHOP_TUNING_FILE")) {
        OH_TOOL_FAIL("the environment cannot be changed: %m");
    }
}
