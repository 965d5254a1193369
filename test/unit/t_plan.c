/* SPDX-License-Identifier: MIT */
/*
 * t_plan.c - the choice of algorithm: tables for every number of ranks, limits, wishes, and tables from a stranger
 */
#include <stdint.h>
#include <string.h>

#include "kernels/abi.h"
#include "plan/plan.h"
#include "test/unit/default_table.h"
#include "test/tap.h"

static void test_rows(const struct oh_plan_table *table, ncclDataType_t type)
{
    const struct oh_plan_rows *rows = &table->rows[ONEHOP_ALLREDUCE];
    size_t size = oh_type_size(type);
    struct oh_plan plan;
    bool right = rows->count > 2;
    for (uint32_t i = 0; i < rows->count; i++) {
        /* At the end of each row its own algorithm, one element later the next one's. */
        size_t count = rows->row[i].max_bytes / size;
        right &= oh_plan_choose(table, ONEHOP_ALLREDUCE, count, type, &plan) &&
                 plan.algorithm == rows->row[i].algorithm && plan.blocks == rows->row[i].blocks;
        bool served = oh_plan_choose(table, ONEHOP_ALLREDUCE, count + 1, type, &plan);
        right &= served == (i + 1 < rows->count) && (!served || plan.algorithm == rows->row[i + 1].algorithm);
    }
    tap_ok(right, "n=%u: each row begins and ends where it says, in elements of %zu bytes", table->nranks, size);
}

/* Of any number of ranks and type, each size up to the end of the rows is served, and none above. */
static void test_no_gaps(enum onehop_collective collective, uint32_t n)
{
    struct oh_plan_table table;
    struct oh_plan plan;
    bool right = true;
    default_table(n, UINT64_MAX, -1, &table);
    const uint64_t end = oh_plan_rows_end(&table.rows[collective]);
    for (int type = 0; type < OH_NCCL_TYPES - 2; type++) {
        const size_t size = oh_type_size((ncclDataType_t)type) * oh_collective_parts(collective, n);
        for (uint64_t count = 1; count <= 2 * end / size; count += 1 + count / 50) {
            right &= oh_plan_choose(&table, collective, count, (ncclDataType_t)type, &plan) == (count * size <= end);
        }
    }
    tap_ok(right, "n=%u, %s: all sizes up to the end of its rows are served", n, oh_collective_name((int)collective));
}

static void test_default_table(uint32_t n)
{
    struct oh_plan_table table;
    default_table(n, UINT64_MAX, -1, &table);
    tap_ok(oh_plan_table_valid(&table, n), "n=%u: the default table is valid", n);
    test_rows(&table, ncclFloat32);
    test_rows(&table, ncclUint8);
    for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT; c++) {
        test_no_gaps((enum onehop_collective)c, n);
    }
}

/* The same for all collectives. */
static struct oh_plan_room room_of(uint32_t sms, uint32_t sm_threads, uint32_t max_blocks)
{
    struct oh_plan_room room = {.sms = sms, .max_blocks = max_blocks};
    for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT; c++) {
        room.sm_threads[c] = sm_threads;
    }
    return room;
}

/* Blocks that leave another communicator as many; one is always let in. */
static uint32_t half_of(const struct oh_plan_room *room, uint32_t threads)
{
    const uint32_t resident = room->sms * (room->sm_threads[0] / threads);
    return resident < 2 ? 1 : resident / 2;
}

/* All rows are there, fit, and are no larger than before, but for whole warps. */
static bool are_cut(const struct oh_plan_rows *rows, const struct oh_plan_rows *before, const struct oh_plan_room *room)
{
    bool right = rows->count == before->count && oh_plan_rows_end(rows) == oh_plan_rows_end(before);
    for (uint32_t i = 0; right && i < rows->count; i++) {
        const struct oh_plan_row *row = &rows->row[i], *was = &before->row[i];
        right &= row->blocks <= room->max_blocks && row->blocks <= was->blocks && row->threads <= room->sm_threads[0] &&
                 row->blocks <= half_of(room, row->threads) &&
                 row->blocks * row->threads <= was->blocks * was->threads + 32 * row->blocks;
    }
    return right;
}

