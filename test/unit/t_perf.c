/* SPDX-License-Identifier: MIT */
/*
 * t_perf.c - onehop perf without GPUs: what it expects of results, and recordings that are read again
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/tap.h"
#include "tools/perf/thread.h"

#define COUNT 1000

static char said[1024]; /* what is wrong with the last recording */

static void fill(const struct oh_perf_type *type, enum oh_perf_op op, int ranks, int rank, char *input, char *expected)
{
    oh_perf_fill(type, op, ranks, rank, COUNT, input, expected);
    memset(expected + COUNT * type->size, OH_PERF_POISON, OH_PERF_GUARD);
}

static uint64_t wrong(const struct oh_perf_type *type, enum oh_perf_op op, int ranks, const char *got,
                      const char *expected)
{
    return oh_perf_wrong(type, op, ranks, got, expected, COUNT);
}

static void check_patterns(const struct oh_perf_type *type)
{
    static char input[2][COUNT * 8], expected[COUNT * 8 + OH_PERF_GUARD], got[COUNT * 8 + OH_PERF_GUARD];
    bool differ = true, vary = true, right = true, seen = true, guarded = true, shifted = true;
    size_t bytes = COUNT * type->size;
    for (int op = 0; op < OH_PERF_OPS; op++) {
        for (int ranks = 2; ranks <= 8; ranks++) {
            fill(type, op, ranks, 0, input[0], expected);
            fill(type, op, ranks, 1, input[1], expected);
            differ = differ && memcmp(input[0], input[1], bytes) != 0;
            vary = vary && memcmp(expected, expected + type->size, bytes - type->size) != 0;
            memcpy(got, expected, sizeof got);
            right = right && wrong(type, op, ranks, got, expected) == 0;
            got[bytes + OH_PERF_GUARD - 1] ^= 1;
            guarded = guarded && wrong(type, op, ranks, got, expected) == 1;
            memcpy(got, expected, sizeof got);
            memset(got + 7 * type->size, OH_PERF_POISON, type->size); /* an element that was never written */
            if (memcmp(got, expected, sizeof got) != 0) {
                seen = seen && wrong(type, op, ranks, got, expected) == 1;
            }
            memcpy(got, expected + type->size, bytes - type->size);
            shifted = shifted && (op == OH_PERF_AVG || wrong(type, op, ranks, got, expected) > COUNT / 10);
        }
    }
    tap_ok(differ && vary, "%s: patterns differ by rank and element", oh_perf_type_names[type - oh_perf_types]);
    tap_ok(right && seen && guarded && shifted, "%s: an element, a guard byte, a shift are found wrong",
           oh_perf_type_names[type - oh_perf_types]);
}

static void check_averages(void)
{
    const struct oh_perf_type *type = &oh_perf_types[7];
    float expected[1 + OH_PERF_GUARD / sizeof(float)], got[1 + OH_PERF_GUARD / sizeof(float)];
    memset(expected, OH_PERF_POISON, sizeof expected);
    memset(got, OH_PERF_POISON, sizeof got);
    expected[0] = 1000.0f;
    got[0] = 1000.0005f;
    tap_ok(oh_perf_wrong(type, OH_PERF_AVG, 3, got, expected, 1) == 0, "an average of three may be rounded");
    tap_ok(oh_perf_wrong(type, OH_PERF_AVG, 4, got, expected, 1) == 1, "an average of four may not");
    tap_ok(oh_perf_wrong(type, OH_PERF_SUM, 3, got, expected, 1) == 1, "a sum may not");
    got[0] = 1010.0f;
    tap_ok(oh_perf_wrong(type, OH_PERF_AVG, 3, got, expected, 1) == 1, "an average may not be off by more");
    memset(got, OH_PERF_POISON, sizeof *got);
    tap_ok(oh_perf_wrong(type, OH_PERF_AVG, 3, got, expected, 1) == 1, "a NaN is no average");
}

enum {
    FLOAT = 7,
    F8E4M3 = 10
}; /* of oh_perf_types */

