/* SPDX-License-Identifier: MIT */
/*
 * generate.c - the program that a seed stands for
 *
 * Does: Draws items that are valid NCCL, and with that what each call returns: success, or ncclInvalidArgument for a
 *    rejected call. What NCCL does not allow, though the stand-in does, is left out of a plain program (NCCL 2.28.9,
 *    src/group.cc): an estimate connects the algorithm that it chooses, with all ranks, and so does a capture. Both
 *    repeat calls that were made. NCCL documents no group of calls with the creation or the end of a communicator, and
 *    suspends communicators since 2.29.7.
 * Threads: any.
 * Owns: nothing.
 */
#include <stdio.h>
#include <string.h>

#include "test/programs/program.h"

#define GUARD_BYTES 64
#define MOST_STEPS 14
#define LEAST_STEPS 6
#define MOST_RESTS 5 /* steps after a rank has ended */
#define MOST_CAPTURES 2
#define MOST_LONG_PAUSES 2
#define MOST_LIVE 3  /* communicators at a time */
#define MOST_DEPTH 2 /* of a group in groups */
#define ROOM 24      /* items that a step may add, and the end of the program */

struct generator {
    struct cf_source source;
    struct pg_program *program;
    bool plain;
    unsigned ended; /* world ranks that have ended, by bit */
    int comms;
    int color[PG_MAX_COMMS][PG_MAX_RANKS]; /* -1: not in it */
    bool blocking[PG_MAX_COMMS];
    bool is_live[PG_MAX_COMMS]; /* made, and not ended; in a group also not made in it */
    int captures, capture[MOST_CAPTURES];
    int within; /* the capture that is open, or -1 */
    int group;  /* the outermost group that is open, or -1 */
    int single; /* the last call that all ranks made outside of groups and captures, or -1 */
    int op;     /* the program's own op, or -1 */
    int long_pauses;
    int steps;    /* so far */
    int last_end; /* the last PG_END */
};

static int pick(struct generator *g, int below)
{
    return (int)cf_draw(&g->source, (uint64_t)below);
}

static bool chance(struct generator *g, int percent)
{
    return pick(g, 100) < percent;
}

static struct pg_item *push(struct generator *g, enum pg_kind kind)
{
    struct pg_item *item = &g->program->item[g->program->items++];
    *item = (struct pg_item){
        .kind = kind, .rank = PG_ALL, .begin = g->within, .parent = -1, .call.op_item = -1, .fork = -1};
    return item;
}

static int nranks(const struct generator *g)
{
    return g->program->layout.nranks;
}

static bool has_ended(const struct generator *g, int rank)
{
    return g->ended >> rank & 1;
}

/* A rank that has not ended. */
static int running_rank(struct generator *g)
{
    int rank = pick(g, nranks(g));
    while (has_ended(g, rank)) {
        rank = (rank + 1) % nranks(g);
    }
    return rank;
}

static void maybe_pause(struct generator *g)
{
    static const int shorts[] = {0, 1, 100, 1000, 20000};
    if (!chance(g, 18)) {
        return;
    }
    int us = shorts[pick(g, 5)];
    if (g->long_pauses > 0 && chance(g, 12)) {
        g->long_pauses--;
        us = chance(g, 60) ? 500000 : 1500000;
    }
    struct pg_item *item = push(g, PG_PAUSE);
    item->rank = running_rank(g);
    item->us = us;
}

/* --- communicators ------------------------------------------------------------------------------------------------ */

static bool is_in(const struct generator *g, int comm, int rank)
{
    return g->color[comm][rank] >= 0;
}

static int live_comms(const struct generator *g)
{
    int count = 0;
    for (int c = 0; c < g->comms; c++) {
        count += g->is_live[c];
    }
    return count;
}

/* There is always one. */
static int any_comm(struct generator *g)
{
    int comm = pick(g, g->comms);
    while (!g->is_live[comm]) {
        comm = (comm + 1) % g->comms;
    }
    return comm;
}

