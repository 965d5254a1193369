/* SPDX-License-Identifier: MIT */
/* sim_app.c - see sim_app.h; here is a process of the job, with a worker for all of its ranks or one for each. */
#include "sim_app.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define POLL_MICROSECONDS 2000
#define LINGER_POLLS 5000

void app_fail(const char *file, int line, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("FAIL %s:%d: %s\n", file, line, text);
    fflush(stdout);
    _exit(1); /* other threads may be waiting for ever */
}

static bool sees_all_ranks(const struct app_options *options)
{
    return options->scenario == NULL && options->make < APP_MAKE_SPLIT;
}

/* With only so many descriptors more than are open now, if that is asked for. One worker a process. */
static void make_communicators(struct app_worker *worker)
{
    struct rlimit before, few;
    if (worker->options->descriptors < 0) {
        app_comm_make(worker);
        return;
    }
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC); /* the lowest that is free */
    APP_CHECK(next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &before) == 0, "no limit is known");
    few = before;
    few.rlim_cur = (rlim_t)(next + worker->options->descriptors);
    APP_CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0, "no limit can be set");
    app_comm_make(worker);
    APP_CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0, "the limit cannot be set back");
}

static size_t free_memory(const struct app_member *member)
{
    size_t free_bytes, total;
    app_member_use(member);
    APP_CU(cuMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

/* --linger: until the memory of the communicators is back, which may take as long as other ranks do; with a bound. */
static void linger(struct app_worker *worker, const size_t *free_before)
{
    for (int m = 0; m < worker->members; m++) {
        for (int i = 0; i < LINGER_POLLS && worker->options->linger; i++) {
            if (free_memory(&worker->member[m]) >= free_before[m]) {
                break;
            }
            usleep(POLL_MICROSECONDS);
        }
    }
    usleep(worker->options->linger ? 10 * POLL_MICROSECONDS : 0); /* what is freed after the memory */
}

static void *run_worker(void *argument)
{
    struct app_worker *worker = argument;
    const struct app_options *options = worker->options;
    size_t free_before[APP_MAX_RANKS];
    for (int m = 0; m < worker->members; m++) {
        app_member_open(worker, &worker->member[m]);
        free_before[m] = free_memory(&worker->member[m]);
    }
    for (int m = 0; m < worker->members; m++) {
        worker->board->pid[worker->member[m].world_rank] = getpid();
    }
    make_communicators(worker);
    if (options->scenario != NULL) {
        app_scenario_run(worker);
    } else {
        app_batch_run_all(worker);
    }
    app_comm_end(worker);
    linger(worker, free_before);
    for (int m = 0; m < worker->members; m++) {
        struct app_member *member = &worker->member[m];
        app_member_close(worker, member);
        if (sees_all_ranks(options)) {
            worker->board->hash[member->world_rank] = member->hash;
            worker->board->hashed[member->world_rank] = 1;
        }
    }
    return NULL;
}

static struct app_worker *create_worker(const struct app_options *options, struct app_board *board, int first,
                                        int members)
{
    struct app_worker *worker = calloc(1, sizeof *worker);
    APP_CHECK(worker != NULL, "no memory");
    worker->options = options;
    worker->board = board;
    worker->members = members;
    for (int m = 0; m < members; m++) {
        worker->member[m].world_rank = first + m;
    }
    return worker;
}

static int run_process(const struct app_options *options)
{
    struct app_board *board = app_board_open(options->board);
    int workers = options->threads ? options->local : 1, members = options->local / workers;
    struct app_worker *worker[APP_MAX_RANKS] = {NULL};
    pthread_t thread[APP_MAX_RANKS];
    for (int w = 1; w < workers; w++) {
        worker[w] = create_worker(options, board, options->rank + w * members, members);
        APP_CHECK(pthread_create(&thread[w], NULL, run_worker, worker[w]) == 0, "no thread");
    }
    worker[0] = create_worker(options, board, options->rank, members);
    run_worker(worker[0]);
    free(worker[0]);
    for (int w = 1; w < workers; w++) {
        pthread_join(thread[w], NULL);
        free(worker[w]);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct app_options options;
    app_options_parse(argc, argv, &options);
    if (options.rank < 0) {
        return app_launch(&options, argc, argv);
    }
    APP_CHECK(options.board != NULL, "--rank needs --id-file");
    return run_process(&options);
}
