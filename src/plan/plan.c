/* SPDX-License-Identifier: MIT */
#include "plan/plan.h"

#include <string.h>
#include <strings.h>

#include "kernels/abi.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)

/*
 * Per carrier and number of ranks: the algorithms used, in ascending order, and the largest message of each; above the
 * last one stock NCCL is faster, or not known to be slower. Measured for 2, 3 and 4 x H200 (doc/results), NVLS off; for
 * 5 to 8 ranks taken from the number of hops and bytes, with a cautious end.
 */
struct range {
    enum onehop_algorithm algorithm;
    uint64_t max_bytes;
};

#define RANGES 3
static const struct range ranges[OH_CARRIERS][OH_MAX_RANKS + 1][RANGES] =
    {
        [OH_CARRIER_MARKER] =
            {
                [2] = {{ONEHOP_ONESHOT_MARKER, 512 * KIB},
                       {ONEHOP_TWOSHOT_MARKER, 4 * MIB},
                       {ONEHOP_TWOSHOT_PUSH, 16 * MIB}},
                [3] = {{ONEHOP_ONESHOT_MARKER, 256 * KIB}, {ONEHOP_TWOSHOT_MARKER, 4 * MIB}},
                [4] = {{ONEHOP_ONESHOT_MARKER, 128 * KIB}, {ONEHOP_TWOSHOT_MARKER, 8 * MIB}},
                [5] = {{ONEHOP_ONESHOT_MARKER, 64 * KIB}, {ONEHOP_TWOSHOT_MARKER, 4 * MIB}},
                [6] = {{ONEHOP_ONESHOT_MARKER, 64 * KIB}, {ONEHOP_TWOSHOT_MARKER, 4 * MIB}},
                [7] = {{ONEHOP_ONESHOT_MARKER, 64 * KIB}, {ONEHOP_TWOSHOT_MARKER, 4 * MIB}},
                [8] = {{ONEHOP_ONESHOT_MARKER, 64 * KIB}, {ONEHOP_TWOSHOT_MARKER, 4 * MIB}},
            },
        [OH_CARRIER_FLAG] =
            {
                [2] = {{ONEHOP_ONESHOT_LL, 512 * KIB}, {ONEHOP_TWOSHOT_PUSH, 16 * MIB}},
                [3] = {{ONEHOP_ONESHOT_LL, 128 * KIB}, {ONEHOP_TWOSHOT_LL, 256 * KIB}, {ONEHOP_TWOSHOT_PUSH, 4 * MIB}},
                [4] = {{ONEHOP_ONESHOT_LL, 64 * KIB}, {ONEHOP_TWOSHOT_LL, 512 * KIB}, {ONEHOP_TWOSHOT_PUSH, 8 * MIB}},
                [5] = {{ONEHOP_ONESHOT_LL, 32 * KIB}, {ONEHOP_TWOSHOT_LL, 256 * KIB}, {ONEHOP_TWOSHOT_PUSH, 4 * MIB}},
                [6] = {{ONEHOP_ONESHOT_LL, 32 * KIB}, {ONEHOP_TWOSHOT_LL, 256 * KIB}, {ONEHOP_TWOSHOT_PUSH, 4 * MIB}},
                [7] = {{ONEHOP_ONESHOT_LL, 32 * KIB}, {ONEHOP_TWOSHOT_LL, 256 * KIB}, {ONEHOP_TWOSHOT_PUSH, 4 * MIB}},
                [8] = {{ONEHOP_ONESHOT_LL, 32 * KIB}, {ONEHOP_TWOSHOT_LL, 256 * KIB}, {ONEHOP_TWOSHOT_PUSH, 4 * MIB}},
            },
};

/*
 * The shape of a launch for messages of at most max_bytes, the best found by test/gpu/bench_shapes among those of at
 * most 32768 threads: kernels of several communicators must fit on the GPU together, since each waits for peers.
 */
struct shape {
    uint64_t max_bytes;
    uint32_t blocks;
    uint32_t threads;
};

#define SHAPES 10
static const struct shape shapes[ONEHOP_ALGORITHMS][SHAPES] = {
    [ONEHOP_ONESHOT_LL] = {{1 * KIB, 2, 64},
                           {4 * KIB, 8, 64},
                           {16 * KIB, 32, 64},
                           {64 * KIB, 64, 128},
                           {128 * KIB, 128, 128},
                           {UINT64_MAX, 128, 256}},
    [ONEHOP_TWOSHOT_LL] =
        {{4 * KIB, 4, 64}, {16 * KIB, 8, 64}, {64 * KIB, 32, 64}, {128 * KIB, 64, 64}, {UINT64_MAX, 128, 128}},
    [ONEHOP_TWOSHOT_PUSH] = {{64 * KIB, 8, 128}, {256 * KIB, 32, 128}, {1 * MIB, 32, 256}, {UINT64_MAX, 64, 512}},
    [ONEHOP_ONESHOT_MARKER] = {{1 * KIB, 1, 64},
                               {2 * KIB, 2, 64},
                               {4 * KIB, 4, 64},
                               {8 * KIB, 8, 64},
                               {16 * KIB, 16, 64},
                               {32 * KIB, 32, 64},
                               {64 * KIB, 64, 64},
                               {128 * KIB, 128, 64},
                               {256 * KIB, 128, 128},
                               {UINT64_MAX, 128, 256}},
    [ONEHOP_TWOSHOT_MARKER] =
        {{64 * KIB, 16, 64}, {256 * KIB, 64, 64}, {512 * KIB, 128, 64}, {1 * MIB, 64, 512}, {UINT64_MAX, 128, 256}},
};

