/* SPDX-License-Identifier: MIT */
/*
 * sim_turns_threads.c - the cases of sim_turns of which the ranks are threads
 *
 *   differ     ONEHOP_CHECK_CALLS: a group with calls of two communicators, those of one differ; then a call of the
 *              other
 *   reject     a non-blocking communicator: ncclCommFinalize while NCCL launches a call, which NCCL rejects, and
 *              calls
 *   shared     a group with large calls of two communicators on one stream; of the first a rank is through, and
 *              destroys it, while the second waits for a rank that comes late
 *   unknown    as shared; the second communicator was suspended, so that onehop knows it no more
 *   late       the same without a group: the first communicator is non-blocking, and is not polled in between
 *   send       a group of a send on a non-blocking communicator of three ranks, and a call on another; while NCCL
 *              launches the send, the third rank, which it does not need, ends the communicator
 *   abort      a thread waits in ncclCommFinalize for a call that the other rank does not make, and another aborts
 *   abandon    the same with a call that NCCL executes
 *   suspend    as abort in ncclCommSuspend
 *   revoke     a thread waits in ncclCommRevoke for a graph with calls that NCCL executes, and another aborts
 *   cut        a thread waits in ncclGroupEnd until NCCL launches a call, and another aborts: onehop loses no call
 *   group      a thread waits in ncclGroupEnd for the first call of the other rank, and another aborts; or one
 *              revokes
 *   between    as group before ncclGroupEnd, behind a call that onehop executes
 *   beside     as group with calls of another communicator in the group, which the other rank may have executed
 *   refuse     a group of a first call, and of a call on a communicator that is revoked
 *   root       the root of a broadcast that NCCL executes is through, and ends the communicator, before the other
 *              rank calls; alone and in a group
 *   shrink     ranks 0 and 1 of three shrink to a communicator, twice, and then ranks 0 and 2
 *   moved      a thread makes both ranks in a group, blocking and not, with one variable for all handles, as bindings
 *              do that return a communicator by value: NCCL sets the variable at once
 *   stale      a thread reads an old state of a non-blocking communicator, while the program makes a call that NCCL
 *              launches in the background, and a split
 *   partner    a group of large calls on two non-blocking communicators, which NCCL launches in the background; the
 *              program polls one of them, ends the stream, and makes a call on the other one
 *   watched    threads ask for the state of a non-blocking communicator all the time; the program ends each stream
 *              when it knows that NCCL has launched the call
 *   create     a group makes a non-blocking communicator, and calls on another, which NCCL and onehop execute
 *   grown      a thread makes three ranks of a communicator that grows, ends it in a group, and the process ends
 *   self       the first group of a communicator: an allreduce, and on one rank a send to itself
 *   queue      a rank comes late to the first call, which NCCL executes on the other one: it does not wait for that
 *              rank
 *   strange    a call without a communicator, which NCCL rejects, and a call on a communicator that was suspended
 */
#include "test/e2e/sim_turns.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIDDLE 30000 /* above ONEHOP_MAX_BYTES, as LARGE; NCCL has room for it before a rank has called */
#define BLOCKS 40000 /* more memory than a communicator has */
#define BLOCK_BYTES 64
#define ASK_US 5000
#define ROUNDS 4
#define WATCHDOGS 4
#define WATCHED_CALLS 200
#define CALL_US 1000000 /* of the host, for a call that waits for nothing */

static void *differ(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    ncclComm_t wrong = turn_make(0, 2, self.rank, true), right = turn_make(1, 2, self.rank, true);
    void *ones = turn_filled(&self, 1), *tens = turn_filled(&self, 10), *to = turn_filled(&self, 0),
         *other = turn_filled(&self, 0);
    turn_warm_up(&self, wrong);
    turn_warm_up(&self, right);
    usleep(self.rank * LATE_US); /* so that rank 1 finds the difference */
    MUST(ncclGroupStart() == ncclSuccess);
    MUST(turn_sum(&self, wrong, ones, to, self.rank ? SMALL - 1 : SMALL) == ncclSuccess);
    MUST(turn_sum(&self, right, ones, other, SMALL) == ncclSuccess);
    MUST(ncclGroupEnd() == (self.rank ? ncclInvalidUsage : ncclSuccess));
    pthread_barrier_wait(&turn_barrier);
    MUST(ncclCommAbort(wrong) == ncclSuccess);
    if (turn_sum(&self, right, tens, other, SMALL) == ncclSuccess) { /* then its result is right, or none comes */
        MUST(!turn_ends_within(&self, LATE_US) || turn_is_filled(other, SMALL, 20));
    }
    pthread_barrier_wait(&turn_barrier);
    return NULL;
}

