/* SPDX-License-Identifier: MIT */
/*
 * perf/record.c - a run as CSV and JSON, and CSV read again
 *
 * Does: Writes one line for each row and side, so that lines of other programs can stand beside them
 *    (test/gpu/torch_symm.py); comments in front describe the run. Reads such files.
 * Threads: pure functions but for the streams.
 * Owns: nothing.
 */
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "tools/perf/perf.h"
#include "tools/shared/tool.h"

static const char csv_head[] =
    "mode,type,op,ranks,bytes,count,side,time_us,p99_us,algbw_gbps,busbw_gbps,wrong,floor_us,served_by,simulated";

static const char *const text_names[OH_PERF_TEXTS] = {"machine",    "software", "settings", "pattern",
                                                      "collective", "verdict",  "floor"};

/* --- writing ---------------------------------------------------------------------------------------------------- */

static void write_line(FILE *stream, const struct oh_perf_run *run, const struct oh_perf_row *row, int column)
{
    const struct oh_perf_cell *cell = &row->cell[column];
    bool ours = strcmp(run->column[column], oh_perf_side_names[OH_PERF_ONEHOP]) == 0;
    fprintf(stream, "%s,%s,%s,%d,%zu,%zu,%s,%.3f,%.3f,%.6g,%.6g,", oh_perf_mode_names[row->mode],
            oh_perf_type_names[row->type], oh_perf_op_names[row->op], run->ranks, row->bytes, row->count,
            run->column[column], cell->us, cell->p99_us, (double)row->bytes / cell->us / 1000.0,
            oh_perf_busbw(run, row, cell->us));
    if (run->checked) {
        fprintf(stream, "%llu", (unsigned long long)cell->wrong);
    }
    fputc(',', stream);
    if (row->floor_us > 0) {
        fprintf(stream, "%.3f", row->floor_us);
    }
    fprintf(stream, ",%s,%d\n", ours ? row->served_by : "", run->simulated);
}

void oh_perf_write_csv(FILE *stream, const struct oh_perf_run *run)
{
    if (run->simulated) {
        fprintf(stream, "# %s\n", OH_PERF_SIMULATED);
    }
    for (int i = 0; i < OH_PERF_TEXTS; i++) {
        if (run->text[i][0]) {
            fprintf(stream, "# %s: %s\n", text_names[i], run->text[i]);
        }
    }
    fprintf(stream, "%s\n", csv_head);
    for (size_t i = 0; i < run->rows; i++) {
        for (int c = 0; c < run->columns; c++) {
            if (run->row[i].cell[c].there) {
                write_line(stream, run, &run->row[i], c);
            }
        }
    }
}

/* A time, or null where there is none. */
static json_t *time_or_null(double us)
{
    return us > 0 ? json_real(us) : json_null();
}

static json_t *make_cell(const struct oh_perf_run *run, const struct oh_perf_row *row, int column)
{
    const struct oh_perf_cell *cell = &row->cell[column];
    return json_pack("{s:f,s:f,s:f,s:f,s:o}", "time_us", cell->us, "p99_us", cell->p99_us, "algbw_gbps",
                     (double)row->bytes / cell->us / 1000.0, "busbw_gbps", oh_perf_busbw(run, row, cell->us), "wrong",
                     run->checked ? json_integer((json_int_t)cell->wrong) : json_null());
}

static json_t *make_row(const struct oh_perf_run *run, const struct oh_perf_row *row)
{
    json_t *sides = json_object();
    for (int c = 0; c < run->columns; c++) {
        if (row->cell[c].there) {
            json_object_set_new(sides, run->column[c], make_cell(run, row, c));
        }
    }
    return json_pack("{s:s,s:s,s:s,s:I,s:I,s:o,s:o,s:o,s:b,s:o}", "mode", oh_perf_mode_names[row->mode], "type",
                     oh_perf_type_names[row->type], "op", oh_perf_op_names[row->op], "bytes", (json_int_t)row->bytes,
                     "count", (json_int_t)row->count, "floor_us", time_or_null(row->floor_us), "program_us",
                     time_or_null(row->program_us), "served_by", oh_json_text(row->served_by), "simulated",
                     run->simulated, "sides", sides);
}

