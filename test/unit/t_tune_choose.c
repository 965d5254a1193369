/* SPDX-License-Identifier: MIT */
/*
 * t_tune_choose.c - what `onehop tune` measures, and what it makes of the times
 */
#include <math.h>
#include <string.h>

#include "test/tap.h"
#include "tools/tune/tune.h"

static struct oh_tune_options options;
static struct oh_tune tune;

static int type_of(const char *name)
{
    int type = 0;
    while (strcmp(oh_perf_type_names[type], name) != 0) {
        type++;
    }
    return type;
}

static void begin(uint32_t nranks, size_t min_bytes, size_t max_bytes)
{
    options = (struct oh_tune_options){.perf = {.min_bytes = min_bytes, .max_bytes = max_bytes, .mode = {true, true}}};
    options.perf.type[type_of("float")] = options.perf.type[type_of("int32")] = true;
    memset(&tune, 0, sizeof tune);
    tune.options = &options;
    tune.key = (struct oh_tuning_key){.gpu = "NVIDIA H200", .nranks = nranks};
    oh_tune_list(&tune);
}

/* All times of a candidate: eager takes 1 us more, with stock NCCL, too. */
static void give(struct oh_tune_point *point, int candidate, double us, double stock_us)
{
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        struct oh_tune_time time = {us + mode, stock_us + mode};
        point->time[candidate][mode][type_of("float")] = point->time[candidate][mode][type_of("int32")] = time;
    }
}

static void give_all(struct oh_tune_point *point, double us, double stock_us)
{
    for (int k = 0; k < point->candidates; k++) {
        give(point, k, us + k, stock_us);
    }
}

static void test_candidates(void)
{
    for (uint32_t n = 2; n <= OH_MAX_RANKS; n++) {
        bool right = true;
        begin(n, 1024, 16 << 20);
        right &= tune.points == 15;
        for (int i = 0; i < tune.points; i++) {
            const struct oh_tune_point *point = &tune.point[i];
            const struct oh_plan_row *first = &point->candidate[0];
            struct oh_plan plan;
            bool served = oh_plan_choose(&tune.shipped, ONEHOP_ALLREDUCE, point->bytes, ncclUint8, &plan);
            right &=
                point->candidates > 0 && (!served || (first->algorithm == plan.algorithm &&
                                                      first->blocks == plan.blocks && first->threads == plan.threads));
            for (int k = 0; k < point->candidates; k++) {
                right &= oh_plan_row_valid(&point->candidate[k], ONEHOP_ALLREDUCE, n) &&
                         point->candidate[k].max_bytes == point->bytes;
                for (int l = 0; l < k; l++) {
                    right &= memcmp(&point->candidate[k], &point->candidate[l], sizeof point->candidate[k]) != 0;
                }
            }
        }
        tap_ok(right, "n=%u: candidates of all sizes, each valid and once, the shipped choice among them", n);
    }
    begin(4, 1, 4);
    tap_ok(tune.points == 1 && tune.point[0].bytes == 4, "no size that holds no element");
}

static void test_choice(void)
{
    begin(4, 65536, 65536);
    struct oh_tune_point *point = &tune.point[0], fresh = tune.point[0];
    struct oh_plan_row row;
    int last = point->candidates - 1;

    give_all(point, 10, 30);
    give(point, last, 5, 30);
    tap_ok(oh_tune_choose(point, &row) == last && memcmp(&row, &point->candidate[last], sizeof row) == 0,
           "the fastest is chosen");
    tap_ok(fabs(oh_tune_weigh(point, last, OH_PERF_MODES).us - sqrt(5.0 * 6.0)) < 1e-9,
           "a size's time: both modes, and all types, count alike");
    give(point, last, 9.8, 30);
    tap_ok(oh_tune_choose(point, &row) == 0, "one that is 2 %% faster than the shipped choice is not chosen");
    give(point, last, 9.6, 30);
    tap_ok(oh_tune_choose(point, &row) == last, "one that is 4 %% faster is");
    point->time[last][OH_PERF_EAGER][type_of("float")].us = 20;
    tap_ok(oh_tune_choose(point, &row) == last, "... also if it is slower in eager calls, which are the host's");

    give(point, last, 5, 5 / 1.03);
    tap_ok(oh_tune_choose(point, &row) == 0 && memcmp(&row, &point->candidate[0], sizeof row) == 0,
           "one that stock NCCL beats by 3 %% does not count");
    give(point, last, 5, 5 / 1.01);
    tap_ok(oh_tune_choose(point, &row) == last, "one that it beats by 1 %% does");
    point->time[last][OH_PERF_EAGER][type_of("float")].stock_us = 5;
    tap_ok(oh_tune_choose(point, &row) == 0, "nor one that it beats in one mode and type only");

    *point = fresh;
    give_all(point, 10, 9);
    tap_ok(oh_tune_choose(point, &row) == 0 && row.algorithm == OH_PLAN_NCCL && row.max_bytes == 65536,
           "stock NCCL beats all: a fallback");

    *point = fresh;
    give(point, 0, 10, 30);
    give(point, 1, 9, 30);
    tap_ok(oh_tune_choose(point, &row) == 1, "time ran out: of what was measured");

    begin(5, 16 << 20, 16 << 20);
    tap_ok(oh_plan_table_end(&tune.shipped) < 16 << 20 && oh_tune_choose(&tune.point[0], &row) == -1 &&
               row.algorithm == OH_PLAN_NCCL,
           "nothing was measured: a fallback");
}

static void test_rows(void)
{
    struct oh_plan_rows rows;
    begin(4, 1024, 16384);
    for (int i = 0; i < tune.points; i++) {
        give_all(&tune.point[i], 10, i == 2 ? 5 : 30); /* 4 KiB: stock NCCL */
    }
    oh_tune_rows(&tune, &rows);
    struct oh_plan_table table = {.nranks = 4, .rows = {[ONEHOP_ALLREDUCE] = rows}};
    tap_ok(oh_plan_table_valid(&table, 4) && rows.row[2].algorithm == OH_PLAN_NCCL && rows.row[2].max_bytes == 4096 &&
               rows.row[rows.count - 1].max_bytes == oh_plan_rows_end(&tune.shipped.rows[ONEHOP_ALLREDUCE]),
           "a fallback in the middle; above what was measured as shipped");
    tap_ok(rows.row[0].max_bytes == 1024 && rows.row[1].max_bytes == 2048, "each size has its row");
    tune.points = 0;
    oh_tune_rows(&tune, &rows);
    tap_ok(memcmp(&rows, &tune.shipped.rows[ONEHOP_ALLREDUCE], sizeof rows) == 0, "not measured at all: as shipped");
    for (uint32_t n = 2; n <= OH_MAX_RANKS; n++) {
        begin(n, 512, 16 << 20); /* as many sizes as rows; each another choice than its neighbours */
        bool right = tune.points == OH_TUNE_POINTS;
        for (int i = 0; i < tune.points; i++) {
            give_all(&tune.point[i], 10, 30);
            give(&tune.point[i], i % 2 ? tune.point[i].candidates - 1 : 0, 1, 30);
        }
        table = (struct oh_plan_table){.nranks = n};
        oh_tune_rows(&tune, &table.rows[ONEHOP_ALLREDUCE]);
        tap_ok(right && oh_plan_table_valid(&table, n), "n=%u: a table of as many rows as there may be is valid", n);
    }
}

int main(void)
{
    test_candidates();
    test_choice();
    test_rows();
    return tap_done();
}
