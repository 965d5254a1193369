/* SPDX-License-Identifier: MIT */
/*
 * main.c - onehop-programs: runs the programs of some seeds
 *
 * Does: Runs each seed's program, says how it ended, and shrinks and prints one that failed: drops runs of items, half
 *    of them at first and one at a time at last, while the program still fails in one of some runs. (Zeller and
 *    Hildebrandt, Simplifying and Isolating Failure-Inducing Input, TSE 2002.)
 * Threads: one; the processes of a job are this program again.
 * Owns: nothing.
 */
#include <stdio.h>
#include <stdlib.h>

#include "test/common/options.h"
#include "test/programs/program.h"

#define MOST_SHRUNK 2 /* programs of a run */
#define SHOWS 5       /* runs of a shrunk program, for one that fails */
#define TRIES 3       /* runs, before a program counts as right */
#define LIMIT_SECONDS 4

static const char usage[] = "usage: onehop-programs [OPTIONS]\n"
                            "\n"
                            "Runs random NCCL programs, one a seed, and checks every result.\n"
                            "\n"
                            "  --seed N          the first seed (1)\n"
                            "  --count N         how many seeds (1)\n"
                            "  --step N          from one seed to the next (1)\n"
                            "  --plugin PATH     libonehop.so; without it stock NCCL alone\n"
                            "  --items LIST      only these items of the program: 0-4,7\n"
                            "  --print           print the program, do not run it\n"
                            "  --ranks N         at most so many ranks (4)\n"
                            "  --plain           only what a real NCCL allows\n"
                            "  --limit SECONDS   of a run (20, times $OH_PROGRAM_PATIENCE)\n"
                            "  --shrink SECONDS  to shrink a failing program in, the first two (60)\n"
                            "\n"
                            "Exit status: 0 if all are right, 1 if one is not, 2 for wrong usage.\n";

static struct pg_program program;
static uint64_t first_seed = 1;
static int seeds = 1, step = 1, shrink_seconds = 60;
static bool prints;
static const char *items;
static struct pg_options options = {.seconds = 20, .most_ranks = PG_MAX_RANKS};

static void copy(FILE *from)
{
    int c;
    rewind(from);
    while ((c = getc(from)) != EOF) {
        putchar(c);
    }
}

static bool run(const struct pg_mask *active, bool prints_log, double *seconds_p)
{
    FILE *log = tmpfile();
    if (log == NULL) {
        return false;
    }
    bool good = pg_run(&options, &program, active, log, seconds_p);
    if (prints_log && !good) {
        copy(log);
    }
    fclose(log);
    return good;
}

/* --- shrinking ---------------------------------------------------------------------------------------------------- */

/* A failure may depend on timing. */
static bool fails(const struct pg_mask *active, double end)
{
    bool good = true;
    for (int i = 0; i < TRIES && good && cf_now() < end; i++) {
        double seconds;
        good = run(active, false, &seconds);
    }
    return !good;
}

static int count(const struct pg_mask *mask)
{
    int on = 0;
    for (int i = 0; i < PG_MAX_ITEMS; i++) {
        on += mask->on[i];
    }
    return on;
}

/* Without `length` of its items, from the first-th on. */
static struct pg_mask without(struct pg_mask mask, int first, int length)
{
    for (int i = 0, at = 0; i < program.items; i++) {
        if (mask.on[i]) {
            mask.on[i] = at < first || at >= first + length;
            at++;
        }
    }
    return pg_close(&program, &mask);
}

