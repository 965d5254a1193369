/* SPDX-License-Identifier: MIT */
/* sim_options.c - see sim_app.h: the command line, and the cases that its lists make */
#include <stdio.h>
#include <stdlib.h>

#include "test/common/options.h"
#include "test/e2e/sim_app.h"

struct app_options app_options = {.layout = {.nranks = 2, .local = 1},
                                  .timeout = 60,
                                  .comms = 1,
                                  .streams = 1,
                                  .batch = 1,
                                  .iterations = 1,
                                  .rounds = 1,
                                  .descriptors = -1,
                                  .victim = -1,
                                  .seed = 1,
                                  .count = {1000},
                                  .counts = 1,
                                  .kinds = 1,
                                  .root = -1,
                                  .type = {ncclFloat32},
                                  .types = 1,
                                  .offsets = 1};

static const char usage[] =
    "usage: sim_app [options]\n"
    "  --nranks N --local K        ranks of the job, ranks per process\n"
    "  --threads                   several ranks of a process: a thread each (otherwise one thread, groups)\n"
    "  --own-gpu                   CUDA_VISIBLE_DEVICES: each process sees only its own GPUs\n"
    "  --rank-env R:NAME=VALUE     environment of the process that holds rank R; NAME alone: unset\n"
    "  --timeout S                 end everything after S seconds\n"
    "  --make rank|config|nonblocking|scalable|all|split|family|shrink|grow\n"
    "  --split-colors a,b,... --split-keys a,b,...  of split; colour -1: excluded by shrink, new to grow;\n"
    "                              key of grow: 1, the rank has the id\n"
    "  --nonblocking               a parent and its children are made without waiting\n"
    "  --pause MS                  wait after the first calls, and after a capture\n"
    "  --jitter US                 ranks wait up to as long before each call and poll\n"
    "  --comms N --streams N       calls go round them\n"
    "  --batch N --group N --nested  calls before waiting; calls per group\n"
    "  --scramble                  communicators of a group in another order on odd ranks\n"
    "  --collectives allreduce,allgather,reducescatter,broadcast --root R\n"
    "  --counts a,b --types f32,f16 --offsets s:r,... --in-place (each both ways)\n"
    "  --iterations N --graph REPLAYS --seed N\n"
    "  --descriptors N             left to a process while it makes its communicators\n"
    "  --linger                    ends when the communicators' memory is back, or after 10 seconds\n"
    "  --scenario NAME --rounds N --victim R --log FILE   see sim_scenario.c\n";

/* An option whose argument is a list: where it counts its parts, and what adds one. */
struct list {
    int *count;
    bool (*add)(void *unused, const char *part);
};

static bool take_list(void *list, const char *text)
{
    const struct list *taken = list;
    *taken->count = 0;
    return cf_for_each(text, taken->add, NULL);
}

static bool add_count(void *unused, const char *text)
{
    char *end;
    (void)unused;
    app_options.count[app_options.counts] = strtoull(text, &end, 0);
    return *text != '\0' && *end == '\0' && app_options.counts++ < APP_MAX_LIST - 1;
}

static bool add_kind(void *unused, const char *text)
{
    static const char *const names[ONEHOP_COLLECTIVE_COUNT] = {"allreduce", "allgather", "reducescatter", "broadcast"};
    int kind = cf_index(names, ONEHOP_COLLECTIVE_COUNT, text);
    (void)unused;
    app_options.kind[app_options.kinds] = (enum onehop_collective)kind;
    return kind >= 0 && app_options.kinds++ < APP_MAX_LIST - 1;
}

static bool add_type(void *unused, const char *text)
{
    static const char *const names[ncclNumTypes] = {"i8",  "u8",  "i32", "u32",  "i64",  "u64",
                                                    "f16", "f32", "f64", "bf16", "e4m3", "e5m2"};
    int type = cf_index(names, ncclNumTypes, text);
    (void)unused;
    app_options.type[app_options.types] = (ncclDataType_t)type;
    return type >= 0 && app_options.types++ < APP_MAX_LIST - 1;
}

static bool add_offset(void *unused, const char *text)
{
    int *offset = app_options.offset[app_options.offsets];
    (void)unused;
    return sscanf(text, "%d:%d", &offset[0], &offset[1]) == 2 && app_options.offsets++ < APP_MAX_LIST - 1;
}

/* A number for each rank. */
static bool take_ranks(void *value, const char *list)
{
    char *end = (char *)list;
    for (int r = 0; r < CF_MAX_RANKS && *end != '\0'; r++) {
        ((int *)value)[r] = (int)strtol(end, &end, 10);
        end += *end == ',';
    }
    return *end == '\0';
}