/* Whatever room there is that is not 0: grids that fit, of whole warps, no larger than the table's. */
static void test_room(void)
{
    bool right = true;
    for (uint32_t n = 2; n <= OH_MAX_RANKS; n++) {
        for (uint32_t blocks = 0; blocks <= 160; blocks++) {
            for (uint32_t threads = 0; threads <= 2048; threads += 32) {
                const struct oh_plan_room room =
                    room_of(1 + blocks % 140, threads, blocks == 160 ? UINT32_MAX : blocks);
                struct oh_plan_table whole, table;
                default_table(n, UINT64_MAX, -1, &whole);
                table = whole;
                const bool fits = oh_plan_table_fit(&table, &room, true);
                right &= fits == (threads > 0 && blocks > 0) && oh_plan_table_valid(&table, n);
                right &= fits || memcmp(&table, &whole, sizeof table) == 0;
                for (int c = 0; fits && c < ONEHOP_COLLECTIVE_COUNT; c++) {
                    right &= oh_collective_reduces((enum onehop_collective)c)
                                 ? are_cut(&table.rows[c], &whole.rows[c], &room)
                                 : table.rows[c].count > 0 && table.rows[c].count <= whole.rows[c].count;
                }
            }
        }
    }
    tap_ok(right, "every row fits every room that is not 0");
}

static bool serves_every_size(const struct oh_plan_table *table, enum onehop_collective collective)
{
    const uint64_t end = UINT64_MAX / (4 * oh_collective_parts(collective, table->nranks)); /* of what has bytes */
    struct oh_plan plan;
    bool right = true;
    for (uint64_t count = 1; count < end / 2; count += 1 + count / 3) {
        right &= oh_plan_choose(table, collective, count, ncclFloat32, &plan) && plan.blocks > 0;
    }
    return right;
}

/* Every size of every table, also of one with gaps, or without rows. */
static void test_every_size(void)
{
    bool right = true;
    for (uint32_t n = 2; n <= OH_MAX_RANKS; n++) {
        for (uint32_t gaps = 0; gaps <= 16; gaps++) { /* rows that are NCCL's, by bit; 16: all are missing */
            for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT; c++) {
                struct oh_plan_table table;
                default_table(n, UINT64_MAX, -1, &table);
                struct oh_plan_rows *rows = &table.rows[c];
                for (uint32_t i = 0; i + 1 < rows->count && i < 4; i++) {
                    if (gaps & 1u << i) {
                        rows->row[i] =
                            (struct oh_plan_row){.max_bytes = rows->row[i].max_bytes, .algorithm = OH_PLAN_NCCL};
                    }
                }
                rows->count = gaps == 16 ? 0 : rows->count;
                const struct oh_plan_rows before = *rows;
                const bool fills = gaps == 16 && oh_collective_reduces((enum onehop_collective)c);
                oh_plan_table_fill(&table);
                right &= oh_plan_table_valid(&table, n) && (memcmp(rows, &before, sizeof before) != 0) == fills;
                oh_plan_table_complete(&table);
                right &= serves_every_size(&table, (enum onehop_collective)c) ==
                         oh_collective_reduces((enum onehop_collective)c);
            }
        }
    }
    tap_ok(right, "invariant: every size is reduced");
}

static void test_what_is_not_served(void)
{
    struct oh_plan_table table;
    struct oh_plan plan;
    bool right = true;
    default_table(4, UINT64_MAX, -1, &table);
    for (int fp8 = 0; fp8 < 2; fp8++) {
        table.fp8 = (uint32_t)fp8;
        for (int type = -1; type < 15; type++) {
            bool expected = type >= 0 && type < (fp8 ? 12 : 10);
            right &= oh_plan_choose(&table, ONEHOP_ALLREDUCE, 10, (ncclDataType_t)type, &plan) == expected;
        }
    }
    table.fp8 = 0;
    for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT; c++) {
        right &= oh_plan_choose(&table, (enum onehop_collective)c, 10, OH_NCCL_FP8_E4M3, &plan) ==
                 !oh_collective_reduces((enum onehop_collective)c);
    }
    tap_ok(right, "served: every type, fp8 where the table says so or nothing is reduced; nothing that is no type");
    plan = (struct oh_plan){ONEHOP_ALLREDUCE, ONEHOP_TWOSHOT, 7, 7};
    tap_ok(!oh_plan_choose(&table, ONEHOP_ALLREDUCE, 0, ncclFloat32, &plan) && plan.blocks == 7,
           "count 0 is not served");
    tap_ok(!oh_plan_choose(&table, ONEHOP_ALLREDUCE, SIZE_MAX, ncclFloat32, &plan), "a count whose bytes overflow");
    tap_ok(!oh_plan_choose(&table, ONEHOP_ALLREDUCE, SIZE_MAX / 4 + 2, ncclFloat32, &plan),
           "a count whose bytes wrap to few");
}

