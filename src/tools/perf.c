/* SPDX-License-Identifier: MIT */
/*
 * perf.c - `onehop perf`: options, the processes, and the watch over them
 *
 * The parent never opens CUDA (a forked child could not use it then); a short-lived child counts the GPUs. Workers
 * die with the parent (PR_SET_PDEATHSIG); when one of them fails, dies or stops getting on, the parent says why and
 * ends the rest. So nothing hangs and nothing is left behind.
 */
#include "tools/perf.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpu/driver.h"
#include "tools/tool.h"

static const char help[] =
    "usage: onehop perf [OPTIONS]\n"
    "\n"
    "Measures ncclAllReduce on this machine's GPUs: stock NCCL and onehop in turns, in the same processes (one for\n"
    "each GPU) and on the same communicator, with checked results. Letters are those of nccl-tests.\n"
    "\n"
    "  -b, --minbytes N      smallest message (8); K, M and G are powers of 1024\n"
    "  -e, --maxbytes N      largest message (64M)\n"
    "  -f, --stepfactor N    from size to size, multiply by N (2)\n"
    "  -i, --stepbytes N     from size to size, add N instead\n"
    "  -n, --iters N         calls in a measured block (20)\n"
    "  -w, --warmup_iters N  eager calls of a row before anything else (5)\n"
    "      --rounds N        blocks of each side; the table has their median (5)\n"
    "  -d, --datatype LIST   float, half, bfloat16, several by comma (float)\n"
    "  -o, --op sum          the operation; only sum\n"
    "  -g, --ngpus N         GPUs, one process for each (all that are visible)\n"
    "      --mode MODE       graph, eager or both (both)\n"
    "      --in-place        measure in place; both ways are checked always\n"
    "      --nccl PATH       the NCCL library (libnccl.so.2, by the normal search)\n"
    "      --onehop PATH     the onehop library (as `onehop run` finds it)\n"
    "  -T, --timeout N       seconds without progress after which all is ended (120)\n"
    "  -h, --help            this text\n"
    "\n"
    "A time is that of the slowest rank, the median over the rounds. busbw is algbw * 2 (n - 1) / n. Exit status: 0 "
    "when\n"
    "all results are right, 1 when one is wrong or something failed, 2 for wrong usage.\n";

enum {
    OPTION_ROUNDS = 256,
    OPTION_MODE,
    OPTION_IN_PLACE,
    OPTION_NCCL,
    OPTION_ONEHOP
};

/* --- options ---------------------------------------------------------------------------------------------------- */

/* A whole number in [min, max], with K, M or G behind it when `units`. */
static bool parse_number(const char *name, const char *text, bool units, size_t min, size_t max, size_t *number_p)
{
    char *end;
    int shift = 0;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    bool good = end != text && *text != '-' && errno == 0;
    if (good && units && *end) {
        const char *suffixes = "kKmMgG";
        const char *suffix = strchr(suffixes, *end++);
        shift = suffix ? 10 * (1 + (int)(suffix - suffixes) / 2) : 0;
        good = suffix != NULL;
    }
    if (!good || *end || number > max >> shift || number << shift < min) {
        oh_tool_error("perf: --%s %s: a whole number from %zu to %zu%s is needed", name, text, min, max,
                      units ? ", K, M or G may follow" : "");
        return false;
    }
    *number_p = (size_t)number << shift;
    return true;
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

static bool parse_types(const char *list, struct oh_perf_options *options)
{
    char copy[128];
    char *rest = copy;
    snprintf(copy, sizeof copy, "%s", list);
    memset(options->type, 0, sizeof options->type);
    for (const char *name; (name = strsep(&rest, ",")) != NULL;) {
        size_t i = 0;
        while (i < OH_PERF_TYPES && strcmp(name, oh_perf_types[i].name) != 0) {
            i++;
        }
        if (i == OH_PERF_TYPES) {
            oh_tool_error("perf: --datatype %s: '%s' is none of float, half and bfloat16", list, name);
            return false;
        }
        options->type[i] = true;
    }
    return true;
}

static bool parse_mode(const char *name, struct oh_perf_options *options)
{
    bool both = strcmp(name, "both") == 0;
    bool known = both;
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        options->mode[mode] = both || strcmp(name, oh_perf_mode_name(mode)) == 0;
        known = known || options->mode[mode];
    }
    if (!known) {
        oh_tool_error("perf: --mode %s: graph, eager or both is needed", name);
    }
    return known;
}

