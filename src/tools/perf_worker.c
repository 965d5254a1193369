/* SPDX-License-Identifier: MIT */
/*
 * perf_worker.c - one rank of `onehop perf`: opens everything, checks and measures each row
 *
 * Both sides run on one communicator and one stream: stock is pncclAllReduce of the real library, onehop is
 * ncclAllReduce of libonehop.so. Their blocks alternate, so that whatever drifts on the machine hits both. Any failure
 * ends the process (oh_perf_fail); a worker frees nothing then, the parent ends the others.
 */
#include "tools/perf.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/driver.h"

struct worker {
    const struct oh_perf_options *options;
    struct oh_perf_shared *shared;
    int rank;

    const struct oh_driver *driver;
    CUdevice device;
    CUstream stream;
    CUevent begin;
    CUevent end;

    __typeof__(ncclGetVersion) *get_version;
    __typeof__(ncclGetUniqueId) *get_unique_id;
    __typeof__(ncclGetErrorString) *error_string;
    __typeof__(ncclCommInitRank) *comm_init_rank; /* onehop's, which forwards */
    __typeof__(ncclCommDestroy) *comm_destroy;    /* the same */
    __typeof__(ncclAllReduce) *all_reduce[OH_PERF_SIDES];
    __typeof__(onehopVersion) *onehop_version;
    __typeof__(onehopCommInfo) *onehop_info;
    __typeof__(onehopAlgorithmName) *algorithm_name;
    ncclComm_t comm;

    CUdeviceptr send;
    CUdeviceptr recv;                /* OH_PERF_GUARD bytes longer */
    const struct oh_perf_type *type; /* what the two patterns below are of */
    char *input;
    char *expected;
    char *got;
    unsigned int checks;
};

/* `calls` allreduces, ready to run any number of times. */
struct job {
    const struct oh_perf_row *row;
    enum oh_perf_side side;
    bool in_place;
    int calls;
    CUgraphExec graph; /* NULL in eager mode */
};

#define FAIL(worker_, ...) oh_perf_fail((worker_)->shared, (worker_)->rank, __VA_ARGS__)

#define CU(worker_, call_)                                                                                             \
    do {                                                                                                               \
        CUresult result_ = (worker_)->driver->call_;                                                                   \
        if (result_ != CUDA_SUCCESS) {                                                                                 \
            FAIL((worker_), "%s: %s", #call_, oh_driver_error_name((worker_)->driver, result_));                       \
        }                                                                                                              \
    } while (0)

#define NCCL(worker_, name_, call_)                                                                                    \
    do {                                                                                                               \
        ncclResult_t result_ = (worker_)->call_;                                                                       \
        if (result_ != ncclSuccess) {                                                                                  \
            FAIL((worker_), "%s: %s", (name_), (worker_)->error_string(result_));                                      \
        }                                                                                                              \
    } while (0)

void oh_perf_fail(struct oh_perf_shared *shared, int rank, const char *format, ...)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&shared->failed, &none, rank + 1)) {
        va_list args;
        va_start(args, format);
        vsnprintf(shared->failure, sizeof shared->failure, format, args);
        va_end(args);
        atomic_store(&shared->failure_written, true);
    }
    _exit(EXIT_FAILURE);
}

/* Waits until every worker is here. Leaves the process when one has failed. */
static void barrier(struct worker *worker)
{
    struct oh_perf_shared *shared = worker->shared;
    unsigned int generation = atomic_load(&shared->generation);
    if (atomic_fetch_add(&shared->arrived, 1) + 1 == (unsigned int)worker->options->ranks) {
        atomic_store(&shared->arrived, 0);
        atomic_store(&shared->generation, generation + 1);
        return;
    }
    for (unsigned int tries = 0; atomic_load(&shared->generation) == generation; tries++) {
        if (atomic_load(&shared->failure_written)) {
            _exit(EXIT_FAILURE);
        }
        if (tries < 10000) {
            sched_yield();
        } else {
            usleep(100); /* a rank is far behind: leave it the CPU */
        }
    }
}

/* --- opening ---------------------------------------------------------------------------------------------------- */

