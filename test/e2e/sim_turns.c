/* SPDX-License-Identifier: MIT */
/*
 * sim_turns.c - programs of a few calls, in orders that a random program does not make
 *
 *   sim_turns CASE
 *
 * A case has actors, which are processes or threads, and an actor has one rank, or several in its thread. Prints a line
 * and ends with status 1 if something is wrong.
 */
#include "test/e2e/sim_turns.h"

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define MOST_ACTORS 6
#define MOST_LOCAL 3

struct turn_board *turn_board;

/* --- what cases use ----------------------------------------------------------------------------------------------- */

void turn_meet(void)
{
    pthread_barrier_wait(&turn_board->barrier);
}

void turn_use(const struct rank *self)
{
    MUST(cuCtxSetCurrent(self->context) == CUDA_SUCCESS);
}

static void fill(const struct rank *self, void *memory, float value)
{
    unsigned word;
    memcpy(&word, &value, sizeof word);
    MUST(cuMemsetD32Async((CUdeviceptr)memory, word, LARGE, self->stream) == CUDA_SUCCESS);
    MUST(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
}

void *turn_filled(const struct rank *self, float value)
{
    CUdeviceptr memory;
    MUST(cuMemAlloc(&memory, LARGE * sizeof value) == CUDA_SUCCESS);
    fill(self, (void *)memory, value);
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

void turn_clear(const struct rank *self)
{
    fill(self, self->to, 0);
    fill(self, self->other, 0);
}

ncclResult_t turn_sum(const struct rank *self, ncclComm_t comm, const void *from, void *to, size_t count)
{
    return ncclAllReduce(from, to, count, ncclFloat32, ncclSum, comm, (cudaStream_t)self->stream);
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

bool turn_gives(const struct rank *self, const void *memory, size_t count, float value)
{
    return turn_ends_within(self, MOST_US) && turn_is_filled(memory, count, value);
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

void turn_end_group(ncclComm_t one, ncclComm_t two)
{
    const ncclResult_t ended = ncclGroupEnd();
    MUST(ended == ncclSuccess || ended == ncclInProgress);
    turn_await(one, turn_state_of(one));
    turn_await(two, turn_state_of(two));
}

ncclComm_t turn_make(int id, int nranks, int rank, bool blocking)
{
    ncclComm_t comm;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    config.commName = "of\nturns"; /* NCCL takes any name */
    const ncclResult_t result = ncclCommInitRankConfig(&comm, nranks, turn_board->id[id], rank, &config);
    turn_await(comm, result);
    return comm;
}

void turn_make_group(const struct rank *self, int local, int id, int nranks, ncclComm_t *comm_p)
{
    MUST(ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < local; i++) {
        turn_use(&self[i]);
        MUST(ncclCommInitRank(&comm_p[i], nranks, turn_board->id[id], self[i].rank) == ncclSuccess);
    }
    MUST(ncclGroupEnd() == ncclSuccess);
}

void turn_warm_up(const struct rank *self, ncclComm_t comm)
{
    int nranks = 0;
    void *memory = turn_filled(self, 0);
    MUST(!comm || ncclCommCount(comm, &nranks) == ncclSuccess);
    for (int i = 0; comm && i < FIRST_CALLS; i++) {
        turn_await(comm, turn_sum(self, comm, self->ones, memory, SMALL));
        MUST(cuStreamSynchronize(self->stream) == CUDA_SUCCESS && turn_is_filled(memory, SMALL, (float)nranks));
        usleep(1000);
    }
    turn_meet();
}

void turn_suspend_and_resume(ncclComm_t comm)
{
    MUST(ncclCommSuspend(comm, 1) == ncclSuccess && ncclCommResume(comm) == ncclSuccess);
}

void turn_start(void *(*run)(void *), void *argument, pthread_t *thread_p)
{
    MUST(pthread_create(thread_p, NULL, run, argument) == 0);
}

/* --- actors ------------------------------------------------------------------------------------------------------- */

static const struct turn_case *running;

static struct rank begin(int rank)
{
    struct rank self = {.rank = rank, .of = running};
    CUdevice device;
    MUST(cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, rank) == CUDA_SUCCESS);
    MUST(cuDevicePrimaryCtxRetain(&self.context, device) == CUDA_SUCCESS);
    turn_use(&self);
    MUST(cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    self.ones = turn_filled(&self, 1);
    self.to = turn_filled(&self, 0);
    self.other = turn_filled(&self, 0);
    return self;
}

/* onehop leaves a process alone that is forked behind NCCL's first use: it is the first actor that makes the ids. */
static void *act(void *actor)
{
    struct rank self[MOST_LOCAL];
    const int number = (int)(intptr_t)actor, local = running->local > 0 ? running->local : 1;
    for (int i = local - 1; i >= 0; i--) {
        self[i] = begin(number * local + i);
    }
    for (int i = 0; i < 2 * PAIRS && number == 0; i++) {
        MUST(ncclGetUniqueId(&turn_board->id[i]) == ncclSuccess);
    }
    turn_meet();
    running->run(self);
    return NULL;
}

/* The first process that fails ends the others. */
static int run_processes(void)
{
    int failed = 0, status;
    pid_t pid[MOST_ACTORS];
    for (int i = 0; i < running->actors; i++) {
        pid[i] = fork();
        if (pid[i] == 0) {
            act((void *)(intptr_t)i);
            exit(0);
        }
    }
    for (int i = 0; i < running->actors; i++) {
        if (wait(&status) < 0 || status != 0) {
            for (int other = 0; other < running->actors && !failed; other++) {
                kill(pid[other], SIGKILL);
            }
            failed = 1;
        }
    }
    return failed;
}

static int run_threads(void)
{
    pthread_t thread[MOST_ACTORS];
    for (int i = 0; i < running->actors; i++) {
        turn_start(act, (void *)(intptr_t)i, &thread[i]);
    }
    for (int i = 0; i < running->actors; i++) {
        pthread_join(thread[i], NULL);
    }
    return 0;
}

static const struct turn_case *find(const char *name)
{
    static const struct turn_case *const tables[] = {turn_abort_cases, turn_call_cases, turn_end_cases};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        for (const struct turn_case *one = tables[t]; one->name; one++) {
            if (strcmp(name, one->name) == 0) {
                return one;
            }
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_barrierattr_t shared;
    running = argc == 2 ? find(argv[1]) : NULL;
    if (!running) {
        return 2;
    }
    turn_board = mmap(NULL, sizeof *turn_board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(turn_board != MAP_FAILED && pthread_barrierattr_init(&shared) == 0);
    MUST(pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) == 0);
    MUST(pthread_barrier_init(&turn_board->barrier, &shared, (unsigned)running->actors) == 0);
    return running->forks ? run_processes() : run_threads();
}
