/* SPDX-License-Identifier: MIT */
/*
 * bench_shapes.c - how fast each algorithm is in each launch shape, by size: what the tables in src/plan come from
 *
 *   bench_shapes [-g GPUS] [-b MINBYTES] [-e MAXBYTES] [-t TYPE] [-o OP] [-a ALGORITHM] [-k BEST]
 *
 * TYPE: f32, f16, bf16 (the default), f64, e4m3, e5m2, i8, i32, i64; OP: sum (the default), prod, min, max, avg.
 *
 * One process per GPU, no NCCL: a communicator is set up by src/comm under a handle of our own, and its table is
 * replaced for each trial. A trial is a CUDA graph of many calls back to back; slowest rank, median of the replays.
 * Prints for each size and algorithm the best shapes. Results are not checked here (make check and onehop perf do).
 */
#include <getopt.h>
#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/attach/attach.h"
#include "comm/comm_internal.h"

#define REPLAYS 7
#define TIME_LIMIT_S 280
#define SHAPES_MAX 64

struct options {
    int gpus;
    uint64_t min_bytes, max_bytes;
    ncclDataType_t type;
    ncclRedOp_t op;
    int algorithm; /* -1: all */
    int best;
};

struct shared {
    atomic_uint arrived, generation, failed;
    float us[OH_MAX_RANKS];
};

struct worker {
    const struct options *options;
    struct shared *shared;
    int rank;
    const struct oh_driver *driver;
    struct oh_comm *comm;
    CUstream stream;
    CUevent begin, end;
    CUdeviceptr send, recv;
};

struct shape {
    uint32_t blocks, threads;
    float us;
};

static void die(struct worker *worker, const char *what)
{
    fprintf(stderr, "bench_shapes: rank %d: %s\n", worker->rank, what);
    atomic_store(&worker->shared->failed, 1);
    _exit(EXIT_FAILURE);
}

