/* SPDX-License-Identifier: MIT */
/*
 * bench_virtual.c - how long the kernels of two ranks take on one GPU, by size
 *
 *   bench_virtual [REPLAYS]
 *
 * For comparing two builds where there is one GPU: run both in turns. Time on the wire is missing, so what a kernel
 * does besides weighs more here than between GPUs. Each rank is a staging memory and a stream of this process; a trial
 * is a graph of calls on each, out of place (free), in place (chain) or between two kernels of a program (layer), whose
 * time by themselves is subtracted. order: as layer, with edges from the program's kernels that let the next kernel
 * begin when all blocks of the program's have begun (CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER). bf16, sum; the median of
 * the replays, in microseconds a call. Results are checked where each kernel needs what the one before has written.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/core/staging.h"
#include "gpu/kernels.h"

#define RANKS 2
#define CALLS 50
#define EDGES 200 /* of a graph, at most */
#define WARM_UP 10
#define MOST_REPLAYS 1000
#define MOST_BYTES ((size_t)4 << 20)
#define MOST_BLOCKS 32 /* both ranks' grids are resident together */
#define MOST_THREADS 512

enum pattern {
    FREE,
    CHAIN,
    LAYER,
    ORDER,
    BARE, /* the program's kernels alone */
    PATTERNS
};

extern const unsigned char oh_image_floor[];

/* Of drivers for CUDA 12.3 and later. */
static CUresult (*graph_edges)(CUgraph, CUgraphNode *, CUgraphNode *, CUgraphEdgeData *, size_t *);
static CUresult (*add_edges)(CUgraph, const CUgraphNode *, const CUgraphNode *, const CUgraphEdgeData *, size_t);
static CUresult (*remove_edges)(CUgraph, const CUgraphNode *, const CUgraphNode *, const CUgraphEdgeData *, size_t);
static CUfunction program;

static void must(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "bench_virtual: %s: %s\n", what, oh_driver_error_name(result));
        exit(EXIT_FAILURE);
    }
}
#define CU(call_) must(oh_driver.call_, #call_)

struct rank {
    struct oh_staging staging;
    CUstream stream;
    CUdeviceptr send, recv;
    CUgraphExec exec;
    CUevent begin, end;
};

static const struct oh_kernel_set *set;
static struct rank ranks[RANKS];

static void check(ncclResult_t result, const char *what)
{
    if (result != ncclSuccess) {
        fprintf(stderr, "bench_virtual: %s: %s\n", what, oh_driver_error());
        exit(EXIT_FAILURE);
    }
}

static void open_ranks(void)
{
    CUdevice device;
    CUcontext context;
    check(oh_driver_open(), "no driver");
    CU(device_get(&device, 0));
    CU(primary_ctx_retain(&context, device));
    CU(ctx_set_current(context));
    must(oh_kernel_set_get(device, RANKS, &set), "no kernels");
    for (int r = 0; r < RANKS; r++) {
        struct rank *rank = &ranks[r];
        must(oh_staging_bind(device, context, &rank->staging), "no context");
        must(oh_staging_create(&rank->staging), "no staging memory");
        must(oh_staging_finish(&rank->staging, 1), "no staging memory");
        CU(stream_create(&rank->stream, CU_STREAM_NON_BLOCKING));
        CU(mem_alloc(&rank->send, MOST_BYTES));
        CU(mem_alloc(&rank->recv, MOST_BYTES));
        CU(memset_d32_async(rank->send, 0, MOST_BYTES / 4, rank->stream));
        CU(memset_d32_async(rank->recv, 0, MOST_BYTES / 4, rank->stream));
        CU(stream_synchronize(rank->stream));
        CU(event_create(&rank->begin, 0));
        CU(event_create(&rank->end, 0));
    }
}

static struct oh_plan plan_of(enum onehop_algorithm algorithm, size_t bytes)
{
    const size_t words = bytes / OH_WORD_BYTES, threads = words < MOST_THREADS ? words : MOST_THREADS;
    const size_t blocks = (words + threads - 1) / threads;
    return (struct oh_plan){.algorithm = algorithm,
                            .blocks = (uint32_t)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS),
                            .threads = (uint32_t)threads};
}

