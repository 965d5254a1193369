/* SPDX-License-Identifier: MIT */
/*
 * launch.c - starts the jobs, watches over them, and tells what they found
 *
 * A case has a time limit; when a process of the job dies or a worker stays in a case for longer, the job's processes
 * are killed, the case has failed, and the job starts again behind it.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/conformance/conformance.h"

#define POLL_MICROSECONDS 2000
#define QUICK_LIMIT_MS 30000
#define FULL_LIMIT_MS 240000

struct run {
    struct cf_job job;
    struct cf_case_board *board; /* the job's */
    int workers;
    int points, failed;
    uint64_t soak_ms; /* of each job */
};

/* The case that the job is in: that of the worker that is furthest behind. */
static int current_case(const struct run *run)
{
    int least = cf_case_count;
    for (int w = 0; w < run->workers; w++) {
        int at = atomic_load(&run->board->worker[w].at_case);
        least = at < least ? at : least;
    }
    return least < run->board->first_case ? run->board->first_case : least;
}

/* Returns the case that is to blame. */
static int end_early(struct run *run, const char *what)
{
    int which = current_case(run);
    struct cf_result *result = &run->board->worker[0].result[which];
    usleep(100000); /* the others may have something to say */
    cf_job_kill(&run->job);
    for (int w = 0; w < run->workers; w++) {
        const struct cf_result *one = &run->board->worker[w].result[which];
        if (one->failures > 0 && one->failure[0] != '\0') {
            return which; /* a worker has said more */
        }
    }
    result->failures++;
    snprintf(result->failure, sizeof result->failure, "%s", what);
    return which;
}

static bool is_late(const struct run *run)
{
    uint64_t limit = (uint64_t)cf_options.patience * (cf_options.full ? FULL_LIMIT_MS : QUICK_LIMIT_MS);
    bool late = false;
    for (int w = 0; w < run->workers; w++) {
        const struct cf_state *state = &run->board->worker[w];
        late |= !atomic_load(&state->done) && cf_now_ms() - atomic_load(&state->since_ms) > limit;
    }
    return late;
}

/* Waits for the end of all processes. Returns the case that ended the job early, -1 when none did. */
static int watch(struct run *run)
{
    char what[CF_TEXT];
    for (int left = run->job.processes; left > 0;) {
        int process, status;
        if (cf_job_ended(&run->job, &process, &status)) {
            left--;
            if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
                snprintf(what, sizeof what, "process %d ended with %s %d", process,
                         WIFSIGNALED(status) ? "signal" : "status",
                         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
                return end_early(run, what);
            }
            continue;
        }
        if (is_late(run)) {
            return end_early(run, "not finished in time: killed");
        }
        usleep(POLL_MICROSECONDS);
    }
    return -1;
}

static long larger(long a, long b)
{
    return a > b ? a : b;
}

/* What was done, by how much the worker that grew most has grown, and where its host memory lies. */
static void report_soak(const struct run *run, uint64_t failures)
{
    struct cf_soaked sum = run->board->worker[0].soaked; /* equal on all, but for the calls */
    struct resources most = {LONG_MIN, LONG_MIN, LONG_MIN, LONG_MIN, LONG_MIN, LONG_MIN, ""};
    const struct cf_soaked *grown = &run->board->worker[0].soaked; /* the one whose host memory grew most */
    for (int w = 0; w < run->workers; w++) {
        const struct resources *from = &run->board->worker[w].soaked.from, *to = &run->board->worker[w].soaked.to;
        sum.calls += w > 0 ? run->board->worker[w].soaked.calls : 0;
        grown = to->host_kib - from->host_kib > most.host_kib ? &run->board->worker[w].soaked : grown;
        most.host_kib = larger(most.host_kib, to->host_kib - from->host_kib);
        most.gpu_kib = larger(most.gpu_kib, to->gpu_kib - from->gpu_kib);
        most.descriptors = larger(most.descriptors, to->descriptors - from->descriptors);
        most.threads = larger(most.threads, to->threads - from->threads);
        most.mappings = larger(most.mappings, to->mappings - from->mappings);
        most.files = larger(most.files, to->files - from->files);
    }
    printf("# soak: %llu rounds, %llu calls, %llu communicators, %llu graphs, %llu replays, %llu failures; in %llu "
           "communicators grown by %ld KiB of host memory, %ld KiB of GPU memory, %ld descriptors, %ld threads, %ld "
           "mappings, %ld files\n",
           (unsigned long long)sum.rounds, (unsigned long long)sum.calls, (unsigned long long)sum.communicators,
           (unsigned long long)sum.graphs, (unsigned long long)sum.replays, (unsigned long long)failures,
           (unsigned long long)sum.after_warm_up, most.host_kib, most.gpu_kib, most.descriptors, most.threads,
           most.mappings, most.files);
    printf("# soak, largest mappings (MiB of the address, name, KiB): %s -> %s\n", grown->from.largest,
           grown->to.largest);
}

