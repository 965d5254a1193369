/* SPDX-License-Identifier: MIT */
/*
 * plan.c - from (count, datatype, op) to algorithm and launch shape
 *
 * Does: Looks a call up in the communicator's table, and cuts tables to limits.
 * Threads: pure functions.
 * Owns: nothing.
 */
#include "plan/plan.h"

#include <string.h>
#include <strings.h>

#include "kernels/abi.h"

#define WARP 32
#define MOST_PARTS 256                      /* of a call */
#define MOST_OF_BLOCK (UINT64_C(512) << 10) /* bytes; NCCL with as few CTAs is faster above (2 x H200, 2026-11-26) */
#define PAIR_BLOCKS 128u /* two-shot of more takes 2 % longer if it begins early (4 x H200, 2026-11-27) */
#define MOVED_BYTES (UINT64_C(64) << 20) /* most of a collective other than allreduce: larger calls do not attach */
#define ANY_GBPS 300                     /* moves the limits between shapes, no more */

static const char *const names[ONEHOP_ALGORITHM_COUNT] = {
    [ONEHOP_ONESHOT] = "oneshot",
    [ONEHOP_TWOSHOT] = "twoshot",
};

const char *oh_algorithm_name(int algorithm)
{
    return algorithm >= 0 && algorithm < ONEHOP_ALGORITHM_COUNT ? names[algorithm] : NULL;
}

const char *const oh_collective_names[ONEHOP_COLLECTIVE_COUNT] = {
    [ONEHOP_ALLREDUCE] = "allreduce",
    [ONEHOP_ALLGATHER] = "allgather",
    [ONEHOP_REDUCESCATTER] = "reducescatter",
    [ONEHOP_BROADCAST] = "broadcast",
};

const char *oh_collective_name(int collective)
{
    return collective >= 0 && collective < ONEHOP_COLLECTIVE_COUNT ? oh_collective_names[collective] : NULL;
}

/* The index of the name that is the first `length` characters; -1: there is none. */
static int find(const char *const *all, int count, const char *name, size_t length)
{
    while (--count >= 0 && (strlen(all[count]) != length || strncasecmp(name, all[count], length) != 0)) {
    }
    return count;
}

int oh_algorithm_by_name(const char *name)
{
    return find(names, ONEHOP_ALGORITHM_COUNT, name, strlen(name));
}

int oh_collective_by_name(const char *name, size_t length)
{
    return find(oh_collective_names, ONEHOP_COLLECTIVE_COUNT, name, length);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t oh_plan_capacity(enum onehop_collective collective, enum onehop_algorithm algorithm, uint32_t nranks)
{
    const uint64_t most = collective == ONEHOP_ALLREDUCE ? OH_MESSAGE_BYTES : MOVED_BYTES;
    return least(most, MOST_PARTS * oh_plan_kernel_words(algorithm, nranks) * OH_WORD_BYTES *
                           oh_collective_parts(collective, nranks));
}

uint32_t oh_plan_room_threads(const struct oh_plan_room *room)
{
    uint32_t threads = UINT32_MAX;
    for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT; c++) {
        threads = (uint32_t)least(threads, room->sm_threads[c]);
    }
    return threads;
}

uint64_t oh_plan_rows_end(const struct oh_plan_rows *rows)
{
    return rows->count > 0 ? rows->row[rows->count - 1].max_bytes : 0;
}

uint64_t oh_plan_table_end(const struct oh_plan_table *table)
{
    uint64_t end = 0;
    for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT; c++) {
        const uint64_t rows_end = oh_plan_rows_end(&table->rows[c]);
        end = rows_end > end ? rows_end : end;
    }
    return end;
}

bool oh_plan_table_extend(struct oh_plan_table *table, enum onehop_collective collective,
                          enum onehop_algorithm algorithm, uint64_t end)
{
    struct oh_plan_rows *rows = &table->rows[collective];
    for (uint64_t bytes = 1024; oh_plan_rows_end(rows) < end; bytes *= 2) { /* 21 rows up to OH_MESSAGE_BYTES */
        struct oh_plan_row row = {.max_bytes = least(bytes, end), .algorithm = algorithm};
        oh_plan_shape(collective, algorithm, table->nranks, bytes, &row.blocks, &row.threads);
        if (row.max_bytes <= oh_plan_rows_end(rows)) {
            continue;
        }
        const struct oh_plan_row *last = rows->count > 0 ? &rows->row[rows->count - 1] : NULL;
        rows->count -=
            last && last->algorithm == algorithm && last->blocks == row.blocks && last->threads == row.threads;
        if (rows->count == OH_PLAN_ROWS) {
            return false;
        }
        rows->row[rows->count++] = row;
    }
    return true;
}

