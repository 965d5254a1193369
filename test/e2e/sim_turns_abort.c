/* SPDX-License-Identifier: MIT */
/* sim_turns_abort.c - cases of sim_turns: communicators that are aborted or revoked, or fail, while they are used */
#include "test/e2e/sim_turns.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 40000 /* more memory than a communicator has */
#define BLOCK_BYTES 64

static void *abort_late(void *comm)
{
    usleep(LATE_US);
    MUST(ncclCommAbort(comm) == ncclSuccess);
    return NULL;
}

static void *revoke_late(void *comm)
{
    usleep(LATE_US);
    MUST(ncclCommRevoke(comm, 0) == ncclSuccess);
    return NULL;
}

static ncclResult_t reduce(const struct rank *self, ncclComm_t comm)
{
    return ncclReduce(self->ones, self->to, SMALL, ncclFloat32, ncclSum, 0, comm, (cudaStream_t)self->stream);
}

/* --- functions in which a thread waits ---------------------------------------------------------------------------- */

static ncclResult_t call_suspend(ncclComm_t comm)
{
    return nccl.CommSuspend(comm, 1);
}

static ncclResult_t call_revoke(ncclComm_t comm)
{
    return ncclCommRevoke(comm, 0);
}

static ncclResult_t call_group_end(ncclComm_t comm)
{
    (void)comm;
    return ncclGroupEnd();
}

/*
 * Rank 0 has made a call that waits for rank 1, which makes none. Rank 0 waits in `waits`, and another thread ends that
 * by `ends`.
 */
static void end_waiting(const struct rank *self, ncclComm_t comm, void *(*ends)(void *),
                        ncclResult_t (*waits)(ncclComm_t), ncclResult_t expected)
{
    if (self->rank == 0) {
        pthread_t other;
        turn_start(ends, comm, &other);
        MUST(waits(comm) == expected);
        pthread_join(other, NULL);
    }
    cf_barrier(self->worker);
    MUST((self->rank == 0 && ends == abort_late) || ncclCommAbort(comm) == ncclSuccess);
}

static void abort_served(const struct rank *self, ncclResult_t (*waits)(ncclComm_t))
{
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, true);
    turn_warm_up(self, comm);
    MUST(self->rank == 1 || turn_sum(self, comm, self->ones, self->to, SMALL) == ncclSuccess);
    end_waiting(self, comm, abort_late, waits, ncclInternalError);
}

static void abort_in_finalize(const struct rank *self)
{
    abort_served(self, ncclCommFinalize);
}

static void abort_in_destroy(const struct rank *self)
{
    abort_served(self, ncclCommDestroy);
}

/* onehop waits for the call, as it does not with stock NCCL. */
static void abort_in_suspend(const struct rank *self)
{
    abort_served(self, call_suspend);
}

/* NCCL executes the call. onehop has no memory of the communicator, and frees it at once. */
static void abandon(const struct rank *self)
{
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, true);
    MUST(self->rank == 1 || reduce(self, comm) == ncclSuccess);
    end_waiting(self, comm, abort_late, ncclCommFinalize, ncclSuccess);
}

static unsigned char *blocks[BLOCKS];

/* When the abort has freed what onehop has of the communicator, takes that memory, and lets NCCL go on. */
static void *destroy_late(void *graph)
{
    usleep(2 * LATE_US);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(BLOCK_BYTES);
        MUST(blocks[i]);
        memset(blocks[i], 0xff, BLOCK_BYTES);
    }
    MUST(cuGraphDestroy(graph) == CUDA_SUCCESS);
    return NULL;
}

