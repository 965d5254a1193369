/* SPDX-License-Identifier: MIT */
/* sim_app.c - see sim_app.h: the launcher, and communicators */
#include "test/e2e/sim_app.h"

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINGER_SECONDS 10
#define POLL_MICROSECONDS 2000
#define STOPPED_MICROSECONDS 500000

/* --- communicators ------------------------------------------------------------------------------------------------ */

/* The ranks that come later, if any, are the last. */
static int parent_ranks(void)
{
    int nranks = app_options.layout.nranks;
    while (app_options.make == APP_MAKE_GROW && nranks > 0 && app_options.color[nranks - 1] < 0) {
        nranks--;
    }
    return nranks;
}

static void make_child(struct app *app, struct cf_set *set_p)
{
    bool chosen[CF_MAX_RANKS];
    int flags =
        (app_options.nonblocking ? CF_CHILD_NONBLOCKING : 0) | (app_options.seed % 3 == 0 ? CF_CHILD_SHARES : 0);
    for (int r = 0; r < CF_MAX_RANKS; r++) {
        chosen[r] = app_options.make == APP_MAKE_GROW ? app_options.key[r] > 0 : app_options.color[r] < 0;
    }
    if (app_options.make == APP_MAKE_SHRINK) {
        cf_set_shrink(app->worker, &app->parent, chosen, flags, set_p);
    } else if (app_options.make == APP_MAKE_GROW) {
        cf_set_grow(app->worker, &app->parent, chosen, flags, set_p);
    } else {
        cf_set_split(app->worker, &app->parent, app_options.color, app_options.key, flags, set_p);
    }
}

void app_comm_make(struct app *app)
{
    bool has_parent = app_options.make >= APP_MAKE_SPLIT;
    if (has_parent) {
        cf_set_create_first(app->worker, app_options.nonblocking ? CF_INIT_NONBLOCKING : CF_INIT_RANK, parent_ranks(),
                            &app->parent);
    }
    for (int c = 0; c < app_options.comms; c++) {
        if (app_options.make == APP_MAKE_FAMILY && c == 0) {
            app->set[c] = app->parent;
        } else if (has_parent) {
            make_child(app, &app->set[c]);
        } else {
            cf_set_create(app->worker, (enum cf_maker)app_options.make, &app->set[c]);
        }
    }
}

void app_comm_end(struct app *app)
{
    for (int c = app_options.comms - 1; c >= (app_options.make == APP_MAKE_FAMILY ? 1 : 0); c--) {
        if (app_options.seed % 2 == 0) {
            cf_set_finalize(app->worker, &app->set[c]);
        }
        cf_set_destroy(app->worker, &app->set[c]);
    }
    cf_set_destroy(app->worker, &app->parent);
}

/* With only so many descriptors more than are open now, if that is asked for. One worker a process. */
static void make_communicators(struct app *app)
{
    struct rlimit before = {.rlim_cur = 0}, few;
    if (app_options.descriptors < 0) {
        app_comm_make(app);
        return;
    }
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC); /* the lowest that is free */
    bool known = next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &before) == 0;
    few = before;
    few.rlim_cur = (rlim_t)(next + app_options.descriptors);
    cf_check(app->worker, known && setrlimit(RLIMIT_NOFILE, &few) == 0, "no limit can be set");
    app_comm_make(app);
    cf_check(app->worker, setrlimit(RLIMIT_NOFILE, &before) == 0, "the limit cannot be set back");
}

/* --- processes ---------------------------------------------------------------------------------------------------- */

/* --linger: until the memory of the communicators is back, which may take as long as other ranks do; with a bound. */
static void linger(struct app *app, long kib_before)
{
    for (double end = cf_now() + LINGER_SECONDS; cf_now() < end && cf_gpu_kib(app->worker) > kib_before;) {
        usleep(POLL_MICROSECONDS);
    }
    usleep(10 * POLL_MICROSECONDS); /* what is freed after the memory */
}

