/* SPDX-License-Identifier: MIT */
#include "plan/plan.h"

#include <string.h>
#include <strings.h>

#include "kernels/abi.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)

/* Per number of ranks: the largest message of each algorithm. 0: the algorithm is not used. */
static const uint64_t ranges[OH_MAX_RANKS + 1][ONEHOP_ALGORITHMS] = {
    [2] = {256 * KIB, 512 * KIB, 16 * MIB}, [3] = {64 * KIB, 512 * KIB, 8 * MIB}, [4] = {64 * KIB, 512 * KIB, 8 * MIB},
    [5] = {32 * KIB, 512 * KIB, 8 * MIB},   [6] = {32 * KIB, 512 * KIB, 8 * MIB}, [7] = {32 * KIB, 512 * KIB, 8 * MIB},
    [8] = {32 * KIB, 512 * KIB, 8 * MIB},
};

/*
 * Shape of a launch: enough threads that each carries few words, in many small blocks while the message is small
 * (facts behind it: doc/performance.md). Rows are cut where the shape changes.
 */
struct shape {
    uint64_t max_bytes;
    uint32_t blocks;
    uint32_t threads;
};

static const struct shape oneshot_shapes[] = {
    {512, 1, 64}, {4 * KIB, 8, 64}, {16 * KIB, 16, 128}, {64 * KIB, 32, 256}, {UINT64_MAX, 64, 512},
};
static const struct shape twoshot_ll_shapes[] = {
    {4 * KIB, 4, 64},
    {64 * KIB, 16, 128},
    {256 * KIB, 32, 256},
    {UINT64_MAX, 64, 256},
};
static const struct shape twoshot_push_shapes[] = {
    {64 * KIB, 8, 128},
    {1 * MIB, 32, 512},
    {UINT64_MAX, 64, 512},
};

static const struct {
    const struct shape *shape;
    int count;
} shapes[ONEHOP_ALGORITHMS] = {
    [ONEHOP_ONESHOT_LL] = {oneshot_shapes, sizeof oneshot_shapes / sizeof *oneshot_shapes},
    [ONEHOP_TWOSHOT_LL] = {twoshot_ll_shapes, sizeof twoshot_ll_shapes / sizeof *twoshot_ll_shapes},
    [ONEHOP_TWOSHOT_PUSH] = {twoshot_push_shapes, sizeof twoshot_push_shapes / sizeof *twoshot_push_shapes},
};

static const char *const names[ONEHOP_ALGORITHMS] = {
    [ONEHOP_ONESHOT_LL] = "oneshot_ll",
    [ONEHOP_TWOSHOT_LL] = "twoshot_ll",
    [ONEHOP_TWOSHOT_PUSH] = "twoshot_push",
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
    const uint64_t words = OH_LL_SLOT_BYTES / OH_LL_WORD_BYTES;
    switch (algorithm) {
    case ONEHOP_ONESHOT_LL: /* nranks rows of the whole message */
        return words / nranks * OH_LL_WORD_PAYLOAD;
    case ONEHOP_TWOSHOT_LL: /* twice nranks rows of a chunk, where nranks chunks make the message */
        return words / (2 * nranks) * nranks * OH_LL_WORD_PAYLOAD;
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

/* Adds rows for `algorithm` up to and including max_bytes, from where the table ends now. */
static void add_rows(struct oh_plan_table *table, enum onehop_algorithm algorithm, uint64_t max_bytes)
{
    uint64_t done = oh_plan_table_end(table);
    for (int s = 0; s < shapes[algorithm].count && done < max_bytes && table->rows < OH_PLAN_ROWS; s++) {
        const struct shape *shape = &shapes[algorithm].shape[s];
        uint64_t end = least(shape->max_bytes, max_bytes);
        if (end > done) {
            table->row[table->rows++] = (struct oh_plan_row){
                .max_bytes = end, .algorithm = algorithm, .blocks = shape->blocks, .threads = shape->threads};
            done = end;
        }
    }
}

void oh_plan_table_default(uint32_t nranks, uint64_t max_bytes, int forced, struct oh_plan_table *table_p)
{
    struct oh_plan_table table = {.nranks = nranks};
    for (int a = 0; a < ONEHOP_ALGORITHMS; a++) {
        if (forced >= 0 && forced != a) {
            continue;
        }
        uint64_t end = forced >= 0 ? ranges[nranks][ONEHOP_ALGORITHMS - 1] : ranges[nranks][a];
        end = least(end, oh_plan_capacity(a, nranks));
        if (max_bytes != UINT64_MAX && (forced >= 0 || a == ONEHOP_ALGORITHMS - 1)) {
            /* The user's cap may also lie above the default one. */
            end = least(max_bytes, oh_plan_capacity(a, nranks));
        }
        add_rows(&table, a, least(end, max_bytes));
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