static void test_wishes(void)
{
    struct oh_plan_table table;
    struct oh_plan plan;
    default_table(4, 1000, -1, &table);
    tap_ok(oh_plan_table_end(&table) == 1000 && oh_plan_choose(&table, ONEHOP_ALLREDUCE, 250, ncclFloat32, &plan) &&
               !oh_plan_choose(&table, ONEHOP_ALLREDUCE, 251, ncclFloat32, &plan) &&
               !oh_plan_choose(&table, ONEHOP_ALLREDUCE, 251, ncclInt32, &plan),
           "a cap below the default one");
    default_table(4, UINT64_C(64) << 20, -1, &table);
    tap_ok(oh_plan_table_end(&table) == UINT64_C(64) << 20 && oh_plan_table_valid(&table, 4),
           "a cap above the default one");
    default_table(4, UINT64_C(128) << 20, -1, &table);
    tap_ok(oh_plan_rows_end(&table.rows[ONEHOP_ALLREDUCE]) == UINT64_C(128) << 20 &&
               oh_plan_rows_end(&table.rows[ONEHOP_ALLGATHER]) == UINT64_C(64) << 20 &&
               oh_plan_rows_end(&table.rows[ONEHOP_BROADCAST]) == UINT64_C(64) << 20 && oh_plan_table_valid(&table, 4),
           "a cap above what a collective other than allreduce may have");
    oh_plan_table_keep(&table, 0);
    const struct oh_plan_table none = table;
    oh_plan_table_apply_limits(&table, 1 << 20, -1);
    tap_ok(memcmp(&table, &none, sizeof none) == 0, "a cap of a table without rows");
    default_table(4, 0, -1, &table);
    tap_ok(oh_plan_table_valid(&table, 4) && !oh_plan_choose(&table, ONEHOP_ALLREDUCE, 1, ncclFloat32, &plan),
           "a cap of 0: nothing is served");
}

/* An algorithm asked for: for all that it can carry. */
static void test_forced(int algorithm, uint32_t n)
{
    struct oh_plan_table table;
    default_table(n, UINT64_MAX, -1, &table);
    const uint64_t end = oh_plan_table_end(&table),
                   most = oh_plan_capacity(ONEHOP_ALLREDUCE, (enum onehop_algorithm)algorithm, n);
    default_table(n, OH_MESSAGE_BYTES, algorithm, &table);
    const bool serves_most = oh_plan_rows_end(&table.rows[ONEHOP_ALLREDUCE]) == most && oh_plan_table_valid(&table, n);
    default_table(n, UINT64_MAX, algorithm, &table);
    const struct oh_plan_rows *rows = &table.rows[ONEHOP_ALLREDUCE];
    bool right = serves_most && rows->count > 0 && oh_plan_table_end(&table) == (end < most ? end : most);
    for (uint32_t i = 0; i < rows->count; i++) {
        right &= (int)rows->row[i].algorithm == algorithm;
    }
    tap_ok(right && oh_plan_table_valid(&table, n), "n=%u: %s for all that it can carry", n,
           oh_algorithm_name(algorithm));
}

