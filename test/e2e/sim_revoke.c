/* SPDX-License-Identifier: MIT */
/*
 * sim_revoke.c - scenarios of sim_app: communicators that are revoked, shrunk with the abort flag while they are used,
 * or aborted while they are made
 *
 * As in sim_guard.c there is a victim: it makes no call, is killed, or does not go on with the set-up.
 */
#include "sim_guard.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SHRINK_ABORT 1 /* NCCL_SHRINK_ABORT */

/* Another thread is at it when this returns. All but the victim have got so far. */
static void use(struct guard_user *user, CUgraphExec *exec)
{
    struct app_worker *worker = user->worker;
    if (strstr(worker->options->scenario, "-replay") != NULL) {
        app_scenario_capture(worker, user->items, exec);
        user->exec = exec;
    }
    if (!guard_is_victim(worker)) {
        guard_begin_use(user);
        guard_say(worker, &worker->board->called);
    }
    guard_await_others(worker, &worker->board->called);
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
    struct guard_user user = {.worker = worker, .items = items};
    struct app_comm *comm = &worker->member[0].comm[0];
    ncclResult_t (*revoke)(ncclComm_t, int) = find_revoke();
    guard_only_one_member(worker);
    guard_run_plain(worker, items);
    if (revoke == NULL) {
        printf("rank %d: skipped, NCCL has no ncclCommRevoke\n", worker->member[0].world_rank);
        if (guard_is_scenario(worker, "kill-revoke") && guard_is_victim(worker)) {
            guard_die(worker);
        }
        return;
    }
    use(&user, exec);
    if (guard_is_scenario(worker, "kill-revoke")) {
        if (guard_is_victim(worker)) {
            guard_die(worker);
        }
        guard_await_error(worker, comm->comm, ncclRemoteError);
    } else if (guard_is_victim(worker)) {
        guard_await_others(worker, &worker->board->done);
    }
    double begin = guard_now();
    APP_NCCL(revoke(comm->comm, 0));
    guard_tell(worker, "revoked within", guard_now() - begin);
    if (!guard_is_victim(worker)) {
        guard_end_use(&user, begin);
        guard_say(worker, &worker->board->done);
    }
    APP_NCCL_IS(guard_call_again(worker, items), ncclInvalidUsage); /* NCCL's words for it */
    APP_NCCL(ncclCommDestroy(comm->comm));
    guard_go_on(worker, items, guard_is_scenario(worker, "kill-revoke") ? worker->options->victim : -1);
}

/* --- ncclCommShrink ----------------------------------------------------------------------------------------------- */

/* The child takes the place of the communicator, which is ended. */
static void shrink(struct app_worker *worker, struct app_item *items, struct guard_user *user)
{
    struct app_comm *comm = &worker->member[0].comm[0];
    ncclComm_t parent = comm->comm;
    int excluded = worker->options->victim;
    double begin = guard_now();
    APP_NCCL(ncclCommShrink(parent, &excluded, 1, &comm->comm, NULL, SHRINK_ABORT));
    guard_tell(worker, "shrunk within", guard_now() - begin);
    guard_end_use(user, begin);
    app_comm_place(worker, excluded);
    worker->serial = 1000; /* the victim has made other calls than the rest */
    for (int i = 0; i < 3; i++) {
        guard_run_plain(worker, items);
    }
    APP_NCCL(ncclCommAbort(parent));
    guard_run_plain(worker, items);
}

void app_guard_shrink(struct app_worker *worker, struct app_item *items)
{
    CUgraphExec exec[APP_MAX_RANKS];
    struct guard_user user = {.worker = worker, .items = items};
    guard_only_one_member(worker);
    guard_run_plain(worker, items);
    use(&user, exec);
    if (!guard_is_victim(worker)) {
        if (guard_is_scenario(worker, "kill-shrink")) {
            guard_await_error(worker, worker->member[0].comm[0].comm, ncclRemoteError);
        }
        shrink(worker, items, &user);
        guard_say(worker, &worker->board->done);
    } else if (guard_is_scenario(worker, "kill-shrink")) {
        guard_die(worker);
    } else {
        guard_await_others(worker, &worker->board->done);
        guard_abort_all(worker);
    }
}

/* --- a communicator that is being made ---------------------------------------------------------------------------- */

static void *abort_it(void *worker)
{
    guard_abort_all(worker);
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

/*
 * A second communicator, non-blocking. The victim is killed before it, or does not come to it (kill-init, abort-init);
 * or NCCL has made it and the victim makes no call, so that the set-up that the others' first call has begun waits
 * (abort-setup), or is killed then (kill-attach). The others abort.
 */
void app_guard_unborn(struct app_worker *worker, struct app_item *items)
{
    struct app_comm *comm = &worker->member[0].comm[0];
    bool attaches = guard_is_scenario(worker, "kill-attach"),
         kills = attaches || guard_is_scenario(worker, "kill-init");
    bool sets_up = attaches || guard_is_scenario(worker, "abort-setup");
    guard_only_one_member(worker);
    guard_run_plain(worker, items);
    APP_NCCL(ncclCommDestroy(comm->comm));
    comm->comm = NULL;
    if (guard_is_victim(worker) && kills && !attaches) {
        guard_die(worker);
    }
    app_comm_begin(worker, guard_is_victim(worker) && !sets_up);
    if (guard_is_victim(worker)) {
        guard_await_others(worker, attaches ? &worker->board->called : &worker->board->done);
    } else if (sets_up) {
        app_comm_ready(worker, comm->comm);
        guard_start(worker, items, NULL);
        guard_say(worker, &worker->board->called);
    }
    if (guard_is_victim(worker) && attaches) {
        guard_die(worker);
    }
    usleep(STUCK_MICROSECONDS);
    if (comm->comm != NULL) {
        if (!sets_up) {
            check_in_progress(comm->comm);
        }
        abort_in_a_thread(worker);
    }
    if (!guard_is_victim(worker)) {
        guard_say(worker, &worker->board->done);
    }
    guard_go_on(worker, items, kills ? worker->options->victim : -1);
}
