/* SPDX-License-Identifier: MIT */
/*
 * onehop-conformance - see conformance.h
 *
 *   onehop-conformance [--ranks N,...] [--modes processes,threads,group] [--cases NAME,...] [--types NAME,...]
 *                      [--seed N] [--quick | --full] [--expect-served] [--patience FACTOR] [--json FILE] [--list]
 *   onehop-conformance --soak SECONDS [--allow HOST_KIB,HOST_KIB_EACH,GPU_KIB,HANDLES] ...
 *
 * A soak is in place of the cases, with as many ranks as there are GPUs where none are named; its seconds are shared
 * out among the modes. --allow: growth that is no fault, of host memory in all and for each communicator made, of
 * GPU memory, and of descriptors, threads and mappings.
 *
 * Speaks TAP, a point for each case of each job. Exit status 0: nothing failed; 1: something did; 2: it could not run.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "test/conformance/conformance.h"

const char *const cf_mode_names[CF_MODES] = {"processes", "threads", "group"};

uint64_t cf_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

bool cf_named(const char *list, const char *name, bool prefix)
{
    for (const char *at = list; *at != '\0';) {
        size_t length = strcspn(at, ",");
        if (length > 0 && strncmp(at, name, length) == 0 && (prefix || name[length] == '\0')) {
            return true;
        }
        at += length + (at[length] == ',');
    }
    return false;
}

bool cf_wanted(const struct cf_options *options, int which)
{
    const struct cf_case *tested = &cf_cases[which];
    if (tested->when == CF_SOAK || options->soak > 0) {
        return tested->when == CF_SOAK && options->soak > 0;
    }
    return options->cases == NULL || cf_named(options->cases, tested->name, true);
}

static void list_cases(void)
{
    for (int c = 0; c < cf_case_count; c++) {
        static const char *const when[] = {"", " [onehop only]", " [NCCL alone: not in threads]", " [--soak]"};
        printf("%-24s %s%s\n", cf_cases[c].name, cf_cases[c].what, when[cf_cases[c].when]);
    }
    exit(0);
}

static void usage(void)
{
    fprintf(stderr, "usage: onehop-conformance [--ranks N,...] [--modes processes,threads,group] [--cases NAME,...]\n"
                    "  [--types NAME,...] [--seed N] [--quick | --full] [--expect-served] [--patience FACTOR]\n"
                    "  [--json FILE] [--list] [--soak SECONDS [--allow HOST_KIB,HOST_KIB_EACH,GPU_KIB,HANDLES]]\n");
    exit(2);
}

static void parse_ranks(struct cf_options *options, const char *text)
{
    options->rank_count = 0;
    for (char *end = (char *)text; *end != '\0' && options->rank_count < CF_MAX_RANKS;) {
        int ranks = (int)strtol(end, &end, 10);
        if (ranks < 2 || ranks > CF_MAX_RANKS) {
            usage();
        }
        options->ranks[options->rank_count++] = ranks;
        end += *end == ',';
    }
}

static void parse_modes(struct cf_options *options, const char *text)
{
    for (int m = 0; m < CF_MODES; m++) {
        options->mode[m] = cf_named(text, cf_mode_names[m], false);
    }
}

enum {
    RANKS = 256,
    MODES,
    CASES,
    TYPES,
    SEED,
    QUICK,
    FULL,
    EXPECT_SERVED,
    PATIENCE,
    JSON,
    LIST,
    SOAK,
    ALLOW,
    CHILD
};

static const struct option long_options[] = {
    {"ranks", 1, NULL, RANKS}, {"modes", 1, NULL, MODES},       {"cases", 1, NULL, CASES},
    {"types", 1, NULL, TYPES}, {"seed", 1, NULL, SEED},         {"quick", 0, NULL, QUICK},
    {"full", 0, NULL, FULL},   {"json", 1, NULL, JSON},         {"expect-served", 0, NULL, EXPECT_SERVED},
    {"list", 0, NULL, LIST},   {"patience", 1, NULL, PATIENCE}, {"child", 1, NULL, CHILD},
    {"soak", 1, NULL, SOAK},   {"allow", 1, NULL, ALLOW},       {NULL, 0, NULL, 0},
};

/* What the launcher tells a child: mode, ranks, first rank, first case, seed, board. */
static void parse_child(struct cf_options *options, const char *text)
{
    int mode, used = 0;
    unsigned long long seed;
    if (sscanf(text, "%d:%d:%d:%d:%llu:%n", &mode, &options->nranks, &options->rank, &options->first_case, &seed,
               &used) < 5 ||
        used == 0) {
        usage();
    }
    options->child_mode = (enum cf_mode)mode;
    options->seed = seed;
    options->board = text + used;
}

static void parse_allowance(struct cf_options *options, const char *text)
{
    struct cf_allowance *allowance = &options->allowance;
    if (sscanf(text, "%ld,%ld,%ld,%ld", &allowance->host_kib, &allowance->host_kib_each, &allowance->gpu_kib,
               &allowance->handles) != 4) {
        usage();
    }
}

static void parse(int argc, char **argv, struct cf_options *options)
{
    int option;
    while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        switch (option) {
        case RANKS:
            parse_ranks(options, optarg);
            break;
        case MODES:
            parse_modes(options, optarg);
            break;
        case CASES:
            options->cases = optarg;
            break;
        case TYPES:
            options->types = optarg;
            break;
        case SEED:
            options->seed = strtoull(optarg, NULL, 0);
            break;
        case QUICK:
        case FULL:
            options->full = option == FULL;
            break;
        case EXPECT_SERVED:
            options->expect_served = true;
            break;
        case PATIENCE:
            options->patience = atoi(optarg);
            break;
        case JSON:
            options->json = optarg;
            break;
        case LIST:
            list_cases();
            break;
        case SOAK:
            options->soak = atoi(optarg);
            break;
        case ALLOW:
            parse_allowance(options, optarg);
            break;
        case CHILD:
            parse_child(options, optarg);
            break;
        default:
            usage();
        }
    }
    if (optind < argc || options->patience < 1 || options->soak < 0) {
        usage();
    }
}

int main(int argc, char **argv)
{
    struct cf_options options = {
        .mode = {true, true, true}, .rank = -1, .patience = 1, .allowance = {8192, 0, 2048, 0}};
    if (getrandom(&options.seed, sizeof options.seed, 0) != sizeof options.seed) {
        options.seed = (uint64_t)time(NULL);
    }
    options.seed &= UINT32_MAX;
    parse(argc, argv, &options);
    return options.rank >= 0 ? cf_child(&options) : cf_launch(&options, argv);
}
