/* SPDX-License-Identifier: MIT */
/*
 * tune/choose.c - candidates for each size, and the choice among them
 *
 * Does: Lists what could serve a size; chooses when the times are known.
 * Threads: pure functions.
 * Owns: nothing.
 */
#include "tools/tune/tune.h"

#include <math.h>

/* --- candidates ------------------------------------------------------------------------------------------------- */

static void add_candidate(const struct oh_tune *tune, struct oh_tune_point *point, struct oh_plan_row row)
{
    row.max_bytes = point->bytes;
    for (int k = 0; k < point->candidates; k++) {
        const struct oh_plan_row *known = &point->candidate[k];
        if (known->algorithm == row.algorithm && known->blocks == row.blocks && known->threads == row.threads) {
            return;
        }
    }
    if (row.algorithm != OH_PLAN_NCCL && point->candidates < OH_TUNE_CANDIDATES &&
        oh_plan_row_valid(&row, tune->collective, tune->key.nranks)) {
        point->candidate[point->candidates++] = row;
    }
}

/* The shape of the rule; as many threads in half the blocks; half as many. */
static void add_shape(const struct oh_tune *tune, struct oh_tune_point *point, int algorithm, int variant)
{
    struct oh_plan_row row = {.algorithm = (uint32_t)algorithm};
    oh_plan_shape(tune->collective, (enum onehop_algorithm)algorithm, tune->key.nranks, point->bytes, &row.blocks,
                  &row.threads);
    if (variant > 0) {
        row.blocks /= 2;
    }
    if (variant == 1) {
        row.threads *= 2;
    }
    add_candidate(tune, point, row);
}

/* The likely ones first: time may run out. */
static void add_candidates(const struct oh_tune *tune, struct oh_tune_point *point)
{
    const struct oh_plan_rows *rows = &tune->shipped.rows[tune->collective];
    for (uint32_t i = 0; i < rows->count; i++) {
        if (point->bytes <= rows->row[i].max_bytes) {
            add_candidate(tune, point, rows->row[i]);
            break;
        }
    }
    for (int variant = 0; variant < 3; variant++) {
        for (int a = 0; a < ONEHOP_ALGORITHM_COUNT; a++) {
            add_shape(tune, point, a, variant);
        }
    }
}

void oh_tune_list(struct oh_tune *tune)
{
    const struct oh_perf_options *perf = &tune->options->perf;
    oh_tuning_shipped(tune->key.gpu, tune->key.nranks, &tune->shipped, NULL);
    const uint32_t parts = oh_collective_parts(tune->collective, tune->key.nranks);
    tune->points = 0;
    for (uint64_t bytes = perf->min_bytes; bytes <= perf->max_bytes; bytes *= 2) {
        bool asked = false;
        for (int type = 0; type < OH_PERF_TYPES; type++) {
            asked |= perf->type[type] && oh_perf_types[type].size * parts <= bytes;
        }
        if (asked && tune->points < OH_TUNE_POINTS) {
            struct oh_tune_point *point = &tune->point[tune->points++];
            *point = (struct oh_tune_point){.bytes = bytes};
            add_candidates(tune, point);
        }
    }
}

/* --- choosing --------------------------------------------------------------------------------------------------- */

struct oh_tune_weight oh_tune_weigh(const struct oh_tune_point *point, int candidate, int mode)
{
    struct oh_tune_weight weight = {0};
    double logs = 0, stock_logs = 0;
    int times = 0;
    for (int i = 0; i < OH_PERF_MODES * OH_PERF_TYPES && candidate >= 0; i++) {
        const struct oh_tune_time *time = &point->time[candidate][i / OH_PERF_TYPES][i % OH_PERF_TYPES];
        if (time->us > 0 && (mode == OH_PERF_MODES || mode == i / OH_PERF_TYPES)) {
            logs += log(time->us);
            stock_logs += log(time->stock_us);
            weight.worst = fmax(weight.worst, time->us / time->stock_us);
            times++;
        }
    }
    if (times > 0) {
        weight.us = exp(logs / times);
        weight.stock_us = exp(stock_logs / times);
    }
    return weight;
}

/* In graphs, where they were measured: in eager calls the host's time hides the GPU's. 0: not measured. */
static double time_of(const struct oh_tune_point *point, int candidate)
{
    const double graph_us = oh_tune_weigh(point, candidate, OH_PERF_GRAPH).us;
    return graph_us > 0 ? graph_us : oh_tune_weigh(point, candidate, OH_PERF_MODES).us;
}

/* The fastest; of those that stock NCCL beats nowhere, if `winners`. -1: none. */
static int fastest(const struct oh_tune_point *point, bool winners)
{
    double least = INFINITY;
    int best = -1;
    for (int k = 0; k < point->candidates; k++) {
        const double us = time_of(point, k), worst = oh_tune_weigh(point, k, OH_PERF_MODES).worst;
        if (us > 0 && us * (best < 0 ? 1 : OH_TUNE_GAIN) < least && (!winners || worst <= OH_TUNE_MARGIN)) {
            best = k;
            least = us;
        }
    }
    return best;
}

int oh_tune_choose(const struct oh_tune_point *point, struct oh_plan_row *row_p)
{
    const int best = fastest(point, true);
    *row_p =
        best >= 0 ? point->candidate[best] : (struct oh_plan_row){.max_bytes = point->bytes, .algorithm = OH_PLAN_NCCL};
    return best >= 0 ? best : fastest(point, false);
}

/* --- rows ------------------------------------------------------------------------------------------------------- */

static void add_row(struct oh_plan_rows *rows, const struct oh_plan_row *row)
{
    if (rows->count < OH_PLAN_ROWS) {
        rows->row[rows->count++] = *row;
    }
}

void oh_tune_rows(const struct oh_tune *tune, struct oh_plan_rows *rows_p)
{
    const struct oh_plan_rows *shipped = &tune->shipped.rows[tune->collective];
    struct oh_plan_rows rows = {0};
    uint64_t measured = 0;
    for (uint32_t i = 0; i < shipped->count; i++) { /* below what was measured, and above */
        if (2 * shipped->row[i].max_bytes <= tune->options->perf.min_bytes) {
            add_row(&rows, &shipped->row[i]);
        }
    }
    for (int i = 0; i < tune->points; i++) {
        struct oh_plan_row row;
        oh_tune_choose(&tune->point[i], &row);
        add_row(&rows, &row);
        measured = tune->point[i].bytes;
    }
    for (uint32_t i = 0; i < shipped->count; i++) {
        if (shipped->row[i].max_bytes > measured) {
            add_row(&rows, &shipped->row[i]);
        }
    }
    *rows_p = rows;
}
