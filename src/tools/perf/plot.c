/* SPDX-License-Identifier: MIT */
/*
 * perf/plot.c - a run as a picture: latency and bus bandwidth against size, through gnuplot
 *
 * Two panels for each mode, type and op, logarithmic axes. Lines differ in colour (of a set that colour-blind readers
 * tell apart), dash and mark, so that they differ in print too.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/perf/perf.h"
#include "tools/shared/supervise.h"
#include "tools/shared/tool.h"

#define PANELS_MAX 8 /* pairs of panels */

/* The rows of one mode, type and op: they lie together. */
struct series {
    const struct oh_perf_row *row;
    size_t rows;
};

static const struct style {
    const char *name;
    const char *style;
} styles[] = {
    {"onehop", "lc rgb '#0072B2' dt 1 lw 2.5 pt 7 ps 0.8"},
    {"stock", "lc rgb '#D55E00' dt 2 lw 2 pt 4 ps 0.8"},
    {"windows", "lc rgb '#009E73' dt 4 lw 2 pt 8 ps 0.9"},
    {"", "lc rgb '#CC79A7' dt 5 lw 2 pt 12 ps 0.9"}, /* other sides, in order */
    {"", "lc rgb '#B08000' dt 3 lw 2 pt 10 ps 0.9"},
    {"", "lc rgb '#000000' dt 6 lw 1.5 pt 2 ps 0.7"},
    {"", "lc rgb '#56B4E9' dt 7 lw 2 pt 6 ps 0.8"},
    {"", "lc rgb '#7F3F00' dt 8 lw 2 pt 14 ps 0.8"},
};
#define NAMED_STYLES 3
#define FLOOR_STYLE "lc rgb '#808080' dt 1 lw 1.5"
#define STYLES (int)(sizeof styles / sizeof *styles)

static const char *style_of(const struct oh_perf_run *run, int column)
{
    int other = NAMED_STYLES;
    for (int c = 0; c <= column; c++) {
        int i = 0;
        while (i < NAMED_STYLES && strcmp(styles[i].name, run->column[c]) != 0) {
            i++;
        }
        if (c == column) {
            return styles[i < NAMED_STYLES ? i : other < STYLES ? other : STYLES - 1].style;
        }
        other += i == NAMED_STYLES;
    }
    return styles[STYLES - 1].style;
}

/* Text in gnuplot's single quotes. */
static void quote(FILE *script, const char *text)
{
    fputc('\'', script);
    for (; *text; text++) {
        if (*text == '\'') {
            fputc('\'', script);
        }
        fputc(*text == '\n' ? ' ' : *text, script);
    }
    fputc('\'', script);
}

static int list_series(const struct oh_perf_run *run, struct series *series)
{
    int found = 0;
    for (size_t i = 0; i < run->rows; i++) {
        const struct oh_perf_row *row = &run->row[i];
        if (i == 0 || row[-1].mode != row->mode || strcmp(row[-1].type, row->type) != 0 ||
            strcmp(row[-1].op, row->op) != 0) {
            if (found == PANELS_MAX) {
                break;
            }
            series[found++] = (struct series){row, 0};
        }
        series[found - 1].rows++;
    }
    return found;
}

/* $dN: bytes, floor, and for each column its time; what is not known is NaN. */
static void write_data(FILE *script, const struct oh_perf_run *run, const struct series *series, int number)
{
    fprintf(script, "$d%d << EOD\n", number);
    for (size_t i = 0; i < series->rows; i++) {
        const struct oh_perf_row *row = &series->row[i];
        fprintf(script, "%zu", row->bytes);
        if (row->floor_us > 0) {
            fprintf(script, " %.4f", row->floor_us);
        } else {
            fprintf(script, " NaN");
        }
        for (int c = 0; c < run->columns; c++) {
            if (row->cell[c].there) {
                fprintf(script, " %.4f", row->cell[c].us);
            } else {
                fprintf(script, " NaN");
            }
        }
        fputc('\n', script);
    }
    fprintf(script, "EOD\n");
}

