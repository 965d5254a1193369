/* SPDX-License-Identifier: MIT */
/*
 * launch.c - starts the jobs, watches over them, and tells what they found
 *
 * The launcher itself opens neither CUDA nor NCCL: children are exec'ed, and the GPUs counted in one. A case has a time
 * limit; when a process of the job dies or a worker stays in a case for longer, the job's processes are killed, the
 * case has failed, and the job starts again behind it.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/conformance/conformance.h"

#define POLL_MICROSECONDS 2000
#define QUICK_LIMIT_MS 30000
#define FULL_LIMIT_MS 240000

struct job {
    const struct cf_options *options;
    char **argv;
    enum cf_mode mode;
    int nranks, processes, workers;
    int first_case; /* of this attempt */
    char path[64];
    struct cf_board *board;
    pid_t pid[CF_MAX_RANKS];
    FILE *json;
    int points, failed;
    uint64_t soak_ms; /* of each job */
};

/* In a process of its own: the launcher must not open CUDA. Exit status: the number of GPUs. */
static int count_gpus(void)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int count = 0;
        if (cf_api_open_cuda() != NULL || cu.Init(0) != CUDA_SUCCESS || cu.DeviceGetCount(&count) != CUDA_SUCCESS) {
            count = 0;
        }
        _exit(count);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) {
        return 0;
    }
    return WEXITSTATUS(status);
}

static void start_process(struct job *job, int p)
{
    pid_t pid = fork();
    if (pid != 0) {
        job->pid[p] = pid;
        return;
    }
    char child[128], *arguments[64];
    int count = 0;
    snprintf(child, sizeof child, "--child=%d:%d:%d:%d:%llu:%s", (int)job->mode, job->nranks, p, job->first_case,
             (unsigned long long)job->options->seed, job->path);
    while (job->argv[count] != NULL && count < 60) {
        arguments[count] = job->argv[count];
        count++;
    }
    arguments[count] = child;
    arguments[count + 1] = NULL;
    execv("/proc/self/exe", arguments);
    _exit(2);
}

static void kill_all(struct job *job)
{
    for (int p = 0; p < job->processes; p++) {
        if (job->pid[p] > 0) {
            kill(job->pid[p], SIGKILL);
            waitpid(job->pid[p], NULL, 0);
            job->pid[p] = 0;
        }
    }
}

/* The case that the job is in: that of the worker that is furthest behind. */
static int current_case(const struct job *job)
{
    int least = cf_case_count;
    for (int w = 0; w < job->workers; w++) {
        int at = atomic_load(&job->board->worker[w].at_case);
        least = at < least ? at : least;
    }
    return least < job->first_case ? job->first_case : least;
}

static void blame(struct job *job, int which, const char *what)
{
    for (int w = 0; w < job->workers; w++) {
        struct cf_result *result = &job->board->worker[w].result[which];
        if (result->failures > 0 && result->failure[0] != '\0') {
            return; /* a worker has said more */
        }
    }
    struct cf_result *result = &job->board->worker[0].result[which];
    result->failures++;
    snprintf(result->failure, sizeof result->failure, "%s", what);
}

static bool is_late(const struct job *job)
{
    uint64_t limit = (uint64_t)job->options->patience * (job->options->full ? FULL_LIMIT_MS : QUICK_LIMIT_MS);
    bool late = false;
    for (int w = 0; w < job->workers; w++) {
        const struct cf_worker_state *state = &job->board->worker[w];
        late |= !atomic_load(&state->done) && cf_now_ms() - atomic_load(&state->since_ms) > limit;
    }
    return late;
}

/* What a soak has done so far, over all workers. */
static struct cf_soaked sum_soaked(const struct job *job)
{
    struct cf_soaked sum = job->board->worker[0].soaked;
    for (int w = 1; w < job->workers; w++) {
        sum.calls += job->board->worker[w].soaked.calls;
    }
    return sum;
}

static bool shows_progress(const struct job *job)
{
    return job->options->soak > 0 && isatty(STDERR_FILENO);
}

