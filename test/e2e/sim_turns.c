/* SPDX-License-Identifier: MIT */
/*
 * sim_turns.c - programs of a few calls, in orders that a random program does not make
 *
 *   sim_turns CASE
 *
 * A case is run by the workers of a job (test/common/worker.h): processes or threads with one rank, or with several.
 * Prints a line and ends with status 1 if something is wrong.
 */
#include "test/e2e/sim_turns.h"

#include <stdlib.h>
#include <string.h>

#define LIMIT_SECONDS 1000 /* the test has one of its own */

/* --- what cases use ----------------------------------------------------------------------------------------------- */

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

ncclComm_t turn_make(const struct rank *self, int id, int nranks, int rank, bool blocking)
{
    ncclComm_t comm;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    config.commName = "of\nturns"; /* NCCL takes any name */
    const ncclResult_t result = ncclCommInitRankConfig(&comm, nranks, self->worker->board->id[id], rank, &config);
    turn_await(comm, result);
    return comm;
}

void turn_make_group(const struct rank *self, int local, int id, int nranks, ncclComm_t *comm_p)
{
    MUST(ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < local; i++) {
        cf_use(self->worker, i);
        MUST(ncclCommInitRank(&comm_p[i], nranks, self->worker->board->id[id], self[i].rank) == ncclSuccess);
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
    cf_barrier(self->worker);
}

void turn_suspend_and_resume(ncclComm_t comm)
{
    MUST(nccl.CommSuspend(comm, 1) == ncclSuccess && nccl.CommResume(comm) == ncclSuccess);
}

void turn_start(void *(*run)(void *), void *argument, pthread_t *thread_p)
{
    MUST(pthread_create(thread_p, NULL, run, argument) == 0);
}

/* --- the job ------------------------------------------------------------------------------------------------------ */

static void run(struct cf_worker *worker)
{
    struct rank self[CF_MAX_RANKS];
    for (int i = worker->members - 1; i >= 0; i--) {
        const struct cf_member *member = &worker->member[i];
        self[i] = (struct rank){member->world_rank, worker->user, worker, .stream = member->stream[0]};
        cf_use(worker, i);
        self[i].ones = turn_filled(&self[i], 1);
        self[i].to = turn_filled(&self[i], 0);
        self[i].other = turn_filled(&self[i], 0);
    }
    for (int i = 0; i < CASE_IDS && worker->index == 0; i++) {
        MUST(ncclGetUniqueId(&worker->board->id[i]) == ncclSuccess);
    }
    cf_barrier(worker);
    self[0].of->run(self);
    if (!worker->board->layout.threads) { /* ends at once: what other ranks need has been awaited by the case */
        exit(0);
    }
    cuStreamSynchronize(self->stream); /* aborted kernels leave soon; the job gives their context back */
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
    const struct turn_case *one = argc == 2 ? find(argv[1]) : NULL;
    struct cf_job job = {0};
    struct cf_board *board;
    int process;
    if (!one) {
        return 2;
    }
    if (cf_job_join(sizeof *board, &board, &process)) {
        return cf_job_run(board, process, run, (void *)one);
    }
    cf_job_open(&job, argv, sizeof *board);
    job.board->layout = one->layout;
    job.board->stops = true;
    cf_job_start(&job);
    const bool good = cf_job_wait(&job, LIMIT_SECONDS);
    cf_job_close(&job);
    return !good;
}
