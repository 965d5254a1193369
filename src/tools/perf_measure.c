/* SPDX-License-Identifier: MIT */
/*
 * perf_measure.c - checks and times one row
 *
 * Blocks of the sides alternate, so that whatever drifts on the machine hits all of them. A crew works on one row at a
 * time; the crew of rank 0 adds the row up when all have come to the barrier behind it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tools/perf_crew.h"

/* --- running ---------------------------------------------------------------------------------------------------- */

static ncclRedOp_t nccl_op(const struct oh_seat *seat, enum oh_perf_op op)
{
    static const ncclRedOp_t builtin[OH_PERF_OPS] = {
        [OH_PERF_SUM] = ncclSum, [OH_PERF_PROD] = ncclProd, [OH_PERF_MIN] = ncclMin,
        [OH_PERF_MAX] = ncclMax, [OH_PERF_AVG] = ncclAvg,
    };
    return op == OH_PERF_MULSUM ? seat->mulsum : builtin[op];
}

/* Calls that need not go through the buffers as those of nccl-tests do (startColl), so that no cache holds their
 * inputs.
 */
static size_t place_of(const struct oh_crew *crew, const struct oh_job *job, int number)
{
    return job->moves ? (size_t)number % (crew->options->max_bytes / job->bytes) * job->bytes : 0;
}

static void call_once(struct oh_crew *crew, const struct oh_job *job, int number)
{
    const size_t place = place_of(crew, job, number);
    OH_CREW_EACH(crew, seat)
    {
        CUdeviceptr recv = seat->recv[job->side] + place;
        CUdeviceptr send = job->in_place ? recv : seat->send[job->side] + place;
        OH_CREW_NCCL(crew, "ncclAllReduce",
                     api[job->side].all_reduce((const void *)(uintptr_t)send, (void *)(uintptr_t)recv, job->task->count,
                                               job->task->type->nccl, nccl_op(seat, job->task->op), seat->comm,
                                               (void *)seat->stream));
    }
}

/* An iteration is one call, or a group of them. */
static void issue_allreduce(struct oh_crew *crew, const struct oh_job *job, int i)
{
    bool grouped = crew->seats > 1 || job->aggregate > 1;
    if (grouped) {
        oh_crew_group_start(crew, job->side);
    }
    for (int j = 0; j < job->aggregate; j++) {
        call_once(crew, job, i * job->aggregate + j);
    }
    if (grouped) {
        oh_crew_group_end(crew, job->side);
    }
}

/* Calls out of place in one place, with nothing between. */
static struct oh_job allreduce_job(const struct oh_perf_task *task, enum oh_perf_side side, int iterations,
                                   int aggregate)
{
    return (struct oh_job){.issue = issue_allreduce,
                           .iterations = iterations,
                           .aggregate = aggregate,
                           .side = side,
                           .bytes = task->count * task->type->size,
                           .task = task};
}

static struct oh_job pattern_job(const struct oh_crew *crew, const struct oh_perf_task *task, enum oh_perf_side side)
{
    const struct oh_perf_options *options = crew->options;
    struct oh_job job = allreduce_job(task, side, options->iters, options->aggregate);
    job.program = oh_perf_program_of(options->pattern);
    job.in_place = options->pattern == OH_PERF_CHAIN;
    job.moves = options->pattern == OH_PERF_FREE;
    return job;
}

static void issue(struct oh_crew *crew, const struct oh_job *job, int iterations)
{
    for (int i = 0; i < iterations; i++) {
        if (!job->bare) {
            job->issue(crew, job, i);
        }
        if (job->program != OH_PERF_NO_PROGRAM) {
            oh_perf_run_program(crew, job);
        }
    }
}

void oh_job_capture(struct oh_crew *crew, enum oh_perf_mode mode, struct oh_job *job)
{
    CUgraph graph[OH_PERF_RANKS] = {NULL};
    if (mode != OH_PERF_GRAPH) {
        return;
    }
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_CU(crew, stream_begin_capture(seat->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    }
    issue(crew, job, job->iterations);
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_CU(crew, stream_end_capture(seat->stream, &graph[seat - crew->seat]));
    }
    OH_CREW_EACH(crew, seat) /* not while this thread captures */
    {
        OH_CREW_CU(crew, graph_instantiate(&job->graph[seat - crew->seat], graph[seat - crew->seat], 0));
        OH_CREW_CU(crew, graph_destroy(graph[seat - crew->seat]));
    }
}

void oh_job_run(struct oh_crew *crew, const struct oh_job *job)
{
    if (!job->graph[0]) {
        issue(crew, job, job->iterations);
        return;
    }
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_CU(crew, graph_launch(job->graph[seat - crew->seat], seat->stream));
    }
}

void oh_job_discard(struct oh_crew *crew, struct oh_job *job)
{
    if (!job->graph[0]) {
        return;
    }
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_CU(crew, graph_exec_destroy(job->graph[seat - crew->seat]));
    }
}

