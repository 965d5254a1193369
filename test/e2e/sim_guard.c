/* SPDX-License-Identifier: MIT */
/*
 * sim_guard.c - scenarios of sim_app about what must not hang: doc/faults.md has the table
 *
 * Something happens to one rank, the victim; the others must go on, or learn of it in time, get their GPUs back, and be
 * able to make another communicator. What is measured is printed, as "noticed after N ms".
 */
#include "sim_app.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define POLL_MICROSECONDS 2000
#define STUCK_MICROSECONDS 300000
#define PATIENCE_SECONDS 30 /* everything that is waited for here comes within two, on an idle machine */
#define BLOCKED_LAUNCHES 16 /* more than the queue of a stream takes in scenario abort-launch */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static bool is_scenario(const struct app_worker *worker, const char *name)
{
    return strcmp(worker->options->scenario, name) == 0;
}

static bool is_victim(const struct app_worker *worker)
{
    int first = worker->member[0].world_rank, victim = worker->options->victim;
    return victim >= first && victim < first + worker->members;
}

static void only_one_member(const struct app_worker *worker)
{
    APP_CHECK(worker->members == 1, "this scenario is for one rank a process");
}

/* --- parts of scenarios ------------------------------------------------------------------------------------------- */

/* A call of all ranks, with its result. */
static void run_plain(struct app_worker *worker, struct app_item *items)
{
    app_scenario_fill(worker, items);
    app_scenario_call(worker, items);
    app_scenario_verify(worker, items);
}

/* A call of all members; replayed from a graph if there is one. */
static void start(struct app_worker *worker, struct app_item *items, const CUgraphExec *exec)
{
    app_scenario_fill(worker, items);
    if (exec != NULL) {
        app_scenario_replay(worker, exec);
    } else {
        app_scenario_call(worker, items);
    }
}

static void await_error(const struct app_worker *worker, ncclComm_t comm, ncclResult_t expected)
{
    ncclResult_t state = ncclSuccess;
    double begin = now();
    while (state == ncclSuccess && now() - begin < PATIENCE_SECONDS) {
        APP_NCCL(ncclCommGetAsyncError(comm, &state));
        usleep(POLL_MICROSECONDS);
    }
    APP_CHECK(state == expected, "the asynchronous error is %d, expected %d", (int)state, (int)expected);
    printf("rank %d: noticed after %.0f ms\n", worker->member[0].world_rank, (now() - begin) * 1e3);
    fflush(stdout);
}

static void await_gpus(const struct app_worker *worker)
{
    APP_CHECK(app_scenario_finishes(worker, PATIENCE_SECONDS * 1000000U), "the GPU is still busy");
}

static void abort_all(struct app_worker *worker)
{
    for (int m = 0; m < worker->members; m++) {
        struct app_member *member = &worker->member[m];
        double begin = now();
        app_member_use(member);
        APP_NCCL(ncclCommAbort(member->comm[0].comm));
        member->comm[0].comm = NULL;
        printf("rank %d: aborted within %.0f ms\n", member->world_rank, (now() - begin) * 1e3);
    }
    fflush(stdout);
}

static ncclResult_t call_again(struct app_worker *worker, const struct app_item *items)
{
    struct app_member *member = &worker->member[0];
    app_member_use(member);
    return app_item_call(&items[0], &member->comm[0], member->stream[0]);
}

/* One that may have been made before the trouble was noticed. */
static void call_in_vain(struct app_worker *worker, const struct app_item *items)
{
    ncclResult_t result = call_again(worker, items);
    APP_CHECK(result == ncclSuccess || result == ncclRemoteError, "a call gave %d", (int)result);
}

/* The survivors, or all, go on with a new communicator. */
static void go_on(struct app_worker *worker, struct app_item *items, int without)
{
    worker->serial = 1000; /* the victim has made other calls than the rest */
    if (worker->members == 1) {
        app_comm_renew(worker, without);
        run_plain(worker, items);
    }
}

/* The ranks tell the victim how far they are. */
static void say(const struct app_worker *worker, _Atomic uint32_t *counter)
{
    atomic_fetch_add(counter, (uint32_t)worker->members);
}

static void await_others(const struct app_worker *worker, _Atomic uint32_t *counter)
{
    double begin = now();
    while (atomic_load(counter) < (uint32_t)(worker->options->nranks - worker->members)) {
        APP_CHECK(now() - begin < PATIENCE_SECONDS, "the other ranks do not come");
        usleep(POLL_MICROSECONDS);
    }
}

static bool log_has(const struct app_worker *worker, const char *text)
{
    bool found = false;
    char line[4096];
    FILE *file = fopen(worker->options->log, "r");
    APP_CHECK(file != NULL, "--log cannot be read");
    while (!found && fgets(line, sizeof line, file) != NULL) {
        found = strstr(line, text) != NULL;
    }
    fclose(file);
    return found;
}

