/* SPDX-License-Identifier: MIT */
/*
 * run.c - carries a program out: in a process of a job, its ranks' parts of the items
 *
 * Does: Makes the calls of each item, compares what they return with what NCCL returns, and has the results compared.
 *    A non-blocking call is polled at once. While a rank waits, it polls the state of its communicators, as programs'
 *    watchdogs do.
 * Threads: a worker each.
 * Owns: communicators, graphs and data of its members, until their end.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/programs/program.h"

#define POLL_MICROSECONDS 100
#define NO_TYPE ((ncclDataType_t)99)
#define NO_OP ((ncclRedOp_t)77)
#define SUSPEND_MEMORY 1       /* NCCL_SUSPEND_MEM */
#define REST_STREAM PG_STREAMS /* without calls: it waits for the work of streams that are destroyed */

struct graph {
    CUgraph graph;
    CUgraphExec exec;
};

struct runner {
    struct cf_worker *worker;
    const struct pg_program *program;
    struct pg_board *board;
    struct cf_set set[PG_MAX_COMMS];
    struct pg_data data[PG_MAX_RANKS];
    struct graph graph[PG_MAX_RANKS][PG_MAX_ITEMS]; /* by member and the capture's item */
    ncclRedOp_t op[PG_MAX_RANKS][PG_MAX_ITEMS];     /* by member and PG_OP */
    bool ended[PG_MAX_RANKS];
    int at;           /* the item */
    int depth;        /* of the program's groups */
    unsigned touched; /* communicators of the outermost group, by bit */
    unsigned made;    /* those that were made in it */
};

static int world_rank(const struct runner *r, int m)
{
    return r->worker->member[m].world_rank;
}

static void expect(const struct runner *r, int m, const char *what, ncclResult_t got, ncclResult_t wanted)
{
    cf_check(r->worker, got == wanted || (wanted == ncclSuccess && got == ncclInProgress),
             "rank %d: item %d: %s gave %d, expected %d", world_rank(r, m), r->at, what, (int)got, (int)wanted);
}

/* Does member m carry out this item? */
static bool takes_part(const struct runner *r, const struct pg_item *item, int m)
{
    return !r->ended[m] && (item->rank == PG_ALL || item->rank == world_rank(r, m));
}

