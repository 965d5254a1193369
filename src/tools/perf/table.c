/* SPDX-License-Identifier: MIT */
/*
 * perf/table.c - the tables of `onehop perf`, in words of nccl-tests
 *
 * Does: Chooses the columns that fit WIDTH, prints rows, averages and the foot.
 * Threads: pure functions but for the stream.
 * Owns: nothing.
 */
#include "plan/plan.h"
#include "tools/perf/perf.h"

#include <math.h>
#include <string.h>

const char *const oh_perf_side_names[OH_PERF_SIDES] = {"stock", "windows", "onehop"};
const char *const oh_perf_mode_names[OH_PERF_MODES] = {"graph", "eager"};
const char *const oh_perf_pattern_names[OH_PERF_PATTERNS] = {"layer", "chain", "free"};

#define WIDTH 120    /* of a table */
#define KEY_WIDTH 37 /* of size, count, type and op */
#define SERVED_WIDTH 11

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
    const double share = (double)(run->ranks - 1) / run->ranks;
    const double factor[ONEHOP_COLLECTIVE_COUNT] = {[ONEHOP_ALLREDUCE] = 2 * share,
                                                    [ONEHOP_ALLGATHER] = share,
                                                    [ONEHOP_REDUCESCATTER] = share,
                                                    [ONEHOP_BROADCAST] = 1};
    return (double)row->bytes / us / 1000.0 * factor[run->collective];
}

static uint64_t row_wrong(const struct oh_perf_run *run, const struct oh_perf_row *row)
{
    uint64_t wrong = 0;
    for (int c = 0; c < run->columns; c++) {
        wrong += row->cell[c].wrong;
    }
    return wrong;
}

uint64_t oh_perf_all_wrong(const struct oh_perf_run *run)
{
    uint64_t wrong = 0;
    for (size_t i = 0; i < run->rows; i++) {
        wrong += row_wrong(run, &run->row[i]);
    }
    return wrong;
}

/* --- columns ---------------------------------------------------------------------------------------------------- */

enum kind {
    TIME,
    P99,
    BUSBW,
    WRONG,
    PROGRAM,
    FLOOR,
    RATIO,
    NOTHING
};

/* A column behind size, count, type and op, and the three lines of its title. */
struct column {
    enum kind kind;
    int side;  /* -1: of none */
    int below; /* RATIO: the side in the denominator; -1: the floor */
    int width; /* with the blank in front */
    const char *title[3];
};

struct columns {
    int count;
    struct column column[5 * OH_PERF_COLUMNS + 3];
};

static void add(struct columns *columns, struct column column)
{
    const int head = (int)strlen(column.title[1]) + 1;
    column.width = column.kind == BUSBW || column.kind == P99 ? 7 : head > 8 ? head : 8;
    columns->column[columns->count++] = column;
}

/* Every other side over onehop; onehop, or else the first side, over the floor. */
static void add_ratios(const struct oh_perf_run *run, struct columns *columns, bool floor)
{
    int ours = oh_perf_column(run, oh_perf_side_names[OH_PERF_ONEHOP]);
    for (int side = 0; side < run->columns && ours >= 0; side++) {
        if (strcmp(run->column[side], oh_perf_side_names[OH_PERF_STOCK]) == 0) {
            add(columns, (struct column){RATIO, side, ours, 0, {"", "speedup", ""}});
        } else if (side != ours) {
            add(columns, (struct column){RATIO, side, ours, 0, {"", run->column[side], "/onehop"}});
        }
    }
    if (floor && run->columns > 0) {
        const int side = ours >= 0 ? ours : 0;
        add(columns, (struct column){RATIO, side, -1, 0, {"", run->column[side], "/floor"}});
    }
}

/* Drops all columns of a kind. Returns the width of a row of what is left. */
static int drop(struct columns *columns, enum kind kind)
{
    int kept = 0, width = KEY_WIDTH + SERVED_WIDTH;
    for (int i = 0; i < columns->count; i++) {
        if (columns->column[i].kind != kind) {
            columns->column[kept] = columns->column[i];
            width += columns->column[kept++].width;
        }
    }
    columns->count = kept;
    return width;
}

