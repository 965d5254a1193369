/* SPDX-License-Identifier: MIT */
/*
 * perf/options.c - the options of `onehop perf`
 *
 * Does: Reads them, and checks what they must be together.
 * Threads: one.
 * Owns: nothing.
 */
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"
#include "tools/perf/perf.h"
#include "tools/shared/tool.h"

#define MOST_BYTES ((size_t)64 << 30)

static const char help[] = "usage: onehop perf [OPTIONS]\n"
                           "Measures a collective on these GPUs: stock NCCL and onehop in turns, results\n"
                           "checked. Letters are those of nccl-tests; LIST is a,b,c or all.\n"
                           "  -b, --minbytes N  -e, --maxbytes N     sizes (8, 64M); K is 1024\n"
                           "  -f, --stepfactor N  -i, --stepbytes N  to the next size: times N (2), plus N\n"
                           "  -n, --iters N  -w, --warmup_iters N    calls in a block (20), before (5)\n"
                           "  -m, --agg_iters N  --rounds N          calls in a group (1), blocks (20)\n"
                           "  -d, --datatype LIST  -o, --op LIST     types (float), operations (sum)\n"
                           "  -g, --ngpus N                          GPUs (all that are visible)\n"
                           "      --collective NAME                  allreduce (the default), allgather,\n"
                           "                                         reducescatter or broadcast from rank 0\n"
                           "      --graph  --eager                   this mode only (both)\n"
                           "      --layout processes|threads         one for each GPU (processes)\n"
                           "      --pattern layer|chain|free         what is between calls (layer)\n"
                           "      --memory cuda|nccl                 allocator of the buffers (cuda)\n"
                           "      --compare LIST                     stock windows onehop (stock,onehop)\n"
                           "      --floor                            measure the least cost here, too\n"
                           "  -c, --check 0|1                        1: check every result (1)\n"
                           "      --csv FILE  --json FILE  --from FILE  write (- is stdout), show a CSV\n"
                           "      --simulated  --simulated-times     on the simulated node; show its times\n"
                           "      --nccl PATH  --onehop PATH         the libraries\n"
                           "  -T, --timeout N                        seconds without progress (120)\n"
                           "Exit status: 0 all right, 1 a result is wrong or it failed, 2 usage, 128+signal\n"
                           "Example: onehop perf -b 1K -d bfloat16 --floor --csv run.csv\n";

static const char *const layout_words[] = {"processes", "threads"}, *const memory_words[] = {"cuda", "nccl"};

/* An option of nccl-tests that perf has by another name, or not at all. */
static void refuse_foreign(const char *name, const char *text, void *value)
{
    (void)text;
    OH_TOOL_REFUSE("--%s: an option of nccl-tests; %s; see onehop perf --help", name, (const char *)value);
}
#define FOREIGN(name_, letter_, instead_)                                                                              \
    {                                                                                                                  \
        name_, letter_, refuse_foreign, instead_                                                                       \
    }

#define BLOCKS "perf times blocks of calls: --iters and --rounds"
#define NONE "perf has no such option"

static void take_from(const char *name, const char *path, void *value)
{
    struct oh_perf_options *options = value;
    if (options->froms == OH_PERF_COLUMNS) {
        OH_TOOL_REFUSE("--%s %s: expected at most %d files", name, path, OH_PERF_COLUMNS);
    }
    oh_option_path(name, path, &options->from[options->froms++]);
}

struct oh_perf_options oh_perf_defaults(const char *types)
{
    struct oh_perf_options options = {
        .min_bytes = 8,
        .max_bytes = (size_t)64 << 20,
        .step_factor = 2,
        .iters = 20,
        .aggregate = 1,
        .warmup = 5,
        .rounds = 20,
        .timeout_s = 120,
        .check = true,
        .op = {[OH_PERF_SUM] = true},
        .side = {[OH_PERF_STOCK] = true, [OH_PERF_ONEHOP] = true},
        .nccl = "libnccl.so.2",
    };
    oh_option_list("datatype", types, OH_WORDS(options.type, oh_perf_type_names));
    return options;
}

