/* SPDX-License-Identifier: MIT */
/* sim_failure.c - see sim_failure.h */
#include "test/e2e/sim_failure.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

bool failure_is_scenario(const char *name)
{
    return strcmp(app_options.scenario, name) == 0;
}

bool failure_is_victim(const struct app *app)
{
    int first = app->worker->member[0].world_rank, victim = app_options.victim;
    return victim >= first && victim < first + app->worker->members;
}

void failure_sleep(double seconds)
{
    usleep((useconds_t)(seconds * 1e6));
}

void failure_start(struct app *app, const struct cf_graph *graph)
{
    app_load(app->call);
    if (graph != NULL) {
        cf_graph_launch(app->worker, graph, 0);
    } else {
        app_call(app->call);
    }
}

void failure_tell(const struct app *app, const char *what, double seconds)
{
    printf("rank %d: %s %.0f ms\n", app->worker->member[0].world_rank, what, seconds * 1e3);
    fflush(stdout);
}

void failure_await_error(struct app *app, ncclComm_t comm, ncclResult_t expected)
{
    ncclResult_t state = ncclSuccess;
    double begin = cf_now();
    while (state == ncclSuccess && cf_now() - begin < PATIENCE_SECONDS) {
        CF_NCCL(app->worker, CommGetAsyncError(comm, &state));
        usleep(POLL_MICROSECONDS);
    }
    cf_check(app->worker, state == expected, "the asynchronous error is %d, expected %d", (int)state, (int)expected);
    double killed = atomic_load(&app->board->killed);
    failure_tell(app, "noticed after", cf_now() - (killed > begin ? killed : begin));
}

void failure_await_gpus(struct app *app)
{
    double since = cf_now();
    cf_check(app->worker, cf_finishes(app->worker, PATIENCE_SECONDS), "the GPU is still busy");
    failure_tell(app, "left after", cf_now() - since);
}

void failure_check_waiting(struct app *app)
{
    cf_check(app->worker, !cf_finishes(app->worker, STUCK_SECONDS), "a call ended without all of its ranks");
}

void failure_check_sound(struct app *app, ncclComm_t comm)
{
    ncclResult_t state;
    failure_sleep(STUCK_SECONDS); /* time to notice what is no fault */
    CF_NCCL(app->worker, CommGetAsyncError(comm, &state));
    cf_check(app->worker, state == ncclSuccess, "the asynchronous error is %d", (int)state);
}

void failure_abort_all(struct app *app)
{
    struct cf_set *set = &app->set[0];
    for (int m = 0; cf_use(app->worker, m); m++) {
        double begin = cf_now();
        CF_NCCL(app->worker, CommAbort(set->comm[m]));
        set->comm[m] = NULL;
        failure_tell(app, "aborted within", cf_now() - begin);
    }
}

ncclResult_t failure_call_again(struct app *app)
{
    cf_use(app->worker, 0);
    return cf_batch_call(app->call, 0, 0, app->worker->member[0].stream[0]);
}

void failure_call_must(struct app *app, ncclResult_t expected)
{
    ncclResult_t result = failure_call_again(app);
    cf_check(app->worker, result == expected, "a call gave %d, expected %d", (int)result, (int)expected);
}

void failure_go_on(struct app *app, int without)
{
    struct cf_worker *worker = app->worker;
    struct cf_set *set = &app->set[0];
    worker->serial = 1000; /* the victim has made other calls than the rest */
    if (worker->members > 1) {
        return;
    }
    ncclUniqueId id = cf_next_id(worker, without == 0 ? 1 : 0, NULL);
    cf_set_fill(worker, without, set);
    cf_use(worker, 0);
    CF_NCCL(worker, CommInitRank(&set->comm[0], set->nranks[0], id, set->rank[0]));
    app_run(app->call);
}

void failure_say(const struct app *app, _Atomic uint32_t *counter)
{
    atomic_fetch_add(counter, (uint32_t)app->worker->members);
}

void failure_await_count(struct app *app, _Atomic uint32_t *counter, int ranks)
{
    double begin = cf_now();
    while (atomic_load(counter) < (uint32_t)ranks) {
        cf_check(app->worker, cf_now() - begin < PATIENCE_SECONDS, "the other ranks do not come");
        usleep(POLL_MICROSECONDS);
    }
}

void failure_await_others(struct app *app, _Atomic uint32_t *counter)
{
    failure_await_count(app, counter, app->worker->nranks - app->worker->members);
}

static bool log_has(struct app *app, const char *text)
{
    bool found = false;
    char line[4096];
    FILE *file = fopen(app_options.log, "r");
    cf_check(app->worker, file != NULL, "--log cannot be read");
    while (!found && fgets(line, sizeof line, file) != NULL) {
        found = strstr(line, text) != NULL;
    }
    fclose(file);
    return found;
}

void failure_await_log(struct app *app, const char *text)
{
    double begin = cf_now();
    cf_check(app->worker, app_options.log != NULL, "this scenario needs --log");
    while (!log_has(app, text)) {
        cf_check(app->worker, cf_now() - begin < PATIENCE_SECONDS, "no line has '%s'", text);
        usleep(POLL_MICROSECONDS);
    }
}

void failure_die(const struct app *app)
{
    struct rlimit none = {0, 0};
    atomic_store(&app->board->killed, cf_now());
    if (failure_is_scenario("kill-fault")) { /* a sanitizer would make it an ordinary exit */
        setrlimit(RLIMIT_CORE, &none);
        prctl(PR_SET_DUMPABLE, 0); /* a handler that core_pattern pipes to runs whatever the limit */
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    kill(getpid(), SIGKILL);
    abort();
}