/* ncclCommRevoke waits for a graph with a call that NCCL executes. */
static void abort_in_revoke(const struct rank *self)
{
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, true);
    pthread_t destroys;
    CUgraph graph;
    if (self->rank == 0) {
        MUST(cuStreamBeginCapture(self->stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
        MUST(reduce(self, comm) == ncclSuccess);
        MUST(cuStreamEndCapture(self->stream, &graph) == CUDA_SUCCESS);
        turn_start(destroy_late, graph, &destroys);
    }
    end_waiting(self, comm, abort_late, call_revoke, ncclSuccess);
    if (self->rank == 0) {
        pthread_join(destroys, NULL);
        for (int i = 0; i < BLOCKS * BLOCK_BYTES; i++) {
            MUST(blocks[i / BLOCK_BYTES][i % BLOCK_BYTES] == 0xff);
        }
    }
}

/* ncclGroupEnd waits for the first call of the other rank. */
static void abort_in_group(const struct rank *self)
{
    for (int way = 0; way < 2; way++) {
        ncclComm_t comm = turn_make(self, way, 2, self->rank, true);
        if (self->rank == 0) {
            MUST(ncclGroupStart() == ncclSuccess);
            MUST(turn_sum(self, comm, self->ones, self->to, SMALL) == ncclSuccess);
        }
        end_waiting(self, comm, way == 0 ? abort_late : revoke_late, call_group_end, ncclInternalError);
    }
}

/* The same with calls of another communicator in the group, which the other rank may have executed. */
static void abort_beside(const struct rank *self)
{
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, true), other = turn_make(self, 1, 2, self->rank, true);
    turn_warm_up(self, other);
    if (self->rank == 0) {
        MUST(ncclGroupStart() == ncclSuccess);
        MUST(turn_sum(self, other, self->ones, self->other, SMALL) == ncclSuccess);
        MUST(turn_sum(self, comm, self->ones, self->to, SMALL) == ncclSuccess);
        MUST(turn_sum(self, other, self->ones, self->other, SMALL) == ncclSuccess);
    }
    end_waiting(self, comm, abort_late, call_group_end, ncclInternalError);
    MUST(turn_is_filled(self->other, SMALL, 0));
    usleep(TELL_US);
    MUST(turn_state_of(other) != ncclSuccess);
    MUST(turn_sum(self, other, self->ones, self->other, SMALL) != ncclSuccess);
    MUST(ncclCommAbort(other) == ncclSuccess);
}

static void *ask(void *comm)
{
    ncclResult_t state;
    ncclCommGetAsyncError(comm, &state); /* maybe an error: the communicator may have ended */
    return NULL;
}

/* A thread asks for the state, and NCCL answers late: onehop has no memory of the communicator, and frees it at once.
 */
static void abort_while_asked(const struct rank *self)
{
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, true);
    pthread_t asking;
    turn_start(ask, comm, &asking);
    usleep(LATE_US);
    MUST(ncclCommAbort(comm) == ncclSuccess);
    pthread_join(asking, NULL);
}

/* A split in a group of a non-blocking communicator, which another thread aborts before ncclGroupEnd. */
static void abort_parent(const struct rank *self)
{
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, false), split = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    pthread_t aborting;
    config.blocking = 0;
    MUST(ncclGroupStart() == ncclSuccess);
    const ncclResult_t made = ncclCommSplit(comm, 0, self->rank, &split, &config);
    MUST(made == ncclSuccess || made == ncclInProgress);
    turn_start(abort_late, comm, &aborting);
    pthread_join(aborting, NULL);
    usleep(TELL_US);
    ncclGroupEnd();
    usleep(TELL_US);
}

struct replacement {
    const struct rank *self;
    ncclComm_t comm, next;
    atomic_bool is_aborting, is_there;
};

static void CUDA_CB await_replacement(void *user)
{
    const struct replacement *replacement = user;
    while (!replacement->is_there) {
        usleep(1000);
    }
}

/* Aborts a communicator with a launch that blocks, and makes another one, before the launch goes on. */
static void *replace_late(void *user)
{
    struct replacement *replacement = user;
    usleep(2 * LATE_US);
    replacement->is_aborting = true;
    MUST(ncclCommAbort(replacement->comm) == ncclSuccess);
    cf_use(replacement->self->worker, 0);
    replacement->next = turn_make(replacement->self, 1, 1, 0, true);
    replacement->is_there = true;
    return NULL;
}