void oh_perf_write_json(FILE *stream, const struct oh_perf_run *run)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < run->rows; i++) {
        json_array_append_new(rows, make_row(run, &run->row[i]));
    }
    json_t *object = json_pack("{s:i,s:b,s:s?,s:i,s:b,s:I,s:o}", "schema", 1, "simulated", run->simulated, "note",
                               run->simulated ? OH_PERF_SIMULATED : NULL, "ranks", run->ranks, "checked", run->checked,
                               "wrong", (json_int_t)oh_perf_all_wrong(run), "rows", rows);
    for (int i = 0; i < OH_PERF_TEXTS; i++) {
        json_object_set_new(object, text_names[i], oh_json_text(run->text[i]));
    }
    oh_json_write(stream, object);
}

/* --- reading ---------------------------------------------------------------------------------------------------- */

#define LEAST_TIME 1e-6 /* us */
#define MOST 1e15       /* of a number: every integer type here holds it */

static bool is_within(double number, double least, double most)
{
    return number >= least && number <= most; /* NaN is not */
}

/* A number from `least` to MOST, or none. */
static bool parse_optional(const char *text, double least, double *number_p)
{
    char *end;
    *number_p = strtod(text, &end);
    return !text[0] || (*end == '\0' && is_within(*number_p, least, MOST));
}

/* The column of that name, made if need be; -1: there is no room, or it is no name. */
static int take_column(struct oh_perf_run *run, const char *name)
{
    int column = oh_perf_column(run, name);
    if (column < 0 && run->columns < OH_PERF_COLUMNS &&
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+.-") == strlen(name)) {
        column = run->columns++;
        snprintf(run->column[column], sizeof *run->column, "%s", name);
    }
    return column;
}

static int sign(size_t a, size_t b)
{
    return (a > b) - (a < b);
}

/* By mode, type and op, by size, by place in the files. */
static int compare_kinds(const void *a, const void *b)
{
    const struct oh_perf_row *x = a, *y = b;
    const int kind = sign(x->group, y->group), size = sign(x->bytes, y->bytes);
    return kind ? kind : size ? size : sign(x->order, y->order);
}

static int compare_places(const void *a, const void *b)
{
    const struct oh_perf_row *x = a, *y = b;
    const int mode = sign(x->mode, y->mode), group = sign(x->group, y->group);
    return mode ? mode : group ? group : sign(x->order, y->order);
}

/* Makes one row of lines about one message. Those of one mode, type and op stand together, in the order of the files.
 */
static void merge_rows(struct oh_perf_run *run)
{
    size_t first[OH_PERF_MODES][OH_PERF_TYPES][OH_PERF_OPS], kept = 0;
    memset(first, 0xff, sizeof first);
    for (size_t i = 0; i < run->rows; i++) {
        struct oh_perf_row *row = &run->row[i];
        size_t *group = &first[row->mode][row->type][row->op];
        *group = *group < i ? *group : i;
        row->group = *group;
        row->order = i;
    }
    qsort(run->row, run->rows, sizeof *run->row, compare_kinds);
    for (size_t i = 0; i < run->rows; i++) {
        const struct oh_perf_row *row = &run->row[i];
        struct oh_perf_row *last = kept > 0 ? &run->row[kept - 1] : NULL;
        if (!last || last->group != row->group || last->bytes != row->bytes) {
            run->row[kept++] = *row;
            continue;
        }
        for (int c = 0; c < run->columns; c++) {
            last->cell[c] = row->cell[c].there ? row->cell[c] : last->cell[c];
        }
        last->floor_us = row->floor_us > 0 ? row->floor_us : last->floor_us;
        if (row->served_by[0]) {
            memcpy(last->served_by, row->served_by, sizeof last->served_by);
        }
    }
    run->rows = kept;
    qsort(run->row, run->rows, sizeof *run->row, compare_places);
}

