/* SPDX-License-Identifier: MIT */
/*
 * perf/measure.c - checks and times one row
 *
 * Blocks of the sides alternate, so that whatever drifts on the machine hits all of them. A thread works on one row at
 * a time; the thread of rank 0 adds the row up when all have come to the barrier behind it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tools/perf/thread.h"

/* --- running ---------------------------------------------------------------------------------------------------- */

static ncclRedOp_t nccl_op(const struct oh_perf_rank *member, enum oh_perf_op op)
{
    static const ncclRedOp_t builtin[OH_PERF_OPS] = {
        [OH_PERF_SUM] = ncclSum, [OH_PERF_PROD] = ncclProd, [OH_PERF_MIN] = ncclMin,
        [OH_PERF_MAX] = ncclMax, [OH_PERF_AVG] = ncclAvg,
    };
    return op == OH_PERF_MULSUM ? member->mulsum : builtin[op];
}

/* Calls that need not go through the buffers as those of nccl-tests do (startColl), so that no cache holds their
 * inputs.
 */
static size_t place_of(const struct oh_perf_thread *thread, const struct oh_perf_workload *workload, int number)
{
    return workload->moves ? (size_t)number % (thread->options->max_bytes / workload->bytes) * workload->bytes : 0;
}

static void call_once(struct oh_perf_thread *thread, const struct oh_perf_workload *workload, int number)
{
    const size_t place = place_of(thread, workload, number);
    OH_PERF_EACH_RANK(thread, member)
    {
        CUdeviceptr recv = member->recv[workload->side] + place;
        CUdeviceptr send = workload->in_place ? recv : member->send[workload->side] + place;
        OH_PERF_NCCL(thread, "ncclAllReduce",
                     api[workload->side].all_reduce((const void *)(uintptr_t)send, (void *)(uintptr_t)recv,
                                                    workload->task->count, workload->task->type->nccl,
                                                    nccl_op(member, workload->task->op), member->comm,
                                                    (void *)member->stream));
    }
}

/* An iteration is one call, or a group of them. */
static void issue_allreduce(struct oh_perf_thread *thread, const struct oh_perf_workload *workload, int i)
{
    bool grouped = thread->ranks > 1 || workload->aggregate > 1;
    if (grouped) {
        oh_perf_thread_group_start(thread, workload->side);
    }
    for (int j = 0; j < workload->aggregate; j++) {
        call_once(thread, workload, i * workload->aggregate + j);
    }
    if (grouped) {
        oh_perf_thread_group_end(thread, workload->side);
    }
}

/* Calls out of place in one place, with nothing between. */
static struct oh_perf_workload allreduce_job(const struct oh_perf_task *task, enum oh_perf_side side, int iterations,
                                             int aggregate)
{
    return (struct oh_perf_workload){.issue = issue_allreduce,
                                     .iterations = iterations,
                                     .aggregate = aggregate,
                                     .side = side,
                                     .bytes = task->count * task->type->size,
                                     .task = task};
}

static struct oh_perf_workload pattern_job(const struct oh_perf_thread *thread, const struct oh_perf_task *task,
                                           enum oh_perf_side side)
{
    const struct oh_perf_options *options = thread->options;
    struct oh_perf_workload workload = allreduce_job(task, side, options->iters, options->aggregate);
    workload.program = oh_perf_program_of(options->pattern);
    workload.in_place = options->pattern == OH_PERF_CHAIN;
    workload.moves = options->pattern == OH_PERF_FREE;
    return workload;
}

static void issue(struct oh_perf_thread *thread, const struct oh_perf_workload *workload, int iterations)
{
    for (int i = 0; i < iterations; i++) {
        if (!workload->bare) {
            workload->issue(thread, workload, i);
        }
        if (workload->program != OH_PERF_NO_PROGRAM) {
            oh_perf_run_program(thread, workload);
        }
    }
}

