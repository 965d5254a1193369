/* SPDX-License-Identifier: MIT */
/* sweep_rank.c - see sweep.h; a rank whose program either stops at the first error or never takes notice of one. */
#include "test/e2e/sweep.h"

#include <stdio.h>
#include <unistd.h>

CUresult CUDAAPI cuProfilerStart(void);

#define STEPS 4
#define SMALL_ELEMENTS 1000
#define LARGE_ELEMENTS 330000 /* SWEEP_PARTS: three parts; SWEEP_NCCL: more than onehop serves there */
#define POLL_US 500
#define STUCK_S 0.3 /* a stream that does not complete for so long is believed to wait */
#define TOLD_S 10.0 /* an error must be there by then: 200 ms on a machine that is not full of ranks */
#define CALM_S 0.2  /* after the last call, for errors that nobody should get */
#define BACK_S 10.0 /* memory must be back by then */

/* A call of a step. */
struct slot {
    struct cf_batch *batch; /* of this call alone */
    int comm, stream;
    bool launched; /* it has returned success in this step */
};

struct rank {
    struct cf_worker *worker;
    const struct sweep_point *point;
    _Atomic unsigned *flags;
    int comms;
    struct cf_set set[2];
    bool refused[2]; /* the communicator has returned an error */
    struct slot slot[2];
    CUgraphExec exec; /* NULL: none, or its capture has failed */
};

static void note(const struct rank *rank, enum sweep_flag flag)
{
    atomic_fetch_or(rank->flags, flag);
}

static bool has(const struct rank *rank, unsigned flags)
{
    return (atomic_load(rank->flags) & flags) != 0;
}

static CUstream stream_of(const struct rank *rank, int s)
{
    return rank->worker->member[0].stream[rank->slot[s].stream];
}

static void load(struct rank *rank)
{
    for (int s = 0; s < 2; s++) {
        rank->slot[s].launched = false;
        cf_batch_load(rank->slot[s].batch, rank->slot[s].stream);
    }
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

/* Takes the result of a call on a communicator. */
static bool take(struct rank *rank, int comm, ncclResult_t result)
{
    if (result != ncclSuccess) {
        note(rank, SWEEP_TOLD);
        rank->refused[comm] = true;
    } else if (rank->refused[comm]) {
        note(rank, SWEEP_FORGOTTEN);
    }
    return result == ncclSuccess;
}

static ncclResult_t call(struct rank *rank, int s)
{
    return cf_batch_call(rank->slot[s].batch, 0, 0, stream_of(rank, s));
}

static void call_each(struct rank *rank)
{
    for (int s = 0; s < 2; s++) {
        rank->slot[s].launched = take(rank, rank->slot[s].comm, call(rank, s));
    }
}

static void call_group(struct rank *rank)
{
    CF_NCCL(rank->worker, GroupStart());
    ncclResult_t first = call(rank, 0), second = call(rank, 1), ended = nccl.GroupEnd();
    bool good = take(rank, 0, first != ncclSuccess ? first : second != ncclSuccess ? second : ended);
    rank->slot[0].launched = rank->slot[1].launched = good;
}

static bool cuda(struct rank *rank, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        note(rank, SWEEP_TOLD);
    }
    return result == CUDA_SUCCESS;
}

