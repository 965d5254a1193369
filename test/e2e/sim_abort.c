/* SPDX-License-Identifier: MIT */
/*
 * sim_abort.c - scenarios of sim_app: communicators that another thread aborts, revokes, or shrinks with the abort
 * flag, while they are used, or aborts while they are made
 *
 * As in sim_peer_failure.c there is a victim: it makes no call, is killed, or does not go on with the set-up.
 */
#include "test/e2e/sim_failure.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SHRINK_ABORT 1      /* NCCL_SHRINK_ABORT */
#define BLOCKED_LAUNCHES 16 /* more than the queue of a stream takes in scenario abort-launch */

/* --- the thread that uses the communicator ------------------------------------------------------------------------ */

/* It makes a call, or a replay, and waits for its end; in scenarios *-idle it makes none. */
struct user {
    struct app *app;
    struct cf_graph graph;
    pthread_t thread;
    atomic_bool begun;
    double free; /* when its stream was empty */
};

static bool is_kind(const char *part)
{
    return strstr(app_options.scenario, part) != NULL;
}

static void *use(void *argument)
{
    struct user *user = argument;
    struct cf_worker *worker = user->app->worker;
    cf_use(worker, 0);
    atomic_store(&user->begun, true);
    if (failure_is_scenario("abort-launch")) {
        CF_NCCL(worker, GroupStart()); /* one call that blocks: after the abort the handle may not be used any more */
        for (int i = 0; i < BLOCKED_LAUNCHES; i++) {
            failure_call_must(user->app, ncclSuccess);
        }
        nccl.GroupEnd();
    } else if (failure_is_scenario("abort-first")) {
        failure_call_must(user->app, ncclInternalError);
        user->free = cf_now();
        return NULL;
    } else if (!is_kind("-idle")) {
        failure_start(user->app, is_kind("-replay") ? &user->graph : NULL);
    }
    CF_CU(worker, StreamSynchronize(worker->member[0].stream[0]));
    user->free = cf_now();
    return NULL;
}

/* When this returns, the threads of all ranks but the victim are at it. */
static void begin_use(struct user *user)
{
    struct app *app = user->app;
    if (is_kind("-replay")) {
        app_capture(app->call, &user->graph);
    }
    if (!failure_is_victim(app)) {
        cf_check(app->worker, pthread_create(&user->thread, NULL, use, user) == 0, "no thread");
        while (!atomic_load(&user->begun)) {
            usleep(POLL_MICROSECONDS);
        }
        failure_sleep(STUCK_SECONDS);
        failure_say(app, &app->board->called);
    }
    failure_await_others(app, &app->board->called);
}

/* Tells how long after the abort its stream was empty. */
static void end_use(struct user *user, double aborted)
{
    cf_check(user->app->worker, pthread_join(user->thread, NULL) == 0, "join");
    failure_tell(user->app, "left after", user->free > aborted ? user->free - aborted : 0);
}

/* --- ncclCommAbort ------------------------------------------------------------------------------------------------ */

/* In abort-first while the first call waits for the victim, which makes none. */
void app_guard_abort(struct app *app)
{
    struct user user = {.app = app};
    if (failure_is_scenario("abort-first")) {
        app_load(app->call);
    } else {
        app_run(app->call);
    }
    begin_use(&user);
    if (failure_is_victim(app)) {
        failure_await_others(app, &app->board->done);
        failure_abort_all(app);
    } else {
        double begin = cf_now();
        failure_abort_all(app);
        end_use(&user, begin);
        failure_say(app, &app->board->done);
    }
    failure_go_on(app, -1);
}

/* --- ncclCommRevoke ----------------------------------------------------------------------------------------------- */

void app_guard_revoke(struct app *app)
{
    struct cf_worker *worker = app->worker;
    struct user user = {.app = app};
    ncclComm_t comm = app->set[0].comm[0];
    bool kills = failure_is_scenario("kill-revoke");
    if (dlsym(RTLD_DEFAULT, "ncclCommRevoke") == NULL) { /* NCCL before 2.28.7 */
        printf("rank %d: skipped, NCCL has no ncclCommRevoke\n", worker->member[0].world_rank);
        if (kills && failure_is_victim(app)) {
            failure_die(app);
        }
        return;
    }
    begin_use(&user);
    if (kills && failure_is_victim(app)) {
        failure_die(app);
    } else if (kills) {
        failure_await_error(app, comm, ncclRemoteError);
    } else if (failure_is_victim(app)) {
        failure_await_others(app, &app->board->done);
    }
    double begin = cf_now();
    CF_NCCL(worker, CommRevoke(comm, 0));
    failure_tell(app, "revoked within", cf_now() - begin);
    if (!failure_is_victim(app)) {
        end_use(&user, begin);
        failure_say(app, &app->board->done);
    }
    failure_call_must(app, ncclInvalidUsage); /* NCCL's words for it */
    CF_NCCL(worker, CommDestroy(comm));
    failure_go_on(app, kills ? app_options.victim : -1);
}