static void *reject(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    ncclComm_t comm = turn_make(0, 2, self.rank, false);
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0);
    turn_warm_up(&self, comm);
    const ncclResult_t large = turn_sum(&self, comm, from, to, LARGE);
    if (self.rank == 0) {
        MUST(large == ncclInProgress && ncclCommFinalize(comm) == ncclInvalidArgument);
    }
    turn_await(comm, large);
    turn_await(comm, turn_sum(&self, comm, from, to, SMALL));
    MUST(turn_ends_within(&self, MOST_US) && turn_is_filled(to, LARGE, 2));
    pthread_barrier_wait(&turn_barrier);
    MUST(ncclCommDestroy(comm) == ncclSuccess);
    return NULL;
}

/* Ranks 0 and 1 have the first communicator, 0 and 2 the second. */
struct pair {
    ncclComm_t first, second;
    void *from, *to, *other;
};

static struct pair make_pair(const struct rank *self, int number, bool blocking)
{
    struct pair pair = {NULL, NULL, turn_filled(self, 1), turn_filled(self, 0), turn_filled(self, 0)};
    if (self->rank < 2) {
        pair.first = turn_make(2 * number, 2, self->rank, blocking);
    }
    turn_warm_up(self, pair.first);
    if (self->rank != 1) {
        pair.second = turn_make(2 * number + 1, 2, self->rank / 2, true);
    }
    turn_warm_up(self, pair.second);
    return pair;
}

/* Rank 1 is through with the first communicator, or (false) the call of the second is before it. */
static bool leave(const struct rank *self, struct pair *pair)
{
    turn_await(pair->first, turn_sum(self, pair->first, pair->from, pair->to, LARGE));
    if (!turn_ends_within(self, 4 * LATE_US)) {
        return false;
    }
    turn_await(pair->first, ncclCommFinalize(pair->first));
    MUST(ncclCommDestroy(pair->first) == ncclSuccess);
    pair->first = NULL;
    return true;
}

static void end_pair(const struct rank *self, struct pair *pair)
{
    MUST(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    MUST(!pair->first || turn_is_filled(pair->to, LARGE, 2));
    MUST(!pair->first || ncclCommDestroy(pair->first) == ncclSuccess);
    MUST(!pair->second || ncclCommDestroy(pair->second) == ncclSuccess);
    pthread_barrier_wait(&turn_barrier);
}

static void *shared(void *argument)
{
    static atomic_bool has_left;
    const struct rank self = turn_begin((int)(intptr_t)argument);
    for (int number = 0; number < PAIRS && !has_left; number++) {
        struct pair pair = make_pair(&self, number, true);
        if (turn_suspends) {
            turn_suspend_and_resume(pair.second);
        }
        if (self.rank == 0) {
            MUST(ncclGroupStart() == ncclSuccess);
            MUST(turn_sum(&self, pair.first, pair.from, pair.to, LARGE) == ncclSuccess);
            MUST(turn_sum(&self, pair.second, pair.from, pair.other, LARGE) == ncclSuccess);
            MUST(ncclGroupEnd() == ncclSuccess);
        } else if (self.rank == 1) {
            has_left = leave(&self, &pair);
        }
        pthread_barrier_wait(&turn_barrier);
        usleep(TELL_US);
        MUST(self.rank != 0 || turn_state_of(pair.first) == ncclSuccess);
        pthread_barrier_wait(&turn_barrier);
        if (self.rank == 2) {
            MUST(turn_sum(&self, pair.second, pair.from, pair.other, LARGE) == ncclSuccess);
        }
        end_pair(&self, &pair);
    }
    MUST(has_left);
    return NULL;
}

static void *late(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    struct pair pair = make_pair(&self, 0, false);
    ncclResult_t first = ncclSuccess;
    if (self.rank == 0) {
        first = turn_sum(&self, pair.first, pair.from, pair.to, LARGE);
        MUST(first == ncclInProgress);
        usleep(LATE_US); /* NCCL has launched it */
        MUST(turn_sum(&self, pair.second, pair.from, pair.other, SMALL) == ncclSuccess);
        turn_await(pair.first, first);
    } else if (self.rank == 1) {
        MUST(leave(&self, &pair));
    }
    pthread_barrier_wait(&turn_barrier);
    usleep(TELL_US);
    MUST(self.rank != 0 || turn_state_of(pair.first) == ncclSuccess);
    pthread_barrier_wait(&turn_barrier);
    if (self.rank == 2) {
        MUST(turn_sum(&self, pair.second, pair.from, pair.other, SMALL) == ncclSuccess);
    }
    end_pair(&self, &pair);
    return NULL;
}

static void *pass(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    ncclComm_t all = turn_make(0, 3, self.rank, false), two = self.rank < 2 ? turn_make(1, 2, self.rank, false) : NULL;
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0), *other = turn_filled(&self, 0);
    const cudaStream_t stream = (cudaStream_t)self.stream;
    turn_warm_up(&self, all);
    turn_warm_up(&self, two);
    if (self.rank < 2) {
        MUST(ncclGroupStart() == ncclSuccess);
        const ncclResult_t res = self.rank == 0 ? ncclSend(from, SMALL, ncclFloat32, 1, all, stream)
                                                : ncclRecv(to, SMALL, ncclFloat32, 0, all, stream);
        MUST(res == ncclSuccess || res == ncclInProgress);
        turn_sum(&self, two, from, other, SMALL); /* an error is the group's */
        const ncclResult_t ended = ncclGroupEnd();
        MUST(ended == ncclSuccess || ended == ncclInProgress);
        turn_await(all, turn_state_of(all));
        turn_await(two, turn_state_of(two));
        MUST(turn_ends_within(&self, MOST_US) && turn_is_filled(other, SMALL, 2) &&
             turn_is_filled(to, SMALL, (float)self.rank));
    } else {
        turn_await(all, ncclCommFinalize(all));
        MUST(ncclCommDestroy(all) == ncclSuccess);
    }
    pthread_barrier_wait(&turn_barrier);
    return NULL;
}