static void open_device(struct worker *worker)
{
    struct oh_perf_rank *self = &worker->shared->rank[worker->rank];
    CUcontext context;
    if (oh_driver_get(&worker->driver) != ncclSuccess) {
        FAIL(worker, "no usable CUDA driver: %s", oh_driver_error());
    }
    CU(worker, device_get(&worker->device, worker->rank));
    CU(worker, device_get_name(self->name, sizeof self->name, worker->device));
    CU(worker, device_get_pci_bus_id(self->bus_id, sizeof self->bus_id, worker->device));
    CU(worker, primary_ctx_retain(&context, worker->device));
    CU(worker, ctx_set_current(context));
    CU(worker, stream_create(&worker->stream, CU_STREAM_NON_BLOCKING));
    CU(worker, event_create(&worker->begin, CU_EVENT_DEFAULT));
    CU(worker, event_create(&worker->end, CU_EVENT_DEFAULT));
    self->pid = getpid();
}

static void *open_library(struct worker *worker, const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        FAIL(worker, "cannot load %s", dlerror());
    }
    return library;
}

/* Sets a function pointer of the worker to what `library` exports under that name. */
static void look_up(struct worker *worker, void *library, const char *name, void *pointer_p)
{
    void *address = dlsym(library, name);
    if (!address) {
        FAIL(worker, "%s", dlerror());
    }
    memcpy(pointer_p, &address, sizeof address);
}

static void open_libraries(struct worker *worker)
{
    void *nccl = open_library(worker, worker->options->nccl);
    look_up(worker, nccl, "ncclGetVersion", &worker->get_version);
    look_up(worker, nccl, "ncclGetUniqueId", &worker->get_unique_id);
    look_up(worker, nccl, "ncclGetErrorString", &worker->error_string);
    look_up(worker, nccl, "pncclAllReduce", &worker->all_reduce[OH_PERF_STOCK]);

    void *onehop = open_library(worker, worker->options->onehop);
    look_up(worker, onehop, "ncclCommInitRank", &worker->comm_init_rank);
    look_up(worker, onehop, "ncclCommDestroy", &worker->comm_destroy);
    look_up(worker, onehop, "ncclAllReduce", &worker->all_reduce[OH_PERF_ONEHOP]);
    look_up(worker, onehop, "onehopVersion", &worker->onehop_version);
    look_up(worker, onehop, "onehopCommInfo", &worker->onehop_info);
    look_up(worker, onehop, "onehopAlgorithmName", &worker->algorithm_name);
}

static void open_communicator(struct worker *worker)
{
    struct oh_perf_shared *shared = worker->shared;
    if (worker->rank == 0) {
        NCCL(worker, "ncclGetUniqueId", get_unique_id(&shared->id));
    }
    barrier(worker);
    NCCL(worker, "ncclCommInitRank", comm_init_rank(&worker->comm, worker->options->ranks, shared->id, worker->rank));
    if (worker->rank == 0) {
        NCCL(worker, "ncclGetVersion", get_version(&shared->nccl_version));
        shared->onehop_version = worker->onehop_version();
        if (worker->onehop_info(worker->comm, &shared->info, sizeof shared->info) != 0) {
            snprintf(shared->info.reason, sizeof shared->info.reason, "the communicator is unknown to onehop");
        }
    }
    barrier(worker);
    if (worker->rank == 0) {
        atomic_store(&shared->ready, true);
    }
}

static void *allocate(struct worker *worker, size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory) {
        FAIL(worker, "no %zu bytes of host memory: %s", bytes, strerror(errno));
    }
    return memory;
}

static void open_buffers(struct worker *worker)
{
    size_t bytes = worker->options->max_bytes;
    size_t slack = OH_PERF_SLACK * sizeof(uint64_t);
    CU(worker, mem_alloc(&worker->send, bytes));
    CU(worker, mem_alloc(&worker->recv, bytes + OH_PERF_GUARD));
    worker->input = allocate(worker, bytes + slack);
    worker->expected = allocate(worker, bytes + slack);
    worker->got = allocate(worker, bytes + OH_PERF_GUARD);
}

static void close_all(struct worker *worker)
{
    CU(worker, stream_synchronize(worker->stream));
    NCCL(worker, "ncclCommDestroy", comm_destroy(worker->comm));
    CU(worker, mem_free(worker->send));
    CU(worker, mem_free(worker->recv));
    CU(worker, event_destroy(worker->begin));
    CU(worker, event_destroy(worker->end));
    CU(worker, stream_destroy(worker->stream));
    CU(worker, primary_ctx_release(worker->device));
    free(worker->input);
    free(worker->expected);
    free(worker->got);
}