void oh_perf_parse(int argc, char **argv, struct oh_perf_options *o)
{
    const struct oh_option options[] = {
        OH_PERF_COMMON_OPTIONS(o, MOST_BYTES),
        {"stepfactor", 'f', oh_option_size, OH_RANGE(&o->step_factor, 2, 1 << 20)},
        {"stepbytes", 'i', oh_option_size, OH_RANGE(&o->step_bytes, 1, MOST_BYTES)},
        {"iters", 'n', oh_option_int, OH_RANGE(&o->iters, 1, 100000)},
        {"warmup_iters", 'w', oh_option_int, OH_RANGE(&o->warmup, 0, 100000)},
        {"agg_iters", 'm', oh_option_int, OH_RANGE(&o->aggregate, 1, 1000)},
        {"op", 'o', oh_option_list, OH_WORDS(o->op, oh_perf_op_names)},
        {"ngpus", 'g', oh_option_int, OH_RANGE(&o->ranks, 1, OH_PERF_RANKS)},
        {"layout", 0, oh_option_word, OH_WORDS(&o->threads, layout_words)},
        {"collective", 0, oh_option_word, OH_WORDS(&o->collective, oh_collective_names)},
        {"pattern", 0, oh_option_word, OH_WORDS(&o->pattern, oh_perf_pattern_names)},
        {"memory", 0, oh_option_word, OH_WORDS(&o->nccl_memory, memory_words)},
        {"compare", 0, oh_option_list, OH_WORDS(o->side, oh_perf_side_names)},
        {"floor", 0, NULL, &o->floor},
        {"check", 'c', oh_option_int, OH_RANGE(&o->check, 0, 1)},
        {"csv", 0, oh_option_path, &o->csv},
        {"json", 0, oh_option_path, &o->json},
        {"from", 0, take_from, o},
        {"simulated-times", 0, NULL, &o->simulated_times},
        {"timeout", 'T', oh_option_int, OH_RANGE(&o->timeout_s, 1, 86400)},
        FOREIGN("cudagraph", 'G', "perf has --graph"),
        FOREIGN("nthreads", 't', "perf has --ngpus N --layout threads"),
        FOREIGN("output_file", 'J', "perf has --json FILE and --csv FILE"),
        FOREIGN("local_register", 'R', "perf has --memory nccl and --compare windows"),
        FOREIGN("root", 'r', "rank 0 is the root of a broadcast"),
        FOREIGN("blocking", 'z', BLOCKS),
        FOREIGN("per_iter_timing", 'I', BLOCKS),
        FOREIGN("per_iter_skip", 'K', BLOCKS),
        FOREIGN("run_cycles", 'N', "perf has --rounds N"),
        FOREIGN("average", 'a', "perf shows the slowest rank"),
        FOREIGN("cta_policy", 'x', "set NCCL_CTA_POLICY"),
        FOREIGN("parallel_init", 'p', NONE),
        FOREIGN("stream_null", 'y', NONE),
        FOREIGN("report_cputime", 'C', NONE),
        FOREIGN("report_timestamps", 'S', NONE),
        FOREIGN("device_implementation", 'D', NONE),
        FOREIGN("device_cta_count", 'V', NONE),
        FOREIGN("report_memory", 'M', NONE),
        FOREIGN("unalign", 'u', NONE),
        {NULL, 0, NULL, NULL}};
    oh_options_only(argc, argv, help, options);
    o->timeout_option = "--timeout";
    if (o->warmup < 1) {
        OH_TOOL_REFUSE("--warmup_iters 0: expected 1 or more: NCCL makes what a size needs at its first call");
    }
    if (o->min_bytes > o->max_bytes) {
        OH_TOOL_REFUSE("--minbytes %zu: more than --maxbytes %zu", o->min_bytes, o->max_bytes);
    }
    if (!oh_collective_reduces((enum onehop_collective)o->collective)) {
        memset(o->op, 0, sizeof o->op);
        o->op[OH_PERF_SUM] = true;
    }
    if (o->csv && o->json && strcmp(o->csv, "-") == 0 && strcmp(o->json, "-") == 0) {
        OH_TOOL_REFUSE("--csv and --json cannot both use stdout; name a file for one");
    }
}