/* The largest power of two that is at most `bytes`, which is at least 1. */
static uint64_t power_below(double bytes)
{
    return UINT64_C(1) << (63 - __builtin_clzll((uint64_t)bytes));
}

/*
 * With all ranks sending at w, a message of S bytes takes h + (n - 1) S / w by one-shot and h + x + 2 (n - 1) / n S / w
 * by two-shot. On H200 x, a further hop and the start of a sum, is 0.98 us (n = 4; 1.17, 1.01 and 0.76 us at 64, 128
 * and 256 KiB), and w is 0.787 of what the links can do (354 of 450 GB/s). With two ranks both send as much; two-shot,
 * which loads less from its own memory, was faster from 4 MiB on (2 x H100; 2 x H200: as fast). Where NCCL becomes the
 * faster, no model tells: 16 MiB with two H100, so less by slower links; 4 MiB with more ranks is cautious. All-gather
 * and reduce-scatter take h + (n - 1) / n S / w, which is the least there is. The root of a broadcast sends (n - 1) S.
 */
void oh_plan_table_model(struct oh_plan_table *table_p, uint32_t nranks, unsigned link_gbps)
{
    const double hop_us = 0.98, bytes_per_us = 787.0 * link_gbps, n = nranks;
    double oneshot = 2 << 20, twoshot = (16 << 20) * (link_gbps < 450 ? link_gbps / 450.0 : 1);
    if (nranks > 2) {
        const double equal = hop_us * bytes_per_us / ((n - 1) * (1 - 2 / n));
        const uint32_t most = OH_SECTION_WORDS(nranks) * OH_WORD_BYTES;
        oneshot = equal < most ? equal : most;
        twoshot = 4 << 20;
    }
    *table_p = (struct oh_plan_table){.nranks = nranks};
    oh_plan_table_extend(table_p, ONEHOP_ALLREDUCE, ONEHOP_ONESHOT, power_below(oneshot));
    oh_plan_table_extend(table_p, ONEHOP_ALLREDUCE, ONEHOP_TWOSHOT, power_below(twoshot));
    oh_plan_table_extend(table_p, ONEHOP_ALLGATHER, ONEHOP_ONESHOT, power_below(twoshot));
    oh_plan_table_extend(table_p, ONEHOP_REDUCESCATTER, ONEHOP_ONESHOT, power_below(twoshot));
    oh_plan_table_extend(table_p, ONEHOP_BROADCAST, ONEHOP_ONESHOT, power_below(twoshot / ((n - 1) * (n - 1))));
}

void oh_plan_rows_trim(struct oh_plan_rows *rows)
{
    while (rows->count > 0 && rows->row[rows->count - 1].algorithm == OH_PLAN_NCCL) {
        rows->row[--rows->count] = (struct oh_plan_row){0};
    }
}

static void cut(struct oh_plan_rows *rows, uint64_t max_bytes)
{
    while (rows->count > 0 &&
           (max_bytes == 0 || (rows->count > 1 && rows->row[rows->count - 2].max_bytes >= max_bytes))) {
        rows->count--;
    }
    if (rows->count > 0) {
        rows->row[rows->count - 1].max_bytes = max_bytes;
    }
    oh_plan_rows_trim(rows);
}

static void limit_rows(struct oh_plan_table *table, enum onehop_collective collective, uint64_t max_bytes)
{
    struct oh_plan_rows *rows = &table->rows[collective];
    if (max_bytes < oh_plan_rows_end(rows)) {
        cut(rows, max_bytes);
    } else if (max_bytes != UINT64_MAX && rows->count > 0) { /* the last algorithm serves more, as far as it can */
        struct oh_plan_row *last = &rows->row[rows->count - 1];
        last->max_bytes =
            least(max_bytes, oh_plan_capacity(collective, (enum onehop_algorithm)last->algorithm, table->nranks));
    }
}

