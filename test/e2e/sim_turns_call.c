/* SPDX-License-Identifier: MIT */
/* sim_turns_call.c - cases of sim_turns: orders of calls, and of what makes communicators, with all ranks to the end */
#include "test/e2e/sim_turns.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define JOBS 2
#define JOB_RANKS 3
#define ASK_US 5000
#define ROUNDS 4
#define WATCHDOGS 4
#define WATCHED_CALLS 200
#define CALL_US 1000000 /* of the host, for a call that waits for nothing */

static void destroy_both(ncclComm_t one, ncclComm_t two)
{
    MUST(ncclCommDestroy(one) == ncclSuccess && ncclCommDestroy(two) == ncclSuccess);
}

/* --- how communicators come about --------------------------------------------------------------------------------- */

/*
 * Two jobs. Rank 1 of each alone has onehop. Ranks 0 and 1 grow to three, of an id that onehop does not know, and are
 * split from these. The two ranks with onehop are no communicator.
 */
static void stranger(const struct rank *self)
{
    const int job = self->rank / JOB_RANKS, rank = self->rank % JOB_RANKS;
    const ncclUniqueId *id = &self->worker->board->id[2 * job];
    ncclComm_t two = NULL, three = NULL, split = NULL;
    setenv("ONEHOP_DISABLE", rank == 1 ? "0" : "1", 1);
    MUST(rank == 2 || ncclCommInitRank(&two, 2, id[0], rank) == ncclSuccess);
    MUST(nccl.CommGrow(two, JOB_RANKS, rank == 1 ? NULL : &id[1], rank == 2 ? 2 : -1, &three, NULL) == ncclSuccess);
    cf_barrier(self->worker);
    usleep(rank == 1 ? 0 : LATE_US);
    MUST(ncclCommSplit(three, rank == 2 ? NCCL_SPLIT_NOCOLOR : 0, rank == 0 ? job : 1 - job, &split, NULL) ==
         ncclSuccess);
    if (rank < 2) {
        void *from = turn_filled(self, (float)(1 + rank + 10 * job));
        MUST(turn_sum(self, split, from, self->to, SMALL) == ncclSuccess);
        MUST(turn_gives(self, self->to, SMALL, (float)(3 + 20 * job)));
        destroy_both(split, two);
    }
    MUST(ncclCommDestroy(three) == ncclSuccess);
}

static void shrink_to(const struct rank *self, ncclComm_t all, int excluded)
{
    ncclComm_t two;
    turn_clear(self);
    MUST(ncclCommShrink(all, &excluded, 1, &two, NULL, NCCL_SHRINK_DEFAULT) == ncclSuccess);
    MUST(turn_sum(self, two, self->ones, self->to, SMALL) == ncclSuccess && turn_gives(self, self->to, SMALL, 2));
    MUST(ncclCommDestroy(two) == ncclSuccess);
}

/* Ranks 0 and 1 of three shrink to a communicator, twice, and then ranks 0 and 2. */
static void shrink(const struct rank *self)
{
    ncclComm_t all = turn_make(self, 0, 3, self->rank, true);
    const int excluded[] = {2, 2, 1};
    for (int i = 0; i < 3; i++) {
        if (self->rank != excluded[i]) {
            shrink_to(self, all, excluded[i]);
        }
    }
    cf_barrier(self->worker);
    MUST(ncclCommDestroy(all) == ncclSuccess);
}

/*
 * A thread makes both ranks in a group, blocking and not, with one variable for all handles, as bindings do that return
 * a communicator by value: NCCL sets the variable at once.
 */
static void moved(const struct rank *self)
{
    for (int blocking = 0; blocking < 2; blocking++) {
        ncclComm_t comm[2], one;
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = blocking;
        MUST(ncclGroupStart() == ncclSuccess);
        for (int i = 0; i < 2; i++) {
            cf_use(self->worker, i);
            turn_clear(&self[i]);
            const ncclResult_t made = ncclCommInitRankConfig(&one, 2, self->worker->board->id[blocking], i, &config);
            MUST(made == ncclSuccess || made == ncclInProgress);
            comm[i] = one;
        }
        one = (ncclComm_t)1; /* as what the stack holds by then */
        turn_end_group(comm[0], comm[1]);
        for (int call = 0; call <= FIRST_CALLS; call++) {
            MUST(ncclGroupStart() == ncclSuccess);
            for (int i = 0; i < 2; i++) {
                turn_sum(&self[i], comm[i], self[i].ones, self[i].to, SMALL); /* an error is the group's */
            }
            turn_end_group(comm[0], comm[1]);
            for (int i = 0; i < 2; i++) {
                MUST(turn_gives(&self[i], self[i].to, SMALL, 2));
            }
            usleep(1000);
        }
        destroy_both(comm[0], comm[1]);
    }
}