/* All that the run has, but what does not fit. */
static struct columns list_columns(const struct oh_perf_run *run)
{
    static const enum kind first_to_go[] = {NOTHING, PROGRAM, P99, BUSBW, FLOOR, RATIO, WRONG};
    static const char *const heads[] = {"time", "p99", "busbw", "#wrong"}, *const units[] = {"(us)", "(us)", "(GB/s)",
                                                                                             ""};
    struct columns columns = {.count = 0};
    const bool floor = run->text[OH_PERF_FLOORS][0] || run->has_floor;
    for (int side = 0; side < run->columns; side++) {
        const int first = run->times ? TIME : WRONG;
        for (int kind = first; kind <= WRONG; kind++) {
            const char *name = kind == first ? run->column[side] : "";
            add(&columns, (struct column){kind, side, 0, 0, {name, heads[kind], units[kind]}});
        }
    }
    if (run->times && run->has_program) {
        add(&columns, (struct column){PROGRAM, -1, 0, 0, {"", "program", "(us)"}});
    }
    if (run->times && floor) {
        add(&columns, (struct column){FLOOR, -1, 0, 0, {"", "floor", "(us)"}});
    }
    if (run->times) {
        add_ratios(run, &columns, floor);
    }
    for (size_t i = 0; i < sizeof first_to_go / sizeof *first_to_go && drop(&columns, first_to_go[i]) > WIDTH; i++) {
    }
    return columns;
}

/* 0: not known. */
static double ratio_of(const struct oh_perf_row *row, const struct column *column)
{
    const struct oh_perf_cell *above = &row->cell[column->side];
    double below = row->floor_us;
    if (column->below >= 0) {
        below = row->cell[column->below].there ? row->cell[column->below].us : 0;
    }
    return above->there && below > 0 ? above->us / below : 0;
}

/* --- printing --------------------------------------------------------------------------------------------------- */

/* A comment, broken at blanks where it does not fit. */
static void print_line(FILE *stream, const char *text)
{
    while (text[0]) {
        size_t length = strlen(text), most = WIDTH - 2;
        if (length > most) {
            length = most;
            while (length > most / 2 && text[length] != ' ') {
                length--;
            }
        }
        fprintf(stream, "# %.*s\n", (int)length, text);
        text += length;
        text += *text == ' ';
    }
}

void oh_perf_print_head(FILE *stream, const struct oh_perf_run *run)
{
    if (run->simulated) {
        print_line(stream, run->times ? OH_PERF_SIMULATED
                                      : "SIMULATED: made on simulated GPUs; --simulated-times shows their times");
    }
    for (int i = 0; i < OH_PERF_TEXTS; i++) {
        char line[sizeof *run->text + 8];
        snprintf(line, sizeof line, "%s%s", i == OH_PERF_FLOORS && run->text[i][0] ? "floor: " : "", run->text[i]);
        if (i != OH_PERF_PATTERN && i != OH_PERF_COLLECTIVE && (i != OH_PERF_FLOORS || run->times)) {
            print_line(stream, line);
        }
    }
}

static void print_title(FILE *stream, const struct oh_perf_run *run, enum oh_perf_mode mode)
{
    static const char *const key[3] = {"", "     size     count     type  redop", "      (B)"};
    struct columns columns = list_columns(run);
    fprintf(stream, "#\n# %s%s, %s%s%s\n#\n", run->simulated ? "SIMULATED: " : "", oh_collective_names[run->collective],
            mode == OH_PERF_GRAPH ? "CUDA graph" : "eager", run->text[OH_PERF_PATTERN][0] ? ", pattern " : "",
            run->text[OH_PERF_PATTERN]);
    for (int line = 0; line < 3; line++) {
        fprintf(stream, "# %-*s", KEY_WIDTH - 2, key[line]);
        for (int i = 0; i < columns.count; i++) {
            fprintf(stream, "%*s", columns.column[i].width, columns.column[i].title[line]);
        }
        fprintf(stream, "%s\n", line == 1 ? "  served-by" : "");
    }
}

/* With as many decimals as the column has room for, or in powers of ten. */
static void print_number(FILE *stream, int width, double value)
{
    char text[400];
    int decimals = 2;
    while (snprintf(text, sizeof text, "%.*f", decimals, value) >= width && --decimals >= 0) {
    }
    if (decimals < 0) {
        snprintf(text, sizeof text, "%.*e", width > 7 ? 1 : 0, value);
    }
    fprintf(stream, "%*s", width, text);
}

