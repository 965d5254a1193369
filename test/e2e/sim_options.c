/* SPDX-License-Identifier: MIT */
/* sim_options.c - command line of sim_app. */
#include "sim_app.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: sim_app [options]\n"
    "  --nranks N --local K        ranks of the job, ranks per process\n"
    "  --threads                   several ranks of a process: a thread each (otherwise one thread, groups)\n"
    "  --own-gpu                   CUDA_VISIBLE_DEVICES: each process sees only its own GPUs\n"
    "  --rank-env R:NAME=VALUE     environment of the process that holds rank R; NAME alone: unset\n"
    "  --rank R --id-file F        be the process whose first rank is R\n"
    "  --timeout S                 end everything after S seconds\n"
    "  --make rank|config|nonblocking|scalable|all|split|family|shrink|grow\n"
    "  --split-colors a,b,... --split-keys a,b,...  of split; colour -1: excluded by shrink, new to grow;\n"
    "                              key of grow: 1, the rank has the id\n"
    "  --nonblocking               a parent and its children are made without waiting\n"
    "  --pause MS                  wait after the first calls, and after a capture\n"
    "  --jitter US                 ranks wait up to as long before each call and poll\n"
    "  --comms N --streams N       calls go round them\n"
    "  --batch N --group N --nested  calls before waiting; calls per group\n"
    "  --scramble                    communicators of a group in another order on odd ranks\n"
    "  --counts a,b --types f32,f16 --op sum --offsets s:r,... --in-place 0|1|both\n"
    "  --iterations N --graph REPLAYS --mix --seed N\n"
    "  --descriptors N             left to a process while it makes its communicators\n"
    "  --linger                    ends when the communicators' memory is back, or after 10 seconds\n"
    "  --scenario "
    "simulate|group-error|arguments|churn|drop|overlap|slices|together|captured|exit|exec|fork|fork-busy|\n"
    "             "
    "kill|kill-init|kill-attach|kill-setup|kill-call|kill-replay|kill-idle|kill-poll|kill-large|kill-fault|\n"
    "             "
    "kill-revoke|kill-shrink|kill-destroy|kill-trap|abort-init|abort-setup|abort-call|abort-replay|abort-idle|\n"
    "             "
    "abort-launch|abort-first|abort-peer|abort-large|revoke-call|revoke-replay|revoke-idle|shrink-call|shrink-replay|"
    "shrink-idle|"
    "stop|stop-long|\n"
    "             absent|timeout|mismatch|mismatch-type|mismatch-op|differ|exit-last|exit-call|quit-last|\n"
    "             quit-call|destroy-first|reset-call|reset-idle|reset-abort\n"
    "             --rounds N --victim R --log FILE\n";

static const char *const type_names[ncclNumTypes] = {"i8",  "u8",  "i32", "u32",  "i64",  "u64",
                                                     "f16", "f32", "f64", "bf16", "e4m3", "e5m2"};

static void bad(const char *what)
{
    fprintf(stderr, "sim_app: bad %s\n%s", what, usage);
    exit(2);
}

/* Calls add for each part of a list. */
static void for_each(const char *list, void (*add)(struct app_options *, const char *), struct app_options *options)
{
    char copy[4096], *rest;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *part = strtok_r(copy, ",", &rest); part != NULL; part = strtok_r(NULL, ",", &rest)) {
        add(options, part);
    }
}

static void add_count(struct app_options *options, const char *text)
{
    if (options->counts == APP_MAX_LIST) {
        bad("number of counts");
    }
    options->count[options->counts++] = strtoull(text, NULL, 0);
}

static void add_type(struct app_options *options, const char *text)
{
    for (int t = 0; t < ncclNumTypes; t++) {
        if (strcmp(text, type_names[t]) == 0 && options->types < ncclNumTypes) {
            options->type[options->types++] = (ncclDataType_t)t;
            return;
        }
    }
    bad("type");
}

static void add_offset(struct app_options *options, const char *text)
{
    if (options->offsets == APP_MAX_LIST) {
        bad("number of offsets");
    }
    int *offset = options->offset[options->offsets++];
    if (sscanf(text, "%d:%d", &offset[0], &offset[1]) != 2) {
        bad("offset");
    }
}

static void read_ranks(const char *list, int *value)
{
    char *end;
    for (int r = 0; r < APP_MAX_RANKS && *list != '\0'; r++) {
        value[r] = (int)strtol(list, &end, 10);
        list = *end == ',' ? end + 1 : end;
    }
}