static bool parse_op(const char *name)
{
    if (strcmp(name, "sum") != 0) {
        oh_tool_error("perf: --op %s: only sum can be measured", name);
        return false;
    }
    return true;
}

/* One option; `name` is its long name. Returns false, with the reason on stderr, when its argument is bad. */
static bool parse_option(int option, const char *name, const char *text, struct oh_perf_options *options)
{
    const size_t most = (size_t)64 << 30;
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
    case 'w':
        return parse_int(name, text, 1, 100000, &options->warmup);
    case OPTION_ROUNDS:
        return parse_int(name, text, 1, OH_PERF_ROUNDS, &options->rounds);
    case 'g':
        return parse_int(name, text, 1, OH_PERF_RANKS, &options->ranks);
    case 'T':
        return parse_int(name, text, 1, 86400, &options->timeout_s);
    case 'd':
        return parse_types(text, options);
    case 'o':
        return parse_op(text);
    case OPTION_MODE:
        return parse_mode(text, options);
    case OPTION_IN_PLACE:
        options->in_place = true;
        return true;
    case OPTION_NCCL:
        options->nccl = text;
        return true;
    case OPTION_ONEHOP:
        snprintf(options->onehop, sizeof options->onehop, "%s", text);
        return true;
    default:
        return false; /* getopt has said why */
    }
}

static const struct option long_options[] = {
    {"minbytes", required_argument, NULL, 'b'},
    {"maxbytes", required_argument, NULL, 'e'},
    {"stepfactor", required_argument, NULL, 'f'},
    {"stepbytes", required_argument, NULL, 'i'},
    {"iters", required_argument, NULL, 'n'},
    {"warmup_iters", required_argument, NULL, 'w'},
    {"rounds", required_argument, NULL, OPTION_ROUNDS},
    {"datatype", required_argument, NULL, 'd'},
    {"op", required_argument, NULL, 'o'},
    {"ngpus", required_argument, NULL, 'g'},
    {"mode", required_argument, NULL, OPTION_MODE},
    {"in-place", no_argument, NULL, OPTION_IN_PLACE},
    {"nccl", required_argument, NULL, OPTION_NCCL},
    {"onehop", required_argument, NULL, OPTION_ONEHOP},
    {"timeout", required_argument, NULL, 'T'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static const char *long_name(int option)
{
    const struct option *entry = long_options;
    while (entry->name && entry->val != option) {
        entry++;
    }
    return entry->name;
}

/* Returns OH_EXIT_OK to go on; *done_p is set when --help has been answered. */
static int parse_options(int argc, char **argv, struct oh_perf_options *options, bool *done_p)
{
    int option;
    while ((option = getopt_long(argc, argv, "b:e:f:i:n:w:d:o:g:T:h", long_options, NULL)) != -1) {
        if (option == 'h') {
            fputs(help, stdout);
            *done_p = true;
            return OH_EXIT_OK;
        }
        if (!parse_option(option, long_name(option), optarg, options)) {
            return OH_EXIT_USAGE;
        }
    }
    if (optind != argc) {
        oh_tool_error("perf: '%s' is one argument too many; see onehop perf --help", argv[optind]);
        return OH_EXIT_USAGE;
    }
    if (options->min_bytes > options->max_bytes) {
        oh_tool_error("perf: --minbytes %zu is more than --maxbytes %zu", options->min_bytes, options->max_bytes);
        return OH_EXIT_USAGE;
    }
    return OH_EXIT_OK;
}

/* --- rows ------------------------------------------------------------------------------------------------------- */

static size_t next_size(const struct oh_perf_options *options, size_t bytes)
{
    return options->step_bytes ? bytes + options->step_bytes : bytes * options->step_factor;
}

/* Writes the rows to be measured to `row` unless it is NULL; returns their number. */
static size_t list_rows(const struct oh_perf_options *options, struct oh_perf_row *row)
{
    size_t rows = 0;
    for (int mode = 0; mode < OH_PERF_MODES; mode++) {
        for (size_t i = 0; i < OH_PERF_TYPES; i++) {
            const struct oh_perf_type *type = &oh_perf_types[i];
            if (!options->mode[mode] || !options->type[i]) {
                continue;
            }
            for (size_t bytes = options->min_bytes; bytes <= options->max_bytes; bytes = next_size(options, bytes)) {
                if (bytes < type->size) {
                    continue;
                }
                if (row) {
                    row[rows] = (struct oh_perf_row){.mode = mode, .type = type, .count = bytes / type->size};
                }
                rows++;
            }
        }
    }
    return rows;
}

static struct oh_perf_shared *map_shared(const struct oh_perf_options *options)
{
    size_t rows = list_rows(options, NULL);
    size_t bytes = sizeof(struct oh_perf_shared) + rows * sizeof(struct oh_perf_row);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        oh_tool_error("perf: no shared memory: %s", strerror(errno));
        return NULL;
    }
    struct oh_perf_shared *shared = memory;
    shared->rows = rows;
    list_rows(options, shared->row);
    return shared;
}

/* --- processes -------------------------------------------------------------------------------------------------- */

/* fork for a child that must not outlive the parent. Returns as fork does. */
static pid_t fork_child(void)
{
    pid_t parent = getpid();
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(EXIT_FAILURE); /* the parent died before the line above */
        }
    } else if (child < 0) {
        oh_tool_error("perf: no process: %s", strerror(errno));
    }
    return child;
}

