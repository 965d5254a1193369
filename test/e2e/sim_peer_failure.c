/* SPDX-License-Identifier: MIT */
/*
 * sim_peer_failure.c - scenarios of sim_app about what must not hang: doc/faults.md has the table
 *
 * Something happens to one rank, the victim; the others must go on, or learn of it in time, never take a wrong result
 * for a right one, get their GPUs back when they abort, and be able to make another communicator. What is measured is
 * printed, as "noticed after N ms".
 */
#include "test/e2e/sim_peer_failure.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#define STOPPED_SECONDS 5
#define BLOCKED_LAUNCHES 16 /* more than the queue of a stream takes in scenario abort-launch */

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

/* --- parts of scenarios ------------------------------------------------------------------------------------------- */

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

/* A call that must have that result. */
static void call_again(struct app *app, ncclResult_t expected)
{
    ncclResult_t result = failure_call_again(app);
    cf_check(app->worker, result == expected, "a call gave %d, expected %d", (int)result, (int)expected);
}

/* One that may have been made before the trouble was noticed. */
static void call_in_vain(struct app *app)
{
    ncclResult_t result = failure_call_again(app);
    cf_check(app->worker, result == ncclSuccess || result == ncclRemoteError, "a call gave %d", (int)result);
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

/* Calls have the second of --counts from here on. NCCL connects all ranks in the first that it serves, and blocks. */
static void use_large(struct app *app)
{
    struct cf_batch *small = app->call;
    app->call = app->other;
    app->other = small;
    app_run(app->call);
}

/* Until the victim's process has ended. */
static void await_end(struct app *app)
{
    pid_t pid = app->board->board.pid[app_options.victim];
    for (double begin = cf_now(); kill(pid, 0) == 0;) {
        cf_check(app->worker, cf_now() - begin < PATIENCE_SECONDS, "the victim is still there");
        usleep(POLL_MICROSECONDS);
    }
}

/* No rank has an error before the victim is missed. A call that misses it fails the communicator on all ranks. */
static void check_all_sound(struct app *app)
{
    await_end(app);
    failure_check_sound(app, app->set[0].comm[0]);
    failure_say(app, &app->board->done);
    failure_await_count(app, &app->board->done, app->worker->nranks - 1);
}

/* The others' call waits for the victim: they are told, and their streams wait on. */
static void miss_victim(struct app *app)
{
    failure_start(app, NULL);
    failure_say(app, &app->board->called);
    failure_await_error(app, app->set[0].comm[0], ncclRemoteError);
    failure_check_waiting(app);
}

/* GPUs are free after an abort. */
static void abort_and_wait(struct app *app)
{
    failure_abort_all(app);
    failure_await_gpus(app);
}

/* --- a rank is killed --------------------------------------------------------------------------------------------- */

static void survive(struct app *app, const struct cf_graph *graph)
{
    bool idle = failure_is_scenario("kill-idle") || failure_is_scenario("kill-poll");
    if (!idle) {
        failure_start(app, graph);
    }
    failure_say(app, &app->board->called);
    if (failure_is_scenario("kill")) { /* with stock NCCL */
        failure_check_waiting(app);
        return;
    }
    if (failure_is_scenario("kill-poll")) { /* as long as nobody waits for the victim, nothing is wrong */
        check_all_sound(app);
        call_again(app, ncclRemoteError);
    }
    if (failure_is_scenario("kill-idle")) {
        call_in_vain(app);
    }
    for (int m = 0; m < app->worker->members; m++) {
        failure_await_error(app, app->set[0].comm[m], ncclRemoteError);
    }
    if (!idle) {
        failure_check_waiting(app);
    }
    call_again(app, ncclRemoteError);
}

/* The end of a communicator whose kernels wait tells the failure; only its destruction lets them leave. */
static void end_failed(struct app *app)
{
    struct cf_set *set = &app->set[0];
    for (int m = 0; cf_use(app->worker, m); m++) {
        if (failure_is_scenario("kill-finalize")) {
            const ncclResult_t result = nccl.CommFinalize(set->comm[m]);
            cf_check(app->worker, result == ncclRemoteError, "ncclCommFinalize gave %d", (int)result);
            failure_check_waiting(app);
        }
        const ncclResult_t result = nccl.CommDestroy(set->comm[m]);
        cf_check(app->worker, result == ncclRemoteError, "ncclCommDestroy gave %d", (int)result);
        set->comm[m] = NULL;
    }
}

/* ONEHOP_TRAP_AFTER: nobody aborts, and the kernel that waits ends the context. Nothing can be done with it then. */
static void await_trap(struct app *app)
{
    cf_use(app->worker, 0);
    CUresult result = cu.StreamSynchronize(app->worker->member[0].stream[0]);
    cf_check(app->worker, result == CUDA_ERROR_LAUNCH_FAILED, "after the trap the stream gives %d", (int)result);
    failure_abort_all(app);
    fflush(stdout);
    _exit(0);
}

/* ncclCommSuspend and ncclCommResume of NCCL 2.29.7: new calls are NCCL's from then on, and graphs are replayed. */
static void suspend(struct app *app)
{
    ncclResult_t (*go)(ncclComm_t, int) = (ncclResult_t(*)(ncclComm_t, int))dlsym(RTLD_DEFAULT, "ncclCommSuspend");
    ncclResult_t (*resume)(ncclComm_t) = (ncclResult_t(*)(ncclComm_t))dlsym(RTLD_DEFAULT, "ncclCommResume");
    for (int m = 0; cf_use(app->worker, m); m++) {
        const ncclComm_t comm = app->set[0].comm[m];
        cf_check(app->worker, go && resume && go(comm, 1) == ncclSuccess && resume(comm) == ncclSuccess,
                 "no suspension");
    }
}

void app_guard_kill(struct app *app)
{
    struct cf_graph graph, *replayed = NULL;
    if (failure_is_scenario("kill-setup")) { /* it begins with the first call, in which the victim is killed */
        failure_start(app, NULL);
    } else {
        app_run(app->call);
        if (failure_is_scenario("kill-replay") || failure_is_scenario("kill-suspended")) {
            replayed = &graph;
            app_capture(app->call, replayed);
            failure_start(app, replayed);
            app_check(app->call);
        }
        if (failure_is_scenario("kill-suspended")) {
            suspend(app);
        }
        if (failure_is_scenario("kill-large")) {
            use_large(app);
        }
        if (failure_is_victim(app)) {
            failure_await_others(app, &app->board->called);
            failure_die(app);
        }
        survive(app, replayed);
    }
    if (failure_is_scenario("kill-trap")) {
        await_trap(app);
    }
    if (failure_is_scenario("kill-destroy") || failure_is_scenario("kill-finalize")) {
        end_failed(app);
    } else {
        failure_abort_all(app);
    }
    failure_await_gpus(app);
    failure_go_on(app, app_options.victim);
}

/* --- another thread aborts ---------------------------------------------------------------------------------------- */

/* What the thread that uses the communicator is at, when the other aborts it. */
static void *use(void *argument)
{
    struct failure_user *user = argument;
    struct cf_worker *worker = user->app->worker;
    cf_use(worker, 0);
    atomic_store(&user->begun, true);
    if (failure_is_scenario("abort-launch")) {
        CF_NCCL(worker, GroupStart()); /* one call that blocks: after the abort the handle may not be used any more */
        for (int i = 0; i < BLOCKED_LAUNCHES; i++) {
            call_again(user->app, ncclSuccess);
        }
        nccl.GroupEnd();
    } else if (failure_is_scenario("abort-first")) {
        call_again(user->app, ncclInternalError);
        user->free = cf_now();
        return NULL;
    } else if (strstr(app_options.scenario, "-idle") == NULL) {
        failure_start(user->app, user->graph);
    }
    CF_CU(worker, StreamSynchronize(worker->member[0].stream[0]));
    user->free = cf_now();
    return NULL;
}

void failure_begin_use(struct failure_user *user)
{
    cf_check(user->app->worker, pthread_create(&user->thread, NULL, use, user) == 0, "no thread");
    while (!atomic_load(&user->begun)) {
        usleep(POLL_MICROSECONDS);
    }
    failure_sleep(STUCK_SECONDS);
}

void failure_end_use(struct failure_user *user, double aborted)
{
    cf_check(user->app->worker, pthread_join(user->thread, NULL) == 0, "join");
    failure_tell(user->app, "left after", user->free > aborted ? user->free - aborted : 0);
}

/* In abort-first while the first call waits for the victim, which makes none. */
void app_guard_abort(struct app *app)
{
    struct cf_graph graph;
    struct failure_user user = {.app = app};
    if (failure_is_scenario("abort-first")) {
        app_load(app->call);
    } else {
        app_run(app->call);
    }
    if (failure_is_scenario("abort-replay")) {
        app_capture(app->call, &graph);
        user.graph = &graph;
    }
    if (failure_is_victim(app)) {
        failure_await_others(app, &app->board->done);
        failure_abort_all(app);
    } else {
        failure_begin_use(&user);
        double begin = cf_now();
        failure_abort_all(app);
        failure_end_use(&user, begin);
        failure_say(app, &app->board->done);
    }
    failure_go_on(app, -1);
}

/* One rank aborts and lives on. The others wait for it; in abort-large in a call that NCCL serves. */
void app_guard_leave(struct app *app)
{
    if (failure_is_scenario("abort-large")) {
        use_large(app);
    }
    if (failure_is_victim(app)) {
        failure_await_others(app, &app->board->called);
    } else {
        miss_victim(app);
    }
    abort_and_wait(app);
    failure_go_on(app, -1);
}

/* --- a rank is stopped, absent or wrong --------------------------------------------------------------------------- */

void app_guard_stop(struct app *app)
{
    app_load(app->call);
    if (failure_is_victim(app)) {
        raise(SIGSTOP);
    }
    app_call(app->call);
    if (app->worker->member[0].world_rank == (app_options.victim == 0 ? 1 : 0)) {
        if (failure_is_scenario("stop-long")) {
            sleep(STOPPED_SECONDS);
        } else {
            failure_await_log(app, " s in call ");
        }
        kill(app->board->board.pid[app_options.victim], SIGCONT);
    }
    app_check(app->call);
    for (int i = 0; i < app_options.rounds; i++) {
        app_run(app->call);
    }
}

/* The victim does not make the call that the others make; it is alive and well. */
void app_guard_absent(struct app *app)
{
    bool times_out = failure_is_scenario("timeout"), is_victim = failure_is_victim(app);
    if (!is_victim && times_out) {
        miss_victim(app);
    } else if (!is_victim) {
        failure_start(app, NULL);
        failure_await_log(app, " s in call ");
        failure_check_waiting(app);
    } else if (times_out) { /* the failure is everybody's */
        failure_await_error(app, app->set[0].comm[0], ncclRemoteError);
        call_again(app, ncclRemoteError);
    } else {
        failure_await_others(app, &app->board->done);
    }
    abort_and_wait(app);
    if (!is_victim) {
        failure_say(app, &app->board->done);
    }
    failure_go_on(app, -1);
}

/* The call of the victim has other arguments: the second of --counts, another type, op or root; or another kind. */
static struct cf_spec differ(struct cf_spec spec)
{
    if (failure_is_scenario("mismatch-type")) {
        spec.type = ncclInt32;
    } else if (failure_is_scenario("mismatch-op")) {
        spec.op = CF_MAX;
    } else if (failure_is_scenario("mismatch-root")) {
        spec.root++;
    } else if (failure_is_scenario("mismatch-kind")) { /* one whose buffers fit into those of any kind */
        spec.kind = spec.kind == ONEHOP_BROADCAST ? ONEHOP_ALLREDUCE : ONEHOP_BROADCAST;
    } else {
        spec.count = app_options.count[1];
    }
    return spec;
}

static ncclResult_t call_differently(struct app *app)
{
    const struct cf_spec spec = app->call->item[0].spec;
    /* Buffers for the larger of the counts. */
    struct cf_batch *batch = app_options.count[1] > spec.count ? app->other : app->call;
    struct cf_spec *made = &batch->item[0].spec;
    const struct cf_spec kept = *made;
    cf_use(app->worker, 0);
    *made = failure_is_victim(app) ? differ(spec) : spec;
    const ncclResult_t result = cf_batch_call(batch, 0, 0, app->worker->member[0].stream[0]);
    *made = kept;
    return result;
}

/* ONEHOP_CHECK_CALLS=1 */
void app_guard_mismatch(struct app *app)
{
    app_load(app->call);
    ncclResult_t result = call_differently(app);
    cf_check(app->worker, result == ncclSuccess || result == ncclInvalidUsage, "the call gave %d", (int)result);
    failure_await_error(app, app->set[0].comm[0], ncclInvalidUsage);
    if (result == ncclSuccess) {
        failure_check_waiting(app);
    }
    call_again(app, ncclInvalidUsage);
    abort_and_wait(app);
    failure_go_on(app, -1);
}

/* The same without it: nobody knows but who reads the report. */
void app_guard_differ(struct app *app)
{
    app_load(app->call);
    ncclResult_t result = call_differently(app);
    cf_check(app->worker, result == ncclSuccess, "the call gave %d", (int)result);
    failure_await_log(app, " s in call ");
    failure_say(app, &app->board->done); /* an abort before the report would be one of its own */
    failure_await_count(app, &app->board->done, app->worker->nranks);
    abort_and_wait(app);
    failure_go_on(app, -1);
}

/* --- a rank ends early -------------------------------------------------------------------------------------------- */

/*
 * All but the victim end their last call, on the GPU, by ncclCommDestroy alone, and then their process; the victim
 * comes to that call later. destroy-suspended: the call is a replay after ncclCommSuspend.
 */
void app_guard_destroy(struct app *app)
{
    struct cf_graph graph, *replayed = NULL;
    if (failure_is_scenario("destroy-suspended")) {
        replayed = &graph;
        app_capture(app->call, replayed);
        suspend(app);
    }
    if (failure_is_victim(app)) {
        failure_sleep(3 * STUCK_SECONDS);
        failure_start(app, replayed);
        app_check(app->call);
        return;
    }
    failure_start(app, replayed);
    CF_NCCL(app->worker, CommDestroy(app->set[0].comm[0]));
    fflush(stdout);
    _exit(0);
}

/*
 * The victim ends after the last call, without ncclCommDestroy: by exit() or, in quit-*, by _exit(). That is no fault,
 * unless another call follows (*-call).
 */
void app_guard_exit(struct app *app)
{
    if (failure_is_victim(app)) {
        fflush(stdout);
        if (strncmp(app_options.scenario, "quit-", 5) == 0) {
            _exit(0);
        }
        exit(0);
    }
    check_all_sound(app);
    if (strstr(app_options.scenario, "-call") != NULL) {
        call_in_vain(app);
        failure_await_error(app, app->set[0].comm[0], ncclRemoteError);
        abort_and_wait(app);
    }
}

/* What follows a reset of the device: a program makes its context anew. */
static void call_after_reset(struct cf_worker *worker, ncclComm_t comm)
{
    CUcontext context;
    CUdeviceptr buffer; /* at an address of old memory perhaps */
    CUstream stream;
    ncclResult_t state;
    CF_CU(worker, DevicePrimaryCtxRetain(&context, worker->member[0].device));
    CF_CU(worker, CtxSetCurrent(context));
    CF_CU(worker, StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CF_CU(worker, MemAlloc(&buffer, 1 << 20));
    for (int i = 0; i < 2; i++) {
        CF_IS(worker, ncclUnhandledCudaError,
              AllReduce((void *)(uintptr_t)buffer, (void *)(uintptr_t)buffer, 1000, ncclFloat, ncclSum, comm, stream));
    }
    CF_NCCL(worker, CommGetAsyncError(comm, &state));
    cf_check(worker, state == ncclUnhandledCudaError, "the asynchronous error is %d", (int)state);
}

/*
 * The victim resets its device between calls, and makes another (reset-call), or ends the communicator (reset-abort),
 * or its process. The others make theirs. (NCCL 2.28.9 ends with SIGSEGV in an abort after a reset, on a real GPU.)
 */
void app_guard_reset(struct app *app)
{
    ncclComm_t comm = app->set[0].comm[0];
    if (!failure_is_victim(app)) {
        miss_victim(app);
        abort_and_wait(app);
        return;
    }
    cf_use(app->worker, 0);
    CF_CU(app->worker, DevicePrimaryCtxReset(app->worker->member[0].device));
    failure_sleep(STUCK_SECONDS); /* the monitor looks around meanwhile */
    if (failure_is_scenario("reset-call")) {
        call_after_reset(app->worker, comm);
    }
    if (failure_is_scenario("reset-abort")) {
        CF_NCCL(app->worker, CommAbort(comm));
    }
    fflush(stdout);
    _exit(0); /* the rest of the program has lost its streams and buffers, too */
}
