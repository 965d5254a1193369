/* SPDX-License-Identifier: MIT */
/*
 * tune.c - `onehop tune`: options, a table for each number of ranks, and where they go
 *
 * Files are opened before anything is measured, and come to their place when all is: each whole or not at all. One
 * thread.
 */
#include "tools/tune/tune.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/shared/outfile.h"
#include "tools/shared/tool.h"
#include "util/clock.h"

static const char help[] = "usage: onehop tune [OPTIONS]\n"
                           "\n"
                           "Measures on this machine's GPUs which algorithm and grid serves each size the\n"
                           "fastest, and where stock NCCL is faster, and leaves a table that onehop uses\n"
                           "from then on (doc/tuning.md). Nothing else should run meanwhile.\n"
                           "\n"
                           "  -n, --ranks LIST     numbers of GPUs, a table for each (all that are visible)\n"
                           "  -b, --minbytes N     smallest size (1K); K, M and G are powers of 1024\n"
                           "  -e, --maxbytes N     largest size (16M); from one size to the next it doubles\n"
                           "  -d, --datatype LIST  types (float,int32); all of them count for the table\n"
                           "      --mode MODE      graph, eager or both (both); both count for the table\n"
                           "      --iters N        calls in a measured block (20)\n"
                           "      --rounds N       blocks; their median counts (5)\n"
                           "      --time N         seconds in all (55); the rest stays as shipped\n"
                           "      --trial N        seconds for one size on one candidate (5)\n"
                           "  -o, --output FILE    not to the cache (~/.cache/onehop); - is stdout\n"
                           "      --nccl PATH      the NCCL library (libnccl.so.2, by the normal search)\n"
                           "      --onehop PATH    the onehop library (as `onehop run` finds it)\n"
                           "      --simulated      on the simulated node; its table is never used on GPUs\n"
                           "  -h, --help           this text\n"
                           "\n"
                           "Exit status: 0 tables written; 1 something failed, nothing written; 2 usage.\n"
                           "Example: onehop tune -n 2,4 -o /etc/onehop.tuning\n";

enum {
    OPTION_MODE = 256,
    OPTION_ITERS,
    OPTION_ROUNDS,
    OPTION_TIME,
    OPTION_TRIAL,
    OPTION_NCCL,
    OPTION_ONEHOP,
    OPTION_SIMULATED
};

