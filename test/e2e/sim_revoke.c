/* SPDX-License-Identifier: MIT */
/*
 * sim_revoke.c - scenarios of sim_app: communicators that are revoked, shrunk with the abort flag while they are used,
 * or aborted while they are made
 *
 * As in sim_peer_failure.c there is a victim: it makes no call, is killed, or does not go on with the set-up.
 */
#include "test/e2e/sim_peer_failure.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define SHRINK_ABORT 1 /* NCCL_SHRINK_ABORT */

/* Another thread is at it when this returns. All but the victim have got so far. */
static void use(struct failure_user *user, struct cf_graph *graph)
{
    struct app *app = user->app;
    if (strstr(app_options.scenario, "-replay") != NULL) {
        app_capture(app->call, graph);
        user->graph = graph;
    }
    if (!failure_is_victim(app)) {
        failure_begin_use(user);
        failure_say(app, &app->board->called);
    }
    failure_await_others(app, &app->board->called);
}

/* --- ncclCommRevoke ----------------------------------------------------------------------------------------------- */

void app_guard_revoke(struct app *app)
{
    struct cf_worker *worker = app->worker;
    struct cf_graph graph;
    struct failure_user user = {.app = app};
    ncclComm_t comm = app->set[0].comm[0];
    bool kills = failure_is_scenario("kill-revoke");
    if (dlsym(RTLD_DEFAULT, "ncclCommRevoke") == NULL) { /* NCCL before 2.28.7 */
        printf("rank %d: skipped, NCCL has no ncclCommRevoke\n", worker->member[0].world_rank);
        if (kills && failure_is_victim(app)) {
            failure_die(app);
        }
        return;
    }
    use(&user, &graph);
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
        failure_end_use(&user, begin);
        failure_say(app, &app->board->done);
    }
    ncclResult_t result = failure_call_again(app);
    cf_check(worker, result == ncclInvalidUsage, "a call gave %d", (int)result); /* NCCL's words for it */
    CF_NCCL(worker, CommDestroy(comm));
    failure_go_on(app, kills ? app_options.victim : -1);
}

/* --- ncclCommShrink ----------------------------------------------------------------------------------------------- */

/* The child takes the place of the communicator, which is ended. */
static void shrink(struct app *app, struct failure_user *user)
{
    struct cf_worker *worker = app->worker;
    struct cf_set *set = &app->set[0];
    ncclComm_t parent = set->comm[0];
    int excluded = app_options.victim;
    double begin = cf_now();
    CF_NCCL(worker, CommShrink(parent, &excluded, 1, &set->comm[0], NULL, SHRINK_ABORT));
    failure_tell(app, "shrunk within", cf_now() - begin);
    failure_end_use(user, begin);
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
    struct cf_graph graph;
    struct failure_user user = {.app = app};
    bool kills = failure_is_scenario("kill-shrink");
    use(&user, &graph);
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
