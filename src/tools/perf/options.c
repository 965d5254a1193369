/* SPDX-License-Identifier: MIT */
/*
 * perf/options.c - what `onehop perf` is asked for
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/abi.h"
#include "tools/perf/perf.h"
#include "tools/shared/tool.h"

static const char help[] = "usage: onehop perf [OPTIONS]\n"
                           "Measures ncclAllReduce on these GPUs: stock NCCL and onehop in turns, results\n"
                           "checked. Letters are those of nccl-tests; LIST is a,b,c or all.\n"
                           "  -b, --minbytes N  -e, --maxbytes N        sizes (8, 64M); K is 1024\n"
                           "  -f, --stepfactor N  -i, --stepbytes N     to the next: times N (2), plus N\n"
                           "  -n, --iters N  -w, --warmup_iters N       calls in a block (20), before (5)\n"
                           "  -m, --agg_iters N  --rounds N             calls in a group (1), blocks (20)\n"
                           "  -d, --datatype LIST  -o, --op LIST        types (float), operations (sum)\n"
                           "  -g, --ngpus N          GPUs (all that are visible)\n"
                           "      --graph, --eager   only this mode; --mode graph|eager|both (both)\n"
                           "      --processes        a process for each GPU (this is the default)\n"
                           "      --one-process[=threads|group]         one for all: threads, or groups\n"
                           "      --pattern layer|spin|chain|free (layer)  --memory cuda|nccl (cuda)\n"
                           "      --compare LIST     stock windows onehop (stock,onehop)\n"
                           "      --floor            measure what an allreduce costs at least here, too\n"
                           "  -c, --check [0|1]      compare every result with what it must be (1)\n"
                           "      --csv [FILE], --json [FILE]           without FILE: instead of the table\n"
                           "      --plot FILE.svg    draw latency and bus bandwidth; needs gnuplot\n"
                           "      --from FILE        measure nothing: show, convert or draw what --csv wrote\n"
                           "      --simulated        on the simulated node of the build tree\n"
                           "      --nccl PATH, --onehop PATH            the libraries\n"
                           "  -T, --timeout N        seconds without progress, then all is ended (120)\n"
                           "Exit status: 0 all well, 1 a result is wrong or it failed, 2 usage, 128 + signal\n"
                           "Example: onehop perf -b 1K -d bfloat16 --floor --csv run.csv --plot run.svg\n";

enum {
    OPTION_ROUNDS = 256,
    OPTION_MODE,
    OPTION_GRAPH,
    OPTION_EAGER,
    OPTION_PROCESSES,
    OPTION_ONE_PROCESS,
    OPTION_PATTERN,
    OPTION_MEMORY,
    OPTION_COMPARE,
    OPTION_FLOOR,
    OPTION_CSV,
    OPTION_JSON,
    OPTION_PLOT,
    OPTION_FROM,
    OPTION_SIMULATED,
    OPTION_NCCL,
    OPTION_ONEHOP
};

static const struct option long_options[] = {
    {"minbytes", required_argument, NULL, 'b'},
    {"maxbytes", required_argument, NULL, 'e'},
    {"stepfactor", required_argument, NULL, 'f'},
    {"stepbytes", required_argument, NULL, 'i'},
    {"iters", required_argument, NULL, 'n'},
    {"warmup_iters", required_argument, NULL, 'w'},
    {"agg_iters", required_argument, NULL, 'm'},
    {"rounds", required_argument, NULL, OPTION_ROUNDS},
    {"datatype", required_argument, NULL, 'd'},
    {"op", required_argument, NULL, 'o'},
    {"ngpus", required_argument, NULL, 'g'},
    {"mode", required_argument, NULL, OPTION_MODE},
    {"graph", no_argument, NULL, OPTION_GRAPH},
    {"eager", no_argument, NULL, OPTION_EAGER},
    {"processes", no_argument, NULL, OPTION_PROCESSES},
    {"one-process", optional_argument, NULL, OPTION_ONE_PROCESS},
    {"pattern", required_argument, NULL, OPTION_PATTERN},
    {"memory", required_argument, NULL, OPTION_MEMORY},
    {"compare", required_argument, NULL, OPTION_COMPARE},
    {"floor", no_argument, NULL, OPTION_FLOOR},
    {"check", optional_argument, NULL, 'c'},
    {"csv", optional_argument, NULL, OPTION_CSV},
    {"json", optional_argument, NULL, OPTION_JSON},
    {"plot", required_argument, NULL, OPTION_PLOT},
    {"from", required_argument, NULL, OPTION_FROM},
    {"simulated", no_argument, NULL, OPTION_SIMULATED},
    {"nccl", required_argument, NULL, OPTION_NCCL},
    {"onehop", required_argument, NULL, OPTION_ONEHOP},
    {"timeout", required_argument, NULL, 'T'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static const char *long_name(int option)
{
    return oh_tool_long_name(long_options, option);
}

/* --- values ----------------------------------------------------------------------------------------------------- */

static bool parse_number(const char *name, const char *text, bool units, size_t min, size_t max, size_t *number_p)
{
    return oh_tool_number("perf", name, text, units, min, max, number_p);
}

