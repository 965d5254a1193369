/* SPDX-License-Identifier: MIT */
/*
 * shrink.c - leaves out of a failing program what its failure does not need
 *
 * Does: Drops runs of items, half of them at first and one at a time at last, while the program still fails in one of
 *    some runs. (Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, TSE 2002.)
 * Threads: one.
 * Owns: nothing.
 */
#include <stdio.h>

#include "test/programs/program.h"

#define TRIES 3 /* runs, before a program counts as right */
#define LIMIT_SECONDS 4

/* A failure may depend on timing. */
static bool fails(const struct pg_options *options, const struct pg_program *program, const struct pg_mask *active,
                  double end)
{
    bool good = true;
    for (int i = 0; i < TRIES && good && cf_now() < end; i++) {
        double seconds;
        FILE *log = tmpfile();
        good = log == NULL || pg_run(options, program, active, log, &seconds);
        if (log != NULL) {
            fclose(log);
        }
    }
    return !good;
}

static int count(const struct pg_mask *mask)
{
    int items = 0;
    for (int i = 0; i < PG_MAX_ITEMS; i++) {
        items += mask->on[i];
    }
    return items;
}

/* Without `run` of its items, from the first-th on. */
static struct pg_mask without(const struct pg_program *program, struct pg_mask mask, int first, int run)
{
    for (int i = 0, at = 0; i < program->items; i++) {
        if (mask.on[i]) {
            mask.on[i] = at < first || at >= first + run;
            at++;
        }
    }
    return pg_close(program, &mask);
}

struct pg_mask pg_shrink(const struct pg_options *options, const struct pg_program *program, struct pg_mask failing,
                         double took, int seconds)
{
    struct pg_options quick = *options;
    double end = cf_now() + seconds;
    quick.seconds = took < options->seconds ? (int)took + LIMIT_SECONDS : options->seconds;
    quick.seconds = quick.seconds > 2 * LIMIT_SECONDS ? 2 * LIMIT_SECONDS : quick.seconds;
    for (int run = count(&failing) / 2; run > 0; run = run > 1 ? run / 2 : 0) {
        for (int first = 0; first < count(&failing) && cf_now() < end;) {
            struct pg_mask less = without(program, failing, first, run);
            if (count(&less) < count(&failing) && fails(&quick, program, &less, end)) {
                failing = less;
            } else {
                first += run;
            }
        }
    }
    return failing;
}