static void *abort_late(void *comm)
{
    usleep(LATE_US);
    MUST(ncclCommAbort(comm) == ncclSuccess);
    return NULL;
}

/* Rank 0 has made a call that waits for rank 1. It finalizes, and another thread aborts. */
static void *abort_in_finalize(const struct rank *self, ncclComm_t comm, ncclResult_t expected)
{
    pthread_t other;
    if (self->rank == 0) {
        MUST(pthread_create(&other, NULL, abort_late, comm) == 0);
        MUST(ncclCommFinalize(comm) == expected);
        pthread_join(other, NULL);
    }
    pthread_barrier_wait(&turn_barrier);
    MUST(self->rank == 0 || ncclCommAbort(comm) == ncclSuccess);
    return NULL;
}

static void *abort_waiting(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    ncclComm_t comm = turn_make(0, 2, self.rank, true);
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0);
    turn_warm_up(&self, comm);
    MUST(self.rank == 1 || turn_sum(&self, comm, from, to, SMALL) == ncclSuccess);
    return abort_in_finalize(&self, comm, ncclInternalError);
}

/* onehop has no memory of the communicator, and frees it at once. */
static void *abandon(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    ncclComm_t comm = turn_make(0, 2, self.rank, true);
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0);
    MUST(self.rank == 1 ||
         ncclReduce(from, to, SMALL, ncclFloat32, ncclSum, 0, comm, (cudaStream_t)self.stream) == ncclSuccess);
    return abort_in_finalize(&self, comm, ncclSuccess);
}

/* onehop waits for the call, as it does not with stock NCCL. */
static void *abort_in_suspend(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    ncclResult_t (*const suspend)(ncclComm_t, int) =
        (ncclResult_t(*)(ncclComm_t, int))dlsym(RTLD_DEFAULT, "ncclCommSuspend");
    ncclComm_t comm = turn_make(0, 2, self.rank, true);
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0);
    pthread_t other;
    turn_warm_up(&self, comm);
    if (self.rank == 0) {
        MUST(turn_sum(&self, comm, from, to, SMALL) == ncclSuccess);
        MUST(pthread_create(&other, NULL, abort_late, comm) == 0);
        MUST(suspend(comm, 1) == ncclInternalError);
        pthread_join(other, NULL);
    }
    pthread_barrier_wait(&turn_barrier);
    MUST(self.rank == 0 || ncclCommAbort(comm) == ncclSuccess);
    return NULL;
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