void oh_perf_workload_capture(struct oh_perf_thread *thread, enum oh_perf_mode mode, struct oh_perf_workload *workload)
{
    CUgraph graph[OH_PERF_RANKS] = {NULL};
    if (mode != OH_PERF_GRAPH) {
        return;
    }
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_CU(thread, stream_begin_capture(member->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    }
    issue(thread, workload, workload->iterations);
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_CU(thread, stream_end_capture(member->stream, &graph[member - thread->member]));
    }
    OH_PERF_EACH_RANK(thread, member) /* not while this thread captures */
    {
        OH_PERF_CU(thread,
                   graph_instantiate(&workload->graph[member - thread->member], graph[member - thread->member], 0));
        OH_PERF_CU(thread, graph_destroy(graph[member - thread->member]));
    }
}

void oh_perf_workload_run(struct oh_perf_thread *thread, const struct oh_perf_workload *workload)
{
    if (!workload->graph[0]) {
        issue(thread, workload, workload->iterations);
        return;
    }
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_CU(thread, graph_launch(workload->graph[member - thread->member], member->stream));
    }
}

void oh_perf_workload_discard(struct oh_perf_thread *thread, struct oh_perf_workload *workload)
{
    if (!workload->graph[0]) {
        return;
    }
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_CU(thread, graph_exec_destroy(workload->graph[member - thread->member]));
    }
}

static void synchronize(struct oh_perf_thread *thread)
{
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_CU(thread, stream_synchronize(member->stream));
    }
}

/* --- checking --------------------------------------------------------------------------------------------------- */

/* A PreMulSum op belongs to a communicator and a type. */
static void make_op(struct oh_perf_thread *thread, const struct oh_perf_type *type)
{
    uint64_t scalar = 0;
    oh_perf_scalar(type, &scalar);
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_NCCL(thread, "ncclRedOpCreatePreMulSum",
                     op_create(&member->mulsum, &scalar, type->nccl, ncclScalarHostImmediate, member->comm));
    }
}

static void drop_op(struct oh_perf_thread *thread)
{
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_NCCL(thread, "ncclRedOpDestroy", op_destroy(member->mulsum, member->comm));
    }
}

static void fill_values(struct oh_perf_thread *thread, const struct oh_perf_task *task)
{
    const struct oh_perf_type *type = task->type;
    size_t count = thread->options->max_bytes / type->size + OH_PERF_SLACK;
    if (!thread->options->check || (thread->type == type && thread->op == task->op)) {
        return;
    }
    OH_PERF_EACH_RANK(thread, member)
    {
        oh_perf_fill(type, task->op, thread->options->ranks, member->rank, count, member->input, thread->expected);
    }
    thread->type = type;
    thread->op = task->op;
}

/* Fresh inputs, poisoned results, one run, every element compared. Returns the number that is wrong. */
static uint64_t check_once(struct oh_perf_thread *thread, const struct oh_perf_workload *workload)
{
    const struct oh_perf_task *task = workload->task;
    size_t bytes = task->count * task->type->size;
    size_t shift = (thread->checks++ % OH_PERF_SLACK) * task->type->size;
    uint64_t wrong = 0;
    OH_PERF_EACH_RANK(thread, member)
    {
        CUdeviceptr recv = member->recv[workload->side];
        CUdeviceptr send = workload->in_place ? recv : member->send[workload->side];
        OH_PERF_CU(thread, memset_d8_async(recv, OH_PERF_POISON, bytes + OH_PERF_GUARD, member->stream));
        OH_PERF_CU(thread, memcpy_htod_async(send, member->input + shift, bytes, member->stream));
    }
    oh_perf_workload_run(thread, workload);
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_CU(thread,
                   memcpy_dtoh_async(thread->got, member->recv[workload->side], bytes + OH_PERF_GUARD, member->stream));
        OH_PERF_CU(thread, stream_synchronize(member->stream));
        wrong += oh_perf_wrong(task->type, task->op, thread->options->ranks, thread->got, thread->expected + shift,
                               task->count);
    }
    return wrong;
}