/* Captures both calls. A program that takes notice of no error replays whatever it gets. */
static void capture(struct rank *rank)
{
    CUgraph graph = NULL;
    CF_CU(rank->worker, StreamBeginCapture(stream_of(rank, 0), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    call_each(rank);
    if (cuda(rank, cu.StreamEndCapture(stream_of(rank, 0), &graph)) && graph != NULL) {
        CF_CU(rank->worker, GraphInstantiate(&rank->exec, graph, 0));
        CF_CU(rank->worker, GraphDestroy(graph));
    }
}

static void issue(struct rank *rank, int step)
{
    enum sweep_pattern pattern = rank->point->pattern;
    if (pattern == SWEEP_GRAPH || (pattern == SWEEP_MIXED && step % 2 != 0)) {
        bool launched = rank->exec != NULL && cuda(rank, cu.GraphLaunch(rank->exec, stream_of(rank, 0)));
        rank->slot[0].launched = rank->slot[1].launched = launched;
    } else if (pattern == SWEEP_GROUP) {
        call_group(rank);
    } else {
        call_each(rank);
    }
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

/* The first that any communicator gives. */
static ncclResult_t async_error(const struct rank *rank)
{
    ncclResult_t error = ncclSuccess;
    for (int c = 0; c < rank->comms && error == ncclSuccess; c++) {
        nccl.CommGetAsyncError(rank->set[c].comm[0], &error);
    }
    return error;
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
        bool asks = waited > STUCK_S; /* a program that takes notice of nothing is asked for here, not there */
        if (asks && async_error(rank) != ncclSuccess) {
            note(rank, SWEEP_WAITED);
            return false;
        }
        if (waited > TOLD_S) {
            note(rank, SWEEP_UNTOLD);
            return false;
        }
        usleep(POLL_US);
    }
    cuda(rank, result);
    return true;
}

static void verify(struct rank *rank)
{
    struct cf_result *result = rank->worker->result;
    for (int s = 0; s < 2; s++) {
        if (rank->slot[s].launched) {
            cf_batch_judge(rank->slot[s].batch, rank->slot[s].stream, true);
        }
    }
    if (result->failures > 0) {
        note(rank, SWEEP_SILENT);
        printf("rank %d: %s\n", rank->worker->index, result->failure);
        fflush(stdout);
    }
}

/* The program's calls, until it stops or a stream waits for good. */
static void work(struct rank *rank)
{
    enum sweep_pattern pattern = rank->point->pattern;
    if (pattern == SWEEP_GRAPH || pattern == SWEEP_MIXED) {
        capture(rank);
    }
    for (int step = 1; step <= STEPS; step++) {
        if (rank->point->stops && has(rank, SWEEP_TOLD)) {
            return;
        }
        load(rank);
        issue(rank, step);
        if (!completes(rank)) {
            return;
        }
        verify(rank);
    }
    for (double begin = cf_now(); cf_now() - begin < CALM_S && !has(rank, SWEEP_LATE);) {
        if (async_error(rank) != ncclSuccess) {
            note(rank, SWEEP_LATE);
        }
        usleep(10 * POLL_US);
    }
}

/* --- begin and end ------------------------------------------------------------------------------------------------ */

static void open_rank(struct rank *rank)
{
    enum sweep_pattern pattern = rank->point->pattern;
    rank->comms = pattern == SWEEP_TWO ? 2 : 1;
    for (int c = 0; c < rank->comms; c++) {
        cf_set_fill(rank->worker, -1, &rank->set[c]);
    }
    for (int s = 0; s < 2; s++) {
        struct slot *slot = &rank->slot[s];
        bool large = pattern == SWEEP_PARTS || (pattern == SWEEP_NCCL && s == 1);
        slot->comm = pattern == SWEEP_TWO ? s : 0;
        slot->stream = pattern == SWEEP_STREAMS || pattern == SWEEP_TWO || pattern == SWEEP_GROUP ? s : 0;
        slot->batch = cf_batch_new(rank->worker, &rank->set[slot->comm]);
        slot->batch->counted = true;
        cf_batch_add(slot->batch, &(struct cf_spec){.type = ncclFloat32,
                                                    .op = CF_SUM,
                                                    .family = CF_EXACT,
                                                    .count = large ? LARGE_ELEMENTS : SMALL_ELEMENTS});
        cf_batch_open(slot->batch);
    }
}

/*
 * A program that has got an error aborts, one that takes notice of none destroys; but stock NCCL's destruction waits
 * for a call that NCCL serves.
 */
static void end_communicators(struct rank *rank)
{
    bool aborts = (rank->point->stops || rank->point->pattern == SWEEP_NCCL) &&
                  has(rank, SWEEP_TOLD | SWEEP_WAITED | SWEEP_UNTOLD);
    for (int c = 0; c < rank->comms; c++) {
        if (aborts) {
            CF_NCCL(rank->worker, CommAbort(rank->set[c].comm[0]));
        } else {
            nccl.CommDestroy(rank->set[c].comm[0]);
        }
    }
}

static void close_rank(struct rank *rank, long kib_before)
{
    double begin = cf_now();
    if (rank->exec != NULL) {
        CF_CU(rank->worker, GraphExecDestroy(rank->exec));
    }
    end_communicators(rank);
    while (cf_gpu_kib(rank->worker) > kib_before && cf_now() - begin < BACK_S) {
        usleep(POLL_US);
    }
    if (cf_gpu_kib(rank->worker) > kib_before) {
        note(rank, SWEEP_LEAKS);
    }
    cf_sync(rank->worker);
    cf_batch_free(rank->slot[0].batch);
    cf_batch_free(rank->slot[1].batch);
}

void sweep_rank(struct cf_worker *worker)
{
    struct sweep_board *board = (struct sweep_board *)worker->board;
    struct rank rank = {.worker = worker, .point = &board->point, .flags = &board->flags[worker->index]};
    cf_use(worker, 0);
    open_rank(&rank);
    long kib_before = cf_gpu_kib(worker);
    for (int c = 0; c < rank.comms; c++) {
        cf_set_create(worker, CF_INIT_RANK, &rank.set[c]);
    }
    load(&rank);
    call_each(&rank);
    bool completed = completes(&rank);
    verify(&rank);
    if (!completed || has(&rank, SWEEP_SILENT | SWEEP_TOLD)) {
        cf_die(worker, "the first call failed outside of the fault");
    }
    cf_barrier(worker);
    cuProfilerStart(); /* from here on faults count (SIMNODE_FROM) */
    work(&rank);
    close_rank(&rank, kib_before);
    note(&rank, SWEEP_FINISHED);
}