/* --- running ---------------------------------------------------------------------------------------------------- */

static void issue(struct worker *worker, const struct job *job, int calls)
{
    CUdeviceptr send = job->in_place ? worker->recv : worker->send;
    for (int i = 0; i < calls; i++) {
        NCCL(worker, "ncclAllReduce",
             all_reduce[job->side]((const void *)send, (void *)worker->recv, job->row->count, job->row->type->nccl,
                                   ncclSum, worker->comm, (void *)worker->stream));
    }
}

static struct job prepare(struct worker *worker, const struct oh_perf_row *row, enum oh_perf_side side, bool in_place,
                          int calls)
{
    struct job job = {row, side, in_place, calls, NULL};
    CUgraph graph;
    if (row->mode == OH_PERF_GRAPH) {
        CU(worker, stream_begin_capture(worker->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        issue(worker, &job, calls);
        CU(worker, stream_end_capture(worker->stream, &graph));
        CU(worker, graph_instantiate(&job.graph, graph, 0));
        CU(worker, graph_destroy(graph));
    }
    return job;
}

static void run(struct worker *worker, const struct job *job)
{
    if (job->graph) {
        CU(worker, graph_launch(job->graph, worker->stream));
    } else {
        issue(worker, job, job->calls);
    }
}

static void discard(struct worker *worker, const struct job *job)
{
    if (job->graph) {
        CU(worker, graph_exec_destroy(job->graph));
    }
}

/* --- checking --------------------------------------------------------------------------------------------------- */

static void fill_patterns(struct worker *worker, const struct oh_perf_type *type)
{
    if (worker->type != type) {
        size_t count = worker->options->max_bytes / type->size + OH_PERF_SLACK;
        oh_perf_fill(type, worker->options->ranks, worker->rank, count, worker->input, worker->expected);
        worker->type = type;
    }
}

/* Fresh inputs, a poisoned result, one run, every element compared. Returns the number that is wrong. */
static uint64_t check_once(struct worker *worker, const struct job *job)
{
    size_t bytes = job->row->count * job->row->type->size;
    size_t shift = (worker->checks++ % OH_PERF_SLACK) * job->row->type->size;
    CUdeviceptr input = job->in_place ? worker->recv : worker->send;
    CU(worker, memset_d8_async(worker->recv, OH_PERF_POISON, bytes + OH_PERF_GUARD, worker->stream));
    CU(worker, memcpy_htod_async(input, worker->input + shift, bytes, worker->stream));
    run(worker, job);
    CU(worker, memcpy_dtoh_async(worker->got, worker->recv, bytes + OH_PERF_GUARD, worker->stream));
    CU(worker, stream_synchronize(worker->stream));
    return oh_perf_wrong(job->row->type, worker->got, worker->expected + shift, job->row->count);
}

/* Out of place and in place; a graph is replayed with other inputs. */
static uint64_t check(struct worker *worker, const struct oh_perf_row *row, enum oh_perf_side side)
{
    uint64_t wrong = 0;
    for (int in_place = 0; in_place <= 1; in_place++) {
        const struct job job = prepare(worker, row, side, in_place, 1);
        wrong += check_once(worker, &job);
        if (row->mode == OH_PERF_GRAPH) {
            wrong += check_once(worker, &job);
        }
        discard(worker, &job);
    }
    return wrong;
}

/* --- measuring -------------------------------------------------------------------------------------------------- */

/* Microseconds of one call. What runs before the first event brings the ranks together and hides the launch. */
static double time_block(struct worker *worker, const struct job *job)
{
    float ms;
    barrier(worker);
    if (job->graph) {
        run(worker, job);
    } else {
        issue(worker, job, 1);
    }
    CU(worker, event_record(worker->begin, worker->stream));
    run(worker, job);
    CU(worker, event_record(worker->end, worker->stream));
    CU(worker, event_synchronize(worker->end));
    CU(worker, event_elapsed_time(&ms, worker->begin, worker->end));
    return (double)ms * 1000.0 / job->calls;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over the rounds of the slowest rank's time. */
static double summarise(const struct worker *worker, enum oh_perf_side side)
{
    int rounds = worker->options->rounds;
    double slowest[OH_PERF_ROUNDS] = {0};
    for (int round = 0; round < rounds; round++) {
        for (int rank = 0; rank < worker->options->ranks; rank++) {
            double us = worker->shared->us[round][side][rank];
            slowest[round] = us > slowest[round] ? us : slowest[round];
        }
    }
    qsort(slowest, (size_t)rounds, sizeof *slowest, compare_doubles);
    return (slowest[(rounds - 1) / 2] + slowest[rounds / 2]) / 2;
}

/* What ran onehop's calls: the names of all counters that moved, "nccl" for those handed back. */
static void name_servers(struct worker *worker, const onehop_comm_info_t *before, char *text_p, size_t size)
{
    onehop_comm_info_t now = *before;
    size_t length = 0;
    worker->onehop_info(worker->comm, &now, sizeof now);
    text_p[0] = '\0';
    for (int i = 0; i < ONEHOP_ALGORITHMS; i++) {
        if (now.calls[i] != before->calls[i] && length < size) {
            length +=
                (size_t)snprintf(text_p + length, size - length, "%s%s", length ? "+" : "", worker->algorithm_name(i));
        }
    }
    if ((length == 0 || now.handed_back != before->handed_back) && length < size) {
        snprintf(text_p + length, size - length, "%snccl", length ? "+" : "");
    }
}

/* Eager calls of the row's shape, so that whatever is made at first use exists before anything is captured. */
static void warm_up(struct worker *worker, const struct oh_perf_row *row)
{
    size_t bytes = row->count * row->type->size;
    CU(worker, memset_d8_async(worker->send, 0, bytes, worker->stream));
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        const struct job job = {.row = row, .side = side};
        issue(worker, &job, worker->options->warmup);
    }
    CU(worker, stream_synchronize(worker->stream));
}

/* Times both sides in turns, all rounds. */
static void time_row(struct worker *worker, const struct oh_perf_row *row)
{
    const struct oh_perf_options *options = worker->options;
    struct job job[OH_PERF_SIDES];
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        job[side] = prepare(worker, row, side, options->in_place, options->iters);
    }
    if (options->in_place) { /* sums of sums would overflow; zeros stay zeros */
        CU(worker, memset_d8_async(worker->recv, 0, row->count * row->type->size, worker->stream));
        CU(worker, stream_synchronize(worker->stream));
    }
    for (int round = 0; round < options->rounds; round++) {
        for (int side = 0; side < OH_PERF_SIDES; side++) {
            worker->shared->us[round][side][worker->rank] = time_block(worker, &job[side]);
        }
    }
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        discard(worker, &job[side]);
    }
}