#define CU(worker_, call_)                                                                                             \
    do {                                                                                                               \
        CUresult result_ = (worker_)->driver->call_;                                                                   \
        if (result_ != CUDA_SUCCESS) {                                                                                 \
            fprintf(stderr, "%s: %s\n", #call_, oh_driver_error_name((worker_)->driver, result_));                     \
            die((worker_), "CUDA failed");                                                                             \
        }                                                                                                              \
    } while (0)

static void barrier(struct worker *worker)
{
    struct shared *shared = worker->shared;
    unsigned generation = atomic_load(&shared->generation);
    if (atomic_fetch_add(&shared->arrived, 1) + 1 == (unsigned)worker->options->gpus) {
        atomic_store(&shared->arrived, 0);
        atomic_store(&shared->generation, generation + 1);
        return;
    }
    while (atomic_load(&shared->generation) == generation) {
        if (atomic_load(&shared->failed)) {
            _exit(EXIT_FAILURE);
        }
        sched_yield();
    }
}

static void open_worker(struct worker *worker, const struct oh_key *key)
{
    static char handle; /* stands for an ncclComm_t, which src/comm only compares */
    struct oh_creation creation;
    CUcontext context;
    CUdevice device;

    if (oh_driver_get(&worker->driver) != ncclSuccess) {
        die(worker, oh_driver_error());
    }
    CU(worker, device_get(&device, worker->rank));
    CU(worker, primary_ctx_retain(&context, device));
    CU(worker, ctx_set_current(context));
    oh_creation_begin(&creation, key, &(struct oh_comm_config)OH_COMM_CONFIG_DEFAULT, NULL);
    barrier(worker); /* what NCCL's creation is otherwise: all are counted in */
    worker->comm = oh_creation_register(&creation, (ncclComm_t)(void *)&handle);
    if (worker->comm) {
        oh_comm_created(worker->comm, worker->rank, worker->options->gpus, worker->rank);
        oh_attach_begin(worker->comm, NULL);
        oh_attach_wait(&worker->comm, 1);
    }
    if (!worker->comm || !oh_attach_decide(worker->comm)) {
        die(worker, worker->comm ? worker->comm->attach.reason : "no communicator");
    }
    CU(worker, stream_create(&worker->stream, CU_STREAM_NON_BLOCKING));
    CU(worker, event_create(&worker->begin, CU_EVENT_DEFAULT));
    CU(worker, event_create(&worker->end, CU_EVENT_DEFAULT));
    CU(worker, mem_alloc(&worker->send, worker->options->max_bytes));
    CU(worker, mem_alloc(&worker->recv, worker->options->max_bytes));
    CU(worker, memset_d8_async(worker->send, 0x3c, worker->options->max_bytes, worker->stream));
    CU(worker, stream_synchronize(worker->stream));
}

static CUgraphExec capture(struct worker *worker, const struct oh_call *call, int calls)
{
    CUgraph graph;
    CUgraphExec exec;
    CU(worker, stream_begin_capture(worker->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < calls; i++) {
        if (oh_call_launch(call) != ncclSuccess) {
            die(worker, "launch failed");
        }
    }
    CU(worker, stream_end_capture(worker->stream, &graph));
    CU(worker, graph_instantiate(&exec, graph, 0));
    CU(worker, graph_destroy(graph));
    return exec;
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Microseconds a call: slowest rank of each replay, median of the replays. The same on every rank. */
static float measure(struct worker *worker, const struct oh_call *call, int calls)
{
    float us[REPLAYS] = {0};
    CUgraphExec exec = capture(worker, call, calls);
    for (int i = -1; i < REPLAYS; i++) { /* the first warms up */
        float ms;
        barrier(worker);
        CU(worker, event_record(worker->begin, worker->stream));
        CU(worker, graph_launch(exec, worker->stream));
        CU(worker, event_record(worker->end, worker->stream));
        CU(worker, stream_synchronize(worker->stream));
        CU(worker, event_elapsed_time(&ms, worker->begin, worker->end));
        worker->shared->us[worker->rank] = ms * 1000 / (float)calls;
        barrier(worker);
        for (int r = 0; i >= 0 && r < worker->options->gpus; r++) {
            us[i] = r == 0 || worker->shared->us[r] > us[i] ? worker->shared->us[r] : us[i];
        }
    }
    CU(worker, graph_exec_destroy(exec));
    qsort(us, REPLAYS, sizeof *us, compare_floats);
    return us[REPLAYS / 2];
}

/* Words that the threads of a rank share out among them, in the loop that is longest. */
static uint64_t loop_words(int algorithm, uint64_t bytes, int gpus)
{
    uint64_t words = (bytes + 15) / 16;
    return algorithm == ONEHOP_ONESHOT ? words : words / (uint64_t)gpus + 1;
}

static int compare_shapes(const void *a, const void *b)
{
    return compare_floats(&((const struct shape *)a)->us, &((const struct shape *)b)->us);
}

static void measure_shapes(struct worker *worker, int algorithm, uint64_t bytes)
{
    static const uint32_t blocks[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128};
    static const uint32_t threads[] = {64, 128, 256, 512};
    struct shape shape[SHAPES_MAX];
    int count = 0;
    uint64_t words = loop_words(algorithm, bytes, worker->options->gpus);
    struct oh_call call = {.comm = worker->comm,
                           .sendbuff = (const void *)(uintptr_t)worker->send,
                           .recvbuff = (void *)(uintptr_t)worker->recv,
                           .count = bytes / oh_type_size(worker->options->type),
                           .type = worker->options->type,
                           .stream = worker->stream,
                           .plan.algorithm = (enum onehop_algorithm)algorithm};
    oh_op_builtin(worker->options->op, worker->options->type, &call.op);

    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
            uint64_t all = (uint64_t)blocks[b] * threads[t];
            bool too_many = all >= 2 * words && !(b == 0 && t == 0);
            bool too_few = all * (bytes >= (1 << 20) ? 16 : 4) < words && b + 3 < sizeof blocks / sizeof *blocks;
            if (too_many || too_few) {
                continue;
            }
            call.plan.blocks = blocks[b];
            call.plan.threads = threads[t];
            float us = measure(worker, &call, bytes < (1 << 20) ? 50 : 20);
            shape[count++] = (struct shape){blocks[b], threads[t], us};
        }
    }
    qsort(shape, (size_t)count, sizeof *shape, compare_shapes);
    if (worker->rank == 0) {
        printf("%10" PRIu64 "  %-7s", bytes, oh_algorithm_name(algorithm));
        for (int i = 0; i < count && i < worker->options->best; i++) {
            printf("  %8.2f %3ux%-3u", (double)shape[i].us, shape[i].blocks, shape[i].threads);
        }
        printf("\n");
        fflush(stdout);
    }
}

static int work(struct worker *worker, const struct oh_key *key)
{
    alarm(TIME_LIMIT_S);
    open_worker(worker, key);
    for (uint64_t bytes = worker->options->min_bytes; bytes <= worker->options->max_bytes; bytes *= 2) {
        for (int a = 0; a < ONEHOP_ALGORITHM_COUNT; a++) {
            if (worker->options->algorithm < 0 || worker->options->algorithm == a) {
                measure_shapes(worker, a, bytes);
            }
        }
    }
    barrier(worker);
    oh_comm_retire(worker->comm);
    oh_comms_reclaim();
    return EXIT_SUCCESS;
}

/* Signed integers stand for unsigned ones as well. False: no such name. */
static bool parse_type(const char *name, ncclDataType_t *type_p)
{
    for (int type = OH_NCCL_TYPES - 1; type >= 0; type--) {
        if (strcmp(name, oh_kernel_type_name(oh_type_kernel((ncclDataType_t)type))) == 0) {
            *type_p = (ncclDataType_t)type;
            return true;
        }
    }
    return false;
}

static bool parse_op(const char *name, ncclRedOp_t *op_p)
{
    static const char *const names[] = {"sum", "prod", "max", "min", "avg"};
    for (int op = 0; op < 5; op++) {
        if (strcmp(name, names[op]) == 0) {
            *op_p = (ncclRedOp_t)op;
            return true;
        }
    }
    return false;
}

static bool parse(int argc, char **argv, struct options *options)
{
    int option;
    bool right = true;
    while (right && (option = getopt(argc, argv, "g:b:e:t:o:a:k:")) != -1) {
        switch (option) {
        case 'g':
            options->gpus = atoi(optarg);
            break;
        case 'b':
            options->min_bytes = strtoull(optarg, NULL, 10);
            break;
        case 'e':
            options->max_bytes = strtoull(optarg, NULL, 10);
            break;
        case 't':
            right = parse_type(optarg, &options->type);
            break;
        case 'o':
            right = parse_op(optarg, &options->op);
            break;
        case 'a':
            options->algorithm = oh_algorithm_by_name(optarg);
            right = options->algorithm >= 0;
            break;
        case 'k':
            options->best = atoi(optarg);
            break;
        default:
            right = false;
        }
    }
    return right && options->gpus >= 2 && options->gpus <= OH_MAX_RANKS && options->min_bytes >= 8 &&
           options->max_bytes >= options->min_bytes;
}

int main(int argc, char **argv)
{
    struct options options = {
        .gpus = 2, .min_bytes = 1024, .max_bytes = 16 << 20, .type = ncclBfloat16, .algorithm = -1, .best = 4};
    if (!parse(argc, argv, &options)) {
        fprintf(stderr,
                "usage: bench_shapes [-g GPUS] [-b BYTES] [-e BYTES] [-t TYPE] [-o OP] [-a ALGORITHM] [-k BEST]\n");
        return 2;
    }
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        return EXIT_FAILURE;
    }
    struct oh_key key = oh_key_random();
    printf("# %d GPUs, us a call in a CUDA graph: the %d best shapes (blocks x threads)\n", options.gpus, options.best);
    fflush(stdout);
    for (int r = 0; r < options.gpus; r++) {
        if (fork() == 0) {
            struct worker worker = {.options = &options, .shared = shared, .rank = r};
            _exit(work(&worker, &key));
        }
    }
    int status, failed = 0;
    while (wait(&status) > 0) {
        failed |= status != 0;
        if (status != 0) {
            atomic_store(&shared->failed, 1);
        }
    }
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
