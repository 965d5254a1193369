/* SPDX-License-Identifier: MIT */
/*
 * choice.c - two implementations of one allreduce, stock NCCL and onehop, and which of them each size should go to
 *
 *   choice [-n RANKS] [-b BYTES] [-e BYTES] [-m graph|eager] [-i CALLS] [-r ROUNDS] [-T SECONDS] [-l NCCL]
 *          LIBONEHOP.so
 *
 * The trials are those of `onehop tune`, by its own code (src/tools/tune/tune.h): here each size has one candidate,
 * what the shipped table has for it. Ranks begin together, blocks of the two alternate, results are checked, the
 * slowest rank counts, then the median of the rounds. A size goes to onehop when its trial has shown that NCCL is not
 * faster; to NCCL in any other case. A rank that stalls ends the command after -T seconds (120).
 *
 * The table is Markdown, on stdout. Exit status: 0 each size has its choice, 1 nothing could be measured, 2 usage.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/shared/outfile.h"
#include "tools/shared/tool.h"
#include "tools/tune/tune.h"

static const char usage[] = "usage: choice [-n RANKS] [-b BYTES] [-e BYTES] [-m graph|eager] [-i CALLS] [-r ROUNDS]\n"
                            "              [-T SECONDS] [-l NCCL] LIBONEHOP.so\n";

/* --- options ---------------------------------------------------------------------------------------------------- */

static void parse_options(int argc, char **argv, struct oh_tune_options *tune)
{
    struct oh_perf_options *perf = &tune->perf;
    int sizes = 0;
    const struct oh_option options[] = {
        {"ranks", 'n', oh_option_int, OH_RANGE(&perf->ranks, 2, OH_MAX_RANKS)},
        {"minbytes", 'b', oh_option_size, OH_RANGE(&perf->min_bytes, 1, OH_MESSAGE_BYTES)},
        {"maxbytes", 'e', oh_option_size, OH_RANGE(&perf->max_bytes, 1, OH_MESSAGE_BYTES)},
        {"mode", 'm', oh_option_list, OH_WORDS(perf->mode, oh_perf_mode_names)},
        {"iters", 'i', oh_option_int, OH_RANGE(&perf->iters, 1, 1000)},
        {"rounds", 'r', oh_option_int, OH_RANGE(&perf->rounds, 1, OH_PERF_ROUNDS)},
        {"timeout", 'T', oh_option_int, OH_RANGE(&perf->timeout_s, 1, 86400)},
        {"nccl", 'l', oh_option_text, &perf->nccl},
        {NULL, 0, NULL, NULL}};
    int first = oh_options_read(argc, argv, usage, options);
    for (size_t bytes = perf->min_bytes; bytes <= perf->max_bytes; bytes *= 2) {
        sizes++;
    }
    if (sizes < 1 || sizes > OH_TUNE_POINTS || first != argc - 1) {
        fputs(usage, stderr);
        exit(OH_EXIT_USAGE);
    }
    perf->onehop = argv[first];
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

static void measure(struct oh_tune_options *options, struct oh_tune *tune)
{
    struct oh_workers_machine machine;
    oh_workers_ask_machine(&machine);
    const int gpus = machine.gpus;
    memcpy(tune->key.gpu, machine.gpu, sizeof tune->key.gpu);
    memcpy(tune->key.driver, machine.driver, sizeof tune->key.driver);
    snprintf(tune->key.nccl, sizeof tune->key.nccl, "unknown");
    int most = gpus < OH_MAX_RANKS ? gpus : OH_MAX_RANKS;
    options->perf.ranks = options->perf.ranks > 0 ? options->perf.ranks : most;
    if (options->perf.ranks < 2 || options->perf.ranks > most) {
        OH_TOOL_FAIL("%d ranks need as many GPUs, at least 2; CUDA sees %d here", options->perf.ranks, gpus);
    }
    tune->options = options;
    tune->key.nranks = (uint32_t)options->perf.ranks;
    list_sizes(tune);
    oh_tune_measure(tune);
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
static void explain(const struct oh_tune_point *point, const struct oh_plan_row *choice, char *text_p, size_t size)
{
    const struct oh_plan_row *row = &point->candidate[0];
    if (!point->shipped) {
        snprintf(text_p, size, "onehop falls back at this size");
    } else {
        snprintf(text_p, size, "%s: %s %ux%u", choice->algorithm == OH_PLAN_NCCL ? "faster than" : "not slower",
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
        if (time->us > 0) {
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
           tune->key.gpu, tune->key.nccl, oh_perf_type_names[the_type(tune->options)], perf->iters, perf->rounds);
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
        struct oh_plan_row choice;
        char why[128];
        oh_tune_choose(point, &choice);
        explain(point, &choice, why, sizeof why);
        printf("| %" PRIu64 " |", point->bytes);
        print_times(tune, point);
        printf(" %s | %s |\n", choice.algorithm == OH_PLAN_NCCL ? "stock" : "onehop", why);
    }
}

int main(int argc, char **argv)
{
    struct oh_tune_options options = oh_tune_defaults();
    struct oh_tune *tune = oh_tool_allocate(sizeof *tune);
    oh_tool_begin("choice", OH_EXIT_FAILED);
    options.perf.rounds = 20;
    options.perf.mode[OH_PERF_EAGER] = false;
    oh_option_list("datatype", "bfloat16", OH_WORDS(options.perf.type, oh_perf_type_names));
    parse_options(argc, argv, &options);
    oh_signals_hold();
    measure(&options, tune);
    print_table(tune);
    free(tune);
    oh_signals_release();
    return OH_EXIT_OK;
}
