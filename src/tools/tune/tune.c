/* SPDX-License-Identifier: MIT */
/*
 * tune.c - `onehop tune`
 *
 * Does: Reads the options, measures, and writes the table; shows it, too.
 * Threads: one.
 * Owns: the table.
 */
#include "tools/tune/tune.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "tools/shared/outfile.h"
#include "tools/shared/tool.h"

static const char help[] = "usage: onehop tune [OPTIONS]\n"
                           "\n"
                           "Measures on this machine's GPUs which algorithm and grid serves each size the\n"
                           "fastest, and where stock NCCL is faster, and leaves a table that onehop uses\n"
                           "from then on (doc/tuning.md). Nothing else should run meanwhile.\n"
                           "\n"
                           "  -n, --ranks N        number of GPUs (all that are visible, up to 8)\n"
                           "  -b, --minbytes N     smallest size (1K); K, M and G are powers of 1024\n"
                           "  -e, --maxbytes N     largest size (16M); from one size to the next it doubles\n"
                           "      --collective NAME  allreduce (the default), allgather, reducescatter or\n"
                           "                       broadcast; the others stay as in FILE, or as used now\n"
                           "  -d, --datatype LIST  types (float,int32); all of them count for the table\n"
                           "      --graph, --eager this mode only (both; graphs choose among candidates)\n"
                           "      --iters N        calls in a measured block (20)\n"
                           "      --rounds N       blocks; their median counts (5)\n"
                           "      --time N         seconds after which no candidate is begun (55)\n"
                           "  -o, --output FILE    not to the cache (~/.cache/onehop); - is stdout\n"
                           "      --nccl PATH      the NCCL library (libnccl.so.2, by the normal search)\n"
                           "      --onehop PATH    the onehop library (as `onehop run` finds it)\n"
                           "      --simulated      on the simulated node; its table is never used on GPUs\n"
                           "  -h, --help           this text\n"
                           "\n"
                           "Exit status: 0 table written; 1 something failed, nothing written; 2 usage.\n"
                           "Example: onehop tune -n 4 -o /etc/onehop.tuning\n";

/* --- options ---------------------------------------------------------------------------------------------------- */

static void parse_options(int argc, char **argv, struct oh_tune_options *tune)
{
    struct oh_perf_options *perf = &tune->perf;
    int sizes = 0;
    perf->min_bytes = 1024;
    perf->max_bytes = 16 << 20;
    perf->warmup = 2;
    perf->rounds = 5;
    const struct oh_option options[] = {
        OH_PERF_COMMON_OPTIONS(perf, OH_MESSAGE_BYTES),
        {"ranks", 'n', oh_option_int, OH_RANGE(&perf->ranks, 2, OH_MAX_RANKS)},
        {"collective", 0, oh_option_word, OH_WORDS(&perf->collective, oh_collective_names)},
        {"iters", 0, oh_option_int, OH_RANGE(&perf->iters, 1, 1000)},
        {"time", 0, oh_option_int, OH_RANGE(&tune->time_s, 1, 86400)},
        {"output", 'o', oh_option_path, &tune->output},
        {NULL, 0, NULL, NULL}};
    oh_options_only(argc, argv, help, options);
    for (uint64_t bytes = perf->min_bytes; bytes <= perf->max_bytes; bytes *= 2) {
        sizes++;
    }
    if (sizes < 1 || sizes > OH_TUNE_POINTS) {
        OH_TOOL_REFUSE("from %zu to %zu bytes: %d sizes; expected 1 to %d", perf->min_bytes, perf->max_bytes, sizes,
                       OH_TUNE_POINTS);
    }
    oh_perf_settle(argv, perf);
}

/* --- the table -------------------------------------------------------------------------------------------------- */

/* The times that a size was chosen by: of the fastest candidate, and of NCCL beside it. */
static void describe_times(const struct oh_tune_point *point, char comment_p[OH_TUNING_COMMENT])
{
    struct oh_plan_row row;
    const int best = oh_tune_choose(point, &row);
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        const struct oh_tune_weight weight = oh_tune_weigh(point, best, mode);
        if (weight.us > 0) {
            oh_text_append(comment_p, OH_TUNING_COMMENT, "%s%s %.2f us, stock %.2f", comment_p[0] ? "; " : "",
                           oh_perf_mode_names[mode], weight.us, weight.stock_us);
        }
    }
}

