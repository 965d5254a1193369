/* SPDX-License-Identifier: MIT */
#include "plan/plan.h"

#include <string.h>
#include <strings.h>

#include "kernels/abi.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)

/*
 * Per number of ranks: the algorithms used, in ascending order, and the largest message of each; above the last one
 * stock NCCL is faster, or not known to be slower. Measured for 2, 3 and 4 x H200 (doc/results), NVLS off; for 5 to 8
 * ranks taken from the number of hops and bytes, with a cautious end.
 */
struct range {
    enum onehop_algorithm algorithm;
    uint64_t max_bytes;
};

#define RANGES 3
static const struct range ranges[OH_MAX_RANKS + 1][RANGES] = {
    [2] = {{ONEHOP_ONESHOT_MARKER, 512 * KIB}, {ONEHOP_TWOSHOT_MARKER, 4 * MIB}, {ONEHOP_TWOSHOT_PUSH, 16 * MIB}},
    [3] = {{ONEHOP_ONESHOT_MARKER, 256 * KIB}, {ONEHOP_TWOSHOT_MARKER, 4 * MIB}},
    [4] = {{ONEHOP_ONESHOT_MARKER, 128 * KIB}, {ONEHOP_TWOSHOT_MARKER, 8 * MIB}},
    [5] = {{ONEHOP_ONESHOT_MARKER, 64 * KIB}, {ONEHOP_TWOSHOT_MARKER, 4 * MIB}},
    [6] = {{ONEHOP_ONESHOT_MARKER, 64 * KIB}, {ONEHOP_TWOSHOT_MARKER, 4 * MIB}},
    [7] = {{ONEHOP_ONESHOT_MARKER, 64 * KIB}, {ONEHOP_TWOSHOT_MARKER, 4 * MIB}},
    [8] = {{ONEHOP_ONESHOT_MARKER, 64 * KIB}, {ONEHOP_TWOSHOT_MARKER, 4 * MIB}},
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

_Static_assert(SHAPES + 5 + 1 <= OH_PLAN_ROWS, "the longest default table, n = 2, fits");

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

size_t oh_type_size(ncclDataType_t type)
{
    static const size_t sizes[] = {
        [ncclInt8] = 1,    [ncclUint8] = 1,    [ncclInt32] = 4,         [ncclUint32] = 4,
        [ncclInt64] = 8,   [ncclUint64] = 8,   [ncclFloat16] = 2,       [ncclFloat32] = 4,
        [ncclFloat64] = 8, [ncclBfloat16] = 2, [10 /* fp8 e4m3 */] = 1, [11 /* fp8 e5m2 */] = 1,
    };
    size_t index = (size_t)type;
    return index < sizeof sizes / sizeof *sizes ? sizes[index] : 0;
}

uint64_t oh_plan_capacity(enum onehop_algorithm algorithm, uint32_t nranks)
{
    switch (algorithm) {
    case ONEHOP_ONESHOT_LL: /* nranks rows of the whole message */
        return OH_LL_SLOT_BYTES / OH_WORD_BYTES / nranks * OH_LL_WORD_PAYLOAD;
    case ONEHOP_TWOSHOT_LL: /* twice nranks rows of a chunk, where nranks chunks make the message */
        return OH_LL_SLOT_BYTES / OH_WORD_BYTES / (2 * nranks) * nranks * OH_LL_WORD_PAYLOAD;
    case ONEHOP_ONESHOT_MARKER:
        return OH_MARKER_SCATTER_BYTES / OH_WORD_BYTES / nranks * OH_WORD_BYTES;
    default: /* goes in rounds */
        return UINT64_MAX;
    }
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t oh_plan_table_end(const struct oh_plan_table *table)
{
    return table->rows > 0 ? table->row[table->rows - 1].max_bytes : 0;
}

/* Adds rows for `algorithm` from where the table ends now up to max_bytes, or what it can carry. */
static void add_rows(struct oh_plan_table *table, enum onehop_algorithm algorithm, uint64_t max_bytes)
{
    uint64_t done = oh_plan_table_end(table);
    max_bytes = least(max_bytes, oh_plan_capacity(algorithm, table->nranks));
    for (int s = 0; s < SHAPES && done < max_bytes && table->rows < OH_PLAN_ROWS; s++) {
        const struct shape *shape = &shapes[algorithm][s];
        uint64_t end = least(shape->max_bytes, max_bytes);
        if (end > done) {
            /* With five ranks and more a thread holds more words, in more registers: smaller grids, to fit as well. */
            bool many = table->nranks > 4;
            table->row[table->rows++] = (struct oh_plan_row){
                .max_bytes = end,
                .algorithm = algorithm,
                .blocks = many && shape->blocks > 64 ? 64 : shape->blocks,
                .threads = many && shape->threads > 256 ? 256 : shape->threads,
            };
            done = end;
        }
    }
}

void oh_plan_table_default(uint32_t nranks, uint64_t max_bytes, int forced, struct oh_plan_table *table_p)
{
    struct oh_plan_table table = {.nranks = nranks};
    const struct range *range = ranges[nranks];
    int last = 0;

    while (last + 1 < RANGES && range[last + 1].max_bytes > 0) {
        last++;
    }
    uint64_t end = max_bytes != UINT64_MAX ? max_bytes : range[last].max_bytes;
    if (forced >= 0) {
        add_rows(&table, (enum onehop_algorithm)forced, end);
    } else {
        for (int i = 0; i <= last; i++) {
            /* The user's cap may also lie above the default one: the last algorithm goes as far as asked. */
            add_rows(&table, range[i].algorithm, i < last ? least(range[i].max_bytes, end) : end);
        }
    }
    *table_p = table;
}

bool oh_plan_table_valid(const struct oh_plan_table *table, uint32_t nranks)
{
    if (table->nranks != nranks || table->rows > OH_PLAN_ROWS) {
        return false;
    }
    for (uint32_t i = 0; i < table->rows; i++) {
        const struct oh_plan_row *row = &table->row[i];
        if (row->algorithm >= ONEHOP_ALGORITHMS || row->blocks < 1 || row->blocks > OH_MAX_BLOCKS ||
            row->threads < 32 || row->threads > OH_MAX_THREADS || row->threads % 32 != 0 ||
            row->max_bytes > oh_plan_capacity(row->algorithm, nranks) ||
            (i > 0 && row->max_bytes <= table->row[i - 1].max_bytes)) {
            return false;
        }
    }
    return true;
}

bool oh_plan_choose(const struct oh_plan_table *table, size_t count, ncclDataType_t type, ncclRedOp_t op,
                    struct oh_plan *plan_p)
{
    size_t size = oh_type_size(type);
    if (op != ncclSum || (type != ncclFloat32 && type != ncclFloat16 && type != ncclBfloat16) || count == 0 ||
        count > SIZE_MAX / size) {
        return false;
    }
    for (uint32_t i = 0; i < table->rows; i++) {
        const struct oh_plan_row *row = &table->row[i];
        if (count * size <= row->max_bytes) {
            *plan_p = (struct oh_plan){.algorithm = row->algorithm, .blocks = row->blocks, .threads = row->threads};
            return true;
        }
    }
    return false;
}