static void *abort_in_revoke(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    ncclComm_t comm = turn_make(0, 2, self.rank, true);
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0);
    pthread_t aborts, destroys;
    CUgraph graph;
    if (self.rank == 0) {
        MUST(cuStreamBeginCapture(self.stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
        MUST(ncclReduce(from, to, SMALL, ncclFloat32, ncclSum, 0, comm, (cudaStream_t)self.stream) == ncclSuccess);
        MUST(cuStreamEndCapture(self.stream, &graph) == CUDA_SUCCESS);
        MUST(pthread_create(&aborts, NULL, abort_late, comm) == 0);
        MUST(pthread_create(&destroys, NULL, destroy_late, graph) == 0);
        MUST(ncclCommRevoke(comm, 0) == ncclSuccess);
        pthread_join(aborts, NULL);
        pthread_join(destroys, NULL);
        for (int i = 0; i < BLOCKS * BLOCK_BYTES; i++) {
            MUST(blocks[i / BLOCK_BYTES][i % BLOCK_BYTES] == 0xff);
        }
    }
    pthread_barrier_wait(&turn_barrier);
    MUST(self.rank == 0 || ncclCommAbort(comm) == ncclSuccess);
    return NULL;
}

static ncclResult_t broadcast(const struct rank *self, ncclComm_t comm, const void *from, void *to)
{
    return ncclBroadcast(from, to, MIDDLE, ncclFloat32, 0, comm, (cudaStream_t)self->stream);
}

static void leave_as_root(const struct rank *self, bool aborts, bool groups)
{
    ncclComm_t comm = turn_make(2 * aborts + groups, 2, self->rank, true);
    void *from = turn_filled(self, (float)(1 - self->rank)), *to = turn_filled(self, 0);
    turn_warm_up(self, comm);
    if (self->rank == 0) {
        MUST(broadcast(self, comm, from, to) == ncclSuccess && turn_ends_within(self, MOST_US));
        MUST((aborts ? ncclCommAbort(comm) : ncclCommDestroy(comm)) == ncclSuccess);
    }
    pthread_barrier_wait(&turn_barrier);
    usleep(TELL_US);
    if (self->rank == 1) {
        MUST(!groups || ncclGroupStart() == ncclSuccess);
        MUST(broadcast(self, comm, from, to) == ncclSuccess);
        MUST(!groups || ncclGroupEnd() == ncclSuccess);
        MUST(turn_ends_within(self, MOST_US) && turn_is_filled(to, MIDDLE, 1) && turn_state_of(comm) == ncclSuccess);
        MUST(ncclCommDestroy(comm) == ncclSuccess);
    }
    pthread_barrier_wait(&turn_barrier);
}

static void *root(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    for (int way = 0; way < 4; way++) {
        leave_as_root(&self, way / 2, way % 2);
    }
    return NULL;
}

static void shrink_to(const struct rank *self, ncclComm_t all, int excluded)
{
    ncclComm_t two;
    void *from = turn_filled(self, 1), *to = turn_filled(self, 0);
    MUST(ncclCommShrink(all, &excluded, 1, &two, NULL, NCCL_SHRINK_DEFAULT) == ncclSuccess);
    MUST(turn_sum(self, two, from, to, SMALL) == ncclSuccess && turn_ends_within(self, MOST_US) &&
         turn_is_filled(to, SMALL, 2));
    MUST(ncclCommDestroy(two) == ncclSuccess);
}

static void *shrink(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    ncclComm_t all = turn_make(0, 3, self.rank, true);
    const int excluded[] = {2, 2, 1};
    for (int i = 0; i < 3; i++) {
        if (self.rank != excluded[i]) {
            shrink_to(&self, all, excluded[i]);
        }
    }
    pthread_barrier_wait(&turn_barrier);
    MUST(ncclCommDestroy(all) == ncclSuccess);
    return NULL;
}

static void *revoke_late(void *comm)
{
    usleep(LATE_US);
    MUST(ncclCommRevoke(comm, 0) == ncclSuccess);
    return NULL;
}

/* Rank 1 makes no call. */
static void *abort_in_group(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    for (int way = 0; way < 2; way++) {
        ncclComm_t comm = turn_make(way, 2, self.rank, true);
        void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0);
        pthread_t other;
        if (self.rank == 0) {
            MUST(pthread_create(&other, NULL, way == 0 ? abort_late : revoke_late, comm) == 0);
            MUST(ncclGroupStart() == ncclSuccess);
            MUST(turn_sum(&self, comm, from, to, SMALL) == ncclSuccess);
            MUST(ncclGroupEnd() == ncclInternalError);
            pthread_join(other, NULL);
        }
        pthread_barrier_wait(&turn_barrier);
        MUST((self.rank == 0 && way == 0) || ncclCommAbort(comm) == ncclSuccess);
    }
    return NULL;
}