static void synchronize(struct oh_crew *crew)
{
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_CU(crew, stream_synchronize(seat->stream));
    }
}

/* --- checking --------------------------------------------------------------------------------------------------- */

/* A PreMulSum op belongs to a communicator and a type. */
static void make_op(struct oh_crew *crew, const struct oh_perf_type *type)
{
    uint64_t scalar = 0;
    oh_perf_scalar(type, &scalar);
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_NCCL(crew, "ncclRedOpCreatePreMulSum",
                     op_create(&seat->mulsum, &scalar, type->nccl, ncclScalarHostImmediate, seat->comm));
    }
}

static void drop_op(struct oh_crew *crew)
{
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_NCCL(crew, "ncclRedOpDestroy", op_destroy(seat->mulsum, seat->comm));
    }
}

static void fill_values(struct oh_crew *crew, const struct oh_perf_task *task)
{
    const struct oh_perf_type *type = task->type;
    size_t count = crew->options->max_bytes / type->size + OH_PERF_SLACK;
    if (!crew->options->check || (crew->type == type && crew->op == task->op)) {
        return;
    }
    OH_CREW_EACH(crew, seat)
    {
        oh_perf_fill(type, task->op, crew->options->ranks, seat->rank, count, seat->input, crew->expected);
    }
    crew->type = type;
    crew->op = task->op;
}

/* Fresh inputs, poisoned results, one run, every element compared. Returns the number that is wrong. */
static uint64_t check_once(struct oh_crew *crew, const struct oh_job *job)
{
    const struct oh_perf_task *task = job->task;
    size_t bytes = task->count * task->type->size;
    size_t shift = (crew->checks++ % OH_PERF_SLACK) * task->type->size;
    uint64_t wrong = 0;
    OH_CREW_EACH(crew, seat)
    {
        CUdeviceptr recv = seat->recv[job->side];
        CUdeviceptr send = job->in_place ? recv : seat->send[job->side];
        OH_CREW_CU(crew, memset_d8_async(recv, OH_PERF_POISON, bytes + OH_PERF_GUARD, seat->stream));
        OH_CREW_CU(crew, memcpy_htod_async(send, seat->input + shift, bytes, seat->stream));
    }
    oh_job_run(crew, job);
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_CU(crew, memcpy_dtoh_async(crew->got, seat->recv[job->side], bytes + OH_PERF_GUARD, seat->stream));
        OH_CREW_CU(crew, stream_synchronize(seat->stream));
        wrong +=
            oh_perf_wrong(task->type, task->op, crew->options->ranks, crew->got, crew->expected + shift, task->count);
    }
    return wrong;
}

/* Out of place, as a group where groups are measured, and in place; a graph is replayed with other inputs. */
static uint64_t check(struct oh_crew *crew, const struct oh_perf_task *task, enum oh_perf_side side)
{
    uint64_t wrong = 0;
    for (int in_place = 0; in_place <= 1; in_place++) {
        struct oh_job job = allreduce_job(task, side, 1, in_place ? 1 : crew->options->aggregate);
        job.in_place = in_place;
        oh_job_capture(crew, task->mode, &job);
        wrong += check_once(crew, &job);
        if (task->mode == OH_PERF_GRAPH) {
            wrong += check_once(crew, &job);
        }
        oh_job_discard(crew, &job);
    }
    return wrong;
}

/* --- measuring -------------------------------------------------------------------------------------------------- */

/* What runs before the first event brings the ranks together and hides the launch. */
void oh_job_time(struct oh_crew *crew, const struct oh_job *job, double *us_p)
{
    oh_crew_barrier(crew);
    if (job->graph[0]) {
        oh_job_run(crew, job);
    } else {
        issue(crew, job, 1);
    }
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_CU(crew, event_record(seat->begin, seat->stream));
    }
    oh_job_run(crew, job);
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_CU(crew, event_record(seat->end, seat->stream));
    }
    OH_CREW_EACH(crew, seat)
    {
        float ms;
        OH_CREW_CU(crew, event_synchronize(seat->end));
        OH_CREW_CU(crew, event_elapsed_time(&ms, seat->begin, seat->end));
        us_p[seat->rank] = (double)ms * 1000.0 / job->iterations / job->aggregate;
    }
}