/* What a kernel takes fits its slots, and these into the staging memory: computed here from the kernels' layout. */
static void test_slots(uint32_t n)
{
    const uint64_t row = n - 1, word = OH_WORD_BYTES;
    const uint64_t one = oh_plan_kernel_words(ONEHOP_ONESHOT, n), two = oh_plan_kernel_words(ONEHOP_TWOSHOT, n);
    tap_ok(one * row * word <= OH_SLOT_BYTES(n) && (two + n - 1) / n * row * word <= OH_SLOT_BYTES(n) &&
               two >= OH_PART_WORDS(n),
           "n=%u: the largest message of a kernel fits a slot", n);
    tap_ok(oh_plan_capacity(ONEHOP_ALLREDUCE, ONEHOP_ONESHOT, n) <= 256 * one * word &&
               oh_plan_capacity(ONEHOP_ALLREDUCE, ONEHOP_ONESHOT, n) >= 27 << 20 &&
               oh_plan_capacity(ONEHOP_ALLREDUCE, ONEHOP_TWOSHOT, n) == OH_MESSAGE_BYTES,
           "n=%u: a call goes in 256 kernels at most", n);
}

static uint32_t most_threads(enum onehop_collective collective, uint32_t n)
{
    return n > 4 ? 256 : n > 2 || collective == ONEHOP_BROADCAST ? 512 : 1024;
}

/* At most so many blocks: as many threads as before, or as many as these may have. */
static void test_max_blocks(uint32_t n)
{
    struct oh_plan_table whole, table;
    default_table(n, UINT64_MAX, -1, &whole);
    bool right = true;
    for (uint32_t most = 1; most <= OH_MAX_BLOCKS; most++) {
        const struct oh_plan_room room = room_of(132, 2048, most);
        table = whole;
        right &= oh_plan_table_fit(&table, &room, true) && oh_plan_table_end(&table) == oh_plan_table_end(&whole);
        for (uint32_t k = 0; k < ONEHOP_COLLECTIVE_COUNT * OH_PLAN_ROWS; k++) {
            const uint32_t c = k / OH_PLAN_ROWS, i = k % OH_PLAN_ROWS;
            const struct oh_plan_row *row = &table.rows[c].row[i], *was = &whole.rows[c].row[i];
            if (i < table.rows[c].count) {
                const uint32_t asked = was->blocks * was->threads,
                               all = oh_plan_grid_threads((enum onehop_collective)c, n) - 32 * row->blocks;
                right &= row->threads >= was->threads && (row->threads == most_threads((enum onehop_collective)c, n) ||
                                                          row->blocks * row->threads >= (asked < all ? asked : all));
                right &= was->blocks > most || (row->blocks == was->blocks && row->threads == was->threads);
            }
        }
    }
    tap_ok(right, "n=%u: no more blocks than the program allows", n);
}

/* Each collective has the room of its own kernels, and the least counts where one number must do. */
static void test_room_of_each(void)
{
    const struct oh_plan_room room = {.sms = 132, .sm_threads = {2048, 512, 768, 1024}, .max_blocks = UINT32_MAX};
    const struct oh_plan_room none = room_of(0, 2048, UINT32_MAX);
    struct oh_plan_table table;
    default_table(2, UINT64_MAX, -1, &table);
    bool right = oh_plan_table_fit(&table, &room, true) && oh_plan_room_threads(&room) == 512;
    const struct oh_plan_rows *reduce = &table.rows[ONEHOP_ALLREDUCE], *scatter = &table.rows[ONEHOP_REDUCESCATTER];
    right &= reduce->row[reduce->count - 1].blocks == 256 && scatter->row[scatter->count - 1].blocks == 66;
    tap_ok(right, "a collective's grids are cut to the room of its own kernels");
    tap_ok(!oh_plan_table_fit(&table, &none, true), "no multiprocessors are no room");
}

/* A row that is NCCL's, and few blocks for a large message, which the table asks for. */
static void test_fitting_rows(void)
{
    const struct oh_plan_room room = room_of(132, 1024, UINT32_MAX);
    struct oh_plan_table table = {.nranks = 2}, whole;
    table.rows[ONEHOP_ALLREDUCE] =
        (struct oh_plan_rows){.count = 2, .row = {{1024, OH_PLAN_NCCL, 0, 0, 0}, {8 << 20, ONEHOP_ONESHOT, 1, 512, 0}}};
    whole = table;
    tap_ok(oh_plan_table_valid(&table, 2) && oh_plan_table_fit(&table, &room, false) &&
               memcmp(&table, &whole, sizeof table) == 0,
           "rows that fit stay as they are");
}