/* Waits for a line on standard error, of any rank. */
static void await_log(const struct app_worker *worker, const char *text)
{
    double begin = now();
    APP_CHECK(worker->options->log != NULL, "this scenario needs --log");
    while (!log_has(worker, text)) {
        APP_CHECK(now() - begin < PATIENCE_SECONDS, "no line has '%s'", text);
        usleep(POLL_MICROSECONDS);
    }
}

/* --- a rank is killed --------------------------------------------------------------------------------------------- */

static void survive(struct app_worker *worker, struct app_item *items, const CUgraphExec *exec)
{
    double begin = now();
    if (is_scenario(worker, "kill-idle")) {
        call_in_vain(worker, items);
    } else if (!is_scenario(worker, "kill-poll")) { /* that one makes no call, and asks */
        start(worker, items, exec);
        say(worker, &worker->board->called);
    }
    if (is_scenario(worker, "kill")) { /* with stock NCCL */
        APP_CHECK(!app_scenario_finishes(worker, STUCK_MICROSECONDS), "an allreduce ended without all of its ranks");
        return;
    }
    for (int m = 0; m < worker->members; m++) {
        await_error(worker, worker->member[m].comm[0].comm, ncclRemoteError);
    }
    if (!is_scenario(worker, "kill-large")) { /* there NCCL's kernel waits, until ncclCommAbort */
        await_gpus(worker);
    }
    APP_NCCL_IS(call_again(worker, items), ncclRemoteError);
    printf("rank %d: free after %.0f ms\n", worker->member[0].world_rank, (now() - begin) * 1e3);
}

void app_guard_kill(struct app_worker *worker, struct app_item *items)
{
    CUgraphExec exec[APP_MAX_RANKS], *replayed = NULL;
    if (!is_scenario(worker, "kill-setup")) { /* there the victim is no more */
        run_plain(worker, items);
        if (is_scenario(worker, "kill-replay")) {
            replayed = exec;
            app_scenario_capture(worker, items, exec);
            start(worker, items, replayed);
            app_scenario_verify(worker, items);
        }
        if (is_scenario(worker, "kill-large")) { /* the next call has the second of --counts */
            app_item_choose(worker->options, 1, &items[0]);
        }
        if (is_victim(worker)) {
            if (!is_scenario(worker, "kill-idle") && !is_scenario(worker, "kill-poll")) {
                await_others(worker, &worker->board->called);
            }
            kill(getpid(), SIGKILL);
        }
        survive(worker, items, replayed);
    }
    abort_all(worker);
    await_gpus(worker);
    go_on(worker, items, worker->options->victim);
}

/* --- another thread aborts ---------------------------------------------------------------------------------------- */

struct blocked {
    struct app_worker *worker;
    struct app_item *items;
    const CUgraphExec *exec;
    atomic_bool begun;
};

/* What the thread that uses the communicator is at, when the other aborts it. */
static void *use(void *argument)
{
    struct blocked *blocked = argument;
    struct app_worker *worker = blocked->worker;
    app_member_use(&worker->member[0]);
    atomic_store(&blocked->begun, true);
    if (is_scenario(worker, "abort-launch")) {
        APP_NCCL(ncclGroupStart()); /* one call that blocks: after the abort the handle may not be used any more */
        for (int i = 0; i < BLOCKED_LAUNCHES; i++) {
            APP_NCCL(call_again(worker, blocked->items));
        }
        ncclGroupEnd();
    } else if (!is_scenario(worker, "abort-idle")) {
        start(worker, blocked->items, blocked->exec);
    }
    APP_CU(cuStreamSynchronize(worker->member[0].stream[0]));
    return NULL;
}

void app_guard_abort(struct app_worker *worker, struct app_item *items)
{
    CUgraphExec exec[APP_MAX_RANKS];
    struct blocked blocked = {.worker = worker, .items = items};
    pthread_t thread;
    only_one_member(worker);
    run_plain(worker, items);
    if (is_scenario(worker, "abort-replay")) {
        app_scenario_capture(worker, items, exec);
        blocked.exec = exec;
    }
    if (is_victim(worker)) {
        await_others(worker, &worker->board->done);
    } else {
        APP_CHECK(pthread_create(&thread, NULL, use, &blocked) == 0, "no thread");
        while (!atomic_load(&blocked.begun)) {
            usleep(POLL_MICROSECONDS);
        }
        usleep(STUCK_MICROSECONDS);
    }
    abort_all(worker);
    if (!is_victim(worker)) {
        APP_CHECK(pthread_join(thread, NULL) == 0, "join");
        say(worker, &worker->board->done);
    }
    go_on(worker, items, -1);
}

/* One rank aborts and lives on. The others wait for it. */
void app_guard_leave(struct app_worker *worker, struct app_item *items)
{
    only_one_member(worker);
    run_plain(worker, items);
    if (is_victim(worker)) {
        await_others(worker, &worker->board->called);
    } else {
        start(worker, items, NULL);
        say(worker, &worker->board->called);
        await_error(worker, worker->member[0].comm[0].comm, ncclRemoteError);
        await_gpus(worker);
    }
    abort_all(worker);
    go_on(worker, items, -1);
}

