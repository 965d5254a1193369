/* SPDX-License-Identifier: MIT */
/*
 * fuse.c - which calls of a group share one kernel launch
 *
 * Does: Compares consecutive calls, and fills the call list.
 * Threads: pure functions of calls and table.
 * Owns: nothing.
 */
#include "comm/launch/fuse.h"

/* A call starts at a word of its own: blocks of a kernel then share no word of a result. */
static uint64_t words_of(const struct oh_call *call)
{
    return oh_message_words(call->count, oh_type_size(call->type));
}

/* The row for a message of so many words; NULL: it would not be served, or not by one kernel. */
static const struct oh_plan_row *row_for(const struct oh_plan_table *table, uint64_t words)
{
    const struct oh_plan_rows *rows = &table->rows;
    for (uint32_t i = 0; i < rows->count; i++) {
        const struct oh_plan_row *row = &rows->row[i];
        if (words <= row->max_bytes / OH_WORD_BYTES) {
            bool whole = row->algorithm != OH_PLAN_NCCL &&
                         words <= oh_plan_kernel_words((enum onehop_algorithm)row->algorithm, table->nranks);
            return whole ? row : NULL;
        }
    }
    return NULL;
}

/* Scaled sums never do: the scalar is each rank's own, so a comparison might come out differently on another rank. */
static bool go_together(const struct oh_call *a, const struct oh_call *b)
{
    return a->type == b->type && a->op.kind == b->op.kind && a->op.kind != OH_OP_SCALED_SUM;
}

size_t oh_fuse_count(const struct oh_plan_table *table, const struct oh_call *calls, size_t count)
{
    uint64_t words = words_of(&calls[0]);
    size_t fused = 1;
    while (fused < count && fused < OH_LIST_CALLS && go_together(&calls[0], &calls[fused])) {
        words += words_of(&calls[fused]);
        if (!row_for(table, words)) {
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
    const struct oh_plan_row *row = row_for(table, words);
    if (!row) {
        __builtin_unreachable(); /* oh_fuse_count has found one for as many words */
    }
    *plan_p = (struct oh_plan){.algorithm = row->algorithm, .blocks = row->blocks, .threads = row->threads};
}