static void run_worker(struct cf_worker *worker)
{
    struct app *app = cf_need(worker, calloc(1, sizeof *app));
    long kib_before = cf_gpu_kib(worker);
    app->worker = worker;
    app->board = (struct app_board *)worker->board;
    worker->result = &app->board->result[worker->index];
    worker->jitter_us = (unsigned)app_options.jitter;
    worker->hashes_compared = app_options.scenario == NULL;
    make_communicators(app);
    if (app_options.scenario != NULL) {
        app_scenario_run(app);
    } else {
        app_calls_run(app);
    }
    app_comm_end(app);
    if (app_options.linger) {
        linger(app, kib_before);
    }
    free(app);
}

/* The --rank-env settings of the ranks of a process. */
static void set_environment(const struct cf_job *job, int process)
{
    int first = process * job->board->layout.local;
    for (int i = 0; i < app_options.rank_envs; i++) {
        char text[4096], *name;
        int rank = (int)strtol(app_options.rank_env[i], &name, 10);
        if (rank < first || rank >= first + job->board->layout.local || *name != ':') {
            continue;
        }
        snprintf(text, sizeof text, "%s", name + 1);
        char *value = strchr(text, '=');
        if (value == NULL) {
            unsetenv(text);
        } else {
            *value = '\0';
            setenv(text, value + 1, 1);
        }
    }
}

/* Processes that a fault has stopped (SIMNODE_STOP) go on when a child of the launcher comes by, which ends with it. */
static void start_continuing(const struct cf_job *job)
{
    if (fork() != 0) {
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        usleep(STOPPED_MICROSECONDS);
        for (int p = 0; p < job->processes; p++) {
            kill(job->pid[p], SIGCONT);
        }
    }
}

static bool is_scenario(const char *beginning)
{
    return app_options.scenario != NULL && strncmp(app_options.scenario, beginning, strlen(beginning)) == 0;
}

/* In scenarios kill* the victim must not come to its end, in scenarios fault-* it may be killed before. */
static bool has_ended_well(const struct cf_job *job, int process, int status)
{
    bool is_victim = app_options.victim >= 0 && app_options.victim / job->board->layout.local == process;
    bool must = is_victim && is_scenario("kill"), may = is_victim && is_scenario("fault-");
    if ((must || may) && WIFSIGNALED(status)) {
        return WTERMSIG(status) == (is_scenario("kill-fault") ? SIGSEGV : SIGKILL);
    }
    return !must && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool hashes_agree(const struct app_board *board)
{
    for (int w = 1; w < cf_workers(&board->board.layout); w++) {
        if (app_options.scenario == NULL && board->result[w].hash != board->result[0].hash) {
            printf("FAIL results of workers 0 and %d differ\n", w);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    struct cf_job job = {.prepare = set_environment, .ended_well = has_ended_well};
    struct cf_board *board;
    int process;
    app_options_read(argc, argv);
    if (cf_job_join(sizeof(struct app_board), &board, &process)) {
        /* The pages of large buffers are kept: new ones take a third of the system time of tests of large messages. */
        mallopt(M_MMAP_THRESHOLD, 32 << 20);
        mallopt(M_TRIM_THRESHOLD, 1 << 30);
        return cf_job_run(board, process, run_worker, NULL);
    }
    cf_job_open(&job, argv, sizeof(struct app_board));
    job.board->layout = app_options.layout;
    job.board->seed = app_options.seed;
    job.board->stops = true;
    cf_job_start(&job);
    if (is_scenario("fault-")) {
        start_continuing(&job);
    }
    bool good = cf_job_wait(&job, app_options.timeout) && hashes_agree((struct app_board *)job.board);
    cf_job_close(&job);
    printf("%s %d ranks, seed %llu\n", good ? "ok" : "FAIL", app_options.layout.nranks,
           (unsigned long long)app_options.seed);
    return good ? 0 : 1;
}