void oh_plan_table_apply_limits(struct oh_plan_table *table, uint64_t max_bytes, int forced)
{
    struct oh_plan_rows *rows = &table->rows[ONEHOP_ALLREDUCE];
    if (forced >= 0) {
        const uint64_t end = max_bytes != UINT64_MAX ? max_bytes : oh_plan_rows_end(rows);
        *rows = (struct oh_plan_rows){0};
        oh_plan_table_extend(
            table, ONEHOP_ALLREDUCE, (enum onehop_algorithm)forced,
            least(end, oh_plan_capacity(ONEHOP_ALLREDUCE, (enum onehop_algorithm)forced, table->nranks)));
    }
    for (int c = forced >= 0 ? ONEHOP_ALLREDUCE + 1 : ONEHOP_ALLREDUCE; c < ONEHOP_COLLECTIVE_COUNT; c++) {
        limit_rows(table, (enum onehop_collective)c, max_bytes);
    }
}

void oh_plan_table_keep(struct oh_plan_table *table, uint32_t kept)
{
    for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT; c++) {
        if (!(kept >> c & 1)) {
            table->rows[c] = (struct oh_plan_rows){0};
        }
    }
}

static void complete(struct oh_plan_rows *rows)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < rows->count; i++) {
        if (rows->row[i].algorithm != OH_PLAN_NCCL) { /* the next row has these sizes, too */
            rows->row[kept++] = rows->row[i];
        }
    }
    rows->count = kept;
    if (kept > 0) {
        rows->row[kept - 1].max_bytes = UINT64_MAX;
    }
}

void oh_plan_table_fill(struct oh_plan_table *table)
{
    struct oh_plan_table model;
    oh_plan_table_model(&model, table->nranks, ANY_GBPS);
    for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT; c++) {
        if (oh_collective_reduces((enum onehop_collective)c) && oh_plan_rows_end(&table->rows[c]) == 0) {
            table->rows[c] = model.rows[c];
        }
    }
}

void oh_plan_table_complete(struct oh_plan_table *table)
{
    complete(&table->rows[ONEHOP_ALLREDUCE]);
    complete(&table->rows[ONEHOP_REDUCESCATTER]);
}

bool oh_plan_row_valid(const struct oh_plan_row *row, enum onehop_collective collective, uint32_t nranks)
{
    if (row->algorithm == OH_PLAN_NCCL) {
        return row->blocks == 0 && row->threads == 0 && row->max_bytes <= OH_MESSAGE_BYTES;
    }
    const bool known =
        row->algorithm == ONEHOP_ONESHOT || (row->algorithm == ONEHOP_TWOSHOT && collective == ONEHOP_ALLREDUCE);
    return known && row->blocks >= 1 && row->blocks <= OH_MAX_BLOCKS && row->threads >= 32 &&
           row->threads <= oh_plan_block_threads(collective, nranks) && row->threads % 32 == 0 &&
           row->blocks * row->threads <= oh_plan_grid_threads(collective, nranks) &&
           row->max_bytes <= oh_plan_capacity(collective, (enum onehop_algorithm)row->algorithm, nranks);
}

static bool are_rows_valid(const struct oh_plan_rows *rows, enum onehop_collective collective, uint32_t nranks)
{
    for (uint32_t i = 0; i < rows->count && i < OH_PLAN_ROWS; i++) {
        if (!oh_plan_row_valid(&rows->row[i], collective, nranks) ||
            (i > 0 && rows->row[i].max_bytes <= rows->row[i - 1].max_bytes)) {
            return false;
        }
    }
    return rows->count == 0 || (rows->count <= OH_PLAN_ROWS && rows->row[rows->count - 1].algorithm != OH_PLAN_NCCL);
}

bool oh_plan_table_valid(const struct oh_plan_table *table, uint32_t nranks)
{
    bool valid = table->nranks == nranks && nranks >= 2 && nranks <= OH_MAX_RANKS && table->fp8 <= 1;
    for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT && valid; c++) {
        valid = are_rows_valid(&table->rows[c], (enum onehop_collective)c, nranks);
    }
    return valid;
}

/*
 * The most blocks of a communicator's kernels that wait; the other half of the GPU is another communicator's. An SM has
 * room for L of them, rounded down to a power of two; the limit is L / 2 for each SM. Of two communicators, let M be
 * this number for the smaller blocks, L for the larger: M is a multiple of L. Beside k larger blocks an SM has room for
 * M - k M / L smaller ones. All k are at most L / 2 for each SM, so M / 2 smaller blocks for each SM fit, however the
 * larger lie: that kernel ends, and leaves its place.
 */
