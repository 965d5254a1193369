/* SPDX-License-Identifier: MIT */
/*
 * sim_turns.c - programs of a few calls, in orders that a random program does not make
 *
 *   sim_turns CASE
 *
 *   replay     two processes; all calls are captured. One replays its graph, destroys graph and communicator, and
 *              exits, while the other comes late. As with NCCL, ncclCommDestroy waits for the replay
 *   pending    the same with eager calls on a non-blocking communicator, which is destroyed without ncclCommFinalize
 *   destroy    two processes of two ranks; one ends its communicators in a group behind calls, and exits, while the
 *              other comes late. As with NCCL, the group's end waits for the calls
 *   finalize   the same, finalized
 *   behind     two processes: a group of a call on a communicator that was suspended, which NCCL launches in the
 *              background, late on one rank, and a call that onehop executes, on one stream
 *   fallback   as behind; one rank leaves the first communicator out (ONEHOP_COMMS), so that it falls back in the
 *              group
 *   stranger   two jobs: one rank of each has onehop; it does not know the id of a communicator that grows, which is
 *              split. The two ranks are no communicator
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
 *
 * In the other cases ranks are threads. Prints a line and ends with status 1 if something is wrong.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SMALL 1000
#define LARGE 100000 /* the test sets ONEHOP_MAX_BYTES below */
#define PAIRS 16     /* of communicators, until the first comes first in a group: their order is that of their names */
#define MIDDLE 30000 /* above that limit, too; NCCL has room for it before a rank has called */
#define BLOCKS 40000 /* more memory than a communicator has */
#define BLOCK_BYTES 64
#define FIRST_CALLS 20
#define LATE_US 300000
#define ASK_US 5000
#define ROUNDS 4
#define WATCHDOGS 4
#define WATCHED_CALLS 200
#define TELL_US 300000   /* by then a failure is told */
#define CALL_US 1000000  /* of the host, for a call that waits for nothing */
#define MOST_US 20000000 /* of a call that ends */