/* NCCL has nothing of the group. Freed memory is taken before its end. */
static void *abort_between(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    ncclComm_t comm = turn_make(0, 2, self.rank, true);
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0);
    pthread_t aborts;
    turn_warm_up(&self, comm);
    if (self.rank == 0) {
        MUST(ncclGroupStart() == ncclSuccess && turn_sum(&self, comm, from, to, SMALL) == ncclSuccess);
    }
    MUST(pthread_create(&aborts, NULL, abort_late, comm) == 0 && pthread_join(aborts, NULL) == 0);
    pthread_barrier_wait(&turn_barrier);
    usleep(TELL_US);
    MUST(self.rank == 1 || ncclGroupEnd() == ncclInternalError);
    return NULL;
}

static void *beside(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    ncclComm_t comm = turn_make(0, 2, self.rank, true), other = turn_make(1, 2, self.rank, true);
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0), *result = turn_filled(&self, 0);
    pthread_t aborts;
    turn_warm_up(&self, other);
    if (self.rank == 0) {
        MUST(pthread_create(&aborts, NULL, abort_late, comm) == 0);
        MUST(ncclGroupStart() == ncclSuccess);
        MUST(turn_sum(&self, other, from, result, SMALL) == ncclSuccess);
        MUST(turn_sum(&self, comm, from, to, SMALL) == ncclSuccess);
        MUST(turn_sum(&self, other, from, result, SMALL) == ncclSuccess);
        MUST(ncclGroupEnd() == ncclInternalError && turn_is_filled(result, SMALL, 0));
        pthread_join(aborts, NULL);
    }
    pthread_barrier_wait(&turn_barrier);
    usleep(TELL_US);
    MUST(turn_state_of(other) != ncclSuccess && turn_sum(&self, other, from, result, SMALL) != ncclSuccess);
    MUST(ncclCommAbort(other) == ncclSuccess && (self.rank == 0 || ncclCommAbort(comm) == ncclSuccess));
    return NULL;
}

static void *refuse(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    ncclComm_t revoked = turn_make(0, 2, self.rank, true), comm = turn_make(1, 2, self.rank, true);
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0), *other = turn_filled(&self, 0);
    turn_warm_up(&self, revoked);
    MUST(ncclCommRevoke(revoked, 0) == ncclSuccess);
    pthread_barrier_wait(&turn_barrier);
    MUST(ncclGroupStart() == ncclSuccess);
    MUST(turn_sum(&self, comm, from, to, SMALL) == ncclSuccess);
    MUST(turn_sum(&self, revoked, from, other, SMALL) == ncclInvalidUsage);
    MUST(ncclGroupEnd() == ncclInvalidUsage);
    pthread_barrier_wait(&turn_barrier);
    MUST(turn_is_filled(to, SMALL, 0));
    MUST(turn_sum(&self, comm, from, to, SMALL) == ncclSuccess && turn_ends_within(&self, MOST_US) &&
         turn_is_filled(to, SMALL, 2));
    MUST(ncclCommDestroy(revoked) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess);
    return NULL;
}

static void *strange(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    ncclComm_t comm = turn_make(0, 2, self.rank, true);
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0);
    MUST(turn_sum(&self, NULL, from, to, SMALL) == ncclInvalidArgument);
    for (int i = 0; i < 2; i++) {
        MUST(turn_sum(&self, comm, from, to, SMALL) == ncclSuccess);
        MUST(turn_ends_within(&self, MOST_US) && turn_is_filled(to, SMALL, 2));
        turn_suspend_and_resume(i == 0 ? comm : NULL);
    }
    MUST(ncclCommDestroy(comm) == ncclSuccess);
    return NULL;
}

