/* SPDX-License-Identifier: MIT */
/*
 * choice.c - two implementations of one allreduce, stock NCCL and onehop, and which of them each size should go to
 *
 *   choice [-n RANKS] [-b BYTES] [-e BYTES] [-m graph|eager] [-i CALLS] [-r ROUNDS] [-t SECONDS] [-T SECONDS]
 *          [-l NCCL] LIBONEHOP.so
 *
 * The trials are those of `onehop tune`, by its own code (src/tools/tune/tune.h): here each size has one candidate,
 * what the shipped table has for it. Ranks begin together, blocks of the two alternate, results are checked, the
 * slowest rank counts, then the median of the rounds. A size goes to onehop when its trial has shown that NCCL is not
 * faster; to NCCL in any other case, also when the trial is not over after -t seconds (5), or when all -T (120) are
 * over: the ranks are ended then, others measure the rest, and no rank is waited for.
 *
 * The table is Markdown, on stdout. Exit status: 0 each size has its choice, 1 nothing could be measured, 2 usage.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/shared/tool.h"
#include "tools/tune/tune.h"
#include "util/clock.h"

static const char usage[] = "usage: choice [-n RANKS] [-b BYTES] [-e BYTES] [-m graph|eager] [-i CALLS] [-r ROUNDS]\n"
                            "              [-t SECONDS] [-T SECONDS] [-l NCCL] LIBONEHOP.so\n";

/* --- options ---------------------------------------------------------------------------------------------------- */

static bool number(int option, bool units, size_t max, size_t *number_p)
{
    char name[2] = {(char)option, '\0'};
    return oh_tool_number("choice", name, optarg, units, 1, max, number_p);
}

static const char *mode_name(int mode)
{
    return oh_perf_mode_names[mode];
}

static bool parse_option(int option, struct oh_tune_options *options)
{
    struct oh_perf_options *perf = &options->perf;
    size_t value = 0;
    switch (option) {
    case 'n':
        return number(option, false, OH_MAX_RANKS, &value) && (options->ranks[0] = (int)value) >= 2;
    case 'b':
        return number(option, true, OH_MESSAGE_BYTES, &perf->min_bytes);
    case 'e':
        return number(option, true, OH_MESSAGE_BYTES, &perf->max_bytes);
    case 'm':
        return oh_tool_list("choice", "m", optarg, mode_name, OH_PERF_MODES, perf->mode);
    case 'i':
        return number(option, false, 1000, &value) && (perf->iters = (int)value) > 0;
    case 'r':
        return number(option, false, OH_PERF_ROUNDS, &value) && (perf->rounds = (int)value) > 0;
    case 't':
        return number(option, false, 3600, &value) && (options->trial_s = (int)value) > 0;
    case 'T':
        return number(option, false, 86400, &value) && (options->time_s = (int)value) > 0;
    case 'l':
        perf->nccl = optarg;
        return true;
    default:
        return false;
    }
}

static bool parse_options(int argc, char **argv, struct oh_tune_options *options)
{
    int option, sizes = 0;
    while ((option = getopt(argc, argv, "n:b:e:m:i:r:t:T:l:")) != -1) {
        if (!parse_option(option, options)) {
            return false;
        }
    }
    for (size_t bytes = options->perf.min_bytes; bytes <= options->perf.max_bytes; bytes *= 2) {
        sizes++;
    }
    if (sizes < 1 || sizes > OH_TUNE_POINTS || optind != argc - 1) {
        return false;
    }
    snprintf(options->perf.onehop, sizeof options->perf.onehop, "%s", argv[optind]);
    return true;
}

/* --- measuring -------------------------------------------------------------------------------------------------- */

/* The sizes, each with what the shipped table has for it as its one candidate; none where that is NCCL. */
static void list_sizes(struct oh_tune *tune)
{
    oh_tune_list(tune);
    for (int i = 0; i < tune->points; i++) {
        tune->point[i].candidates = tune->point[i].shipped;
    }
}

/* False: said on stderr. */
static bool measure(struct oh_tune_options *options, struct oh_tune *tune)
{
    int gpus;
    if (!oh_tune_ask_machine(&tune->key, &gpus)) {
        return false;
    }
    int most = gpus < OH_MAX_RANKS ? gpus : OH_MAX_RANKS;
    int ranks = options->ranks[0] > 0 ? options->ranks[0] : most;
    if (ranks < 2 || ranks > most) {
        oh_tool_error("choice: %d ranks need as many GPUs, at least 2; CUDA sees %d here", ranks, gpus);
        return false;
    }
    tune->options = options;
    tune->key.nranks = (uint32_t)ranks;
    tune->deadline_ns = oh_now_ns() + (uint64_t)options->time_s * 1000000000u;
    list_sizes(tune);
    return oh_tune_measure(tune) && !oh_workers_signal();
}

