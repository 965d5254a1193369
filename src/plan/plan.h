/* SPDX-License-Identifier: MIT */
/*
 * plan.h - which algorithm serves a call, and in which shape it is launched
 *
 * A pure function of what is equal on every rank of a communicator: its agreed table, and count and datatype of the
 * call (every op on a type is served alike). Never of pointers, alignment, stream or capture state: ranks that choose
 * differently wait for ever. No state, no locks; usable from any thread.
 */
#ifndef OH_PLAN_PLAN_H_
#define OH_PLAN_PLAN_H_

#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "onehop/onehop.h"
#include "plan/op.h"

#define OH_PLAN_ROWS 32
#define OH_PLAN_NCCL UINT32_MAX /* in place of an algorithm: the call falls back */

/* One row: messages of at most max_bytes (and more than the row before) run `algorithm` on blocks x threads. */
struct oh_plan_row {
    uint64_t max_bytes;
    uint32_t algorithm; /* enum onehop_algorithm, or OH_PLAN_NCCL, with 0 blocks and threads; never in the last row */
    uint32_t blocks;
    uint32_t threads;
    uint32_t reserved;
};

struct oh_plan_rows {
    uint32_t count;
    uint32_t reserved;
    struct oh_plan_row row[OH_PLAN_ROWS];
};

/*
 * All that is known of which algorithm serves what: read from a text (tuning.h), with the user's wishes applied. Rank 0
 * makes it, the shared segment carries it, every rank uses that copy. Plain data: no pointers.
 */
struct oh_plan_table {
    uint32_t nranks;
    uint32_t fp8; /* 1: fp8 is served */
    struct oh_plan_rows rows;
};

/*
 * What fits in the contexts of all ranks at once: multiprocessors, and threads of a kernel on each. Kernels wait for
 * one another's blocks, so that a grid of which blocks wait for room might wait for ever.
 */
struct oh_plan_room {
    uint32_t sms;
    uint32_t sm_threads;
    uint32_t max_blocks; /* that the program allows (maxCTAs of ncclConfig_t); UINT32_MAX: any number */
};

/* Removes the rows at the end that are NCCL's: larger messages fall back without them. */
void oh_plan_rows_trim(struct oh_plan_rows *rows);

/* How one call is launched. */
struct oh_plan {
    enum onehop_algorithm algorithm;
    uint32_t blocks;
    uint32_t threads;
};

/*
 * Applies the user's wishes: max_bytes (messages above it go to NCCL; UINT64_MAX: no wish) and forced (an enum
 * onehop_algorithm, or -1 for the table's own choice).
 */
void oh_plan_table_apply_limits(struct oh_plan_table *table, uint64_t max_bytes, int forced);

/* The shipped table for a GPU that onehop does not know (tuning.h), with the wishes above. */
void oh_plan_table_default(uint32_t nranks, uint64_t max_bytes, int forced, struct oh_plan_table *table_p);

/*
 * A launch shape for messages of `bytes` where no table has one, and the first that the tuner tries: a thread for each
 * word, in small blocks as long as there are blocks. test/gpu/bench_shapes found little better (doc/results).
 */
void oh_plan_shape(enum onehop_algorithm algorithm, uint32_t nranks, uint64_t bytes, uint32_t *blocks_p,
                   uint32_t *threads_p);

/*
 * The most threads of a launch: kernels of several communicators must fit on a GPU together, since each waits for its
 * peers. A row with more is not valid.
 */
uint32_t oh_plan_grid_threads(uint32_t nranks);

/*
 * Blocks of each kernel of a call that goes in parts, of which two are on a GPU at a time: as many as the table says,
 * or half as many, or a quarter..., so that both together have no more threads than one kernel may have, and no more
 * than max_blocks blocks. 0: not even one block each.
 */
uint32_t oh_plan_pipeline_blocks(uint32_t nranks, uint32_t blocks, uint32_t threads, uint32_t max_blocks);

/*
 * The largest message, in bytes, that `algorithm` serves between nranks: all parts of a call are launched one after the
 * other, and must leave room in the launch queue (some 1000 kernels) for a thread that drives other ranks, too.
 */
uint64_t oh_plan_capacity(enum onehop_algorithm algorithm, uint32_t nranks);

/* The most words of OH_WORD_BYTES that one kernel takes; a larger message goes in parts. Here and not in plan.c, as the
 * next: tests have slots of other sizes. */
static inline uint64_t oh_plan_kernel_words(enum onehop_algorithm algorithm, uint32_t nranks)
{
    /* A row of the whole message for each peer; a row of a chunk. */
    return algorithm == ONEHOP_ONESHOT ? OH_SECTION_WORDS(OH_ONESHOT_BYTES, nranks)
                                       : (uint64_t)nranks * OH_SECTION_WORDS(OH_TWOSHOT_BYTES, nranks);
}

/* True when a part of a call may send before the part before it has ended (protocol.cuh, "Pipelines"). */
static inline bool oh_plan_can_send_early(enum onehop_algorithm algorithm, uint32_t nranks)
{
    return algorithm == ONEHOP_ONESHOT && nranks == 2;
}

/* True when a row may stand in a table for nranks (2..8). */
bool oh_plan_row_valid(const struct oh_plan_row *row, uint32_t nranks);

/* True when a table read from shared memory is sane for nranks: bounds of every field, rows in ascending order. */
bool oh_plan_table_valid(const struct oh_plan_table *table, uint32_t nranks);

/*
 * Cuts the grids of a valid table to what fits. Where only max_blocks blocks are allowed, blocks become larger; from
 * the first row on that loses more than three quarters of its threads so, NCCL serves. Returns false, and leaves the
 * table as it was, if a grid would lose more than three quarters of its blocks for want of room, or no row is left:
 * then NCCL, which has chosen its channels for this GPU, does better.
 */
bool oh_plan_table_fit(struct oh_plan_table *table, const struct oh_plan_room *room);

/* The largest message that the table serves, in bytes. */
uint64_t oh_plan_table_end(const struct oh_plan_table *table);

/* Chooses. Returns true and fills *plan_p when onehop serves the call, false when it belongs to NCCL. */
bool oh_plan_choose(const struct oh_plan_table *table, size_t count, ncclDataType_t type, struct oh_plan *plan_p);

/* A count of elements of that type that the table serves, of whatever op; 0: none. */
size_t oh_plan_some_count(const struct oh_plan_table *table, ncclDataType_t type);

/* Name used in logs and in ONEHOP_ALGO ("oneshot", "twoshot"); NULL when out of range. */
const char *oh_algorithm_name(int algorithm);

/* The algorithm of that name, -1 when there is none. */
int oh_algorithm_by_name(const char *name);

#endif