/* Ranks of one thread. */
static void *moved(void *unused)
{
    struct rank self[2];
    CUcontext context[2];
    void *from[2], *to[2];
    for (int i = 0; i < 2; i++) {
        self[i] = turn_begin(i);
        MUST(cuCtxGetCurrent(&context[i]) == CUDA_SUCCESS);
        from[i] = turn_filled(&self[i], 1);
        to[i] = turn_filled(&self[i], 0);
    }
    for (int blocking = 0; blocking < 2; blocking++) {
        ncclComm_t comm[2], one;
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = blocking;
        MUST(ncclGroupStart() == ncclSuccess);
        for (int i = 0; i < 2; i++) {
            MUST(cuCtxSetCurrent(context[i]) == CUDA_SUCCESS);
            const ncclResult_t made = ncclCommInitRankConfig(&one, 2, turn_ids[blocking], i, &config);
            MUST(made == ncclSuccess || made == ncclInProgress);
            comm[i] = one;
        }
        one = (ncclComm_t)1; /* as what the stack holds by then */
        turn_await(comm[0], ncclGroupEnd());
        turn_await(comm[1], turn_state_of(comm[1]));
        for (int call = 0; call <= FIRST_CALLS; call++) {
            MUST(ncclGroupStart() == ncclSuccess);
            for (int i = 0; i < 2; i++) {
                turn_sum(&self[i], comm[i], from[i], to[i], SMALL); /* an error is the group's */
            }
            turn_await(comm[0], ncclGroupEnd());
            turn_await(comm[1], turn_state_of(comm[1]));
            for (int i = 0; i < 2; i++) {
                MUST(turn_ends_within(&self[i], MOST_US) && turn_is_filled(to[i], SMALL, 2));
            }
            usleep(1000);
        }
        MUST(ncclCommDestroy(comm[0]) == ncclSuccess && ncclCommDestroy(comm[1]) == ncclSuccess);
    }
    (void)unused;
    return NULL;
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
    MUST(pthread_create(&thread, NULL, ask, comm) == 0);
    usleep(ASK_US);
    return thread;
}

