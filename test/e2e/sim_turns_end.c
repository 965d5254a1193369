/* SPDX-License-Identifier: MIT */
/* sim_turns_end.c - cases of sim_turns: a rank ends a communicator, or its process, before another rank is through */
#include "test/e2e/sim_turns.h"

#include <stdatomic.h>

#define MIDDLE 30000 /* above ONEHOP_MAX_BYTES, as LARGE; NCCL has room for it before a rank has called */

/* --- processes: as with NCCL, what ends the communicator waits for its calls -------------------------------------- */

/* All calls are captured. One rank replays its graph, and ends all, while the other comes late. */
static void replay(const struct rank *self)
{
    CUgraph graph;
    CUgraphExec executable;
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, true);
    MUST(cuStreamBeginCapture(self->stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    MUST(turn_sum(self, comm, self->ones, self->to, SMALL) == ncclSuccess);
    MUST(cuStreamEndCapture(self->stream, &graph) == CUDA_SUCCESS);
    MUST(cuGraphInstantiateWithFlags(&executable, graph, 0) == CUDA_SUCCESS);
    cf_barrier(self->worker);
    usleep(self->rank * LATE_US);
    MUST(cuGraphLaunch(executable, self->stream) == CUDA_SUCCESS);
    MUST(cuGraphExecDestroy(executable) == CUDA_SUCCESS && cuGraphDestroy(graph) == CUDA_SUCCESS);
    MUST(self->rank == 0 || turn_gives(self, self->to, SMALL, 2));
    MUST(ncclCommDestroy(comm) == ncclSuccess);
}

/* The same with eager calls on a non-blocking communicator, which is destroyed without ncclCommFinalize. */
static void pending(const struct rank *self)
{
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, false);
    turn_warm_up(self, comm);
    usleep(self->rank * LATE_US);
    turn_await(comm, turn_sum(self, comm, self->ones, self->to, SMALL));
    MUST(self->rank == 0 || turn_gives(self, self->to, SMALL, 2));
    MUST(ncclCommDestroy(comm) == ncclSuccess);
}

/* The same with communicators of two ranks each, which end in a group. */
static void end_in_group(const struct rank *self)
{
    const bool is_late = self->rank > 0;
    ncclComm_t comm[2];
    turn_make_group(self, 2, 0, 4, comm);
    for (int call = 0; call < 4; call++) {
        if (call == 3) { /* all ranks are through with the others */
            cf_barrier(self->worker);
            usleep(is_late * LATE_US);
        }
        MUST(ncclGroupStart() == ncclSuccess);
        for (int i = 0; i < 2; i++) {
            MUST(turn_sum(&self[i], comm[i], self[i].ones, self[i].to, SMALL) == ncclSuccess);
        }
        MUST(ncclGroupEnd() == ncclSuccess);
        for (int i = 0; i < 2 && (call < 3 || is_late); i++) {
            MUST(turn_gives(&self[i], self[i].to, SMALL, 4));
        }
    }
    MUST(ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < 2; i++) {
        MUST((self->of->finalizes ? ncclCommFinalize(comm[i]) : ncclCommDestroy(comm[i])) == ncclSuccess);
    }
    MUST(ncclGroupEnd() == ncclSuccess);
    for (int i = 0; i < 2 && self->of->finalizes; i++) {
        MUST(ncclCommDestroy(comm[i]) == ncclSuccess);
    }
}

/* --- a rank leaves, while a call of another communicator waits on the stream -------------------------------------- */

/* Ranks 0 and 1 have the first communicator, 0 and 2 the second. */
struct pair {
    ncclComm_t first, second;
};

static struct pair make_pair(const struct rank *self, int number, bool blocking)
{
    struct pair pair = {NULL, NULL};
    turn_clear(self);
    if (self->rank < 2) {
        pair.first = turn_make(self, 2 * number, 2, self->rank, blocking);
    }
    turn_warm_up(self, pair.first);
    if (self->rank != 1) {
        pair.second = turn_make(self, 2 * number + 1, 2, self->rank / 2, true);
    }
    turn_warm_up(self, pair.second);
    return pair;
}

/* Rank 1 is through with the first communicator, or (false) the call of the second is before it. */
static bool leave(const struct rank *self, struct pair *pair)
{
    turn_await(pair->first, turn_sum(self, pair->first, self->ones, self->to, LARGE));
    if (!turn_ends_within(self, 4 * LATE_US)) {
        return false;
    }
    turn_await(pair->first, ncclCommFinalize(pair->first));
    MUST(ncclCommDestroy(pair->first) == ncclSuccess);
    pair->first = NULL;
    return true;
}