/* Out of place, as a group where groups are measured, and in place; a graph is replayed with other inputs. */
static uint64_t check(struct oh_perf_thread *thread, const struct oh_perf_task *task, enum oh_perf_side side)
{
    uint64_t wrong = 0;
    for (int in_place = 0; in_place <= 1; in_place++) {
        struct oh_perf_workload workload = allreduce_job(task, side, 1, in_place ? 1 : thread->options->aggregate);
        workload.in_place = in_place;
        oh_perf_workload_capture(thread, task->mode, &workload);
        wrong += check_once(thread, &workload);
        if (task->mode == OH_PERF_GRAPH) {
            wrong += check_once(thread, &workload);
        }
        oh_perf_workload_discard(thread, &workload);
    }
    return wrong;
}

/* --- measuring -------------------------------------------------------------------------------------------------- */

/* What runs before the first event brings the ranks together and hides the launch. */
void oh_perf_workload_time(struct oh_perf_thread *thread, const struct oh_perf_workload *workload, double *us_p)
{
    oh_perf_thread_barrier(thread);
    if (workload->graph[0]) {
        oh_perf_workload_run(thread, workload);
    } else {
        issue(thread, workload, 1);
    }
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_CU(thread, event_record(member->begin, member->stream));
    }
    oh_perf_workload_run(thread, workload);
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_CU(thread, event_record(member->end, member->stream));
    }
    OH_PERF_EACH_RANK(thread, member)
    {
        float ms;
        OH_PERF_CU(thread, event_synchronize(member->end));
        OH_PERF_CU(thread, event_elapsed_time(&ms, member->begin, member->end));
        us_p[member->rank] = (double)ms * 1000.0 / workload->iterations / workload->aggregate;
    }
}

/* A call that costs less than the clock can tell still takes some time: a nanosecond. */
void oh_perf_workload_subtract(const struct oh_perf_thread *thread, const double *bare_us, double *us)
{
    for (int i = 0; i < thread->ranks; i++) {
        const int rank = thread->member[i].rank;
        const double left = us[rank] - bare_us[rank];
        us[rank] = left > 0.001 ? left : 0.001;
    }
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void oh_perf_summarise(const struct oh_perf_shared *shared, int ranks, int rounds, int side, double *median_p,
                       double *p99_p)
{
    double slowest[OH_PERF_ROUNDS] = {0};
    for (int round = 0; round < rounds; round++) {
        for (int rank = 0; rank < ranks; rank++) {
            double us = shared->us[round][side][rank];
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
    size_t length = 0;
    thread->onehop_info(thread->member[0].comm, &now, sizeof now);
    text_p[0] = '\0';
    for (int i = 0; i < ONEHOP_ALGORITHM_COUNT; i++) {
        if (now.calls_by_algorithm[i] != before->calls_by_algorithm[i] && length < size) {
            length +=
                (size_t)snprintf(text_p + length, size - length, "%s%s", length ? "+" : "", thread->algorithm_name(i));
        }
    }
    if ((length == 0 || now.fallback_calls != before->fallback_calls) && length < size) {
        snprintf(text_p + length, size - length, "%snccl", length ? "+" : "");
    }
}

/* Eager calls of the row's shape, so that whatever is made at first use exists before anything is captured. */
static void warm_up(struct oh_perf_thread *thread, const struct oh_perf_task *task)
{
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        if (thread->options->side[side]) {
            const struct oh_perf_workload workload =
                allreduce_job(task, side, thread->options->warmup, thread->options->aggregate);
            OH_PERF_EACH_RANK(thread, member)
            {
                OH_PERF_CU(thread, memset_d8_async(member->send[side], 0, thread->options->max_bytes, member->stream));
            }
            oh_perf_workload_run(thread, &workload);
        }
    }
    synchronize(thread);
}

/* A round of all sides; the pattern's kernel by itself comes first, and is subtracted. */
static void time_round(struct oh_perf_thread *thread, const struct oh_perf_workload *workload,
                       double (*us)[OH_PERF_RANKS])
{
    const struct oh_perf_workload *bare = &workload[OH_PERF_BARE];
    if (bare->program != OH_PERF_NO_PROGRAM) {
        oh_perf_workload_time(thread, bare, us[OH_PERF_BARE]);
    }
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        if (thread->options->side[side]) {
            oh_perf_workload_time(thread, &workload[side], us[side]);
            if (bare->program != OH_PERF_NO_PROGRAM) {
                oh_perf_workload_subtract(thread, us[OH_PERF_BARE], us[side]);
            }
        }
    }
}

/* Sums of sums would overflow; zeros stay zeros. */
static void clear_buffers(struct oh_perf_thread *thread, const struct oh_perf_workload *workload)
{
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_CU(thread, memset_d8_async(member->send[workload->side], 0, workload->bytes, member->stream));
        OH_PERF_CU(thread, memset_d8_async(member->recv[workload->side], 0, workload->bytes, member->stream));
    }
}

