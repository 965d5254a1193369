/* SPDX-License-Identifier: MIT */
/*
 * sim_revoke.c - scenarios of sim_app: communicators that are revoked, shrunk with the abort flag while they are used,
 * or aborted while they are made
 *
 * As in sim_peer_failure.c there is a victim: it makes no call, is killed, or does not go on with the set-up.
 */
#include "sim_peer_failure.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SHRINK_ABORT 1 /* NCCL_SHRINK_ABORT */

/* Another thread is at it when this returns. All but the victim have got so far. */
static void use(struct failure_user *user, CUgraphExec *exec)
{
    struct app_worker *worker = user->worker;
    if (strstr(worker->options->scenario, "-replay") != NULL) {
        app_scenario_capture(worker, user->items, exec);
        user->exec = exec;
    }
    if (!failure_is_victim(worker)) {
        failure_begin_use(user);
        failure_say(worker, &worker->board->called);
    }
    failure_await_others(worker, &worker->board->called);
}

/* --- ncclCommRevoke ----------------------------------------------------------------------------------------------- */

/* That of the library that the program has; NULL: an NCCL before 2.28.7. */
static ncclResult_t (*find_revoke(void))(ncclComm_t, int)
{
    ncclResult_t (*revoke)(ncclComm_t, int) = NULL;
    void *symbol = dlsym(RTLD_DEFAULT, "pncclCommRevoke") ? dlsym(RTLD_DEFAULT, "ncclCommRevoke") : NULL;
    memcpy(&revoke, &symbol, sizeof revoke);
    return revoke;
}

void app_guard_revoke(struct app_worker *worker, struct app_item *items)
{
    CUgraphExec exec[APP_MAX_RANKS];
    struct failure_user user = {.worker = worker, .items = items};
    struct app_comm *comm = &worker->member[0].comm[0];
    ncclResult_t (*revoke)(ncclComm_t, int) = find_revoke();
    failure_only_one_member(worker);
    failure_run_plain(worker, items);
    if (revoke == NULL) {
        printf("rank %d: skipped, NCCL has no ncclCommRevoke\n", worker->member[0].world_rank);
        if (failure_is_scenario(worker, "kill-revoke") && failure_is_victim(worker)) {
            failure_die(worker);
        }
        return;
    }
    use(&user, exec);
    if (failure_is_scenario(worker, "kill-revoke")) {
        if (failure_is_victim(worker)) {
            failure_die(worker);
        }
        failure_await_error(worker, comm->comm, ncclRemoteError);
    } else if (failure_is_victim(worker)) {
        failure_await_others(worker, &worker->board->done);
    }
    double begin = failure_now();
    APP_NCCL(revoke(comm->comm, 0));
    failure_tell(worker, "revoked within", failure_now() - begin);
    if (!failure_is_victim(worker)) {
        failure_end_use(&user, begin);
        failure_say(worker, &worker->board->done);
    }
    APP_NCCL_IS(failure_call_again(worker, items), ncclInvalidUsage); /* NCCL's words for it */
    APP_NCCL(ncclCommDestroy(comm->comm));
    failure_go_on(worker, items, failure_is_scenario(worker, "kill-revoke") ? worker->options->victim : -1);
}

/* --- ncclCommShrink ----------------------------------------------------------------------------------------------- */

/* The child takes the place of the communicator, which is ended. */
static void shrink(struct app_worker *worker, struct app_item *items, struct failure_user *user)
{
    struct app_comm *comm = &worker->member[0].comm[0];
    ncclComm_t parent = comm->comm;
    int excluded = worker->options->victim;
    double begin = failure_now();
    APP_NCCL(ncclCommShrink(parent, &excluded, 1, &comm->comm, NULL, SHRINK_ABORT));
    failure_tell(worker, "shrunk within", failure_now() - begin);
    failure_end_use(user, begin);
    app_comm_place(worker, excluded);
    worker->serial = 1000; /* the victim has made other calls than the rest */
    for (int i = 0; i < 3; i++) {
        failure_run_plain(worker, items);
    }
    APP_NCCL(ncclCommAbort(parent));
    failure_run_plain(worker, items);
}

