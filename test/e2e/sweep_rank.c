/* SPDX-License-Identifier: MIT */
/* sweep_rank.c - see sweep.h; a rank whose program either stops at the first error or never takes notice of one. */
#include "sweep.h"

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
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
    CUdeviceptr send, recv;
    size_t count;
    int comm, stream;
    bool launched; /* it has returned success in this step */
};

struct rank {
    const struct sweep_point *point;
    struct sweep_board *board;
    struct sweep_record *record;
    int number, nranks, comms;
    CUdevice device;
    CUstream stream[2];
    ncclComm_t comm[SWEEP_MAX_COMMS];
    bool refused[SWEEP_MAX_COMMS]; /* the communicator has returned an error */
    struct slot slot[2];
    CUgraphExec exec; /* NULL: none, or its capture has failed */
    float *host;
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int sweep_ranks(enum sweep_pattern pattern)
{
    return pattern == SWEEP_EAGER || pattern == SWEEP_NCCL ? 3 : 2;
}

static void must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "sweep: %s failed outside of the fault\n", what);
        _exit(2);
    }
}

#define MUST_CU(call_) must((call_) == CUDA_SUCCESS, #call_)
#define MUST_NCCL(call_) must((call_) == ncclSuccess, #call_)

static void meet(atomic_uint *counter, unsigned ranks)
{
    for (atomic_fetch_add(counter, 1); atomic_load(counter) < ranks;) {
        usleep(POLL_US);
    }
}

/* --- data --------------------------------------------------------------------------------------------------------- */

static float value(int step, int slot, int rank, size_t i)
{
    return (float)((step * 31 + slot * 17 + rank * 7 + (int)(i % 61)) % 64);
}

static void fill(struct rank *rank, int step)
{
    for (int s = 0; s < 2; s++) {
        struct slot *slot = &rank->slot[s];
        for (size_t i = 0; i < slot->count; i++) {
            rank->host[i] = value(step, s, rank->number, i);
        }
        slot->launched = false;
        MUST_CU(cuMemcpyHtoD(slot->send, rank->host, slot->count * sizeof(float)));
        MUST_CU(cuMemsetD32Async(slot->recv, 0xffffffff, slot->count, rank->stream[slot->stream]));
    }
}

static bool is_right(struct rank *rank, int step, int s)
{
    const struct slot *slot = &rank->slot[s];
    MUST_CU(cuMemcpyDtoH(rank->host, slot->recv, slot->count * sizeof(float)));
    for (size_t i = 0; i < slot->count; i++) {
        float sum = 0;
        for (int r = 0; r < rank->nranks; r++) {
            sum += value(step, s, r, i);
        }
        if (rank->host[i] != sum) {
            return false;
        }
    }
    return true;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

/* Takes the result of a call on a communicator. */
static bool take(struct rank *rank, int comm, ncclResult_t result)
{
    if (result != ncclSuccess) {
        atomic_store(&rank->record->told, true);
        rank->refused[comm] = true;
    } else if (rank->refused[comm]) {
        atomic_store(&rank->record->forgotten, true);
    }
    return result == ncclSuccess;
}

static ncclResult_t call(struct rank *rank, int s)
{
    struct slot *slot = &rank->slot[s];
    return ncclAllReduce((void *)(uintptr_t)slot->send, (void *)(uintptr_t)slot->recv, slot->count, ncclFloat32,
                         ncclSum, rank->comm[slot->comm], rank->stream[slot->stream]);
}

static void call_each(struct rank *rank)
{
    for (int s = 0; s < 2; s++) {
        rank->slot[s].launched = take(rank, rank->slot[s].comm, call(rank, s));
    }
}

static void call_group(struct rank *rank)
{
    MUST_NCCL(ncclGroupStart());
    ncclResult_t first = call(rank, 0), second = call(rank, 1), ended = ncclGroupEnd();
    bool good = take(rank, 0, first != ncclSuccess ? first : second != ncclSuccess ? second : ended);
    rank->slot[0].launched = rank->slot[1].launched = good;
}

static bool cuda(struct rank *rank, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        atomic_store(&rank->record->told, true);
    }
    return result == CUDA_SUCCESS;
}