/* Polls the state of a communicator until no non-blocking call is in progress. NULL: none. */
static void await_ready(const struct runner *r, int m, ncclComm_t comm)
{
    ncclResult_t state = comm != NULL ? ncclInProgress : ncclSuccess;
    while (state == ncclInProgress) {
        expect(r, m, "ncclCommGetAsyncError", nccl.CommGetAsyncError(comm, &state), ncclSuccess);
        usleep(state == ncclInProgress ? POLL_MICROSECONDS : 0);
    }
    expect(r, m, "the state of a communicator", state, ncclSuccess);
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

/* The arguments of a member's call. */
struct call {
    enum pg_function function;
    void *send, *recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root, from, to; /* ranks; of PG_RING and PG_SEND the latter two, -1: none */
    ncclComm_t comm;
    CUstream stream;
};

static ncclResult_t exchange(const struct call *c)
{
    ncclResult_t sent = ncclSuccess, received = ncclSuccess;
    if (c->from >= 0 && c->to >= 0) {
        nccl.GroupStart();
    }
    if (c->to >= 0) {
        sent = nccl.Send(c->send, c->count, c->type, c->to, c->comm, c->stream);
    }
    if (c->from >= 0) {
        received = nccl.Recv(c->recv, c->count, c->type, c->from, c->comm, c->stream);
    }
    ncclResult_t end = c->from >= 0 && c->to >= 0 ? nccl.GroupEnd() : ncclSuccess;
    return sent > ncclSuccess && sent != ncclInProgress ? sent : received != ncclSuccess ? received : end;
}

static ncclResult_t make(const struct call *c)
{
    switch (c->function) {
    case PG_ALLREDUCE:
        return nccl.AllReduce(c->send, c->recv, c->count, c->type, c->op, c->comm, c->stream);
    case PG_BROADCAST:
        return nccl.Broadcast(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
    case PG_BCAST:
        return nccl.Bcast(c->recv, c->count, c->type, c->root, c->comm, c->stream);
    case PG_REDUCE:
        return nccl.Reduce(c->send, c->recv, c->count, c->type, c->op, c->root, c->comm, c->stream);
    case PG_ALL_GATHER:
        return nccl.AllGather(c->send, c->recv, c->count, c->type, c->comm, c->stream);
    case PG_REDUCE_SCATTER:
        return nccl.ReduceScatter(c->send, c->recv, c->count, c->type, c->op, c->comm, c->stream);
    case PG_ALL_TO_ALL:
        return nccl.AlltoAll(c->send, c->recv, c->count, c->type, c->comm, c->stream);
    case PG_GATHER:
        return nccl.Gather(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
    case PG_SCATTER:
        return nccl.Scatter(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
    default:
        return exchange(c);
    }
}

static int rank_in(const struct cf_set *set, int m, int world)
{
    int rank = 0;
    while (set->world[m][rank] != world) {
        rank++;
    }
    return rank;
}

static struct call prepare_call(const struct runner *r, const struct pg_item *item, int m)
{
    static const ncclRedOp_t ops[] = {ncclSum, ncclProd, ncclMin, ncclMax, ncclAvg, ncclSum, ncclSum};
    const struct cf_set *set = &r->set[item->call.comm];
    int n = set->nranks[m], rank = set->rank[m], world = world_rank(r, m);
    size_t send, recv;
    pg_data_place(item, world, rank, &send, &recv);
    struct call call = {.function = item->call.function,
                        .send = (void *)(uintptr_t)(r->data[m].work + send),
                        .recv = (void *)(uintptr_t)(r->data[m].work + recv),
                        .count = item->call.count,
                        .type = item->call.type,
                        .op = ops[item->call.op],
                        .root = item->call.root % n,
                        .from = (rank + n - 1) % n,
                        .to = (rank + 1) % n,
                        .comm = set->comm[m],
                        .stream = r->worker->member[m].stream[item->stream[world]]};
    if (item->call.function == PG_SEND) {
        call.from = world == item->call.peer ? rank_in(set, m, item->call.root) : -1;
        call.to = world == item->call.root ? rank_in(set, m, item->call.peer) : -1;
    }
    return call;
}

static void set_mistake(const struct runner *r, const struct pg_item *item, int m, struct call *call)
{
    switch (item->mistake) {
    case PG_BAD_TYPE:
        call->type = NO_TYPE;
        break;
    case PG_BAD_OP:
        call->function = PG_ALLREDUCE;
        call->op = NO_OP;
        break;
    case PG_BAD_ROOT:
        call->function = PG_BROADCAST;
        call->root = r->set[item->call.comm].nranks[m];
        break;
    default:
        call->comm = NULL;
    }
}

/* For an item: a PG_OP, or a call with an op that lives for it alone. */
static void create_op(const struct runner *r, const struct pg_item *item, int m, ncclRedOp_t *op_p)
{
    struct cf_data numbers = pg_numbers(r->program, item, r->set[item->call.comm].nranks[m]);
    uint64_t factor = cf_scalar(&numbers, world_rank(r, m));
    void *device = (void *)(uintptr_t)(r->data[m].work + item->factor);
    bool on_host = item->call.op == CF_PREMUL_HOST;
    expect(r, m, "ncclRedOpCreatePreMulSum",
           nccl.RedOpCreatePreMulSum(op_p, on_host ? &factor : device, item->call.type,
                                     on_host ? ncclScalarHostImmediate : ncclScalarDevice,
                                     r->set[item->call.comm].comm[m]),
           ncclSuccess);
}

static void destroy_op(const struct runner *r, int comm, int m, ncclRedOp_t op)
{
    expect(r, m, "ncclRedOpDestroy", nccl.RedOpDestroy(op, r->set[comm].comm[m]), ncclSuccess);
}

static void call_member(struct runner *r, const struct pg_item *item, int m)
{
    struct call call = prepare_call(r, item, m);
    bool has_op = item->call.op == CF_PREMUL_HOST || item->call.op == CF_PREMUL_DEVICE;
    bool makes_op = has_op && item->call.op_item < 0;
    if (item->captured) {
        pg_data_renew(r->worker, item, call.stream, &r->data[m]);
    }
    if (makes_op) {
        create_op(r, item, m, &call.op);
    } else if (has_op) {
        call.op = r->op[m][item->call.op_item];
    }
    expect(r, m, pg_function_names[item->call.function], make(&call), ncclSuccess);
    if (r->depth == 0 && r->worker->members == 1) {
        await_ready(r, m, call.comm);
    }
    if (makes_op) {
        destroy_op(r, item->call.comm, m, call.op);
    }
    r->data[m].made[r->at] = item->kind == PG_CALL && !item->captured;
}

/* Waits for non-blocking communicators of a group that has ended. */
static void await_group(struct runner *r)
{
    for (int c = 0; c < PG_MAX_COMMS; c++) {
        for (int m = 0; m < r->worker->members && r->touched >> c & 1; m++) {
            await_ready(r, m, r->ended[m] ? NULL : r->set[c].comm[m]);
        }
    }
    r->touched = 0;
}

static void start_group(struct runner *r)
{
    expect(r, 0, "ncclGroupStart", nccl.GroupStart(), ncclSuccess);
    r->worker->in_group = ++r->depth > 0;
}

/* Loads the inputs of calls on a communicator that is there. */
static void load_inputs(struct runner *r, int comm)
{
    const struct cf_set *set = &r->set[comm];
    for (int m = 0; cf_use(r->worker, m); m++) {
        if (set->comm[m] != NULL) {
            pg_data_load(r->worker, r->program, m, comm, set, &r->data[m]);
        }
    }
}

/* An inner group ends by ncclGroupSimulateEnd, too; in a subset of the program it may be the outermost group. */
static void end_group(struct runner *r, bool simulated)
{
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    bool simulates = simulated && r->depth > 1 && nccl.GroupSimulateEnd != NULL;
    expect(r, 0, "the end of a group", simulates ? nccl.GroupSimulateEnd(&info) : nccl.GroupEnd(), ncclSuccess);
    r->worker->in_group = --r->depth > 0;
    if (r->depth > 0) {
        return;
    }
    await_group(r);
    for (int c = 0; c < PG_MAX_COMMS; c++) {
        if (r->made >> c & 1) {
            cf_set_complete(r->worker, &r->set[c]);
            load_inputs(r, c);
        }
    }
    r->made = 0;
}

/* Has this NCCL the function? */
static bool exists(enum pg_function function)
{
    return (function != PG_ALL_TO_ALL || nccl.AlltoAll != NULL) && (function != PG_GATHER || nccl.Gather != NULL) &&
           (function != PG_SCATTER || nccl.Scatter != NULL);
}

/* One thread with several ranks makes a call of all in a group. */
static void run_call(struct runner *r, const struct pg_item *item)
{
    bool grouped = r->worker->members > 1;
    if (grouped) {
        start_group(r);
    }
    for (int m = 0; cf_use(r->worker, m); m++) {
        if (takes_part(r, item, m) && r->set[item->call.comm].comm[m] != NULL && exists(item->call.function)) {
            call_member(r, item, m);
            r->touched |= 1u << item->call.comm;
        }
    }
    if (grouped) {
        end_group(r, false);
    }
}

static void estimate(struct runner *r, const struct pg_item *item, int m, const struct call *call)
{
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    expect(r, m, "ncclGroupStart", nccl.GroupStart(), ncclSuccess);
    if (item->flags & PG_NESTED) {
        expect(r, m, "ncclGroupStart", nccl.GroupStart(), ncclSuccess);
    }
    for (int i = 0; i < (item->flags & PG_TWICE ? 2 : 1); i++) {
        expect(r, m, pg_function_names[call->function], make(call), ncclSuccess);
    }
    if (item->flags & PG_NESTED) {
        expect(r, m, "ncclGroupEnd of an inner group", nccl.GroupEnd(), ncclSuccess);
    }
    expect(r, m, "ncclGroupSimulateEnd", nccl.GroupSimulateEnd(&info), ncclSuccess);
}

/* Calls that NCCL does not execute. */
static void run_unmade(struct runner *r, const struct pg_item *item, int m)
{
    struct call good = prepare_call(r, item, m), bad = good;
    set_mistake(r, item, m, &bad);
    if (item->kind == PG_REJECTED) {
        expect(r, m, "a wrong call", make(&bad), ncclInvalidArgument);
        return;
    }
    if (item->kind == PG_ESTIMATE && nccl.GroupSimulateEnd != NULL) {
        estimate(r, item, m, &good);
        return;
    }
    expect(r, m, "ncclGroupStart", nccl.GroupStart(), ncclSuccess);
    expect(r, m, pg_function_names[good.function], make(&good), ncclSuccess);
    expect(r, m, "a wrong call", make(&bad), ncclInvalidArgument);
    expect(r, m, pg_function_names[good.function], make(&good), ncclSuccess);
    expect(r, m, "ncclGroupEnd with a wrong call", nccl.GroupEnd(), ncclInvalidArgument);
}

/* --- graphs ------------------------------------------------------------------------------------------------------- */

/* Where threads share a process, another one's use of the driver may break a capture or wait for it. */
static void meet_threads(struct runner *r)
{
    if (r->worker->board->layout.threads && !r->worker->simulated) {
        cf_sync(r->worker);
        cf_barrier(r->worker);
    }
}

/* What comes on the second stream follows what is on the first. */
static void follow(struct runner *r, CUstream first, CUstream second)
{
    CUevent event;
    CF_CU(r->worker, EventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CF_CU(r->worker, EventRecord(event, first));
    CF_CU(r->worker, StreamWaitEvent(second, event, 0));
    CF_CU(r->worker, EventDestroy(event));
}

static void begin_capture(struct runner *r, const struct pg_item *item, int m)
{
    const CUstream *stream = r->worker->member[m].stream;
    CF_CU(r->worker, StreamBeginCapture(stream[item->stream[0]], (CUstreamCaptureMode)item->flags));
    if (item->fork >= 0) {
        follow(r, stream[item->stream[0]], stream[item->fork]);
    }
}

static void end_capture(struct runner *r, const struct pg_item *item, int m)
{
    struct graph *graph = &r->graph[m][item->begin];
    const struct pg_item *begin = &r->program->item[item->begin];
    const CUstream *stream = r->worker->member[m].stream;
    if (begin->fork >= 0) {
        follow(r, stream[begin->fork], stream[begin->stream[0]]);
    }
    CF_CU(r->worker, StreamEndCapture(stream[begin->stream[0]], &graph->graph));
    CF_CU(r->worker, GraphInstantiate(&graph->exec, graph->graph, 0));
}

static void replay(struct runner *r, const struct pg_item *item, int m)
{
    CF_CU(r->worker, GraphLaunch(r->graph[m][item->begin].exec, r->worker->member[m].stream[item->stream[0]]));
    for (int i = item->begin; r->program->item[i].kind != PG_CAPTURE_END; i++) {
        const struct pg_item *call = &r->program->item[i];
        bool made = r->board->active.on[i] && call->kind == PG_CALL && r->set[call->call.comm].comm[m] != NULL;
        r->data[m].made[i] |= made;
    }
}

/* Also while it is launched: the driver keeps what it needs. */
static void destroy_graph(struct runner *r, int m, int capture, bool graph_last)
{
    struct graph *graph = &r->graph[m][capture];
    if (graph->graph == NULL) {
        return;
    }
    if (graph_last) {
        CF_CU(r->worker, GraphExecDestroy(graph->exec));
        CF_CU(r->worker, GraphDestroy(graph->graph));
    } else {
        CF_CU(r->worker, GraphDestroy(graph->graph));
        CF_CU(r->worker, GraphExecDestroy(graph->exec));
    }
    graph->graph = NULL;
}

/* Does the graph of a capture hold calls of the communicator? */
static bool holds(const struct runner *r, int capture, int comm)
{
    for (int i = capture; r->program->item[i].kind != PG_CAPTURE_END; i++) {
        if (pg_is_call(&r->program->item[i]) && r->program->item[i].call.comm == comm) {
            return true;
        }
    }
    return false;
}

/* No stream waits for the old one: the communicator orders its calls. */
static void renew_stream(struct runner *r, const struct pg_item *item, int m)
{
    CUstream *stream = r->worker->member[m].stream, *renewed = &stream[item->stream[0]];
    follow(r, *renewed, stream[REST_STREAM]);
    CF_CU(r->worker, StreamDestroy(*renewed));
    CF_CU(r->worker, StreamCreate(renewed, CU_STREAM_NON_BLOCKING));
}

/* --- other items -------------------------------------------------------------------------------------------------- */

/* Waits for all streams of a member, with an eye on its communicators. */
static void wait_idle(struct runner *r, int m)
{
    for (bool busy = true; busy;) {
        busy = false;
        for (int s = 0; s <= REST_STREAM; s++) {
            CUresult state = cu.StreamQuery(r->worker->member[m].stream[s]);
            cf_check(r->worker, state == CUDA_SUCCESS || state == CUDA_ERROR_NOT_READY,
                     "rank %d: item %d: a stream failed: %d", world_rank(r, m), r->at, (int)state);
            busy |= state == CUDA_ERROR_NOT_READY;
        }
        for (int c = 0; c < PG_MAX_COMMS; c++) {
            await_ready(r, m, r->made >> c & 1 ? NULL : r->set[c].comm[m]); /* not before it is there */
        }
        usleep(busy ? POLL_MICROSECONDS : 0);
    }
}

static void wait_and_check(struct runner *r, int m)
{
    wait_idle(r, m);
    pg_data_check(r->worker, r->program, m, r->set, &r->data[m]);
}

static void end_comm(struct runner *r, int m, ncclComm_t comm, enum pg_way way)
{
    if (way == PG_ABORT) {
        expect(r, m, "ncclCommAbort", nccl.CommAbort(comm), ncclSuccess);
        return;
    }
    if (way == PG_FINALIZE) {
        expect(r, m, "ncclCommFinalize", nccl.CommFinalize(comm), ncclSuccess);
        await_ready(r, m, comm);
    }
    expect(r, m, "ncclCommDestroy", nccl.CommDestroy(comm), ncclSuccess);
}

static void end_member(struct runner *r, int m, enum pg_way way)
{
    wait_and_check(r, m);
    r->ended[m] = true;
    if (way == PG_LEAVE) {
        return;
    }
    for (int i = 0; i < PG_MAX_ITEMS; i++) { /* NCCL ends no communicator before its graphs */
        destroy_graph(r, m, i, true);
    }
    for (int i = 0; i < PG_MAX_COMMS; i++) {
        int c = r->program->seed & 1 ? i : PG_MAX_COMMS - 1 - i; /* parents first, or children */
        if (r->set[c].comm[m] != NULL) {
            end_comm(r, m, r->set[c].comm[m], way);
        }
    }
    pg_data_close(r->worker, &r->data[m]);
}

static void finalize_in_group(struct runner *r, int comm)
{
    start_group(r);
    for (int m = 0; cf_use(r->worker, m); m++) {
        if (r->set[comm].comm[m] != NULL) {
            expect(r, m, "ncclCommFinalize", nccl.CommFinalize(r->set[comm].comm[m]), ncclSuccess);
        }
    }
    r->touched |= 1u << comm;
    end_group(r, false);
}

/* By all its ranks of this worker, which then go on. */
static void end_everywhere(struct runner *r, const struct pg_item *item)
{
    struct cf_set *set = &r->set[item->call.comm];
    bool grouped = item->way != PG_ABORT && (r->worker->members > 1 || item->flags & PG_GROUPED);
    for (int m = 0; cf_use(r->worker, m); m++) {
        for (int i = 0; i < r->at; i++) {
            if (r->graph[m][i].graph != NULL && holds(r, i, item->call.comm)) {
                destroy_graph(r, m, i, true);
            }
        }
        if (item->flags & PG_IDLE || item->way == PG_ABORT) {
            wait_idle(r, m);
        }
    }
    if (grouped && item->way == PG_FINALIZE) {
        finalize_in_group(r, item->call.comm);
    }
    if (grouped) {
        start_group(r);
    }
    for (int m = 0; cf_use(r->worker, m); m++) {
        if (set->comm[m] != NULL) {
            end_comm(r, m, set->comm[m], grouped ? PG_DESTROY : item->way);
            set->comm[m] = NULL;
        }
    }
    if (grouped) {
        end_group(r, false);
    }
}

static void suspend(struct runner *r, const struct pg_item *item, int m, ncclComm_t comm)
{
    if (item->flags & PG_IDLE) {
        wait_idle(r, m);
    }
    if (comm != NULL && nccl.CommSuspend != NULL) {
        expect(r, m, "ncclCommSuspend", nccl.CommSuspend(comm, SUSPEND_MEMORY), ncclSuccess);
        await_ready(r, m, comm);
        expect(r, m, "ncclCommResume", nccl.CommResume(comm), ncclSuccess);
        await_ready(r, m, comm);
    }
}

/* In a plain program nothing is under way on a communicator that shrinks, as NCCL documents. */
static void make_child(struct runner *r, const struct pg_item *item, struct cf_set *set)
{
    const struct cf_set *parent = &r->set[item->parent];
    bool excluded[CF_MAX_RANKS] = {false};
    if (!item->shrinks) {
        cf_set_split(r->worker, parent, item->color, item->key, item->flags, set);
        return;
    }
    for (int m = 0; r->board->plain && cf_use(r->worker, m); m++) {
        wait_idle(r, m);
    }
    for (int rank = 0; rank < r->program->layout.nranks; rank++) {
        excluded[rank] = item->color[rank] == NCCL_SPLIT_NOCOLOR;
    }
    cf_set_shrink(r->worker, parent, excluded, item->flags, set);
}

static void make_comm(struct runner *r, const struct pg_item *item)
{
    struct cf_set *set = &r->set[item->call.comm];
    meet_threads(r);
    if (item->parent < 0) {
        cf_set_create(r->worker, item->maker, set);
    } else { /* the first communicator has the job's ranks */
        make_child(r, item, set);
    }
    if (r->depth > 0) {
        r->made |= 1u << item->call.comm;
    } else {
        load_inputs(r, item->call.comm);
    }
}

/* What a member does by itself. */
static void run_member(struct runner *r, const struct pg_item *item, int m)
{
    ncclComm_t comm = r->set[item->call.comm].comm[m];
    switch (item->kind) {
    case PG_PAUSE:
        usleep((useconds_t)item->us);
        break;
    case PG_POLL:
        await_ready(r, m, comm);
        break;
    case PG_CAPTURE:
        begin_capture(r, item, m);
        break;
    case PG_CAPTURE_END:
        end_capture(r, item, m);
        break;
    case PG_REPLAY:
        replay(r, item, m);
        break;
    case PG_CHECK:
        wait_and_check(r, m);
        break;
    case PG_END:
        end_member(r, m, item->way);
        break;
    case PG_SUSPEND:
        suspend(r, item, m, comm);
        break;
    case PG_OP:
        if (comm != NULL) {
            create_op(r, item, m, &r->op[m][r->at]);
        }
        break;
    case PG_OP_END:
        if (comm != NULL) {
            destroy_op(r, item->call.comm, m, r->op[m][item->begin]);
        }
        break;
    case PG_STREAM:
        renew_stream(r, item, m);
        break;
    case PG_GRAPH_END:
        destroy_graph(r, m, item->begin, item->flags & PG_GRAPH_LAST);
        break;
    default:
        if (comm != NULL) {
            run_unmade(r, item, m);
        }
    }
}

static void run_item(struct runner *r, const struct pg_item *item)
{
    if (item->kind == PG_COMM) {
        make_comm(r, item);
    } else if (item->kind == PG_CALL || item->kind == PG_EMPTY) {
        run_call(r, item);
    } else if (item->kind == PG_GROUP) {
        start_group(r);
    } else if (item->kind == PG_GROUP_END) {
        end_group(r, item->flags & PG_SIMULATED);
    } else if (item->kind == PG_COMM_END) {
        end_everywhere(r, item);
    } else {
        if (item->kind == PG_CAPTURE) {
            meet_threads(r);
        }
        for (int m = 0; cf_use(r->worker, m); m++) {
            if (takes_part(r, item, m)) {
                run_member(r, item, m);
            }
        }
        if (item->kind == PG_CAPTURE_END) {
            meet_threads(r);
        }
    }
}

/* What ranks leave behind stays within reach: it is no leak. */
static struct runner *runners[PG_MAX_RANKS];

static void run_worker(struct cf_worker *worker)
{
    struct runner *r = cf_need(worker, calloc(1, sizeof *r));
    bool running = true;
    runners[worker->index % PG_MAX_RANKS] = r;
    r->worker = worker;
    r->board = (struct pg_board *)worker->board;
    r->program = worker->user;
    for (int m = 0; cf_use(worker, m); m++) {
        pg_data_open(worker, r->program, &r->data[m]);
    }
    for (r->at = 0; r->at < r->program->items && running; r->at++) {
        atomic_store(&r->board->at[world_rank(r, 0)], r->at);
        if (r->board->active.on[r->at]) {
            run_item(r, &r->program->item[r->at]);
        }
        running = false;
        for (int m = 0; m < worker->members; m++) {
            running |= !r->ended[m];
        }
    }
    for (int m = 0; cf_use(worker, m); m++) {
        if (!r->ended[m]) { /* of a shrunk program */
            end_member(r, m, PG_LEAVE);
        }
    }
}

int pg_run_process(struct pg_board *board, int process)
{
    struct pg_program *program = calloc(1, sizeof *program);
    if (program == NULL) {
        return 2;
    }
    pg_generate(board->head.seed, board->most_ranks, board->plain, program);
    int status = cf_job_run(&board->head, process, run_worker, program);
    free(program);
    return status;
}
