/* SPDX-License-Identifier: MIT */
/*
 * decide.c - whether the table serves a call, why not, in which parts, and with which other calls
 *
 * Does: Decides by the communicator's agreed table, and by kind, count, datatype, op and root: equally on all ranks.
 * Threads: the one that uses the communicator.
 * Owns: nothing.
 */
#include "comm/launch/launch.h"

/* By enum oh_call_kind. */
static const struct {
    bool reduces, has_root; /* or a peer */
} kinds[] = {
    [OH_CALL_ALLREDUCE] = {true, false},   [OH_CALL_REDUCE] = {true, true},
    [OH_CALL_BROADCAST] = {false, true},   [OH_CALL_REDUCE_SCATTER] = {true, false},
    [OH_CALL_ALL_GATHER] = {false, false}, [OH_CALL_SEND] = {false, true},
    [OH_CALL_RECV] = {false, true},        [OH_CALL_ALL_TO_ALL] = {false, false},
    [OH_CALL_GATHER] = {false, true},      [OH_CALL_SCATTER] = {false, true},
};

/* As oh_call_is_valid. Of a call that reduces, sets the op. */
static bool check_arguments(const struct oh_call *call, struct oh_op *op_p)
{
    const struct oh_comm *comm = call->comm;
    if (call->kind == OH_CALL_OP_DESTROY) {
        return oh_comm_op_is_known(comm, call->redop);
    }
    return oh_type_size(call->type) > 0 &&
           (!kinds[call->kind].reduces || oh_comm_op_find(comm, call->redop, call->type, op_p)) &&
           (!kinds[call->kind].has_root || (call->root >= 0 && (uint32_t)call->root < comm->id.nranks));
}

bool oh_call_is_valid(const struct oh_call *call)
{
    struct oh_op op;
    return check_arguments(call, &op);
}

static enum onehop_collective collective_of(const struct oh_call *call)
{
    return (enum onehop_collective)call->kind;
}

enum oh_fallback oh_call_decide(struct oh_call *call)
{
    if (call->has_config || !oh_kind_has_kernels(call->kind)) {
        return OH_FALLBACK_OP;
    }
    const struct oh_plan_table *table = &call->comm->serve.table;
    const enum onehop_collective collective = collective_of(call);
    if (table->rows[collective].count == 0) {
        return OH_FALLBACK_KIND;
    }
    const bool is_valid = check_arguments(call, &call->op);
    if (is_valid && oh_plan_choose(table, collective, call->count, call->type, &call->plan)) {
        return OH_FALLBACK_NONE;
    }
    if (!oh_plan_has_type(table, collective, call->type)) {
        return OH_FALLBACK_TYPE;
    }
    return is_valid ? OH_FALLBACK_SIZE : OH_FALLBACK_OP;
}

uint64_t oh_call_bytes(const struct oh_call *call)
{
    return call->count * oh_type_size(call->type) * oh_collective_parts(collective_of(call), call->comm->id.nranks);
}

/* In a list a call starts at a word of its own, so that blocks share no word of a result. */
static uint64_t words_of(const struct oh_call *call)
{
    return oh_message_words(call->count, oh_type_size(call->type));
}

uint64_t oh_call_elements(const struct oh_call *call, uint64_t count)
{
    return oh_collective_reduces(collective_of(call)) ? count : count * oh_type_size(call->type);
}

uint64_t oh_call_stride(const struct oh_call *call)
{
    return oh_collective_has_parts(collective_of(call)) ? call->count * oh_type_size(call->type) : 0;
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
static bool choose_whole(const struct oh_plan_table *table, enum onehop_collective collective, uint64_t words,
                         struct oh_plan *plan_p)
{
    return oh_plan_choose(table, collective, words * OH_WORD_BYTES, ncclUint8, plan_p) &&
           words <= oh_plan_kernel_words(plan_p->algorithm, table->nranks);
}

/* Scaled sums never: the scalar is each rank's own, so ranks could compare differently. */
static bool is_fusable(const struct oh_call *a, const struct oh_call *b)
{
    return a->kind == b->kind && (!oh_collective_reduces(collective_of(a)) ||
                                  (a->type == b->type && a->op.kind == b->op.kind && a->op.kind != OH_OP_SCALED_SUM));
}

size_t oh_fuse_count(const struct oh_plan_table *table, const struct oh_call *calls, size_t count)
{
    struct oh_plan plan;
    uint64_t words = words_of(&calls[0]);
    size_t fused = 1;
    while (fused < count && fused < OH_LIST_CALLS && is_fusable(&calls[0], &calls[fused])) {
        words += words_of(&calls[fused]);
        if (!choose_whole(table, collective_of(calls), words, &plan)) {
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
            .count = oh_call_elements(&calls[i], calls[i].count),
            .stride = oh_call_stride(&calls[i]),
            .root = (uint32_t)calls[i].root,
            .first_word = (uint32_t)words,
        };
        words += words_of(&calls[i]);
    }
    list_p->calls = (uint32_t)count;
    list_p->words = (uint32_t)words;
    choose_whole(table, collective_of(calls), words, plan_p); /* it is served: oh_fuse_count */
}
