/* SPDX-License-Identifier: MIT */
/*
 * perf.c - `onehop perf`
 *
 * Does: Lists the rows, runs the processes that measure them, prints what is done and writes the files. Files are
 *    opened before anything is measured and renamed to their places when all is done.
 * Threads: one.
 * Owns: the rows, and the path of the onehop library once it is found.
 */
#include "tools/perf/perf.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/abi.h"
#include "plan/plan.h"
#include "tools/shared/outfile.h"
#include "tools/shared/tool.h"

/* --- rows ------------------------------------------------------------------------------------------------------- */

static size_t next_size(const struct oh_perf_options *options, size_t bytes)
{
    return options->step_bytes ? bytes + options->step_bytes : bytes * options->step_factor;
}

size_t oh_perf_list_rows(const struct oh_perf_options *options, struct oh_perf_row *rows)
{
    size_t count = 0;
    for (int i = 0; i < OH_PERF_MODES * OH_PERF_TYPES * OH_PERF_OPS; i++) {
        struct oh_perf_row row = {
            .mode = i / (OH_PERF_TYPES * OH_PERF_OPS), .type = i / OH_PERF_OPS % OH_PERF_TYPES, .op = i % OH_PERF_OPS};
        const size_t size =
            oh_perf_types[row.type].size * oh_collective_parts((enum onehop_collective)options->collective,
                                                               options->ranks ? (uint32_t)options->ranks : 1);
        if (!options->mode[row.mode] || !options->type[row.type] || !options->op[row.op]) {
            continue;
        }
        for (size_t bytes = options->min_bytes; bytes <= options->max_bytes; bytes = next_size(options, bytes)) {
            row.count = bytes / size;
            row.bytes = row.count * size;
            if (row.count > 0 && rows) {
                rows[count] = row;
            }
            count += row.count > 0;
            if (count > OH_PERF_ROWS) {
                OH_TOOL_REFUSE("--minbytes %zu --maxbytes %zu: more than %d rows; expected fewer sizes, types or "
                               "operations: choose a larger step",
                               options->min_bytes, options->max_bytes, OH_PERF_ROWS);
            }
        }
    }
    if (count == 0) {
        OH_TOOL_REFUSE("--minbytes %zu --maxbytes %zu: no size holds an element of the types; expected a larger size",
                       options->min_bytes, options->max_bytes);
    }
    return count;
}

/* --- the description of the run --------------------------------------------------------------------------------- */

/* Appends to a text of the run. */
#define DESCRIBE(run_, which_, ...) oh_text_append((run_)->text[which_], sizeof *(run_)->text, __VA_ARGS__)

static void describe_settings(const struct oh_perf_options *options, struct oh_perf_run *run)
{
    DESCRIBE(run, OH_PERF_PATTERN, "%s", oh_perf_pattern_names[options->pattern]);
    DESCRIBE(run, OH_PERF_COLLECTIVE, "%s", oh_collective_names[options->collective]);
    DESCRIBE(run, OH_PERF_SETTINGS, "ranks %d, %s, bytes %zu to %zu, ", options->ranks,
             options->threads ? "a thread each" : "a process each", options->min_bytes, options->max_bytes);
    DESCRIBE(run, OH_PERF_SETTINGS, options->step_bytes ? "step %zu(bytes)" : "step %zu(factor)",
             options->step_bytes ? options->step_bytes : options->step_factor);
    DESCRIBE(run, OH_PERF_SETTINGS, ", iters %d, agg iters %d, warmup iters %d, rounds %d%s", options->iters,
             options->aggregate, options->warmup, options->rounds, options->nccl_memory ? ", ncclMemAlloc" : "");
}

/* Once the communicators are there. */
static void describe_machine(const struct oh_perf_shared *shared, struct oh_perf_run *run)
{
    const char *nvls = getenv("NCCL_NVLS_ENABLE");
    int nccl = shared->nccl_version, onehop = shared->onehop_version;
    bool alike = true;
    for (int i = 1; i < run->ranks; i++) {
        alike = alike && strcmp(shared->rank[i].name, shared->rank[0].name) == 0;
    }
    run->simulated = oh_tool_is_simulated(shared->rank[0].name);
    run->times = !run->simulated || shared->options->simulated_times;
    DESCRIBE(run, OH_PERF_MACHINE, "%d x %s%s", run->ranks, shared->rank[0].name, alike ? "" : " and others");
    DESCRIBE(run, OH_PERF_SOFTWARE, "onehop %d.%d.%d, NCCL %d.%d.%d%s", onehop / 10000, onehop / 100 % 100,
             onehop % 100, nccl / 10000, nccl / 100 % 100, nccl % 100,
             nvls && strcmp(nvls, "0") == 0 ? ", NVLS off" : "");
    DESCRIBE(run, OH_PERF_VERDICT, "%s%s",
             shared->info.served ? "onehop serves this communicator" : "onehop hands this communicator back to NCCL: ",
             shared->info.served ? "" : shared->info.reason);
}

