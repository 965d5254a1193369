/* SPDX-License-Identifier: MIT */
/*
 * sim_peer_failure.c - scenarios of sim_app about what must not hang: doc/faults.md has the table
 *
 * Something happens to one rank, the victim; the others must go on, or learn of it in time, never take a wrong result
 * for a right one, get their GPUs back when they abort, and be able to make another communicator. What is measured is
 * printed, as "noticed after N ms".
 */
#include "sim_peer_failure.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define STOPPED_SECONDS 5
#define BLOCKED_LAUNCHES 16 /* more than the queue of a stream takes in scenario abort-launch */

double failure_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

bool failure_is_scenario(const struct app_worker *worker, const char *name)
{
    return strcmp(worker->options->scenario, name) == 0;
}

bool failure_is_victim(const struct app_worker *worker)
{
    int first = worker->member[0].world_rank, victim = worker->options->victim;
    return victim >= first && victim < first + worker->members;
}

void failure_only_one_member(const struct app_worker *worker)
{
    APP_CHECK(worker->members == 1, "this scenario is for one rank a process");
}

/* --- parts of scenarios ------------------------------------------------------------------------------------------- */

void failure_run_plain(struct app_worker *worker, struct app_item *items)
{
    app_scenario_fill(worker, items);
    app_scenario_call(worker, items);
    app_scenario_verify(worker, items);
}

void failure_start(struct app_worker *worker, struct app_item *items, const CUgraphExec *exec)
{
    app_scenario_fill(worker, items);
    if (exec != NULL) {
        app_scenario_replay(worker, exec);
    } else {
        app_scenario_call(worker, items);
    }
}

void failure_tell(const struct app_worker *worker, const char *what, double seconds)
{
    printf("rank %d: %s %.0f ms\n", worker->member[0].world_rank, what, seconds * 1e3);
    fflush(stdout);
}

void failure_await_error(const struct app_worker *worker, ncclComm_t comm, ncclResult_t expected)
{
    ncclResult_t state = ncclSuccess;
    double begin = failure_now();
    while (state == ncclSuccess && failure_now() - begin < PATIENCE_SECONDS) {
        APP_NCCL(ncclCommGetAsyncError(comm, &state));
        usleep(POLL_MICROSECONDS);
    }
    APP_CHECK(state == expected, "the asynchronous error is %d, expected %d", (int)state, (int)expected);
    double killed = atomic_load(&worker->board->killed);
    failure_tell(worker, "noticed after", failure_now() - (killed > begin ? killed : begin));
}

void failure_await_gpus(const struct app_worker *worker)
{
    double since = failure_now();
    APP_CHECK(app_scenario_finishes(worker, PATIENCE_SECONDS * 1000000U), "the GPU is still busy");
    failure_tell(worker, "left after", failure_now() - since);
}

void failure_check_waiting(const struct app_worker *worker)
{
    APP_CHECK(!app_scenario_finishes(worker, STUCK_MICROSECONDS), "an allreduce ended without all of its ranks");
}

void failure_check_sound(ncclComm_t comm)
{
    ncclResult_t state;
    usleep(STUCK_MICROSECONDS); /* time to notice what is no fault */
    APP_NCCL(ncclCommGetAsyncError(comm, &state));
    APP_NCCL_IS(state, ncclSuccess);
}

void failure_abort_all(struct app_worker *worker)
{
    for (int m = 0; m < worker->members; m++) {
        struct app_member *member = &worker->member[m];
        double begin = failure_now();
        app_member_use(member);
        APP_NCCL(ncclCommAbort(member->comm[0].comm));
        member->comm[0].comm = NULL;
        failure_tell(worker, "aborted within", failure_now() - begin);
    }
}

ncclResult_t failure_call_again(struct app_worker *worker, const struct app_item *items)
{
    struct app_member *member = &worker->member[0];
    app_member_use(member);
    return app_item_call(&items[0], &member->comm[0], member->stream[0]);
}

/* One that may have been made before the trouble was noticed. */
static void call_in_vain(struct app_worker *worker, const struct app_item *items)
{
    ncclResult_t result = failure_call_again(worker, items);
    APP_CHECK(result == ncclSuccess || result == ncclRemoteError, "a call gave %d", (int)result);
}

void failure_go_on(struct app_worker *worker, struct app_item *items, int without)
{
    worker->serial = 1000; /* the victim has made other calls than the rest */
    if (worker->members == 1) {
        app_comm_renew(worker, without);
        failure_run_plain(worker, items);
    }
}