/* A group makes a non-blocking communicator, and calls on another, which NCCL and onehop execute. */
static void create(const struct rank *self)
{
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, false), made;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    turn_warm_up(self, comm);
    MUST(ncclGroupStart() == ncclSuccess);
    const ncclResult_t begun = ncclCommInitRankConfig(&made, 2, self->worker->board->id[1], self->rank, &config);
    MUST(begun == ncclSuccess || begun == ncclInProgress);
    turn_sum(self, comm, self->ones, self->to, LARGE); /* an error is the group's */
    turn_sum(self, comm, self->ones, self->other, SMALL);
    turn_end_group(comm, made);
    MUST(turn_gives(self, self->to, LARGE, 2) && turn_is_filled(self->other, SMALL, 2));
    turn_warm_up(self, made);
    destroy_both(made, comm);
}

/* A thread makes three ranks of a communicator that grows, ends it in a group, and the process ends. */
static void grown(const struct rank *self)
{
    ncclComm_t comm[2], all[3];
    turn_make_group(self, 2, 0, 2, comm);
    MUST(ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < 3; i++) {
        cf_use(self->worker, i);
        MUST(nccl.CommGrow(i < 2 ? comm[i] : NULL, 3, &self->worker->board->id[1], i < 2 ? -1 : 2, &all[i], NULL) ==
             ncclSuccess);
    }
    MUST(ncclGroupEnd() == ncclSuccess && ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < 5; i++) {
        MUST(ncclCommDestroy(i < 3 ? all[i] : comm[i - 3]) == ncclSuccess);
    }
    MUST(ncclGroupEnd() == ncclSuccess);
}

/* --- first calls, and calls that onehop does not know ------------------------------------------------------------- */

/* The first group of a communicator: an allreduce, and on one rank a send to itself. */
static void send_to_itself(const struct rank *self)
{
    const cudaStream_t stream = (cudaStream_t)self->stream;
    for (int i = 0; i < 2; i++) {
        ncclComm_t comm = turn_make(self, i, 2, self->rank, true);
        turn_clear(self);
        MUST(ncclGroupStart() == ncclSuccess);
        MUST(turn_sum(self, comm, self->ones, self->to, SMALL) == ncclSuccess);
        if (self->rank == i) {
            MUST(ncclSend(self->ones, SMALL, ncclFloat32, i, comm, stream) == ncclSuccess);
            MUST(ncclRecv(self->other, SMALL, ncclFloat32, i, comm, stream) == ncclSuccess);
        }
        MUST(ncclGroupEnd() == ncclSuccess);
        MUST(turn_gives(self, self->to, SMALL, 2) && turn_is_filled(self->other, SMALL, self->rank == i));
        MUST(ncclCommDestroy(comm) == ncclSuccess);
    }
}

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/*
 * A rank comes late to the first call, which NCCL executes on the other one: it does not wait for that rank. With one
 * queue a set-up waits there for the call that NCCL executes.
 */
static void late_to_first(const struct rank *self)
{
    uint64_t least_us = UINT64_MAX; /* of all rounds: the machine may be busy */
    for (int i = 0; i < ROUNDS; i++) {
        ncclComm_t comm = turn_make(self, i, 2, self->rank, true);
        turn_clear(self);
        cf_barrier(self->worker);
        usleep(self->rank * LATE_US);
        const uint64_t start_us = now_us();
        MUST(turn_sum(self, comm, self->ones, self->to, SMALL) == ncclSuccess);
        const uint64_t us = now_us() - start_us;
        least_us = us < least_us ? us : least_us;
        MUST(turn_gives(self, self->to, SMALL, 2));
        turn_warm_up(self, comm);
        MUST(ncclCommDestroy(comm) == ncclSuccess);
    }
    MUST(least_us < CALL_US);
}

/* A call without a communicator, which NCCL rejects, and a call on a communicator that was suspended. */
static void strange(const struct rank *self)
{
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, true);
    MUST(turn_sum(self, NULL, self->ones, self->to, SMALL) == ncclInvalidArgument);
    MUST(turn_sum(self, comm, self->ones, self->to, SMALL) == ncclSuccess && turn_gives(self, self->to, SMALL, 2));
    turn_suspend_and_resume(comm);
    MUST(turn_sum(self, comm, self->ones, self->other, SMALL) == ncclSuccess);
    MUST(turn_gives(self, self->other, SMALL, 2));
    MUST(ncclCommDestroy(comm) == ncclSuccess);
}

