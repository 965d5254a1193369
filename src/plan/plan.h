/* SPDX-License-Identifier: MIT */
/*
 * plan.h - which algorithm serves a call, and in which shape; what its datatype and op mean to the kernels
 *
 * Does: Computes both from what is equal on all ranks: the agreed table, collective, count and datatype. Never from
 *    pointers, alignment, stream or capture state: ranks that choose differently wait forever. The scalar of a
 *    PreMulSum op, which alone may differ between ranks, never enters a decision.
 * Threads: pure functions.
 * Owns: nothing.
 */
#ifndef OH_PLAN_PLAN_H_
#define OH_PLAN_PLAN_H_

#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/abi.h"
#include "onehop/onehop.h"

/* --- op.c: NCCL's types and ops to those of the kernels ----------------------------------------------------------- */

/* The last two of ncclDataType_t, which older nccl.h do not name (since NCCL 2.24). */
#define OH_NCCL_FP8_E4M3 ((ncclDataType_t)10)
#define OH_NCCL_FP8_E5M2 ((ncclDataType_t)11)
#define OH_NCCL_TYPES 12

/* What an op makes of the elements of all ranks. */
struct oh_op {
    enum oh_kernel_op kind;
    uint64_t operand;   /* as in struct oh_kernel_args */
    const void *scalar; /* likewise */
};

/* Bytes of one element; 0 for a value outside ncclDataType_t. */
size_t oh_type_size(ncclDataType_t type);

/* The kernels' type; -1 for a value outside ncclDataType_t. */
int oh_type_kernel(ncclDataType_t type);

/* Returns whether NCCL takes the type from compute capability 9.0 on only. */
bool oh_type_is_fp8(ncclDataType_t type);

/* Gets one of NCCL's own five ops. Returns false for another op or no type. */
bool oh_op_builtin(ncclRedOp_t op, ncclDataType_t type, struct oh_op *op_p);

/*
 * Gets an op of ncclRedOpCreatePreMulSum. scalar: one element, read now, or if `on_device` by the kernels. Returns
 * false without type or scalar.
 */
bool oh_op_scaled(ncclDataType_t type, const void *scalar, bool on_device, struct oh_op *op_p);

/* --- plan.c ------------------------------------------------------------------------------------------------------- */

#define OH_PLAN_ROWS 32
#define OH_PLAN_NCCL UINT32_MAX /* in place of an algorithm: the call falls back */

/* Messages larger than max_bytes of the row before, up to max_bytes, run `algorithm` on blocks x threads. */
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
 * Made by rank 0 from a text (tuning.h) and the user's limits. All ranks use the copy in the shared segment. Bytes are
 * those of the larger of a call's buffers, as in nccl-tests.
 */
struct oh_plan_table {
    uint32_t nranks;
    uint32_t fp8; /* 1: fp8 is reduced */
    struct oh_plan_rows rows[ONEHOP_COLLECTIVE_COUNT];
};

/* What fits in the contexts of all ranks: a grid that does not fit could wait for blocks of peers forever. */
struct oh_plan_room {
    uint32_t sms;                                 /* multiprocessors */
    uint32_t sm_threads[ONEHOP_COLLECTIVE_COUNT]; /* of a kernel on each of them */
    uint32_t max_blocks;                          /* maxCTAs of ncclConfig_t; UINT32_MAX: not limited */
};

/* Returns the least sm_threads of all collectives. */
uint32_t oh_plan_room_threads(const struct oh_plan_room *room);

/* Removes the rows at the end that are NCCL's: larger messages fall back without them. */
void oh_plan_rows_trim(struct oh_plan_rows *rows);

/* How one call is launched. */
struct oh_plan {
    enum onehop_collective collective;
    enum onehop_algorithm algorithm;
    uint32_t blocks;
    uint32_t threads;
};

/*
 * Applies the user's limits: max_bytes (larger messages fall back; UINT64_MAX: no limit), and the algorithm to which
 * allreduce is forced (-1: the table's).
 */
void oh_plan_table_apply_limits(struct oh_plan_table *table, uint64_t max_bytes, int forced);

/* Leaves the collectives out that are not in the set, by bit. */
void oh_plan_table_keep(struct oh_plan_table *table, uint32_t collectives);

/*
 * Has `algorithm` serve messages from the end of the rows up to `end`, in computed shapes; sizes of one shape share a
 * row. Returns false if there is no room for a further row; those before it stay.
 */
bool oh_plan_table_extend(struct oh_plan_table *table, enum onehop_collective collective,
                          enum onehop_algorithm algorithm, uint64_t end);

/* Computes a table without a measurement, from hops and the GB/s of a GPU's NVLinks in one direction. */
void oh_plan_table_model(struct oh_plan_table *table_p, uint32_t nranks, unsigned link_gbps);

/*
 * Returns the most blocks that two kernels of a communicator may have together while both wait, as far as a kernel of
 * this collective and block size allows it. The sum must exceed neither kernel's limit.
 */
uint32_t oh_plan_pair_blocks(const struct oh_plan_room *room, enum onehop_collective collective, uint32_t threads);

