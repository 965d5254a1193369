/* SPDX-License-Identifier: MIT */
/* graph_rows.c - captured calls that follow one another, and depend on one another or do not */
#define CHECK_WHO "graph_rows.c, "
#include "test/gpu/graph_mixing.h"

/* Waits until all ranks have come here as often. Where ranks are threads, a call that allocates may wait for the
 * kernels of all GPUs, and those for the rank that makes it: so no rank launches before all have made such calls. */
static void meet(const struct rank *rank)
{
    int came = atomic_fetch_add(&rank->board->met, 1) + 1;
    while (atomic_load(&rank->board->met) < (came + options.ranks - 1) / options.ranks * options.ranks) {
        usleep(50);
    }
}

#define POOL 5
#define POOL_COUNT (size_t) options.floats
#define ROW 24 /* calls of a graph */
#define ADDRESSES 3
#define MOST_EDGES 50 * ROW /* large calls go in parts */

/* A call from one buffer of the pool to another, or in place. */
struct row_call {
    int from, to;
    size_t send, recv, count;
};

/* Sums in a buffer stay whole numbers that fp32 has, after so many sums one on another. */
static int most_sums(void)
{
    int sums = 0;
    for (double value = 4.0 * options.ranks; value < 1 << 24; value *= options.ranks) {
        sums++;
    }
    return sums;
}

/* Each call reads what the one before has written, or an earlier one, in whole, in part or not at all. */
static void draw_row(uint32_t *state, struct row_call *row)
{
    int sums[POOL] = {0};
    for (int i = 0; i < ROW; i++) {
        struct row_call *call = &row[i];
        do {
            call->from = i > 0 && draw(state, 3) == 0 ? row[i - 1].to : (int)draw(state, POOL);
        } while (sums[call->from] == most_sums());
        call->to = 1 + (int)draw(state, POOL - 1); /* the first one stays as it is */
        call->count = 1 + draw(state, draw(state, 3) ? 300 : options.floats / 2);
        call->send = draw(state, 4) ? 0 : draw(state, (uint32_t)(POOL_COUNT - call->count));
        call->recv = call->to == call->from ? call->send
                     : draw(state, 4)       ? draw(state, 200)
                                            : draw(state, (uint32_t)(POOL_COUNT - call->count));
        sums[call->to] = sums[call->from] >= sums[call->to] ? sums[call->from] + 1 : sums[call->to];
    }
}

static float *pool_of(float *pools, int rank, int buffer)
{
    return pools + ((size_t)rank * POOL + (size_t)buffer) * POOL_COUNT;
}

/* What the pools of all ranks hold then. */
static void reckon_row(const struct row_call *row, float *pools)
{
    for (int i = 0; i < ROW; i++) {
        for (size_t k = 0; k < row[i].count; k++) {
            float sum = 0;
            for (int r = 0; r < options.ranks; r++) {
                sum += pool_of(pools, r, row[i].from)[row[i].send + k];
            }
            for (int r = 0; r < options.ranks; r++) {
                pool_of(pools, r, row[i].to)[row[i].recv + k] = sum;
            }
        }
    }
}

/* All buffers, at one or more addresses. */
struct pool {
    CUdeviceptr address[ADDRESSES];
    uint32_t addresses;
    size_t bytes; /* from one address to the next */
};

/* Of the kernels behind another: those that run ahead of it, and those that do not. */
struct tally {
    size_t ahead, behind;
};

static const struct oh_kernel_args *arguments_of(CUgraphNode kernel)
{
    CUDA_KERNEL_NODE_PARAMS params;
    CU(kernel_params(kernel, &params));
    return params.kernelParams[0];
}

/* Of a buffer, at whichever of its addresses: which float of the pool it is. */
static size_t place_of(const struct pool *pool, const void *at)
{
    return ((uintptr_t)at - pool->address[0]) % pool->bytes / sizeof(float);
}

static bool reads_result(const struct pool *pool, const struct oh_kernel_args *first, const struct oh_kernel_args *next)
{
    size_t written = place_of(pool, first->recvbuff), read = place_of(pool, next->sendbuff);
    return written < read + next->count && read < written + first->count;
}

/* Nor does any kernel run ahead of another whose result it reads. */
static void tally_row(const struct pool *pool, CUgraph graph, struct tally *tally)
{
    CUgraphNode from[MOST_EDGES], to[MOST_EDGES];
    CUgraphEdgeData data[MOST_EDGES];
    size_t edges = MOST_EDGES;
    CU(graph_edges(graph, from, to, data, &edges));
    for (size_t i = 0; i < edges; i++) {
        if (type_of(from[i]) == CU_GRAPH_NODE_TYPE_KERNEL && type_of(to[i]) == CU_GRAPH_NODE_TYPE_KERNEL) {
            const struct oh_kernel_args *first = arguments_of(from[i]), *next = arguments_of(to[i]);
            CHECK(next->ahead == 0 || !reads_result(pool, first, next), "a kernel runs ahead of what it reads");
            tally->ahead += next->ahead > 0;
            tally->behind += next->ahead == 0;
        }
    }
}

static void open_plain(struct pool *pool, size_t bytes)
{
    *pool = (struct pool){.addresses = 1, .bytes = bytes};
    CU(alloc(&pool->address[0], bytes));
}

