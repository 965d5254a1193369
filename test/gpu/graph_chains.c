/* SPDX-License-Identifier: MIT */
/* graph_chains.c - captured calls that follow one another, and depend on one another or do not */
#include "test/gpu/graph_mixing.h"

#include <stdlib.h>
#include <string.h>

#define POOL 5
#define POOL_COUNT (size_t) options.floats
#define CHAIN 24 /* calls of a graph */

/* A call from one buffer of the pool to another, or in place. */
struct chain_call {
    int from, to;
    size_t send, recv, count;
};

/* Sums in a buffer stay whole numbers that fp32 has, after so many sums one on another. */
static int most_sums(void)
{
    int sums = 0;
    for (double value = 4.0 * options.ranks; value < 1 << 24; value *= options.ranks) {
        sums++;
    }
    return sums;
}

/* Each call reads what the one before has written, or an earlier one, in whole, in part or not at all. */
static void draw_chain(struct cf_source *source, struct chain_call *chain)
{
    int sums[POOL] = {0};
    for (int i = 0; i < CHAIN; i++) {
        struct chain_call *call = &chain[i];
        do {
            call->from = i > 0 && cf_draw(source, 3) == 0 ? chain[i - 1].to : (int)cf_draw(source, POOL);
        } while (sums[call->from] == most_sums());
        call->to = 1 + (int)cf_draw(source, POOL - 1); /* the first one stays as it is */
        call->count = 1 + cf_draw(source, cf_draw(source, 3) ? 300 : POOL_COUNT / 2);
        call->send = cf_draw(source, 4) ? 0 : cf_draw(source, POOL_COUNT - call->count);
        call->recv = call->to == call->from ? call->send
                     : cf_draw(source, 4)   ? cf_draw(source, 200)
                                            : cf_draw(source, POOL_COUNT - call->count);
        sums[call->to] = sums[call->from] >= sums[call->to] ? sums[call->from] + 1 : sums[call->to];
    }
}

static float *pool_of(float *pools, int rank, int buffer)
{
    return pools + ((size_t)rank * POOL + (size_t)buffer) * POOL_COUNT;
}

/* What the pools of all ranks hold then. */
static void reckon_chain(const struct chain_call *chain, float *pools)
{
    for (int i = 0; i < CHAIN; i++) {
        for (size_t k = 0; k < chain[i].count; k++) {
            float sum = 0;
            for (int r = 0; r < options.ranks; r++) {
                sum += pool_of(pools, r, chain[i].from)[chain[i].send + k];
            }
            for (int r = 0; r < options.ranks; r++) {
                pool_of(pools, r, chain[i].to)[chain[i].recv + k] = sum;
            }
        }
    }
}

/* The address of an element of a buffer. */
static CUdeviceptr element(CUdeviceptr pool, int buffer, size_t at)
{
    return pool + ((size_t)buffer * POOL_COUNT + at) * sizeof(float);
}

static CUgraphExec capture_chain(const struct rank *rank, const struct chain_call *chain, CUdeviceptr pool)
{
    begin_capture(rank, 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    for (int i = 0; i < CHAIN; i++) {
        reduce(rank, element(pool, chain[i].from, chain[i].send), element(pool, chain[i].to, chain[i].recv),
               chain[i].count, 0);
    }
    return instantiate(rank, end_capture(rank, 0));
}

/* Two replays on what is in `before`; `expected` must come out. */
static void replay(const struct rank *rank, CUgraphExec exec, CUdeviceptr pool, const float *before, float *after,
                   const float *expected)
{
    const size_t bytes = POOL * POOL_COUNT * sizeof(float);
    CUstream stream = stream_of(rank, 0);
    for (int r = 0; r < 2; r++) {
        CF_CU(rank->worker, MemcpyHtoDAsync(pool, before, bytes, stream));
        CF_CU(rank->worker, GraphLaunch(exec, stream));
        CF_CU(rank->worker, MemcpyDtoHAsync(after, pool, bytes, stream));
        CF_CU(rank->worker, StreamSynchronize(stream));
        for (size_t i = 0; i < POOL * POOL_COUNT; i++) {
            cf_check(rank->worker, after[i] == expected[i],
                     "chain: replay %d buffer %zu element %zu is %g, expected %g", r, i / POOL_COUNT, i % POOL_COUNT,
                     (double)after[i], (double)expected[i]);
        }
    }
}

void chains(struct rank *rank)
{
    struct cf_worker *worker = rank->worker;
    const size_t bytes = POOL * POOL_COUNT * sizeof(float), all_bytes = (size_t)worker->nranks * bytes;
    float *before, *after, *start = cf_need(worker, calloc(1, all_bytes)), *pools = cf_need(worker, malloc(all_bytes));
    struct chain_call chain[CHAIN];
    CUdeviceptr pool;
    CF_CU(worker, MemAlloc(&pool, bytes));
    CF_CU(worker, MemHostAlloc((void **)&before, bytes, 0));
    CF_CU(worker, MemHostAlloc((void **)&after, bytes, 0));
    for (int r = 0; r < worker->nranks; r++) {
        for (size_t i = 0; i < POOL * POOL_COUNT; i++) {
            pool_of(start, r, 0)[i] = (float)((i * 7 + (size_t)r * 3) % 4);
        }
    }
    memcpy(before, pool_of(start, worker->index, 0), bytes);
    for (int round = 0; round < 1 + options.rounds / 20; round++) {
        draw_chain(&rank->common, chain);
        CUgraphExec exec = capture_chain(rank, chain, pool);
        memcpy(pools, start, all_bytes);
        reckon_chain(chain, pools);
        /* Where ranks are threads, a call that allocates may wait for the kernels of all GPUs, and those for the rank
         * that makes it: so no rank launches before all have made such calls. */
        cf_barrier(worker);
        replay(rank, exec, pool, before, after, pool_of(pools, worker->index, 0));
        cf_barrier(worker);
        CF_CU(worker, GraphExecDestroy(exec));
    }
    free(start);
    free(pools);
    CF_CU(worker, MemFreeHost(after));
    CF_CU(worker, MemFreeHost(before));
    CF_CU(worker, MemFree(pool));
}