/* --- ncclCommShrink ----------------------------------------------------------------------------------------------- */

/* The child takes the place of the communicator, which is ended. */
static void shrink(struct app *app, struct user *user)
{
    struct cf_worker *worker = app->worker;
    struct cf_set *set = &app->set[0];
    ncclComm_t parent = set->comm[0];
    int excluded = app_options.victim;
    double begin = cf_now();
    CF_NCCL(worker, CommShrink(parent, &excluded, 1, &set->comm[0], NULL, SHRINK_ABORT));
    failure_tell(app, "shrunk within", cf_now() - begin);
    end_use(user, begin);
    cf_set_fill(worker, excluded, set);
    worker->serial = 1000; /* the victim has made other calls than the rest */
    for (int i = 0; i < 3; i++) {
        app_run(app->call);
    }
    CF_NCCL(worker, CommAbort(parent));
    app_run(app->call);
}

void app_guard_shrink(struct app *app)
{
    struct user user = {.app = app};
    bool kills = failure_is_scenario("kill-shrink");
    begin_use(&user);
    if (!failure_is_victim(app)) {
        if (kills) {
            failure_await_error(app, app->set[0].comm[0], ncclRemoteError);
        }
        shrink(app, &user);
        failure_say(app, &app->board->done);
    } else if (kills) {
        failure_die(app);
    } else {
        failure_await_others(app, &app->board->done);
        failure_abort_all(app);
    }
}

/* --- a communicator that is being made ---------------------------------------------------------------------------- */

static void *abort_it(void *app)
{
    failure_abort_all(app);
    return NULL;
}

/* Another communicator in place of the first, of all ranks, without waiting for NCCL. */
static void begin_another(struct app *app)
{
    struct cf_worker *worker = app->worker;
    struct cf_set *set = &app->set[0];
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id = cf_next_id(worker, app_options.victim == 0 ? 1 : 0, NULL);
    config.blocking = 0;
    ncclResult_t result = nccl.CommInitRankConfig(&set->comm[0], set->nranks[0], id, set->rank[0], &config);
    cf_check(worker, cf_started(worker, result), "init gave %d", (int)result);
}

/*
 * A second communicator, non-blocking. The victim is killed before it, or does not come to it (kill-init, abort-init);
 * or NCCL has made it and the victim makes no call, so that the set-up that the others' first call has begun waits
 * (abort-setup), or is killed then (kill-attach). The others abort.
 */
void app_guard_unborn(struct app *app)
{
    struct cf_worker *worker = app->worker;
    bool attaches = failure_is_scenario("kill-attach"), kills = attaches || failure_is_scenario("kill-init");
    bool sets_up = attaches || failure_is_scenario("abort-setup"), is_victim = failure_is_victim(app);
    cf_set_destroy(worker, &app->set[0]);
    if (is_victim && kills && !attaches) {
        failure_die(app);
    }
    if (is_victim && !sets_up) {
        cf_next_id(worker, -1, NULL); /* it counts ids as the others do */
    } else {
        begin_another(app);
    }
    if (is_victim) {
        failure_await_others(app, attaches ? &app->board->called : &app->board->done);
    } else if (sets_up) {
        cf_set_ready(worker, &app->set[0]);
        app_load(app->call);
        ncclResult_t result = failure_call_again(app); /* NCCL connects in the background, and may say so */
        cf_check(worker, cf_started(worker, result), "the call gave %d", (int)result);
        failure_say(app, &app->board->called);
    }
    if (is_victim && attaches) {
        failure_die(app);
    }
    failure_sleep(STUCK_SECONDS);
    if (app->set[0].comm[0] != NULL) {
        ncclResult_t state = ncclInProgress;
        pthread_t thread;
        if (!sets_up) { /* NCCL has not finished, and will not: a rank is missing */
            CF_NCCL(worker, CommGetAsyncError(app->set[0].comm[0], &state));
        }
        cf_check(worker, state == ncclInProgress, "the asynchronous error is %d", (int)state);
        cf_check(worker, pthread_create(&thread, NULL, abort_it, app) == 0 && pthread_join(thread, NULL) == 0,
                 "thread");
    }
    if (!is_victim) {
        failure_say(app, &app->board->done);
    }
    failure_go_on(app, kills ? app_options.victim : -1);
}