/* Captures both calls. A program that takes notice of no error replays whatever it gets. */
static void capture(struct rank *rank)
{
    CUgraph graph = NULL;
    MUST_CU(cuStreamBeginCapture(rank->stream[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    call_each(rank);
    if (cuda(rank, cuStreamEndCapture(rank->stream[0], &graph)) && graph) {
        MUST_CU(cuGraphInstantiateWithFlags(&rank->exec, graph, 0));
        MUST_CU(cuGraphDestroy(graph));
    }
}

static void replay(struct rank *rank)
{
    bool launched = rank->exec && cuda(rank, cuGraphLaunch(rank->exec, rank->stream[0]));
    rank->slot[0].launched = rank->slot[1].launched = launched;
}

static void issue(struct rank *rank, int step)
{
    enum sweep_pattern pattern = rank->point->pattern;
    if (pattern == SWEEP_GRAPH || (pattern == SWEEP_MIXED && step % 2 != 0)) {
        replay(rank);
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
        ncclCommGetAsyncError(rank->comm[c], &error);
    }
    return error;
}

static CUresult query(const struct rank *rank)
{
    CUresult first = cuStreamQuery(rank->stream[0]), second = cuStreamQuery(rank->stream[1]);
    return first == CUDA_SUCCESS ? second : first;
}

/* Waits for the streams. False: they wait, as far as can be told. */
static bool completes(struct rank *rank)
{
    double begin = now();
    CUresult result;
    while ((result = query(rank)) == CUDA_ERROR_NOT_READY) {
        double waited = now() - begin;
        bool asks = waited > STUCK_S; /* a program that takes notice of nothing is asked for here, not there */
        if (asks && async_error(rank) != ncclSuccess) {
            atomic_store(&rank->record->waited, true);
            return false;
        }
        if (waited > TOLD_S) {
            atomic_store(&rank->record->untold, true);
            return false;
        }
        usleep(POLL_US);
    }
    cuda(rank, result);
    return true;
}

static void verify(struct rank *rank, int step)
{
    for (int s = 0; s < 2; s++) {
        if (rank->slot[s].launched && !is_right(rank, step, s)) {
            atomic_store(&rank->record->silent, true);
        }
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
        if (rank->point->stops && atomic_load(&rank->record->told)) {
            return;
        }
        fill(rank, step);
        issue(rank, step);
        if (!completes(rank)) {
            return;
        }
        verify(rank, step);
    }
    for (double begin = now(); now() - begin < CALM_S && !atomic_load(&rank->record->late);) {
        if (async_error(rank) != ncclSuccess) {
            atomic_store(&rank->record->late, true);
        }
        usleep(10 * POLL_US);
    }
}

/* --- begin and end ------------------------------------------------------------------------------------------------ */

static size_t count_of(enum sweep_pattern pattern, int s)
{
    return pattern == SWEEP_PARTS || (pattern == SWEEP_NCCL && s == 1) ? LARGE_ELEMENTS : SMALL_ELEMENTS;
}

static void open_rank(struct rank *rank)
{
    enum sweep_pattern pattern = rank->point->pattern;
    CUcontext context;
    MUST_CU(cuInit(0));
    MUST_CU(cuDeviceGet(&rank->device, rank->number));
    MUST_CU(cuDevicePrimaryCtxRetain(&context, rank->device));
    MUST_CU(cuCtxSetCurrent(context));
    rank->host = malloc(LARGE_ELEMENTS * sizeof *rank->host);
    must(rank->host != NULL, "malloc");
    for (int s = 0; s < 2; s++) {
        struct slot *slot = &rank->slot[s];
        slot->count = count_of(pattern, s);
        slot->comm = pattern == SWEEP_TWO ? s : 0;
        slot->stream = pattern == SWEEP_STREAMS || pattern == SWEEP_TWO || pattern == SWEEP_GROUP ? s : 0;
        MUST_CU(cuStreamCreate(&rank->stream[s], CU_STREAM_NON_BLOCKING));
        MUST_CU(cuMemAlloc(&slot->send, slot->count * sizeof(float)));
        MUST_CU(cuMemAlloc(&slot->recv, slot->count * sizeof(float)));
    }
}

static void make_communicators(struct rank *rank)
{
    rank->comms = rank->point->pattern == SWEEP_TWO ? 2 : 1;
    if (rank->number == 0) {
        for (int c = 0; c < rank->comms; c++) {
            MUST_NCCL(ncclGetUniqueId(&rank->board->id[c]));
        }
    }
    meet(&rank->board->ids, (unsigned)rank->nranks);
    for (int c = 0; c < rank->comms; c++) {
        MUST_NCCL(ncclCommInitRank(&rank->comm[c], rank->nranks, rank->board->id[c], rank->number));
    }
}

static size_t free_memory(void)
{
    size_t bytes, total;
    MUST_CU(cuMemGetInfo(&bytes, &total));
    return bytes;
}

/*
 * A program that has got an error aborts, one that takes notice of none destroys; but stock NCCL's destruction waits
 * for a call that NCCL serves.
 */
static void end_communicators(struct rank *rank)
{
    bool aborts =
        (rank->point->stops || rank->point->pattern == SWEEP_NCCL) &&
        (atomic_load(&rank->record->told) || atomic_load(&rank->record->waited) || atomic_load(&rank->record->untold));
    for (int c = 0; c < rank->comms; c++) {
        if (aborts) {
            MUST_NCCL(ncclCommAbort(rank->comm[c]));
        } else {
            ncclCommDestroy(rank->comm[c]);
        }
    }
}

static void close_rank(struct rank *rank, size_t before)
{
    double begin = now();
    if (rank->exec) {
        MUST_CU(cuGraphExecDestroy(rank->exec));
    }
    end_communicators(rank);
    while (free_memory() < before && now() - begin < BACK_S) {
        usleep(POLL_US);
    }
    atomic_store(&rank->record->leaks, free_memory() < before);
    for (int s = 0; s < 2; s++) {
        cuStreamSynchronize(rank->stream[s]);
        cuMemFree(rank->slot[s].send);
        cuMemFree(rank->slot[s].recv);
        cuStreamDestroy(rank->stream[s]);
    }
    free(rank->host);
}

void sweep_rank(const struct sweep_point *point, struct sweep_board *board, int number)
{
    struct rank rank = {.point = point,
                        .board = board,
                        .record = &board->rank[number],
                        .number = number,
                        .nranks = sweep_ranks(point->pattern)};
    open_rank(&rank);
    size_t before = free_memory();
    make_communicators(&rank);
    fill(&rank, 0);
    call_each(&rank);
    must(completes(&rank), "the first call");
    verify(&rank, 0);
    must(!atomic_load(&rank.record->silent) && !atomic_load(&rank.record->told), "the first call");
    meet(&board->present, (unsigned)rank.nranks);
    atomic_store(&rank.record->armed, true);
    cuProfilerStart(); /* from here on faults count (SIMNODE_FROM) */
    work(&rank);
    atomic_store(&rank.record->worked, true);
    close_rank(&rank, before);
    atomic_store(&rank.record->finished, true);
}