/* Two addresses of one handle, and one of a second handle for the same memory. */
static void open_mapped(const struct rank *rank, struct pool *pool, size_t bytes)
{
    const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = rank->rank};
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            .location = location};
    const CUmemAccessDesc access = {location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle made, imported;
    size_t whole;
    int fd;
    CU(granularity(&whole, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    *pool = (struct pool){.addresses = ADDRESSES, .bytes = (bytes + whole - 1) / whole * whole};
    CU(create(&made, pool->bytes, &properties, 0));
    CU(export_handle(&fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CU(import_handle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    CU(reserve(&pool->address[0], ADDRESSES * pool->bytes, 0, 0, 0));
    for (size_t i = 0; i < ADDRESSES; i++) {
        pool->address[i] = pool->address[0] + i * pool->bytes;
        CU(map(pool->address[i], pool->bytes, 0, i < ADDRESSES - 1 ? made : imported, 0));
        CU(set_access(pool->address[i], pool->bytes, &access, 1));
    }
    CU(release(made));
    CU(release(imported));
}

static void close_pool(const struct pool *pool)
{
    if (pool->addresses == 1) {
        CU(free(pool->address[0]));
        return;
    }
    for (uint32_t i = 0; i < pool->addresses; i++) {
        CU(unmap(pool->address[i], pool->bytes));
    }
    CU(unreserve(pool->address[0], ADDRESSES * pool->bytes));
}

/* An element of a buffer, at any of its addresses. */
static CUdeviceptr element(struct rank *rank, const struct pool *pool, int buffer, size_t at)
{
    return pool->address[draw(&rank->own, pool->addresses)] + ((size_t)buffer * POOL_COUNT + at) * sizeof(float);
}

static CUgraphExec capture_row(struct rank *rank, CUstream stream, const struct row_call *row, const struct pool *pool,
                               struct tally *tally)
{
    CUgraph graph;
    CU(begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < ROW; i++) {
        CUdeviceptr from = element(rank, pool, row[i].from, row[i].send);
        CUdeviceptr to = row[i].from == row[i].to ? from : element(rank, pool, row[i].to, row[i].recv);
        NCCL(all_reduce((const void *)from, (void *)to, row[i].count, ncclFloat, ncclSum, rank->comm,
                        (cudaStream_t)stream));
    }
    CU(end_capture(stream, &graph));
    if (options.structure) {
        tally_row(pool, graph, tally);
    }
    return instantiate(graph);
}

static void run_rows(struct rank *rank, const struct pool *pool)
{
    const size_t bytes = POOL * POOL_COUNT * sizeof(float);
    const CUstream stream = rank->lane[0].stream;
    struct row_call row[ROW];
    struct tally tally = {0, 0};
    CUgraphExec exec;
    float *before, *after, *pools = malloc((size_t)options.ranks * bytes);
    CHECK(pools, "no memory");
    CU(host_alloc((void **)&before, bytes, 0));
    CU(host_alloc((void **)&after, bytes, 0));
    for (int r = 0; r < options.ranks; r++) {
        for (size_t i = 0; i < POOL * POOL_COUNT; i++) {
            pool_of(pools, r, 0)[i] = (float)((i * 7 + (size_t)r * 3) % 4);
        }
    }
    memcpy(before, pool_of(pools, rank->rank, 0), bytes);
    float *start = malloc((size_t)options.ranks * bytes);
    CHECK(start, "no memory");
    memcpy(start, pools, (size_t)options.ranks * bytes);
    for (int round = 0; round < 1 + options.rounds / 20; round++) {
        draw_row(&rank->common, row);
        exec = capture_row(rank, stream, row, pool, &tally);
        memcpy(pools, start, (size_t)options.ranks * bytes);
        reckon_row(row, pools);
        meet(rank);
        for (int replay = 0; replay < 2; replay++) {
            CU(upload(pool->address[0], before, bytes, stream));
            CU(graph_launch(exec, stream));
            CU(download(after, pool->address[0], bytes, stream));
            CU(synchronize(stream));
            const float *expected = pool_of(pools, rank->rank, 0);
            for (size_t i = 0; i < POOL * POOL_COUNT; i++) {
                CHECK(after[i] == expected[i], "rank %d row %d replay %d buffer %zu element %zu is %g, expected %g",
                      rank->rank, round, replay, i / POOL_COUNT, i % POOL_COUNT, (double)after[i], (double)expected[i]);
            }
        }
        meet(rank);
        CU(exec_destroy(exec));
    }
    CHECK(!options.structure || tally.ahead > 0, "no kernel runs ahead, of %zu behind another", tally.behind);
    CHECK(!options.structure || tally.behind > 0, "all %zu kernels behind another run ahead", tally.ahead);
    free(start);
    free(pools);
    CU(host_free(after));
    CU(host_free(before));
}

void rows(struct rank *rank)
{
    struct pool pool;
    open_plain(&pool, POOL * POOL_COUNT * sizeof(float));
    run_rows(rank, &pool);
    close_pool(&pool);
}

void mapped(struct rank *rank)
{
    struct pool pool;
    open_mapped(rank, &pool, POOL * POOL_COUNT * sizeof(float));
    run_rows(rank, &pool);
    close_pool(&pool);
}
