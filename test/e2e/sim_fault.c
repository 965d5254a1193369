/* SPDX-License-Identifier: MIT */
/*
 * sim_fault.c - scenarios fault-stops and fault-on of sim_app: one fault at a call of the driver, after the set-up
 *
 * The program stops at its first error (fault-stops), or takes notice of none (fault-on). Each step makes two calls: on
 * --streams and --comms in turn, in a group (--group), or, in every N-th step (--graph N), by a replay. What must never
 * be ends the job. What a rank has been told of is printed: whether it should have been, t_runtime_faults.sh knows.
 */
#include "test/e2e/sim_app.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

CUresult CUDAAPI cuProfilerStart(void);

#define STEPS 4
#define POLL_US 500
#define STUCK_S 0.3 /* a stream that does not complete for so long is believed to wait */
#define TOLD_S 10.0 /* an error must be there by then: 200 ms on a machine that is not full of ranks */
#define CALM_S 0.2  /* after the last call, for errors that nobody should get */

struct rank {
    struct cf_worker *worker;
    struct app *app;
    struct cf_batch *batch[2]; /* a call each */
    bool launched[2];          /* that call has returned success in this step */
    bool captured[2];          /* that call is in `exec` */
    bool refused[2];           /* by communicator: it has returned an error */
    bool told;                 /* a call of NCCL or CUDA has returned an error */
    bool waited;               /* a stream did not complete, and an asynchronous error said so */
    CUgraphExec exec;          /* NULL: none, or its capture has failed */
};

/* Printed at once, since the process may be killed. */
static void tell(const struct rank *rank, bool *known_p, const char *what)
{
    if (!*known_p) {
        printf("rank %d: %s\n", rank->worker->index, what);
        fflush(stdout);
    }
    *known_p = true;
}

static bool program_stops(void)
{
    return strcmp(app_options.scenario, "fault-stops") == 0;
}

static CUstream stream_of(const struct rank *rank, int call)
{
    return rank->worker->member[0].stream[call % app_options.streams];
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

/* Takes the result of a call on a communicator. */
static bool take(struct rank *rank, int comm, ncclResult_t result)
{
    if (result != ncclSuccess) {
        tell(rank, &rank->told, "told");
        rank->refused[comm] = true;
    }
    cf_check(rank->worker, result != ncclSuccess || !rank->refused[comm],
             "a call returned success on a communicator that had returned an error");
    return result == ncclSuccess;
}

static ncclResult_t call(struct rank *rank, int c)
{
    return cf_batch_call(rank->batch[c], 0, 0, stream_of(rank, c));
}

static void call_each(struct rank *rank)
{
    for (int c = 0; c < 2; c++) {
        rank->launched[c] = take(rank, c % app_options.comms, call(rank, c));
    }
}

static void call_group(struct rank *rank)
{
    CF_NCCL(rank->worker, GroupStart());
    ncclResult_t first = call(rank, 0), second = call(rank, 1), ended = nccl.GroupEnd();
    bool good = take(rank, 0, first != ncclSuccess ? first : second != ncclSuccess ? second : ended);
    rank->launched[0] = rank->launched[1] = good;
}

static bool cuda(struct rank *rank, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        tell(rank, &rank->told, "told");
    }
    return result == CUDA_SUCCESS;
}

