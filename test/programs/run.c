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
    bool ended[PG_MAX_RANKS];
    int at;           /* the item */
    int depth;        /* of the program's groups */
    unsigned touched; /* communicators of the outermost group, by bit */
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

/* An op of the program's own lives for one call. */
static void create_op(const struct runner *r, const struct pg_item *item, int m, struct call *call)
{
    struct cf_data numbers = pg_numbers(r->program, item, r->set[item->call.comm].nranks[m]);
    uint64_t factor = cf_scalar(&numbers, world_rank(r, m));
    void *device = (void *)(uintptr_t)(r->data[m].work + item->factor);
    bool on_host = item->call.op == CF_PREMUL_HOST;
    expect(r, m, "ncclRedOpCreatePreMulSum",
           nccl.RedOpCreatePreMulSum(&call->op, on_host ? &factor : device, item->call.type,
                                     on_host ? ncclScalarHostImmediate : ncclScalarDevice, call->comm),
           ncclSuccess);
}

static void call_member(struct runner *r, const struct pg_item *item, int m)
{
    struct call call = prepare_call(r, item, m);
    bool has_op = item->call.op == CF_PREMUL_HOST || item->call.op == CF_PREMUL_DEVICE;
    if (item->captured) {
        pg_data_renew(r->worker, item, call.stream, &r->data[m]);
    }
    if (has_op) {
        create_op(r, item, m, &call);
    }
    expect(r, m, pg_function_names[item->call.function], make(&call), ncclSuccess);
    if (r->depth == 0 && r->worker->members == 1) {
        await_ready(r, m, call.comm);
    }
    if (has_op) {
        expect(r, m, "ncclRedOpDestroy", nccl.RedOpDestroy(call.op, call.comm), ncclSuccess);
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
    r->depth++;
}

static void end_group(struct runner *r)
{
    expect(r, 0, "ncclGroupEnd", nccl.GroupEnd(), ncclSuccess);
    if (--r->depth == 0) {
        await_group(r);
    }
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
        end_group(r);
    }
}

/* Calls that NCCL does not execute. */
static void run_unmade(struct runner *r, const struct pg_item *item, int m)
{
    struct call good = prepare_call(r, item, m), bad = good;
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    set_mistake(r, item, m, &bad);
    if (item->kind == PG_REJECTED) {
        expect(r, m, "a wrong call", make(&bad), ncclInvalidArgument);
        return;
    }
    expect(r, m, "ncclGroupStart", nccl.GroupStart(), ncclSuccess);
    expect(r, m, pg_function_names[good.function], make(&good), ncclSuccess);
    if (item->kind == PG_ESTIMATE && nccl.GroupSimulateEnd != NULL) {
        expect(r, m, "ncclGroupSimulateEnd", nccl.GroupSimulateEnd(&info), ncclSuccess);
        return;
    }
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

static void begin_capture(struct runner *r, const struct pg_item *item, int m)
{
    CF_CU(r->worker,
          StreamBeginCapture(r->worker->member[m].stream[item->stream[0]], (CUstreamCaptureMode)item->flags));
}

static void end_capture(struct runner *r, const struct pg_item *item, int m)
{
    struct graph *graph = &r->graph[m][item->begin];
    const struct pg_item *begin = &r->program->item[item->begin];
    CF_CU(r->worker, StreamEndCapture(r->worker->member[m].stream[begin->stream[0]], &graph->graph));
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

/* --- other items -------------------------------------------------------------------------------------------------- */

/* Waits for all streams of a member, with an eye on its communicators. */
static void wait_and_check(struct runner *r, int m)
{
    for (bool busy = true; busy;) {
        busy = false;
        for (int s = 0; s < PG_STREAMS; s++) {
            CUresult state = cu.StreamQuery(r->worker->member[m].stream[s]);
            cf_check(r->worker, state == CUDA_SUCCESS || state == CUDA_ERROR_NOT_READY,
                     "rank %d: item %d: a stream failed: %d", world_rank(r, m), r->at, (int)state);
            busy |= state == CUDA_ERROR_NOT_READY;
        }
        for (int c = 0; c < PG_MAX_COMMS; c++) {
            await_ready(r, m, r->set[c].comm[m]);
        }
        usleep(busy ? POLL_MICROSECONDS : 0);
    }
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
    for (int i = 0; i < PG_MAX_ITEMS; i++) {
        if (r->graph[m][i].graph != NULL) { /* NCCL ends no communicator before its graphs */
            CF_CU(r->worker, GraphExecDestroy(r->graph[m][i].exec));
            CF_CU(r->worker, GraphDestroy(r->graph[m][i].graph));
        }
    }
    for (int i = 0; i < PG_MAX_COMMS; i++) {
        int c = r->program->seed & 1 ? i : PG_MAX_COMMS - 1 - i; /* parents first, or children */
        if (r->set[c].comm[m] != NULL) {
            end_comm(r, m, r->set[c].comm[m], way);
        }
    }
    pg_data_close(r->worker, &r->data[m]);
}

static void make_comm(struct runner *r, const struct pg_item *item)
{
    struct cf_set *set = &r->set[item->call.comm];
    meet_threads(r);
    if (item->parent < 0) {
        cf_set_create(r->worker, item->maker, set);
    } else { /* the first communicator has the job's ranks */
        cf_set_split(r->worker, &r->set[item->parent], item->color, item->key, item->flags, set);
    }
    for (int m = 0; cf_use(r->worker, m); m++) {
        if (set->comm[m] != NULL) {
            pg_data_load(r->worker, r->program, m, item->call.comm, set, &r->data[m]);
        }
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
        end_group(r);
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