static bool parse_int(const char *name, const char *text, int min, int max, int *number_p)
{
    size_t number;
    if (!parse_number(name, text, false, (size_t)min, (size_t)max, &number)) {
        return false;
    }
    *number_p = (int)number;
    return true;
}

static bool parse_flag(const char *name, const char *text, bool *flag_p)
{
    int number;
    if (!parse_int(name, text, 0, 1, &number)) {
        return false;
    }
    *flag_p = number;
    return true;
}

static bool parse_list(const char *option, const char *list, const char *(*word)(int i), int words, bool *chosen_p)
{
    return oh_tool_list("perf", option, list, word, words, chosen_p);
}

static const char *type_name(int i)
{
    return oh_perf_types[i].name;
}

static const char *op_name(int i)
{
    return oh_perf_op_names[i];
}

static const char *side_name(int i)
{
    return oh_perf_side_names[i];
}

static bool parse_mode(const char *name, struct oh_perf_options *options)
{
    bool both = strcmp(name, "both") == 0;
    bool known = both;
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        options->mode[mode] = both || strcmp(name, oh_perf_mode_names[mode]) == 0;
        known = known || options->mode[mode];
    }
    if (!known) {
        oh_tool_error("perf: --mode %s: graph, eager or both is needed", name);
    }
    return known;
}

static bool parse_one_process(const char *name, struct oh_perf_options *options)
{
    if (!name || strcmp(name, "threads") == 0) {
        options->layout = OH_PERF_THREADS;
    } else if (strcmp(name, "group") == 0) {
        options->layout = OH_PERF_GROUP;
    } else {
        oh_tool_error("perf: --one-process=%s: threads or group is needed", name);
        return false;
    }
    return true;
}

/* Which of the names it is; `expected` says them. */
static bool parse_name(const char *option, const char *text, const char *const *names, int count, const char *expected,
                       int *index_p)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            *index_p = i;
            return true;
        }
    }
    oh_tool_error("perf: --%s %s: %s is needed", option, text, expected);
    return false;
}

static bool parse_pattern(const char *name, const char *text, struct oh_perf_options *options)
{
    int pattern = (int)options->pattern;
    bool good = parse_name(name, text, oh_perf_pattern_names, OH_PERF_PATTERNS, "layer, spin, chain or free", &pattern);
    options->pattern = (enum oh_perf_pattern)pattern;
    return good;
}

static bool parse_memory(const char *name, const char *text, struct oh_perf_options *options)
{
    int memory = (int)options->memory;
    bool good = parse_name(name, text, oh_perf_memory_names, OH_PERF_MEMORIES, "cuda or nccl", &memory);
    options->memory = (enum oh_perf_memory)memory;
    return good;
}

/* The file of --csv or --json: behind '=', or the next word unless that is an option, or stdout. */
static const char *optional_file(int argc, char **argv, const char *text)
{
    if (!text && optind < argc && (argv[optind][0] != '-' || argv[optind][1] == '\0')) {
        text = argv[optind++];
    }
    return text ? text : "-";
}

/* --check alone is 1; else 0 or 1, behind '=' or as the next word. */
static bool parse_check(int argc, char **argv, const char *text, struct oh_perf_options *options)
{
    if (!text && optind < argc && argv[optind][0] != '-') {
        text = argv[optind++];
    }
    return parse_flag("check", text ? text : "1", &options->check);
}

static bool parse_from(const char *path, struct oh_perf_options *options)
{
    if (options->froms == OH_PERF_COLUMNS) {
        oh_tool_error("perf: --from: %d files are the most", OH_PERF_COLUMNS);
        return false;
    }
    options->from[options->froms++] = path;
    return true;
}

static bool parse_plot(const char *path, struct oh_perf_options *options)
{
    size_t length = strlen(path);
    options->plot = path;
    if (length < 5 || strcmp(path + length - 4, ".svg") != 0) {
        oh_tool_error("perf: --plot %s: the name must end in .svg", path);
        return false;
    }
    return true;
}

/* --- options ---------------------------------------------------------------------------------------------------- */

/* Sizes and counts. *known_p: it is one of them. */
static bool parse_count(int option, const char *name, const char *text, struct oh_perf_options *options, bool *known_p)
{
    const size_t most = (size_t)64 << 30;
    *known_p = true;
    switch (option) {
    case 'b':
        return parse_number(name, text, true, 1, most, &options->min_bytes);
    case 'e':
        return parse_number(name, text, true, 1, most, &options->max_bytes);
    case 'f':
        return parse_number(name, text, false, 2, 1 << 20, &options->step_factor);
    case 'i':
        return parse_number(name, text, true, 1, most, &options->step_bytes);
    case 'n':
        return parse_int(name, text, 1, 100000, &options->iters);
    case 'm':
        return parse_int(name, text, 1, 1000, &options->aggregate);
    case 'w':
        return parse_int(name, text, 1, 100000, &options->warmup);
    case OPTION_ROUNDS:
        return parse_int(name, text, 1, OH_PERF_ROUNDS, &options->rounds);
    case 'g':
        return parse_int(name, text, 1, OH_PERF_RANKS, &options->ranks);
    case 'T':
        return parse_int(name, text, 1, 86400, &options->timeout_s);
    default:
        *known_p = false;
        return true;
    }
}