/* Rank 0 gets no error. Rank 2 comes, and all end. */
static void end_pair(const struct rank *self, struct pair *pair, size_t count)
{
    cf_barrier(self->worker);
    usleep(TELL_US);
    MUST(self->rank != 0 || turn_state_of(pair->first) == ncclSuccess);
    cf_barrier(self->worker);
    if (self->rank == 2) {
        MUST(turn_sum(self, pair->second, self->ones, self->other, count) == ncclSuccess);
    }
    MUST(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    MUST(!pair->first || turn_is_filled(self->to, LARGE, 2));
    MUST(!pair->first || ncclCommDestroy(pair->first) == ncclSuccess);
    MUST(!pair->second || ncclCommDestroy(pair->second) == ncclSuccess);
    cf_barrier(self->worker);
}

/* Large calls of both communicators in a group. The second may have been suspended. */
static void share(const struct rank *self)
{
    static atomic_bool has_left;
    for (int number = 0; number < PAIRS && !has_left; number++) {
        struct pair pair = make_pair(self, number, true);
        if (self->of->suspends && pair.second) {
            turn_suspend_and_resume(pair.second);
        }
        if (self->rank == 0) {
            MUST(ncclGroupStart() == ncclSuccess);
            MUST(turn_sum(self, pair.first, self->ones, self->to, LARGE) == ncclSuccess);
            MUST(turn_sum(self, pair.second, self->ones, self->other, LARGE) == ncclSuccess);
            MUST(ncclGroupEnd() == ncclSuccess);
        } else if (self->rank == 1) {
            has_left = leave(self, &pair);
        }
        end_pair(self, &pair, LARGE);
    }
    MUST(has_left);
}

/* No group: the first communicator is non-blocking, and is not polled in between. */
static void late(const struct rank *self)
{
    struct pair pair = make_pair(self, 0, false);
    if (self->rank == 0) {
        const ncclResult_t first = turn_sum(self, pair.first, self->ones, self->to, LARGE);
        MUST(first == ncclInProgress);
        usleep(LATE_US); /* NCCL has launched it */
        MUST(turn_sum(self, pair.second, self->ones, self->other, SMALL) == ncclSuccess);
        turn_await(pair.first, first);
    } else if (self->rank == 1) {
        MUST(leave(self, &pair));
    }
    end_pair(self, &pair, SMALL);
}

/* --- a rank leaves that a call does not need ---------------------------------------------------------------------- */

/*
 * A group of a send on a non-blocking communicator of three ranks, and a call on another. The third rank ends the
 * communicator while NCCL launches the send.
 */
static void pass(const struct rank *self)
{
    const cudaStream_t stream = (cudaStream_t)self->stream;
    ncclComm_t all = turn_make(self, 0, 3, self->rank, false), two = NULL;
    if (self->rank < 2) {
        two = turn_make(self, 1, 2, self->rank, false);
    }
    turn_warm_up(self, all);
    turn_warm_up(self, two);
    if (self->rank < 2) {
        MUST(ncclGroupStart() == ncclSuccess);
        const ncclResult_t res = self->rank == 0 ? ncclSend(self->ones, SMALL, ncclFloat32, 1, all, stream)
                                                 : ncclRecv(self->to, SMALL, ncclFloat32, 0, all, stream);
        MUST(res == ncclSuccess || res == ncclInProgress);
        turn_sum(self, two, self->ones, self->other, SMALL); /* an error is the group's */
        turn_end_group(all, two);
        MUST(turn_gives(self, self->other, SMALL, 2) && turn_is_filled(self->to, SMALL, (float)self->rank));
    } else {
        turn_await(all, ncclCommFinalize(all));
    }
    MUST(ncclCommDestroy(all) == ncclSuccess && (!two || ncclCommDestroy(two) == ncclSuccess));
}

static ncclResult_t broadcast(const struct rank *self, ncclComm_t comm)
{
    const void *from = self->rank == 0 ? self->ones : self->other;
    return ncclBroadcast(from, self->to, MIDDLE, ncclFloat32, 0, comm, (cudaStream_t)self->stream);
}

/* The root of a broadcast that NCCL executes ends the communicator before the other rank calls; also in a group. */
static void root(const struct rank *self)
{
    for (int way = 0; way < 4; way++) {
        const bool aborts = way / 2, groups = way % 2;
        ncclComm_t comm = turn_make(self, way, 2, self->rank, true);
        turn_clear(self);
        turn_warm_up(self, comm);
        if (self->rank == 0) {
            MUST(broadcast(self, comm) == ncclSuccess && turn_ends_within(self, MOST_US));
            MUST((aborts ? ncclCommAbort(comm) : ncclCommDestroy(comm)) == ncclSuccess);
        }
        cf_barrier(self->worker);
        usleep(TELL_US);
        if (self->rank == 1) {
            MUST(!groups || ncclGroupStart() == ncclSuccess);
            MUST(broadcast(self, comm) == ncclSuccess);
            MUST(!groups || ncclGroupEnd() == ncclSuccess);
            MUST(turn_gives(self, self->to, MIDDLE, 1) && turn_state_of(comm) == ncclSuccess);
            MUST(ncclCommDestroy(comm) == ncclSuccess);
        }
        cf_barrier(self->worker);
    }
}

/* A group of calls that onehop and NCCL execute on a non-blocking communicator, and of its ncclCommFinalize. */
static void last(const struct rank *self)
{
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, false);
    turn_warm_up(self, comm);
    MUST(ncclGroupStart() == ncclSuccess);
    turn_sum(self, comm, self->ones, self->to, SMALL);
    ncclReduce(self->ones, self->other, SMALL, ncclFloat32, ncclSum, 0, comm, (cudaStream_t)self->stream);
    ncclCommFinalize(comm);
    turn_end_group(comm, comm);
    MUST(turn_gives(self, self->to, SMALL, 2) && ncclCommDestroy(comm) == ncclSuccess);
}

const struct turn_case turn_end_cases[] = {
    {"replay", replay, PROCESSES(2)},
    {"pending", pending, PROCESSES(2)},
    {"destroy", end_in_group, .layout = {.nranks = 4, .local = 2}},
    {"finalize", end_in_group, .layout = {.nranks = 4, .local = 2}, .finalizes = true},
    {"shared", share, THREADS(3)},
    {"unknown", share, THREADS(3), .suspends = true},
    {"late", late, THREADS(3)},
    {"send", pass, THREADS(3)},
    {"root", root, THREADS(2)},
    {"last", last, THREADS(2)},
    {.name = NULL},
};