/* Marks at powers of two, as many as there is room for. */
static void write_size_marks(FILE *script, const struct oh_perf_run *run)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t least = run->row[0].bytes, most = least;
    int first = 0, last = 0, step = 1;
    for (size_t i = 0; i < run->rows; i++) {
        least = run->row[i].bytes < least ? run->row[i].bytes : least;
        most = run->row[i].bytes > most ? run->row[i].bytes : most;
    }
    while ((size_t)2 << first <= least) {
        first++;
    }
    while ((size_t)1 << last < most) {
        last++;
    }
    while ((last - first) / step > 6) {
        step++;
    }
    fprintf(script, "set xtics (");
    for (int power = first; power <= last; power += step) {
        fprintf(script, "%s'%zu %s' %zu", power > first ? ", " : "", (size_t)1 << power % 10, units[power / 10],
                (size_t)1 << power);
    }
    fprintf(script, ")\nset xrange [%zu*0.8:%zu*1.25]\n", (size_t)1 << first, most);
}

/* gnuplot would take the next power of ten. */
static void write_range(FILE *script, const struct oh_perf_run *run, const struct series *series, double factor)
{
    double least = 0, most = 0;
    for (size_t i = 0; i < series->rows; i++) {
        const struct oh_perf_row *row = &series->row[i];
        for (int c = -1; c < run->columns; c++) {
            double us = c < 0 ? row->floor_us : row->cell[c].there ? row->cell[c].us : 0;
            if (us > 0) {
                double value = factor > 0 ? (double)row->bytes * factor / us : us;
                least = least > 0 && least < value ? least : value;
                most = most > value ? most : value;
            }
        }
    }
    fprintf(script, "set yrange [%g:%g]\n", least * 0.75, most * 1.3);
}

/* One panel; factor: of bytes by time, for a bandwidth; 0: the time itself. */
static void write_panel(FILE *script, const struct oh_perf_run *run, const struct series *series, int number,
                        const char *what, double factor)
{
    char scale[32] = "";
    bool floor = false;
    for (size_t i = 0; i < series->rows; i++) {
        floor = floor || series->row[i].floor_us > 0;
    }
    if (factor > 0) {
        snprintf(scale, sizeof scale, "$1*%.6g/", factor);
    }
    write_range(script, run, series, factor);
    fprintf(script, "set ylabel '%s'\nset title '%s, %s %s' noenhanced\nplot ", what,
            oh_perf_mode_names[series->row->mode], series->row->type, series->row->op);
    for (int c = 0; c < run->columns; c++) {
        fprintf(script, "%s$d%d using 1:(%s$%d) with linespoints %s", c ? ", " : "", number, scale, c + 3,
                style_of(run, c));
    }
    if (floor) {
        fprintf(script, ", $d%d using 1:(%s$2) with lines " FLOOR_STYLE, number, scale);
    }
    fprintf(script, "\n");
}

/* One key for all panels, in a plot of its own: it needs the whole width. */
static void write_key(FILE *script, const struct oh_perf_run *run, int height)
{
    fprintf(script,
            "unset title\nunset xlabel\nunset ylabel\nunset border\nunset tics\nunset grid\nunset logscale\n"
            "set lmargin at screen 0.02\nset rmargin at screen 0.98\nset bmargin at screen 0.005\n"
            "set tmargin at screen %.4f\nset xrange [0:1]\nset yrange [0:1]\n"
            "set key center center horizontal samplen 4 noenhanced\nplot ",
            62.0 / height);
    for (int c = 0; c < run->columns; c++) {
        fprintf(script, "NaN with linespoints %s title ", style_of(run, c));
        quote(script, run->column[c]);
        fprintf(script, ", ");
    }
    fprintf(script, "NaN with lines " FLOOR_STYLE " title '%s'\n", run->floors[0] ? "floor" : "");
}