static void write_table(FILE *stream, const struct oh_tune *tune)
{
    char day[32] = "", source[OH_TUNING_TEXT], comment[OH_PLAN_ROWS][OH_TUNING_COMMENT] = {""};
    struct oh_plan_table table = tune->before;
    struct oh_plan_rows *rows = &table.rows[tune->collective];
    time_t now = time(NULL);
    struct tm local;
    if (localtime_r(&now, &local)) {
        strftime(day, sizeof day, "%Y-%m-%d", &local);
    }
    snprintf(source, sizeof source, "%s by onehop tune, %s, pattern %s",
             oh_tool_is_simulated(tune->key.gpu) ? "SIMULATED, not measured," : "measured", day,
             oh_perf_pattern_names[tune->options->perf.pattern]);
    oh_tune_rows(tune, rows);
    for (uint32_t i = 0; i < rows->count; i++) {
        for (int k = 0; k < tune->points; k++) {
            if (tune->point[k].bytes == rows->row[i].max_bytes) {
                describe_times(&tune->point[k], comment[i]);
            }
        }
        if (!comment[i][0]) {
            snprintf(comment[i], sizeof comment[i], "as shipped");
        }
    }
    oh_tuning_write(stream, &tune->key, source, &table, tune->collective, (const char(*)[OH_TUNING_COMMENT])comment);
}

/* --- where the table goes ----------------------------------------------------------------------------------------- */

/* All folders on the way to a file. */
static void make_folders(const char *path)
{
    char folder[OH_STORE_PATH];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(folder, 0755) != 0 && errno != EEXIST) {
            OH_TOOL_FAIL("%s cannot be made: %m", folder);
        }
        *slash = '/';
    }
}

/* Opens the file of --output, or one in the cache, whose folders are made. */
static void open_output(const struct oh_tune_options *options, const struct oh_tuning_key *key,
                        char cache_p[OH_STORE_PATH], struct oh_outfile *file)
{
    if (!options->output && !oh_store_cache_path(key, cache_p)) {
        OH_TOOL_FAIL("neither XDG_CACHE_HOME nor HOME names a folder; --output can name a file");
    }
    if (!options->output) {
        make_folders(cache_p);
    }
    oh_outfile_open(options->output ? options->output : cache_p, file);
}

/* Settles the number of ranks and the key, but for NCCL's version, which a run tells. */
static void settle(struct oh_tune_options *options, struct oh_tune *tune)
{
    struct oh_workers_machine machine;
    int *ranks = &options->perf.ranks;
    oh_workers_ask_machine(&machine);
    if (machine.gpus < 2) {
        OH_TOOL_FAIL("at least 2 GPUs are needed; CUDA sees %d here", machine.gpus);
    }
    if (*ranks > machine.gpus) {
        OH_TOOL_FAIL("a table for %d ranks needs as many GPUs; CUDA sees %d here", *ranks, machine.gpus);
    }
    if (*ranks == 0) {
        *ranks = machine.gpus < OH_MAX_RANKS ? machine.gpus : OH_MAX_RANKS;
    }
    tune->options = options;
    tune->collective = (enum onehop_collective)options->perf.collective;
    tune->key = (struct oh_tuning_key){.nranks = (uint32_t)*ranks, .nccl = "unknown"};
    memcpy(tune->key.gpu, machine.gpu, sizeof tune->key.gpu);
    memcpy(tune->key.driver, machine.driver, sizeof tune->key.driver);
}

/*
 * Names in the cache have NCCL's version, which only a run tells: before anything is measured it is tried whether a
 * file can be made there.
 */
static void run(struct oh_tune_options *options, struct oh_tune *tune)
{
    const struct oh_perf_options *perf = &options->perf;
    struct oh_outfile file;
    char cache[OH_STORE_PATH], from[OH_STORE_PATH];
    settle(options, tune);
    oh_tune_list(tune);
    if (tune->points == 0) {
        OH_TOOL_REFUSE("--minbytes %zu --maxbytes %zu: no size holds an element of the types; expected a larger size",
                       perf->min_bytes, perf->max_bytes);
    }
    open_output(options, &tune->key, cache, &file);
    if (!options->output) {
        oh_outfile_drop(&file);
    }
    oh_tune_measure(tune);
    const bool is_file = options->output && strcmp(options->output, "-") != 0;
    if (!is_file || !oh_store_load_file(options->output, &tune->key, &tune->before)) {
        oh_store_load(&tune->key, &tune->before, from);
    }
    if (!options->output) {
        open_output(options, &tune->key, cache, &file);
    }
    if (strcmp(file.path, "-") != 0) {
        printf("# %s: %d of %d candidates for each size; us a call, of %d; slowest rank, median of %d rounds\n",
               file.path, tune->measured, tune->candidates, perf->iters, perf->rounds);
        write_table(stdout, tune);
        if (fflush(stdout) != 0 || ferror(stdout)) {
            OH_TOOL_FAIL("the report cannot be written: %m");
        }
    }
    write_table(file.stream, tune);
    oh_outfile_commit(&file);
}

int oh_tool_tune(int argc, char **argv)
{
    struct oh_tune_options options = {.perf = oh_perf_defaults("float,int32"), .time_s = 55};
    struct oh_tune *tune = oh_tool_allocate(sizeof *tune);
    parse_options(argc, argv, &options);
    oh_signals_hold();
    run(&options, tune);
    free(tune);
    oh_signals_release();
    return OH_EXIT_OK;
}