/* Can all ranks of the communicator, of every colour, still make a call? */
static bool is_whole(const struct generator *g, int comm)
{
    for (int r = 0; r < nranks(g); r++) {
        if (is_in(g, comm, r) && has_ended(g, r)) {
            return false;
        }
    }
    return true;
}

/* A communicator that is whole, and blocking where asked for; -1: there is none. */
static int some_comm(struct generator *g, bool blocking)
{
    int first = chance(g, 55) ? 0 : pick(g, g->comms);
    for (int i = 0; i < g->comms; i++) {
        int comm = (first + i) % g->comms;
        if (g->is_live[comm] && is_whole(g, comm) && (g->blocking[comm] || !blocking)) {
            return comm;
        }
    }
    return -1;
}

static void split(struct generator *g, struct pg_item *item)
{
    int *color = g->color[g->comms], count[2] = {0, 0};
    for (int r = 0; r < nranks(g); r++) {
        color[r] = pick(g, 5) < 3 ? 0 : pick(g, 2) == 0 ? 1 : -1;
        item->key[r] = pick(g, 3);
        count[0] += color[r] == 0;
        count[1] += color[r] == 1;
    }
    for (int r = 0; r < nranks(g); r++) { /* no communicator of one rank: NCCL has flaws of its own there */
        color[r] = count[0] < 2 && count[1] < 2 ? 0 : color[r] >= 0 && count[color[r]] < 2 ? -1 : color[r];
    }
}

/* Without one rank of three, or one or two of four. */
static void shrink(struct generator *g, struct pg_item *item)
{
    int *color = g->color[g->comms], first = pick(g, nranks(g)), without = 1 + pick(g, nranks(g) - 2);
    item->shrinks = true;
    for (int r = 0; r < nranks(g); r++) {
        color[(first + r) % nranks(g)] = r < without ? -1 : 0;
    }
}

/* A child of the first communicator, which has the job's ranks in their order. */
static void make_child(struct generator *g, struct pg_item *item)
{
    const struct cf_layout *layout = &g->program->layout;
    bool one_thread = layout->local > 1 && !layout->threads, other = !one_thread && chance(g, 30) && g->group < 0;
    item->parent = 0;
    item->flags = other || !g->blocking[0] ? CF_CHILD_NONBLOCKING : 0;
    g->blocking[g->comms] = item->flags == 0;
    if (nranks(g) > 2 && chance(g, 40)) {
        shrink(g, item);
    } else {
        split(g, item);
    }
    for (int r = 0; r < nranks(g); r++) {
        item->color[r] = g->color[g->comms][r] < 0 ? NCCL_SPLIT_NOCOLOR : g->color[g->comms][r];
    }
}

/* A group makes the children of one parent side by side, for which NCCL has nothing: so one in each group. */
static bool may_have_child(const struct generator *g)
{
    bool may = g->group < 0 || g->blocking[0];
    for (int i = g->group; i >= 0 && i < g->program->items - 1; i++) {
        may &= g->program->item[i].parent < 0;
    }
    return may;
}

/* In a group: a blocking one, which is there when the group has ended. */
static void add_comm(struct generator *g)
{
    static const enum cf_maker makers[] = {CF_INIT_RANK, CF_INIT_RANK, CF_INIT_CONFIG, CF_INIT_NONBLOCKING};
    struct pg_item *item = push(g, PG_COMM);
    bool group = g->program->layout.local > 1 && !g->program->layout.threads;
    item->call.comm = g->comms;
    item->maker = group && chance(g, 50) ? CF_INIT_ALL : makers[pick(g, g->group < 0 ? 4 : 3)];
    g->blocking[g->comms] = item->maker != CF_INIT_NONBLOCKING;
    memset(g->color[g->comms], 0, sizeof g->color[0]);
    if (g->comms > 0 && g->is_live[0] && may_have_child(g) && chance(g, 60)) {
        make_child(g, item);
    }
    g->is_live[g->comms] = g->group < 0;
    g->comms++;
}

