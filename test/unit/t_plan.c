/* SPDX-License-Identifier: MIT */
/*
 * t_plan.c - the choice of algorithm: tables for every number of ranks, limits, wishes, and tables from a stranger
 */
#include <stdint.h>
#include <string.h>

#include "kernels/abi.h"
#include "plan/plan.h"
#include "test/tap.h"

static void test_default_tables(void)
{
    for (uint32_t n = 2; n <= OH_MAX_RANKS; n++) {
        struct oh_plan_table table;
        oh_plan_table_default(n, UINT64_MAX, -1, &table);
        tap_ok(oh_plan_table_valid(&table, n) && table.rows > 2, "n=%u: the default table is valid", n);

        bool right = true;
        struct oh_plan plan;
        for (uint32_t i = 0; i < table.rows; i++) {
            /* At the end of each row its own algorithm, one element later the next one's. */
            size_t count = table.row[i].max_bytes / 4;
            right &= oh_plan_choose(&table, count, ncclFloat32, ncclSum, &plan) &&
                     plan.algorithm == table.row[i].algorithm && plan.blocks == table.row[i].blocks;
            bool served = oh_plan_choose(&table, count + 1, ncclFloat32, ncclSum, &plan);
            right &= served == (i + 1 < table.rows) && (!served || plan.algorithm == table.row[i + 1].algorithm);
        }
        tap_ok(right, "n=%u: each row begins and ends where it says", n);
    }
}

static void test_what_is_not_served(void)
{
    struct oh_plan_table table;
    struct oh_plan plan = {ONEHOP_TWOSHOT_PUSH, 7, 7};
    bool none = true;
    oh_plan_table_default(4, UINT64_MAX, -1, &table);
    for (int type = 0; type < 14; type++) {
        for (int op = -1; op < 8; op++) {
            bool expected = op == ncclSum && (type == ncclFloat32 || type == ncclFloat16 || type == ncclBfloat16);
            none &= oh_plan_choose(&table, 10, (ncclDataType_t)type, (ncclRedOp_t)op, &plan) == expected;
        }
    }
    tap_ok(none, "served: sum of fp32, fp16, bf16; nothing else");
    plan = (struct oh_plan){ONEHOP_TWOSHOT_PUSH, 7, 7};
    tap_ok(!oh_plan_choose(&table, 0, ncclFloat32, ncclSum, &plan) && plan.blocks == 7, "count 0 is not served");
    tap_ok(!oh_plan_choose(&table, SIZE_MAX, ncclFloat32, ncclSum, &plan), "a count whose bytes overflow");
    tap_ok(!oh_plan_choose(&table, SIZE_MAX / 4 + 2, ncclFloat32, ncclSum, &plan), "a count whose bytes wrap to few");
}

static void test_wishes(void)
{
    struct oh_plan_table table;
    struct oh_plan plan;
    oh_plan_table_default(4, 1000, -1, &table);
    tap_ok(oh_plan_table_end(&table) == 1000 && oh_plan_choose(&table, 250, ncclFloat32, ncclSum, &plan) &&
               !oh_plan_choose(&table, 251, ncclFloat32, ncclSum, &plan),
           "a cap below the default one");
    oh_plan_table_default(4, UINT64_C(64) << 20, -1, &table);
    tap_ok(oh_plan_table_end(&table) == UINT64_C(64) << 20 && oh_plan_table_valid(&table, 4),
           "a cap above the default one");
    oh_plan_table_default(4, 0, -1, &table);
    tap_ok(oh_plan_table_valid(&table, 4) && !oh_plan_choose(&table, 1, ncclFloat32, ncclSum, &plan),
           "a cap of 0: nothing is served");
    for (int a = 0; a < ONEHOP_ALGORITHMS; a++) {
        for (uint32_t n = 2; n <= OH_MAX_RANKS; n++) {
            bool right = true;
            oh_plan_table_default(n, UINT64_MAX, a, &table);
            right &= oh_plan_table_valid(&table, n) && oh_plan_table_end(&table) <= oh_plan_capacity(a, n);
            for (uint32_t i = 0; i < table.rows; i++) {
                right &= (int)table.row[i].algorithm == a;
            }
            tap_ok(right && table.rows > 0, "n=%u: %s for all that it can carry, and no more", n, oh_algorithm_name(a));
        }
    }
}

/* The slots in staging memory hold what oh_plan_capacity promises: computed here from the kernels' layout. */
static void test_capacity(void)
{
    for (uint64_t n = 2; n <= OH_MAX_RANKS; n++) {
        uint64_t one = oh_plan_capacity(ONEHOP_ONESHOT_LL, (uint32_t)n) / OH_LL_WORD_PAYLOAD;
        uint64_t two = oh_plan_capacity(ONEHOP_TWOSHOT_LL, (uint32_t)n) / OH_LL_WORD_PAYLOAD;
        uint64_t chunk = (two + n - 1) / n;
        tap_ok(n * one * OH_WORD_BYTES <= OH_LL_SLOT_BYTES && 2 * n * chunk * OH_WORD_BYTES <= OH_LL_SLOT_BYTES,
               "n=%u: the largest LL messages fit a slot", (unsigned)n);
    }
}

static void test_foreign_tables(void)
{
    struct oh_plan_table good, bad;
    oh_plan_table_default(4, UINT64_MAX, -1, &good);
    tap_ok(!oh_plan_table_valid(&good, 3), "a table for another number of ranks");
#define REJECTS(change_, text_)                                                                                        \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        change_;                                                                                                       \
        tap_ok(!oh_plan_table_valid(&bad, 4), text_);                                                                  \
    } while (0)
    REJECTS(bad.rows = OH_PLAN_ROWS + 1, "too many rows");
    REJECTS(bad.row[0].algorithm = ONEHOP_ALGORITHMS, "an algorithm that does not exist");
    REJECTS(bad.row[1].blocks = 0, "no blocks");
    REJECTS(bad.row[1].blocks = OH_MAX_BLOCKS + 1, "too many blocks");
    REJECTS(bad.row[0].threads = 0, "no threads");
    REJECTS(bad.row[0].threads = 48, "part of a warp");
    REJECTS(bad.row[0].threads = OH_MAX_THREADS + 32, "too many threads");
    REJECTS(bad.row[1].max_bytes = bad.row[0].max_bytes, "rows out of order");
    REJECTS(bad.row[bad.rows - 1].algorithm = ONEHOP_ONESHOT_LL, "more than the slot holds");
#undef REJECTS
}

static void test_names(void)
{
    bool right = true;
    for (int a = 0; a < ONEHOP_ALGORITHMS; a++) {
        right &= oh_algorithm_by_name(oh_algorithm_name(a)) == a;
    }
    tap_ok(right && !oh_algorithm_name(-1) && !oh_algorithm_name(ONEHOP_ALGORITHMS) &&
               oh_algorithm_by_name("ring") == -1,
           "names of algorithms");
    tap_ok(oh_type_size(ncclFloat16) == 2 && oh_type_size(ncclInt64) == 8 && oh_type_size((ncclDataType_t)99) == 0 &&
               oh_type_size((ncclDataType_t)-1) == 0,
           "sizes of types");
}

int main(void)
{
    test_default_tables();
    test_what_is_not_served();
    test_wishes();
    test_capacity();
    test_foreign_tables();
    test_names();
    return tap_done();
}