/* With few blocks NCCL has the large messages: of which a block would send more than 512 KiB. */
static void test_end_of_few_blocks(void)
{
    static const struct {
        enum onehop_collective collective;
        uint32_t nranks, blocks;
        uint64_t kib; /* where the rows end */
    } ends[] = {
        {ONEHOP_ALLREDUCE, 2, 1, 512},      {ONEHOP_ALLREDUCE, 2, 8, 4096},  {ONEHOP_ALLGATHER, 2, 4, 4096},
        {ONEHOP_REDUCESCATTER, 2, 2, 2048}, {ONEHOP_BROADCAST, 2, 4, 2048},  {ONEHOP_ALLREDUCE, 3, 2, 768},
        {ONEHOP_ALLGATHER, 5, 2, 1280},     {ONEHOP_BROADCAST, 2, 64, 8192}, {ONEHOP_ALLREDUCE, 2, 200, 8192},
    };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const struct oh_plan_room room = room_of(132, 1024, ends[i].blocks);
        struct oh_plan_table table;
        oh_plan_table_model(&table, ends[i].nranks, 300);
        oh_plan_table_apply_limits(&table, 8 << 20, -1);
        oh_plan_table_fit(&table, &room, false);
        tap_ok(oh_plan_rows_end(&table.rows[ends[i].collective]) == ends[i].kib << 10 &&
                   oh_plan_table_valid(&table, ends[i].nranks),
               "%s, n=%u, %u blocks: NCCL from %llu KiB on", oh_collective_name(ends[i].collective), ends[i].nranks,
               ends[i].blocks, (unsigned long long)ends[i].kib);
        oh_plan_table_model(&table, ends[i].nranks, 300);
        oh_plan_table_apply_limits(&table, 8 << 20, -1);
        oh_plan_table_fit(&table, &room, true);
        tap_ok(oh_plan_rows_end(&table.rows[ends[i].collective]) ==
                   (oh_collective_reduces(ends[i].collective) ? 8 << 20 : ends[i].kib << 10),
               "... where it is invariant, only if nothing is reduced");
    }
}

static void test_foreign_tables(enum onehop_collective collective)
{
    const char *name = oh_collective_name(collective);
    struct oh_plan_table good, bad;
    struct oh_plan_rows *rows = &bad.rows[collective];
    default_table(4, UINT64_MAX, -1, &good);
    tap_ok(oh_plan_table_valid(&good, 4) && !oh_plan_table_valid(&good, 3), "%s: a table for another number of ranks",
           name);
#define REJECTS(change_, text_)                                                                                        \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        change_;                                                                                                       \
        tap_ok(!oh_plan_table_valid(&bad, 4), "%s: " text_, name);                                                     \
    } while (0)
    REJECTS(bad.fp8 = 2, "something other than yes or no for fp8");
    REJECTS(rows->count = OH_PLAN_ROWS + 1, "too many rows");
    REJECTS(rows->row[0].algorithm = ONEHOP_ALGORITHM_COUNT, "an algorithm that does not exist");
    REJECTS(rows->row[1].blocks = 0, "no blocks");
    REJECTS(rows->row[1].blocks = OH_MAX_BLOCKS + 1, "too many blocks");
    REJECTS(rows->row[0].threads = 0, "no threads");
    REJECTS(rows->row[0].threads = 48, "part of a warp");
    REJECTS(rows->row[0].threads = OH_BLOCK_THREADS(4) + 32, "too many threads");
    REJECTS(rows->row[0].blocks = OH_MAX_BLOCKS;
            rows->row[0].threads = OH_BROADCAST_BLOCK_THREADS(4), "more threads than a grid has");
    if (collective != ONEHOP_ALLREDUCE) {
        REJECTS(rows->row[0].algorithm = ONEHOP_TWOSHOT, "two-shot, which it does not have");
    }
    REJECTS(rows->row[0].algorithm = OH_PLAN_NCCL, "blocks for what NCCL has");
    REJECTS(
        (rows->row[rows->count - 1] = (struct oh_plan_row){.max_bytes = OH_MESSAGE_BYTES, .algorithm = OH_PLAN_NCCL}),
        "a last row that is NCCL's");
    REJECTS(rows->row[1].max_bytes = rows->row[0].max_bytes, "rows out of order");
    REJECTS(rows->row[rows->count - 1].max_bytes = (uint64_t)OH_MESSAGE_BYTES + 1, "more than any message");
