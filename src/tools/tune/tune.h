/* SPDX-License-Identifier: MIT */
/*
 * tune.h - what the parts of `onehop tune` share
 *
 * A point is one size; its candidates are rows that could stand in a table for it. Candidate k of every point makes
 * table k, which processes of `onehop perf` measure (tune/trials.c) through ONEHOP_TUNING_FILE, in turns with stock
 * NCCL: the same code serves a trial and a user. The choice is a pure function of the times (tune/choose.c). One
 * thread.
 */
#ifndef OH_TOOLS_TUNE_TUNE_H_
#define OH_TOOLS_TUNE_TUNE_H_

#include <stdint.h>

#include "plan/tuning.h"
#include "tools/perf/perf.h"

#define OH_TUNE_CANDIDATES (3 * ONEHOP_ALGORITHM_COUNT + 1) /* three grids each, and the shipped choice */
#define OH_TUNE_POINTS 16                                   /* so that rows of the shipped table fit beside them */

/* How much faster stock NCCL must be, in any mode and type, to have a size for itself. */
#define OH_TUNE_MARGIN 1.02
/* How much faster a candidate must be than a more likely one before it: below, runs differ by as much. */
#define OH_TUNE_GAIN 1.03

struct oh_tune_options {
    struct oh_perf_options perf; /* what a trial is */
    int time_s;                  /* no candidate is begun later */
    const char *output;          /* NULL: the cache */
};

struct oh_tune_time {
    double us;       /* of a call that the candidate serves: slowest rank, median of the rounds; 0: not measured */
    double stock_us; /* of NCCL, in the same processes and in turns with it */
};

struct oh_tune_point {
    uint64_t bytes;
    int candidates;
    struct oh_plan_row candidate[OH_TUNE_CANDIDATES];
    struct oh_tune_time time[OH_TUNE_CANDIDATES][OH_PERF_MODES][OH_PERF_TYPES];
};

/* The table being made. */
struct oh_tune {
    const struct oh_tune_options *options;
    enum onehop_collective collective;
    struct oh_tuning_key key;
    struct oh_plan_table shipped;
    struct oh_plan_table before; /* the file's, or what is used now: the other collectives stay as they are */
    int points;
    struct oh_tune_point point[OH_TUNE_POINTS];
    int candidates, measured; /* of the size that has most; of these, those that were begun */
};

/* What the times of a candidate say together. */
struct oh_tune_weight {
    double us, stock_us; /* geometric means; 0: nothing was measured */
    double worst;        /* the largest us / stock_us */
};

/* tune/choose.c: pure functions. */

/* Fills in the points: every size that holds an element of a type of the options. The key and options are set. */
void oh_tune_list(struct oh_tune *tune);

/* Weighs the times of a candidate in one mode; OH_PERF_MODES: in all of them. */
struct oh_tune_weight oh_tune_weigh(const struct oh_tune_point *point, int candidate, int mode);

/*
 * Chooses the fastest candidate that stock NCCL does not beat (OH_TUNE_GAIN), or a fallback, in *row_p. Returns the
 * candidate, or the fastest of those that NCCL beats; -1: there is none.
 */
int oh_tune_choose(const struct oh_tune_point *point, struct oh_plan_row *row_p);

/* Lists the rows of the table: the choices, and around the sizes measured what the shipped table has. */
void oh_tune_rows(const struct oh_tune *tune, struct oh_plan_rows *rows_p);

/*
 * tune/table_text.c: writes a text with one table, which src/plan/tuning.c reads. comment: of each row of the
 * collective `commented`, or NULL.
 */
#define OH_TUNING_COMMENT 128
void oh_tuning_write(FILE *stream, const struct oh_tuning_key *key, const char *source,
                     const struct oh_plan_table *table, enum onehop_collective commented,
                     const char (*comment)[OH_TUNING_COMMENT]);

/* tune/trials.c */

/* Measures all points, the likely candidates first, while signals are held. Ends the command if that fails. */
void oh_tune_measure(struct oh_tune *tune);

#endif
