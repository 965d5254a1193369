/* SPDX-License-Identifier: MIT */
/* graph_lane.c - streams with buffers of their own, on which the same chain of calls is made */
#define CHECK_WHO "graph_lane.c, "
#include "test/gpu/graph_mixing.h"

#include <dlfcn.h>

struct driver cu;
struct library nccl;

static void *look_up(void *library, const char *symbol)
{
    void *address = dlsym(library, symbol);
    CHECK(address, "no %s", symbol);
    return address;
}

/* NCCL's functions from the global scope: a preloaded library comes first there, as for a program linked with NCCL. */
void open_libraries(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *address;
    CHECK(driver, "%s", dlerror());
    CHECK(dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL), "%s", dlerror());
#define DRIVER_LOOK_UP(field_, symbol_, parameters_)                                                                   \
    address = look_up(driver, #symbol_);                                                                               \
    memcpy(&cu.field_, &address, sizeof address);
#define LIBRARY_LOOK_UP(field_, symbol_, parameters_)                                                                  \
    address = look_up(RTLD_DEFAULT, #symbol_);                                                                         \
    memcpy(&nccl.field_, &address, sizeof address);
    DRIVER(DRIVER_LOOK_UP)
    LIBRARY(LIBRARY_LOOK_UP)
}

uint32_t draw(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(*state >> 4) * below >> 28);
}

float input_value(uint32_t input, size_t i)
{
    return (float)((input + i) % PATTERN);
}

void lane_open(struct lane *lane, CUstream stream)
{
    size_t bytes = COUNT * sizeof(float);
    lane->stream = stream;
    CU(alloc(&lane->in, bytes));
    for (int c = 0; c < CALLS; c++) {
        CU(alloc(&lane->out[c], bytes));
    }
    CU(host_alloc((void **)&lane->upload, RING * bytes, 0));
    CU(host_alloc((void **)&lane->download, RING * bytes, 0));
}

void lane_close(struct lane *lane)
{
    CU(free(lane->in));
    for (int c = 0; c < CALLS; c++) {
        CU(free(lane->out[c]));
    }
    CU(host_free(lane->upload));
    CU(host_free(lane->download));
    if (lane->stream != CU_STREAM_PER_THREAD) {
        CU(stream_destroy(lane->stream));
    }
}

/* One call of the chain, on any stream. */
void call(const struct rank *rank, const struct lane *lane, int c, CUstream stream)
{
    CUdeviceptr from = c == 0 ? lane->in : lane->out[c - 1];
    NCCL(all_reduce((const void *)from, (void *)lane->out[c], COUNT, ncclFloat, ncclSum, rank->comm,
                    (cudaStream_t)stream));
}

void call_chain(const struct rank *rank, const struct lane *lane)
{
    for (int c = 0; c < CALLS; c++) {
        call(rank, lane, c, lane->stream);
    }
}

/* Waits for the lane and compares what has come back. */
void lane_flush(const struct rank *rank, struct lane *lane, const char *name)
{
    float scale = (float)(options.ranks * (options.ranks + 1) / 2);
    for (int c = 1; c < CALLS; c++) {
        scale *= (float)options.ranks;
    }
    CU(synchronize(lane->stream));
    for (int r = 0; r < lane->filled; r++) {
        for (size_t i = 0; i < COUNT; i++) {
            float got = lane->download[(size_t)r * COUNT + i], expected = scale * input_value(lane->input[r], i);
            CHECK(got == expected, "rank %d lane %s round %d element %zu is %g, expected %g", rank->rank, name, r, i,
                  (double)got, (double)expected);
        }
    }
    lane->filled = 0;
}

static const char *const lane_names[LANES] = {"first graph", "second graph", "eager"};

void flush_all(struct rank *rank)
{
    for (int l = 0; l < LANES; l++) {
        lane_flush(rank, &rank->lane[l], lane_names[l]);
    }
}

/* A round of a lane: new input, the calls, the result on its way back. Nothing waits. */
void lane_round(struct rank *rank, struct lane *lane)
{
    size_t at = (size_t)lane->filled * COUNT, bytes = COUNT * sizeof(float);
    uint32_t input = draw(&rank->common, PATTERN);
    if (options.delay_us > 0) {
        usleep(draw(&rank->own, options.delay_us));
    }
    for (size_t i = 0; i < COUNT; i++) {
        lane->upload[at + i] = (float)(rank->rank + 1) * input_value(input, i);
    }
    lane->input[lane->filled++] = input;
    CU(upload(lane->in, &lane->upload[at], bytes, lane->stream));
    if (lane->exec) {
        CU(graph_launch(lane->exec, lane->stream));
    } else {
        call_chain(rank, lane);
    }
    CU(download(&lane->download[at], lane->out[CALLS - 1], bytes, lane->stream));
}

/* Rounds on lanes in a random order, the same on all ranks. */
void mix(struct rank *rank, int rounds)
{
    for (int r = 0; r < rounds; r++) {
        struct lane *lane = &rank->lane[draw(&rank->common, LANES)];
        lane_round(rank, lane);
        if (lane->filled == RING) {
            flush_all(rank);
        }
    }
    flush_all(rank);
}
