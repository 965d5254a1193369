/* SPDX-License-Identifier: MIT */
/*
 * perf/table.c - the tables of `onehop perf`, in the columns of nccl-tests, and the ratios behind them
 */
#include "tools/perf/perf.h"

#include <math.h>
#include <string.h>

const char *const oh_perf_side_names[OH_PERF_SIDES] = {"stock", "windows", "onehop"};
const char *const oh_perf_mode_names[OH_PERF_MODES] = {"graph", "eager"};
const char *const oh_perf_layout_names[OH_PERF_LAYOUTS] = {
    "a process for each GPU", "one process, a thread for each GPU", "one process, one thread, groups"};
const char *const oh_perf_pattern_names[OH_PERF_PATTERNS] = {"layer", "spin", "chain", "free"};
const char *const oh_perf_memory_names[OH_PERF_MEMORIES] = {"cuda", "nccl"};

#define SIDE_WIDTH 42 /* of one side's columns */

int oh_perf_column(const struct oh_perf_run *run, const char *name)
{
    for (int i = 0; i < run->columns; i++) {
        if (strcmp(run->column[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

double oh_perf_busbw(const struct oh_perf_run *run, const struct oh_perf_row *row, double us)
{
    return (double)row->bytes / us / 1000.0 * 2.0 * (run->ranks - 1) / run->ranks;
}

uint64_t oh_perf_all_wrong(const struct oh_perf_run *run)
{
    uint64_t wrong = 0;
    for (size_t i = 0; i < run->rows; i++) {
        for (int c = 0; c < run->columns; c++) {
            wrong += run->row[i].cell[c].wrong;
        }
    }
    return wrong;
}

/* --- ratios ----------------------------------------------------------------------------------------------------- */

/* A ratio of two columns' times; the second may be the floor. */
struct ratio {
    int above;
    int below; /* FLOOR */
    char name[40];
};

#define FLOOR (-1)
#define RATIOS (OH_PERF_COLUMNS + 1)

static bool has_floor(const struct oh_perf_run *run)
{
    for (size_t i = 0; i < run->rows; i++) {
        if (run->row[i].floor_us > 0) {
            return true;
        }
    }
    return run->floors[0] != '\0';
}

static bool has_program(const struct oh_perf_run *run)
{
    for (size_t i = 0; i < run->rows; i++) {
        if (run->row[i].program_us > 0) {
            return true;
        }
    }
    return false;
}

/* Every other column over onehop's; onehop's (or else the first) over the floor. Returns their number. */
static int list_ratios(const struct oh_perf_run *run, struct ratio *ratio)
{
    int ours = oh_perf_column(run, oh_perf_side_names[OH_PERF_ONEHOP]), ratios = 0;
    for (int c = 0; c < run->columns && ours >= 0; c++) {
        if (c != ours) {
            ratio[ratios].above = c;
            ratio[ratios].below = ours;
            if (strcmp(run->column[c], oh_perf_side_names[OH_PERF_STOCK]) == 0) {
                snprintf(ratio[ratios].name, sizeof ratio->name, "speedup");
            } else {
                snprintf(ratio[ratios].name, sizeof ratio->name, "%s/onehop", run->column[c]);
            }
            ratios++;
        }
    }
    if (has_floor(run) && run->columns > 0) {
        ratio[ratios].above = ours >= 0 ? ours : 0;
        ratio[ratios].below = FLOOR;
        snprintf(ratio[ratios].name, sizeof ratio->name, "%s/floor", run->column[ratio[ratios].above]);
        ratios++;
    }
    return ratios;
}

/* 0: not known. */
static double ratio_of(const struct oh_perf_row *row, const struct ratio *ratio)
{
    const struct oh_perf_cell *above = &row->cell[ratio->above];
    double below = ratio->below == FLOOR           ? row->floor_us
                   : row->cell[ratio->below].there ? row->cell[ratio->below].us
                                                   : 0;
    return above->there && below > 0 ? above->us / below : 0;
}

static int ratio_width(const struct ratio *ratio)
{
    int length = (int)strlen(ratio->name);
    return length < 8 ? 8 : length;
}

/* --- printing --------------------------------------------------------------------------------------------------- */

void oh_perf_print_head(FILE *stream, const struct oh_perf_run *run)
{
    const struct {
        const char *name;
        const char *text;
    } line[] = {
        {"", run->machine}, {"", run->software}, {"", run->settings}, {"", run->verdict}, {"floor: ", run->floors}};
    if (run->simulated) {
        fprintf(stream, "# SIMULATED: made on stand-ins for GPUs; the times mean nothing\n");
    }
    for (size_t i = 0; i < sizeof line / sizeof *line; i++) {
        if (line[i].text[0]) {
            fprintf(stream, "# %s%s\n", line[i].name, line[i].text);
        }
    }
}

static void print_title(FILE *stream, const struct oh_perf_run *run, enum oh_perf_mode mode)
{
    struct ratio ratio[RATIOS];
    int ratios = list_ratios(run, ratio);
    fprintf(stream, "#\n# %sall-reduce, %s%s%s\n#\n", run->simulated ? "SIMULATED (times mean nothing): " : "",
            mode == OH_PERF_GRAPH ? "CUDA graph" : "eager", run->pattern[0] ? ", pattern " : "", run->pattern);
    fprintf(stream, "# %46s", "");
    for (int c = 0; c < run->columns; c++) {
        int left = (SIDE_WIDTH - (int)strlen(run->column[c])) / 2;
        bool last = c + 1 == run->columns;
        fprintf(stream, " %*s%-*s", left, "", last ? 0 : SIDE_WIDTH - left - 1, run->column[c]);
    }
    fprintf(stream, "\n# %10s %12s %8s %6s %6s", "size", "count", "type", "redop", "root");
    for (int c = 0; c < run->columns; c++) {
        fprintf(stream, " %9s %9s %7s %7s %6s", "time", "p99", "algbw", "busbw", "#wrong");
    }
    if (has_program(run)) {
        fprintf(stream, " %8s", "program");
    }
    if (has_floor(run)) {
        fprintf(stream, " %8s", "floor");
    }
    for (int i = 0; i < ratios; i++) {
        fprintf(stream, " %*s", ratio_width(&ratio[i]), ratio[i].name);
    }
    fprintf(stream, "  served-by\n# %10s %12s %8s %6s %6s", "(B)", "(elements)", "", "", "");
    for (int c = 0; c < run->columns; c++) {
        fprintf(stream, " %9s %9s %7s %7s %6s", "(us)", "(us)", "(GB/s)", "(GB/s)", "");
    }
    fprintf(stream, "%s%s\n", has_program(run) ? "     (us)" : "", has_floor(run) ? "     (us)" : "");
}

static void print_cell(FILE *stream, const struct oh_perf_run *run, const struct oh_perf_row *row, int column)
{
    const struct oh_perf_cell *cell = &row->cell[column];
    if (!cell->there) {
        fprintf(stream, " %9s %9s %7s %7s %6s", "-", "-", "-", "-", "-");
        return;
    }
    fprintf(stream, " %9.2f %9.2f %7.2f %7.2f", cell->us, cell->p99_us, (double)row->bytes / cell->us / 1000.0,
            oh_perf_busbw(run, row, cell->us));
    if (run->checked) {
        fprintf(stream, " %6llu", (unsigned long long)cell->wrong);
    } else {
        fprintf(stream, " %6s", "N/A");
    }
}

/* A number in so many columns; 0: not known. */
static void print_known(FILE *stream, int width, double number)
{
    if (number > 0) {
        fprintf(stream, " %*.2f", width, number);
    } else {
        fprintf(stream, " %*s", width, "-");
    }
}

/* Geometric means over the rows of the mode of row `last`, which is its last one. */
static void print_averages(FILE *stream, const struct oh_perf_run *run, size_t last)
{
    struct ratio ratio[RATIOS];
    int ratios = list_ratios(run, ratio);
    for (int r = 0; r < ratios; r++) {
        double sum = 0;
        int rows = 0;
        for (size_t i = 0; i <= last; i++) {
            double value = ratio_of(&run->row[i], &ratio[r]);
            if (run->row[i].mode == run->row[last].mode && value > 0) {
                sum += log(value);
                rows++;
            }
        }
        if (rows > 0) {
            fprintf(stream, "# Avg %s (geometric mean of %d row%s, %s): %.2f\n", ratio[r].name, rows,
                    rows == 1 ? "" : "s", oh_perf_mode_names[run->row[last].mode], exp(sum / rows));
        }
    }
}

void oh_perf_print_row(FILE *stream, const struct oh_perf_run *run, size_t index)
{
    const struct oh_perf_row *row = &run->row[index];
    struct ratio ratio[RATIOS];
    int ratios = list_ratios(run, ratio);
    if (index == 0 || row[-1].mode != row->mode) {
        print_title(stream, run, row->mode);
    }
    fprintf(stream, "  %10zu %12zu %8s %6s %6d", row->bytes, row->count, row->type, row->op, -1);
    for (int c = 0; c < run->columns; c++) {
        print_cell(stream, run, row, c);
    }
    if (has_program(run)) {
        print_known(stream, 8, row->program_us);
    }
    if (has_floor(run)) {
        print_known(stream, 8, row->floor_us);
    }
    for (int i = 0; i < ratios; i++) {
        print_known(stream, ratio_width(&ratio[i]), ratio_of(row, &ratio[i]));
    }
    fprintf(stream, "  %s\n", row->served_by);
    if (index + 1 == run->rows || row[1].mode != row->mode) {
        print_averages(stream, run, index);
    }
}

void oh_perf_print_foot(FILE *stream, const struct oh_perf_run *run)
{
    uint64_t wrong = oh_perf_all_wrong(run);
    if (run->checked) {
        fprintf(stream, "#\n# Out of bounds values : %llu %s\n", (unsigned long long)wrong, wrong ? "FAILED" : "OK");
    } else {
        fprintf(stream, "#\n# Results were not checked (--check 0)\n");
    }
}
