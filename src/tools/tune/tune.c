/* SPDX-License-Identifier: MIT */
/*
 * tune.c - `onehop tune`
 *
 * Does: Reads the options, measures and reports a table for each number of ranks, and writes them. Files are opened
 *    before anything is measured, and renamed to their places when all is done.
 * Threads: one.
 * Owns: the tables.
 */
#include "tools/tune/tune.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

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
    options->tables = 0;
    if ((size_t)snprintf(copy, sizeof copy, "%s", list) >= sizeof copy) {
        oh_tool_error("tune: --%s %s: expected at most %zu characters", name, list, sizeof copy - 1);
        return false;
    }
    for (const char *part; (part = strsep(&rest, ",")) != NULL; options->tables++) {
        if (options->tables == OH_MAX_RANKS) {
            oh_tool_error("tune: --%s %s: expected at most %d numbers", name, list, OH_MAX_RANKS);
            return false;
        }
        if (!oh_option_int(name, part, OH_RANGE(&options->ranks[options->tables], 2, OH_MAX_RANKS))) {
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
    return oh_perf_settle(argv, perf, status_p);
}

/* --- the report and the table ----------------------------------------------------------------------------------- */

/* Of one mode, over the types: a candidate's time and NCCL's beside it. False: not measured. */
static bool times_of(const struct oh_tune_point *point, int candidate, int mode, double *us_p, double *stock_us_p)
{
    double logs = 0, stock_logs = 0;
    int times = 0;
    for (int type = 0; candidate >= 0 && type < OH_PERF_TYPES; type++) {
        const struct oh_tune_time *time = &point->time[candidate][mode][type];
        if (time->done) {
            logs += log(time->us);
            stock_logs += log(time->stock_us);
            times++;
        }
    }
    *us_p = times > 0 ? exp(logs / times) : 0;
    *stock_us_p = times > 0 ? exp(stock_logs / times) : 0;
    return times > 0;
}

static void describe_row(const struct oh_plan_row *row, char *text_p, size_t size)
{
    if (row->algorithm == OH_PLAN_NCCL) {
        snprintf(text_p, size, "nccl");
    } else {
        snprintf(text_p, size, "%s %ux%u", oh_algorithm_name((int)row->algorithm), row->blocks, row->threads);
    }
}

/* What the choice beats, and by how much. */
static void describe_rival(const struct oh_tune *tune, const struct oh_tune_point *point,
                           const struct oh_tune_choice *choice, char *text_p, size_t size)
{
    char name[48];
    if (choice->why == OH_TUNE_SHIPPED) {
        snprintf(text_p, size, "as shipped: %s", point->too_slow ? "a trial took too long" : "time ran out");
    } else if (choice->why == OH_TUNE_STOCK) {
        describe_row(&point->candidate[choice->best], name, sizeof name);
        snprintf(text_p, size, "stock NCCL beats %s", name);
    } else if (choice->second >= 0) {
        describe_row(&point->candidate[choice->second], name, sizeof name);
        snprintf(text_p, size, "%s by %.2f", name,
                 oh_tune_score(tune, point, choice->second) / oh_tune_score(tune, point, choice->best));
    } else {
        snprintf(text_p, size, "-");
    }
}

static void print_point(FILE *stream, const struct oh_tune *tune, const struct oh_tune_point *point)
{
    struct oh_tune_choice choice = oh_tune_choose(tune, point);
    char chosen[48], rival[96];
    describe_row(&choice.row, chosen, sizeof chosen);
    describe_rival(tune, point, &choice, rival, sizeof rival);
    fprintf(stream, "  %10" PRIu64 "  %-15s", point->bytes, chosen);
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        double us, stock_us;
        if (!tune->options->perf.mode[mode]) {
            continue;
        }
        if (times_of(point, choice.best, mode, &us, &stock_us)) {
            fprintf(stream, " %8.2f %8.2f %6.2f", us, stock_us, stock_us / us);
        } else {
            fprintf(stream, " %8s %8s %6s", "-", "-", "-");
        }
    }
    fprintf(stream, "  %s\n", rival);
}

static void print_report(FILE *stream, const struct oh_tune *tune)
{
    const struct oh_perf_options *perf = &tune->options->perf;
    fprintf(stream, "# %s%u x %s, driver %s, NCCL %s\n",
            oh_tool_is_simulated(tune->key.gpu) ? "SIMULATED (times mean nothing): " : "", tune->key.nranks,
            tune->key.gpu, tune->key.driver, tune->key.nccl);
    fprintf(stream, "# us a call, of %d; slowest rank, median of %d rounds, stock NCCL in turns with onehop\n",
            perf->iters, perf->rounds);
    fprintf(stream, "# %25s", "");
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        if (perf->mode[mode]) {
            fprintf(stream, " %17s %6s", oh_perf_mode_names[mode], "");
        }
    }
    fprintf(stream, "\n# %10s  %-15s", "size", "chosen");
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        if (perf->mode[mode]) {
            fprintf(stream, " %8s %8s %6s", "onehop", "stock", "times");
        }
    }
    fprintf(stream, "  beats\n");
    for (int i = 0; i < tune->points; i++) {
        print_point(stream, tune, &tune->point[i]);
    }
}

/* The times of a row's last point, as a comment. */
static void write_row(FILE *stream, const struct oh_tune *tune, const struct oh_plan_row *row, int of)
{
    char comment[128] = "as shipped";
    size_t used = 0;
    const struct oh_tune_point *point = of >= 0 ? &tune->point[of] : NULL;
    struct oh_tune_choice choice = {.best = -1};
    if (point) {
        choice = oh_tune_choose(tune, point);
    }
    for (int mode = 0; point && mode < OH_PERF_MODES; mode++) {
        double us, stock_us;
        if (times_of(point, choice.best, mode, &us, &stock_us) && used < sizeof comment) {
            used += (size_t)snprintf(comment + used, sizeof comment - used, "%s%s %.2f us, stock %.2f",
                                     used ? "; " : "", oh_perf_mode_names[mode], us, stock_us);
        }
    }
    oh_tuning_write_row(stream, row, comment);
}

static void write_table(FILE *stream, const struct oh_tune *tune)
{
    char day[32] = "", source[OH_TUNING_TEXT];
    time_t now = time(NULL);
    struct tm local;
    if (localtime_r(&now, &local)) {
        strftime(day, sizeof day, "%Y-%m-%d", &local);
    }
    snprintf(source, sizeof source, "%s by onehop tune, %s, pattern %s",
             oh_tool_is_simulated(tune->key.gpu) ? "SIMULATED, not measured," : "measured", day,
             oh_perf_pattern_names[tune->options->perf.pattern]);
    oh_tuning_write_key(stream, &tune->key, source);
    struct oh_plan_rows rows;
    int of[OH_PLAN_ROWS];
    oh_tune_rows(tune, &rows, of);
    for (uint32_t i = 0; i < rows.count; i++) {
        write_row(stream, tune, &rows.row[i], of[i]);
    }
    oh_tuning_write_end(stream);
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
        write_table(file->stream, &tune[i]);
    }
    return oh_outfile_commit(file);
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
        print_report(report, &tune[i]);
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
    struct oh_tune *tune = oh_tool_allocate(OH_MAX_RANKS * sizeof *tune);
    for (int i = 0; i < options->tables; i++) {
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