/* Is a call from one item on up to another one on the communicator? */
static bool is_used(const struct generator *g, int first, int end, int comm)
{
    for (int i = first; i < end; i++) {
        const struct pg_item *item = &g->program->item[i];
        if (pg_is_call(item) && item->call.comm == comm) {
            return true;
        }
    }
    return false;
}

/* Graphs that hold the communicator's calls are not launched again. */
static void drop_captures(struct generator *g, int comm)
{
    for (int i = 0; i < g->captures;) {
        int end = g->capture[i];
        while (g->program->item[end].kind != PG_CAPTURE_END) {
            end++;
        }
        if (is_used(g, g->capture[i], end, comm)) {
            g->capture[i] = g->capture[--g->captures];
        } else {
            i++;
        }
    }
}

/* All its ranks end it. In a group ncclCommDestroy alone: the program waits for what ncclCommFinalize begins. */
static void end_comm(struct generator *g, int comm)
{
    struct pg_item *item = push(g, PG_COMM_END);
    item->call.comm = comm;
    item->way = g->group >= 0 ? PG_DESTROY : (enum pg_way)pick(g, PG_LEAVE);
    item->flags = pick(g, 4) * PG_IDLE;
    drop_captures(g, comm);
    g->is_live[comm] = false;
    g->single = g->single >= 0 && g->program->item[g->single].call.comm == comm ? -1 : g->single;
    g->op = g->op >= 0 && g->program->item[g->op].call.comm == comm ? -1 : g->op;
}

