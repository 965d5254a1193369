/* SPDX-License-Identifier: MIT */
/*
 * print.c - a program and a set of its items as text
 *
 * Does: Prints a line for each item, and sets as "0-4,7", which pg_mask_parse reads.
 * Threads: any.
 * Owns: nothing.
 */
#include <stdio.h>
#include <stdlib.h>

#include "test/common/options.h"
#include "test/programs/program.h"

const char *const pg_function_names[PG_FUNCTIONS] = {"ncclAllReduce",
                                                     "ncclBroadcast",
                                                     "ncclBcast",
                                                     "ncclReduce",
                                                     "ncclAllGather",
                                                     "ncclReduceScatter",
                                                     "ncclAlltoAll",
                                                     "ncclGather",
                                                     "ncclScatter",
                                                     "ncclSend and ncclRecv",
                                                     "a ring of ncclSend and ncclRecv"};
static const char *const way_names[PG_WAYS] = {"ncclCommDestroy", "ncclCommFinalize and ncclCommDestroy",
                                               "ncclCommAbort", "no call"};
static const char *const mistake_names[PG_MISTAKES] = {"a wrong type", "a wrong op", "a wrong root", "no communicator"};
static const char *const maker_names[CF_MAKERS] = {"ncclCommInitRank", "ncclCommInitRankConfig",
                                                   "ncclCommInitRankConfig, non-blocking", "ncclCommInitRankScalable",
                                                   "ncclCommInitAll"};

static void print_comm(const struct pg_program *program, const struct pg_item *item, FILE *file)
{
    if (item->parent < 0) {
        fprintf(file, "comm %d = %s\n", item->call.comm, maker_names[item->maker]);
        return;
    }
    fprintf(file, "comm %d = %s of comm %d%s", item->call.comm, item->shrinks ? "ncclCommShrink" : "ncclCommSplit",
            item->parent, item->flags & CF_CHILD_NONBLOCKING ? ", non-blocking" : "");
    fputs(item->shrinks ? ", without" : ", color:key by rank", file);
    for (int r = 0; r < program->layout.nranks; r++) {
        if (!item->shrinks) {
            fprintf(file, " %d:%d", item->color[r], item->key[r]);
        } else if (item->color[r] == NCCL_SPLIT_NOCOLOR) {
            fprintf(file, " %d", r);
        }
    }
    fputc('\n', file);
}

static void print_call(const struct pg_program *program, const struct pg_item *item, FILE *file)
{
    fprintf(file, "%s comm %d, %zu %s", pg_function_names[item->call.function], item->call.comm, item->call.count,
            cf_types[item->call.type].name);
    if (item->call.function == PG_SEND) {
        fprintf(file, ", rank %d to rank %d", item->call.root, item->call.peer);
    } else {
        fprintf(file, " %s, root %d modulo the ranks", cf_op_names[item->call.op], item->call.root);
    }
    if (item->call.op_item >= 0) {
        fprintf(file, ", op of item %d", item->call.op_item);
    }
    fputs(", by rank:", file);
    for (int r = 0; r < program->layout.nranks; r++) {
        fprintf(file, " stream %d%s", item->stream[r],
                item->call.function < PG_ALL_TO_ALL && item->in_place >> r & 1 ? " in place" : "");
    }
    fputc('\n', file);
}

/* An item without a call: a line. */
static void print_other(const struct pg_item *item, FILE *file)
{
    switch (item->kind) {
    case PG_PAUSE:
        fprintf(file, "pause of %d us\n", item->us);
        break;
    case PG_POLL:
        fprintf(file, "ncclCommGetAsyncError comm %d\n", item->call.comm);
        break;
    case PG_CAPTURE:
        fprintf(file, "begin of a capture, stream %d, mode %d", item->stream[0], item->flags);
        if (item->fork >= 0) {
            fprintf(file, ", and stream %d", item->fork);
        }
        fputc('\n', file);
        break;
    case PG_CAPTURE_END:
        fprintf(file, "end of capture %d\n", item->begin);
        break;
    case PG_REPLAY:
        fprintf(file, "launch of capture %d, stream %d\n", item->begin, item->stream[0]);
        break;
    case PG_GRAPH_END:
        fprintf(file, "the graph of capture %d is destroyed, %s\n", item->begin,
                item->flags & PG_GRAPH_LAST ? "after its executable graph" : "before its executable graph");
        break;
    case PG_STREAM:
        fprintf(file, "stream %d is destroyed, and made anew\n", item->stream[0]);
        break;
    case PG_COMM_END:
        fprintf(file, "%s comm %d%s%s\n", way_names[item->way], item->call.comm,
                item->flags & PG_IDLE ? ", once the streams have nothing to do" : "",
                item->flags & PG_GROUPED && item->way != PG_ABORT ? ", in a group" : "");
        break;
    case PG_SUSPEND:
        fprintf(file, "ncclCommSuspend and ncclCommResume comm %d%s\n", item->call.comm,
                item->flags & PG_IDLE ? ", once the streams have nothing to do" : "");
        break;
    case PG_OP:
        fprintf(file, "ncclRedOpCreatePreMulSum comm %d, %s %s\n", item->call.comm, cf_types[item->call.type].name,
                cf_op_names[item->call.op]);
        break;
    case PG_OP_END:
        fprintf(file, "ncclRedOpDestroy of item %d\n", item->begin);
        break;
    case PG_END:
        fprintf(file, "wait and compare; end by %s\n", way_names[item->way]);
        break;
    default:
        fprintf(file, "%s\n",
                item->kind == PG_CHECK       ? "wait and compare"
                : item->kind == PG_GROUP     ? "ncclGroupStart"
                : item->flags & PG_SIMULATED ? "ncclGroupSimulateEnd of an inner group"
                                             : "ncclGroupEnd");
    }
}

