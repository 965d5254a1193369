/* SPDX-License-Identifier: MIT */
/* graph_chains.c - captured calls that follow one another, and depend on one another or do not */
#define CHECK_WHO "graph_chains.c, "
#include "test/gpu/graph_mixing.h"

/* Waits until all ranks have come here as often. Where ranks are threads, a call that allocates may wait for the
 * kernels of all GPUs, and those for the rank that makes it: so no rank launches before all have made such calls. */
static void meet(const struct rank *rank)
{
    int came = atomic_fetch_add(&rank->board->met, 1) + 1;
    while (atomic_load(&rank->board->met) < (came + options.ranks - 1) / options.ranks * options.ranks) {
        usleep(50);
    }
}

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
static void draw_chain(uint32_t *state, struct chain_call *chain)
{
    int sums[POOL] = {0};
    for (int i = 0; i < CHAIN; i++) {
        struct chain_call *call = &chain[i];
        do {
            call->from = i > 0 && draw(state, 3) == 0 ? chain[i - 1].to : (int)draw(state, POOL);
        } while (sums[call->from] == most_sums());
        call->to = 1 + (int)draw(state, POOL - 1); /* the first one stays as it is */
        call->count = 1 + draw(state, draw(state, 3) ? 300 : options.floats / 2);
        call->send = draw(state, 4) ? 0 : draw(state, (uint32_t)(POOL_COUNT - call->count));
        call->recv = call->to == call->from ? call->send
                     : draw(state, 4)       ? draw(state, 200)
                                            : draw(state, (uint32_t)(POOL_COUNT - call->count));
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
static void *element(CUdeviceptr pool, int buffer, size_t at)
{
    return (void *)(uintptr_t)(pool + ((size_t)buffer * POOL_COUNT + at) * sizeof(float));
}

static CUgraphExec capture_chain(const struct rank *rank, CUstream stream, const struct chain_call *chain,
                                 CUdeviceptr pool)
{
    CUgraph graph;
    CU(begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < CHAIN; i++) {
        NCCL(all_reduce(element(pool, chain[i].from, chain[i].send), element(pool, chain[i].to, chain[i].recv),
                        chain[i].count, ncclFloat, ncclSum, rank->comm, (cudaStream_t)stream));
    }
    CU(end_capture(stream, &graph));
    return instantiate(graph);
}

void chains(struct rank *rank)
{
    const size_t bytes = POOL * POOL_COUNT * sizeof(float);
    const CUstream stream = rank->lane[0].stream;
    struct chain_call chain[CHAIN];
    CUgraphExec exec;
    CUdeviceptr pool;
    float *before, *after, *pools = malloc((size_t)options.ranks * bytes);
    CHECK(pools, "no memory");
    CU(alloc(&pool, bytes));
    CU(host_alloc((void **)&before, bytes, 0));
    CU(host_alloc((void **)&after, bytes, 0));
    for (int r = 0; r < options.ranks; r++) {
        for (size_t i = 0; i < POOL * POOL_COUNT; i++) {
            pool_of(pools, r, 0)[i] = (float)((i * 7 + (size_t)r * 3) % 4);
        }
    }
    memcpy(before, pool_of(pools, rank->rank, 0), bytes);
    float *start = malloc((size_t)options.ranks * bytes);
    CHECK(start, "no memory");
    memcpy(start, pools, (size_t)options.ranks * bytes);
    for (int round = 0; round < 1 + options.rounds / 20; round++) {
        draw_chain(&rank->common, chain);
        exec = capture_chain(rank, stream, chain, pool);
        memcpy(pools, start, (size_t)options.ranks * bytes);
        reckon_chain(chain, pools);
        meet(rank);
        for (int replay = 0; replay < 2; replay++) {
            CU(upload(pool, before, bytes, stream));
            CU(graph_launch(exec, stream));
            CU(download(after, pool, bytes, stream));
            CU(synchronize(stream));
            const float *expected = pool_of(pools, rank->rank, 0);
            for (size_t i = 0; i < POOL * POOL_COUNT; i++) {
                CHECK(after[i] == expected[i], "rank %d chain %d replay %d buffer %zu element %zu is %g, expected %g",
                      rank->rank, round, replay, i / POOL_COUNT, i % POOL_COUNT, (double)after[i], (double)expected[i]);
            }
        }
        meet(rank);
        CU(exec_destroy(exec));
    }
    free(start);
    free(pools);
    CU(host_free(after));
    CU(host_free(before));
    CU(free(pool));
}