/* A call that costs less than the clock can tell still takes some time: a nanosecond. */
void oh_job_subtract(const struct oh_crew *crew, const double *bare_us, double *us)
{
    for (int i = 0; i < crew->seats; i++) {
        const int rank = crew->seat[i].rank;
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
static void name_servers(struct oh_crew *crew, const onehop_comm_info_t *before, char *text_p, size_t size)
{
    onehop_comm_info_t now = *before;
    size_t length = 0;
    crew->onehop_info(crew->seat[0].comm, &now, sizeof now);
    text_p[0] = '\0';
    for (int i = 0; i < ONEHOP_ALGORITHM_COUNT; i++) {
        if (now.calls_by_algorithm[i] != before->calls_by_algorithm[i] && length < size) {
            length +=
                (size_t)snprintf(text_p + length, size - length, "%s%s", length ? "+" : "", crew->algorithm_name(i));
        }
    }
    if ((length == 0 || now.fallback_calls != before->fallback_calls) && length < size) {
        snprintf(text_p + length, size - length, "%snccl", length ? "+" : "");
    }
}

/* Eager calls of the row's shape, so that whatever is made at first use exists before anything is captured. */
static void warm_up(struct oh_crew *crew, const struct oh_perf_task *task)
{
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        if (crew->options->side[side]) {
            const struct oh_job job = allreduce_job(task, side, crew->options->warmup, crew->options->aggregate);
            OH_CREW_EACH(crew, seat)
            {
                OH_CREW_CU(crew, memset_d8_async(seat->send[side], 0, crew->options->max_bytes, seat->stream));
            }
            oh_job_run(crew, &job);
        }
    }
    synchronize(crew);
}

/* A round of all sides; the pattern's kernel by itself comes first, and is subtracted. */
static void time_round(struct oh_crew *crew, const struct oh_job *job, double (*us)[OH_PERF_RANKS])
{
    const struct oh_job *bare = &job[OH_PERF_BARE];
    if (bare->program != OH_PERF_NO_PROGRAM) {
        oh_job_time(crew, bare, us[OH_PERF_BARE]);
    }
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        if (crew->options->side[side]) {
            oh_job_time(crew, &job[side], us[side]);
            if (bare->program != OH_PERF_NO_PROGRAM) {
                oh_job_subtract(crew, us[OH_PERF_BARE], us[side]);
            }
        }
    }
}

/* Sums of sums would overflow; zeros stay zeros. */
static void clear_buffers(struct oh_crew *crew, const struct oh_job *job)
{
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_CU(crew, memset_d8_async(seat->send[job->side], 0, job->bytes, seat->stream));
        OH_CREW_CU(crew, memset_d8_async(seat->recv[job->side], 0, job->bytes, seat->stream));
    }
}

/* Times all sides in turns, all rounds. */
static void time_task(struct oh_crew *crew, const struct oh_perf_task *task)
{
    const struct oh_perf_options *options = crew->options;
    struct oh_job job[OH_PERF_TIMES];
    job[OH_PERF_BARE] = pattern_job(crew, task, OH_PERF_STOCK); /* whose buffers are there, whatever the sides */
    job[OH_PERF_BARE].bare = true;
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        job[side] = pattern_job(crew, task, side);
        if (options->side[side]) {
            oh_job_capture(crew, task->mode, &job[side]);
            clear_buffers(crew, &job[side]);
        }
    }
    if (job[OH_PERF_BARE].program != OH_PERF_NO_PROGRAM) {
        oh_job_capture(crew, task->mode, &job[OH_PERF_BARE]);
    }
    synchronize(crew);
    for (int round = 0; round < options->rounds; round++) {
        time_round(crew, job, crew->shared->us[round]);
    }
    for (int i = 0; i < OH_PERF_TIMES; i++) {
        oh_job_discard(crew, &job[i]);
    }
}

/* In the leading crew, when all have measured the row. */
static void add_up(struct oh_crew *crew, struct oh_perf_task *task)
{
    const struct oh_perf_options *options = crew->options;
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        struct oh_perf_cell *cell = &task->cell[side];
        cell->there = options->side[side];
        if (cell->there) {
            oh_perf_summarise(crew->shared, options->ranks, options->rounds, side, &cell->us, &cell->p99_us);
            for (int rank = 0; rank < options->ranks; rank++) {
                cell->wrong += crew->shared->wrong[side][rank];
            }
        }
    }
    if (oh_perf_program_of(options->pattern) != OH_PERF_NO_PROGRAM) {
        double p99;
        oh_perf_summarise(crew->shared, options->ranks, options->rounds, OH_PERF_BARE, &task->program_us, &p99);
    }
}

void oh_perf_measure(struct oh_crew *crew, struct oh_perf_task *task)
{
    struct oh_perf_shared *shared = crew->shared;
    const struct oh_perf_options *options = crew->options;
    onehop_comm_info_t before = {0};
    uint64_t wrong[OH_PERF_SIDES] = {0};

    fill_values(crew, task);
    if (task->op == OH_PERF_MULSUM) {
        make_op(crew, task->type);
    }
    warm_up(crew, task);
    crew->onehop_info(crew->seat[0].comm, &before, sizeof before);
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        if (options->side[side] && options->check) {
            wrong[side] = check(crew, task, side);
        }
    }
    time_task(crew, task);
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        shared->wrong[side][crew->seat[0].rank] = wrong[side];
    }
    oh_crew_barrier(crew);
    if (oh_crew_leads(crew)) { /* the others write again only behind the next barrier */
        add_up(crew, task);
        name_servers(crew, &before, task->served_by, sizeof task->served_by);
        atomic_fetch_add(&shared->rows_done, 1);
    }
    if (task->op == OH_PERF_MULSUM) {
        drop_op(crew);
    }
}