static void *stale(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    struct rank other = self;
    ncclComm_t comm = turn_make(0, 2, self.rank, false), split = NULL;
    void *from = turn_filled(&self, 1), *between = turn_filled(&self, 0), *to = turn_filled(&self, 0);
    pthread_t thread;
    MUST(cuStreamCreate(&other.stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    turn_warm_up(&self, comm);
    for (int i = 0; i < 4; i++) {
        MUST(cuMemsetD32Async((CUdeviceptr)between, 0, LARGE, self.stream) == CUDA_SUCCESS);
        MUST(cuStreamSynchronize(self.stream) == CUDA_SUCCESS);
        pthread_barrier_wait(&turn_barrier);
        usleep(self.rank * LATE_US);
        thread = watchdog(comm);
        turn_await(comm, turn_sum(&self, comm, from, between, LARGE));
        turn_await(comm, turn_sum(&other, comm, between, to, SMALL)); /* NCCL orders the calls */
        MUST(turn_ends_within(&other, MOST_US) && turn_is_filled(to, SMALL, 4));
        pthread_join(thread, NULL);
    }
    thread = watchdog(comm);
    turn_await(comm, ncclCommSplit(comm, 0, self.rank, &split, NULL));
    turn_await(comm, turn_state_of(comm));
    pthread_join(thread, NULL);
    turn_await(split, turn_state_of(split));
    turn_warm_up(&self, split);
    MUST(ncclCommDestroy(split) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess);
    return NULL;
}

static void *partner(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    ncclComm_t comm[2] = {turn_make(0, 2, self.rank, false), turn_make(1, 2, self.rank, false)};
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0), *other = turn_filled(&self, 0);
    turn_warm_up(&self, comm[0]);
    turn_warm_up(&self, comm[1]);
    for (int i = 0; i < 4; i++) {
        struct rank brief = self;
        MUST(cuStreamCreate(&brief.stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
        MUST(ncclGroupStart() == ncclSuccess);
        turn_sum(&brief, comm[0], from, to, LARGE); /* an error is the group's */
        turn_sum(&brief, comm[1], from, other, LARGE);
        turn_await(comm[i % 2], ncclGroupEnd());
        MUST(cuStreamSynchronize(brief.stream) == CUDA_SUCCESS && cuStreamDestroy(brief.stream) == CUDA_SUCCESS);
        usleep(TELL_US / 10); /* NCCL sets one state after the other */
        MUST(turn_is_filled(to, LARGE, 2) && turn_is_filled(other, LARGE, 2));
        turn_await(comm[1 - i % 2], turn_sum(&self, comm[1 - i % 2], to, other, SMALL));
        MUST(turn_ends_within(&self, MOST_US) && turn_is_filled(other, SMALL, 4));
    }
    MUST(ncclCommDestroy(comm[0]) == ncclSuccess && ncclCommDestroy(comm[1]) == ncclSuccess);
    return NULL;
}

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* With one queue a set-up waits there for the call that NCCL executes. */
static void *late_to_first(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0);
    uint64_t least_us = UINT64_MAX; /* of all rounds: the machine may be busy */
    for (int i = 0; i < ROUNDS; i++) {
        ncclComm_t comm = turn_make(i, 2, self.rank, true);
        pthread_barrier_wait(&turn_barrier);
        usleep(self.rank * LATE_US);
        const uint64_t start_us = now_us();
        MUST(turn_sum(&self, comm, from, to, SMALL) == ncclSuccess);
        const uint64_t us = now_us() - start_us;
        least_us = us < least_us ? us : least_us;
        MUST(turn_ends_within(&self, MOST_US) && turn_is_filled(to, SMALL, 2));
        turn_warm_up(&self, comm);
        MUST(ncclCommDestroy(comm) == ncclSuccess);
    }
    MUST(least_us < CALL_US);
    return NULL;
}

static void *create(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    ncclComm_t comm = turn_make(0, 2, self.rank, false), made;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0), *other = turn_filled(&self, 0);
    turn_warm_up(&self, comm);
    MUST(ncclGroupStart() == ncclSuccess);
    const ncclResult_t begun = ncclCommInitRankConfig(&made, 2, turn_ids[1], self.rank, &config);
    MUST(begun == ncclSuccess || begun == ncclInProgress);
    turn_sum(&self, comm, from, to, LARGE); /* an error is the group's */
    turn_sum(&self, comm, from, other, SMALL);
    turn_await(comm, ncclGroupEnd());
    turn_await(comm, turn_state_of(comm));
    turn_await(made, turn_state_of(made));
    MUST(turn_ends_within(&self, MOST_US) && turn_is_filled(to, LARGE, 2) && turn_is_filled(other, SMALL, 2));
    turn_warm_up(&self, made);
    MUST(ncclCommDestroy(made) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess);
    return NULL;
}

static void *grown(void *unused)
{
    ncclResult_t (*const grow)(ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *) =
        (ncclResult_t(*)(ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *))dlsym(
            RTLD_DEFAULT, "ncclCommGrow");
    CUcontext context[3];
    ncclComm_t comm[2], all[3];
    for (int i = 0; i < 3; i++) {
        turn_begin(i);
        MUST(cuCtxGetCurrent(&context[i]) == CUDA_SUCCESS);
    }
    MUST(ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < 2; i++) {
        MUST(cuCtxSetCurrent(context[i]) == CUDA_SUCCESS);
        MUST(ncclCommInitRank(&comm[i], 2, turn_ids[0], i) == ncclSuccess);
    }
    MUST(ncclGroupEnd() == ncclSuccess && ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < 3; i++) {
        MUST(cuCtxSetCurrent(context[i]) == CUDA_SUCCESS);
        MUST(grow(i < 2 ? comm[i] : NULL, 3, &turn_ids[1], i < 2 ? -1 : 2, &all[i], NULL) == ncclSuccess);
    }
    MUST(ncclGroupEnd() == ncclSuccess && ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < 5; i++) {
        MUST(ncclCommDestroy(i < 3 ? all[i] : comm[i - 3]) == ncclSuccess);
    }
    MUST(ncclGroupEnd() == ncclSuccess);
    return unused;
}

static void *send_to_itself(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    for (int i = 0; i < 2; i++) {
        ncclComm_t comm = turn_make(i, 2, self.rank, true);
        void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0), *other = turn_filled(&self, 0);
        MUST(ncclGroupStart() == ncclSuccess);
        MUST(turn_sum(&self, comm, from, to, SMALL) == ncclSuccess);
        if (self.rank == i) {
            MUST(ncclSend(from, SMALL, ncclFloat32, i, comm, (cudaStream_t)self.stream) == ncclSuccess);
            MUST(ncclRecv(other, SMALL, ncclFloat32, i, comm, (cudaStream_t)self.stream) == ncclSuccess);
        }
        MUST(ncclGroupEnd() == ncclSuccess);
        MUST(turn_ends_within(&self, MOST_US) && turn_is_filled(to, SMALL, 2) &&
             turn_is_filled(other, SMALL, self.rank == i));
        MUST(ncclCommDestroy(comm) == ncclSuccess);
    }
    return NULL;
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

static void *watched(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    struct watch watch = {.comm = turn_make(0, 2, self.rank, false)};
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0);
    pthread_t thread[WATCHDOGS];
    turn_warm_up(&self, watch.comm);
    for (int i = 0; i < WATCHDOGS; i++) {
        MUST(pthread_create(&thread[i], NULL, keep_asking, &watch) == 0);
    }
    for (int i = 0; i < WATCHED_CALLS; i++) {
        struct rank brief = self;
        MUST(cuStreamCreate(&brief.stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
        ncclResult_t result = turn_sum(&brief, watch.comm, from, to, LARGE);
        while (result == ncclInProgress) {
            result = turn_state_of(watch.comm);
        }
        MUST(result == ncclSuccess && cuStreamDestroy(brief.stream) == CUDA_SUCCESS);
    }
    turn_await(watch.comm, turn_sum(&self, watch.comm, from, to, SMALL));
    MUST(turn_ends_within(&self, MOST_US) && turn_is_filled(to, LARGE, 2));
    watch.ends = true;
    for (int i = 0; i < WATCHDOGS; i++) {
        pthread_join(thread[i], NULL);
    }
    MUST(turn_state_of(watch.comm) == ncclSuccess && ncclCommDestroy(watch.comm) == ncclSuccess);
    return NULL;
}

/* A group of a call that NCCL launches late and a call that onehop executes. Rank 0 aborts the first meanwhile. */
static void *abort_beside(void *argument)
{
    const struct rank self = turn_begin((int)(intptr_t)argument);
    ncclComm_t first = turn_make(0, 2, self.rank, false), second = turn_make(1, 2, self.rank, false);
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0), *other = turn_filled(&self, 0);
    pthread_t aborting;
    turn_warm_up(&self, first);
    turn_warm_up(&self, second);
    MUST(ncclGroupStart() == ncclSuccess);
    ncclReduce(from, to, SMALL, ncclFloat32, ncclSum, 0, first, (cudaStream_t)self.stream);
    turn_sum(&self, second, from, other, SMALL);
    MUST(self.rank != 0 || pthread_create(&aborting, NULL, abort_late, first) == 0);
    ncclResult_t result = ncclGroupEnd();
    while (result == ncclInProgress) {
        usleep(100);
        result = turn_state_of(second);
    }
    if (self.rank == 0) {
        pthread_join(aborting, NULL);
    }
    pthread_barrier_wait(&turn_barrier);
    MUST(self.rank == 0 || ncclCommAbort(first) == ncclSuccess);
    MUST(result != ncclSuccess || turn_state_of(second) != ncclSuccess ||
         (turn_ends_within(&self, MOST_US) && turn_is_filled(other, SMALL, 2)));
    pthread_barrier_wait(&turn_barrier);
    MUST(ncclCommAbort(second) == ncclSuccess);
    return NULL;
}

const struct turn_case turn_thread_cases[] = {
    {"differ", 2, differ},
    {"reject", 2, reject},
    {"shared", 3, shared},
    {"unknown", 3, shared},
    {"late", 3, late},
    {"send", 3, pass},
    {"abort", 2, abort_waiting},
    {"abandon", 2, abandon},
    {"suspend", 2, abort_in_suspend},
    {"revoke", 2, abort_in_revoke},
    {"cut", 2, abort_beside},
    {"group", 2, abort_in_group},
    {"between", 2, abort_between},
    {"beside", 2, beside},
    {"refuse", 2, refuse},
    {"root", 2, root},
    {"shrink", 3, shrink},
    {"moved", 1, moved},
    {"stale", 2, stale},
    {"partner", 2, partner},
    {"watched", 2, watched},
    {"create", 2, create},
    {"grown", 1, grown},
    {"self", 2, send_to_itself},
    {"queue", 2, late_to_first},
    {"strange", 2, strange},
    {NULL, 0, NULL},
};