/* --- the table -------------------------------------------------------------------------------------------------- */

static int the_type(const struct oh_tune_options *options)
{
    int type = 0;
    while (!options->perf.type[type]) {
        type++;
    }
    return type;
}

/* Why a size goes where it goes. */
static void explain(const struct oh_tune *tune, const struct oh_tune_point *point, const struct oh_tune_choice *choice,
                    char *text_p, size_t size)
{
    if (point->too_slow) {
        snprintf(text_p, size, "its trial was not over after %d s", tune->options->trial_s);
    } else if (!point->shipped) {
        snprintf(text_p, size, "onehop falls back at this size");
    } else if (choice->why == OH_TUNE_SHIPPED) {
        snprintf(text_p, size, "time ran out before its trial was over");
    } else {
        const struct oh_plan_row *row = &point->candidate[0];
        snprintf(text_p, size, "%s: %s %ux%u", choice->why == OH_TUNE_STOCK ? "faster than" : "not slower",
                 oh_algorithm_name((int)row->algorithm), row->blocks, row->threads);
    }
}

static void print_times(const struct oh_tune *tune, const struct oh_tune_point *point)
{
    int type = the_type(tune->options);
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        const struct oh_tune_time *time = &point->time[0][mode][type];
        if (!tune->options->perf.mode[mode]) {
            continue;
        }
        if (time->done) {
            printf(" %.2f | %.2f | %.2f |", time->stock_us, time->us, time->stock_us / time->us);
        } else {
            printf(" - | - | - |");
        }
    }
}

static void print_head(const struct oh_tune *tune)
{
    const struct oh_perf_options *perf = &tune->options->perf;
    printf("%s%u x %s, NCCL %s, %s sum, %d calls a block, %d rounds; microseconds a call, of the slowest rank\n\n",
           oh_tool_is_simulated(tune->key.gpu) ? "SIMULATED (times mean nothing): " : "", tune->key.nranks,
           tune->key.gpu, tune->key.nccl, oh_perf_types[the_type(tune->options)].name, perf->iters, perf->rounds);
    printf("| bytes |");
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        if (perf->mode[mode]) {
            printf(" %s: stock | onehop | times |", oh_perf_mode_names[mode]);
        }
    }
    printf(" choice | why |\n|---|");
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        printf("%s", perf->mode[mode] ? "---|---|---|" : "");
    }
    printf("---|---|\n");
}

static void print_table(const struct oh_tune *tune)
{
    print_head(tune);
    for (int i = 0; i < tune->points; i++) {
        const struct oh_tune_point *point = &tune->point[i];
        const struct oh_tune_choice choice = oh_tune_choose(tune, point);
        char why[128];
        explain(tune, point, &choice, why, sizeof why);
        printf("| %" PRIu64 " |", point->bytes);
        print_times(tune, point);
        printf(" %s | %s |\n", choice.why == OH_TUNE_FASTEST ? "onehop" : "stock", why);
    }
}

int main(int argc, char **argv)
{
    struct oh_tune_options options = oh_tune_defaults();
    options.perf.rounds = 20;
    options.time_s = 120;
    options.too_slow = "it goes to stock NCCL";
    for (int i = 0; i < OH_PERF_TYPES; i++) {
        options.perf.type[i] = strcmp(oh_perf_types[i].name, "bfloat16") == 0;
    }
    if (!parse_options(argc, argv, &options)) {
        fputs(usage, stderr);
        return OH_EXIT_USAGE;
    }
    struct oh_tune *tune = calloc(1, sizeof *tune);
    if (!tune) {
        oh_tool_error("choice: out of memory");
        return OH_EXIT_FAILED;
    }
    oh_workers_hold_signals();
    bool good = measure(&options, tune);
    if (good) {
        print_table(tune);
    }
    free(tune);
    if (oh_workers_signal()) {
        oh_workers_end_by(oh_workers_signal());
    }
    return good ? OH_EXIT_OK : OH_EXIT_FAILED;
}