static const struct oh_perf_row rows[] = {
    {OH_PERF_GRAPH,
     FLOAT,
     OH_PERF_SUM,
     1024,
     256,
     {{true, 9.1, 9.9, 0}, {true, 2.2, 2.3, 3}},
     1.45,
     0,
     "oneshot",
     0,
     0},
    {OH_PERF_GRAPH, FLOAT, OH_PERF_SUM, 2048, 512, {{true, 9.2, 9.9, 0}, {false, 0, 0, 0}}, 0, 0, "", 0, 0},
    {OH_PERF_EAGER, F8E4M3, OH_PERF_AVG, 64, 64, {{true, 10.1, 11.9, 0}, {true, 3.2, 3.3, 0}}, 0, 0, "nccl", 0, 0},
};

/* Reads a file as a recording; the reason of a failure is in `said`. */
static bool read_file(const char *path, struct oh_perf_run *run)
{
    const char *problem = oh_perf_read_csv(path, run);
    snprintf(said, sizeof said, "%s", problem ? problem : "");
    return !problem;
}

/* Writes a file and reads it. */
static bool read_text(const char *text, struct oh_perf_run *run)
{
    char path[] = "/tmp/onehop-t_perf.XXXXXX";
    int fd = mkstemp(path);
    bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    bool good = written && read_file(path, run);
    close(fd);
    unlink(path);
    return good;
}

static char *text_of(const struct oh_perf_run *run, void (*write_run)(FILE *, const struct oh_perf_run *))
{
    char *text = NULL;
    size_t size;
    FILE *stream = open_memstream(&text, &size);
    write_run(stream, run);
    fclose(stream);
    return text;
}

static const char head[] =
    "mode,type,op,ranks,bytes,count,side,time_us,p99_us,algbw_gbps,busbw_gbps,wrong,floor_us,served_by,simulated\n";

static void check_recording(void)
{
    struct oh_perf_run run = {.simulated = true,
                              .ranks = 4,
                              .columns = 2,
                              .column = {"stock", "onehop"},
                              .text = {"4 x GPU", "s", "t", "layer", "allreduce", "v", "f"},
                              .checked = true,
                              .rows = 3,
                              .row = (struct oh_perf_row *)rows};
    struct oh_perf_run again = {.ranks = 0};
    char other[512];
    char *text = text_of(&run, oh_perf_write_csv);
    tap_ok(read_text(text, &again), "a recording is read (%s)", said);
    char *second = text_of(&again, oh_perf_write_csv);
    tap_ok(strcmp(text, second) == 0, "and written again it is the same");
    tap_ok(again.rows == 3 && again.row[0].cell[1].wrong == 3 && oh_perf_all_wrong(&again) == 3, "with what was wrong");

    snprintf(other, sizeof other, "%s%s%s", head, "eager,float,sum,4,1024,256,torch,5.5,6,0.1,0.1,,,,0\n",
             "graph,float,sum,4,1024,256,torch,5.5,6,0.1,0.1,,,,0\n");
    tap_ok(read_text(other, &again), "another program's lines stand beside it (%s)", said);
    snprintf(other, sizeof other, "# pattern: chain\n%s%s", head, "graph,float,sum,4,64,16,torch,5.5,6,0.1,0.1,,,,0\n");
    tap_ok(!read_text(other, &again) && strstr(said, ":1: another pattern"), "lines of another pattern do not (%s)",
           said);
    tap_ok(again.rows == 4 && again.columns == 3 && again.row[0].cell[2].there && again.row[2].mode == OH_PERF_EAGER,
           "in its row, and the modes stay together");
    free(text);
    free(second);
    free(again.row);
}

