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
 *
 * In these cases ranks are processes, in those of sim_turns_threads.c threads. Prints a line and ends with status 1 if
 * something is wrong.
 */
#include "test/e2e/sim_turns.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

bool turn_suspends;
pthread_barrier_t turn_barrier;
ncclUniqueId turn_ids[2 * PAIRS];

/* --- what all cases use ------------------------------------------------------------------------------------------- */

struct rank turn_begin(int rank)
{
    struct rank self = {.rank = rank};
    CUdevice device;
    CUcontext context;
    MUST(cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, rank) == CUDA_SUCCESS);
    MUST(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS);
    MUST(cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return self;
}

void *turn_filled(const struct rank *self, float value)
{
    CUdeviceptr memory;
    unsigned word;
    memcpy(&word, &value, sizeof word);
    MUST(cuMemAlloc(&memory, LARGE * sizeof value) == CUDA_SUCCESS);
    MUST(cuMemsetD32Async(memory, word, LARGE, self->stream) == CUDA_SUCCESS);
    MUST(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    return (void *)memory;
}

bool turn_is_filled(const void *memory, size_t count, float value)
{
    static __thread float copy[LARGE];
    MUST(cuMemcpyDtoH(copy, (CUdeviceptr)memory, count * sizeof value) == CUDA_SUCCESS);
    size_t i = 0;
    while (i < count && copy[i] == value) {
        i++;
    }
    return i == count;
}

ncclResult_t turn_sum(const struct rank *self, ncclComm_t comm, const void *from, void *to, size_t count)
{
    return ncclAllReduce(from, to, count, ncclFloat32, ncclSum, comm, (cudaStream_t)self->stream);
}

ncclResult_t turn_state_of(ncclComm_t comm)
{
    ncclResult_t state;
    MUST(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    return state;
}

void turn_await(ncclComm_t comm, ncclResult_t result)
{
    while (result == ncclInProgress) {
        usleep(100);
        result = turn_state_of(comm);
    }
    MUST(result == ncclSuccess);
}

bool turn_ends_within(const struct rank *self, int us)
{
    CUresult result;
    while ((result = cuStreamQuery(self->stream)) == CUDA_ERROR_NOT_READY && us > 0) {
        usleep(1000);
        us -= 1000;
    }
    return result == CUDA_SUCCESS;
}

ncclComm_t turn_make(int id, int nranks, int rank, bool blocking)
{
    ncclComm_t comm;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    config.commName = "of\nturns"; /* NCCL takes any name */
    const ncclResult_t result = ncclCommInitRankConfig(&comm, nranks, turn_ids[id], rank, &config);
    turn_await(comm, result);
    return comm;
}

void turn_warm_up(const struct rank *self, ncclComm_t comm)
{
    void *memory = turn_filled(self, 0);
    for (int i = 0; comm && i < FIRST_CALLS; i++) {
        turn_await(comm, turn_sum(self, comm, memory, memory, SMALL));
        MUST(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
        usleep(1000);
    }
    pthread_barrier_wait(&turn_barrier);
}

/* --- processes ---------------------------------------------------------------------------------------------------- */

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
    memcpy(turn_ids, board->id[job], sizeof board->id[job]);
}

static int replay(struct board *board, int rank)
{
    const struct rank self = turn_begin(rank);
    CUgraph graph;
    CUgraphExec executable;
    share_ids(board, 0, rank);
    ncclComm_t comm = turn_make(0, 2, rank, true);
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0);
    MUST(cuStreamBeginCapture(self.stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    MUST(turn_sum(&self, comm, from, to, SMALL) == ncclSuccess);
    MUST(cuStreamEndCapture(self.stream, &graph) == CUDA_SUCCESS);
    MUST(cuGraphInstantiateWithFlags(&executable, graph, 0) == CUDA_SUCCESS);
    meet(&board->met, 2);
    usleep(rank * LATE_US);
    MUST(cuGraphLaunch(executable, self.stream) == CUDA_SUCCESS);
    MUST(cuGraphExecDestroy(executable) == CUDA_SUCCESS && cuGraphDestroy(graph) == CUDA_SUCCESS);
    MUST(rank == 0 || (turn_ends_within(&self, MOST_US) && turn_is_filled(to, SMALL, 2)));
    MUST(ncclCommDestroy(comm) == ncclSuccess);
    return 0;
}

void turn_suspend_and_resume(ncclComm_t comm)
{
    ncclResult_t (*const suspend)(ncclComm_t, int) =
        (ncclResult_t(*)(ncclComm_t, int))dlsym(RTLD_DEFAULT, "ncclCommSuspend");
    ncclResult_t (*const resume)(ncclComm_t) = (ncclResult_t(*)(ncclComm_t))dlsym(RTLD_DEFAULT, "ncclCommResume");
    MUST(!comm || (suspend(comm, 1) == ncclSuccess && resume(comm) == ncclSuccess));
}

static int behind(struct board *board, int rank)
{
    setenv("SIMNODE_NCCL_BACKGROUND", rank == 0 ? "1" : "0", 1);
    const struct rank self = turn_begin(rank);
    share_ids(board, 0, rank);
    ncclComm_t comm = turn_make(0, 2, rank, false);
    if (rank == 1 && !turn_suspends) {
        setenv("ONEHOP_COMMS", "size=^2", 1); /* of the second alone */
    }
    ncclComm_t second = turn_make(1, 2, rank, false);
    turn_suspend_and_resume(turn_suspends ? second : NULL);
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0), *other = turn_filled(&self, 0);
    for (int i = 0; i <= FIRST_CALLS; i++) {
        turn_await(comm, turn_sum(&self, comm, from, to, SMALL));
        MUST(turn_ends_within(&self, MOST_US) && turn_is_filled(to, SMALL, 2));
        usleep(1000);
    }
    for (int i = 0; i < 4; i++) {
        MUST(ncclGroupStart() == ncclSuccess);
        turn_sum(&self, second, from, other, SMALL);
        usleep(i == 0 ? TELL_US : 0); /* by then rank 0 knows that it falls back */
        turn_sum(&self, comm, from, to, SMALL);
        const ncclResult_t ended = ncclGroupEnd();
        MUST(ended == ncclSuccess || ended == ncclInProgress);
        turn_await(comm, turn_state_of(comm));
        turn_await(second, turn_state_of(second));
        MUST(turn_ends_within(&self, MOST_US) && turn_is_filled(to, SMALL, 2) && turn_is_filled(other, SMALL, 2));
    }
    meet(&board->met, 2);
    MUST(ncclCommDestroy(second) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess);
    return 0;
}

static int pending(struct board *board, int rank)
{
    const struct rank self = turn_begin(rank);
    share_ids(board, 0, rank);
    ncclComm_t comm = turn_make(0, 2, rank, false);
    void *from = turn_filled(&self, 1), *to = turn_filled(&self, 0);
    for (int i = 0; i <= FIRST_CALLS; i++) {
        if (i == FIRST_CALLS) { /* all ranks are through with the others */
            meet(&board->met, 2);
            usleep(rank * LATE_US);
        }
        turn_await(comm, turn_sum(&self, comm, from, to, SMALL));
        MUST((i == FIRST_CALLS && rank == 0) || (turn_ends_within(&self, MOST_US) && turn_is_filled(to, SMALL, 2)));
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
        self[i] = turn_begin(2 * process + i);
        MUST(cuCtxGetCurrent(&context[i]) == CUDA_SUCCESS);
        from[i] = turn_filled(&self[i], 1);
        to[i] = turn_filled(&self[i], 0);
    }
    share_ids(board, 0, process);
    MUST(ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < 2; i++) {
        MUST(cuCtxSetCurrent(context[i]) == CUDA_SUCCESS);
        MUST(ncclCommInitRank(&comm[i], 4, turn_ids[0], self[i].rank) == ncclSuccess);
    }
    MUST(ncclGroupEnd() == ncclSuccess);
    for (int call = 0; call < 4; call++) {
        if (call == 3) { /* all ranks are through with the others */
            meet(&board->met, 2);
            usleep(process * LATE_US);
        }
        MUST(ncclGroupStart() == ncclSuccess);
        for (int i = 0; i < 2; i++) {
            MUST(turn_sum(&self[i], comm[i], from[i], to[i], SMALL) == ncclSuccess);
        }
        MUST(ncclGroupEnd() == ncclSuccess);
        for (int i = 0; i < 2 && (call < 3 || process == 1); i++) {
            MUST(turn_ends_within(&self[i], MOST_US) && turn_is_filled(to[i], SMALL, 4));
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
    const struct rank self = turn_begin(process);
    share_ids(board, job, rank);
    MUST(rank == 2 || ncclCommInitRank(&two, 2, turn_ids[0], rank) == ncclSuccess);
    MUST(grow(two, JOB_RANKS, rank == 1 ? NULL : &turn_ids[1], rank == 2 ? 2 : -1, &three, NULL) == ncclSuccess);
    meet(&board->met, JOBS * JOB_RANKS);
    usleep(rank == 1 ? 0 : LATE_US);
    MUST(ncclCommSplit(three, rank == 2 ? NCCL_SPLIT_NOCOLOR : 0, rank == 0 ? job : 1 - job, &split, NULL) ==
         ncclSuccess);
    if (rank < 2) {
        void *from = turn_filled(&self, (float)(1 + rank + 10 * job)), *to = turn_filled(&self, 0);
        MUST(turn_sum(&self, split, from, to, SMALL) == ncclSuccess);
        MUST(turn_ends_within(&self, MOST_US) && turn_is_filled(to, SMALL, (float)(3 + 20 * job)));
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

static int run_threads(int count, void *(*run)(void *))
{
    pthread_t thread[3];
    pthread_barrier_init(&turn_barrier, NULL, (unsigned)count);
    for (int i = 0; i < 2 * PAIRS; i++) {
        MUST(ncclGetUniqueId(&turn_ids[i]) == ncclSuccess);
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
    int count; /* of processes */
    int (*run)(struct board *board, int process);
} process_cases[] = {
    {"replay", 2, replay},
    {"pending", 2, pending},
    {"destroy", 2, destroy},
    {"finalize", 2, finalize},
    {"behind", 2, behind},
    {"fallback", 2, behind},
    {"stranger", (JOBS * JOB_RANKS), stranger},
};

int main(int argc, char **argv)
{
    const char *name = argc == 2 ? argv[1] : "";
    turn_suspends = strcmp(name, "unknown") == 0 || strcmp(name, "behind") == 0;
    for (size_t i = 0; i < sizeof process_cases / sizeof *process_cases; i++) {
        if (strcmp(name, process_cases[i].name) == 0) {
            return run_processes(process_cases[i].count, process_cases[i].run);
        }
    }
    for (const struct turn_case *one = turn_thread_cases; one->name; one++) {
        if (strcmp(name, one->name) == 0) {
            return run_threads(one->count, one->run);
        }
    }
    return 2;
}