/* A size or a count, in K, M or G where it has too many digits. */
static void print_size(FILE *stream, size_t size)
{
    static const char units[] = "KMG";
    int unit = -1;
    for (; size > 999999999 && unit < 2 && size % 1024 == 0; unit++) {
        size /= 1024;
    }
    fprintf(stream, " %*zu%.*s", unit < 0 ? 9 : 8, size, unit >= 0, &units[unit < 0 ? 0 : unit]);
}

static void print_cell(FILE *stream, const struct oh_perf_run *run, const struct oh_perf_row *row,
                       const struct column *column)
{
    const struct oh_perf_cell *cell = column->side >= 0 ? &row->cell[column->side] : NULL;
    const bool there = cell && cell->there;
    const double value[] = {[TIME] = there ? cell->us : 0,
                            [P99] = there ? cell->p99_us : 0,
                            [BUSBW] = there ? oh_perf_busbw(run, row, cell->us) : 0,
                            [PROGRAM] = row->program_us,
                            [FLOOR] = row->floor_us,
                            [RATIO] = there && column->kind == RATIO ? ratio_of(row, column) : 0};
    if (column->kind == WRONG && there && run->checked) {
        fprintf(stream, "%*llu", column->width, (unsigned long long)cell->wrong);
    } else if (column->kind == WRONG && there) {
        fprintf(stream, "%*s", column->width, "N/A");
    } else if (column->kind != WRONG && (value[column->kind] > 0 || (column->kind == BUSBW && there))) {
        print_number(stream, column->width, value[column->kind]); /* one rank uses no bus: 0 */
    } else {
        fprintf(stream, "%*s", column->width, "-");
    }
}

/* Geometric means over the rows of the mode of row `last`, which is its last one. */
static void print_averages(FILE *stream, const struct oh_perf_run *run, const struct columns *columns, size_t last)
{
    for (int r = 0; r < columns->count; r++) {
        double sum = 0;
        int rows = 0;
        for (size_t i = 0; i <= last && columns->column[r].kind == RATIO; i++) {
            double value = ratio_of(&run->row[i], &columns->column[r]);
            if (run->row[i].mode == run->row[last].mode && value > 0) {
                sum += log(value);
                rows++;
            }
        }
        if (rows > 0) {
            fprintf(stream, "# Avg %s%s (geometric mean of %d row%s, %s): %.2f\n", columns->column[r].title[1],
                    columns->column[r].title[2], rows, rows == 1 ? "" : "s", oh_perf_mode_names[run->row[last].mode],
                    exp(sum / rows));
        }
    }
}

void oh_perf_print_row(FILE *stream, const struct oh_perf_run *run, size_t index)
{
    const struct oh_perf_row *row = &run->row[index];
    struct columns columns = list_columns(run);
    if (index == 0 || row[-1].mode != row->mode) {
        print_title(stream, run, row->mode);
    }
    fputc(' ', stream);
    print_size(stream, row->bytes);
    print_size(stream, row->count);
    fprintf(stream, " %8s %6s", oh_perf_type_names[row->type], oh_perf_op_names[row->op]);
    for (int i = 0; i < columns.count; i++) {
        print_cell(stream, run, row, &columns.column[i]);
    }
    fprintf(stream, "  %s\n", row->served_by);
    if (index + 1 == run->rows || row[1].mode != row->mode) {
        print_averages(stream, run, &columns, index);
    }
}

void oh_perf_print_foot(FILE *stream, const struct oh_perf_run *run)
{
    uint64_t wrong = oh_perf_all_wrong(run);
    size_t right = 0, told = 0, served = 0;
    for (size_t i = 0; i < run->rows; i++) {
        const struct oh_perf_row *row = &run->row[i];
        right += row_wrong(run, row) == 0;
        told += row->served_by[0] != '\0';
        served += row->served_by[0] && !strstr(row->served_by, "nccl");
    }
    if (!run->checked) {
        fprintf(stream, "#\n# Results were not checked (--check 0)\n");
    } else {
        fprintf(stream, "#\n# Out of bounds values : %llu %s\n# %zu of %zu right", (unsigned long long)wrong,
                wrong ? "FAILED" : "OK", right, run->rows);
        if (told > 0) {
            fprintf(stream, ", %zu of %zu served", served, told);
        }
        fprintf(stream, "\n");
    }
}
