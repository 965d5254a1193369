/* SPDX-License-Identifier: MIT */
/* t_fuse.c - which calls of a group go out as one launch: random groups, cut as they would be launched */
#include "comm/launch/launch.h"

#include <stdlib.h>
#include <string.h>

#include "test/unit/default_table.h"
#include "test/unit/unit.h"

#define GROUPS 2000
#define CALLS 100

static uint32_t state = 12345;

static uint32_t draw(uint32_t below)
{
    state = state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(state >> 4) * below >> 28);
}

static uint64_t words_of(const struct oh_call *call)
{
    return (call->count * oh_type_size(call->type) + 15) / 16;
}

/* What the table serves, and one kernel takes. */
static uint64_t most_words(const struct oh_plan_table *table, enum oh_call_kind kind)
{
    const struct oh_plan_rows *rows = &table->rows[kind];
    const struct oh_plan_row *last = &rows->row[rows->count - 1];
    const bool has_parts = kind == OH_CALL_ALL_GATHER || kind == OH_CALL_REDUCE_SCATTER;
    const uint64_t served = last->max_bytes / 16 / (has_parts ? table->nranks : 1);
    const uint64_t kernel = oh_plan_kernel_words((enum onehop_algorithm)last->algorithm, table->nranks);
    return served < kernel ? served : kernel;
}

static bool moves(const struct oh_call *call)
{
    return call->kind == OH_CALL_ALL_GATHER || call->kind == OH_CALL_BROADCAST;
}

static bool alike(const struct oh_call *a, const struct oh_call *b)
{
    return a->kind == b->kind &&
           (moves(a) || (a->type == b->type && a->op.kind == b->op.kind && a->op.kind != OH_OP_SCALED_SUM));
}

/* A group as one rank has it: pointers and streams are its own, the rest is drawn by the seed. */
static void make_group(uint32_t seed, uintptr_t rank, struct oh_call *calls)
{
    static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclInt8, ncclUint64};
    state = seed;
    const enum oh_call_kind first = (enum oh_call_kind)draw(ONEHOP_COLLECTIVE_COUNT);
    const bool mixes = draw(4) == 0;
    uint32_t kinds = 1 + draw(4), ops = draw(2) ? 1 : OH_OPS, limit = draw(2) ? 300 : draw(2) ? 60000 : 2000000;
    for (size_t i = 0; i < CALLS; i++) {
        memset(&calls[i], (int)rank, sizeof calls[i]);
        calls[i].kind = mixes && draw(4) == 0 ? (enum oh_call_kind)draw(ONEHOP_COLLECTIVE_COUNT) : first;
        calls[i].root = (int)draw(2);
        calls[i].count = 1 + draw(limit);
        calls[i].type = types[draw(kinds)];
        calls[i].op.kind = draw(ops);
        calls[i].op.operand = rank * i % 2; /* of a scaled sum: each rank's own */
        calls[i].sendbuff = (const void *)(1000 * rank + i);
        calls[i].stream = (CUstream)(rank * i % 3 + 16);
    }
}

static bool list_is_right(const struct oh_call *calls, size_t count, const struct oh_plan_table *table)
{
    struct oh_kernel_list_args list;
    struct oh_plan plan;
    uint64_t words = 0;
    oh_fuse_list(table, calls, count, &list, &plan);
    bool right = list.calls == count;
    for (size_t i = 0; i < count; i++) {
        const size_t size = oh_type_size(calls[i].type);
        const bool has_parts = calls[i].kind == OH_CALL_ALL_GATHER || calls[i].kind == OH_CALL_REDUCE_SCATTER;
        right &= list.item[i].first_word == words && list.item[i].root == (uint32_t)calls[i].root &&
                 list.item[i].count == calls[i].count * (moves(&calls[i]) ? size : 1) &&
                 list.item[i].stride == (has_parts ? calls[i].count * size : 0) &&
                 list.item[i].sendbuff == calls[i].sendbuff && list.item[i].recvbuff == calls[i].recvbuff &&
                 alike(&calls[0], &calls[i]);
        words += words_of(&calls[i]);
    }
    struct oh_plan alone; /* of one message as large */
    return right && list.words == words &&
           oh_plan_choose(table, (enum onehop_collective)calls->kind, words * 16, ncclInt8, &alone) &&
           plan.algorithm == alone.algorithm && plan.blocks == alone.blocks && plan.threads == alone.threads;
}

/* As long as it could be: the next call is unlike these, or has no room. */
static bool is_greedy(const struct oh_call *calls, size_t count, size_t left, const struct oh_plan_table *table)
{
    uint64_t words = 0;
    for (size_t i = 0; i < count; i++) {
        words += words_of(&calls[i]);
    }
    return count == left || count == OH_LIST_CALLS || !alike(&calls[0], &calls[count]) ||
           words + words_of(&calls[count]) > most_words(table, calls->kind);
}

static void test_groups(uint32_t nranks)
{
    static struct oh_call here[CALLS], there[CALLS];
    struct oh_plan_table table;
    size_t lists = 0, full = 0;
    bool right = true, same = true;
    default_table(nranks, UINT64_MAX, -1, &table);
    for (uint32_t g = 0; g < GROUPS; g++) {
        make_group(g, 1, here);
        make_group(g, 2, there);
        for (size_t i = 0, count; i < CALLS; i += count) {
            count = oh_fuse_count(&table, &here[i], CALLS - i);
            same &= count == oh_fuse_count(&table, &there[i], CALLS - i);
            right &= count >= 1 && i + count <= CALLS && is_greedy(&here[i], count, CALLS - i, &table) &&
                     (count == 1 || list_is_right(&here[i], count, &table));
            lists += count > 1;
            full += count == OH_LIST_CALLS;
        }
    }
    tap_ok(right && lists > GROUPS && full > 0, "n=%u: %zu lists, %zu of them full, are as long as may be", nranks,
           lists, full);
    tap_ok(same, "n=%u: ranks with other pointers, streams and scalars cut groups alike", nranks);
}