static const struct option long_options[] = {
    {"ranks", required_argument, NULL, 'n'},
    {"minbytes", required_argument, NULL, 'b'},
    {"maxbytes", required_argument, NULL, 'e'},
    {"datatype", required_argument, NULL, 'd'},
    {"mode", required_argument, NULL, OPTION_MODE},
    {"iters", required_argument, NULL, OPTION_ITERS},
    {"rounds", required_argument, NULL, OPTION_ROUNDS},
    {"time", required_argument, NULL, OPTION_TIME},
    {"trial", required_argument, NULL, OPTION_TRIAL},
    {"output", required_argument, NULL, 'o'},
    {"nccl", required_argument, NULL, OPTION_NCCL},
    {"onehop", required_argument, NULL, OPTION_ONEHOP},
    {"simulated", no_argument, NULL, OPTION_SIMULATED},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* --- options ---------------------------------------------------------------------------------------------------- */

static bool parse_ranks(const char *list, struct oh_tune_options *options)
{
    char copy[64];
    char *rest = copy;
    snprintf(copy, sizeof copy, "%s", list);
    options->tables = 0;
    for (const char *part; (part = strsep(&rest, ",")) != NULL;) {
        char *end;
        long ranks = strtol(part, &end, 10);
        if (end == part || *end || ranks < 2 || ranks > OH_MAX_RANKS || options->tables == OH_MAX_RANKS) {
            oh_tool_error("tune: --ranks %s: numbers from 2 to %d are needed, separated by commas", list, OH_MAX_RANKS);
            return false;
        }
        options->ranks[options->tables++] = (int)ranks;
    }
    return true;
}

static const char *type_name(int type)
{
    return oh_perf_types[type].name;
}

static const char *mode_name(int mode)
{
    return oh_perf_mode_names[mode];
}

static bool parse_int(int option, int max, int *number_p)
{
    size_t number;
    if (!oh_tool_number("tune", oh_tool_long_name(long_options, option), optarg, false, 1, (size_t)max, &number)) {
        return false;
    }
    *number_p = (int)number;
    return true;
}

static bool parse_option(int option, struct oh_tune_options *options)
{
    struct oh_perf_options *perf = &options->perf;
    switch (option) {
    case 'n':
        return parse_ranks(optarg, options);
    case 'b':
        return oh_tool_number("tune", "minbytes", optarg, true, 1, OH_MESSAGE_BYTES, &perf->min_bytes);
    case 'e':
        return oh_tool_number("tune", "maxbytes", optarg, true, 1, OH_MESSAGE_BYTES, &perf->max_bytes);
    case 'd':
        return oh_tool_list("tune", "datatype", optarg, type_name, OH_PERF_TYPES, perf->type);
    case 'o':
        options->output = optarg;
        return true;
    case OPTION_MODE:
        return oh_tool_list("tune", "mode", strcmp(optarg, "both") == 0 ? "all" : optarg, mode_name, OH_PERF_MODES,
                            perf->mode);
    case OPTION_ITERS:
        return parse_int(option, 1000, &perf->iters);
    case OPTION_ROUNDS:
        return parse_int(option, OH_PERF_ROUNDS, &perf->rounds);
    case OPTION_TIME:
        return parse_int(option, 86400, &options->time_s);
    case OPTION_TRIAL:
        return parse_int(option, 3600, &options->trial_s);
    case OPTION_NCCL:
        perf->nccl = optarg;
        return true;
    case OPTION_ONEHOP:
        snprintf(perf->onehop, sizeof perf->onehop, "%s", optarg);
        return true;
    case OPTION_SIMULATED:
        perf->simulated = true;
        return true;
    default:
        return false; /* every option has its row */
    }
}

/* Returns OH_EXIT_OK to go on; *done_p is set when --help has been answered. */
static int parse_options(int argc, char **argv, struct oh_tune_options *options, bool *done_p)
{
    const struct oh_perf_options *perf = &options->perf;
    int option, sizes = 0;
    while ((option = getopt_long(argc, argv, ":n:b:e:d:o:h", long_options, NULL)) != -1) {
        if (option == 'h') {
            fputs(help, stdout);
            *done_p = true;
            return oh_tool_finish_stdout();
        }
        if (option == '?' || option == ':') {
            oh_tool_refuse_option(argv, long_options, option);
            return OH_EXIT_USAGE;
        }
        if (!parse_option(option, options)) {
            return OH_EXIT_USAGE;
        }
    }
    if (optind != argc) {
        oh_tool_error("tune: '%s' is one argument too many; see onehop tune --help", argv[optind]);
        return OH_EXIT_USAGE;
    }
    for (uint64_t bytes = perf->min_bytes; bytes <= perf->max_bytes; bytes *= 2) {
        sizes++;
    }
    if (sizes < 1 || sizes > OH_TUNE_POINTS) {
        oh_tool_error("tune: from %zu to %zu bytes there are %d sizes; 1 to %d are needed", perf->min_bytes,
                      perf->max_bytes, sizes, OH_TUNE_POINTS);
        return OH_EXIT_USAGE;
    }
    return OH_EXIT_OK;
}

/* --- where tables go -------------------------------------------------------------------------------------------- */

/* All folders on the way to a file. */
static bool make_folders(const char *path)
{
    char folder[OH_STORE_PATH];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(folder, 0755) != 0 && errno != EEXIST) {
            oh_tool_error("tune: %s cannot be made: %s", folder, strerror(errno));
            return false;
        }
        *slash = '/';
    }
    return true;
}

/* A place in the cache, whose folders are made. */
static bool place_in_cache(const struct oh_tuning_key *key, char path_p[OH_STORE_PATH])
{
    if (!oh_store_cache_path(key, path_p)) {
        oh_tool_error("tune: neither XDG_CACHE_HOME nor HOME names a folder; --output can name a file");
        return false;
    }
    return make_folders(path_p);
}

/*
 * Opens the file of --output. Names in the cache have NCCL's version, which only a run tells: there it is tried whether
 * a file can be made.
 */
static bool begin_output(const struct oh_tune_options *options, const struct oh_tuning_key *key,
                         struct oh_outfile *output_p)
{
    char path[OH_STORE_PATH];
    struct oh_outfile trial;
    if (options->output) {
        return oh_outfile_open("tune", options->output, output_p);
    }
    if (!place_in_cache(key, path) || !oh_outfile_open("tune", path, &trial)) {
        return false;
    }
    oh_outfile_drop(&trial);
    return true;
}

static bool write_tables(const struct oh_tune *tune, int count, struct oh_outfile *file)
{
    oh_tuning_write_head(file->stream);
    for (int i = 0; i < count; i++) {
        oh_tune_write(file->stream, &tune[i]);
    }
    return oh_outfile_commit("tune", file);
}