/* A group of calls that NCCL executes on two communicators, and ncclCommSuspend of the first in it. */
static void suspend_in_group(const struct rank *self)
{
    const cudaStream_t stream = (cudaStream_t)self->stream;
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, true), other = turn_make(self, 1, 2, self->rank, true);
    MUST(ncclGroupStart() == ncclSuccess);
    MUST(ncclReduce(self->ones, self->to, SMALL, ncclFloat32, ncclSum, 0, comm, stream) == ncclSuccess);
    MUST(ncclReduce(self->ones, self->other, SMALL, ncclFloat32, ncclSum, 0, other, stream) == ncclSuccess);
    MUST(nccl.CommSuspend(comm, 1) == ncclInvalidUsage);
    MUST(ncclGroupEnd() == ncclSuccess && turn_ends_within(self, MOST_US));
    MUST(self->rank == 1 || (turn_is_filled(self->to, SMALL, 2) && turn_is_filled(self->other, SMALL, 2)));
    destroy_both(comm, other);
}

/* --- calls that NCCL launches in the background ------------------------------------------------------------------- */

/*
 * Processes: a group of a call on a communicator that NCCL serves, and launches in the background, late on one rank,
 * and a call that onehop executes, on one stream. The former was suspended; or rank 1 leaves it out (ONEHOP_COMMS), so
 * that it falls back in the group.
 */
static void behind(const struct rank *self)
{
    setenv("SIMNODE_NCCL_BACKGROUND", self->rank == 0 ? "1" : "0", 1);
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, false);
    if (self->rank == 1 && !self->of->suspends) {
        setenv("ONEHOP_COMMS", "size=^2", 1); /* of the second alone */
    }
    ncclComm_t second = turn_make(self, 1, 2, self->rank, false);
    if (self->of->suspends) {
        turn_suspend_and_resume(second);
    }
    turn_warm_up(self, comm);
    for (int i = 0; i < 4; i++) {
        MUST(ncclGroupStart() == ncclSuccess);
        turn_sum(self, second, self->ones, self->other, SMALL);
        usleep(i == 0 ? TELL_US : 0); /* by then rank 0 knows that it falls back */
        turn_sum(self, comm, self->ones, self->to, SMALL);
        turn_end_group(comm, second);
        MUST(turn_gives(self, self->to, SMALL, 2) && turn_is_filled(self->other, SMALL, 2));
    }
    cf_barrier(self->worker);
    destroy_both(second, comm);
}

/* Calls and ncclCommFinalize while NCCL launches a call, which NCCL rejects, and calls. */
static void reject(const struct rank *self)
{
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, false);
    turn_warm_up(self, comm);
    const ncclResult_t large = turn_sum(self, comm, self->ones, self->to, LARGE);
    if (self->rank == 0) {
        MUST(large == ncclInProgress && ncclCommFinalize(comm) == ncclInvalidArgument);
        MUST(turn_sum(self, comm, self->ones, self->other, SMALL) == ncclInvalidArgument);
        MUST(ncclGroupStart() == ncclSuccess);
        MUST(turn_sum(self, comm, self->ones, self->other, SMALL) == ncclInvalidArgument);
        MUST(ncclGroupEnd() == ncclInvalidArgument);
    }
    turn_await(comm, large);
    turn_await(comm, turn_sum(self, comm, self->ones, self->to, SMALL));
    MUST(turn_gives(self, self->to, LARGE, 2));
    cf_barrier(self->worker);
    MUST(ncclCommDestroy(comm) == ncclSuccess);
}

static void *ask(void *comm)
{
    turn_state_of(comm);
    return NULL;
}

/* A thread that asks now. */
static pthread_t watchdog(ncclComm_t comm)
{
    pthread_t thread;
    turn_start(ask, comm, &thread);
    usleep(ASK_US);
    return thread;
}