static void test_edges(void)
{
    struct oh_plan_table table;
    struct oh_call calls[40] = {0};
    default_table(4, UINT64_MAX, -1, &table);
    size_t most = most_words(&table, OH_CALL_ALLREDUCE) * 4; /* fp32 elements */
    for (size_t i = 0; i < 40; i++) {
        calls[i] = (struct oh_call){.count = 1, .type = ncclFloat32};
    }
    tap_ok(oh_fuse_count(&table, calls, 1) == 1, "one call alone");
    tap_ok(oh_fuse_count(&table, calls, 40) == OH_LIST_CALLS, "no more calls than a list holds");
    calls[0].count = most - 4;
    tap_ok(oh_fuse_count(&table, calls, 2) == 2, "two calls that just fit");
    calls[0].count = most - 3;
    tap_ok(oh_fuse_count(&table, calls, 2) == 1, "two calls that do not");
    calls[0].count = 100 * most;
    tap_ok(oh_fuse_count(&table, calls, 40) == 1 && oh_fuse_count(&table, &calls[1], 39) == OH_LIST_CALLS,
           "a large call goes alone");
    calls[0].count = 1;
    default_table(4, UINT64_MAX, ONEHOP_TWOSHOT, &table);
    tap_ok(oh_fuse_count(&table, calls, 40) == OH_LIST_CALLS, "two-shot carries lists, too");
    default_table(4, UINT64_MAX, -1, &table);
    table.rows[ONEHOP_ALLREDUCE].row[1].algorithm = OH_PLAN_NCCL;
    calls[0].count = calls[1].count = (size_t)table.rows[ONEHOP_ALLREDUCE].row[0].max_bytes / 4;
    tap_ok(oh_fuse_count(&table, calls, 2) == 1, "nothing goes together where NCCL would serve the whole");
    default_table(4, 0, -1, &table);
    tap_ok(oh_fuse_count(&table, calls, 40) == 1, "nor with an empty table");
}

/* Every count that the table of an invariant communicator serves goes in parts, up to the last one whose bytes a size_t
 * holds, and two such calls share no launch. */
static void test_last_counts(uint32_t nranks, enum oh_call_kind kind)
{
    struct oh_comm *comm = unit_need(calloc(1, sizeof *comm));
    const uint64_t parts = oh_collective_parts((enum onehop_collective)kind, nranks);
    uint64_t served = 0;
    bool right = true;
    comm->id.nranks = nranks;
    default_table(nranks, UINT64_MAX, -1, &comm->serve.table);
    oh_plan_table_complete(&comm->serve.table);
    for (int type = 0; type < OH_NCCL_TYPES - 2; type++) {
        const uint64_t size = oh_type_size((ncclDataType_t)type), most = SIZE_MAX / size / parts;
        for (uint64_t below = 0; below < 40; below++) {
            struct oh_call calls[2] = {
                {.comm = comm, .kind = kind, .count = most - below, .type = (ncclDataType_t)type}};
            calls[1] = calls[0];
            if (oh_plan_choose(&comm->serve.table, (enum onehop_collective)kind, calls->count, calls->type,
                               &calls->plan)) {
                const uint64_t part = oh_call_part_count(calls);
                right &= part > 0 &&
                         part * size <= oh_plan_kernel_words(calls->plan.algorithm, nranks) * OH_WORD_BYTES &&
                         oh_fuse_count(&comm->serve.table, calls, 2) == 1;
                served++;
            }
        }
    }
    tap_ok(right && served == 40 * (OH_NCCL_TYPES - 2), "n=%u: the last counts of an invariant %s go in parts", nranks,
           oh_collective_name((int)kind));
    free(comm);
}

/* As few parts as may be, of whole words, of which only the last has fewer. */
static void test_parts(void)
{
    struct oh_comm *comm = unit_need(calloc(1, sizeof *comm));
    bool right = true;
    for (uint32_t i = 0; i < 100000; i++) {
        comm->id.nranks = 2 + draw(7);
        const struct oh_call call = {.comm = comm,
                                     .kind = (enum oh_call_kind)draw(ONEHOP_COLLECTIVE_COUNT),
                                     .count = 1 + draw(1 << draw(28)),
                                     .type = (ncclDataType_t)draw(OH_NCCL_TYPES),
                                     .plan.algorithm = (enum onehop_algorithm)draw(ONEHOP_ALGORITHM_COUNT)};
        const uint64_t size = oh_type_size(call.type), part = oh_call_part_count(&call),
                       most = oh_plan_kernel_words(call.plan.algorithm, comm->id.nranks),
                       parts = (words_of(&call) + most - 1) / most;
        right &= part * size % OH_WORD_BYTES == 0 && part * size <= most * OH_WORD_BYTES &&
                 (call.count + part - 1) / part <= parts && part * size / OH_WORD_BYTES <= words_of(&call) / parts + 1;
    }
    tap_ok(right, "few parts, of equal length");
    free(comm);
}

int main(void)
{
    for (uint32_t n = 2; n <= 8; n += 3) {
        test_groups(n);
    }
    test_edges();
    test_parts();
    for (uint32_t n = 2; n <= 8; n++) {
        test_last_counts(n, OH_CALL_ALLREDUCE);
        test_last_counts(n, OH_CALL_REDUCE_SCATTER);
    }
    return tap_done();
}
