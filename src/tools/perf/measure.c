/* SPDX-License-Identifier: MIT */
/*
 * perf/measure.c - checks and times one row
 *
 * Does: Blocks of the sides alternate, so that whatever drifts on the machine affects all of them. The thread of rank 0
 *    adds the row up when all ranks have reached the barrier behind it.
 * Threads: a rank's; all ranks work on one row at a time.
 * Owns: the graphs of a row.
 */
#include <stdio.h>
#include <stdlib.h>

#include "plan/plan.h"
#include "tools/perf/thread.h"
#include "tools/shared/tool.h"

/* --- running ---------------------------------------------------------------------------------------------------- */

static ncclRedOp_t nccl_op(const struct oh_perf_thread *thread, enum oh_perf_op op)
{
    static const ncclRedOp_t builtin[OH_PERF_OPS] = {
        [OH_PERF_SUM] = ncclSum, [OH_PERF_PROD] = ncclProd, [OH_PERF_MIN] = ncclMin,
        [OH_PERF_MAX] = ncclMax, [OH_PERF_AVG] = ncclAvg,
    };
    return op == OH_PERF_MULSUM ? thread->mulsum : builtin[op];
}

/* Where a call's buffers are, and how long. */
struct place {
    CUdeviceptr send, recv;
    CUdeviceptr whole; /* from here on lies the receive buffer, or the buffer that both are parts of */
    size_t send_bytes, recv_bytes, whole_bytes;
};

/* In place by NCCL's rule: a rank's part is where it is in the buffer that has all parts. */
static struct place place_of(const struct oh_perf_thread *thread, const struct oh_perf_workload *workload,
                             size_t offset)
{
    const size_t part = workload->row->count * oh_perf_types[workload->row->type].size;
    const bool scatters = thread->options->collective == ONEHOP_REDUCESCATTER;
    const bool gathers = thread->options->collective == ONEHOP_ALLGATHER;
    const size_t own = (size_t)thread->rank * part, whole = workload->row->bytes;
    struct place place = {.recv = thread->recv[workload->side] + offset,
                          .send_bytes = gathers ? part : whole,
                          .recv_bytes = scatters ? part : whole};
    place.whole = place.recv;
    place.whole_bytes = workload->in_place ? whole : place.recv_bytes;
    place.send = workload->in_place ? place.whole + (gathers ? own : 0) : thread->send[workload->side] + offset;
    place.recv += workload->in_place && scatters ? own : 0;
    return place;
}

/*
 * A broadcast is from rank 0. A call that moves goes through the buffers as those of nccl-tests do (startColl), so that
 * no cache holds its input.
 */
static void call_once(struct oh_perf_thread *thread, const struct oh_perf_workload *workload, int number)
{
    const struct oh_perf_row *row = workload->row;
    const struct oh_nccl *nccl = &thread->nccl[workload->side];
    const size_t places = thread->options->max_bytes / workload->bytes;
    const struct place place =
        place_of(thread, workload, workload->moves ? (size_t)number % places * workload->bytes : 0);
    const void *send = (const void *)(uintptr_t)place.send;
    void *recv = (void *)(uintptr_t)place.recv;
    const ncclDataType_t type = oh_perf_types[row->type].nccl;
    const ncclRedOp_t op = nccl_op(thread, row->op);
    const cudaStream_t stream = (cudaStream_t)thread->stream;
    switch ((enum onehop_collective)thread->options->collective) {
    case ONEHOP_ALLGATHER:
        oh_perf_check_nccl(thread, "ncclAllGather",
                           nccl->AllGather(send, recv, row->count, type, thread->comm, stream));
        break;
    case ONEHOP_REDUCESCATTER:
        oh_perf_check_nccl(thread, "ncclReduceScatter",
                           nccl->ReduceScatter(send, recv, row->count, type, op, thread->comm, stream));
        break;
    case ONEHOP_BROADCAST:
        oh_perf_check_nccl(thread, "ncclBroadcast",
                           nccl->Broadcast(send, recv, row->count, type, 0, thread->comm, stream));
        break;
    default:
        oh_perf_check_nccl(thread, "ncclAllReduce",
                           nccl->AllReduce(send, recv, row->count, type, op, thread->comm, stream));
    }
}

/* An iteration is one call, or a group of them. */
static void issue_calls(struct oh_perf_thread *thread, const struct oh_perf_workload *workload, int i)
{
    const struct oh_nccl *nccl = &thread->nccl[workload->side];
    if (workload->aggregate > 1) {
        nccl->GroupStart();
    }
    for (int j = 0; j < workload->aggregate; j++) {
        call_once(thread, workload, i * workload->aggregate + j);
    }
    if (workload->aggregate > 1) {
        oh_perf_check_nccl(thread, "ncclGroupEnd", nccl->GroupEnd());
    }
}