static void open_program(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    CUlibrary library;
    CUkernel kernel;
    *(void **)&graph_edges = dlsym(cuda, "cuGraphGetEdges_v2");
    *(void **)&add_edges = dlsym(cuda, "cuGraphAddDependencies_v2");
    *(void **)&remove_edges = dlsym(cuda, "cuGraphRemoveDependencies_v2");
    CU(library_load_data(&library, oh_image_floor, NULL, NULL, 0, NULL, NULL, 0));
    CU(library_get_kernel(&kernel, library, "oh_program_copy"));
    CU(kernel_get_function(&program, kernel));
}

static void launch_program(const struct rank *rank, size_t bytes)
{
    const struct oh_kernel_args args = {
        .sendbuff = (const void *)(uintptr_t)rank->recv, .recvbuff = (void *)(uintptr_t)rank->send, .count = bytes};
    void *parameter = (void *)&args;
    const size_t blocks = (bytes + (1 << 14) - 1) >> 14;
    const CUlaunchConfig config =
        oh_launch_config(blocks < MOST_BLOCKS ? (unsigned)blocks : MOST_BLOCKS, 256, rank->stream);
    CU(launch_kernel_ex(&config, program, &parameter, NULL));
}

/* The programmatic edges from the program's kernels get the other port. */
static void change_ports(CUgraph graph)
{
    CUgraphNode from[EDGES], to[EDGES];
    CUgraphEdgeData data[EDGES];
    size_t count = EDGES, changed = 0;
    must(graph_edges(graph, from, to, data, &count), "the edges");
    for (size_t i = 0; i < count; i++) {
        CUDA_KERNEL_NODE_PARAMS params;
        CU(graph_kernel_node_get_params(from[i], &params));
        if (params.func == program && data[i].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC) {
            must(remove_edges(graph, &from[i], &to[i], &data[i], 1), "removing an edge");
            data[i].from_port = CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER;
            must(add_edges(graph, &from[i], &to[i], &data[i], 1), "adding an edge");
            changed++;
        }
    }
    if (changed != CALLS - 1) {
        fprintf(stderr, "bench_virtual: %zu edges from the program's kernels are programmatic, not %d\n", changed,
                CALLS - 1);
    }
}

