/* SPDX-License-Identifier: MIT */
/*
 * decide.c - whether the table serves a call, why not, in which parts, and with which other calls
 *
 * Does: Decides by the communicator's agreed table, and by count, datatype and op: equally on all ranks.
 * Threads: the one that uses the communicator.
 * Owns: nothing.
 */
#include "comm/launch/launch.h"

#include "comm/watch/watch.h"

enum oh_fallback oh_call_decide(struct oh_call *call)
{
    const struct oh_comm *comm = call->comm;
    const struct oh_plan_table *table = &comm->serve.table;
    const bool has_op = oh_comm_op_find(comm, call->redop, call->type, &call->op);
    if (has_op && oh_plan_choose(table, call->count, call->type, &call->plan)) {
        return OH_FALLBACK_NONE;
    }
    if (!oh_plan_has_type(table, call->type)) {
        return OH_FALLBACK_TYPE;
    }
    return has_op ? OH_FALLBACK_SIZE : OH_FALLBACK_OP;
}

/* In a list a call starts at a word of its own, so that blocks share no word of a result. */
static uint64_t words_of(const struct oh_call *call)
{
    return oh_message_words(call->count, oh_type_size(call->type));
}

/* As few parts as possible, of equal length but for the last. */
uint64_t oh_call_part_count(const struct oh_call *call)
{
    const uint64_t words = words_of(call);
    const uint64_t most = oh_plan_kernel_words(call->plan.algorithm, call->comm->id.nranks);
    const uint64_t parts = (words + most - 1) / most;
    return (words + parts - 1) / parts * (OH_WORD_BYTES / oh_type_size(call->type));
}

/* --- fusion ------------------------------------------------------------------------------------------------------- */

/* The plan for a message of so many words. False: it is not served, or not by one kernel. */
static bool choose_whole(const struct oh_plan_table *table, uint64_t words, struct oh_plan *plan_p)
{
    return oh_plan_choose(table, words * OH_WORD_BYTES, ncclUint8, plan_p) &&
           words <= oh_plan_kernel_words(plan_p->algorithm, table->nranks);
}

/* Scaled sums never: the scalar is each rank's own, so ranks could compare differently. */
static bool is_fusable(const struct oh_call *a, const struct oh_call *b)
{
    return a->type == b->type && a->op.kind == b->op.kind && a->op.kind != OH_OP_SCALED_SUM;
}

size_t oh_fuse_count(const struct oh_plan_table *table, const struct oh_call *calls, size_t count)
{
    struct oh_plan plan;
    uint64_t words = words_of(&calls[0]);
    size_t fused = 1;
    while (fused < count && fused < OH_LIST_CALLS && is_fusable(&calls[0], &calls[fused])) {
        words += words_of(&calls[fused]);
        if (!choose_whole(table, words, &plan)) {
            break;
        }
        fused++;
    }
    return fused;
}

void oh_fuse_list(const struct oh_plan_table *table, const struct oh_call *calls, size_t count,
                  struct oh_kernel_list_args *list_p, struct oh_plan *plan_p)
{
    uint64_t words = 0;
    for (size_t i = 0; i < count; i++) {
        list_p->item[i] = (struct oh_list_item){
            .sendbuff = calls[i].sendbuff,
            .recvbuff = calls[i].recvbuff,
            .count = calls[i].count,
            .first_word = words,
        };
        words += words_of(&calls[i]);
    }
    list_p->calls = (uint32_t)count;
    list_p->words = (uint32_t)words;
    choose_whole(table, words, plan_p); /* it is served: oh_fuse_count */
}