#define MUST(good_)                                                                                                    \
    do {                                                                                                               \
        if (!(good_)) {                                                                                                \
            printf("FAIL line %d: %s\n", __LINE__, #good_);                                                            \
            fflush(stdout);                                                                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static bool suspends; /* a communicator, so that onehop does not know it any more */
static pthread_barrier_t barrier;
static ncclUniqueId ids[2 * PAIRS];

/* A rank: its device is current, and has a stream. */
struct rank {
    int rank;
    CUstream stream;
};

static struct rank begin(int rank)
{
    struct rank self = {.rank = rank};
    CUdevice device;
    CUcontext context;
    MUST(cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, rank) == CUDA_SUCCESS);
    MUST(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS);
    MUST(cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return self;
}

static void *filled(const struct rank *self, float value)
{
    CUdeviceptr memory;
    unsigned word;
    memcpy(&word, &value, sizeof word);
    MUST(cuMemAlloc(&memory, LARGE * sizeof value) == CUDA_SUCCESS);
    MUST(cuMemsetD32Async(memory, word, LARGE, self->stream) == CUDA_SUCCESS);
    MUST(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    return (void *)memory;
}

static bool is_filled(const void *memory, size_t count, float value)
{
    static __thread float copy[LARGE];
    MUST(cuMemcpyDtoH(copy, (CUdeviceptr)memory, count * sizeof value) == CUDA_SUCCESS);
    size_t i = 0;
    while (i < count && copy[i] == value) {
        i++;
    }
    return i == count;
}

static ncclResult_t sum(const struct rank *self, ncclComm_t comm, const void *from, void *to, size_t count)
{
    return ncclAllReduce(from, to, count, ncclFloat32, ncclSum, comm, (cudaStream_t)self->stream);
}

static ncclResult_t state_of(ncclComm_t comm)
{
    ncclResult_t state;
    MUST(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    return state;
}

static void await(ncclComm_t comm, ncclResult_t result)
{
    while (result == ncclInProgress) {
        usleep(100);
        result = state_of(comm);
    }
    MUST(result == ncclSuccess);
}

static bool ends_within(const struct rank *self, int us)
{
    CUresult result;
    while ((result = cuStreamQuery(self->stream)) == CUDA_ERROR_NOT_READY && us > 0) {
        usleep(1000);
        us -= 1000;
    }
    return result == CUDA_SUCCESS;
}

static ncclComm_t make(int id, int nranks, int rank, bool blocking)
{
    ncclComm_t comm;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    config.commName = "of\nturns"; /* NCCL takes any name */
    const ncclResult_t result = ncclCommInitRankConfig(&comm, nranks, ids[id], rank, &config);
    await(comm, result);
    return comm;
}

/* Calls until onehop serves the communicator, also where it is non-blocking. */
static void warm_up(const struct rank *self, ncclComm_t comm)
{
    void *memory = filled(self, 0);
    for (int i = 0; comm && i < FIRST_CALLS; i++) {
        await(comm, sum(self, comm, memory, memory, SMALL));
        MUST(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
        usleep(1000);
    }
    pthread_barrier_wait(&barrier);
}

/* --- the cases ---------------------------------------------------------------------------------------------------- */

#define JOBS 2
#define JOB_RANKS 3

/* What processes share. */
struct board {
    ncclUniqueId id[JOBS][2];
    _Atomic int has_ids[JOBS], met, done;
};

static void wait_for(_Atomic int *counter, int number)
{
    while (*counter < number) {
        usleep(1000);
    }
}

/* Returns when so many processes have come here. */
static void meet(_Atomic int *counter, int number)
{
    ++*counter;
    wait_for(counter, number);
}

/* The ids of a job, from its process 0. */
static void share_ids(struct board *board, int job, int process)
{
    for (int i = 0; i < 2 && process == 0; i++) {
        MUST(ncclGetUniqueId(&board->id[job][i]) == ncclSuccess);
    }
    board->has_ids[job] += process == 0;
    wait_for(&board->has_ids[job], 1);
    memcpy(ids, board->id[job], sizeof board->id[job]);
}

static int replay(struct board *board, int rank)
{
    const struct rank self = begin(rank);
    CUgraph graph;
    CUgraphExec executable;
    share_ids(board, 0, rank);
    ncclComm_t comm = make(0, 2, rank, true);
    void *from = filled(&self, 1), *to = filled(&self, 0);
    MUST(cuStreamBeginCapture(self.stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    MUST(sum(&self, comm, from, to, SMALL) == ncclSuccess);
    MUST(cuStreamEndCapture(self.stream, &graph) == CUDA_SUCCESS);
    MUST(cuGraphInstantiateWithFlags(&executable, graph, 0) == CUDA_SUCCESS);
    meet(&board->met, 2);
    usleep(rank * LATE_US);
    MUST(cuGraphLaunch(executable, self.stream) == CUDA_SUCCESS);
    MUST(cuGraphExecDestroy(executable) == CUDA_SUCCESS && cuGraphDestroy(graph) == CUDA_SUCCESS);
    MUST(rank == 0 || (ends_within(&self, MOST_US) && is_filled(to, SMALL, 2)));
    MUST(ncclCommDestroy(comm) == ncclSuccess);
    return 0;
}

/* Of a communicator, by all ranks: onehop does not know it any more. */
static void suspend_and_resume(ncclComm_t comm)
{
    ncclResult_t (*const suspend)(ncclComm_t, int) =
        (ncclResult_t(*)(ncclComm_t, int))dlsym(RTLD_DEFAULT, "ncclCommSuspend");
    ncclResult_t (*const resume)(ncclComm_t) = (ncclResult_t(*)(ncclComm_t))dlsym(RTLD_DEFAULT, "ncclCommResume");
    MUST(!comm || (suspend(comm, 1) == ncclSuccess && resume(comm) == ncclSuccess));
}

static int behind(struct board *board, int rank)
{
    setenv("SIMNODE_NCCL_BACKGROUND", rank == 0 ? "1" : "0", 1);
    const struct rank self = begin(rank);
    share_ids(board, 0, rank);
    ncclComm_t comm = make(0, 2, rank, false);
    if (rank == 1 && !suspends) {
        setenv("ONEHOP_COMMS", "size=^2", 1); /* of the second alone */
    }
    ncclComm_t second = make(1, 2, rank, false);
    suspend_and_resume(suspends ? second : NULL);
    void *from = filled(&self, 1), *to = filled(&self, 0), *other = filled(&self, 0);
    for (int i = 0; i <= FIRST_CALLS; i++) {
        await(comm, sum(&self, comm, from, to, SMALL));
        MUST(ends_within(&self, MOST_US) && is_filled(to, SMALL, 2));
        usleep(1000);
    }
    for (int i = 0; i < 4; i++) {
        MUST(ncclGroupStart() == ncclSuccess);
        sum(&self, second, from, other, SMALL);
        usleep(i == 0 ? TELL_US : 0); /* by then rank 0 knows that it falls back */
        sum(&self, comm, from, to, SMALL);
        const ncclResult_t ended = ncclGroupEnd();
        MUST(ended == ncclSuccess || ended == ncclInProgress);
        await(comm, state_of(comm));
        await(second, state_of(second));
        MUST(ends_within(&self, MOST_US) && is_filled(to, SMALL, 2) && is_filled(other, SMALL, 2));
    }
    meet(&board->met, 2);
    MUST(ncclCommDestroy(second) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess);
    return 0;
}

static int pending(struct board *board, int rank)
{
    const struct rank self = begin(rank);
    share_ids(board, 0, rank);
    ncclComm_t comm = make(0, 2, rank, false);
    void *from = filled(&self, 1), *to = filled(&self, 0);
    for (int i = 0; i <= FIRST_CALLS; i++) {
        if (i == FIRST_CALLS) { /* all ranks are through with the others */
            meet(&board->met, 2);
            usleep(rank * LATE_US);
        }
        await(comm, sum(&self, comm, from, to, SMALL));
        MUST((i == FIRST_CALLS && rank == 0) || (ends_within(&self, MOST_US) && is_filled(to, SMALL, 2)));
        usleep(1000);
    }
    MUST(ncclCommDestroy(comm) == ncclSuccess);
    return 0;
}

/* Two ranks of one thread. */
static int end_in_group(struct board *board, int process, bool finalizes)
{
    struct rank self[2];
    CUcontext context[2];
    ncclComm_t comm[2];
    void *from[2], *to[2];
    for (int i = 0; i < 2; i++) {
        self[i] = begin(2 * process + i);
        MUST(cuCtxGetCurrent(&context[i]) == CUDA_SUCCESS);
        from[i] = filled(&self[i], 1);
        to[i] = filled(&self[i], 0);
    }
    share_ids(board, 0, process);
    MUST(ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < 2; i++) {
        MUST(cuCtxSetCurrent(context[i]) == CUDA_SUCCESS);
        MUST(ncclCommInitRank(&comm[i], 4, ids[0], self[i].rank) == ncclSuccess);
    }
    MUST(ncclGroupEnd() == ncclSuccess);
    for (int call = 0; call < 4; call++) {
        if (call == 3) { /* all ranks are through with the others */
            meet(&board->met, 2);
            usleep(process * LATE_US);
        }
        MUST(ncclGroupStart() == ncclSuccess);
        for (int i = 0; i < 2; i++) {
            MUST(sum(&self[i], comm[i], from[i], to[i], SMALL) == ncclSuccess);
        }
        MUST(ncclGroupEnd() == ncclSuccess);
        for (int i = 0; i < 2 && (call < 3 || process == 1); i++) {
            MUST(ends_within(&self[i], MOST_US) && is_filled(to[i], SMALL, 4));
        }
    }
    MUST(ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < 2; i++) {
        MUST((finalizes ? ncclCommFinalize(comm[i]) : ncclCommDestroy(comm[i])) == ncclSuccess);
    }
    MUST(ncclGroupEnd() == ncclSuccess);
    for (int i = 0; i < 2 && finalizes; i++) {
        MUST(ncclCommDestroy(comm[i]) == ncclSuccess);
    }
    return 0;
}

typedef ncclResult_t (*grow_fn)(ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *);

/* Rank 1 alone has onehop. Ranks 0 and 1 grow to three, and are split from these. */
static int stranger(struct board *board, int process)
{
    const int job = process / JOB_RANKS, rank = process % JOB_RANKS;
    const grow_fn grow = (grow_fn)dlsym(RTLD_DEFAULT, "ncclCommGrow");
    ncclComm_t two = NULL, three = NULL, split = NULL;
    setenv("ONEHOP_DISABLE", rank == 1 ? "0" : "1", 1);
    const struct rank self = begin(process);
    share_ids(board, job, rank);
    MUST(rank == 2 || ncclCommInitRank(&two, 2, ids[0], rank) == ncclSuccess);
    MUST(grow(two, JOB_RANKS, rank == 1 ? NULL : &ids[1], rank == 2 ? 2 : -1, &three, NULL) == ncclSuccess);
    meet(&board->met, JOBS * JOB_RANKS);
    usleep(rank == 1 ? 0 : LATE_US);
    MUST(ncclCommSplit(three, rank == 2 ? NCCL_SPLIT_NOCOLOR : 0, rank == 0 ? job : 1 - job, &split, NULL) ==
         ncclSuccess);
    if (rank < 2) {
        void *from = filled(&self, (float)(1 + rank + 10 * job)), *to = filled(&self, 0);
        MUST(sum(&self, split, from, to, SMALL) == ncclSuccess);
        MUST(ends_within(&self, MOST_US) && is_filled(to, SMALL, (float)(3 + 20 * job)));
    }
    meet(&board->done, JOBS * JOB_RANKS);
    return 0;
}

static int destroy(struct board *board, int process)
{
    return end_in_group(board, process, false);
}

static int finalize(struct board *board, int process)
{
    return end_in_group(board, process, true);
}

/* The first process that fails ends the others. */
static int run_processes(int count, int (*run)(struct board *board, int process))
{
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int failed = board == MAP_FAILED, status;
    pid_t pid[JOBS * JOB_RANKS];
    for (int i = 0; i < count && !failed; i++) {
        pid[i] = fork();
        if (pid[i] == 0) {
            exit(run(board, i));
        }
    }
    for (int i = 0; i < count; i++) {
        if (wait(&status) < 0 || status != 0) {
            for (int other = 0; other < count && !failed; other++) {
                kill(pid[other], SIGKILL);
            }
            failed = 1;
        }
    }
    return failed;
}

static void *differ(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    ncclComm_t wrong = make(0, 2, self.rank, true), right = make(1, 2, self.rank, true);
    void *ones = filled(&self, 1), *tens = filled(&self, 10), *to = filled(&self, 0), *other = filled(&self, 0);
    warm_up(&self, wrong);
    warm_up(&self, right);
    usleep(self.rank * LATE_US); /* so that rank 1 finds the difference */
    MUST(ncclGroupStart() == ncclSuccess);
    MUST(sum(&self, wrong, ones, to, self.rank ? SMALL - 1 : SMALL) == ncclSuccess);
    MUST(sum(&self, right, ones, other, SMALL) == ncclSuccess);
    MUST(ncclGroupEnd() == (self.rank ? ncclInvalidUsage : ncclSuccess));
    pthread_barrier_wait(&barrier);
    MUST(ncclCommAbort(wrong) == ncclSuccess);
    if (sum(&self, right, tens, other, SMALL) == ncclSuccess) { /* then its result is right, or none comes */
        MUST(!ends_within(&self, LATE_US) || is_filled(other, SMALL, 20));
    }
    pthread_barrier_wait(&barrier);
    return NULL;
}

static void *reject(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    ncclComm_t comm = make(0, 2, self.rank, false);
    void *from = filled(&self, 1), *to = filled(&self, 0);
    warm_up(&self, comm);
    const ncclResult_t large = sum(&self, comm, from, to, LARGE);
    if (self.rank == 0) {
        MUST(large == ncclInProgress && ncclCommFinalize(comm) == ncclInvalidArgument);
    }
    await(comm, large);
    await(comm, sum(&self, comm, from, to, SMALL));
    MUST(ends_within(&self, MOST_US) && is_filled(to, LARGE, 2));
    pthread_barrier_wait(&barrier);
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
    struct pair pair = {NULL, NULL, filled(self, 1), filled(self, 0), filled(self, 0)};
    if (self->rank < 2) {
        pair.first = make(2 * number, 2, self->rank, blocking);
    }
    warm_up(self, pair.first);
    if (self->rank != 1) {
        pair.second = make(2 * number + 1, 2, self->rank / 2, true);
    }
    warm_up(self, pair.second);
    return pair;
}

/* Rank 1 is through with the first communicator, or (false) the call of the second is before it. */
static bool leave(const struct rank *self, struct pair *pair)
{
    await(pair->first, sum(self, pair->first, pair->from, pair->to, LARGE));
    if (!ends_within(self, 4 * LATE_US)) {
        return false;
    }
    await(pair->first, ncclCommFinalize(pair->first));
    MUST(ncclCommDestroy(pair->first) == ncclSuccess);
    pair->first = NULL;
    return true;
}

static void end_pair(const struct rank *self, struct pair *pair)
{
    MUST(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    MUST(!pair->first || is_filled(pair->to, LARGE, 2));
    MUST(!pair->first || ncclCommDestroy(pair->first) == ncclSuccess);
    MUST(!pair->second || ncclCommDestroy(pair->second) == ncclSuccess);
    pthread_barrier_wait(&barrier);
}

static void *shared(void *argument)
{
    static atomic_bool has_left;
    const struct rank self = begin((int)(intptr_t)argument);
    for (int number = 0; number < PAIRS && !has_left; number++) {
        struct pair pair = make_pair(&self, number, true);
        if (suspends) {
            suspend_and_resume(pair.second);
        }
        if (self.rank == 0) {
            MUST(ncclGroupStart() == ncclSuccess);
            MUST(sum(&self, pair.first, pair.from, pair.to, LARGE) == ncclSuccess);
            MUST(sum(&self, pair.second, pair.from, pair.other, LARGE) == ncclSuccess);
            MUST(ncclGroupEnd() == ncclSuccess);
        } else if (self.rank == 1) {
            has_left = leave(&self, &pair);
        }
        pthread_barrier_wait(&barrier);
        usleep(TELL_US);
        MUST(self.rank != 0 || state_of(pair.first) == ncclSuccess);
        pthread_barrier_wait(&barrier);
        if (self.rank == 2) {
            MUST(sum(&self, pair.second, pair.from, pair.other, LARGE) == ncclSuccess);
        }
        end_pair(&self, &pair);
    }
    MUST(has_left);
    return NULL;
}

static void *late(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    struct pair pair = make_pair(&self, 0, false);
    ncclResult_t first = ncclSuccess;
    if (self.rank == 0) {
        first = sum(&self, pair.first, pair.from, pair.to, LARGE);
        MUST(first == ncclInProgress);
        usleep(LATE_US); /* NCCL has launched it */
        MUST(sum(&self, pair.second, pair.from, pair.other, SMALL) == ncclSuccess);
        await(pair.first, first);
    } else if (self.rank == 1) {
        MUST(leave(&self, &pair));
    }
    pthread_barrier_wait(&barrier);
    usleep(TELL_US);
    MUST(self.rank != 0 || state_of(pair.first) == ncclSuccess);
    pthread_barrier_wait(&barrier);
    if (self.rank == 2) {
        MUST(sum(&self, pair.second, pair.from, pair.other, SMALL) == ncclSuccess);
    }
    end_pair(&self, &pair);
    return NULL;
}

static void *pass(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    ncclComm_t all = make(0, 3, self.rank, false), two = self.rank < 2 ? make(1, 2, self.rank, false) : NULL;
    void *from = filled(&self, 1), *to = filled(&self, 0), *other = filled(&self, 0);
    const cudaStream_t stream = (cudaStream_t)self.stream;
    warm_up(&self, all);
    warm_up(&self, two);
    if (self.rank < 2) {
        MUST(ncclGroupStart() == ncclSuccess);
        const ncclResult_t res = self.rank == 0 ? ncclSend(from, SMALL, ncclFloat32, 1, all, stream)
                                                : ncclRecv(to, SMALL, ncclFloat32, 0, all, stream);
        MUST(res == ncclSuccess || res == ncclInProgress);
        sum(&self, two, from, other, SMALL); /* an error is the group's */
        const ncclResult_t ended = ncclGroupEnd();
        MUST(ended == ncclSuccess || ended == ncclInProgress);
        await(all, state_of(all));
        await(two, state_of(two));
        MUST(ends_within(&self, MOST_US) && is_filled(other, SMALL, 2) && is_filled(to, SMALL, (float)self.rank));
    } else {
        await(all, ncclCommFinalize(all));
        MUST(ncclCommDestroy(all) == ncclSuccess);
    }
    pthread_barrier_wait(&barrier);
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
    pthread_barrier_wait(&barrier);
    MUST(self->rank == 0 || ncclCommAbort(comm) == ncclSuccess);
    return NULL;
}

static void *abort_waiting(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    ncclComm_t comm = make(0, 2, self.rank, true);
    void *from = filled(&self, 1), *to = filled(&self, 0);
    warm_up(&self, comm);
    MUST(self.rank == 1 || sum(&self, comm, from, to, SMALL) == ncclSuccess);
    return abort_in_finalize(&self, comm, ncclInternalError);
}

/* onehop has no memory of the communicator, and frees it at once. */
static void *abandon(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    ncclComm_t comm = make(0, 2, self.rank, true);
    void *from = filled(&self, 1), *to = filled(&self, 0);
    MUST(self.rank == 1 ||
         ncclReduce(from, to, SMALL, ncclFloat32, ncclSum, 0, comm, (cudaStream_t)self.stream) == ncclSuccess);
    return abort_in_finalize(&self, comm, ncclSuccess);
}

/* onehop waits for the call, as it does not with stock NCCL. */
static void *abort_in_suspend(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    ncclResult_t (*const suspend)(ncclComm_t, int) =
        (ncclResult_t(*)(ncclComm_t, int))dlsym(RTLD_DEFAULT, "ncclCommSuspend");
    ncclComm_t comm = make(0, 2, self.rank, true);
    void *from = filled(&self, 1), *to = filled(&self, 0);
    pthread_t other;
    warm_up(&self, comm);
    if (self.rank == 0) {
        MUST(sum(&self, comm, from, to, SMALL) == ncclSuccess);
        MUST(pthread_create(&other, NULL, abort_late, comm) == 0);
        MUST(suspend(comm, 1) == ncclInternalError);
        pthread_join(other, NULL);
    }
    pthread_barrier_wait(&barrier);
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
    const struct rank self = begin((int)(intptr_t)argument);
    ncclComm_t comm = make(0, 2, self.rank, true);
    void *from = filled(&self, 1), *to = filled(&self, 0);
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
    pthread_barrier_wait(&barrier);
    MUST(self.rank == 0 || ncclCommAbort(comm) == ncclSuccess);
    return NULL;
}

static ncclResult_t broadcast(const struct rank *self, ncclComm_t comm, const void *from, void *to)
{
    return ncclBroadcast(from, to, MIDDLE, ncclFloat32, 0, comm, (cudaStream_t)self->stream);
}

static void leave_as_root(const struct rank *self, bool aborts, bool groups)
{
    ncclComm_t comm = make(2 * aborts + groups, 2, self->rank, true);
    void *from = filled(self, (float)(1 - self->rank)), *to = filled(self, 0);
    warm_up(self, comm);
    if (self->rank == 0) {
        MUST(broadcast(self, comm, from, to) == ncclSuccess && ends_within(self, MOST_US));
        MUST((aborts ? ncclCommAbort(comm) : ncclCommDestroy(comm)) == ncclSuccess);
    }
    pthread_barrier_wait(&barrier);
    usleep(TELL_US);
    if (self->rank == 1) {
        MUST(!groups || ncclGroupStart() == ncclSuccess);
        MUST(broadcast(self, comm, from, to) == ncclSuccess);
        MUST(!groups || ncclGroupEnd() == ncclSuccess);
        MUST(ends_within(self, MOST_US) && is_filled(to, MIDDLE, 1) && state_of(comm) == ncclSuccess);
        MUST(ncclCommDestroy(comm) == ncclSuccess);
    }
    pthread_barrier_wait(&barrier);
}

static void *root(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    for (int way = 0; way < 4; way++) {
        leave_as_root(&self, way / 2, way % 2);
    }
    return NULL;
}

static void shrink_to(const struct rank *self, ncclComm_t all, int excluded)
{
    ncclComm_t two;
    void *from = filled(self, 1), *to = filled(self, 0);
    MUST(ncclCommShrink(all, &excluded, 1, &two, NULL, NCCL_SHRINK_DEFAULT) == ncclSuccess);
    MUST(sum(self, two, from, to, SMALL) == ncclSuccess && ends_within(self, MOST_US) && is_filled(to, SMALL, 2));
    MUST(ncclCommDestroy(two) == ncclSuccess);
}

static void *shrink(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    ncclComm_t all = make(0, 3, self.rank, true);
    const int excluded[] = {2, 2, 1};
    for (int i = 0; i < 3; i++) {
        if (self.rank != excluded[i]) {
            shrink_to(&self, all, excluded[i]);
        }
    }
    pthread_barrier_wait(&barrier);
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
    const struct rank self = begin((int)(intptr_t)argument);
    for (int way = 0; way < 2; way++) {
        ncclComm_t comm = make(way, 2, self.rank, true);
        void *from = filled(&self, 1), *to = filled(&self, 0);
        pthread_t other;
        if (self.rank == 0) {
            MUST(pthread_create(&other, NULL, way == 0 ? abort_late : revoke_late, comm) == 0);
            MUST(ncclGroupStart() == ncclSuccess);
            MUST(sum(&self, comm, from, to, SMALL) == ncclSuccess);
            MUST(ncclGroupEnd() == ncclInternalError);
            pthread_join(other, NULL);
        }
        pthread_barrier_wait(&barrier);
        MUST((self.rank == 0 && way == 0) || ncclCommAbort(comm) == ncclSuccess);
    }
    return NULL;
}

/* NCCL has nothing of the group. Freed memory is taken before its end. */
static void *abort_between(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    ncclComm_t comm = make(0, 2, self.rank, true);
    void *from = filled(&self, 1), *to = filled(&self, 0);
    pthread_t aborts;
    warm_up(&self, comm);
    if (self.rank == 0) {
        MUST(ncclGroupStart() == ncclSuccess && sum(&self, comm, from, to, SMALL) == ncclSuccess);
    }
    MUST(pthread_create(&aborts, NULL, abort_late, comm) == 0 && pthread_join(aborts, NULL) == 0);
    pthread_barrier_wait(&barrier);
    usleep(TELL_US);
    MUST(self.rank == 1 || ncclGroupEnd() == ncclInternalError);
    return NULL;
}

static void *beside(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    ncclComm_t comm = make(0, 2, self.rank, true), other = make(1, 2, self.rank, true);
    void *from = filled(&self, 1), *to = filled(&self, 0), *result = filled(&self, 0);
    pthread_t aborts;
    warm_up(&self, other);
    if (self.rank == 0) {
        MUST(pthread_create(&aborts, NULL, abort_late, comm) == 0);
        MUST(ncclGroupStart() == ncclSuccess);
        MUST(sum(&self, other, from, result, SMALL) == ncclSuccess);
        MUST(sum(&self, comm, from, to, SMALL) == ncclSuccess);
        MUST(sum(&self, other, from, result, SMALL) == ncclSuccess);
        MUST(ncclGroupEnd() == ncclInternalError && is_filled(result, SMALL, 0));
        pthread_join(aborts, NULL);
    }
    pthread_barrier_wait(&barrier);
    usleep(TELL_US);
    MUST(state_of(other) != ncclSuccess && sum(&self, other, from, result, SMALL) != ncclSuccess);
    MUST(ncclCommAbort(other) == ncclSuccess && (self.rank == 0 || ncclCommAbort(comm) == ncclSuccess));
    return NULL;
}

static void *refuse(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    ncclComm_t revoked = make(0, 2, self.rank, true), comm = make(1, 2, self.rank, true);
    void *from = filled(&self, 1), *to = filled(&self, 0), *other = filled(&self, 0);
    warm_up(&self, revoked);
    MUST(ncclCommRevoke(revoked, 0) == ncclSuccess);
    pthread_barrier_wait(&barrier);
    MUST(ncclGroupStart() == ncclSuccess);
    MUST(sum(&self, comm, from, to, SMALL) == ncclSuccess);
    MUST(sum(&self, revoked, from, other, SMALL) == ncclInvalidUsage);
    MUST(ncclGroupEnd() == ncclInvalidUsage);
    pthread_barrier_wait(&barrier);
    MUST(is_filled(to, SMALL, 0));
    MUST(sum(&self, comm, from, to, SMALL) == ncclSuccess && ends_within(&self, MOST_US) && is_filled(to, SMALL, 2));
    MUST(ncclCommDestroy(revoked) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess);
    return NULL;
}

static void *strange(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    ncclComm_t comm = make(0, 2, self.rank, true);
    void *from = filled(&self, 1), *to = filled(&self, 0);
    MUST(sum(&self, NULL, from, to, SMALL) == ncclInvalidArgument);
    for (int i = 0; i < 2; i++) {
        MUST(sum(&self, comm, from, to, SMALL) == ncclSuccess);
        MUST(ends_within(&self, MOST_US) && is_filled(to, SMALL, 2));
        suspend_and_resume(i == 0 ? comm : NULL);
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
        self[i] = begin(i);
        MUST(cuCtxGetCurrent(&context[i]) == CUDA_SUCCESS);
        from[i] = filled(&self[i], 1);
        to[i] = filled(&self[i], 0);
    }
    for (int blocking = 0; blocking < 2; blocking++) {
        ncclComm_t comm[2], one;
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = blocking;
        MUST(ncclGroupStart() == ncclSuccess);
        for (int i = 0; i < 2; i++) {
            MUST(cuCtxSetCurrent(context[i]) == CUDA_SUCCESS);
            const ncclResult_t made = ncclCommInitRankConfig(&one, 2, ids[blocking], i, &config);
            MUST(made == ncclSuccess || made == ncclInProgress);
            comm[i] = one;
        }
        one = (ncclComm_t)1; /* as what the stack holds by then */
        await(comm[0], ncclGroupEnd());
        await(comm[1], state_of(comm[1]));
        for (int call = 0; call <= FIRST_CALLS; call++) {
            MUST(ncclGroupStart() == ncclSuccess);
            for (int i = 0; i < 2; i++) {
                sum(&self[i], comm[i], from[i], to[i], SMALL); /* an error is the group's */
            }
            await(comm[0], ncclGroupEnd());
            await(comm[1], state_of(comm[1]));
            for (int i = 0; i < 2; i++) {
                MUST(ends_within(&self[i], MOST_US) && is_filled(to[i], SMALL, 2));
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
    state_of(comm);
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
    const struct rank self = begin((int)(intptr_t)argument);
    struct rank other = self;
    ncclComm_t comm = make(0, 2, self.rank, false), split = NULL;
    void *from = filled(&self, 1), *between = filled(&self, 0), *to = filled(&self, 0);
    pthread_t thread;
    MUST(cuStreamCreate(&other.stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    warm_up(&self, comm);
    for (int i = 0; i < 4; i++) {
        MUST(cuMemsetD32Async((CUdeviceptr)between, 0, LARGE, self.stream) == CUDA_SUCCESS);
        MUST(cuStreamSynchronize(self.stream) == CUDA_SUCCESS);
        pthread_barrier_wait(&barrier);
        usleep(self.rank * LATE_US);
        thread = watchdog(comm);
        await(comm, sum(&self, comm, from, between, LARGE));
        await(comm, sum(&other, comm, between, to, SMALL)); /* NCCL orders the calls */
        MUST(ends_within(&other, MOST_US) && is_filled(to, SMALL, 4));
        pthread_join(thread, NULL);
    }
    thread = watchdog(comm);
    await(comm, ncclCommSplit(comm, 0, self.rank, &split, NULL));
    await(comm, state_of(comm));
    pthread_join(thread, NULL);
    await(split, state_of(split));
    warm_up(&self, split);
    MUST(ncclCommDestroy(split) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess);
    return NULL;
}

static void *partner(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    ncclComm_t comm[2] = {make(0, 2, self.rank, false), make(1, 2, self.rank, false)};
    void *from = filled(&self, 1), *to = filled(&self, 0), *other = filled(&self, 0);
    warm_up(&self, comm[0]);
    warm_up(&self, comm[1]);
    for (int i = 0; i < 4; i++) {
        struct rank brief = self;
        MUST(cuStreamCreate(&brief.stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
        MUST(ncclGroupStart() == ncclSuccess);
        sum(&brief, comm[0], from, to, LARGE); /* an error is the group's */
        sum(&brief, comm[1], from, other, LARGE);
        await(comm[i % 2], ncclGroupEnd());
        MUST(cuStreamSynchronize(brief.stream) == CUDA_SUCCESS && cuStreamDestroy(brief.stream) == CUDA_SUCCESS);
        usleep(TELL_US / 10); /* NCCL sets one state after the other */
        MUST(is_filled(to, LARGE, 2) && is_filled(other, LARGE, 2));
        await(comm[1 - i % 2], sum(&self, comm[1 - i % 2], to, other, SMALL));
        MUST(ends_within(&self, MOST_US) && is_filled(other, SMALL, 4));
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
    const struct rank self = begin((int)(intptr_t)argument);
    void *from = filled(&self, 1), *to = filled(&self, 0);
    uint64_t least_us = UINT64_MAX; /* of all rounds: the machine may be busy */
    for (int i = 0; i < ROUNDS; i++) {
        ncclComm_t comm = make(i, 2, self.rank, true);
        pthread_barrier_wait(&barrier);
        usleep(self.rank * LATE_US);
        const uint64_t start_us = now_us();
        MUST(sum(&self, comm, from, to, SMALL) == ncclSuccess);
        const uint64_t us = now_us() - start_us;
        least_us = us < least_us ? us : least_us;
        MUST(ends_within(&self, MOST_US) && is_filled(to, SMALL, 2));
        warm_up(&self, comm);
        MUST(ncclCommDestroy(comm) == ncclSuccess);
    }
    MUST(least_us < CALL_US);
    return NULL;
}

static void *create(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    ncclComm_t comm = make(0, 2, self.rank, false), made;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    void *from = filled(&self, 1), *to = filled(&self, 0), *other = filled(&self, 0);
    warm_up(&self, comm);
    MUST(ncclGroupStart() == ncclSuccess);
    const ncclResult_t begun = ncclCommInitRankConfig(&made, 2, ids[1], self.rank, &config);
    MUST(begun == ncclSuccess || begun == ncclInProgress);
    sum(&self, comm, from, to, LARGE); /* an error is the group's */
    sum(&self, comm, from, other, SMALL);
    await(comm, ncclGroupEnd());
    await(comm, state_of(comm));
    await(made, state_of(made));
    MUST(ends_within(&self, MOST_US) && is_filled(to, LARGE, 2) && is_filled(other, SMALL, 2));
    warm_up(&self, made);
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
        begin(i);
        MUST(cuCtxGetCurrent(&context[i]) == CUDA_SUCCESS);
    }
    MUST(ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < 2; i++) {
        MUST(cuCtxSetCurrent(context[i]) == CUDA_SUCCESS);
        MUST(ncclCommInitRank(&comm[i], 2, ids[0], i) == ncclSuccess);
    }
    MUST(ncclGroupEnd() == ncclSuccess && ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < 3; i++) {
        MUST(cuCtxSetCurrent(context[i]) == CUDA_SUCCESS);
        MUST(grow(i < 2 ? comm[i] : NULL, 3, &ids[1], i < 2 ? -1 : 2, &all[i], NULL) == ncclSuccess);
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
    const struct rank self = begin((int)(intptr_t)argument);
    for (int i = 0; i < 2; i++) {
        ncclComm_t comm = make(i, 2, self.rank, true);
        void *from = filled(&self, 1), *to = filled(&self, 0), *other = filled(&self, 0);
        MUST(ncclGroupStart() == ncclSuccess);
        MUST(sum(&self, comm, from, to, SMALL) == ncclSuccess);
        if (self.rank == i) {
            MUST(ncclSend(from, SMALL, ncclFloat32, i, comm, (cudaStream_t)self.stream) == ncclSuccess);
            MUST(ncclRecv(other, SMALL, ncclFloat32, i, comm, (cudaStream_t)self.stream) == ncclSuccess);
        }
        MUST(ncclGroupEnd() == ncclSuccess);
        MUST(ends_within(&self, MOST_US) && is_filled(to, SMALL, 2) && is_filled(other, SMALL, self.rank == i));
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
        state_of(((struct watch *)watch)->comm);
    }
    return NULL;
}

static void *watched(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    struct watch watch = {.comm = make(0, 2, self.rank, false)};
    void *from = filled(&self, 1), *to = filled(&self, 0);
    pthread_t thread[WATCHDOGS];
    warm_up(&self, watch.comm);
    for (int i = 0; i < WATCHDOGS; i++) {
        MUST(pthread_create(&thread[i], NULL, keep_asking, &watch) == 0);
    }
    for (int i = 0; i < WATCHED_CALLS; i++) {
        struct rank brief = self;
        MUST(cuStreamCreate(&brief.stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
        ncclResult_t result = sum(&brief, watch.comm, from, to, LARGE);
        while (result == ncclInProgress) {
            result = state_of(watch.comm);
        }
        MUST(result == ncclSuccess && cuStreamDestroy(brief.stream) == CUDA_SUCCESS);
    }
    await(watch.comm, sum(&self, watch.comm, from, to, SMALL));
    MUST(ends_within(&self, MOST_US) && is_filled(to, LARGE, 2));
    watch.ends = true;
    for (int i = 0; i < WATCHDOGS; i++) {
        pthread_join(thread[i], NULL);
    }
    MUST(state_of(watch.comm) == ncclSuccess && ncclCommDestroy(watch.comm) == ncclSuccess);
    return NULL;
}

/* A group of a call that NCCL launches late and a call that onehop executes. Rank 0 aborts the first meanwhile. */
static void *abort_beside(void *argument)
{
    const struct rank self = begin((int)(intptr_t)argument);
    ncclComm_t first = make(0, 2, self.rank, false), second = make(1, 2, self.rank, false);
    void *from = filled(&self, 1), *to = filled(&self, 0), *other = filled(&self, 0);
    pthread_t aborting;
    warm_up(&self, first);
    warm_up(&self, second);
    MUST(ncclGroupStart() == ncclSuccess);
    ncclReduce(from, to, SMALL, ncclFloat32, ncclSum, 0, first, (cudaStream_t)self.stream);
    sum(&self, second, from, other, SMALL);
    MUST(self.rank != 0 || pthread_create(&aborting, NULL, abort_late, first) == 0);
    ncclResult_t result = ncclGroupEnd();
    while (result == ncclInProgress) {
        usleep(100);
        result = state_of(second);
    }
    if (self.rank == 0) {
        pthread_join(aborting, NULL);
    }
    pthread_barrier_wait(&barrier);
    MUST(self.rank == 0 || ncclCommAbort(first) == ncclSuccess);
    MUST(result != ncclSuccess || state_of(second) != ncclSuccess ||
         (ends_within(&self, MOST_US) && is_filled(other, SMALL, 2)));
    pthread_barrier_wait(&barrier);
    MUST(ncclCommAbort(second) == ncclSuccess);
    return NULL;
}

static int run_threads(int count, void *(*run)(void *))
{
    pthread_t thread[3];
    pthread_barrier_init(&barrier, NULL, (unsigned)count);
    for (int i = 0; i < 2 * PAIRS; i++) {
        MUST(ncclGetUniqueId(&ids[i]) == ncclSuccess);
    }
    for (int i = 0; i < count; i++) {
        MUST(pthread_create(&thread[i], NULL, run, (void *)(intptr_t)i) == 0);
    }
    for (int i = 0; i < count; i++) {
        pthread_join(thread[i], NULL);
    }
    return 0;
}

static const struct {
    const char *name;
    int count;                                        /* of processes, or of ranks that are threads */
    int (*process)(struct board *board, int process); /* NULL: threads */
    void *(*thread)(void *rank);
} cases[] = {
    {"replay", 2, replay, NULL},
    {"pending", 2, pending, NULL},
    {"destroy", 2, destroy, NULL},
    {"finalize", 2, finalize, NULL},
    {"behind", 2, behind, NULL},
    {"fallback", 2, behind, NULL},
    {"stranger", (JOBS * JOB_RANKS), stranger, NULL},
    {"differ", 2, NULL, differ},
    {"reject", 2, NULL, reject},
    {"shared", 3, NULL, shared},
    {"unknown", 3, NULL, shared},
    {"late", 3, NULL, late},
    {"send", 3, NULL, pass},
    {"abort", 2, NULL, abort_waiting},
    {"abandon", 2, NULL, abandon},
    {"suspend", 2, NULL, abort_in_suspend},
    {"revoke", 2, NULL, abort_in_revoke},
    {"cut", 2, NULL, abort_beside},
    {"group", 2, NULL, abort_in_group},
    {"between", 2, NULL, abort_between},
    {"beside", 2, NULL, beside},
    {"refuse", 2, NULL, refuse},
    {"root", 2, NULL, root},
    {"shrink", 3, NULL, shrink},
    {"moved", 1, NULL, moved},
    {"stale", 2, NULL, stale},
    {"partner", 2, NULL, partner},
    {"watched", 2, NULL, watched},
    {"create", 2, NULL, create},
    {"grown", 1, NULL, grown},
    {"self", 2, NULL, send_to_itself},
    {"queue", 2, NULL, late_to_first},
    {"strange", 2, NULL, strange},
};

int main(int argc, char **argv)
{
    const char *name = argc == 2 ? argv[1] : "";
    suspends = strcmp(name, "unknown") == 0 || strcmp(name, "behind") == 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(name, cases[i].name) == 0) {
            return cases[i].process ? run_processes(cases[i].count, cases[i].process)
                                    : run_threads(cases[i].count, cases[i].thread);
        }
    }
    return 2;
}