#undef REJECTS
}

static void test_ops(void)
{
    const uint32_t scalar = 0x40490fdb;
    struct oh_op op, other;
    bool right = true;
    for (int type = -1; type < 14; type++) {
        for (int i = -1; i < 8; i++) {
            bool expected = type >= 0 && type < 12 && i >= 0 && i < ncclNumOps;
            right &= oh_op_builtin((ncclRedOp_t)i, (ncclDataType_t)type, &op) == expected;
        }
    }
    tap_ok(right, "NCCL's five ops on its twelve types are known, others are not");
    tap_ok(oh_op_builtin(ncclMin, ncclInt8, &op) && op.operand == 0x80 && oh_op_builtin(ncclMin, ncclUint8, &op) &&
               op.operand == 0 && oh_op_builtin(ncclAvg, ncclInt64, &op) && op.operand == UINT64_C(1) << 63,
           "integers bring their sign bit");
    tap_ok(oh_op_scaled(ncclFloat32, &scalar, false, &op) && op.operand == scalar && !op.scalar &&
               oh_op_scaled(ncclFloat32, &scalar, true, &other) && other.scalar == &scalar &&
               !oh_op_scaled(ncclFloat32, NULL, false, &op) &&
               !oh_op_scaled((ncclDataType_t)OH_NCCL_TYPES, &scalar, false, &op),
           "a scalar by value, and one by pointer");
}

static void test_names(void)
{
    bool right = true;
    for (int a = 0; a < ONEHOP_ALGORITHM_COUNT; a++) {
        right &= oh_algorithm_by_name(oh_algorithm_name(a)) == a;
    }
    tap_ok(right && !oh_algorithm_name(-1) && !oh_algorithm_name(ONEHOP_ALGORITHM_COUNT) &&
               oh_algorithm_by_name("ring") == -1,
           "names of algorithms");
    tap_ok(oh_type_size(ncclFloat16) == 2 && oh_type_size(ncclInt64) == 8 && oh_type_size((ncclDataType_t)99) == 0 &&
               oh_type_size((ncclDataType_t)-1) == 0,
           "sizes of types");
}

static void test_staging(uint32_t n)
{
    const uint64_t end = OH_SLOT_OFFSET(OH_GATHER_SLOT + 1, n) + OH_SLOT_BYTES(n);
    const unsigned most_mib = n == 2 ? 36 : n <= 4 ? 52 : 32;
    tap_ok(OH_SECTION_WORDS(n) % OH_LINE_WORDS == 0 && OH_WORDS_OFFSET % (OH_LINE_WORDS * OH_WORD_BYTES) == 0,
           "n=%u: sections begin with lines", n);
    tap_ok(OH_ESCAPE_OFFSET + (end - OH_WORDS_OFFSET) / OH_WORD_BYTES <= OH_ESCAPE_END &&
               OH_ESCAPE_END <= OH_WORDS_OFFSET && end <= OH_STAGING_BYTES(n) && OH_STAGING_BYTES(n) < most_mib << 20,
           "n=%u: all slots and their escape bytes fit the staging memory of %u MiB", n, OH_STAGING_BYTES(n) >> 20);
}

/* The row of messages up to so many bytes, as it is computed. */
static struct oh_plan_row shaped_row(enum onehop_collective collective, enum onehop_algorithm algorithm, uint32_t n,
                                     uint64_t bytes)
{
    struct oh_plan_row row = {.max_bytes = bytes, .algorithm = algorithm};
    oh_plan_shape(collective, algorithm, n, bytes, &row.blocks, &row.threads);
    return row;
}