/* One line behind the head. NULL: understood; else what is wrong with it. */
static const char *read_line(char *line, struct oh_perf_run *run)
{
    char mode_name[16], type_name[16], op_name[16], side[32]; /* as a name of run->column */
    struct oh_perf_cell cell = {.there = true};
    double ranks, bytes, count, wrong, floor_us;
    int end = 0;
    /* The two bandwidths follow from the time. What is behind them may be empty. */
    if (sscanf(line, "%15[^,],%15[^,],%15[^,],%lf,%lf,%lf,%31[^,],%lf,%lf,%*[^,],%*[^,],%n", mode_name, type_name,
               op_name, &ranks, &bytes, &count, side, &cell.us, &cell.p99_us, &end) != 9 ||
        end == 0) {
        return "a field is not what its head says";
    }
    char *rest = line + end;
    const char *wrong_text = strsep(&rest, ","), *floor = strsep(&rest, ","), *served_by = strsep(&rest, ",");
    const char *simulated = strsep(&rest, ",");
    if (!simulated || rest) {
        return "not as many fields as the head";
    }
    const int mode = oh_find_word(mode_name, oh_perf_mode_names, OH_PERF_MODES);
    const int type = oh_find_word(type_name, oh_perf_type_names, OH_PERF_TYPES);
    const int op = oh_find_word(op_name, oh_perf_op_names, OH_PERF_OPS);
    if (mode < 0 || type < 0 || op < 0 || !is_within(ranks, 1, OH_PERF_RANKS) || !is_within(bytes, 1, MOST) ||
        !is_within(count, 1, MOST) || !is_within(cell.us, LEAST_TIME, MOST) ||
        !is_within(cell.p99_us, LEAST_TIME, MOST) || !parse_optional(wrong_text, 0, &wrong) ||
        !parse_optional(floor, LEAST_TIME, &floor_us)) {
        return "a field is not what its head says";
    }
    if (run->ranks && run->ranks != (int)ranks) {
        return "another number of ranks than in front of it";
    }
    run->ranks = (int)ranks;
    int column = take_column(run, side);
    if (column < 0) {
        return "not a name for a side, or too many sides";
    }
    if (run->rows > (size_t)4 * OH_PERF_ROWS) {
        return "more lines than a table can have";
    }
    if ((run->rows & (run->rows - 1)) == 0) { /* room for twice as many */
        run->row = oh_tool_resize(run->row, run->rows ? 2 * run->rows : 1, sizeof *run->row);
    }
    struct oh_perf_row *row = &run->row[run->rows++];
    *row = (struct oh_perf_row){.mode = (enum oh_perf_mode)mode,
                                .type = type,
                                .op = (enum oh_perf_op)op,
                                .bytes = (size_t)bytes,
                                .count = (size_t)count,
                                .floor_us = floor_us};
    snprintf(row->served_by, sizeof row->served_by, "%s", served_by);
    run->has_floor |= floor_us > 0;
    run->simulated |= strcmp(simulated, "1") == 0;
    run->checked |= wrong_text[0] != '\0';
    cell.wrong = (uint64_t)wrong;
    row->cell[column] = cell;
    return NULL;
}

/* Takes a text from the first file that has it. NULL: understood; else what is wrong with it. */
static const char *read_comment(const char *line, struct oh_perf_run *run)
{
    run->simulated |= strncmp(line, "# SIMULATED", strlen("# SIMULATED")) == 0;
    for (int i = 0; i < OH_PERF_TEXTS; i++) {
        size_t length = strlen(text_names[i]);
        if (strncmp(line + 2, text_names[i], length) == 0 && strncmp(line + 2 + length, ": ", 2) == 0) {
            const char *text = line + length + 4;
            if (!run->text[i][0]) {
                snprintf(run->text[i], sizeof run->text[i], "%s", text);
            }
            if (i == OH_PERF_PATTERN && strcmp(text, run->text[i]) != 0) {
                return "another pattern than in front of it";
            }
            if (i == OH_PERF_COLLECTIVE) {
                run->collective = oh_find_word(text, oh_collective_names, ONEHOP_COLLECTIVE_COUNT);
                if (run->collective < 0 || strcmp(text, run->text[i]) != 0) {
                    return "another collective than in front of it";
                }
            }
        }
    }
    return NULL;
}

const char *oh_perf_read_csv(const char *path, struct oh_perf_run *run)
{
    static char problem[PATH_MAX + 128];
    const char *what = NULL;
    char *line = NULL;
    size_t room = 0;
    int number = 0;
    bool head = false;
    FILE *stream = fopen(path, "re");
    problem[0] = '\0';
    while (!what && stream && getline(&line, &room, stream) > 0) {
        number++;
        line[strcspn(line, "\r\n")] = '\0';
        oh_text_clean(line, room);
        if (line[0] == '#' && line[1] == ' ') {
            what = read_comment(line, run);
        } else if (head) {
            what = read_line(line, run);
        } else {
            head = strcmp(line, csv_head) == 0;
            what = head ? NULL : "not the head of a file of onehop perf --csv";
        }
    }
    free(line);
    if (run->rows > 0) {
        merge_rows(run);
    }
    if (what) {
        snprintf(problem, sizeof problem, "%s:%d: %s", path, number, what);
    } else if (!stream || !feof(stream)) { /* as at the end of memory */
        snprintf(problem, sizeof problem, "%s: %m", path);
    } else if (run->rows == 0) {
        snprintf(problem, sizeof problem, "%s: no measurement in it", path);
    }
    if (stream) {
        fclose(stream);
    }
    return problem[0] ? problem : NULL;
}