/* A communicator, which is often made anew at once; one is left. */
static bool add_comm_end(struct generator *g)
{
    int comm = any_comm(g);
    if (live_comms(g) < 2 && g->comms == PG_MAX_COMMS) {
        return false;
    }
    end_comm(g, comm);
    if (live_comms(g) == 0 || (g->comms < PG_MAX_COMMS && chance(g, 50))) {
        add_comm(g);
    }
    return true;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static size_t draw_count(struct generator *g, size_t size, bool blocks)
{
    int bytes;
    switch (pick(g, 12)) {
    case 0:
        return chance(g, 30) ? 0 : 1;
    case 1:
    case 2:
        bytes = 1 + pick(g, 8192);
        break;
    case 3:
        bytes = chance(g, 50) ? 4096 : 65536; /* about the limits that programs are run with */
        bytes += (int)size * (pick(g, 3) - 1);
        break;
    case 4:
        bytes = 1 + pick(g, 150000);
        if (bytes > 145000) {
            bytes = (bytes - 145000) * 800; /* 4 MB: several kernels, where a slot has sections for many ranks */
        }
        break;
    default:
        bytes = 1 + pick(g, 400);
    }
    return ((size_t)bytes / (blocks ? PG_MAX_RANKS : 1) + size - 1) / size;
}

static enum cf_op draw_op(struct generator *g)
{
    return chance(g, 65) ? CF_SUM : (enum cf_op)pick(g, CF_OPS);
}

static bool has_op(enum pg_function function)
{
    return function == PG_ALLREDUCE || function == PG_REDUCE || function == PG_REDUCE_SCATTER;
}

static bool has_blocks(enum pg_function function)
{
    return function >= PG_ALL_GATHER && function <= PG_SCATTER;
}

/* What is a rank's own affair. */
static void draw_own(struct generator *g, struct pg_item *item)
{
    bool same = chance(g, 60);
    int stream = pick(g, PG_STREAMS);
    item->in_place = chance(g, 40) ? ~0u : chance(g, 50) ? 0 : (unsigned)pick(g, 1 << PG_MAX_RANKS);
    for (int r = 0; r < PG_MAX_RANKS; r++) {
        item->stream[r] = same ? (chance(g, 70) ? 0 : stream) : pick(g, PG_STREAMS);
        item->stream[r] = same && r > 0 ? item->stream[0] : item->stream[r];
    }
    if (g->within >= 0) { /* a capture has one stream or two */
        const struct pg_item *capture = &g->program->item[g->within];
        for (int r = 0; r < PG_MAX_RANKS; r++) {
            item->stream[r] = capture->fork >= 0 && chance(g, 50) ? capture->fork : capture->stream[r];
        }
        item->captured = true;
    }
}

/* Has the program's own op, if that is one of the communicator. A call of its own op otherwise makes one. */
static void draw_own_op(struct generator *g, struct pg_spec *call)
{
    const struct pg_spec *op = g->op >= 0 ? &g->program->item[g->op].call : NULL;
    if (op != NULL && op->comm == call->comm && has_op(call->function) && chance(g, 40)) {
        call->type = op->type;
        call->op = op->op;
        call->op_item = g->op;
    }
}

/* A call that is made again makes an op of its own where the other call's op is not its communicator's any more. */
static void keep_op(const struct generator *g, struct pg_spec *call)
{
    bool good = call->op_item == g->op && g->op >= 0 && g->program->item[g->op].call.comm == call->comm;
    call->op_item = good ? call->op_item : -1;
}

/* local: without sends, which a rejected group would leave half connected. */
static void draw_call(struct generator *g, struct pg_item *item, int comm, bool local)
{
    static const ncclDataType_t types[] = {ncclFloat32, ncclFloat32, ncclFloat32, ncclBfloat16,
                                           ncclFloat16, ncclInt32,   ncclFloat64, ncclInt8,
                                           ncclUint8,   ncclUint32,  ncclInt64,   ncclUint64};
    item->call.comm = comm;
    item->call.function =
        chance(g, 60) ? PG_ALLREDUCE : (enum pg_function)pick(g, local ? PG_ALL_TO_ALL : PG_FUNCTIONS);
    item->call.type = types[pick(g, 12)];
    item->call.op = has_op(item->call.function) ? draw_op(g) : CF_SUM;
    draw_own_op(g, &item->call);
    item->call.count = draw_count(g, cf_types[item->call.type].size, has_blocks(item->call.function));
    item->call.root = pick(g, PG_MAX_RANKS);
    draw_own(g, item);
}

/* Two ranks of a communicator and one colour that have not ended; false: there are none. */
static bool draw_pair(struct generator *g, struct pg_item *item)
{
    int from = running_rank(g);
    for (int f = 0; f < nranks(g); f++, from = (from + 1) % nranks(g)) {
        int to = running_rank(g);
        for (int t = 0; t < nranks(g); t++, to = (to + 1) % nranks(g)) {
            if (from != to && is_in(g, item->call.comm, from) &&
                g->color[item->call.comm][from] == g->color[item->call.comm][to] && !has_ended(g, from) &&
                !has_ended(g, to)) {
                item->call.root = from;
                item->call.peer = to;
                return true;
            }
        }
    }
    return false;
}

/* A call of all ranks; like: often one of the same size as that item. False: no rank is left for it. */
static bool add_call(struct generator *g, int comm, int like)
{
    maybe_pause(g);
    struct pg_item *item = push(g, PG_CALL);
    struct pg_spec *call = &item->call;
    draw_call(g, item, comm, false);
    if (like >= 0 && chance(g, 65)) {
        *call = g->program->item[like].call;
        call->comm = comm;
        call->function = chance(g, 25) ? PG_BROADCAST : call->function;
        keep_op(g, call);
    }
    call->function = is_whole(g, comm) ? call->function : PG_SEND; /* for the others some rank is missing */
    if (call->function == PG_SEND && !draw_pair(g, item)) {
        if (!is_whole(g, comm)) {
            g->program->items--;
            return false;
        }
        call->function = PG_ALLREDUCE;
    }
    call->count += call->function >= PG_SEND && call->count == 0;
    return true;
}

/* --- groups and captures ------------------------------------------------------------------------------------------ */

static void add_empty(struct generator *g)
{
    struct pg_item *item = push(g, PG_EMPTY);
    int comm = any_comm(g);
    draw_call(g, item, comm, false);
    item->rank = running_rank(g);
    item->call.function = item->call.function >= PG_SEND ? PG_ALLREDUCE : item->call.function;
    item->call.count = 0;
}

static void add_poll(struct generator *g, int comm)
{
    struct pg_item *item = push(g, PG_POLL);
    item->rank = running_rank(g);
    item->call.comm = comm;
}

static void add_rejected(struct generator *g, enum pg_kind kind, int comm)
{
    static const enum pg_function functions[PG_MISTAKES] = {
        [PG_BAD_OP] = PG_ALLREDUCE, [PG_BAD_ROOT] = PG_BROADCAST, [PG_NO_COMM] = PG_ALL_GATHER};
    struct pg_item *item = push(g, kind);
    draw_call(g, item, comm, true);
    item->rank = running_rank(g);
    item->mistake = (enum pg_mistake)pick(g, PG_MISTAKES);
    if (kind == PG_REJECTED && item->mistake != PG_BAD_TYPE) {
        item->call.function = functions[item->mistake];
    }
    item->call.op = CF_SUM;
    item->call.op_item = -1;
}

/* Makes an op for the calls that follow, or ends the one that there is. */
static void add_op(struct generator *g)
{
    if (g->op >= 0) {
        struct pg_item *item = push(g, PG_OP_END);
        item->begin = g->op;
        item->call = g->program->item[g->op].call;
        g->op = -1;
        return;
    }
    struct pg_item *item = push(g, PG_OP);
    draw_call(g, item, any_comm(g), true);
    item->call.op = chance(g, 50) ? CF_PREMUL_HOST : CF_PREMUL_DEVICE;
    item->call.count = 0;
    g->op = g->program->items - 1;
}

/*
 * In a group, an item that is none of its calls: the end of a communicator that the group does not use, or a new
 * communicator. False: neither.
 */
static bool add_to_group(struct generator *g, int comm)
{
    int other = any_comm(g);
    if (g->plain) {
        return false;
    }
    if (chance(g, 50) && g->comms < PG_MAX_COMMS && live_comms(g) < MOST_LIVE) {
        add_comm(g);
        return true;
    }
    if (other == comm || !g->blocking[other] || is_used(g, g->group, g->program->items, other)) {
        return false;
    }
    end_comm(g, other);
    return true;
}

/* like: an item whose size the first call often has; -1: none. */
static void add_group(struct generator *g, int comm, int depth, int like)
{
    int begin = g->program->items, calls = depth == 0 ? 1 + pick(g, 5) : pick(g, 4);
    bool outermost = g->group < 0;
    push(g, PG_GROUP);
    g->group = outermost ? begin : g->group;
    for (int i = 0; i < calls; i++) {
        int other = some_comm(g, true);
        if (depth < MOST_DEPTH && chance(g, depth == 0 ? 15 : 25) && g->program->items < PG_MAX_ITEMS - 6 * ROOM) {
            add_group(g, comm, depth + 1, like);
            continue;
        }
        if (g->within < 0 && chance(g, 10)) {
            chance(g, 50) ? add_empty(g) : add_poll(g, comm);
        }
        if (g->within < 0 && chance(g, 4)) {
            add_op(g);
        }
        if (g->within < 0 && g->blocking[comm] && chance(g, 8) && add_to_group(g, comm)) {
            continue;
        }
        /* In a group all communicators are blocking, or there is one. */
        add_call(g, g->blocking[comm] && other >= 0 && chance(g, 20) ? other : comm, like);
        like = g->program->items - 1;
    }
    maybe_pause(g);
    struct pg_item *end = push(g, PG_GROUP_END);
    end->begin = begin;
    end->flags = !outermost && chance(g, 20) ? PG_SIMULATED : 0;
    if (outermost) { /* communicators that were made in it are there */
        for (int i = begin; i < g->program->items; i++) {
            if (g->program->item[i].kind == PG_COMM) {
                g->is_live[g->program->item[i].call.comm] = true;
            }
        }
        g->group = -1;
    }
}

/* In a plain program: makes a call a repetition of one that all ranks have made. False: there is none. */
static bool repeat(struct generator *g, struct pg_item *item)
{
    if (!g->plain) {
        return true;
    }
    if (g->single < 0) {
        return false;
    }
    item->call = g->program->item[g->single].call;
    keep_op(g, &item->call);
    return true;
}

static void begin_capture(struct generator *g)
{
    struct pg_item *item = push(g, PG_CAPTURE);
    int stream = pick(g, PG_STREAMS);
    item->flags = g->program->layout.local > 1 ? CU_STREAM_CAPTURE_MODE_RELAXED : pick(g, 3);
    for (int r = 0; r < PG_MAX_RANKS; r++) {
        item->stream[r] = stream;
    }
    item->fork = chance(g, 35) ? (stream + 1) % PG_STREAMS : -1;
    g->within = g->program->items - 1;
}

static int end_capture(struct generator *g)
{
    int begin = g->within;
    g->within = -1;
    push(g, PG_CAPTURE_END)->begin = begin;
    return begin;
}

static void add_capture(struct generator *g, int comm)
{
    int calls = 1 + pick(g, 3);
    begin_capture(g);
    for (int i = 0; i < calls; i++) {
        if (!g->plain && chance(g, 25)) {
            add_group(g, comm, 1, -1);
        } else {
            add_call(g, comm, -1);
            repeat(g, &g->program->item[g->program->items - 1]);
        }
    }
    g->capture[g->captures++] = end_capture(g);
}

/* On the stream that was captured, or on any. */
static void add_replay(struct generator *g, int which)
{
    int stream = chance(g, 70) ? g->program->item[which].stream[0] : pick(g, PG_STREAMS);
    struct pg_item *item = push(g, PG_REPLAY);
    item->begin = which;
    item->stream[0] = stream;
}

/* Launches of a graph in turns with calls of one communicator or two. */
static void add_turns(struct generator *g)
{
    int which = g->capture[pick(g, g->captures)], turns = 2 + pick(g, 3), comm[2];
    comm[0] = some_comm(g, false);
    comm[1] = chance(g, 50) ? comm[0] : some_comm(g, false);
    for (int i = 0; i < turns; i++) {
        add_replay(g, which);
        add_call(g, comm[i & 1], -1);
    }
}

static void add_graph_end(struct generator *g)
{
    int i = pick(g, g->captures);
    struct pg_item *item = push(g, PG_GRAPH_END);
    item->begin = g->capture[i];
    item->rank = chance(g, 70) ? PG_ALL : running_rank(g); /* the others keep theirs */
    item->flags = chance(g, 50) ? PG_GRAPH_LAST : 0;
    g->capture[i] = g->capture[--g->captures];
}

/* Only on a blocking communicator: on another one NCCL 2.28.9 launches the group. */
static void add_estimate(struct generator *g, int comm)
{
    struct pg_item *item = push(g, PG_ESTIMATE);
    draw_call(g, item, comm, true);
    item->rank = running_rank(g);
    item->flags = pick(g, 4) * PG_NESTED;
    if (!repeat(g, item)) {
        g->program->items--;
    }
}

/* After a rank has ended: all others capture a call of its communicator, which nobody launches. */
static void add_unused(struct generator *g, int comm)
{
    int at = g->program->items;
    begin_capture(g);
    g->program->item[at].begin = g->last_end;
    struct pg_item *item = push(g, PG_CALL);
    draw_call(g, item, comm, true);
    bool good = repeat(g, item);
    end_capture(g);
    g->program->items = good ? g->program->items : at;
}

/* --- the program -------------------------------------------------------------------------------------------------- */

static void add_end(struct generator *g, int rank, enum pg_way way)
{
    struct pg_item *item = push(g, PG_END);
    item->rank = rank;
    item->way = way;
    g->ended |= 1u << rank;
    g->last_end = g->program->items - 1;
}

/* What needs no other rank. */
static void add_local(struct generator *g, int comm)
{
    struct pg_item *item;
    switch (pick(g, 6)) {
    case 0:
        add_empty(g);
        break;
    case 1:
        if (g->blocking[comm]) {
            add_rejected(g, PG_REJECTED, comm);
        }
        break;
    case 2:
        if (g->blocking[comm]) {
            add_estimate(g, comm);
        }
        break;
    case 3:
        item = push(g, PG_CHECK);
        item->rank = chance(g, 50) ? PG_ALL : running_rank(g);
        break;
    default:
        add_poll(g, comm);
    }
}

/* After a rank has ended. */
static void add_rest(struct generator *g)
{
    int comm = any_comm(g);
    bool may_capture = g->blocking[comm] && g->program->layout.local == 1;
    if (is_whole(g, comm)) {
        add_call(g, comm, -1);
    } else if (chance(g, 30)) {
        add_local(g, comm);
    } else if (may_capture && chance(g, 35)) {
        add_unused(g, comm);
    } else if (add_call(g, comm, -1)) { /* the receiver waits a while */
        struct pg_item *item = &g->program->item[g->program->items++ - 1];
        item[1] = item[0];
        item[0] = (struct pg_item){.kind = PG_PAUSE, .rank = item->call.root, .begin = -1, .parent = -1, .fork = -1};
        item[0].us = chance(g, 50) ? 500000 : 1000;
    }
}

static bool add_stream(struct generator *g)
{
    struct pg_item *item = push(g, PG_STREAM);
    item->rank = chance(g, 50) ? PG_ALL : running_rank(g);
    item->stream[0] = pick(g, PG_STREAMS);
    return true;
}

/* And resumes it: from then on NCCL executes the calls of all ranks. */
static bool add_suspend(struct generator *g)
{
    if (g->plain) {
        return false;
    }
    int comm = any_comm(g);
    struct pg_item *item = push(g, PG_SUSPEND);
    item->call.comm = comm;
    item->flags = chance(g, 50) ? PG_IDLE : 0;
    return true;
}

/* Something that calls rely on ends, or comes anew. False: not this time. */
static bool add_change(struct generator *g)
{
    int what = pick(g, 100);
    if (what < 30) {
        return add_comm_end(g);
    }
    if (what < 45) {
        return add_stream(g);
    }
    if (what < 75 && g->captures > 0) {
        what < 60 ? add_turns(g) : add_graph_end(g);
        return true;
    }
    if (what < 90) {
        add_op(g);
        return true;
    }
    return what < 96 && add_suspend(g);
}

static void add_step(struct generator *g)
{
    if (g->ended == 0 && chance(g, 25) && add_change(g)) {
        return;
    }
    int comm = some_comm(g, false), blocking = some_comm(g, true), what = pick(g, 100);
    bool may_capture = blocking >= 0 && !(g->plain && (g->single < 0 || g->program->layout.local > 1));
    maybe_pause(g);
    if (g->ended != 0) {
        add_rest(g);
    } else if (what < 30) {
        add_call(g, comm, -1);
        bool local = g->program->item[g->program->items - 1].call.function < PG_ALL_TO_ALL;
        g->single = local && g->blocking[comm] ? g->program->items - 1 : g->single;
    } else if (what < 58) {
        bool redone = g->blocking[comm] && chance(g, 20);
        if (redone) {
            add_rejected(g, PG_REJECTED_GROUP, comm);
        }
        add_group(g, comm, 0, redone ? g->program->items - 1 : -1);
    } else if (what < 66 && g->captures < MOST_CAPTURES && may_capture) {
        add_capture(g, blocking);
    } else if (what < 74 && g->captures > 0) {
        add_replay(g, g->capture[pick(g, g->captures)]);
    } else if (what < 81 && g->comms < PG_MAX_COMMS && live_comms(g) < MOST_LIVE) {
        add_comm(g);
    } else if (what < 86 && g->steps > LEAST_STEPS / 2) {
        int rank = running_rank(g); /* drawn first, whatever order the compiler gives arguments */
        add_end(g, rank, (enum pg_way)pick(g, PG_WAYS));
    } else {
        add_local(g, comm);
    }
}

static void put_setting(struct pg_program *program, const char *text)
{
    int i = 0;
    while (program->setting[i][0] != '\0') {
        i++;
    }
    snprintf(program->setting[i], sizeof program->setting[i], "%s", text);
}

static void draw_settings(struct generator *g)
{
    struct pg_program *program = g->program;
    static const char *const sets[] = {"ONEHOP_MAX_BYTES=0",   "ONEHOP_MAX_BYTES=0",         "ONEHOP_MAX_BYTES=4K",
                                       "ONEHOP_MAX_BYTES=64K", "SIMNODE_TOPOLOGY=pcie-only", "NCCL_P2P_DISABLE=1"};
    int which = pick(g, 12);
    if (which < 6) {
        put_setting(program, sets[which]);
    } else if (which == 6 && program->layout.local == 1) {
        program->without = pick(g, program->layout.nranks);
    } else if (which == 7) {
        program->by_plugin = true;
    }
    if (chance(g, 30)) {
        put_setting(program, "ONEHOP_CHECK_CALLS=1");
    }
    if (chance(g, 15)) {
        put_setting(program, "ONEHOP_INVARIANT=1");
    }
    if (chance(g, 15)) {
        static const char *const kinds[] = {"allreduce", "broadcast,allgather", "reducescatter"};
        char text[48];
        snprintf(text, sizeof text, "ONEHOP_COLLECTIVES=%s", kinds[pick(g, 3)]);
        put_setting(program, text);
    }
    if (chance(g, 15)) { /* a false alarm is an error */
        put_setting(program, chance(g, 50) ? "ONEHOP_VERIFY=1" : "ONEHOP_VERIFY=3");
        put_setting(program, "ONEHOP_VERIFY_FATAL=1");
    }
    if (chance(g, 30)) {
        put_setting(program, "SIMNODE_NCCL_BACKGROUND=1");
        put_setting(program, "SIMNODE_NCCL_DELAY_US=500");
    }
}

static void draw_layout(struct generator *g, int most_ranks)
{
    struct cf_layout *layout = &g->program->layout;
    int way = pick(g, 10);
    layout->nranks = 2 + pick(g, 10) * 3 / 10;
    layout->nranks = layout->nranks > most_ranks ? most_ranks : layout->nranks;
    layout->local = way < 6 ? 1 : layout->nranks;
    layout->threads = way == 6 || way == 7;
}

/* Each call has memory of its own; what it may not write is guarded by what must stay as it is. */
static void place(struct pg_program *program)
{
    for (int i = 0; i < program->items; i++) {
        struct pg_item *item = &program->item[i];
        if (!pg_has_memory(item)) {
            continue;
        }
        size_t bytes = (item->call.count * cf_types[item->call.type].size + 15) & ~(size_t)15;
        size_t room = (bytes + 16) * PG_MAX_RANKS + GUARD_BYTES;
        item->send = program->bytes + GUARD_BYTES;
        item->recv = item->send + room;
        item->factor = item->recv + room;
        program->bytes = item->factor + 16;
    }
    program->bytes += GUARD_BYTES;
}

void pg_generate(uint64_t seed, int most_ranks, bool plain, struct pg_program *program_p)
{
    struct generator g = {.source = {cf_mix(seed)}, .program = program_p, .plain = plain, .within = -1};
    g.group = g.single = g.op = -1;
    *program_p = (struct pg_program){.seed = seed, .without = -1};
    g.long_pauses = MOST_LONG_PAUSES;
    draw_layout(&g, most_ranks);
    draw_settings(&g);
    add_comm(&g);
    int steps = LEAST_STEPS + pick(&g, MOST_STEPS);
    for (; g.steps < steps && program_p->items < PG_MAX_ITEMS - 4 * ROOM; g.steps++) {
        bool all = g.ended == 0;
        add_step(&g);
        steps = all && g.ended != 0 && steps > g.steps + MOST_RESTS ? g.steps + MOST_RESTS : steps;
    }
    enum pg_way way = (enum pg_way)pick(&g, PG_WAYS);
    bool same = chance(&g, 60);
    for (int r = 0; r < program_p->layout.nranks; r++) {
        if (!has_ended(&g, r)) {
            maybe_pause(&g);
            add_end(&g, r, same ? way : (enum pg_way)pick(&g, PG_WAYS));
        }
    }
    place(program_p);
}