static void write_script(FILE *script, const struct oh_perf_run *run, const char *path)
{
    struct series series[PANELS_MAX];
    int count = list_series(run, series);
    int height = 80 + 420 * count;
    /* On one rank nothing goes over a bus. */
    double factor = run->ranks > 1 ? 2e-3 * (run->ranks - 1) / run->ranks : 1e-3;
    char title[sizeof run->machine + 64];
    snprintf(title, sizeof title, "%s%s", run->simulated ? "SIMULATED (times mean nothing): " : "", run->machine);
    for (int i = 0; i < count; i++) {
        write_data(script, run, &series[i], i);
    }
    fprintf(script, "set terminal svg size 1100,%d font 'Helvetica,Arial,sans-serif,15' background '#ffffff'\n",
            height);
    fprintf(script, "set output ");
    quote(script, path);
    fprintf(script, "\nset multiplot layout %d,2 margins 0.1,0.985,%.4f,%.4f spacing 0.115,%.4f title ", count,
            130.0 / height, 1 - 85.0 / height, 130.0 / height);
    quote(script, title);
    fprintf(script, " noenhanced font ',17'\n"
                    "set logscale xy\n"
                    "set ytics (0.001,0.002,0.005,0.01,0.02,0.05,0.1,0.2,0.5,1,2,5,10,20,50,100,200,500,1000,2000,"
                    "5000,10000,20000,50000,100000,200000,500000,1000000)\n"
                    "set format y '%%g'\n"
                    "set grid xtics ytics lc rgb '#d0d0d0' dt 1 lw 0.7\n"
                    "set border 3\nset tics nomirror out\n"
                    "set xlabel 'message size' offset 0,0.3\n"
                    "unset key\n");
    write_size_marks(script, run);
    for (int i = 0; i < count; i++) {
        write_panel(script, run, &series[i], i, "time of a call (µs)", 0);
        write_panel(script, run, &series[i], i, run->ranks > 1 ? "bus bandwidth (GB/s)" : "bandwidth (GB/s)", factor);
    }
    write_key(script, run, height);
    fprintf(script, "unset multiplot\nunset output\n");
}

bool oh_perf_can_plot(void)
{
    const char *path = getenv("PATH");
    char candidate[PATH_MAX];
    for (const char *at = path ? path : ""; *at; at += *at == ':') {
        int length = (int)strcspn(at, ":");
        snprintf(candidate, sizeof candidate, "%.*s/gnuplot", length, at);
        if (length > 0 && access(candidate, X_OK) == 0) {
            return true;
        }
        at += length;
    }
    oh_tool_error(
        "perf: --plot needs gnuplot, which is not in PATH (Debian: gnuplot-nox); --csv FILE keeps the numbers, "
        "and --from FILE --plot draws them later");
    return false;
}

/* gnuplot tells nobody when a picture could not be written: the end of it must be there. */
static bool is_whole(const char *path)
{
    static const char end[] = "</svg>";
    char tail[32] = "";
    FILE *picture = fopen(path, "re");
    bool good = picture && fseek(picture, -(long)(sizeof tail - 1), SEEK_END) == 0 &&
                fread(tail, 1, sizeof tail - 1, picture) > 0 && strstr(tail, end);
    if (picture) {
        fclose(picture);
    }
    return good;
}

/* Runs gnuplot on the script. */
static bool draw(char *script, const char *path)
{
    char name[] = "gnuplot";
    char *argv[] = {name, script, NULL};
    int status = oh_supervise(argv, NULL, NULL);
    if (status == OH_SUPERVISE_NOT_STARTED) {
        return false; /* said */
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        oh_tool_error("perf: gnuplot has failed");
        return false;
    }
    if (!is_whole(path)) {
        oh_tool_error("perf: gnuplot could not write the whole picture (is the disk full?)");
        return false;
    }
    return true;
}

bool oh_perf_plot(const struct oh_perf_run *run, const char *path)
{
    const char *folder = getenv("TMPDIR");
    char script[PATH_MAX];
    snprintf(script, sizeof script, "%s/onehop-plot.XXXXXX", folder && folder[0] ? folder : "/tmp");
    int fd = mkostemp(script, O_CLOEXEC);
    FILE *stream = fd < 0 ? NULL : fdopen(fd, "w");
    if (!stream) {
        oh_tool_error("perf: %s: %s", script, strerror(errno));
        return false;
    }
    write_script(stream, run, path);
    bool good = !ferror(stream);
    good = fclose(stream) == 0 && good;
    if (!good) {
        oh_tool_error("perf: %s: %s", script, strerror(errno));
    }
    good = good && draw(script, path);
    unlink(script);
    return good;
}
