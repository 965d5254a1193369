/* SPDX-License-Identifier: MIT */
#include "plan/plan.h"

#include <string.h>
#include <strings.h>

#include "kernels/abi.h"

static const char *const names[ONEHOP_ALGORITHMS] = {
    [ONEHOP_ONESHOT_LL] = "oneshot_ll",         [ONEHOP_TWOSHOT_LL] = "twoshot_ll",
    [ONEHOP_TWOSHOT_PUSH] = "twoshot_push",     [ONEHOP_ONESHOT_MARKER] = "oneshot_marker",
    [ONEHOP_TWOSHOT_MARKER] = "twoshot_marker",
};

const char *oh_carrier_name(enum oh_carrier carrier)
{
    return carrier == OH_CARRIER_MARKER ? "marker" : "flag";
}

const char *oh_algorithm_name(int algorithm)
{
    return algorithm >= 0 && algorithm < ONEHOP_ALGORITHMS ? names[algorithm] : NULL;
}

int oh_algorithm_by_name(const char *name)
{
    for (int a = 0; a < ONEHOP_ALGORITHMS; a++) {
        if (strcasecmp(name, names[a]) == 0) {
            return a;
        }
    }
    return -1;
}

bool oh_algorithm_carries(enum onehop_algorithm algorithm, enum oh_carrier carrier)
{
    switch (algorithm) {
    case ONEHOP_ONESHOT_LL:
    case ONEHOP_TWOSHOT_LL:
        return carrier == OH_CARRIER_FLAG;
    default:
        return true;
    }
}

uint64_t oh_plan_capacity(enum onehop_algorithm algorithm, uint32_t nranks)
{
    switch (algorithm) {
    case ONEHOP_ONESHOT_LL: /* nranks rows of the whole message, which is a list of calls: in pairs of LL words */
        return OH_LL_SLOT_BYTES / (2 * OH_WORD_BYTES) / nranks * (2 * OH_LL_WORD_PAYLOAD);
    case ONEHOP_TWOSHOT_LL: /* twice nranks rows of a chunk, where nranks chunks make the message */
        return OH_LL_SLOT_BYTES / OH_WORD_BYTES / (2 * nranks) * nranks * OH_LL_WORD_PAYLOAD;
    case ONEHOP_ONESHOT_MARKER:
        return OH_MARKER_SCATTER_BYTES / OH_WORD_BYTES / nranks * OH_WORD_BYTES;
    default: /* goes in rounds */
        return OH_MESSAGE_BYTES;
    }
}

uint32_t oh_plan_grid_threads(uint32_t nranks)
{
    /* With five ranks and more a thread holds more words, in more registers. */
    return nranks > 4 ? 16384 : 32768;
}

/* Words that the threads of a rank share out among them, in the loop that is longest. */
static uint64_t loop_words(enum onehop_algorithm algorithm, uint32_t nranks, uint64_t bytes)
{
    switch (algorithm) {
    case ONEHOP_ONESHOT_LL:
        return bytes / OH_LL_WORD_PAYLOAD;
    case ONEHOP_TWOSHOT_LL:
        return bytes / OH_LL_WORD_PAYLOAD / nranks;
    case ONEHOP_ONESHOT_MARKER:
        return bytes / OH_WORD_BYTES;
    default:
        return bytes / OH_WORD_BYTES / nranks;
    }
}