/* Times all sides in turns, all rounds. */
static void time_task(struct oh_perf_thread *thread, const struct oh_perf_task *task)
{
    const struct oh_perf_options *options = thread->options;
    struct oh_perf_workload workload[OH_PERF_TIMES];
    workload[OH_PERF_BARE] = pattern_job(thread, task, OH_PERF_STOCK); /* whose buffers are there, whatever the sides */
    workload[OH_PERF_BARE].bare = true;
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        workload[side] = pattern_job(thread, task, side);
        if (options->side[side]) {
            oh_perf_workload_capture(thread, task->mode, &workload[side]);
            clear_buffers(thread, &workload[side]);
        }
    }
    if (workload[OH_PERF_BARE].program != OH_PERF_NO_PROGRAM) {
        oh_perf_workload_capture(thread, task->mode, &workload[OH_PERF_BARE]);
    }
    synchronize(thread);
    for (int round = 0; round < options->rounds; round++) {
        time_round(thread, workload, thread->shared->us[round]);
    }
    for (int i = 0; i < OH_PERF_TIMES; i++) {
        oh_perf_workload_discard(thread, &workload[i]);
    }
}

/* In the leading thread, when all have measured the row. */
static void add_up(struct oh_perf_thread *thread, struct oh_perf_task *task)
{
    const struct oh_perf_options *options = thread->options;
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        struct oh_perf_cell *cell = &task->cell[side];
        cell->there = options->side[side];
        if (cell->there) {
            oh_perf_summarise(thread->shared, options->ranks, options->rounds, side, &cell->us, &cell->p99_us);
            for (int rank = 0; rank < options->ranks; rank++) {
                cell->wrong += thread->shared->wrong[side][rank];
            }
        }
    }
    if (oh_perf_program_of(options->pattern) != OH_PERF_NO_PROGRAM) {
        double p99;
        oh_perf_summarise(thread->shared, options->ranks, options->rounds, OH_PERF_BARE, &task->program_us, &p99);
    }
}

void oh_perf_measure(struct oh_perf_thread *thread, struct oh_perf_task *task)
{
    struct oh_perf_shared *shared = thread->shared;
    const struct oh_perf_options *options = thread->options;
    onehop_comm_info_t before = {0};
    uint64_t wrong[OH_PERF_SIDES] = {0};

    fill_values(thread, task);
    if (task->op == OH_PERF_MULSUM) {
        make_op(thread, task->type);
    }
    warm_up(thread, task);
    thread->onehop_info(thread->member[0].comm, &before, sizeof before);
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        if (options->side[side] && options->check) {
            wrong[side] = check(thread, task, side);
        }
    }
    time_task(thread, task);
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        shared->wrong[side][thread->member[0].rank] = wrong[side];
    }
    oh_perf_thread_barrier(thread);
    if (oh_perf_thread_is_main(thread)) { /* the others write again only behind the next barrier */
        add_up(thread, task);
        name_servers(thread, &before, task->served_by, sizeof task->served_by);
        atomic_fetch_add(&shared->rows_done, 1);
    }
    if (task->op == OH_PERF_MULSUM) {
        drop_op(thread);
    }
}