/* Calls behind what waits, until a launch blocks. */
static void abort_in_launch(const struct rank *self)
{
    struct replacement replacement = {.self = self, .comm = turn_make(self, 0, 2, self->rank, true)};
    onehop_comm_info_t info;
    pthread_t replacing;
    turn_warm_up(self, replacement.comm);
    if (self->rank == 0) {
        MUST(cuLaunchHostFunc(self->stream, await_replacement, &replacement) == CUDA_SUCCESS);
        turn_start(replace_late, &replacement, &replacing);
        while (!replacement.is_aborting) {
            turn_sum(self, replacement.comm, self->ones, self->to, SMALL);
        }
        pthread_join(replacing, NULL);
        int (*const describe)(const void *, onehop_comm_info_t *, size_t) =
            (int (*)(const void *, onehop_comm_info_t *, size_t))dlsym(RTLD_DEFAULT, "onehopCommInfo");
        MUST(describe && describe(replacement.next, &info, sizeof info) == 0);
        MUST(info.calls_by_collective[ONEHOP_ALLREDUCE] == 0 && info.bytes == 0);
        MUST(ncclCommDestroy(replacement.next) == ncclSuccess);
    }
    cf_barrier(self->worker);
    MUST(self->rank == 0 || ncclCommAbort(replacement.comm) == ncclSuccess);
}

/* --- other orders ------------------------------------------------------------------------------------------------- */

/* An abort before ncclGroupEnd, behind a call that onehop executes: NCCL has nothing of the group. */
static void abort_between(const struct rank *self)
{
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, true);
    pthread_t aborting;
    turn_warm_up(self, comm);
    if (self->rank == 0) {
        MUST(ncclGroupStart() == ncclSuccess);
        MUST(turn_sum(self, comm, self->ones, self->to, SMALL) == ncclSuccess);
    }
    turn_start(abort_late, comm, &aborting);
    pthread_join(aborting, NULL);
    cf_barrier(self->worker);
    usleep(TELL_US); /* freed memory is taken meanwhile */
    MUST(self->rank == 1 || ncclGroupEnd() == ncclInternalError);
}

/* A group of a call that NCCL launches late and a call that onehop executes. Rank 0 aborts the first meanwhile. */
static void cut(const struct rank *self)
{
    ncclComm_t first = turn_make(self, 0, 2, self->rank, false), second = turn_make(self, 1, 2, self->rank, false);
    pthread_t aborting;
    turn_warm_up(self, first);
    turn_warm_up(self, second);
    MUST(ncclGroupStart() == ncclSuccess);
    reduce(self, first);
    turn_sum(self, second, self->ones, self->other, SMALL);
    if (self->rank == 0) {
        turn_start(abort_late, first, &aborting);
    }
    ncclResult_t result = ncclGroupEnd();
    while (result == ncclInProgress) {
        usleep(100);
        result = turn_state_of(second);
    }
    if (self->rank == 0) {
        pthread_join(aborting, NULL);
    }
    cf_barrier(self->worker);
    MUST(self->rank == 0 || ncclCommAbort(first) == ncclSuccess);
    MUST(result != ncclSuccess || turn_state_of(second) != ncclSuccess || turn_gives(self, self->other, SMALL, 2));
    cf_barrier(self->worker);
    MUST(ncclCommAbort(second) == ncclSuccess);
}

/*
 * Processes: rank 1 leaves the second communicator out (ONEHOP_COMMS), so that it falls back in the group. Rank 0
 * aborts it while NCCL launches its call.
 */