static void describe_floors(const struct oh_perf_shared *shared, struct oh_perf_run *run)
{
    for (int mode = 0; mode < OH_PERF_MODES && shared->options->floor; mode++) {
        const struct oh_perf_floor *floor = &shared->floor[mode];
        if (shared->options->mode[mode]) {
            DESCRIBE(run, OH_PERF_FLOORS,
                     "%s%s: empty kernel %.2f us, flag exchange %.2f us, all ranks writing %.0f GB/s each",
                     run->text[OH_PERF_FLOORS][0] ? "; " : "", oh_perf_mode_names[mode], floor->empty_us,
                     floor->exchange_us, floor->gb_per_s);
        }
    }
}

/*
 * The least that a message of so many bytes takes: one hop with all of it to every peer, or two hops with each rank's
 * share (doc/tools.md). All-gather and reduce-scatter take the hop with the shares.
 */
static double floor_us(const struct oh_perf_floor *floor, int collective, int ranks, size_t bytes)
{
    double us_per_byte = 1e-3 / floor->gb_per_s, size = (double)bytes;
    double second_hop = floor->exchange_us > floor->empty_us ? floor->exchange_us - floor->empty_us : 0;
    double one_hop = floor->exchange_us + (ranks - 1) * size * us_per_byte;
    double shares = (ranks - 1) * size / ranks * us_per_byte;
    double two_hops = floor->exchange_us + second_hop + 2 * shares;
    if (collective == ONEHOP_ALLGATHER || collective == ONEHOP_REDUCESCATTER) {
        return floor->exchange_us + shares;
    }
    return one_hop < two_hops ? one_hop : two_hops;
}

static void begin_run(const struct oh_perf_options *options, struct oh_perf_shared *shared, struct oh_perf_run *run)
{
    run->ranks = options->ranks;
    run->collective = options->collective;
    run->checked = options->check;
    run->rows = shared->rows;
    run->row = shared->row;
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        if (options->side[side]) {
            snprintf(run->column[run->columns++], sizeof *run->column, "%s", oh_perf_side_names[side]);
        }
    }
    describe_settings(options, run);
}

/* --- while it runs ---------------------------------------------------------------------------------------------- */

/* What the parent keeps while the members work. */
struct watch {
    const struct oh_perf_shared *shared;
    struct oh_perf_run *run;
    FILE *table;
    bool head;
    size_t printed;
};

/* On a terminal, says which row is being measured. */
static void show_progress(const struct oh_perf_run *run, size_t row)
{
    if (row < run->rows) {
        const struct oh_perf_row *next = &run->row[row];
        oh_tool_show_progress("row %zu of %zu: %s, %s, %s, %zu bytes", row + 1, run->rows,
                              oh_perf_mode_names[next->mode], oh_perf_type_names[next->type],
                              oh_perf_op_names[next->op], next->bytes);
    }
}

static void print_devices(FILE *stream, const struct oh_perf_shared *shared, int ranks)
{
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    fprintf(stream, "#\n# Using devices\n");
    for (int i = 0; i < ranks; i++) {
        fprintf(stream, "#  Rank %2d Pid %6d on %10s device %2d [%s] %s\n", i, (int)shared->rank[i].pid, host, i,
                shared->rank[i].bus_id, shared->rank[i].name);
    }
}

/* Ends the command when what was printed did not arrive. */
static void flush_table(FILE *table)
{
    if (fflush(table) != 0 || ferror(table)) {
        OH_TOOL_FAIL("the table cannot be written: %m");
    }
}

/* Takes the rows that have become ready, and prints them. */
static void take_news(void *user)
{
    struct watch *watch = user;
    size_t done = atomic_load(&watch->shared->rows_done);
    if (!atomic_load(&watch->shared->ready) || (watch->head && watch->printed == done)) {
        return;
    }
    oh_tool_clear_progress();
    if (!watch->head) {
        describe_machine(watch->shared, watch->run);
        describe_floors(watch->shared, watch->run);
        oh_perf_print_head(watch->table, watch->run);
        print_devices(watch->table, watch->shared, watch->run->ranks);
        watch->head = true;
    }
    for (; watch->printed < done; watch->printed++) {
        struct oh_perf_row *row = &watch->run->row[watch->printed];
        if (watch->shared->options->floor) {
            row->floor_us =
                floor_us(&watch->shared->floor[row->mode], watch->run->collective, watch->run->ranks, row->bytes);
        }
        watch->run->has_program |= row->program_us > 0;
        oh_perf_print_row(watch->table, watch->run, watch->printed);
    }
    flush_table(watch->table);
    show_progress(watch->run, done);
}