/* --- a rank is stopped, absent or wrong --------------------------------------------------------------------------- */

void app_guard_stop(struct app_worker *worker, struct app_item *items)
{
    only_one_member(worker);
    run_plain(worker, items);
    app_scenario_fill(worker, items);
    if (is_victim(worker)) {
        raise(SIGSTOP);
    }
    app_scenario_call(worker, items);
    if (worker->member[0].world_rank == (worker->options->victim == 0 ? 1 : 0)) {
        await_log(worker, " s in call ");
        kill(worker->board->pid[worker->options->victim], SIGCONT);
    }
    app_scenario_verify(worker, items);
    for (int i = 0; i < worker->options->rounds; i++) {
        run_plain(worker, items);
    }
}

static void wait_for_absent(struct app_worker *worker, struct app_item *items, bool times_out)
{
    start(worker, items, NULL);
    if (times_out) {
        await_error(worker, worker->member[0].comm[0].comm, ncclRemoteError);
        await_gpus(worker);
    } else {
        await_log(worker, " s in call ");
        APP_CHECK(!app_scenario_finishes(worker, POLL_MICROSECONDS), "an allreduce ended without its ranks");
    }
}

/* The victim does not make the call that the others make; it is alive and well. */
void app_guard_absent(struct app_worker *worker, struct app_item *items)
{
    bool times_out = is_scenario(worker, "timeout");
    only_one_member(worker);
    run_plain(worker, items);
    if (!is_victim(worker)) {
        wait_for_absent(worker, items, times_out);
    } else if (times_out) { /* the failure is everybody's */
        await_error(worker, worker->member[0].comm[0].comm, ncclRemoteError);
        APP_NCCL_IS(call_again(worker, items), ncclRemoteError);
    } else {
        await_others(worker, &worker->board->done);
    }
    abort_all(worker);
    await_gpus(worker);
    if (!is_victim(worker)) {
        say(worker, &worker->board->done);
    }
    go_on(worker, items, -1);
}

/* The victim makes its call with other arguments (--counts: the second). */
void app_guard_mismatch(struct app_worker *worker, struct app_item *items)
{
    struct app_member *member = &worker->member[0];
    only_one_member(worker);
    run_plain(worker, items);
    app_scenario_fill(worker, items);
    app_member_use(member);
    size_t count = worker->options->count[is_victim(worker) ? 1 : 0];
    ncclResult_t result = app_item_call_part(&items[0], 0, count, &member->comm[0], member->stream[0]);
    APP_CHECK(result == ncclSuccess || result == ncclInvalidUsage, "the call gave %d", (int)result);
    await_error(worker, member->comm[0].comm, ncclInvalidUsage);
    if (!is_victim(worker)) { /* its call may have gone to NCCL, before the others made theirs */
        await_gpus(worker);
    }
    APP_NCCL_IS(call_again(worker, items), ncclInvalidUsage);
    abort_all(worker);
    await_gpus(worker);
    go_on(worker, items, -1);
}

/* --- a rank ends early -------------------------------------------------------------------------------------------- */

/*
 * All but the victim end their last call, on the GPU, by ncclCommDestroy alone, and then their process; the victim
 * comes to that call later.
 */
void app_guard_destroy(struct app_worker *worker, struct app_item *items)
{
    only_one_member(worker);
    run_plain(worker, items);
    if (is_victim(worker)) {
        usleep(3 * STUCK_MICROSECONDS);
        run_plain(worker, items);
        return;
    }
    app_scenario_fill(worker, items);
    app_scenario_call(worker, items);
    APP_NCCL(ncclCommDestroy(worker->member[0].comm[0].comm));
    fflush(stdout);
    _exit(0);
}

/*
 * The victim ends by exit() after the last call, without ncclCommDestroy. That is no fault, unless another call follows
 * (exit-call).
 */
void app_guard_exit(struct app_worker *worker, struct app_item *items)
{
    ncclResult_t state;
    ncclComm_t comm = worker->member[0].comm[0].comm;
    only_one_member(worker);
    run_plain(worker, items);
    if (is_victim(worker)) {
        fflush(stdout);
        exit(0);
    }
    pid_t pid = worker->board->pid[worker->options->victim];
    for (double begin = now(); kill(pid, 0) == 0;) {
        APP_CHECK(now() - begin < PATIENCE_SECONDS, "the victim is still there");
        usleep(POLL_MICROSECONDS);
    }
    usleep(STUCK_MICROSECONDS); /* time to notice what is no fault */
    APP_NCCL(ncclCommGetAsyncError(comm, &state));
    APP_NCCL_IS(state, ncclSuccess);
    if (is_scenario(worker, "exit-call")) {
        call_in_vain(worker, items);
        await_error(worker, comm, ncclRemoteError);
        await_gpus(worker);
    }
}