static uint32_t half_of_blocks(const struct oh_plan_room *room, enum onehop_collective collective, uint32_t threads)
{
    const uint32_t fit = room->sm_threads[collective] / threads;
    return fit > 0 ? (uint32_t)(room->sms * power_below(fit) / 2) : 0;
}

uint32_t oh_plan_pair_blocks(const struct oh_plan_room *room, enum onehop_collective collective, uint32_t threads)
{
    return (uint32_t)least(PAIR_BLOCKS, half_of_blocks(room, collective, threads));
}

static void fit_row(struct oh_plan_row *row, enum onehop_collective collective, uint32_t nranks,
                    const struct oh_plan_room *room)
{
    const uint32_t sm_threads = room->sm_threads[collective];
    uint64_t blocks = row->blocks, threads = row->threads,
             most = least(oh_plan_block_threads(collective, nranks), sm_threads);
    if (blocks > room->max_blocks) { /* then larger ones; no more than SMs, which have room for two of the largest */
        blocks = least(room->max_blocks, room->sms);
        threads = ((uint64_t)row->blocks * row->threads - 1) / blocks + WARP;
        most = least(most, oh_plan_grid_threads(collective, nranks) / blocks);
    }
    row->threads = (uint32_t)(least(threads, most) / WARP * WARP);
    const uint32_t half = half_of_blocks(room, collective, row->threads);
    row->blocks = (uint32_t)least(blocks, half > 0 ? half : 1);
}

/* The largest message of which a block sends no more than NCCL leaves to it. */
static uint64_t most_of_blocks(const struct oh_plan_row *row, enum onehop_collective collective, uint32_t nranks)
{
    const bool two = row->algorithm == ONEHOP_TWOSHOT;
    const uint64_t parts = two ? nranks : oh_collective_parts(collective, nranks);
    const uint64_t sends = (two ? 2 : 1) * (uint64_t)(nranks - 1);
    return row->blocks * MOST_OF_BLOCK * parts / sends;
}

static void fit_rows(struct oh_plan_table *table, enum onehop_collective collective, const struct oh_plan_room *room,
                     bool invariant)
{
    const bool every_size = invariant && oh_collective_reduces(collective);
    struct oh_plan_rows *rows = &table->rows[collective];
    for (uint32_t i = 0; i < rows->count; i++) {
        struct oh_plan_row *row = &rows->row[i];
        if (row->algorithm == OH_PLAN_NCCL) {
            continue;
        }
        const uint32_t blocks = row->blocks;
        fit_row(row, collective, table->nranks, room);
        const uint64_t most = most_of_blocks(row, collective, table->nranks);
        if (!every_size && row->blocks < blocks && row->max_bytes > most) {
            cut(rows, most);
            break;
        }
    }
}

bool oh_plan_table_fit(struct oh_plan_table *table, const struct oh_plan_room *room, bool invariant)
{
    if (room->sms == 0 || oh_plan_room_threads(room) < WARP || room->max_blocks == 0) {
        return false;
    }
    for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT; c++) {
        fit_rows(table, (enum onehop_collective)c, room, invariant);
    }
    return true;
}

bool oh_plan_choose(const struct oh_plan_table *table, enum onehop_collective collective, size_t count,
                    ncclDataType_t type, struct oh_plan *plan_p)
{
    const struct oh_plan_rows *rows = &table->rows[collective];
    const size_t size = oh_type_size(type) * oh_collective_parts(collective, table->nranks);
    if (!oh_plan_has_type(table, collective, type) || count == 0 || count > SIZE_MAX / size) {
        return false;
    }
    uint32_t i = 0;
    while (i < rows->count && count * size > rows->row[i].max_bytes) {
        i++;
    }
    const struct oh_plan_row *row = &rows->row[i];
    if (i == rows->count || row->algorithm == OH_PLAN_NCCL) {
        return false;
    }
    *plan_p = (struct oh_plan){.collective = collective,
                               .algorithm = (enum onehop_algorithm)row->algorithm,
                               .blocks = row->blocks,
                               .threads = row->threads};
    return true;
}

bool oh_plan_has_type(const struct oh_plan_table *table, enum onehop_collective collective, ncclDataType_t type)
{
    return oh_type_size(type) > 0 && (table->fp8 || !oh_collective_reduces(collective) || !oh_type_is_fp8(type));
}