void oh_plan_shape(enum onehop_algorithm algorithm, uint32_t nranks, uint64_t bytes, uint32_t *blocks_p,
                   uint32_t *threads_p)
{
    bool push = algorithm == ONEHOP_TWOSHOT_PUSH; /* a flag for each block and peer: fewer, larger blocks */
    uint32_t most = push || nranks > 4 ? OH_MAX_BLOCKS / 2 : OH_MAX_BLOCKS;
    uint32_t blocks = 1, threads = push ? 128 : 64;
    uint64_t words = loop_words(algorithm, nranks, bytes);
    while (blocks < most && (uint64_t)blocks * threads < words) {
        blocks *= 2;
    }
    while (threads < OH_MAX_THREADS && (uint64_t)blocks * threads < words &&
           2 * blocks * threads <= oh_plan_grid_threads(nranks)) {
        threads *= 2;
    }
    *blocks_p = blocks;
    *threads_p = threads;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t rows_end(const struct oh_plan_rows *rows)
{
    return rows->count > 0 ? rows->row[rows->count - 1].max_bytes : 0;
}

uint64_t oh_plan_table_end(const struct oh_plan_table *table)
{
    uint64_t end = 0;
    for (int c = 0; c < OH_CARRIERS; c++) {
        end = rows_end(&table->rows[c]) > end ? rows_end(&table->rows[c]) : end;
    }
    return end;
}

/* Only `algorithm`, up to `end` or what it can carry. */
static void force(struct oh_plan_rows *rows, uint32_t nranks, enum onehop_algorithm algorithm, uint64_t end)
{
    struct oh_plan_rows forced = {0};
    end = least(end, oh_plan_capacity(algorithm, nranks));
    for (uint64_t bytes = 1024, done = 0; done < end; bytes *= 2) {
        struct oh_plan_row row = {.algorithm = algorithm};
        oh_plan_shape(algorithm, nranks, bytes, &row.blocks, &row.threads);
        struct oh_plan_row *last = forced.count > 0 ? &forced.row[forced.count - 1] : NULL;
        done = least(bytes, end);
        if (!last || ((last->blocks != row.blocks || last->threads != row.threads) && forced.count < OH_PLAN_ROWS)) {
            last = &forced.row[forced.count++];
            *last = row;
        }
        last->max_bytes = done;
    }
    *rows = forced;
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
    while (rows->count > 0 && rows->row[rows->count - 1].algorithm == OH_PLAN_NCCL) {
        rows->count--;
    }
}

/* The wish may lie above the table's end: the last algorithm then goes as far as asked, or as it can. */
static void limit(struct oh_plan_rows *rows, uint32_t nranks, uint64_t max_bytes)
{
    if (max_bytes < rows_end(rows)) {
        cut(rows, max_bytes);
    } else if (rows->count > 0) {
        struct oh_plan_row *last = &rows->row[rows->count - 1];
        last->max_bytes = least(max_bytes, oh_plan_capacity((enum onehop_algorithm)last->algorithm, nranks));
    }
}

void oh_plan_table_wish(struct oh_plan_table *table, uint64_t max_bytes, int forced)
{
    for (int c = 0; c < OH_CARRIERS; c++) {
        struct oh_plan_rows *rows = &table->rows[c];
        uint64_t end = max_bytes != UINT64_MAX ? max_bytes : rows_end(rows);
        if (forced >= 0 && oh_algorithm_carries((enum onehop_algorithm)forced, (enum oh_carrier)c)) {
            force(rows, table->nranks, (enum onehop_algorithm)forced, end);
        } else if (max_bytes != UINT64_MAX) {
            limit(rows, table->nranks, max_bytes);
        }
    }
}

bool oh_plan_row_valid(const struct oh_plan_row *row, enum oh_carrier carrier, uint32_t nranks)
{
    if (row->algorithm == OH_PLAN_NCCL) {
        return row->blocks == 0 && row->threads == 0 && row->max_bytes <= OH_MESSAGE_BYTES;
    }
    return row->algorithm < ONEHOP_ALGORITHMS && oh_algorithm_carries((enum onehop_algorithm)row->algorithm, carrier) &&
           row->blocks >= 1 && row->blocks <= OH_MAX_BLOCKS && row->threads >= 32 && row->threads <= OH_MAX_THREADS &&
           row->threads % 32 == 0 && row->blocks * row->threads <= oh_plan_grid_threads(nranks) &&
           row->max_bytes <= oh_plan_capacity((enum onehop_algorithm)row->algorithm, nranks);
}

static bool rows_valid(const struct oh_plan_rows *rows, enum oh_carrier carrier, uint32_t nranks)
{
    if (rows->count > OH_PLAN_ROWS) {
        return false;
    }
    for (uint32_t i = 0; i < rows->count; i++) {
        if (!oh_plan_row_valid(&rows->row[i], carrier, nranks) ||
            (i > 0 && rows->row[i].max_bytes <= rows->row[i - 1].max_bytes)) {
            return false;
        }
    }
    return rows->count == 0 || rows->row[rows->count - 1].algorithm != OH_PLAN_NCCL;
}

bool oh_plan_table_valid(const struct oh_plan_table *table, uint32_t nranks)
{
    bool valid = table->nranks == nranks && nranks >= 2 && nranks <= OH_MAX_RANKS && table->fp8 <= 1;
    for (int c = 0; c < OH_CARRIERS && valid; c++) {
        valid = rows_valid(&table->rows[c], (enum oh_carrier)c, nranks);
    }
    return valid;
}

bool oh_plan_choose(const struct oh_plan_table *table, size_t count, ncclDataType_t type, struct oh_plan *plan_p)
{
    size_t size = oh_type_size(type);
    if (size == 0 || count == 0 || count > SIZE_MAX / size || (oh_type_is_fp8(type) && !table->fp8)) {
        return false;
    }
    const struct oh_plan_rows *rows = &table->rows[oh_kernel_type_carrier(oh_type_kernel(type))];
    for (uint32_t i = 0; i < rows->count; i++) {
        const struct oh_plan_row *row = &rows->row[i];
        if (count * size <= row->max_bytes) {
            if (row->algorithm == OH_PLAN_NCCL) {
                return false;
            }
            *plan_p = (struct oh_plan){
                .algorithm = (enum onehop_algorithm)row->algorithm, .blocks = row->blocks, .threads = row->threads};
            return true;
        }
    }
    return false;
}

size_t oh_plan_some_count(const struct oh_plan_table *table, ncclDataType_t type)
{
    size_t size = oh_type_size(type);
    struct oh_plan plan;
    for (uint32_t i = 0; size > 0 && i < OH_PLAN_ROWS; i++) {
        const struct oh_plan_rows *rows = &table->rows[oh_kernel_type_carrier(oh_type_kernel(type))];
        size_t count = i < rows->count ? rows->row[i].max_bytes / size : 0;
        if (oh_plan_choose(table, count, type, &plan)) {
            return count;
        }
    }
    return 0;
}
