/* SPDX-License-Identifier: MIT */
/*
 * sim_mix.c - the collectives of sim_app that onehop leaves alone, in one group with each other
 *
 * A member's buffer holds its input, a block of ELEMENTS for each rank, and then as much for the result of each call.
 */
#include <stdlib.h>

#include "test/e2e/sim_app.h"

#define ELEMENTS 300
#define FORM ELEMENTS, ncclInt32

/* X(call, the blocks of its result that this rank gets, element i of block b of it, how it is made). */
#define CALLS_(X)                                                                                                      \
    X(BROADCAST, 1, input(world[root], i), Broadcast(data, out, FORM, root, comm, stream))                             \
    X(BCAST, 1, input(world[root], i), Bcast(out, FORM, root, comm, stream))                                           \
    X(REDUCE, rank == root, sum(mix, i), Reduce(data, out, FORM, ncclSum, root, comm, stream))                         \
    X(REDUCE_SCATTER, 1, sum(mix, rank *ELEMENTS + i), ReduceScatter(data, out, FORM, ncclSum, comm, stream))          \
    X(ALL_GATHER, n, input(world[b], i), AllGather(data, out, FORM, comm, stream))                                     \
    X(SEND, 0, 0, Send(data, FORM, (rank + 1) % n, comm, stream))                                                      \
    X(RECEIVE, 1, input(world[(rank + n - 1) % n], i), Recv(out, FORM, (rank + n - 1) % n, comm, stream))              \
    X(ALL_TO_ALL, n, input(world[b], rank *ELEMENTS + i), AlltoAll(data, out, FORM, comm, stream))                     \
    X(GATHER, rank == root ? n : 0, input(world[b], i), Gather(data, out, FORM, root, comm, stream))                   \
    X(SCATTER, 1, input(world[root], rank *ELEMENTS + i), Scatter(data, out, FORM, root, comm, stream))

enum call {
#define CALL_ENUMERATOR(call_, ...) CALL_##call_,
    CALLS_(CALL_ENUMERATOR)
#undef CALL_ENUMERATOR
    CALLS
};

/* A communicator as one member has it. */
struct mix {
    struct cf_worker *worker;
    const struct cf_set *set;
    int m;
    int32_t *device, *host;
    size_t bytes;
};

static int32_t input(int world_rank, int i)
{
    return world_rank * 100000 + i;
}

static int32_t sum(const struct mix *mix, int i)
{
    int32_t all = 0;
    for (int r = 0; r < mix->set->nranks[mix->m]; r++) {
        all += input(mix->set->world[mix->m][r], i);
    }
    return all;
}

static int32_t *result_in(const struct mix *mix, int32_t *buffer, int call)
{
    return buffer + (size_t)(1 + call) * (size_t)mix->set->nranks[mix->m] * ELEMENTS;
}

static void open_mix(struct mix *mix)
{
    int world_rank = mix->worker->member[mix->m].world_rank, nranks = mix->set->nranks[mix->m];
    CUstream stream = mix->worker->member[mix->m].stream[0];
    CUdeviceptr device;
    mix->bytes = (size_t)((1 + CALLS) * nranks * ELEMENTS) * sizeof(int32_t);
    mix->host = cf_need(mix->worker, calloc(1, mix->bytes));
    for (int i = 0; i < nranks * ELEMENTS; i++) {
        mix->host[i] = result_in(mix, mix->host, CALL_BCAST)[i] = input(world_rank, i); /* the latter is in place */
    }
    CF_CU(mix->worker, MemAlloc(&device, mix->bytes));
    CF_CU(mix->worker, MemcpyHtoDAsync(device, mix->host, mix->bytes, stream));
    CF_CU(mix->worker, StreamSynchronize(stream));
    mix->device = (int32_t *)(uintptr_t)device;
}

static void make_calls(const struct mix *mix)
{
    int rank = mix->set->rank[mix->m], n = mix->set->nranks[mix->m], root = n - 1;
    ncclComm_t comm = mix->set->comm[mix->m];
    CUstream stream = mix->worker->member[mix->m].stream[0];
    const int32_t *data = mix->device;
#define MAKE_CALL(call_, blocks_, value_, made_)                                                                       \
    {                                                                                                                  \
        int32_t *out = result_in(mix, mix->device, CALL_##call_);                                                      \
        (void)out;                                                                                                     \
        CF_NCCL(mix->worker, made_);                                                                                   \
    }
    CALLS_(MAKE_CALL)
#undef MAKE_CALL
}

static void check_and_close(struct mix *mix)
{
    int rank = mix->set->rank[mix->m], n = mix->set->nranks[mix->m], root = n - 1;
    const int *world = mix->set->world[mix->m];
    CUdeviceptr device = (CUdeviceptr)(uintptr_t)mix->device;
    CUstream stream = mix->worker->member[mix->m].stream[0];
    CF_CU(mix->worker, MemcpyDtoHAsync(mix->host, device, mix->bytes, stream));
    CF_CU(mix->worker, StreamSynchronize(stream));
#define CHECK_CALL(call_, blocks_, value_, made_)                                                                      \
    for (int b = 0; b < (blocks_); b++) {                                                                              \
        for (int i = 0; i < ELEMENTS; i++) {                                                                           \
            cf_check(mix->worker, result_in(mix, mix->host, CALL_##call_)[b * ELEMENTS + i] == (value_),               \
                     "%s: block %d element %d", #call_, b, i);                                                         \
        }                                                                                                              \
    }
    CALLS_(CHECK_CALL)
#undef CHECK_CALL
    free(mix->host);
    CF_CU(mix->worker, MemFree(device));
}

static void run_on(struct app *app, const struct cf_set *set, void (*with)(struct cf_batch *), struct cf_batch *batch)
{
    struct mix mix[CF_MAX_RANKS];
    for (int m = 0; cf_use(app->worker, m); m++) {
        mix[m] = (struct mix){.worker = app->worker, .set = set, .m = m};
        if (set->nranks[m] > 0) {
            open_mix(&mix[m]);
        }
    }
    CF_NCCL(app->worker, GroupStart());
    if (with != NULL) {
        with(batch);
    }
    for (int m = 0; cf_use(app->worker, m); m++) {
        if (set->nranks[m] > 0) {
            make_calls(&mix[m]);
        }
    }
    CF_NCCL(app->worker, GroupEnd());
    for (int m = 0; cf_use(app->worker, m); m++) {
        if (set->nranks[m] > 0) {
            check_and_close(&mix[m]);
        }
    }
}

void app_mix_run(struct app *app)
{
    for (int c = 0; c < app_options.comms; c++) {
        run_on(app, &app->set[c], NULL, NULL);
    }
}

void app_mix_run_with(struct app *app, void (*with)(struct cf_batch *), struct cf_batch *batch)
{
    run_on(app, &app->set[0], with, batch);
}