static void print_item(const struct pg_program *program, const struct pg_item *item, FILE *file)
{
    if (item->rank != PG_ALL) {
        fprintf(file, "rank %d: ", item->rank);
    }
    if (item->kind == PG_ESTIMATE) {
        fprintf(file, "ncclGroupStart, ncclGroupSimulateEnd around%s%s: ",
                item->flags & PG_NESTED ? " an inner group of" : "", item->flags & PG_TWICE ? " two of" : "");
    } else if (item->kind == PG_REJECTED || item->kind == PG_REJECTED_GROUP) {
        fprintf(file, "%s with %s: ", item->kind == PG_REJECTED ? "call" : "group with a call",
                mistake_names[item->mistake]);
    } else if (item->kind == PG_EMPTY) {
        fputs("of this rank alone: ", file);
    }
    if (item->kind == PG_COMM) {
        print_comm(program, item, file);
    } else if (pg_is_call(item)) {
        print_call(program, item, file);
    } else {
        print_other(item, file);
    }
}

void pg_print(const struct pg_program *program, const struct pg_mask *active, FILE *file)
{
    const struct cf_layout *layout = &program->layout;
    int depth = 0;
    fprintf(file, "seed %llu: %d ranks, %s", (unsigned long long)program->seed, layout->nranks,
            layout->threads     ? "a thread each"
            : layout->local > 1 ? "one thread"
                                : "a process each");
    for (int i = 0; i < PG_MAX_SETTINGS && program->setting[i][0] != '\0'; i++) {
        fprintf(file, ", %s", program->setting[i]);
    }
    fputs(program->by_plugin ? ", by NCCL_NET_PLUGIN" : "", file);
    if (program->without >= 0) {
        fprintf(file, ", rank %d without onehop", program->without);
    }
    fputc('\n', file);
    for (int i = 0; i < program->items; i++) {
        enum pg_kind kind = program->item[i].kind;
        depth -= active->on[i] && (kind == PG_GROUP_END || kind == PG_CAPTURE_END);
        if (active->on[i]) {
            fprintf(file, "%5d  %*s", i, 2 * depth, "");
            print_item(program, &program->item[i], file);
        }
        depth += active->on[i] && (kind == PG_GROUP || kind == PG_CAPTURE);
    }
}

void pg_mask_print(const struct pg_mask *mask, FILE *file)
{
    const char *comma = "";
    for (int i = 0; i < PG_MAX_ITEMS; i++) {
        int first = i;
        while (mask->on[first] && i + 1 < PG_MAX_ITEMS && mask->on[i + 1]) {
            i++;
        }
        if (mask->on[first]) {
            fprintf(file, i > first ? "%s%d-%d" : "%s%d", comma, first, i);
            comma = ",";
        }
    }
}

static bool add_range(void *value, const char *part)
{
    struct pg_mask *mask = value;
    char *end;
    long first = strtol(part, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
    for (long i = first; i >= 0 && i <= last && i < PG_MAX_ITEMS; i++) {
        mask->on[i] = true;
    }
    return *end == '\0' && end != part && first >= 0 && last < PG_MAX_ITEMS;
}

bool pg_mask_parse(const char *text, struct pg_mask *mask_p)
{
    *mask_p = (struct pg_mask){{0}};
    return cf_for_each(text, add_range, mask_p);
}
