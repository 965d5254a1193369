/* SPDX-License-Identifier: MIT */
/*
 * perf/record.c - a run as CSV and JSON, and CSV read again
 *
 * CSV has one line for each row and side, so that lines of other programs can stand beside ours (test/gpu/torch_symm.py
 * writes such); what is told of the run is in comments in front.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/shared/json.h"
#include "tools/perf/perf.h"
#include "tools/shared/tool.h"

static const char csv_head[] =
    "mode,type,op,ranks,bytes,count,side,time_us,p99_us,algbw_gbps,busbw_gbps,wrong,floor_us,served_by";

enum {
    MODE,
    TYPE,
    OP,
    RANKS,
    BYTES,
    COUNT,
    SIDE,
    TIME_US,
    P99_US,
    ALGBW,
    BUSBW,
    WRONG,
    FLOOR_US,
    SERVED_BY,
    FIELDS
};

static const char simulated_words[] = "SIMULATED: made on stand-ins for GPUs; the times mean nothing";

/* --- writing ---------------------------------------------------------------------------------------------------- */

static void write_line(FILE *stream, const struct oh_perf_run *run, const struct oh_perf_row *row, int column)
{
    const struct oh_perf_cell *cell = &row->cell[column];
    bool ours = strcmp(run->column[column], oh_perf_side_names[OH_PERF_ONEHOP]) == 0;
    fprintf(stream, "%s,%s,%s,%d,%zu,%zu,%s,%.3f,%.3f,%.6g,%.6g,", oh_perf_mode_names[row->mode], row->type, row->op,
            run->ranks, row->bytes, row->count, run->column[column], cell->us, cell->p99_us,
            (double)row->bytes / cell->us / 1000.0, oh_perf_busbw(run, row, cell->us));
    if (run->checked) {
        fprintf(stream, "%llu", (unsigned long long)cell->wrong);
    }
    fputc(',', stream);
    if (row->floor_us > 0) {
        fprintf(stream, "%.3f", row->floor_us);
    }
    fprintf(stream, ",%s\n", ours ? row->served_by : "");
}

void oh_perf_write_csv(FILE *stream, const struct oh_perf_run *run)
{
    if (run->simulated) {
        fprintf(stream, "# %s\n", simulated_words);
    }
    fprintf(stream, "# machine: %s\n# software: %s\n# settings: %s\n# pattern: %s\n# verdict: %s\n", run->machine,
            run->software, run->settings, run->pattern, run->verdict);
    if (run->floors[0]) {
        fprintf(stream, "# floor: %s\n", run->floors);
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
    return us > 0 ? oh_json_real(us) : json_null();
}

/* A text, or null for an empty one. */
static json_t *text_or_null(const char *text)
{
    return oh_json_text(text[0] ? text : NULL);
}

static json_t *make_cell(const struct oh_perf_run *run, const struct oh_perf_row *row, int column)
{
    const struct oh_perf_cell *cell = &row->cell[column];
    json_t *object = json_object();
    oh_json_set(&object, "time_us", oh_json_real(cell->us));
    oh_json_set(&object, "p99_us", oh_json_real(cell->p99_us));
    oh_json_set(&object, "algbw_gbps", oh_json_real((double)row->bytes / cell->us / 1000.0));
    oh_json_set(&object, "busbw_gbps", oh_json_real(oh_perf_busbw(run, row, cell->us)));
    oh_json_set(&object, "wrong", run->checked ? json_integer((json_int_t)cell->wrong) : json_null());
    return object;
}

static json_t *make_row(const struct oh_perf_run *run, const struct oh_perf_row *row)
{
    json_t *object = json_object(), *sides = json_object();
    oh_json_set(&object, "mode", oh_json_text(oh_perf_mode_names[row->mode]));
    oh_json_set(&object, "type", oh_json_text(row->type));
    oh_json_set(&object, "op", oh_json_text(row->op));
    oh_json_set(&object, "bytes", json_integer((json_int_t)row->bytes));
    oh_json_set(&object, "count", json_integer((json_int_t)row->count));
    oh_json_set(&object, "floor_us", time_or_null(row->floor_us));
    oh_json_set(&object, "program_us", time_or_null(row->program_us));
    oh_json_set(&object, "served_by", text_or_null(row->served_by));
    for (int c = 0; c < run->columns; c++) {
        if (row->cell[c].there) {
            oh_json_set(&sides, run->column[c], make_cell(run, row, c));
        }
    }
    oh_json_set(&object, "sides", sides);
    return object;
}

bool oh_perf_write_json(FILE *stream, const struct oh_perf_run *run)
{
    json_t *object = json_object(), *rows = json_array();
    oh_json_set(&object, "schema", json_integer(1));
    oh_json_set(&object, "simulated", json_boolean(run->simulated));
    if (run->simulated) {
        oh_json_set(&object, "note", oh_json_text(simulated_words));
    }
    oh_json_set(&object, "ranks", json_integer(run->ranks));
    oh_json_set(&object, "machine", oh_json_text(run->machine));
    oh_json_set(&object, "software", oh_json_text(run->software));
    oh_json_set(&object, "settings", oh_json_text(run->settings));
    oh_json_set(&object, "pattern", text_or_null(run->pattern));
    oh_json_set(&object, "verdict", oh_json_text(run->verdict));
    oh_json_set(&object, "floor", text_or_null(run->floors));
    oh_json_set(&object, "checked", json_boolean(run->checked));
    oh_json_set(&object, "wrong", json_integer((json_int_t)oh_perf_all_wrong(run)));
    for (size_t i = 0; i < run->rows; i++) {
        oh_json_append(&rows, make_row(run, &run->row[i]));
    }
    oh_json_set(&object, "rows", rows);
    return oh_json_write(stream, object);
}

/* --- reading ---------------------------------------------------------------------------------------------------- */

/* A whole number of at least `least`. */
static bool parse_whole(const char *text, unsigned long long least, unsigned long long *number_p)
{
    char *end;
    errno = 0;
    *number_p = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0 && *number_p >= least;
}

static bool parse_time(const char *text, double *us_p)
{
    char *end;
    *us_p = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*us_p) && *us_p > 0;
}