static bool write_cache(const struct oh_tune *tune, FILE *report)
{
    char path[OH_STORE_PATH];
    struct oh_outfile file;
    if (!place_in_cache(&tune->key, path) || !oh_outfile_open("tune", path, &file) || !write_tables(tune, 1, &file)) {
        return false;
    }
    fprintf(report, "# written: %s\n", path);
    return true;
}

/* --- all of it -------------------------------------------------------------------------------------------------- */

/* Measures and reports one table after the other; an equal part of the time that is left for each. */
static bool measure_all(struct oh_tune_options *options, struct oh_tune *tune, FILE *report)
{
    uint64_t end = oh_now_ns() + (uint64_t)options->time_s * 1000000000u;
    for (int i = 0; i < options->tables; i++) {
        uint64_t now = oh_now_ns();
        tune[i].options = options;
        tune[i].deadline_ns = now + (end > now ? (end - now) / (uint64_t)(options->tables - i) : 0);
        oh_tune_list(&tune[i]);
        if (!oh_tune_measure(&tune[i])) {
            return false;
        }
        if (tune[i].out_of_time && !tune[i].ready) {
            oh_tool_error("tune: the time (--time %d) was over before %u ranks had started", options->time_s,
                          tune[i].key.nranks);
            return false;
        }
        oh_tune_print(report, &tune[i]);
        if (fflush(report) != 0 || ferror(report)) {
            oh_tool_error("tune: the report cannot be written: %s", strerror(errno));
            return false;
        }
    }
    return true;
}

static bool write_all(const struct oh_tune_options *options, const struct oh_tune *tune, struct oh_outfile *output,
                      FILE *report)
{
    for (int i = 0; i < options->tables && !options->output; i++) {
        if (!write_cache(&tune[i], report)) {
            return false;
        }
    }
    return !options->output || write_tables(tune, options->tables, output);
}

/* The machine's key goes to every table; the number of ranks is settled. */
static struct oh_tune *begin(struct oh_tune_options *options)
{
    struct oh_tuning_key key = {.nccl = "unknown"};
    int gpus;
    if (!oh_tune_ask_machine(&key, &gpus)) {
        return NULL;
    }
    if (options->tables == 0) {
        options->ranks[options->tables++] = gpus < OH_MAX_RANKS ? gpus : OH_MAX_RANKS;
    }
    if (gpus < 2) {
        oh_tool_error("tune: at least 2 GPUs are needed; CUDA sees %d here", gpus);
        return NULL;
    }
    for (int i = 0; i < options->tables; i++) {
        if (options->ranks[i] > gpus) {
            oh_tool_error("tune: a table for %d ranks needs as many GPUs; CUDA sees %d here", options->ranks[i], gpus);
            return NULL;
        }
    }
    struct oh_tune *tune = calloc(OH_MAX_RANKS, sizeof *tune);
    if (!tune) {
        oh_tool_error("tune: out of memory");
    }
    for (int i = 0; tune && i < options->tables; i++) {
        tune[i].key = key;
        tune[i].key.nranks = (uint32_t)options->ranks[i];
    }
    return tune;
}

static int run(struct oh_tune_options *options)
{
    FILE *report = options->output && strcmp(options->output, "-") == 0 ? stderr : stdout;
    struct oh_tune *tune = begin(options);
    struct oh_outfile output = {.stream = NULL};
    bool good = tune && begin_output(options, &tune[0].key, &output) && measure_all(options, tune, report) &&
                !oh_workers_signal() && write_all(options, tune, &output, report);
    oh_outfile_drop(&output);
    free(tune);
    return good ? OH_EXIT_OK : OH_EXIT_FAILED;
}

int oh_tool_tune(int argc, char **argv)
{
    struct oh_tune_options options = oh_tune_defaults();
    options.perf.mode[OH_PERF_EAGER] = true;
    options.too_slow = "that size stays as shipped";
    bool done = false;
    oh_tool_list("tune", "datatype", "float,int32", type_name, OH_PERF_TYPES, options.perf.type);
    int status = parse_options(argc, argv, &options, &done);
    if (status == OH_EXIT_OK && !done && options.perf.simulated) {
        status = oh_tool_simulate("tune", argv - 1); /* this subcommand's argv is main's from the second word on */
    }
    if (status != OH_EXIT_OK || done) {
        return status;
    }
    if (!options.perf.onehop[0] && !oh_tool_find_library(options.perf.onehop, sizeof options.perf.onehop)) {
        return OH_EXIT_FAILED;
    }
    oh_workers_hold_signals();
    status = run(&options);
    if (oh_workers_signal()) {
        oh_workers_end_by(oh_workers_signal());
    }
    return status;
}