/* Calls out of place in one place, with nothing between. */
static struct oh_perf_workload make_workload(const struct oh_perf_row *row, enum oh_perf_side side, int iterations,
                                             int aggregate)
{
    return (struct oh_perf_workload){.issue = issue_calls,
                                     .iterations = iterations,
                                     .aggregate = aggregate,
                                     .side = side,
                                     .bytes = row->bytes,
                                     .row = row};
}

static void issue(struct oh_perf_thread *thread, const struct oh_perf_workload *workload, int iterations)
{
    for (int i = 0; i < iterations; i++) {
        if (!workload->bare) {
            workload->issue(thread, workload, i);
        }
        if (workload->program) {
            oh_perf_run_program(thread, workload);
        }
    }
}

static void capture(struct oh_perf_thread *thread, enum oh_perf_mode mode, struct oh_perf_workload *workload)
{
    CUgraph graph = NULL;
    if (mode == OH_PERF_GRAPH) {
        OH_PERF_CU(thread, stream_begin_capture(thread->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        issue(thread, workload, workload->iterations);
        OH_PERF_CU(thread, stream_end_capture(thread->stream, &graph));
        OH_PERF_CU(thread, graph_instantiate(&workload->graph, graph, 0));
        OH_PERF_CU(thread, graph_destroy(graph));
    }
}

static void run(struct oh_perf_thread *thread, const struct oh_perf_workload *workload)
{
    if (workload->graph) {
        OH_PERF_CU(thread, graph_launch(workload->graph, thread->stream));
    } else {
        issue(thread, workload, workload->iterations);
    }
}

static void discard(struct oh_perf_thread *thread, struct oh_perf_workload *workload)
{
    if (workload->graph) {
        OH_PERF_CU(thread, graph_exec_destroy(workload->graph));
    }
}

/* --- checking --------------------------------------------------------------------------------------------------- */

static void fill_values(struct oh_perf_thread *thread, const struct oh_perf_row *row)
{
    const size_t count = thread->options->max_bytes / oh_perf_types[row->type].size + OH_PERF_SLACK;
    if (thread->options->check && (thread->type != row->type || thread->op != row->op)) {
        oh_perf_fill(&oh_perf_types[row->type], row->op, thread->options->ranks, thread->rank, count, thread->input,
                     thread->expected);
        thread->type = row->type;
        thread->op = row->op;
    }
}

/* What must come out when all inputs begin `shift` elements into the pattern. */
static const char *expect(struct oh_perf_thread *thread, const struct oh_perf_row *row, size_t shift)
{
    const struct oh_perf_type *type = &oh_perf_types[row->type];
    const enum onehop_collective collective = (enum onehop_collective)thread->options->collective;
    const int sources = collective == ONEHOP_ALLGATHER ? thread->options->ranks : 1;
    for (int r = 0; r < sources && !oh_collective_reduces(collective); r++) {
        oh_perf_fill_moved(type, thread->options->ranks, r, shift, row->count,
                           thread->expected + (size_t)r * row->count * type->size);
    }
    if (!oh_collective_reduces(collective)) {
        return thread->expected;
    }
    const size_t own = collective == ONEHOP_REDUCESCATTER ? (size_t)thread->rank * row->count : 0;
    return thread->expected + (shift + own) * type->size;
}

/* Fresh inputs, poisoned results, one run, every element compared. Returns the number that is wrong. */
static uint64_t check_once(struct oh_perf_thread *thread, const struct oh_perf_workload *workload)
{
    const struct oh_perf_row *row = workload->row;
    const struct oh_perf_type *type = &oh_perf_types[row->type];
    const size_t shift = thread->checks++ % OH_PERF_SLACK;
    const struct place place = place_of(thread, workload, 0);
    OH_PERF_CU(thread, memset_d8_async(place.whole, OH_PERF_POISON, place.whole_bytes + OH_PERF_GUARD, thread->stream));
    OH_PERF_CU(thread,
               memcpy_htod_async(place.send, thread->input + shift * type->size, place.send_bytes, thread->stream));
    run(thread, workload);
    OH_PERF_CU(thread, memcpy_dtoh_async(thread->got, place.recv, place.recv_bytes, thread->stream));
    OH_PERF_CU(thread, memcpy_dtoh_async(thread->got + place.recv_bytes, place.whole + place.whole_bytes, OH_PERF_GUARD,
                                         thread->stream));
    OH_PERF_CU(thread, stream_synchronize(thread->stream));
    return oh_perf_wrong(type, row->op, thread->options->ranks, thread->got, expect(thread, row, shift),
                         place.recv_bytes / type->size);
}

/* Out of place, as a group where groups are measured, and in place; a graph is replayed with other inputs. */
static uint64_t check(struct oh_perf_thread *thread, const struct oh_perf_row *row, enum oh_perf_side side)
{
    uint64_t wrong = 0;
    for (int in_place = 0; in_place <= 1; in_place++) {
        struct oh_perf_workload workload = make_workload(row, side, 1, in_place ? 1 : thread->options->aggregate);
        workload.in_place = in_place;
        capture(thread, row->mode, &workload);
        for (int times = row->mode == OH_PERF_GRAPH ? 2 : 1; times > 0; times--) {
            wrong += check_once(thread, &workload);
        }
        discard(thread, &workload);
    }
    return wrong;
}

/* --- measuring -------------------------------------------------------------------------------------------------- */

/* Times one block. What runs before the first event aligns the ranks in time and hides the launch. */
static void time_block(struct oh_perf_thread *thread, const struct oh_perf_workload *workload, int round, int index)
{
    double(*us)[OH_PERF_RANKS] = thread->shared->us[round];
    float ms;
    oh_perf_barrier(thread);
    if (workload->graph) {
        run(thread, workload);
    } else {
        issue(thread, workload, 1);
    }
    OH_PERF_CU(thread, event_record(thread->begin, thread->stream));
    run(thread, workload);
    OH_PERF_CU(thread, event_record(thread->end, thread->stream));
    OH_PERF_CU(thread, event_synchronize(thread->end));
    OH_PERF_CU(thread, event_elapsed_time(&ms, thread->begin, thread->end));
    double time = (double)ms * 1000.0 / workload->iterations / workload->aggregate;
    if (workload->program && !workload->bare) {
        time -= us[OH_PERF_BARE][thread->rank];
        time = time > 0.001 ? time : 0.001; /* less than the clock's resolution: a nanosecond */
    }
    us[index][thread->rank] = time;
}

void oh_perf_time(struct oh_perf_thread *thread, enum oh_perf_mode mode,
                  struct oh_perf_workload workload[OH_PERF_TIMES])
{
    int first = 0;
    while (!workload[first].issue) {
        first++;
    }
    if (workload[first].program) {
        workload[OH_PERF_BARE] = workload[first];
        workload[OH_PERF_BARE].bare = true;
    }
    for (int i = 0; i < OH_PERF_TIMES; i++) {
        if (workload[i].issue) {
            capture(thread, mode, &workload[i]);
        }
    }
    for (int round = 0; round < thread->options->rounds; round++) {
        for (int i = OH_PERF_TIMES - 1; i >= 0; i--) { /* the program by itself comes first */
            if (workload[i].issue) {
                time_block(thread, &workload[i], round, i);
            }
        }
    }
    for (int i = 0; i < OH_PERF_TIMES; i++) {
        discard(thread, &workload[i]);
    }
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void oh_perf_summarise(const struct oh_perf_thread *thread, int index, double *median_p, double *p99_p)
{
    const int rounds = thread->options->rounds;
    double slowest[OH_PERF_ROUNDS] = {0};
    for (int round = 0; round < rounds; round++) {
        for (int rank = 0; rank < thread->options->ranks; rank++) {
            double us = thread->shared->us[round][index][rank];
            slowest[round] = us > slowest[round] ? us : slowest[round];
        }
    }
    qsort(slowest, (size_t)rounds, sizeof *slowest, compare_doubles);
    *median_p = (slowest[(rounds - 1) / 2] + slowest[rounds / 2]) / 2;
    *p99_p = slowest[(99 * rounds + 99) / 100 - 1]; /* the nearest rank */
}

/* What ran onehop's calls: the names of all counters that moved, "nccl" for fallbacks. */
static void name_servers(struct oh_perf_thread *thread, const onehop_comm_info_t *before, char *text_p, size_t size)
{
    onehop_comm_info_t now = *before;
    thread->onehop_info(thread->comm, &now, sizeof now);
    for (int i = 0; i < ONEHOP_ALGORITHM_COUNT; i++) {
        if (now.calls_by_algorithm[i] != before->calls_by_algorithm[i]) {
            oh_text_append(text_p, size, "%s%s", text_p[0] ? "+" : "", thread->algorithm_name(i));
        }
    }
    if (!text_p[0] || now.fallback_calls != before->fallback_calls) {
        oh_text_append(text_p, size, "%snccl", text_p[0] ? "+" : "");
    }
}

void oh_perf_call_first(struct oh_perf_thread *thread)
{
    onehop_comm_info_t *info = &thread->shared->info;
    const struct oh_perf_row row = {.bytes = 1, .count = 1}; /* of the first type and op: a sum of int8 */
    const struct oh_perf_workload workload = make_workload(&row, OH_PERF_ONEHOP, 1, 1);
    run(thread, &workload);
    OH_PERF_CU(thread, stream_synchronize(thread->stream));
    if (thread->rank == 0 && thread->onehop_info(thread->comm, info, sizeof *info) != 0) {
        snprintf(info->reason, sizeof info->reason, "the communicator is unknown to onehop");
    }
}

/* Eager calls of the row's shape, so that whatever is made at first use exists before anything is captured. */
static void warm_up(struct oh_perf_thread *thread, const struct oh_perf_row *row)
{
    OH_PERF_EACH_SIDE(thread->options, side)
    {
        const struct oh_perf_workload workload =
            make_workload(row, side, thread->options->warmup, thread->options->aggregate);
        OH_PERF_CU(thread, memset_d8_async(thread->send[side], 0, thread->options->max_bytes, thread->stream));
        run(thread, &workload);
    }
    OH_PERF_CU(thread, stream_synchronize(thread->stream));
}

/* Times all sides. Sums of sums overflow; zeros stay zeros. */
static void time_row(struct oh_perf_thread *thread, const struct oh_perf_row *row)
{
    const struct oh_perf_options *options = thread->options;
    struct oh_perf_workload workload[OH_PERF_TIMES] = {{.issue = NULL}};
    OH_PERF_EACH_SIDE(options, side)
    {
        workload[side] = make_workload(row, side, options->iters, options->aggregate);
        workload[side].program = thread->program != NULL;
        workload[side].in_place = options->pattern == OH_PERF_CHAIN;
        workload[side].moves = options->pattern == OH_PERF_FREE;
        OH_PERF_CU(thread, memset_d8_async(thread->send[side], 0, row->bytes, thread->stream));
        OH_PERF_CU(thread, memset_d8_async(thread->recv[side], 0, row->bytes, thread->stream));
    }
    OH_PERF_CU(thread, stream_synchronize(thread->stream));
    oh_perf_time(thread, row->mode, workload);
}

/* In the thread of rank 0, when all ranks have measured the row. */
static void add_up(struct oh_perf_thread *thread, const onehop_comm_info_t *before, struct oh_perf_row *row)
{
    const struct oh_perf_options *options = thread->options;
    double p99;
    int column = 0;
    OH_PERF_EACH_SIDE(options, side)
    {
        struct oh_perf_cell *cell = &row->cell[column++];
        cell->there = true;
        oh_perf_summarise(thread, side, &cell->us, &cell->p99_us);
        for (int rank = 0; rank < options->ranks; rank++) {
            cell->wrong += thread->shared->wrong[side][rank];
        }
    }
    if (thread->program) {
        oh_perf_summarise(thread, OH_PERF_BARE, &row->program_us, &p99);
    }
    if (options->side[OH_PERF_ONEHOP]) {
        name_servers(thread, before, row->served_by, sizeof row->served_by);
    }
}

void oh_perf_measure(struct oh_perf_thread *thread, struct oh_perf_row *row)
{
    const struct oh_perf_type *type = &oh_perf_types[row->type];
    onehop_comm_info_t before = {0};
    uint64_t scalar = 0, wrong[OH_PERF_SIDES] = {0};

    fill_values(thread, row);
    if (row->op == OH_PERF_MULSUM) { /* belongs to a communicator and a type */
        oh_perf_scalar(type, &scalar);
        oh_perf_check_nccl(thread, "ncclRedOpCreatePreMulSum",
                           thread->nccl[OH_PERF_ONEHOP].RedOpCreatePreMulSum(&thread->mulsum, &scalar, type->nccl,
                                                                             ncclScalarHostImmediate, thread->comm));
    }
    warm_up(thread, row);
    thread->onehop_info(thread->comm, &before, sizeof before);
    OH_PERF_EACH_SIDE(thread->options, side)
    {
        wrong[side] = thread->options->check ? check(thread, row, side) : 0;
    }
    time_row(thread, row);
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        thread->shared->wrong[side][thread->rank] = wrong[side];
    }
    oh_perf_barrier(thread);
    if (thread->rank == 0) { /* the others write again only behind the next barrier */
        add_up(thread, &before, row);
        atomic_fetch_add(&thread->shared->rows_done, 1);
    }
    if (row->op == OH_PERF_MULSUM) {
        oh_perf_check_nccl(thread, "ncclRedOpDestroy",
                           thread->nccl[OH_PERF_ONEHOP].RedOpDestroy(thread->mulsum, thread->comm));
    }
}