static void check_damage(void)
{
    static const struct {
        const char *line;
        const char *what;
    } damaged[] = {
        {"", "no measurement"},
        {"graph,float,sum,4,1024,256,stock,5.5,6,0.1,0.1,0,,\n", "fields"},
        {"other,float,sum,4,1024,256,stock,5.5,6,0.1,0.1,0,,,0\n", "field"},
        {"graph,float,sum,0,1024,256,stock,5.5,6,0.1,0.1,0,,,0\n", "field"},
        {"graph,float,sum,4,-1,256,stock,5.5,6,0.1,0.1,0,,,0\n", "field"},
        {"graph,float,sum,4,1024,256,stock,nan,6,0.1,0.1,0,,,0\n", "field"},
        {"graph,float,sum,4,1024,256,stock,0,6,0.1,0.1,0,,,0\n", "field"},
        {"graph,floatfloatfloatfloat,sum,4,1024,256,stock,1,6,0.1,0.1,0,,,0\n", "field"},
        {"graph,float,sum,4,1024,256,a'b,5.5,6,0.1,0.1,0,,,0\n", "side"},
        {"graph,float,sum,4,1024,256,a,5.5,6,0.1,0.1,0,,,0\ngraph,float,sum,2,1024,256,a,5.5,6,0.1,0.1,0,,,0\n",
         "ranks"},
    };
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        char text[512];
        struct oh_perf_run run = {.ranks = 0};
        snprintf(text, sizeof text, "%s%s", head, damaged[i].line);
        bool good = read_text(text, &run);
        tap_ok(!good && strstr(said, damaged[i].what), "damage %zu is named (%s)", i, said);
        free(run.row);
    }
    struct oh_perf_run run = {.ranks = 0};
    tap_ok(!read_text("GIF89a\n", &run) && strstr(said, "head"), "another file is refused (%s)", said);
    tap_ok(!read_file("/nowhere/at/all", &run) && strstr(said, "No such file"), "so is none (%s)", said);
}

/* A recording may have any bytes; JSON has printable ASCII, numbers of six digits, and null for what is not known. */
static void check_json(void)
{
    char recording[512];
    struct oh_perf_run run = {.ranks = 0};
    snprintf(recording, sizeof recording, "# machine: 4 x \"Gr\xc3\xbc\xff\\\033\"\n%s%s", head,
             "graph,float,sum,4,1024,256,other,2.5,3,0.1,0.1,0,,\xc3\xa4,1\n");
    bool good = read_text(recording, &run);
    char *text = text_of(&run, oh_perf_write_json);
    tap_ok(good && strstr(text, "\"machine\": \"4 x \\\"Gr???\\\\?\\\"\"") && strstr(text, "\"served_by\": \"??\"") &&
               strstr(text, "\"software\": null") && strstr(text, "\"floor_us\": null"),
           "JSON of a recording with any bytes");
    tap_ok(strstr(text, "\"time_us\": 2.5,") && strstr(text, "\"algbw_gbps\": 0.4096,") &&
               strstr(text, "\"wrong\": 0,\n") && strstr(text, "\"simulated\": true"),
           "its numbers");
    if (!good) {
        tap_note("%s: %s", said, text);
    }
    free(text);
    free(run.row);
}

/* The slowest rank of each round counts: 9, 5, 8, 6 and 7. */
static void check_summary(void)
{
    static const double us[5][3] = {{9, 1, 2}, {4, 3, 5}, {1, 8, 1}, {6, 1, 1}, {1, 1, 7}};
    static struct oh_perf_shared shared;
    const struct oh_perf_options options = {.ranks = 3, .rounds = 5};
    const struct oh_perf_thread thread = {.options = &options, .shared = &shared};
    double median, p99;
    for (int round = 0; round < options.rounds; round++) {
        memcpy(shared.us[round][1], us[round], sizeof us[round]);
    }
    oh_perf_summarise(&thread, 1, &median, &p99);
    tap_ok(median == 7 && p99 == 9, "the slowest rank of each round counts: median %g, p99 %g", median, p99);
}

int main(void)
{
    for (int i = 0; i < OH_PERF_TYPES; i++) {
        check_patterns(&oh_perf_types[i]);
    }
    check_averages();
    check_summary();
    check_recording();
    check_damage();
    check_json();
    return tap_done();
}