/* The rank with another stream. */
static struct rank with_stream(const struct rank *self)
{
    struct rank other = *self;
    MUST(cuStreamCreate(&other.stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return other;
}

/* A thread reads an old state of a communicator, while the program makes a call, and a split. */
static void stale(const struct rank *self)
{
    const struct rank other = with_stream(self);
    ncclComm_t comm = turn_make(self, 0, 2, self->rank, false), split = NULL;
    pthread_t thread;
    turn_warm_up(self, comm);
    for (int i = 0; i < 4; i++) {
        turn_clear(self);
        cf_barrier(self->worker);
        usleep(self->rank * LATE_US);
        thread = watchdog(comm);
        turn_await(comm, turn_sum(self, comm, self->ones, self->other, LARGE));
        turn_await(comm, turn_sum(&other, comm, self->other, self->to, SMALL)); /* NCCL orders the calls */
        MUST(turn_gives(&other, self->to, SMALL, 4));
        pthread_join(thread, NULL);
    }
    thread = watchdog(comm);
    turn_await(comm, ncclCommSplit(comm, 0, self->rank, &split, NULL));
    turn_await(comm, turn_state_of(comm));
    pthread_join(thread, NULL);
    turn_await(split, turn_state_of(split));
    turn_warm_up(self, split);
    destroy_both(split, comm);
}

/* A group of large calls on two communicators; the program polls one, ends the stream, and calls on the other. */
static void partner(const struct rank *self)
{
    ncclComm_t comm[2] = {turn_make(self, 0, 2, self->rank, false), turn_make(self, 1, 2, self->rank, false)};
    turn_warm_up(self, comm[0]);
    turn_warm_up(self, comm[1]);
    for (int i = 0; i < 4; i++) {
        const struct rank brief = with_stream(self);
        MUST(ncclGroupStart() == ncclSuccess);
        turn_sum(&brief, comm[0], self->ones, self->to, LARGE); /* an error is the group's */
        turn_sum(&brief, comm[1], self->ones, self->other, LARGE);
        turn_await(comm[i % 2], ncclGroupEnd());
        MUST(cuStreamSynchronize(brief.stream) == CUDA_SUCCESS && cuStreamDestroy(brief.stream) == CUDA_SUCCESS);
        usleep(TELL_US / 10); /* NCCL sets one state after the other */
        MUST(turn_is_filled(self->to, LARGE, 2) && turn_is_filled(self->other, LARGE, 2));
        turn_await(comm[1 - i % 2], turn_sum(self, comm[1 - i % 2], self->to, self->other, SMALL));
        MUST(turn_gives(self, self->other, SMALL, 4));
    }
    destroy_both(comm[0], comm[1]);
}

struct watch {
    ncclComm_t comm;
    atomic_bool ends;
};

static void *keep_asking(void *watch)
{
    while (!((struct watch *)watch)->ends) {
        turn_state_of(((struct watch *)watch)->comm);
    }
    return NULL;
}

/* Threads ask for the state all the time; the program ends each stream when NCCL has launched the call. */
static void watched(const struct rank *self)
{
    struct watch watch = {.comm = turn_make(self, 0, 2, self->rank, false)};
    pthread_t thread[WATCHDOGS];
    turn_warm_up(self, watch.comm);
    for (int i = 0; i < WATCHDOGS; i++) {
        turn_start(keep_asking, &watch, &thread[i]);
    }
    for (int i = 0; i < WATCHED_CALLS; i++) {
        const struct rank brief = with_stream(self);
        ncclResult_t result = turn_sum(&brief, watch.comm, self->ones, self->to, LARGE);
        while (result == ncclInProgress) {
            result = turn_state_of(watch.comm);
        }
        MUST(result == ncclSuccess && cuStreamDestroy(brief.stream) == CUDA_SUCCESS);
    }
    turn_await(watch.comm, turn_sum(self, watch.comm, self->ones, self->to, SMALL));
    MUST(turn_gives(self, self->to, LARGE, 2));
    watch.ends = true;
    for (int i = 0; i < WATCHDOGS; i++) {
        pthread_join(thread[i], NULL);
    }
    MUST(turn_state_of(watch.comm) == ncclSuccess && ncclCommDestroy(watch.comm) == ncclSuccess);
}

const struct turn_case turn_call_cases[] = {
    {"stranger", stranger, PROCESSES(JOBS *JOB_RANKS)},
    {"shrink", shrink, THREADS(3)},
    {"moved", moved, ONE_THREAD(2)},
    {"create", create, THREADS(2)},
    {"grown", grown, ONE_THREAD(3)},
    {"self", send_to_itself, THREADS(2)},
    {"queue", late_to_first, THREADS(2)},
    {"strange", strange, THREADS(2)},
    {"pause", suspend_in_group, THREADS(2)},
    {"behind", behind, PROCESSES(2), .suspends = true},
    {"fallback", behind, PROCESSES(2)},
    {"reject", reject, THREADS(2)},
    {"stale", stale, THREADS(2)},
    {"partner", partner, THREADS(2)},
    {"watched", watched, THREADS(2)},
    {.name = NULL},
};