static void fallen(const struct rank *self)
{
    setenv("SIMNODE_NCCL_BACKGROUND", self->rank == 0 ? "1" : "0", 1);
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, false);
    setenv("ONEHOP_COMMS", self->rank == 1 ? "size=^2" : "", 1);
    ncclComm_t second = turn_make(self, 1, 2, self->rank, false);
    pthread_t aborting;
    turn_warm_up(self, comm);
    MUST(ncclGroupStart() == ncclSuccess);
    turn_sum(self, second, self->ones, self->other, SMALL);
    usleep(TELL_US); /* by then rank 0 knows that it falls back */
    turn_sum(self, comm, self->ones, self->to, SMALL);
    if (self->rank == 0) {
        turn_start(abort_late, second, &aborting);
    }
    const ncclResult_t ended = ncclGroupEnd();
    if (self->rank == 0 && ended != ncclInternalError) { /* it fell back before the group, and its end is its own */
        turn_await(comm, ended);
        MUST(turn_gives(self, self->to, SMALL, 2));
    }
    MUST(self->rank == 0 || ended == ncclSuccess);
    cf_barrier(self->worker);
    MUST(ncclCommAbort(comm) == ncclSuccess && (self->rank == 0 || ncclCommAbort(second) == ncclSuccess));
}

/* A group of a first call, and of a call on a communicator that is revoked. */
static void refuse(const struct rank *self)
{
    ncclComm_t revoked = turn_make(self, 0, 2, self->rank, true), comm = turn_make(self, 1, 2, self->rank, true);
    turn_warm_up(self, revoked);
    MUST(ncclCommRevoke(revoked, 0) == ncclSuccess);
    cf_barrier(self->worker);
    MUST(ncclGroupStart() == ncclSuccess);
    MUST(turn_sum(self, comm, self->ones, self->to, SMALL) == ncclSuccess);
    MUST(turn_sum(self, revoked, self->ones, self->other, SMALL) == ncclInvalidUsage);
    MUST(ncclGroupEnd() == ncclInvalidUsage);
    cf_barrier(self->worker);
    MUST(turn_is_filled(self->to, SMALL, 0));
    MUST(turn_sum(self, comm, self->ones, self->to, SMALL) == ncclSuccess && turn_gives(self, self->to, SMALL, 2));
    MUST(ncclCommDestroy(revoked) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess);
}

/* ONEHOP_CHECK_CALLS: a group with calls of two communicators, those of one differ; then a call of the other. */
static void differ(const struct rank *self)
{
    ncclComm_t wrong = turn_make(self, 0, 2, self->rank, true), right = turn_make(self, 1, 2, self->rank, true);
    void *tens = turn_filled(self, 10);
    turn_warm_up(self, wrong);
    turn_warm_up(self, right);
    usleep(self->rank * LATE_US); /* so that rank 1 finds the difference */
    MUST(ncclGroupStart() == ncclSuccess);
    MUST(turn_sum(self, wrong, self->ones, self->to, self->rank ? SMALL - 1 : SMALL) == ncclSuccess);
    MUST(turn_sum(self, right, self->ones, self->other, SMALL) == ncclSuccess);
    MUST(ncclGroupEnd() == (self->rank ? ncclInvalidUsage : ncclSuccess));
    cf_barrier(self->worker);
    MUST(ncclCommAbort(wrong) == ncclSuccess);
    if (turn_sum(self, right, tens, self->other, SMALL) == ncclSuccess) { /* then its result is right, or none comes */
        MUST(!turn_ends_within(self, LATE_US) || turn_is_filled(self->other, SMALL, 20));
    }
    cf_barrier(self->worker);
    MUST(ncclCommAbort(right) == ncclSuccess);
}

const struct turn_case turn_abort_cases[] = {
    {"abort", abort_in_finalize, THREADS(2)}, {"suspend", abort_in_suspend, THREADS(2)},
    {"quit", abort_in_destroy, THREADS(2)},   {"asked", abort_while_asked, THREADS(2)},
    {"orphan", abort_parent, THREADS(2)},     {"replace", abort_in_launch, THREADS(2)},
    {"abandon", abandon, THREADS(2)},         {"revoke", abort_in_revoke, THREADS(2)},
    {"group", abort_in_group, THREADS(2)},    {"beside", abort_beside, THREADS(2)},
    {"between", abort_between, THREADS(2)},   {"cut", cut, THREADS(2)},
    {"fallen", fallen, PROCESSES(2)},         {"refuse", refuse, THREADS(2)},
    {"differ", differ, THREADS(2)},           {.name = NULL},
};