/*
 * Returns the largest message, in bytes, that `algorithm` serves. A call's parts must leave room in the launch queue
 * (about 1000 kernels) for other ranks of the same thread.
 */
uint64_t oh_plan_capacity(enum onehop_collective collective, enum onehop_algorithm algorithm, uint32_t nranks);

/*
 * Returns the most words that one kernel takes of a call's count (of a part, where each rank has one); more go in
 * several kernels. Inline, because tests have other slot sizes.
 */
static inline uint64_t oh_plan_kernel_words(enum onehop_algorithm algorithm, uint32_t nranks)
{
    return OH_SECTION_WORDS(nranks) * (algorithm == ONEHOP_ONESHOT ? 1ull : nranks);
}

/* Check a row, and a table from a text or from shared memory: bounds of every field, rows in ascending order. */
bool oh_plan_row_valid(const struct oh_plan_row *row, enum onehop_collective collective, uint32_t nranks);
bool oh_plan_table_valid(const struct oh_plan_table *table, uint32_t nranks);

/*
 * Cuts the grids of a valid table to the room: fewer blocks than the table's become larger, and no grid takes more than
 * half of what is resident at a time, so that two communicators whose calls meet in other orders on two ranks do not
 * wait for each other's blocks. Where NCCL is faster with as few blocks, the rows end, but those of what an invariant
 * communicator reduces. Returns false, and leaves the table unchanged, if there is no room at all.
 */
bool oh_plan_table_fit(struct oh_plan_table *table, const struct oh_plan_room *room, bool invariant);

/* For a communicator that is invariant. Gives the collectives that reduce rows, where they have none. */
void oh_plan_table_fill(struct oh_plan_table *table);

/* Has these collectives serve every size, where they have rows: rows that are NCCL's go, and the last has no end. */
void oh_plan_table_complete(struct oh_plan_table *table);

/* Returns the largest message that the table serves, in bytes: of a collective, of all. */
uint64_t oh_plan_rows_end(const struct oh_plan_rows *rows);
uint64_t oh_plan_table_end(const struct oh_plan_table *table);

/* Returns whether onehop serves the call, whose count is as NCCL's function has it; then fills *plan_p. */
bool oh_plan_choose(const struct oh_plan_table *table, enum onehop_collective collective, size_t count,
                    ncclDataType_t type, struct oh_plan *plan_p);

/* Returns whether the kernels of the table's GPUs know the type, whatever the size. */
bool oh_plan_has_type(const struct oh_plan_table *table, enum onehop_collective collective, ncclDataType_t type);

/* Returns whether the collective reduces; else it moves bytes. */
static inline bool oh_collective_reduces(enum onehop_collective collective)
{
    return collective == ONEHOP_ALLREDUCE || collective == ONEHOP_REDUCESCATTER;
}

/* Returns whether the larger buffer has a part for each rank; the parts of that buffer, each of `count` elements. */
static inline bool oh_collective_has_parts(enum onehop_collective collective)
{
    return collective == ONEHOP_ALLGATHER || collective == ONEHOP_REDUCESCATTER;
}
static inline uint32_t oh_collective_parts(enum onehop_collective collective, uint32_t nranks)
{
    return oh_collective_has_parts(collective) ? nranks : 1;
}

/* "allreduce", "allgather", ..., as in logs, tables and ONEHOP_COLLECTIVES; oh_collective_name: NULL out of range. */
extern const char *const oh_collective_names[ONEHOP_COLLECTIVE_COUNT];
const char *oh_collective_name(int collective);

/* The collective whose name is the first `length` characters; -1: there is none. */
int oh_collective_by_name(const char *name, size_t length);

/* "oneshot" or "twoshot", as in logs and ONEHOP_ALGO; NULL when out of range. */
const char *oh_algorithm_name(int algorithm);

/* The algorithm of that name; -1: there is none. */
int oh_algorithm_by_name(const char *name);

/* --- shape.c ------------------------------------------------------------------------------------------------------ */

/*
 * Computes a launch shape where a table names none, and the tuner's first candidate: a thread for each word, as long as
 * there are threads, in small blocks on 4 to 64 SMs, then in larger blocks; on twice as many SMs if a thread receives
 * many words. Where a grid has room for as many, small all-gathers of more than two ranks have a thread for each word
 * and peer, small sums of three and four ranks four for each word. Without these two, no other shape of 9 to 23 was
 * more than 4 % faster at a measured size (2, 3 and 4 x H100, 2026-11-26).
 */
void oh_plan_shape(enum onehop_collective collective, enum onehop_algorithm algorithm, uint32_t nranks, uint64_t bytes,
                   uint32_t *blocks_p, uint32_t *threads_p);

/* Returns the most threads of a block. */
uint32_t oh_plan_block_threads(enum onehop_collective collective, uint32_t nranks);

/* Returns the most threads of a launch: the kernels of two communicators fit on a GPU together. */
uint32_t oh_plan_grid_threads(enum onehop_collective collective, uint32_t nranks);

#endif