/* The fewest items found with which the program, whose run took so many seconds, still fails. */
static struct pg_mask shrink(struct pg_mask failing, double took)
{
    const double end = cf_now() + shrink_seconds;
    const int limit = options.seconds;
    options.seconds = took < limit ? (int)took + LIMIT_SECONDS : limit;
    options.seconds = options.seconds > 2 * LIMIT_SECONDS ? 2 * LIMIT_SECONDS : options.seconds;
    for (int length = count(&failing) / 2; length > 0; length = length > 1 ? length / 2 : 0) {
        for (int first = 0; first < count(&failing) && cf_now() < end;) {
            struct pg_mask less = without(failing, first, length);
            if (count(&less) < count(&failing) && fails(&less, end)) {
                failing = less;
            } else {
                first += length;
            }
        }
    }
    options.seconds = limit;
    return failing;
}

/* --- seeds -------------------------------------------------------------------------------------------------------- */

static void print_again(const struct pg_mask *active)
{
    pg_print(&program, active, stdout);
    printf("again: onehop-programs --seed %llu%s", (unsigned long long)program.seed, options.plain ? " --plain" : "");
    if (options.most_ranks != PG_MAX_RANKS) {
        printf(" --ranks %d", options.most_ranks);
    }
    printf("%s%s --items ", options.plugin != NULL ? " --plugin " : "", options.plugin != NULL ? options.plugin : "");
    pg_mask_print(active, stdout);
    putchar('\n');
}

/* Prints what of the program is needed to fail, and whether stock NCCL runs that. */
static void print_failure(const struct pg_mask *active, double took)
{
    static int shrunk;
    struct pg_mask least = *active;
    double seconds;
    if (shrink_seconds > 0 && shrunk++ < MOST_SHRUNK) {
        least = shrink(*active, took);
        for (int i = 0; i < SHOWS && run(&least, true, &seconds); i++) {
        }
    }
    print_again(&least);
    if (options.plugin != NULL) {
        struct pg_options ours = options;
        options.plugin = NULL;
        printf("with stock NCCL: %s\n", run(&least, true, &seconds) ? "right" : "fails, too");
        options = ours;
    }
}

static bool run_seed(uint64_t seed)
{
    struct pg_mask kept, active;
    double took = 0;
    pg_generate(seed, options.most_ranks, options.plain, &program);
    for (int i = 0; i < PG_MAX_ITEMS; i++) {
        kept.on[i] = true;
    }
    if (items != NULL && !pg_mask_parse(items, &kept)) {
        cf_options_refuse(usage);
    }
    active = pg_close(&program, &kept);
    if (prints) {
        print_again(&active);
        return true;
    }
    bool good = run(&active, true, &took);
    printf("%s seed %llu, %.1f s\n", good ? "ok" : "FAILED", (unsigned long long)seed, took);
    if (!good) {
        print_failure(&active, took);
    }
    fflush(stdout);
    return good;
}

int main(int argc, char **argv)
{
    const struct cf_option table[] = {CF_NUMBER("seed", &first_seed),
                                      CF_INT("count", &seeds, 1, 1000000),
                                      CF_INT("step", &step, 1, 1000000),
                                      CF_WORD("plugin", &options.plugin),
                                      CF_WORD("items", &items),
                                      CF_FLAG("print", &prints),
                                      CF_INT("ranks", &options.most_ranks, 2, PG_MAX_RANKS),
                                      CF_FLAG("plain", &options.plain),
                                      CF_INT("limit", &options.seconds, 1, 3600),
                                      CF_INT("shrink", &shrink_seconds, 0, 3600),
                                      CF_NO_MORE};
    struct cf_board *board;
    int process, failed = 0;
    if (cf_job_join(sizeof(struct pg_board), &board, &process)) {
        return pg_run_process((struct pg_board *)board, process);
    }
    const char *patience = getenv("OH_PROGRAM_PATIENCE");
    options.argv = argv;
    if (cf_options_read(argc, argv, usage, table) != argc) {
        cf_options_refuse(usage);
    }
    options.seconds *= patience != NULL && atoi(patience) > 0 ? atoi(patience) : 1;
    for (int i = 0; i < seeds; i++) {
        failed += !run_seed(first_seed + (uint64_t)i * (uint64_t)step);
    }
    return failed > 0;
}