static void capture(int r, const struct oh_plan *plan, size_t bytes, enum pattern pattern)
{
    const bool in_place = pattern == CHAIN;
    struct rank *rank = &ranks[r];
    struct oh_op op;
    CUgraph graph;
    oh_op_builtin(ncclSum, ncclBfloat16, &op);
    const struct oh_launch launch = {set, plan, &op, ncclBfloat16, rank->stream, false};
    struct oh_control *control = (struct oh_control *)(uintptr_t)rank->staging.control_device;
    struct oh_kernel_args args = {.sendbuff = (void *)(uintptr_t)(in_place ? rank->recv : rank->send),
                                  .recvbuff = (void *)(uintptr_t)rank->recv,
                                  .count = bytes / 2,
                                  .abort_flag = &control->abort_flag,
                                  .control = control,
                                  .rank = (uint32_t)r,
                                  .nranks = RANKS};
    for (int j = 0; j < RANKS; j++) {
        args.staging[j] = (char *)(uintptr_t)ranks[(r + j) % RANKS].staging.base;
    }
    CU(stream_begin_capture(rank->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (args.call_number = 1; args.call_number <= CALLS; args.call_number++) {
        if (pattern != BARE) {
            must(oh_kernel_launch(&launch, &args), "launch");
        }
        if (pattern >= LAYER) {
            launch_program(rank, bytes);
        }
    }
    CU(stream_end_capture(rank->stream, &graph));
    if (pattern == ORDER) {
        change_ports(graph);
    }
    CU(graph_instantiate(&rank->exec, graph, 0));
    CU(graph_destroy(graph));
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Microseconds a call, of the rank that is launched last. */
static float replay_once(void)
{
    float ms = 0;
    for (int r = 0; r < RANKS; r++) {
        CU(event_record(ranks[r].begin, ranks[r].stream));
    }
    for (int r = 0; r < RANKS; r++) {
        CU(graph_launch(ranks[r].exec, ranks[r].stream));
        CU(event_record(ranks[r].end, ranks[r].stream));
    }
    for (int r = 0; r < RANKS; r++) {
        CU(stream_synchronize(ranks[r].stream));
    }
    CU(event_elapsed_time(&ms, ranks[RANKS - 1].begin, ranks[RANKS - 1].end));
    return ms * 1000 / CALLS;
}

/*
 * Each call doubles what the program's kernel has copied, which is a power of two times a number of its own for each
 * element: exact, whatever the number of calls. A kernel that reads too early leaves some factors out.
 */
static void check_results(size_t bytes)
{
    const size_t count = bytes / 2;
    uint16_t *values = malloc(bytes);
    bool right = values != NULL;
    for (size_t i = 0; i < count && right; i++) {
        values[i] = (uint16_t)(67u << 7 | i % 128); /* bf16: 2^-60 and more */
    }
    for (int r = 0; r < RANKS && right; r++) {
        CU(memcpy_htod_async(ranks[r].send, values, bytes, ranks[r].stream));
    }
    replay_once();
    for (int r = 0; r < RANKS && right; r++) {
        CU(memcpy_dtoh_async(values, ranks[r].recv, bytes, ranks[r].stream));
        CU(stream_synchronize(ranks[r].stream));
        for (size_t i = 0; i < count; i++) {
            right &= values[i] == (uint16_t)((67u + CALLS) << 7 | i % 128);
        }
        CU(memset_d32_async(ranks[r].send, 0, bytes / 4, ranks[r].stream));
        CU(memset_d32_async(ranks[r].recv, 0, bytes / 4, ranks[r].stream));
        CU(stream_synchronize(ranks[r].stream));
    }
    free(values);
    if (!right) {
        fprintf(stderr, "bench_virtual: %zu bytes: a result is wrong\n", bytes);
        exit(EXIT_FAILURE);
    }
}

static float measure(enum onehop_algorithm algorithm, size_t bytes, enum pattern pattern, int replays)
{
    static float us[MOST_REPLAYS];
    const struct oh_plan plan = plan_of(algorithm, bytes);
    for (int r = 0; r < RANKS; r++) {
        capture(r, &plan, bytes, pattern);
    }
    if (pattern == LAYER || pattern == ORDER) {
        for (int i = 0; i < 20; i++) {
            check_results(bytes);
        }
    }
    for (int i = -WARM_UP; i < replays; i++) {
        float once = replay_once();
        if (i >= 0) {
            us[i] = once;
        }
    }
    for (int r = 0; r < RANKS; r++) {
        CU(graph_exec_destroy(ranks[r].exec));
    }
    qsort(us, (size_t)replays, sizeof *us, compare);
    return us[replays / 2];
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20};
    const int replays = argc > 1 ? atoi(argv[1]) : 101;
    if (replays < 1 || replays > MOST_REPLAYS) {
        fprintf(stderr, "bench_virtual: %s replays: expected 1 to %d\n", argv[1], MOST_REPLAYS);
        return EXIT_FAILURE;
    }
    open_ranks();
    open_program();
    printf("algorithm    bytes     free    chain    layer    order\n");
    for (int a = 0; a < ONEHOP_ALGORITHM_COUNT; a++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            if (sizes[s] / OH_WORD_BYTES <= oh_plan_kernel_words((enum onehop_algorithm)a, RANKS)) {
                float us[PATTERNS];
                for (int p = 0; p < PATTERNS; p++) {
                    us[p] = p != ORDER || add_edges ? measure((enum onehop_algorithm)a, sizes[s], p, replays) : 0;
                }
                printf("%-9s %8zu %8.3f %8.3f %8.3f %8.3f\n", oh_algorithm_name(a), sizes[s], (double)us[FREE],
                       (double)us[CHAIN], (double)(us[LAYER] - us[BARE]), (double)(us[ORDER] - us[BARE]));
            }
        }
    }
    return EXIT_SUCCESS;
}