/* Small all-gathers have a thread for each word and peer, in blocks that each have one peer (kernels/allgather.cu). */
static void test_pairs(uint32_t n)
{
    const uint64_t most = n > 4 ? 16384 : 65536; /* threads of a grid */
    bool right = true;
    for (uint64_t words = 1; n * words * OH_WORD_BYTES <= 16 << 20; words += 1 + words / 7) {
        const struct oh_plan_row row = shaped_row(ONEHOP_ALLGATHER, ONEHOP_ONESHOT, n, n * words * OH_WORD_BYTES);
        right &= oh_plan_row_valid(&row, ONEHOP_ALLGATHER, n);
        const bool pairs = row.blocks / (n - 1) * (uint64_t)row.threads >= words;
        right &= pairs ? row.blocks <= 64 : words * (n - 1) > most / 8 * 3;
    }
    tap_ok(right, "n=%u: a small all-gather has a thread for each word and peer", n);
}

/* Sums of few words have four threads for each, in blocks that are launched early (kernels/quad.cuh). */
static void test_quads(enum onehop_collective collective, enum onehop_algorithm algorithm, uint32_t n)
{
    const uint32_t parts = algorithm == ONEHOP_TWOSHOT ? n : oh_collective_parts(collective, n);
    uint32_t quads = 0;
    bool right = true;
    for (uint64_t words = 1; words <= 1 << 18; words += 1 + words / 7) {
        const struct oh_plan_row row = shaped_row(collective, algorithm, n, parts * words * OH_WORD_BYTES);
        const uint32_t threads = row.blocks * row.threads; /* of the grid */
        const bool is_small = words >= OH_QUAD_LEAST_WORDS && words <= 8192;
        right &= oh_plan_row_valid(&row, collective, n) &&
                 (!is_small || (row.blocks <= 64 && threads >= 4 * words && threads < 8 * words));
        quads += is_small;
    }
    tap_ok(right && quads > 10, "n=%u: of few words, a %s by %s has four threads for each", n,
           oh_collective_name(collective), oh_algorithm_name(algorithm));
}

/* On both sides of where another shape begins. */
static void test_shapes(void)
{
    static const struct {
        enum onehop_collective collective;
        enum onehop_algorithm algorithm;
        uint32_t nranks, kib, blocks, threads;
    } shapes[] = {
        {ONEHOP_ALLREDUCE, ONEHOP_ONESHOT, 4, 512, 64, 512},   {ONEHOP_ALLREDUCE, ONEHOP_ONESHOT, 4, 513, 128, 512},
        {ONEHOP_ALLREDUCE, ONEHOP_ONESHOT, 4, 128, 64, 512},   {ONEHOP_BROADCAST, ONEHOP_ONESHOT, 4, 1024, 64, 512},
        {ONEHOP_ALLREDUCE, ONEHOP_TWOSHOT, 2, 2048, 256, 256}, {ONEHOP_ALLGATHER, ONEHOP_ONESHOT, 2, 1, 4, 128},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct oh_plan_row row =
            shaped_row(shapes[i].collective, shapes[i].algorithm, shapes[i].nranks, (uint64_t)shapes[i].kib << 10);
        tap_ok(row.blocks == shapes[i].blocks && row.threads == shapes[i].threads, "%s, n=%u, %u KiB: %u x %u",
               oh_collective_name((int)shapes[i].collective), shapes[i].nranks, shapes[i].kib, row.blocks, row.threads);
    }
}

int main(void)
{
    test_room();
    test_room_of_each();
    test_fitting_rows();
    test_shapes();
    test_end_of_few_blocks();
    test_every_size();
    test_what_is_not_served();
    test_wishes();
    for (uint32_t n = 2; n <= OH_MAX_RANKS; n++) {
        test_default_table(n);
        test_staging(n);
        for (int a = 0; a < ONEHOP_ALGORITHM_COUNT; a++) {
            test_forced(a, n);
        }
        test_slots(n);
        if (n > 2) {
            test_pairs(n);
        }
        test_max_blocks(n);
    }
    for (uint32_t n = 3; n <= 4; n++) {
        test_quads(ONEHOP_ALLREDUCE, ONEHOP_ONESHOT, n);
        test_quads(ONEHOP_ALLREDUCE, ONEHOP_TWOSHOT, n);
        test_quads(ONEHOP_REDUCESCATTER, ONEHOP_ONESHOT, n);
    }
    for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT; c++) {
        test_foreign_tables((enum onehop_collective)c);
    }
    test_ops();
    test_names();
    return tap_done();
}