/* In the counting child. */
static int count_gpus(struct oh_perf_shared *shared)
{
    const struct oh_driver *driver;
    if (oh_driver_get(&driver) != ncclSuccess) {
        oh_tool_error("perf: no usable CUDA driver: %s", oh_driver_error());
        return EXIT_FAILURE;
    }
    if (driver->device_get_count(&shared->gpus) != CUDA_SUCCESS || shared->gpus < 1) {
        oh_tool_error("perf: CUDA sees no GPU here");
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}

/* Settles the number of ranks. Returns false, with the reason on stderr, when there are not enough GPUs. */
static bool settle_ranks(struct oh_perf_options *options, struct oh_perf_shared *shared)
{
    int status = 0;
    pid_t child = fork_child();
    if (child == 0) {
        _exit(count_gpus(shared));
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        return false;
    }
    int most = shared->gpus < OH_PERF_RANKS ? shared->gpus : OH_PERF_RANKS;
    if (options->ranks > most) {
        oh_tool_error("perf: --ngpus %d: CUDA sees %d here", options->ranks, most);
        return false;
    }
    options->ranks = options->ranks ? options->ranks : most;
    return true;
}

struct team {
    pid_t worker[OH_PERF_RANKS]; /* 0: has ended */
    int living;
};

/* Kills what still lives and collects it. */
static void team_end(struct team *team, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        if (team->worker[rank]) {
            kill(team->worker[rank], SIGKILL);
            waitpid(team->worker[rank], NULL, 0);
            team->worker[rank] = 0;
        }
    }
    team->living = 0;
}

static bool team_start(const struct oh_perf_options *options, struct oh_perf_shared *shared, struct team *team_p)
{
    for (int rank = 0; rank < options->ranks; rank++) {
        pid_t child = fork_child();
        if (child == 0) {
            exit(oh_perf_work(options, shared, rank));
        }
        if (child < 0) {
            team_end(team_p, rank);
            return false;
        }
        team_p->worker[rank] = child;
        team_p->living++;
    }
    return true;
}

