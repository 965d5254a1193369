/* SPDX-License-Identifier: MIT */
/*
 * decide.c - whether a call is served, why not, and in which parts
 *
 * Does: Decides by the communicator's agreed table, and by count, datatype and op: equally on all ranks.
 * Threads: the one that uses the communicator.
 * Owns: nothing.
 */
#include "comm/launch/decide.h"

#include "comm/watch/failure.h"

bool oh_call_decide(struct oh_call *call, ncclRedOp_t op)
{
    struct oh_comm *comm = call->comm;
    return oh_comm_state(comm) == OH_COMM_SERVED && oh_comm_op_find(comm, op, call->type, &call->op) &&
           (!comm->check || oh_check_call(call)) && oh_plan_choose(&comm->table, call->count, call->type, &call->plan);
}

/* Asks about calls that differ in one thing, so that this holds whatever is served. */
static enum oh_fallback fallback_reason(struct oh_comm *comm, ncclDataType_t type, ncclRedOp_t op)
{
    struct oh_plan plan;
    struct oh_op known;
    if (oh_comm_state(comm) != OH_COMM_SERVED) {
        return OH_FALLBACK_COMM;
    }
    if (!oh_plan_choose(&comm->table, oh_plan_some_count(&comm->table, type), type, &plan)) {
        return OH_FALLBACK_TYPE;
    }
    return oh_comm_op_find(comm, op, type, &known) ? OH_FALLBACK_SIZE : OH_FALLBACK_OP;
}

void oh_comm_count_fallback(struct oh_comm *comm, size_t count, ncclDataType_t type, ncclRedOp_t op)
{
    struct oh_counters *counters = oh_comm_counters(comm);
    oh_counter_add(&counters->fallbacks[fallback_reason(comm, type, op)], 1);
    oh_counter_add(&counters->fallback_bytes, count * oh_type_size(type));
}

/* Words of the parts that a call goes in: as few as can be, and as long as one another, the last but for a few. */
static uint64_t part_words(const struct oh_call *call)
{
    const uint64_t words = oh_message_words(call->count, oh_type_size(call->type));
    const uint64_t most = oh_plan_kernel_words(call->plan.algorithm, call->comm->nranks);
    const uint64_t parts = (words + most - 1) / most;
    return (words + parts - 1) / parts;
}

struct oh_parts oh_call_parts(const struct oh_call *call, bool serial)
{
    const struct oh_comm *comm = call->comm;
    const uint64_t words = part_words(call);
    struct oh_parts parts = {
        .words = words, .count = words * (OH_WORD_BYTES / oh_type_size(call->type)), .plan = call->plan};
    const uint32_t blocks =
        oh_plan_pipeline_blocks(comm->nranks, call->plan.blocks, call->plan.threads, comm->max_blocks);
    if (call->count > parts.count && comm->overlaps && blocks > 0) {
        parts.plan.blocks = blocks;
        parts.overlap = !serial;
        parts.sends_early =
            parts.overlap && comm->early_send && oh_plan_can_send_early(call->plan.algorithm, comm->nranks);
    }
    return parts;
}