static bool take_make(void *value, const char *text)
{
    static const char *const names[APP_MAKES] = {"rank",  "config", "nonblocking", "scalable", "all",
                                                 "split", "family", "shrink",      "grow"};
    *(int *)value = cf_index(names, APP_MAKES, text);
    return *(int *)value >= 0;
}

static bool take_rank_env(void *unused, const char *text)
{
    (void)unused;
    app_options.rank_env[app_options.rank_envs] = text;
    return app_options.rank_envs++ < APP_MAX_LIST - 1;
}

static bool are_good(const struct app_options *options)
{
    const struct cf_layout *layout = &options->layout;
    return layout->nranks % layout->local == 0 && (options->scenario == NULL || app_has_scenario()) &&
           (options->make != CF_INIT_ALL || (layout->local == layout->nranks && !layout->threads));
}

void app_options_read(int argc, char **argv)
{
    struct app_options *options = &app_options;
    struct list kinds = {&options->kinds, add_kind}, counts = {&options->counts, add_count};
    struct list types = {&options->types, add_type}, offsets = {&options->offsets, add_offset};
    const struct cf_option table[] = {
        CF_INT("nranks", &options->layout.nranks, 1, CF_MAX_RANKS),
        CF_INT("local", &options->layout.local, 1, CF_MAX_RANKS),
        CF_FLAG("threads", &options->layout.threads),
        CF_FLAG("own-gpu", &options->layout.own_gpu),
        CF_TAKES("rank-env", take_rank_env, NULL),
        CF_INT("timeout", &options->timeout, 1, 100000),
        CF_TAKES("make", take_make, &options->make),
        CF_TAKES("split-colors", take_ranks, options->color),
        CF_TAKES("split-keys", take_ranks, options->key),
        CF_FLAG("nonblocking", &options->nonblocking),
        CF_INT("pause", &options->pause, 0, 1000000),
        CF_INT("jitter", &options->jitter, 0, 100000000),
        CF_INT("comms", &options->comms, 1, APP_MAX_COMMS),
        CF_INT("streams", &options->streams, 1, CF_STREAMS),
        CF_INT("batch", &options->batch, 1, 100000),
        CF_INT("group", &options->group, 0, 100000),
        CF_FLAG("nested", &options->nested),
        CF_FLAG("scramble", &options->scramble),
        CF_TAKES("collectives", take_list, &kinds),
        CF_INT("root", &options->root, 0, CF_MAX_RANKS - 1),
        CF_TAKES("counts", take_list, &counts),
        CF_TAKES("types", take_list, &types),
        CF_TAKES("offsets", take_list, &offsets),
        CF_FLAG("in-place", &options->in_place),
        CF_INT("iterations", &options->iterations, 0, 1000000),
        CF_INT("graph", &options->replays, 0, 1000000),
        CF_NUMBER("seed", &options->seed),
        CF_WORD("scenario", &options->scenario),
        CF_INT("rounds", &options->rounds, 0, 1000000),
        CF_INT("victim", &options->victim, 0, CF_MAX_RANKS - 1),
        CF_INT("descriptors", &options->descriptors, 0, 100000),
        CF_FLAG("linger", &options->linger),
        CF_WORD("log", &options->log),
        CF_NO_MORE,
    };
    if (cf_options_read(argc, argv, usage, table) < argc || !are_good(options)) {
        cf_options_refuse(usage);
    }
}

/* --- cases -------------------------------------------------------------------------------------------------------- */

size_t app_case_count(void)
{
    return (size_t)(app_options.counts * app_options.types * app_options.offsets * app_options.kinds *
                    (app_options.in_place ? 2 : 1));
}

/* The digit of `number` that comes next, with `base` values. */
static size_t take_digit(size_t *number, int base)
{
    size_t digit = *number % (size_t)base;
    *number /= (size_t)base;
    return digit;
}

struct cf_spec app_case(size_t which)
{
    struct cf_spec spec = {.op = CF_SUM,
                           .root = app_options.root >= 0 ? app_options.root : (int)(which % CF_MAX_RANKS)};
    spec.kind = app_options.kind[take_digit(&which, app_options.kinds)];
    spec.in_place = take_digit(&which, app_options.in_place ? 2 : 1) != 0;
    const int *offset = app_options.offset[take_digit(&which, app_options.offsets)];
    spec.type = app_options.type[take_digit(&which, app_options.types)];
    spec.count = app_options.count[take_digit(&which, app_options.counts)];
    spec.family = cf_types[spec.type].mantissa > 0 ? CF_WIDE : CF_EXACT;
    spec.send_shift = (unsigned)offset[0] * (unsigned)cf_types[spec.type].size;
    spec.recv_shift = (unsigned)offset[1] * (unsigned)cf_types[spec.type].size;
    return spec;
}