/* Options without an argument. False: not one of them. */
static bool parse_switch(int option, struct oh_perf_options *options)
{
    switch (option) {
    case OPTION_GRAPH:
        return parse_mode("graph", options);
    case OPTION_EAGER:
        return parse_mode("eager", options);
    case OPTION_PROCESSES:
        options->layout = OH_PERF_PROCESSES;
        return true;
    case OPTION_FLOOR:
        options->floor = true;
        return true;
    case OPTION_SIMULATED:
        options->simulated = true;
        return true;
    default:
        return false;
    }
}

/* One option; `name` is its long name. Returns false, with the reason on stderr, when its argument is bad. */
static bool parse_option(int option, const char *name, const char *text, struct oh_perf_options *options)
{
    switch (option) {
    case 'd':
        return parse_list(name, text, type_name, OH_PERF_TYPES, options->type);
    case 'o':
        return parse_list(name, text, op_name, OH_PERF_OPS, options->op);
    case OPTION_COMPARE:
        return parse_list(name, text, side_name, OH_PERF_SIDES, options->side);
    case OPTION_MODE:
        return parse_mode(text, options);
    case OPTION_ONE_PROCESS:
        return parse_one_process(text, options);
    case OPTION_PATTERN:
        return parse_pattern(name, text, options);
    case OPTION_MEMORY:
        return parse_memory(name, text, options);
    case OPTION_PLOT:
        return parse_plot(text, options);
    case OPTION_FROM:
        return parse_from(text, options);
    case OPTION_NCCL:
        options->nccl = text;
        return true;
    case OPTION_ONEHOP:
        snprintf(options->onehop, sizeof options->onehop, "%s", text);
        return true;
    default:
        return false; /* every option has its row */
    }
}

/* What the options must be together. */
static bool fit_together(const struct oh_perf_options *options)
{
    if (options->min_bytes > options->max_bytes) {
        oh_tool_error("perf: --minbytes %zu is more than --maxbytes %zu", options->min_bytes, options->max_bytes);
        return false;
    }
    if (options->csv && options->json && strcmp(options->csv, "-") == 0 && strcmp(options->json, "-") == 0) {
        oh_tool_error("perf: --csv and --json cannot both go to stdout; name a file for one");
        return false;
    }
    return true;
}

struct oh_perf_options oh_perf_defaults(void)
{
    return (struct oh_perf_options){
        .min_bytes = 8,
        .max_bytes = (size_t)64 << 20,
        .step_factor = 2,
        .iters = 20,
        .aggregate = 1,
        .warmup = 5,
        .rounds = 20,
        .timeout_s = 120,
        .check = true,
        .mode = {true, true},
        .op = {[OH_PERF_SUM] = true},
        .side = {[OH_PERF_STOCK] = true, [OH_PERF_ONEHOP] = true},
        .nccl = "libnccl.so.2",
    };
}

int oh_perf_parse(int argc, char **argv, struct oh_perf_options *options_p, bool *done_p)
{
    int option;
    bool known, good;
    while ((option = getopt_long(argc, argv, ":b:e:f:i:n:w:m:d:o:g:c:T:h", long_options, NULL)) != -1) {
        switch (option) {
        case 'h':
            fputs(help, stdout);
            *done_p = true;
            return oh_tool_finish_stdout();
        case '?':
        case ':':
            oh_tool_refuse_option(argv, long_options, option);
            return OH_EXIT_USAGE;
        case OPTION_CSV:
            options_p->csv = optional_file(argc, argv, optarg);
            break;
        case OPTION_JSON:
            options_p->json = optional_file(argc, argv, optarg);
            break;
        case 'c':
            if (!parse_check(argc, argv, optarg, options_p)) {
                return OH_EXIT_USAGE;
            }
            break;
        default:
            good = parse_count(option, long_name(option), optarg, options_p, &known);
            if (!good || (!known && !parse_switch(option, options_p) &&
                          !parse_option(option, long_name(option), optarg, options_p))) {
                return OH_EXIT_USAGE;
            }
        }
    }
    if (optind != argc) {
        oh_tool_error("perf: '%s' is one argument too many; see onehop perf --help", argv[optind]);
        return OH_EXIT_USAGE;
    }
    return fit_together(options_p) ? OH_EXIT_OK : OH_EXIT_USAGE;
}

enum oh_perf_program oh_perf_program_of(enum oh_perf_pattern pattern)
{
    static const enum oh_perf_program programs[OH_PERF_PATTERNS] = {
        [OH_PERF_LAYER] = OH_PERF_COPY, [OH_PERF_SPIN] = OH_PERF_SPINNER};
    return programs[pattern];
}

int oh_perf_members(const struct oh_perf_options *options)
{
    return options->layout == OH_PERF_PROCESSES ? options->ranks : 1;
}