/* What all workers found in a case. */
static struct cf_result sum_results(const struct run *run, int which)
{
    struct cf_result sum = run->board->worker[0].result[which];
    for (int w = 1; w < run->workers; w++) {
        const struct cf_result *one = &run->board->worker[w].result[which];
        sum.checks += one->checks;
        sum.served += one->served;
        sum.fallbacks += one->fallbacks;
        if (one->failures > 0 && sum.failures == 0) {
            memcpy(sum.failure, one->failure, sizeof sum.failure);
        }
        sum.failures += one->failures;
        if (one->hash != sum.hash && sum.failures == 0) {
            sum.failures++;
            snprintf(sum.failure, sizeof sum.failure, "ranks 0 and %d have different results", w);
        }
    }
    if (sum.checks == 0 && sum.failures == 0 && sum.skipped[0] == '\0') {
        sum.failures++;
        snprintf(sum.failure, sizeof sum.failure, "nothing was checked");
    }
    return sum;
}

static void report(struct run *run, int which)
{
    const struct cf_case *tested = &cf_cases[which];
    const struct cf_result sum = sum_results(run, which);
    const char *mode = cf_mode_names[run->board->mode];
    int nranks = run->board->board.layout.nranks;
    run->points++;
    run->failed += sum.failures > 0;
    printf("%sok %d - n=%d %s %s: %llu checks, served %llu, fallbacks %llu, %.1f s%s%s\n",
           sum.failures > 0 ? "not " : "", run->points, nranks, mode, tested->name, (unsigned long long)sum.checks,
           (unsigned long long)sum.served, (unsigned long long)sum.fallbacks, (double)sum.milliseconds / 1000,
           sum.skipped[0] != '\0' ? " # SKIP " : "", sum.skipped);
    if (sum.failures > 0) {
        printf("# %llu failures, the first: %s\n", (unsigned long long)sum.failures, sum.failure);
    }
    if (tested->when == CF_SOAK) {
        report_soak(run, sum.failures);
    }
    fflush(stdout);
}

static void reset_board(struct run *run, int nranks, enum cf_mode mode, int first_case)
{
    struct cf_case_board *board = run->board;
    memset(board, 0, sizeof *board);
    board->board.layout =
        (struct cf_layout){.nranks = nranks, .local = mode == CF_PROCESSES ? 1 : nranks, .threads = mode == CF_THREADS};
    board->board.seed = cf_options.seed;
    board->mode = mode;
    board->first_case = first_case;
    board->soak_ms = run->soak_ms;
    run->workers = cf_workers(&board->board.layout);
    for (int w = 0; w < run->workers; w++) {
        atomic_store(&board->worker[w].at_case, -1);
        atomic_store(&board->worker[w].since_ms, cf_now_ms());
    }
}

static void run_job(struct run *run, int nranks, enum cf_mode mode)
{
    static bool told;
    for (int first = 0; first < cf_case_count;) {
        reset_board(run, nranks, mode, first);
        cf_job_start(&run->job);
        int ended = watch(run), end = ended >= 0 ? ended + 1 : cf_case_count;
        if (!told) {
            printf("# NCCL %d, onehop %d%s\n", run->board->nccl_version, run->board->onehop,
                   run->board->onehop == 0 ? " (not loaded)" : "");
            told = true;
        }
        for (int c = first; c < end; c++) {
            if (cf_wanted(c)) {
                report(run, c);
            }
        }
        first = end;
    }
}

/* Those that are named, and no more than there are GPUs. */
static void choose_ranks(int gpus)
{
    struct cf_ranks *ranks = &cf_options.ranks, chosen = {.count = 0};
    int most = gpus < CF_MAX_RANKS ? gpus : CF_MAX_RANKS;
    for (int n = cf_options.soak > 0 ? most : 2; n <= most && ranks->count == 0; n++) {
        chosen.list[chosen.count++] = n;
    }
    for (int i = 0; i < ranks->count; i++) {
        if (ranks->list[i] <= gpus) {
            chosen.list[chosen.count++] = ranks->list[i];
        }
    }
    *ranks = chosen;
}

int cf_launch(char **argv)
{
    struct run run = {.points = 0};
    int gpus = cf_count_gpus(), modes = 0;
    choose_ranks(gpus);
    if (gpus < 2) {
        printf("1..0 # SKIP fewer than two GPUs\n");
        return 0;
    }
    for (int m = 0; m < CF_MODES; m++) {
        modes += cf_options.mode[m];
    }
    int jobs = modes * cf_options.ranks.count;
    run.soak_ms = (uint64_t)cf_options.soak * 1000 / (uint64_t)(jobs > 0 ? jobs : 1);
    cf_job_open(&run.job, argv, sizeof *run.board);
    run.board = (struct cf_case_board *)run.job.board;
    printf("# seed %llu, %d GPUs, %s\n", (unsigned long long)cf_options.seed, gpus, cf_options.full ? "full" : "quick");
    for (int i = 0; i < cf_options.ranks.count; i++) {
        for (int m = 0; m < CF_MODES; m++) {
            if (cf_options.mode[m]) {
                run_job(&run, cf_options.ranks.list[i], (enum cf_mode)m);
            }
        }
    }
    printf("1..%d\n# seed %llu: %d points, %d failed\n", run.points, (unsigned long long)cf_options.seed, run.points,
           run.failed);
    cf_job_close(&run.job);
    return run.failed > 0 || run.points == 0;
}