/* Splits at commas, in place. True when there are exactly FIELDS. */
static bool split(char *line, char **field)
{
    int fields = 0;
    line[strcspn(line, "\r\n")] = '\0';
    for (char *rest = line, *at; (at = strsep(&rest, ",")) != NULL; fields++) {
        if (fields < FIELDS) {
            field[fields] = at;
        }
    }
    return fields == FIELDS;
}

/* The column of that name, made if need be; -1: there is no room, or it is no name. */
static int take_column(struct oh_perf_run *run, const char *name)
{
    int column = oh_perf_column(run, name);
    if (column < 0 && name[0] && strlen(name) < sizeof *run->column && run->columns < OH_PERF_COLUMNS &&
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+.-") == strlen(name)) {
        column = run->columns++;
        snprintf(run->column[column], sizeof *run->column, "%s", name);
    }
    return column;
}

/* Of the same mode, type and op all rows lie together, in the order of the files. NULL: out of memory. */
static struct oh_perf_row *take_row(struct oh_perf_run *run, const struct oh_perf_row *wanted)
{
    size_t at = run->rows;
    for (size_t i = 0; i < run->rows; i++) {
        const struct oh_perf_row *row = &run->row[i];
        if (row->mode == wanted->mode && strcmp(row->type, wanted->type) == 0 && strcmp(row->op, wanted->op) == 0) {
            if (row->bytes == wanted->bytes) {
                return &run->row[i];
            }
            at = i + 1;
        } else if (row->mode > wanted->mode && at == run->rows) {
            at = i;
        }
    }
    struct oh_perf_row *larger = realloc(run->row, (run->rows + 1) * sizeof *larger);
    if (!larger) {
        return NULL;
    }
    run->row = larger;
    memmove(&larger[at + 1], &larger[at], (run->rows - at) * sizeof *larger);
    larger[at] = *wanted;
    run->rows++;
    return &larger[at];
}

static bool fits_name(const char *text, size_t size)
{
    return text[0] && strlen(text) < size;
}

