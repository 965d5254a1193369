/* SPDX-License-Identifier: MIT */
/*
 * tune.c - `onehop tune`: options, a table for each number of ranks, and where they go
 *
 * Files are opened before anything is measured, and come to their place when all is: each whole or not at all. One
 * thread.
 */
#include "tools/tune/tune.h"

#include <errno.h>
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
                           "      --graph, --eager this mode only (both, which both count for the table)\n"
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

/* --- options ---------------------------------------------------------------------------------------------------- */

static bool take_ranks(const char *name, const char *list, void *value)
{
    struct oh_tune_options *options = value;
    char copy[64];
    char *rest = copy;
    snprintf(copy, sizeof copy, "%s", list);
    options->tables = 0;
    for (const char *part; (part = strsep(&rest, ",")) != NULL; options->tables++) {
        if (options->tables == OH_MAX_RANKS ||
            !oh_option_int(name, part, OH_RANGE(&options->ranks[options->tables], 2, OH_MAX_RANKS))) {
            return false;
        }
    }
    return true;
}

static bool parse_options(int argc, char **argv, struct oh_tune_options *tune, int *status_p)
{
    struct oh_perf_options *perf = &tune->perf;
    int sizes = 0;
    const struct oh_option options[] = {OH_PERF_COMMON_OPTIONS(perf, OH_MESSAGE_BYTES),
                                        {"ranks", 'n', take_ranks, tune},
                                        {"iters", 0, oh_option_int, OH_RANGE(&perf->iters, 1, 1000)},
                                        {"time", 0, oh_option_int, OH_RANGE(&tune->time_s, 1, 86400)},
                                        {"trial", 0, oh_option_int, OH_RANGE(&tune->trial_s, 1, 3600)},
                                        {"output", 'o', oh_option_text, &tune->output},
                                        {NULL, 0, NULL, NULL}};
    if (!oh_options_only(argc, argv, help, options, status_p)) {
        return false;
    }
    for (uint64_t bytes = perf->min_bytes; bytes <= perf->max_bytes; bytes *= 2) {
        sizes++;
    }
    if (sizes < 1 || sizes > OH_TUNE_POINTS) {
        oh_tool_error("tune: from %zu to %zu bytes: %d sizes; expected 1 to %d", perf->min_bytes, perf->max_bytes,
                      sizes, OH_TUNE_POINTS);
        *status_p = OH_EXIT_USAGE;
        return false;
    }
    return oh_perf_settle("tune", argv, perf, status_p);
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
    struct oh_workers_machine machine;
    if (!oh_workers_ask_machine("tune", &machine)) {
        return NULL;
    }
    const int gpus = machine.gpus;
    memcpy(key.gpu, machine.gpu, sizeof key.gpu);
    memcpy(key.driver, machine.driver, sizeof key.driver);
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

static int run(void *user)
{
    struct oh_tune_options *options = user;
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
    int status;
    options.perf.mode[OH_PERF_EAGER] = true;
    if (!parse_options(argc, argv, &options, &status)) {
        return status;
    }
    return oh_workers_guard(run, &options);
}