static enum app_make make_of(const char *text)
{
    static const char *const names[APP_MAKES] = {"rank",  "config", "nonblocking", "scalable", "all",
                                                 "split", "family", "shrink",      "grow"};
    for (int m = 0; m < APP_MAKES; m++) {
        if (strcmp(text, names[m]) == 0) {
            return (enum app_make)m;
        }
    }
    bad("--make");
    return APP_MAKES;
}

static void read_in_place(const char *text, struct app_options *options)
{
    bool both = strcmp(text, "both") == 0;
    options->in_place_first = both ? 0 : atoi(text) != 0;
    options->in_place_last = both ? 1 : options->in_place_first;
}

enum {
    OPT_NRANKS = 1,
    OPT_LOCAL,
    OPT_THREADS,
    OPT_OWN_GPU,
    OPT_RANK_ENV,
    OPT_RANK,
    OPT_ID_FILE,
    OPT_TIMEOUT,
    OPT_MAKE,
    OPT_COLORS,
    OPT_KEYS,
    OPT_NONBLOCKING,
    OPT_JITTER,
    OPT_PAUSE,
    OPT_COMMS,
    OPT_STREAMS,
    OPT_BATCH,
    OPT_GROUP,
    OPT_NESTED,
    OPT_SCRAMBLE,
    OPT_COUNTS,
    OPT_TYPES,
    OPT_OP,
    OPT_OFFSETS,
    OPT_IN_PLACE,
    OPT_ITERATIONS,
    OPT_GRAPH,
    OPT_MIX,
    OPT_SEED,
    OPT_SCENARIO,
    OPT_ROUNDS,
    OPT_VICTIM,
    OPT_DESCRIPTORS,
    OPT_LINGER,
    OPT_LOG
};

static const struct option table[] = {
    {"nranks", required_argument, NULL, OPT_NRANKS},
    {"local", required_argument, NULL, OPT_LOCAL},
    {"threads", no_argument, NULL, OPT_THREADS},
    {"own-gpu", no_argument, NULL, OPT_OWN_GPU},
    {"rank-env", required_argument, NULL, OPT_RANK_ENV},
    {"rank", required_argument, NULL, OPT_RANK},
    {"id-file", required_argument, NULL, OPT_ID_FILE},
    {"timeout", required_argument, NULL, OPT_TIMEOUT},
    {"make", required_argument, NULL, OPT_MAKE},
    {"split-colors", required_argument, NULL, OPT_COLORS},
    {"split-keys", required_argument, NULL, OPT_KEYS},
    {"nonblocking", no_argument, NULL, OPT_NONBLOCKING},
    {"jitter", required_argument, NULL, OPT_JITTER},
    {"pause", required_argument, NULL, OPT_PAUSE},
    {"comms", required_argument, NULL, OPT_COMMS},
    {"streams", required_argument, NULL, OPT_STREAMS},
    {"batch", required_argument, NULL, OPT_BATCH},
    {"group", required_argument, NULL, OPT_GROUP},
    {"nested", no_argument, NULL, OPT_NESTED},
    {"scramble", no_argument, NULL, OPT_SCRAMBLE},
    {"counts", required_argument, NULL, OPT_COUNTS},
    {"types", required_argument, NULL, OPT_TYPES},
    {"op", required_argument, NULL, OPT_OP},
    {"offsets", required_argument, NULL, OPT_OFFSETS},
    {"in-place", required_argument, NULL, OPT_IN_PLACE},
    {"iterations", required_argument, NULL, OPT_ITERATIONS},
    {"graph", required_argument, NULL, OPT_GRAPH},
    {"mix", no_argument, NULL, OPT_MIX},
    {"seed", required_argument, NULL, OPT_SEED},
    {"scenario", required_argument, NULL, OPT_SCENARIO},
    {"rounds", required_argument, NULL, OPT_ROUNDS},
    {"victim", required_argument, NULL, OPT_VICTIM},
    {"descriptors", required_argument, NULL, OPT_DESCRIPTORS},
    {"linger", no_argument, NULL, OPT_LINGER},
    {"log", required_argument, NULL, OPT_LOG},
    {NULL, 0, NULL, 0},
};

