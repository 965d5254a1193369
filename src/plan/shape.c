/* SPDX-License-Identifier: MIT */
/*
 * shape.c - launch shapes: their bounds, and those that no table names
 *
 * Does: Computes blocks and threads from the message, the number of ranks, and what was measured (plan.h).
 * Threads: pure functions.
 * Owns: nothing.
 */
#include "plan/plan.h"

#define MANY_WORDS (96u << 10) /* received: fewer take longer in more than FEW_BLOCKS (2 x H100, 2026-11-26) */
#define FEW_BLOCKS 64u         /* a larger grid begins later behind a kernel of the program (gpu/edge.c) */
#define LEAST_BLOCKS 4u        /* an SM alone sends even 1 KiB more slowly (2 x H100, 2026-11-26) */

uint32_t oh_plan_block_threads(enum onehop_collective collective, uint32_t nranks)
{
    return collective == ONEHOP_BROADCAST ? OH_BROADCAST_BLOCK_THREADS(nranks) : OH_BLOCK_THREADS(nranks);
}

uint32_t oh_plan_grid_threads(enum onehop_collective collective, uint32_t nranks)
{
    return nranks > 4 ? 16384 : 128 * oh_plan_block_threads(collective, nranks);
}

/* A thread for each word of each peer's message (kernels/allgather.cu). False: a grid has no room for that. */
static bool pairs_shape(uint32_t nranks, uint64_t words, uint32_t *blocks_p, uint32_t *threads_p)
{
    const uint32_t peers = nranks - 1, most_threads = oh_plan_block_threads(ONEHOP_ALLGATHER, nranks);
    uint32_t blocks = 1, threads = 64; /* for each peer */
    while (2 * blocks * peers <= FEW_BLOCKS && (uint64_t)blocks * threads < words) {
        blocks *= 2;
    }
    while (threads < most_threads && (uint64_t)blocks * threads < words) {
        threads *= 2;
    }
    if ((uint64_t)blocks * threads < words ||
        blocks * peers * threads > oh_plan_grid_threads(ONEHOP_ALLGATHER, nranks)) {
        return false;
    }
    *blocks_p = blocks * peers;
    *threads_p = threads;
    return true;
}

/* Threads of a sum in quads (kernels/quad.cuh); 0: it has a thread for each word, or for several. */
static uint64_t quad_threads(enum onehop_collective collective, uint32_t nranks, uint64_t words)
{
    const uint64_t most = (uint64_t)FEW_BLOCKS * oh_plan_block_threads(collective, nranks);
    const bool reduces = oh_collective_reduces(collective) && (nranks == 3 || nranks == 4);
    return reduces && words >= OH_QUAD_LEAST_WORDS && 4 * words <= most ? 4 * words : 0;
}

void oh_plan_shape(enum onehop_collective collective, enum onehop_algorithm algorithm, uint32_t nranks, uint64_t bytes,
                   uint32_t *blocks_p, uint32_t *threads_p)
{
    const uint32_t parts = algorithm == ONEHOP_TWOSHOT ? nranks : oh_collective_parts(collective, nranks);
    const uint64_t words = bytes / OH_WORD_BYTES / parts; /* the longest loop's */
    const uint32_t all = oh_plan_grid_threads(collective, nranks);
    const uint64_t received =
        words * (collective == ONEHOP_BROADCAST ? 1 : nranks - 1) * (algorithm == ONEHOP_TWOSHOT ? 2 : 1);
    const bool many = nranks <= 4 && received > MANY_WORDS; /* then blocks of 512 threads, on more SMs */
    const uint32_t most = many ? all / 512 : FEW_BLOCKS,
                   most_threads = many ? 512 : oh_plan_block_threads(collective, nranks);
    const uint64_t quads = quad_threads(collective, nranks, words), wanted = quads > 0 ? quads : words;
    uint32_t blocks = LEAST_BLOCKS, threads = 128;
    if (collective == ONEHOP_ALLGATHER && nranks > 2 && pairs_shape(nranks, words, blocks_p, threads_p)) {
        return;
    }
    while (blocks < most && (uint64_t)blocks * threads < wanted) {
        blocks *= 2;
    }
    while (threads < most_threads && (uint64_t)blocks * threads < wanted && 2 * blocks * threads <= all) {
        threads *= 2;
    }
    *blocks_p = blocks;
    *threads_p = threads;
}
