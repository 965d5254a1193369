/* SPDX-License-Identifier: MIT */
/*
 * tune/report.c - what `onehop tune` says, and the table that it leaves
 */
#include "tools/tune/tune.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "tools/shared/tool.h"

/* Of one mode, over the types: a candidate's time and NCCL's beside it. False: not measured. */
static bool times_of(const struct oh_tune_point *point, int candidate, int mode, double *us_p, double *stock_us_p)
{
    double logs = 0, stock_logs = 0;
    int times = 0;
    for (int type = 0; candidate >= 0 && type < OH_PERF_TYPES; type++) {
        const struct oh_tune_time *time = &point->time[candidate][mode][type];
        if (time->done) {
            logs += log(time->us);
            stock_logs += log(time->stock_us);
            times++;
        }
    }
    *us_p = times > 0 ? exp(logs / times) : 0;
    *stock_us_p = times > 0 ? exp(stock_logs / times) : 0;
    return times > 0;
}

static void describe_row(const struct oh_plan_row *row, char *text_p, size_t size)
{
    if (row->algorithm == OH_PLAN_NCCL) {
        snprintf(text_p, size, "nccl");
    } else {
        snprintf(text_p, size, "%s %ux%u", oh_algorithm_name((int)row->algorithm), row->blocks, row->threads);
    }
}

/* What the choice beats, and by how much. */
static void describe_rival(const struct oh_tune *tune, const struct oh_tune_point *point,
                           const struct oh_tune_choice *choice, char *text_p, size_t size)
{
    char name[48];
    if (choice->why == OH_TUNE_SHIPPED) {
        snprintf(text_p, size, "as shipped: %s", point->too_slow ? "a trial took too long" : "time ran out");
    } else if (choice->why == OH_TUNE_STOCK) {
        describe_row(&point->candidate[choice->best], name, sizeof name);
        snprintf(text_p, size, "stock NCCL beats %s", name);
    } else if (choice->second >= 0) {
        describe_row(&point->candidate[choice->second], name, sizeof name);
        snprintf(text_p, size, "%s by %.2f", name,
                 oh_tune_score(tune, point, choice->second) / oh_tune_score(tune, point, choice->best));
    } else {
        snprintf(text_p, size, "-");
    }
}

static void print_point(FILE *stream, const struct oh_tune *tune, const struct oh_tune_point *point)
{
    struct oh_tune_choice choice = oh_tune_choose(tune, point);
    char chosen[48], rival[96];
    describe_row(&choice.row, chosen, sizeof chosen);
    describe_rival(tune, point, &choice, rival, sizeof rival);
    fprintf(stream, "  %10" PRIu64 "  %-15s", point->bytes, chosen);
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        double us, stock_us;
        if (!tune->options->perf.mode[mode]) {
            continue;
        }
        if (times_of(point, choice.best, mode, &us, &stock_us)) {
            fprintf(stream, " %8.2f %8.2f %6.2f", us, stock_us, stock_us / us);
        } else {
            fprintf(stream, " %8s %8s %6s", "-", "-", "-");
        }
    }
    fprintf(stream, "  %s\n", rival);
}

void oh_tune_print(FILE *stream, const struct oh_tune *tune)
{
    const struct oh_perf_options *perf = &tune->options->perf;
    fprintf(stream, "# %s%u x %s, driver %s, NCCL %s\n",
            oh_tool_is_simulated(tune->key.gpu) ? "SIMULATED (times mean nothing): " : "", tune->key.nranks,
            tune->key.gpu, tune->key.driver, tune->key.nccl);
    fprintf(stream, "# us a call, of %d; slowest rank, median of %d rounds, stock NCCL in turns with onehop\n",
            perf->iters, perf->rounds);
    fprintf(stream, "# %25s", "");
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        if (perf->mode[mode]) {
            fprintf(stream, " %17s %6s", oh_perf_mode_names[mode], "");
        }
    }
    fprintf(stream, "\n# %10s  %-15s", "size", "chosen");
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        if (perf->mode[mode]) {
            fprintf(stream, " %8s %8s %6s", "onehop", "stock", "times");
        }
    }
    fprintf(stream, "  beats\n");
    for (int i = 0; i < tune->points; i++) {
        print_point(stream, tune, &tune->point[i]);
    }
}

/* The times of a row's last point, as a comment. */
static void write_row(FILE *stream, const struct oh_tune *tune, const struct oh_plan_row *row, int of)
{
    char comment[128] = "as shipped";
    size_t used = 0;
    const struct oh_tune_point *point = of >= 0 ? &tune->point[of] : NULL;
    struct oh_tune_choice choice = {.best = -1};
    if (point) {
        choice = oh_tune_choose(tune, point);
    }
    for (int mode = 0; point && mode < OH_PERF_MODES; mode++) {
        double us, stock_us;
        if (times_of(point, choice.best, mode, &us, &stock_us) && used < sizeof comment) {
            used += (size_t)snprintf(comment + used, sizeof comment - used, "%s%s %.2f us, stock %.2f",
                                     used ? "; " : "", oh_perf_mode_names[mode], us, stock_us);
        }
    }
    oh_tuning_write_row(stream, row, comment);
}

void oh_tune_write(FILE *stream, const struct oh_tune *tune)
{
    char day[32] = "", source[OH_TUNING_TEXT];
    time_t now = time(NULL);
    struct tm local;
    if (localtime_r(&now, &local)) {
        strftime(day, sizeof day, "%Y-%m-%d", &local);
    }
    snprintf(source, sizeof source, "%s by onehop tune, %s, pattern %s",
             oh_tool_is_simulated(tune->key.gpu) ? "SIMULATED, not measured," : "measured", day,
             oh_perf_pattern_names[tune->options->perf.pattern]);
    oh_tuning_write_key(stream, &tune->key, source);
    struct oh_plan_rows rows;
    int of[OH_PLAN_ROWS];
    oh_tune_rows(tune, &rows, of);
    for (uint32_t i = 0; i < rows.count; i++) {
        write_row(stream, tune, &rows.row[i], of[i]);
    }
    oh_tuning_write_end(stream);
}