/* One line behind the head. NULL: understood; else what is wrong with it. */
static const char *read_line(char *line, struct oh_perf_run *run)
{
    char *field[FIELDS];
    struct oh_perf_row wanted = {.count = 0};
    struct oh_perf_cell cell = {.there = true};
    unsigned long long ranks, bytes, count, wrong = 0;
    if (!split(line, field)) {
        return "not as many fields as the head";
    }
    int mode = strcmp(field[MODE], "graph") == 0   ? OH_PERF_GRAPH
               : strcmp(field[MODE], "eager") == 0 ? OH_PERF_EAGER
                                                   : -1;
    if (mode < 0 || !fits_name(field[TYPE], sizeof wanted.type) || !fits_name(field[OP], sizeof wanted.op) ||
        !parse_whole(field[RANKS], 1, &ranks) || !parse_whole(field[BYTES], 1, &bytes) ||
        !parse_whole(field[COUNT], 1, &count) || !parse_time(field[TIME_US], &cell.us) ||
        !parse_time(field[P99_US], &cell.p99_us) || (field[WRONG][0] && !parse_whole(field[WRONG], 0, &wrong)) ||
        (field[FLOOR_US][0] && !parse_time(field[FLOOR_US], &wanted.floor_us))) {
        return "a field is not what its head says";
    }
    if (run->ranks && run->ranks != (int)ranks) {
        return "another number of ranks than in front of it";
    }
    run->ranks = (int)ranks;
    int column = take_column(run, field[SIDE]);
    if (column < 0) {
        return "not a name for a side, or too many sides";
    }
    wanted.mode = (enum oh_perf_mode)mode;
    wanted.bytes = bytes;
    wanted.count = count;
    snprintf(wanted.type, sizeof wanted.type, "%s", field[TYPE]);
    snprintf(wanted.op, sizeof wanted.op, "%s", field[OP]);
    struct oh_perf_row *row = take_row(run, &wanted);
    if (!row) {
        return "out of memory";
    }
    if (wanted.floor_us > 0) {
        row->floor_us = wanted.floor_us;
    }
    if (field[SERVED_BY][0]) {
        snprintf(row->served_by, sizeof row->served_by, "%s", field[SERVED_BY]);
    }
    run->checked = run->checked || field[WRONG][0];
    cell.wrong = wrong;
    row->cell[column] = cell;
    return NULL;
}

/* What the first file that tells it tells of the run. NULL: understood; else what is wrong with it. */
static const char *read_comment(char *line, struct oh_perf_run *run)
{
    static const char pattern[] = "# pattern: ";
    const struct {
        const char *key;
        char *text;
        size_t size;
    } known[] = {
        {"# machine: ", run->machine, sizeof run->machine},    {"# software: ", run->software, sizeof run->software},
        {"# settings: ", run->settings, sizeof run->settings}, {pattern, run->pattern, sizeof run->pattern},
        {"# verdict: ", run->verdict, sizeof run->verdict},    {"# floor: ", run->floors, sizeof run->floors}};
    line[strcspn(line, "\r\n")] = '\0';
    run->simulated = run->simulated || strncmp(line, "# SIMULATED", strlen("# SIMULATED")) == 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t length = strlen(known[i].key);
        if (strncmp(line, known[i].key, length) == 0 && !known[i].text[0]) {
            snprintf(known[i].text, known[i].size, "%s", line + length);
        }
    }
    if (strncmp(line, pattern, strlen(pattern)) == 0 && strcmp(line + strlen(pattern), run->pattern) != 0) {
        return "another pattern than in front of it";
    }
    return NULL;
}

static bool read_stream(const char *path, FILE *stream, struct oh_perf_run *run)
{
    char line[1024];
    bool head = false;
    for (int number = 1; fgets(line, sizeof line, stream); number++) {
        const char *what = NULL;
        if (line[0] == '#') {
            what = read_comment(line, run);
        } else if (!head) {
            line[strcspn(line, "\r\n")] = '\0';
            head = strcmp(line, csv_head) == 0;
            what = head ? NULL : "not the head of a file of onehop perf --csv";
        } else {
            what = read_line(line, run);
        }
        if (what) {
            oh_tool_error("perf: %s:%d: %s", path, number, what);
            return false;
        }
    }
    if (ferror(stream)) {
        oh_tool_error("perf: %s: %s", path, strerror(errno));
        return false;
    }
    if (run->rows == 0) {
        oh_tool_error("perf: %s: no measurement in it", path);
    }
    return run->rows > 0;
}

bool oh_perf_read_csv(const char *path, struct oh_perf_run *run)
{
    FILE *stream = fopen(path, "re");
    if (!stream) {
        oh_tool_error("perf: %s: %s", path, strerror(errno));
        return false;
    }
    bool good = read_stream(path, stream, run);
    fclose(stream);
    return good;
}