static void report_death(const struct oh_perf_shared *shared, int rank, int status)
{
    if (atomic_load(&shared->failure_written)) {
        oh_tool_error("perf: rank %d: %s", atomic_load(&shared->failed) - 1, shared->failure);
    } else if (WIFSIGNALED(status)) {
        oh_tool_error("perf: rank %d was killed by signal %d (%s)", rank, WTERMSIG(status),
                      strsignal(WTERMSIG(status)));
    } else {
        oh_tool_error("perf: rank %d ended with status %d", rank, WEXITSTATUS(status));
    }
}

/* Collects workers that have ended. Returns false, with the reason on stderr, when one ended badly. */
static bool team_collect(const struct oh_perf_shared *shared, struct team *team, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        int status;
        if (team->worker[rank] && waitpid(team->worker[rank], &status, WNOHANG) == team->worker[rank]) {
            team->worker[rank] = 0;
            team->living--;
            if (status != 0) {
                report_death(shared, rank, status);
                return false;
            }
        }
    }
    return true;
}

/* --- watching --------------------------------------------------------------------------------------------------- */

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* On a terminal, says which row is being measured; `row` of the number of rows: clears the line. */
static void show_progress(const struct oh_perf_shared *shared, size_t row)
{
    if (!isatty(STDERR_FILENO)) {
        return;
    }
    fprintf(stderr, "\r\033[K");
    if (row < shared->rows) {
        const struct oh_perf_row *next = &shared->row[row];
        fprintf(stderr, "row %zu of %zu: %s, %s, %zu bytes", row + 1, shared->rows, oh_perf_mode_name(next->mode),
                next->type->name, next->count * next->type->size);
    }
}

/* Prints the head and the rows that have become ready; *printed_p counts them. */
static void print_news(const struct oh_perf_options *options, const struct oh_perf_shared *shared, bool *head_p,
                       size_t *printed_p)
{
    size_t done = atomic_load(&shared->rows_done);
    if (!atomic_load(&shared->ready) || (*head_p && *printed_p == done)) {
        return;
    }
    show_progress(shared, shared->rows);
    if (!*head_p) {
        oh_perf_print_head(options, shared);
        *head_p = true;
    }
    while (*printed_p < done) {
        oh_perf_print_row(options, shared, (*printed_p)++);
    }
    show_progress(shared, done);
}

/* Until all workers have ended. Returns false, with the reason on stderr, when one fails or they stop getting on. */
static bool watch(const struct oh_perf_options *options, struct oh_perf_shared *shared, struct team *team)
{
    unsigned int generation = 0;
    double last = now_s();
    bool head = false;
    size_t printed = 0;
    while (team->living > 0) {
        usleep(2000);
        print_news(options, shared, &head, &printed);
        if (!team_collect(shared, team, options->ranks)) {
            return false;
        }
        if (atomic_load(&shared->generation) != generation) {
            generation = atomic_load(&shared->generation);
            last = now_s();
        } else if (now_s() - last > options->timeout_s) {
            oh_tool_error("perf: no progress for %d s (--timeout); all ranks are ended", options->timeout_s);
            return false;
        }
    }
    print_news(options, shared, &head, &printed);
    return true;
}

int oh_tool_perf(int argc, char **argv)
{
    struct oh_perf_options options = {
        .min_bytes = 8,
        .max_bytes = (size_t)64 << 20,
        .step_factor = 2,
        .iters = 20,
        .warmup = 5,
        .rounds = 5,
        .timeout_s = 120,
        .mode = {true, true},
        .type = {true},
        .nccl = "libnccl.so.2",
    };
    bool done = false;
    int status = parse_options(argc, argv, &options, &done);
    if (status != OH_EXIT_OK || done) {
        return status;
    }
    if (!options.onehop[0] && !oh_tool_find_library(options.onehop, sizeof options.onehop)) {
        return OH_EXIT_FAILED;
    }

    struct team team = {0};
    struct oh_perf_shared *shared = map_shared(&options);
    if (!shared || !settle_ranks(&options, shared) || !team_start(&options, shared, &team)) {
        return OH_EXIT_FAILED;
    }
    bool finished = watch(&options, shared, &team);
    team_end(&team, options.ranks);
    return finished && oh_perf_print_foot(shared) ? OH_EXIT_OK : OH_EXIT_FAILED;
}