void failure_say(const struct app_worker *worker, _Atomic uint32_t *counter)
{
    atomic_fetch_add(counter, (uint32_t)worker->members);
}

void failure_await_count(_Atomic uint32_t *counter, int ranks)
{
    double begin = failure_now();
    while (atomic_load(counter) < (uint32_t)ranks) {
        APP_CHECK(failure_now() - begin < PATIENCE_SECONDS, "the other ranks do not come");
        usleep(POLL_MICROSECONDS);
    }
}

void failure_await_others(const struct app_worker *worker, _Atomic uint32_t *counter)
{
    failure_await_count(counter, worker->options->nranks - worker->members);
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

void failure_await_log(const struct app_worker *worker, const char *text)
{
    double begin = failure_now();
    APP_CHECK(worker->options->log != NULL, "this scenario needs --log");
    while (!log_has(worker, text)) {
        APP_CHECK(failure_now() - begin < PATIENCE_SECONDS, "no line has '%s'", text);
        usleep(POLL_MICROSECONDS);
    }
}

void failure_die(const struct app_worker *worker)
{
    struct rlimit none = {0, 0};
    atomic_store(&worker->board->killed, failure_now());
    if (failure_is_scenario(worker, "kill-fault")) { /* a sanitizer would make it an ordinary exit */
        setrlimit(RLIMIT_CORE, &none);
        prctl(PR_SET_DUMPABLE, 0); /* a handler that core_pattern pipes to runs whatever the limit */
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    kill(getpid(), SIGKILL);
    abort();
}

/* Calls have the second of --counts from here on. NCCL connects all ranks in the first that it serves, and blocks. */
static void use_large(struct app_worker *worker, struct app_item *items)
{
    app_item_choose(worker->options, 1, &items[0]);
    failure_run_plain(worker, items);
}

/* Until the victim's process has ended. */
static void await_end(const struct app_worker *worker)
{
    pid_t pid = worker->board->pid[worker->options->victim];
    for (double begin = failure_now(); kill(pid, 0) == 0;) {
        APP_CHECK(failure_now() - begin < PATIENCE_SECONDS, "the victim is still there");
        usleep(POLL_MICROSECONDS);
    }
}

/* No rank has an error before the victim is missed. A call that misses it fails the communicator on all ranks. */
static void check_all_sound(struct app_worker *worker)
{
    await_end(worker);
    failure_check_sound(worker->member[0].comm[0].comm);
    failure_say(worker, &worker->board->done);
    failure_await_count(&worker->board->done, worker->options->nranks - 1);
}

/* --- a rank is killed --------------------------------------------------------------------------------------------- */

static void survive(struct app_worker *worker, struct app_item *items, const CUgraphExec *exec)
{
    bool idle = failure_is_scenario(worker, "kill-idle") || failure_is_scenario(worker, "kill-poll");
    if (!idle) {
        failure_start(worker, items, exec);
    }
    failure_say(worker, &worker->board->called);
    if (failure_is_scenario(worker, "kill")) { /* with stock NCCL */
        failure_check_waiting(worker);
        return;
    }
    if (failure_is_scenario(worker, "kill-poll")) { /* as long as nobody waits for the victim, nothing is wrong */
        check_all_sound(worker);
        APP_NCCL_IS(failure_call_again(worker, items), ncclRemoteError);
    }
    if (failure_is_scenario(worker, "kill-idle")) {
        call_in_vain(worker, items);
    }
    for (int m = 0; m < worker->members; m++) {
        failure_await_error(worker, worker->member[m].comm[0].comm, ncclRemoteError);
    }
    if (!idle) {
        failure_check_waiting(worker);
    }
    APP_NCCL_IS(failure_call_again(worker, items), ncclRemoteError);
}

/* ONEHOP_TRAP_AFTER: nobody aborts, and the kernel that waits ends the context. */
static void await_trap(const struct app_worker *worker)
{
    app_member_use(&worker->member[0]);
    CUresult result = cuStreamSynchronize(worker->member[0].stream[0]);
    APP_CHECK(result == CUDA_ERROR_LAUNCH_FAILED, "after the trap the stream gives %d", (int)result);
}

static void end_all(struct app_worker *worker)
{
    if (!failure_is_scenario(worker, "kill-destroy")) {
        failure_abort_all(worker);
        return;
    }
    for (int m = 0; m < worker->members; m++) {
        APP_NCCL(ncclCommDestroy(worker->member[m].comm[0].comm));
        worker->member[m].comm[0].comm = NULL;
    }
}

void app_guard_kill(struct app_worker *worker, struct app_item *items)
{
    CUgraphExec exec[APP_MAX_RANKS], *replayed = NULL;
    if (failure_is_scenario(worker, "kill-setup")) { /* it begins with the first call, in which the victim is killed */
        failure_start(worker, items, NULL);
    } else {
        failure_run_plain(worker, items);
        if (failure_is_scenario(worker, "kill-replay")) {
            replayed = exec;
            app_scenario_capture(worker, items, exec);
            failure_start(worker, items, replayed);
            app_scenario_verify(worker, items);
        }
        if (failure_is_scenario(worker, "kill-large")) {
            use_large(worker, items);
        }
        if (failure_is_victim(worker)) {
            failure_await_others(worker, &worker->board->called);
            failure_die(worker);
        }
        survive(worker, items, replayed);
    }
    if (failure_is_scenario(worker, "kill-trap")) {
        await_trap(worker);
        failure_abort_all(worker);
        fflush(stdout);
        _exit(0); /* nothing can be done with the context any more */
    }
    end_all(worker);
    failure_await_gpus(worker);
    failure_go_on(worker, items, worker->options->victim);
}

/* --- another thread aborts ---------------------------------------------------------------------------------------- */

/* What the thread that uses the communicator is at, when the other aborts it. */
static void *use(void *argument)
{
    struct failure_user *blocked = argument;
    struct app_worker *worker = blocked->worker;
    app_member_use(&worker->member[0]);
    atomic_store(&blocked->begun, true);
    if (failure_is_scenario(worker, "abort-launch")) {
        APP_NCCL(ncclGroupStart()); /* one call that blocks: after the abort the handle may not be used any more */
        for (int i = 0; i < BLOCKED_LAUNCHES; i++) {
            APP_NCCL(failure_call_again(worker, blocked->items));
        }
        ncclGroupEnd();
    } else if (strstr(worker->options->scenario, "-idle") == NULL) {
        failure_start(worker, blocked->items, blocked->exec);
    }
    APP_CU(cuStreamSynchronize(worker->member[0].stream[0]));
    blocked->free = failure_now();
    return NULL;
}

void failure_begin_use(struct failure_user *user)
{
    APP_CHECK(pthread_create(&user->thread, NULL, use, user) == 0, "no thread");
    while (!atomic_load(&user->begun)) {
        usleep(POLL_MICROSECONDS);
    }
    usleep(STUCK_MICROSECONDS);
}

void failure_end_use(struct failure_user *user, double aborted)
{
    APP_CHECK(pthread_join(user->thread, NULL) == 0, "join");
    failure_tell(user->worker, "left after", user->free > aborted ? user->free - aborted : 0);
}

void app_guard_abort(struct app_worker *worker, struct app_item *items)
{
    CUgraphExec exec[APP_MAX_RANKS];
    struct failure_user blocked = {.worker = worker, .items = items};
    double begin = 0;
    failure_only_one_member(worker);
    failure_run_plain(worker, items);
    if (failure_is_scenario(worker, "abort-replay")) {
        app_scenario_capture(worker, items, exec);
        blocked.exec = exec;
    }
    if (failure_is_victim(worker)) {
        failure_await_others(worker, &worker->board->done);
    } else {
        failure_begin_use(&blocked);
    }
    begin = failure_now();
    failure_abort_all(worker);
    if (!failure_is_victim(worker)) {
        failure_end_use(&blocked, begin);
        failure_say(worker, &worker->board->done);
    }
    failure_go_on(worker, items, -1);
}

/* The first call, which waits for the victim's. */
static void *call_first(void *argument)
{
    struct failure_user *user = argument;
    atomic_store(&user->begun, true);
    APP_NCCL_IS(failure_call_again(user->worker, user->items), ncclInternalError);
    user->free = failure_now();
    return NULL;
}

/* Another thread aborts while the first call waits for the victim, which makes none. */
void app_guard_abort_first(struct app_worker *worker, struct app_item *items)
{
    struct failure_user user = {.worker = worker, .items = items};
    failure_only_one_member(worker);
    if (failure_is_victim(worker)) {
        failure_await_others(worker, &worker->board->done);
        failure_abort_all(worker);
    } else {
        app_scenario_fill(worker, items);
        APP_CHECK(pthread_create(&user.thread, NULL, call_first, &user) == 0, "no thread");
        usleep(STUCK_MICROSECONDS);
        double begin = failure_now();
        failure_abort_all(worker);
        failure_end_use(&user, begin);
        failure_say(worker, &worker->board->done);
    }
    failure_go_on(worker, items, -1);
}

/* One rank aborts and lives on. The others wait for it; in abort-large in a call that NCCL serves. */
void app_guard_leave(struct app_worker *worker, struct app_item *items)
{
    failure_only_one_member(worker);
    failure_run_plain(worker, items);
    if (failure_is_scenario(worker, "abort-large")) {
        use_large(worker, items);
    }
    if (failure_is_victim(worker)) {
        failure_await_others(worker, &worker->board->called);
    } else {
        failure_start(worker, items, NULL);
        failure_say(worker, &worker->board->called);
        failure_await_error(worker, worker->member[0].comm[0].comm, ncclRemoteError);
        failure_check_waiting(worker);
    }
    failure_abort_all(worker);
    failure_await_gpus(worker);
    failure_go_on(worker, items, -1);
}

/* --- a rank is stopped, absent or wrong --------------------------------------------------------------------------- */

void app_guard_stop(struct app_worker *worker, struct app_item *items)
{
    failure_only_one_member(worker);
    failure_run_plain(worker, items);
    app_scenario_fill(worker, items);
    if (failure_is_victim(worker)) {
        raise(SIGSTOP);
    }
    app_scenario_call(worker, items);
    if (worker->member[0].world_rank == (worker->options->victim == 0 ? 1 : 0)) {
        if (failure_is_scenario(worker, "stop-long")) {
            sleep(STOPPED_SECONDS);
        } else {
            failure_await_log(worker, " s in call ");
        }
        kill(worker->board->pid[worker->options->victim], SIGCONT);
    }
    app_scenario_verify(worker, items);
    for (int i = 0; i < worker->options->rounds; i++) {
        failure_run_plain(worker, items);
    }
}

static void wait_for_absent(struct app_worker *worker, struct app_item *items, bool times_out)
{
    failure_start(worker, items, NULL);
    if (times_out) {
        failure_await_error(worker, worker->member[0].comm[0].comm, ncclRemoteError);
    } else {
        failure_await_log(worker, " s in call ");
    }
    failure_check_waiting(worker);
}

/* The victim does not make the call that the others make; it is alive and well. */
void app_guard_absent(struct app_worker *worker, struct app_item *items)
{
    bool times_out = failure_is_scenario(worker, "timeout");
    failure_only_one_member(worker);
    failure_run_plain(worker, items);
    if (!failure_is_victim(worker)) {
        wait_for_absent(worker, items, times_out);
    } else if (times_out) { /* the failure is everybody's */
        failure_await_error(worker, worker->member[0].comm[0].comm, ncclRemoteError);
        APP_NCCL_IS(failure_call_again(worker, items), ncclRemoteError);
    } else {
        failure_await_others(worker, &worker->board->done);
    }
    failure_abort_all(worker);
    failure_await_gpus(worker);
    if (!failure_is_victim(worker)) {
        failure_say(worker, &worker->board->done);
    }
    failure_go_on(worker, items, -1);
}

/* The call of the victim has other arguments: the second of --counts, another type, another op. */
static ncclResult_t call_differently(struct app_worker *worker, const struct app_item *items)
{
    struct app_member *member = &worker->member[0];
    struct app_item item = items[0];
    struct app_comm comm = member->comm[0];
    size_t count = worker->options->count[0];
    if (failure_is_victim(worker)) {
        bool type = failure_is_scenario(worker, "mismatch-type"), op = failure_is_scenario(worker, "mismatch-op");
        item.type = type ? ncclInt32 : item.type;
        comm.op = op ? ncclMax : comm.op;
        count = type || op ? count : worker->options->count[1];
    }
    app_member_use(member);
    return app_item_call_part(&item, 0, count, &comm, member->stream[0]);
}

/* ONEHOP_CHECK_CALLS=1 */
void app_guard_mismatch(struct app_worker *worker, struct app_item *items)
{
    struct app_member *member = &worker->member[0];
    failure_only_one_member(worker);
    failure_run_plain(worker, items);
    app_scenario_fill(worker, items);
    ncclResult_t result = call_differently(worker, items);
    APP_CHECK(result == ncclSuccess || result == ncclInvalidUsage, "the call gave %d", (int)result);
    failure_await_error(worker, member->comm[0].comm, ncclInvalidUsage);
    if (result == ncclSuccess) {
        failure_check_waiting(worker);
    }
    APP_NCCL_IS(failure_call_again(worker, items), ncclInvalidUsage);
    failure_abort_all(worker);
    failure_await_gpus(worker);
    failure_go_on(worker, items, -1);
}

/* The same without it: nobody knows but who reads the report. */
void app_guard_differ(struct app_worker *worker, struct app_item *items)
{
    failure_only_one_member(worker);
    failure_run_plain(worker, items);
    app_scenario_fill(worker, items);
    APP_NCCL(call_differently(worker, items));
    failure_await_log(worker, " s in call ");
    failure_say(worker, &worker->board->done); /* an abort before the report would be one of its own */
    failure_await_count(&worker->board->done, worker->options->nranks);
    failure_abort_all(worker);
    failure_await_gpus(worker);
    failure_go_on(worker, items, -1);
}

/* --- a rank ends early -------------------------------------------------------------------------------------------- */

/*
 * All but the victim end their last call, on the GPU, by ncclCommDestroy alone, and then their process; the victim
 * comes to that call later.
 */
void app_guard_destroy(struct app_worker *worker, struct app_item *items)
{
    failure_only_one_member(worker);
    failure_run_plain(worker, items);
    if (failure_is_victim(worker)) {
        usleep(3 * STUCK_MICROSECONDS);
        failure_run_plain(worker, items);
        return;
    }
    app_scenario_fill(worker, items);
    app_scenario_call(worker, items);
    APP_NCCL(ncclCommDestroy(worker->member[0].comm[0].comm));
    fflush(stdout);
    _exit(0);
}

/*
 * The victim ends after the last call, without ncclCommDestroy: by exit() or, in quit-*, by _exit(). That is no fault,
 * unless another call follows (*-call).
 */
void app_guard_exit(struct app_worker *worker, struct app_item *items)
{
    ncclComm_t comm = worker->member[0].comm[0].comm;
    failure_only_one_member(worker);
    failure_run_plain(worker, items);
    if (failure_is_victim(worker)) {
        fflush(stdout);
        if (strncmp(worker->options->scenario, "quit-", 5) == 0) {
            _exit(0);
        }
        exit(0);
    }
    check_all_sound(worker);
    if (strstr(worker->options->scenario, "-call") != NULL) {
        call_in_vain(worker, items);
        failure_await_error(worker, comm, ncclRemoteError);
        failure_abort_all(worker);
        failure_await_gpus(worker);
    }
}

/* What follows a reset of the device: a program makes its context anew. */
static void call_after_reset(const struct app_member *member, ncclComm_t comm)
{
    CUcontext context;
    CUdeviceptr buffer; /* at an address of old memory perhaps */
    CUstream stream;
    ncclResult_t state;
    APP_CU(cuDevicePrimaryCtxRetain(&context, member->device));
    APP_CU(cuCtxSetCurrent(context));
    APP_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    APP_CU(cuMemAlloc(&buffer, 1 << 20));
    void *data = (void *)(uintptr_t)buffer;
    APP_NCCL_IS(ncclAllReduce(data, data, 1000, ncclFloat, ncclSum, comm, stream), ncclUnhandledCudaError);
    APP_NCCL_IS(ncclAllReduce(data, data, 1000, ncclFloat, ncclSum, comm, stream), ncclUnhandledCudaError);
    APP_NCCL(ncclCommGetAsyncError(comm, &state));
    APP_NCCL_IS(state, ncclUnhandledCudaError);
}

/*
 * The victim resets its device between calls, and makes another (reset-call), or ends the communicator (reset-abort),
 * or its process. The others make theirs. (NCCL 2.28.9 ends with SIGSEGV in an abort after a reset, on a real GPU.)
 */
void app_guard_reset(struct app_worker *worker, struct app_item *items)
{
    struct app_member *member = &worker->member[0];
    ncclComm_t comm = member->comm[0].comm;
    failure_only_one_member(worker);
    failure_run_plain(worker, items);
    if (!failure_is_victim(worker)) {
        failure_start(worker, items, NULL);
        failure_await_error(worker, comm, ncclRemoteError);
        failure_check_waiting(worker);
        failure_abort_all(worker);
        failure_await_gpus(worker);
        return;
    }
    app_member_use(member);
    APP_CU(cuDevicePrimaryCtxReset(member->device));
    usleep(STUCK_MICROSECONDS); /* the monitor looks around meanwhile */
    if (failure_is_scenario(worker, "reset-call")) {
        call_after_reset(member, comm);
    }
    if (failure_is_scenario(worker, "reset-abort")) {
        APP_NCCL(ncclCommAbort(comm));
    }
    fflush(stdout);
    _exit(0); /* the rest of the program has lost its streams and buffers, too */
}