static void show_progress(const struct job *job, uint64_t start_ms)
{
    struct cf_soaked soaked = sum_soaked(job);
    uint64_t failures = 0;
    for (int w = 0; w < job->workers; w++) {
        failures += job->board->worker[w].result[current_case(job)].failures;
    }
    fprintf(stderr, "\r\033[Kn=%d %s: %llu s of %llu, %llu calls, %llu communicators, %llu failures", job->nranks,
            cf_mode_names[job->mode], (unsigned long long)(cf_now_ms() - start_ms) / 1000,
            (unsigned long long)job->board->soak_ms / 1000, (unsigned long long)soaked.calls,
            (unsigned long long)soaked.communicators, (unsigned long long)failures);
}

/* Waits for the end of all processes. Returns the case that ended the job early, -1 when none did. */
static int watch(struct job *job)
{
    char what[CF_TEXT];
    uint64_t start_ms = cf_now_ms(), shown_ms = start_ms;
    for (int left = job->processes; left > 0;) {
        for (int p = 0; p < job->processes; p++) {
            int status;
            if (job->pid[p] <= 0 || waitpid(job->pid[p], &status, WNOHANG) != job->pid[p]) {
                continue;
            }
            job->pid[p] = 0;
            left--;
            if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
                int which = current_case(job);
                snprintf(what, sizeof what, "process %d ended with %s %d", p, WIFSIGNALED(status) ? "signal" : "status",
                         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
                usleep(100000); /* the others may have something to say */
                kill_all(job);
                blame(job, which, what);
                return which;
            }
        }
        if (left > 0 && is_late(job)) {
            int which = current_case(job);
            kill_all(job);
            blame(job, which, "not finished in time: killed");
            return which;
        }
        if (shows_progress(job) && cf_now_ms() > shown_ms + 1000) {
            shown_ms = cf_now_ms();
            show_progress(job, start_ms);
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
static void report_soak(const struct job *job, uint64_t failures)
{
    struct cf_soaked sum = sum_soaked(job);
    struct resources most = {LONG_MIN, LONG_MIN, LONG_MIN, LONG_MIN, LONG_MIN, LONG_MIN, ""};
    const struct cf_soaked *grown = NULL; /* the one whose host memory grew most */
    for (int w = 0; w < job->workers; w++) {
        const struct resources *from = &job->board->worker[w].soaked.from, *to = &job->board->worker[w].soaked.to;
        grown = to->host_kib - from->host_kib > most.host_kib ? &job->board->worker[w].soaked : grown;
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

static void report(struct job *job, int which)
{
    const struct cf_case *tested = &cf_cases[which];
    struct cf_result sum = job->board->worker[0].result[which];
    for (int w = 1; w < job->workers; w++) {
        const struct cf_result *one = &job->board->worker[w].result[which];
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
    job->points++;
    job->failed += sum.failures > 0;
    printf("%sok %d - n=%d %s %s: %llu checks, served %llu, fallbacks %llu, %.1f s%s%s\n",
           sum.failures > 0 ? "not " : "", job->points, job->nranks, cf_mode_names[job->mode], tested->name,
           (unsigned long long)sum.checks, (unsigned long long)sum.served, (unsigned long long)sum.fallbacks,
           (double)sum.milliseconds / 1000, sum.skipped[0] != '\0' ? " # SKIP " : "", sum.skipped);
    if (sum.failures > 0) {
        printf("# %llu failures, the first: %s\n", (unsigned long long)sum.failures, sum.failure);
    }
    if (tested->when == CF_SOAK) {
        report_soak(job, sum.failures);
    }
    fflush(stdout);
    if (job->json != NULL) {
        fprintf(job->json,
                "{\"ranks\": %d, \"mode\": \"%s\", \"case\": \"%s\", \"seed\": %llu, \"checks\": %llu, "
                "\"failures\": %llu, \"served\": %llu, \"fallback\": %llu, \"ms\": %llu, \"skipped\": %s}\n",
                job->nranks, cf_mode_names[job->mode], tested->name, (unsigned long long)job->options->seed,
                (unsigned long long)sum.checks, (unsigned long long)sum.failures, (unsigned long long)sum.served,
                (unsigned long long)sum.fallbacks, (unsigned long long)sum.milliseconds,
                sum.skipped[0] != '\0' ? "true" : "false");
    }
}

static void reset_board(struct job *job)
{
    memset(job->board, 0, sizeof *job->board);
    job->board->workers = job->workers;
    job->board->soak_ms = job->soak_ms;
    for (int w = 0; w < job->workers; w++) {
        atomic_store(&job->board->worker[w].at_case, -1);
        atomic_store(&job->board->worker[w].since_ms, cf_now_ms());
    }
}

static void run_job(struct job *job)
{
    static bool told;
    for (job->first_case = 0; job->first_case < cf_case_count;) {
        reset_board(job);
        fflush(NULL);
        for (int p = 0; p < job->processes; p++) {
            start_process(job, p);
        }
        int ended = watch(job), end = ended >= 0 ? ended + 1 : cf_case_count;
        if (shows_progress(job)) {
            fprintf(stderr, "\r\033[K");
        }
        if (!told) {
            printf("# NCCL %d, onehop %d%s\n", job->board->nccl_version, job->board->onehop,
                   job->board->onehop == 0 ? " (not loaded)" : "");
            told = true;
        }
        for (int c = job->first_case; c < end; c++) {
            if (cf_wanted(job->options, c)) {
                report(job, c);
            }
        }
        job->first_case = end;
    }
}

static void choose_ranks(struct cf_options *options, int gpus)
{
    if (options->soak > 0 && options->rank_count == 0) {
        options->ranks[options->rank_count++] = gpus > CF_MAX_RANKS ? CF_MAX_RANKS : gpus;
    }
    for (int n = 2; options->rank_count == 0 && n <= gpus && n <= CF_MAX_RANKS; n++) {
        options->ranks[n - 2] = n;
    }
    if (options->rank_count == 0) {
        options->rank_count = gpus > CF_MAX_RANKS ? CF_MAX_RANKS - 1 : gpus - 1;
    }
}

static int count_jobs(const struct cf_options *options, int gpus)
{
    int jobs = 0;
    for (int i = 0; i < options->rank_count; i++) {
        for (int m = 0; m < CF_MODES; m++) {
            jobs += options->mode[m] && options->ranks[i] <= gpus;
        }
    }
    return jobs > 0 ? jobs : 1;
}

int cf_launch(const struct cf_options *given, char **argv)
{
    struct cf_options options = *given;
    struct job job = {.options = &options, .argv = argv, .path = "/tmp/onehop-conformance.XXXXXX"};
    int gpus = count_gpus(), fd = mkstemp(job.path);
    if (fd < 0) {
        fprintf(stderr, "onehop-conformance: mkstemp: %s\n", strerror(errno));
        return 2;
    }
    close(fd);
    choose_ranks(&options, gpus);
    if (gpus < 2 || options.rank_count < 1) {
        printf("1..0 # SKIP fewer than two GPUs\n");
        unlink(job.path);
        return 0;
    }
    job.soak_ms = (uint64_t)options.soak * 1000 / (uint64_t)count_jobs(&options, gpus);
    job.json = options.json != NULL ? fopen(options.json, "w") : NULL;
    job.board = cf_board_open(job.path);
    printf("# seed %llu, %d GPUs, %s\n", (unsigned long long)options.seed, gpus, options.full ? "full" : "quick");
    for (int i = 0; i < options.rank_count; i++) {
        for (int m = 0; m < CF_MODES; m++) {
            job.nranks = options.ranks[i];
            job.mode = (enum cf_mode)m;
            job.processes = m == CF_PROCESSES ? job.nranks : 1;
            job.workers = m == CF_GROUP ? 1 : job.nranks;
            if (options.mode[m] && job.nranks <= gpus) {
                run_job(&job);
            }
        }
    }
    printf("1..%d\n# seed %llu: %d points, %d failed\n", job.points, (unsigned long long)options.seed, job.points,
           job.failed);
    unlink(job.path);
    if (job.json != NULL) {
        fclose(job.json);
    }
    return job.failed > 0 || job.points == 0;
}
