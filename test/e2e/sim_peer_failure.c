/* SPDX-License-Identifier: MIT */
/*
 * sim_peer_failure.c - scenarios of sim_app about what must not hang: doc/faults.md has the table
 *
 * Something happens to one rank, the victim; the others must go on, or learn of it in time, never take a wrong result
 * for a right one, get their GPUs back when they abort, and be able to make another communicator. What is measured is
 * printed, as "noticed after N ms".
 */
#include "test/e2e/sim_failure.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STOPPED_SECONDS 5

/* A call that may have been made before the trouble was noticed. */
static void call_in_vain(struct app *app)
{
    ncclResult_t result = failure_call_again(app);
    cf_check(app->worker, result == ncclSuccess || result == ncclRemoteError, "a call gave %d", (int)result);
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
        failure_call_must(app, ncclRemoteError);
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
    failure_call_must(app, ncclRemoteError);
}

/* The end of a communicator whose kernels wait tells the failure; only its destruction lets them leave. */
static void end_failed(struct app *app)
{
    struct cf_set *set = &app->set[0];
    for (int m = 0; cf_use(app->worker, m); m++) {
        if (failure_is_scenario("kill-finalize")) {
            CF_IS(app->worker, ncclRemoteError, CommFinalize(set->comm[m]));
            failure_check_waiting(app);
        }
        CF_IS(app->worker, ncclRemoteError, CommDestroy(set->comm[m]));
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
    for (int m = 0; cf_use(app->worker, m); m++) {
        CF_NCCL(app->worker, CommSuspend(app->set[0].comm[m], 1));
        CF_NCCL(app->worker, CommResume(app->set[0].comm[m]));
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

/* --- a rank aborts, is stopped, absent or wrong ------------------------------------------------------------------- */

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
        failure_call_must(app, ncclRemoteError);
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
    failure_call_must(app, ncclInvalidUsage);
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