static void measure(struct worker *worker, struct oh_perf_row *row)
{
    struct oh_perf_shared *shared = worker->shared;
    onehop_comm_info_t before = {0};
    uint64_t wrong[OH_PERF_SIDES];

    fill_patterns(worker, row->type);
    warm_up(worker, row);
    worker->onehop_info(worker->comm, &before, sizeof before);
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        wrong[side] = check(worker, row, side);
    }
    time_row(worker, row);
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        shared->wrong[side][worker->rank] = wrong[side];
    }
    barrier(worker);
    if (worker->rank == 0) { /* the others write again only behind the next barrier */
        for (int side = 0; side < OH_PERF_SIDES; side++) {
            row->us[side] = summarise(worker, side);
            for (int rank = 0; rank < worker->options->ranks; rank++) {
                row->wrong[side] += shared->wrong[side][rank];
            }
        }
        name_servers(worker, &before, row->served_by, sizeof row->served_by);
        atomic_fetch_add(&shared->rows_done, 1);
    }
}

int oh_perf_work(const struct oh_perf_options *options, struct oh_perf_shared *shared, int rank)
{
    struct worker worker = {.options = options, .shared = shared, .rank = rank};
    open_device(&worker);
    open_libraries(&worker);
    open_communicator(&worker);
    open_buffers(&worker);
    for (size_t i = 0; i < shared->rows; i++) {
        measure(&worker, &shared->row[i]);
    }
    barrier(&worker);
    close_all(&worker);
    return EXIT_SUCCESS;
}
