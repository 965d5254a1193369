/* SPDX-License-Identifier: MIT */
/*
 * subset.c - which items of a program are a valid program by themselves
 *
 * Does: Knows what an item needs: its communicator and the parent of that, its op, the begin of its group or capture.
 * Threads: any.
 * Owns: nothing.
 */
#include "test/programs/program.h"

bool pg_is_call(const struct pg_item *item)
{
    return item->kind == PG_CALL || (item->kind >= PG_ESTIMATE && item->kind <= PG_EMPTY);
}

bool pg_has_memory(const struct pg_item *item)
{
    return pg_is_call(item) || item->kind == PG_OP;
}

static bool needs_comm(const struct pg_item *item)
{
    return pg_has_memory(item) || item->kind == PG_POLL || item->kind == PG_COMM_END || item->kind == PG_SUSPEND;
}

static bool has_comm(const struct pg_program *program, const struct pg_mask *active, int comm)
{
    for (int i = 0; i < program->items; i++) {
        if (program->item[i].kind == PG_COMM && program->item[i].call.comm == comm) {
            return active->on[i];
        }
    }
    return false;
}

struct pg_mask pg_close(const struct pg_program *program, const struct pg_mask *kept)
{
    struct pg_mask active = {{0}};
    for (int i = 0; i < program->items; i++) {
        const struct pg_item *item = &program->item[i];
        bool is_end = item->kind == PG_GROUP_END || item->kind == PG_CAPTURE_END;
        bool on = is_end || kept->on[i];
        on &= item->begin < 0 || active.on[item->begin];
        on &= !needs_comm(item) || has_comm(program, &active, item->call.comm);
        on &= item->call.op_item < 0 || active.on[item->call.op_item];
        on &= item->parent < 0 || has_comm(program, &active, item->parent);
        active.on[i] = on;
    }
    return active;
}