static void set_job_option(struct app_options *options, int option, const char *value)
{
    switch (option) {
    case OPT_NRANKS:
        options->nranks = atoi(value);
        break;
    case OPT_LOCAL:
        options->local = atoi(value);
        break;
    case OPT_THREADS:
        options->threads = true;
        break;
    case OPT_OWN_GPU:
        options->own_gpu = true;
        break;
    case OPT_RANK_ENV:
        if (options->rank_envs == APP_MAX_LIST) {
            bad("number of --rank-env");
        }
        options->rank_env[options->rank_envs++] = value;
        break;
    case OPT_RANK:
        options->rank = atoi(value);
        break;
    case OPT_ID_FILE:
        options->board = value;
        break;
    case OPT_TIMEOUT:
        options->timeout = atoi(value);
        break;
    case OPT_MAKE:
        options->make = make_of(value);
        break;
    case OPT_COLORS:
        read_ranks(value, options->color);
        break;
    case OPT_KEYS:
        read_ranks(value, options->key);
        break;
    case OPT_NONBLOCKING:
        options->nonblocking = true;
        break;
    case OPT_PAUSE:
        options->pause = atoi(value);
        break;
    case OPT_JITTER:
        options->jitter = atoi(value);
        break;
    default:
        bad("option");
    }
}

static void set_work_option(struct app_options *options, int option, const char *value)
{
    switch (option) {
    case OPT_COMMS:
        options->comms = atoi(value);
        break;
    case OPT_STREAMS:
        options->streams = atoi(value);
        break;
    case OPT_BATCH:
        options->batch = atoi(value);
        break;
    case OPT_GROUP:
        options->group = atoi(value);
        break;
    case OPT_NESTED:
        options->nested = true;
        break;
    case OPT_SCRAMBLE:
        options->scramble = true;
        break;
    case OPT_COUNTS:
        options->counts = 0;
        for_each(value, add_count, options);
        break;
    case OPT_TYPES:
        options->types = 0;
        for_each(value, add_type, options);
        break;
    case OPT_OP:
        options->op = value;
        break;
    case OPT_OFFSETS:
        options->offsets = 0;
        for_each(value, add_offset, options);
        break;
    case OPT_IN_PLACE:
        read_in_place(value, options);
        break;
    case OPT_ITERATIONS:
        options->iterations = atoi(value);
        break;
    case OPT_GRAPH:
        options->replays = atoi(value);
        break;
    case OPT_MIX:
        options->mix = true;
        break;
    case OPT_SEED:
        options->seed = strtoull(value, NULL, 0);
        break;
    case OPT_SCENARIO:
        options->scenario = value;
        break;
    case OPT_ROUNDS:
        options->rounds = atoi(value);
        break;
    case OPT_VICTIM:
        options->victim = atoi(value);
        break;
    case OPT_LINGER:
        options->linger = true;
        break;
    case OPT_DESCRIPTORS:
        options->descriptors = atoi(value);
        break;
    case OPT_LOG:
        options->log = value;
        break;
    default:
        bad("option");
    }
}

static void check(const struct app_options *options)
{
    if (options->nranks < 1 || options->nranks > APP_MAX_RANKS || options->local < 1 ||
        options->nranks % options->local != 0) {
        bad("--nranks or --local");
    }
    if (options->make == APP_MAKE_ALL && (options->local != options->nranks || options->threads)) {
        bad("--make all: one process and one thread must hold all ranks");
    }
    if (options->comms < 1 || options->comms > APP_MAX_COMMS || options->streams < 1 ||
        options->streams > APP_MAX_STREAMS || options->batch < 1) {
        bad("--comms, --streams or --batch");
    }
    if (options->counts == 0 || options->types == 0 || options->offsets == 0) {
        bad("empty list");
    }
}

void app_options_parse(int argc, char **argv, struct app_options *options_p)
{
    int option;
    *options_p = (struct app_options){.nranks = 2,
                                      .local = 1,
                                      .timeout = 60,
                                      .rank = -1,
                                      .comms = 1,
                                      .streams = 1,
                                      .batch = 1,
                                      .iterations = 1,
                                      .op = "sum",
                                      .rounds = 1,
                                      .victim = -1,
                                      .descriptors = -1,
                                      .seed = 1,
                                      .count = {1000},
                                      .counts = 1,
                                      .type = {ncclFloat32},
                                      .types = 1,
                                      .offsets = 1};
    while ((option = getopt_long(argc, argv, "", table, NULL)) != -1) {
        if (option >= OPT_COMMS) {
            set_work_option(options_p, option, optarg);
        } else {
            set_job_option(options_p, option, optarg);
        }
    }
    check(options_p);
}