/* Captures both calls. A program that takes notice of no error replays whatever it gets. */
static void capture(struct rank *rank)
{
    CUgraph graph = NULL;
    CF_CU(rank->worker, StreamBeginCapture(stream_of(rank, 0), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    call_each(rank);
    memcpy(rank->captured, rank->launched, sizeof rank->captured);
    if (cuda(rank, cu.StreamEndCapture(stream_of(rank, 0), &graph)) && graph != NULL) {
        CF_CU(rank->worker, GraphInstantiate(&rank->exec, graph, 0));
        CF_CU(rank->worker, GraphDestroy(graph));
    }
}

static void issue(struct rank *rank, int step)
{
    if (app_options.replays > 0 && step % app_options.replays == 0) {
        bool launched = rank->exec != NULL && cuda(rank, cu.GraphLaunch(rank->exec, stream_of(rank, 0)));
        for (int c = 0; c < 2; c++) {
            rank->launched[c] = launched && rank->captured[c];
        }
    } else if (app_options.group > 0) {
        call_group(rank);
    } else {
        call_each(rank);
    }
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

/* Has a communicator an error? */
static bool has_async_error(const struct rank *rank)
{
    ncclResult_t error = ncclSuccess;
    for (int c = 0; c < app_options.comms && error == ncclSuccess; c++) {
        nccl.CommGetAsyncError(rank->app->set[c].comm[0], &error);
    }
    return error != ncclSuccess;
}

static CUresult query(const struct rank *rank)
{
    CUresult first = cu.StreamQuery(stream_of(rank, 0)), second = cu.StreamQuery(stream_of(rank, 1));
    return first == CUDA_SUCCESS ? second : first;
}

/* Waits for the streams. False: they wait, as far as can be told. */
static bool completes(struct rank *rank)
{
    double begin = cf_now();
    CUresult result;
    while ((result = query(rank)) == CUDA_ERROR_NOT_READY) {
        double waited = cf_now() - begin;
        if (waited > STUCK_S && has_async_error(rank)) {
            tell(rank, &rank->waited, "waited");
            return false;
        }
        cf_check(rank->worker, waited < TOLD_S, "a stream does not complete, and no error says so");
        usleep(POLL_US);
    }
    cuda(rank, result);
    return true;
}

/* The program's calls, until it stops or a stream waits for good. */
static void work(struct rank *rank)
{
    bool late = false;
    if (app_options.replays > 0) {
        capture(rank);
    }
    for (int step = 0; step < STEPS; step++) {
        if (program_stops() && rank->told) {
            return;
        }
        for (int c = 0; c < 2; c++) {
            cf_batch_load(rank->batch[c], c % app_options.streams);
        }
        issue(rank, step);
        if (!completes(rank)) {
            return;
        }
        for (int c = 0; c < 2; c++) {
            if (rank->launched[c]) {
                cf_batch_judge(rank->batch[c], c % app_options.streams, true);
            }
        }
    }
    for (double begin = cf_now(); cf_now() - begin < CALM_S && !rank->told; usleep(10 * POLL_US)) {
        if (has_async_error(rank)) {
            tell(rank, &late, "told late");
        }
    }
}

/*
 * A program that has got an error aborts, one that takes notice of none destroys; but stock NCCL's destruction waits
 * for a call that NCCL serves: the second of two sizes, and a verified one.
 */
static void end_communicators(struct rank *rank)
{
    bool nccl_serves = app_options.counts > 1 || getenv("ONEHOP_VERIFY") != NULL;
    bool aborts = (program_stops() || nccl_serves) && (rank->told || rank->waited);
    for (int c = 0; c < app_options.comms; c++) {
        ncclComm_t *comm = &rank->app->set[c].comm[0];
        if (aborts) {
            CF_NCCL(rank->worker, CommAbort(*comm));
        } else {
            nccl.CommDestroy(*comm);
        }
        *comm = NULL;
    }
}

void app_fault(struct app *app)
{
    struct rank rank = {.worker = app->worker, .app = app, .batch = {app->call, app->other}};
    for (int c = 0; c < 2; c++) {
        app_run(rank.batch[c]);
        rank.batch[c]->counted = true;
    }
    cf_barrier(app->worker);
    cuProfilerStart(); /* from here on faults count (SIMNODE_FROM) */
    work(&rank);
    if (rank.exec != NULL) {
        CF_CU(app->worker, GraphExecDestroy(rank.exec));
    }
    end_communicators(&rank);
    cf_sync(app->worker);
}