/* Settles the number of ranks. */
static void settle_ranks(struct oh_perf_options *options)
{
    struct oh_workers_machine machine;
    oh_workers_ask_machine(&machine);
    int most = machine.gpus < OH_PERF_RANKS ? machine.gpus : OH_PERF_RANKS;
    if (options->ranks > most) {
        OH_TOOL_FAIL("--ngpus %d: CUDA sees %d here", options->ranks, most);
    }
    options->ranks = options->ranks ? options->ranks : most;
    if (options->floor && (options->ranks < 2 || options->ranks > OH_MAX_RANKS)) {
        OH_TOOL_FAIL("--floor needs 2 to %d GPUs, not %d", OH_MAX_RANKS, options->ranks);
    }
}

static void measure(struct oh_perf_options *options, FILE *table, struct oh_perf_run *run)
{
    if (options->ranks == 0) {
        oh_perf_list_rows(options, NULL); /* before anything is asked of the machine: they may be too many */
    }
    settle_ranks(options);
    const size_t rows = oh_perf_list_rows(options, NULL);
    struct oh_perf_shared *shared = oh_workers_map(sizeof *shared + rows * sizeof *shared->row);
    shared->options = options;
    shared->rows = oh_perf_list_rows(options, shared->row);
    begin_run(options, shared, run);
    struct watch watch = {.shared = shared, .run = run, .table = table};
    oh_perf_run(shared, take_news, &watch);
}

/* --- results ---------------------------------------------------------------------------------------------------- */

/* A file may be a pipe, whose reader can be interrupted: signals are not held yet. */
static void read_again(const struct oh_perf_options *options, struct oh_perf_run *run)
{
    for (int i = 0; i < options->froms; i++) {
        const char *problem = oh_perf_read_csv(options->from[i], run);
        if (problem) {
            OH_TOOL_FAIL("%s", problem);
        }
    }
}

static void print_again(const struct oh_perf_options *options, FILE *table, struct oh_perf_run *run)
{
    run->times = !run->simulated || options->simulated_times;
    oh_perf_print_head(table, run);
    for (size_t i = 0; i < run->rows; i++) {
        oh_perf_print_row(table, run, i);
    }
}

/* Opens a file that the options name. Returns true if it is stdout. */
static bool open_output(const char *path, struct oh_outfile *file)
{
    if (path) {
        oh_outfile_open(path, file);
    }
    return path && strcmp(path, "-") == 0;
}

/* Files are opened first. A table that has no place goes nowhere. */
static void run_all(struct oh_perf_options *options, struct oh_perf_run *run)
{
    struct oh_outfile csv = {.stream = NULL}, json = {.stream = NULL};
    bool csv_taken = open_output(options->csv, &csv), json_taken = open_output(options->json, &json);
    FILE *table = csv_taken || json_taken ? fopen("/dev/null", "we") : stdout;
    if (options->froms) {
        print_again(options, table, run);
    } else {
        measure(options, table, run);
    }
    oh_perf_print_foot(table, run);
    flush_table(table);
    if (csv.stream) {
        oh_perf_write_csv(csv.stream, run);
    }
    if (json.stream) {
        oh_perf_write_json(json.stream, run);
    }
    oh_outfile_commit(&csv);
    oh_outfile_commit(&json);
}

void oh_perf_settle(char **argv, struct oh_perf_options *options)
{
    static char library[PATH_MAX];
    if (!options->mode[OH_PERF_GRAPH] && !options->mode[OH_PERF_EAGER]) {
        options->mode[OH_PERF_GRAPH] = options->mode[OH_PERF_EAGER] = true;
    }
    if (options->simulated) {
        oh_tool_simulate(argv);
    }
    if (!options->onehop && !options->froms) {
        const char *problem = oh_tool_find_library(library);
        if (problem) {
            OH_TOOL_FAIL("%s", problem);
        }
        options->onehop = library;
    }
}

int oh_tool_perf(int argc, char **argv)
{
    struct oh_perf_options options = oh_perf_defaults("float");
    struct oh_perf_run run = {.ranks = 0};
    oh_perf_parse(argc, argv, &options);
    oh_perf_settle(argv, &options);
    read_again(&options, &run);
    oh_signals_hold();
    run_all(&options, &run);
    oh_signals_release();
    uint64_t wrong = oh_perf_all_wrong(&run);
    if (options.froms) {
        free(run.row);
    }
    if (wrong) {
        OH_TOOL_FAIL("%llu wrong element%s in the results", (unsigned long long)wrong, wrong == 1 ? "" : "s");
    }
    return OH_EXIT_OK;
}
