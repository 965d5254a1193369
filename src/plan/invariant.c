/* SPDX-License-Identifier: MIT */
/*
 * invariant.c - tables that serve every size (ONEHOP_INVARIANT)
 *
 * Does: Extends the rows of a table to every size.
 * Threads: pure functions.
 * Owns: nothing.
 */
#include "plan/plan.h"

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