_Static_assert(SHAPES + 5 + 1 <= OH_PLAN_ROWS, "the longest default rows, n = 2, fit");

static const char *const names[ONEHOP_ALGORITHMS] = {
    [ONEHOP_ONESHOT_LL] = "oneshot_ll",         [ONEHOP_TWOSHOT_LL] = "twoshot_ll",
    [ONEHOP_TWOSHOT_PUSH] = "twoshot_push",     [ONEHOP_ONESHOT_MARKER] = "oneshot_marker",
    [ONEHOP_TWOSHOT_MARKER] = "twoshot_marker",
};

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

/* Adds rows for `algorithm` from where they end now up to max_bytes, or what it can carry. */
static void add_rows(struct oh_plan_rows *rows, uint32_t nranks, enum onehop_algorithm algorithm, uint64_t max_bytes)
{
    uint64_t done = rows_end(rows);
    max_bytes = least(max_bytes, oh_plan_capacity(algorithm, nranks));
    for (int s = 0; s < SHAPES && done < max_bytes && rows->count < OH_PLAN_ROWS; s++) {
        const struct shape *shape = &shapes[algorithm][s];
        uint64_t end = least(shape->max_bytes, max_bytes);
        if (end > done) {
            /* With five ranks and more a thread holds more words, in more registers: smaller grids, to fit as well. */
            bool many = nranks > 4;
            rows->row[rows->count++] = (struct oh_plan_row){
                .max_bytes = end,
                .algorithm = algorithm,
                .blocks = many && shape->blocks > 64 ? 64 : shape->blocks,
                .threads = many && shape->threads > 256 ? 256 : shape->threads,
            };
            done = end;
        }
    }
}

static void make_rows(struct oh_plan_rows *rows, enum oh_carrier carrier, uint32_t nranks, uint64_t max_bytes,
                      int forced)
{
    const struct range *range = ranges[carrier][nranks];
    int last = 0;

    while (last + 1 < RANGES && range[last + 1].max_bytes > 0) {
        last++;
    }
    uint64_t end = max_bytes != UINT64_MAX ? max_bytes : range[last].max_bytes;
    if (forced >= 0 && oh_algorithm_carries((enum onehop_algorithm)forced, carrier)) {
        add_rows(rows, nranks, (enum onehop_algorithm)forced, end);
        return;
    }
    for (int i = 0; i <= last; i++) {
        /* The user's cap may also lie above the default one: the last algorithm goes as far as asked. */
        add_rows(rows, nranks, range[i].algorithm, i < last ? least(range[i].max_bytes, end) : end);
    }
}

void oh_plan_table_default(uint32_t nranks, uint64_t max_bytes, int forced, struct oh_plan_table *table_p)
{
    struct oh_plan_table table = {.nranks = nranks};
    for (int c = 0; c < OH_CARRIERS; c++) {
        make_rows(&table.rows[c], (enum oh_carrier)c, nranks, max_bytes, forced);
    }
    *table_p = table;
}

static bool row_valid(const struct oh_plan_row *row, enum oh_carrier carrier, uint32_t nranks)
{
    return row->algorithm < ONEHOP_ALGORITHMS && oh_algorithm_carries(row->algorithm, carrier) && row->blocks >= 1 &&
           row->blocks <= OH_MAX_BLOCKS && row->threads >= 32 && row->threads <= OH_MAX_THREADS &&
           row->threads % 32 == 0 && row->max_bytes <= oh_plan_capacity(row->algorithm, nranks);
}

static bool rows_valid(const struct oh_plan_rows *rows, enum oh_carrier carrier, uint32_t nranks)
{
    if (rows->count > OH_PLAN_ROWS) {
        return false;
    }
    for (uint32_t i = 0; i < rows->count; i++) {
        if (!row_valid(&rows->row[i], carrier, nranks) ||
            (i > 0 && rows->row[i].max_bytes <= rows->row[i - 1].max_bytes)) {
            return false;
        }
    }
    return true;
}

bool oh_plan_table_valid(const struct oh_plan_table *table, uint32_t nranks)
{
    bool valid = table->nranks == nranks && table->fp8 <= 1;
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
            *plan_p = (struct oh_plan){.algorithm = row->algorithm, .blocks = row->blocks, .threads = row->threads};
            return true;
        }
    }
    return false;
}
