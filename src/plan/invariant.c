/* SPDX-License-Identifier: MIT */
/*
 * invariant.c - tables that serve every size (ONEHOP_INVARIANT)
 *
 * Does: Extends the rows of a table to every size, and cuts their grids to any room. The grid never changes a result.
 * Threads: pure functions.
 * Owns: nothing.
 */
#include "plan/plan.h"

#define WARP 32
#define ANY_GBPS 300 /* moves the limits between shapes, no more */

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

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* As many threads in at most max_blocks blocks, or as many as these may have; blocks that fit on the SMs at a time. */
static void cut_grid(struct oh_plan_row *row, uint32_t nranks, const struct oh_plan_room *room)
{
    uint32_t threads = row->threads, most = least(OH_MAX_THREADS, room->sm_threads);
    if (row->blocks > room->max_blocks) {
        threads = row->blocks * row->threads / room->max_blocks + WARP - 1;
        most = least(most, oh_plan_grid_threads(nranks) / room->max_blocks);
    }
    row->threads = least(threads, most) / WARP * WARP;
    row->blocks = least(row->blocks, room->max_blocks);
    row->blocks = least(row->blocks, room->sms * (room->sm_threads / row->threads));
}

static bool fit_all(struct oh_plan_rows *rows, uint32_t nranks, const struct oh_plan_room *room)
{
    if (room->sms == 0 || room->sm_threads < WARP || room->max_blocks == 0) {
        return false;
    }
    for (uint32_t i = 0; i < rows->count; i++) {
        if (rows->row[i].algorithm != OH_PLAN_NCCL) {
            cut_grid(&rows->row[i], nranks, room);
        }
    }
    return true;
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

bool oh_plan_table_fit_all(struct oh_plan_table *table, const struct oh_plan_room *room)
{
    struct oh_plan_table fitting = *table;
    if (!oh_plan_table_fit(&fitting, room)) {
        oh_plan_table_keep(&fitting, 0);
    }
    for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT; c++) {
        if (oh_collective_reduces((enum onehop_collective)c)) {
            fitting.rows[c] = table->rows[c];
            if (!fit_all(&fitting.rows[c], table->nranks, room)) {
                return false;
            }
        }
    }
    *table = fitting;
    return true;
}