void app_guard_shrink(struct app_worker *worker, struct app_item *items)
{
    CUgraphExec exec[APP_MAX_RANKS];
    struct failure_user user = {.worker = worker, .items = items};
    failure_only_one_member(worker);
    failure_run_plain(worker, items);
    use(&user, exec);
    if (!failure_is_victim(worker)) {
        if (failure_is_scenario(worker, "kill-shrink")) {
            failure_await_error(worker, worker->member[0].comm[0].comm, ncclRemoteError);
        }
        shrink(worker, items, &user);
        failure_say(worker, &worker->board->done);
    } else if (failure_is_scenario(worker, "kill-shrink")) {
        failure_die(worker);
    } else {
        failure_await_others(worker, &worker->board->done);
        failure_abort_all(worker);
    }
}

/* --- a communicator that is being made ---------------------------------------------------------------------------- */

static void *abort_it(void *worker)
{
    failure_abort_all(worker);
    return NULL;
}

static void abort_in_a_thread(struct app_worker *worker)
{
    pthread_t thread;
    APP_CHECK(pthread_create(&thread, NULL, abort_it, worker) == 0, "no thread");
    APP_CHECK(pthread_join(thread, NULL) == 0, "join");
}

/* NCCL has not finished, and will not: a rank is missing. */
static void check_in_progress(ncclComm_t comm)
{
    ncclResult_t state;
    APP_NCCL(ncclCommGetAsyncError(comm, &state));
    APP_NCCL_IS(state, ncclInProgress);
}

/* A call on a non-blocking communicator: NCCL connects in the background, and may say so. */
static void call_non_blocking(struct app_worker *worker, struct app_item *items)
{
    struct app_member *member = &worker->member[0];
    app_scenario_fill(worker, items);
    ncclResult_t result = app_item_call(&items[0], &member->comm[0], member->stream[0]);
    APP_CHECK(result == ncclSuccess || result == ncclInProgress, "the call gave %d", (int)result);
}

/*
 * A second communicator, non-blocking. The victim is killed before it, or does not come to it (kill-init, abort-init);
 * or NCCL has made it and the victim makes no call, so that the set-up that the others' first call has begun waits
 * (abort-setup), or is killed then (kill-attach). The others abort.
 */
void app_guard_unborn(struct app_worker *worker, struct app_item *items)
{
    struct app_comm *comm = &worker->member[0].comm[0];
    bool attaches = failure_is_scenario(worker, "kill-attach"),
         kills = attaches || failure_is_scenario(worker, "kill-init");
    bool sets_up = attaches || failure_is_scenario(worker, "abort-setup");
    failure_only_one_member(worker);
    failure_run_plain(worker, items);
    APP_NCCL(ncclCommDestroy(comm->comm));
    comm->comm = NULL;
    if (failure_is_victim(worker) && kills && !attaches) {
        failure_die(worker);
    }
    app_comm_begin(worker, failure_is_victim(worker) && !sets_up);
    if (failure_is_victim(worker)) {
        failure_await_others(worker, attaches ? &worker->board->called : &worker->board->done);
    } else if (sets_up) {
        app_comm_ready(worker, comm->comm);
        call_non_blocking(worker, items);
        failure_say(worker, &worker->board->called);
    }
    if (failure_is_victim(worker) && attaches) {
        failure_die(worker);
    }
    usleep(STUCK_MICROSECONDS);
    if (comm->comm != NULL) {
        if (!sets_up) {
            check_in_progress(comm->comm);
        }
        abort_in_a_thread(worker);
    }
    if (!failure_is_victim(worker)) {
        failure_say(worker, &worker->board->done);
    }
    failure_go_on(worker, items, kills ? worker->options->victim : -1);
}
