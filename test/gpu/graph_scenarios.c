/* SPDX-License-Identifier: MIT */
/* graph_scenarios.c - lanes, and in which ways graphs and eager calls on them are made and mixed */
#include "test/gpu/graph_mixing.h"

#include <unistd.h>

#define PATTERN 61 /* values of the input */
#define BYTES (COUNT * sizeof(float))

/* Of the created streams; the second graph lives on the per-thread default stream. */
enum {
    SIDE = 2,
    BRANCH
};
static const int lane_streams[LANES] = {0, CF_PER_THREAD_STREAM, 1};
static const char *const lane_names[LANES] = {"first graph", "second graph", "eager"};

/* --- lanes -------------------------------------------------------------------------------------------------------- */

static void open_lane(struct cf_worker *worker, struct lane *lane, int stream)
{
    *lane = (struct lane){.stream = stream};
    CF_CU(worker, MemAlloc(&lane->in, BYTES));
    for (int c = 0; c < CALLS; c++) {
        CF_CU(worker, MemAlloc(&lane->out[c], BYTES));
    }
    CF_CU(worker, MemHostAlloc((void **)&lane->upload, RING * BYTES, 0));
    CF_CU(worker, MemHostAlloc((void **)&lane->download, RING * BYTES, 0));
}

static void close_lane(struct cf_worker *worker, struct lane *lane)
{
    CF_CU(worker, MemFree(lane->in));
    for (int c = 0; c < CALLS; c++) {
        CF_CU(worker, MemFree(lane->out[c]));
    }
    CF_CU(worker, MemFreeHost(lane->upload));
    CF_CU(worker, MemFreeHost(lane->download));
}

void open_lanes(struct rank *rank)
{
    for (int l = 0; l < LANES; l++) {
        open_lane(rank->worker, &rank->lane[l], lane_streams[l]);
    }
}

void close_lanes(struct rank *rank)
{
    for (int l = 0; l < LANES; l++) {
        close_lane(rank->worker, &rank->lane[l]);
    }
}

/* One call of the chain, on any stream. */
static void call(const struct rank *rank, const struct lane *lane, int c, int stream)
{
    reduce(rank, c == 0 ? lane->in : lane->out[c - 1], lane->out[c], COUNT, stream);
}

static void call_chain(const struct rank *rank, const struct lane *lane)
{
    for (int c = 0; c < CALLS; c++) {
        call(rank, lane, c, lane->stream);
    }
}

/* The input of a round at an element, times (rank + 1). */
static float input_value(uint32_t input, size_t i)
{
    return (float)((input + i) % PATTERN);
}

/* New input for a round, on its way. */
static void send_input(struct rank *rank, struct lane *from, struct lane *lane)
{
    float *upload = &lane->upload[(size_t)lane->filled * COUNT];
    uint32_t input = (uint32_t)cf_draw(&rank->common, PATTERN);
    for (size_t i = 0; i < COUNT; i++) {
        upload[i] = (float)(rank->worker->index + 1) * input_value(input, i);
    }
    lane->input[lane->filled] = input;
    CF_CU(rank->worker, MemcpyHtoDAsync(from->in, upload, BYTES, stream_of(rank, from->stream)));
}

/* The result of a round, on its way back. */
static void fetch_result(const struct rank *rank, const struct lane *from, struct lane *lane)
{
    float *download = &lane->download[(size_t)lane->filled++ * COUNT];
    CF_CU(rank->worker, MemcpyDtoHAsync(download, from->out[CALLS - 1], BYTES, stream_of(rank, lane->stream)));
}

/* Waits for the lane and compares what has come back. */
static void flush_lane(const struct rank *rank, struct lane *lane, const char *name)
{
    int ranks = rank->worker->nranks;
    float scale = (float)(ranks * (ranks + 1) / 2);
    for (int c = 1; c < CALLS; c++) {
        scale *= (float)ranks;
    }
    CF_CU(rank->worker, StreamSynchronize(stream_of(rank, lane->stream)));
    for (int r = 0; r < lane->filled; r++) {
        for (size_t i = 0; i < COUNT; i++) {
            float got = lane->download[(size_t)r * COUNT + i], expected = scale * input_value(lane->input[r], i);
            cf_check(rank->worker, got == expected, "lane %s round %d element %zu is %g, expected %g", name, r, i,
                     (double)got, (double)expected);
        }
    }
    lane->filled = 0;
}

static void flush_all(struct rank *rank)
{
    for (int l = 0; l < LANES; l++) {
        flush_lane(rank, &rank->lane[l], lane_names[l]);
    }
}

/* A round of a lane: new input, the calls, the result on its way back. Nothing waits. */
static void run_round(struct rank *rank, struct lane *lane)
{
    if (options.delay_us > 0) {
        usleep((useconds_t)cf_draw(&rank->own, (uint64_t)options.delay_us));
    }
    send_input(rank, lane, lane);
    if (lane->exec != NULL) {
        CF_CU(rank->worker, GraphLaunch(lane->exec, stream_of(rank, lane->stream)));
    } else {
        call_chain(rank, lane);
    }
    fetch_result(rank, lane, lane);
}

/* Rounds on lanes in a random order, the same on all ranks. */
static void mix(struct rank *rank, int rounds)
{
    for (int r = 0; r < rounds; r++) {
        struct lane *lane = &rank->lane[cf_draw(&rank->common, LANES)];
        run_round(rank, lane);
        if (lane->filled == RING) {
            flush_all(rank);
        }
    }
    flush_all(rank);
}

/* --- graphs of lanes ---------------------------------------------------------------------------------------------- */

/* Of a capture of the lane's chain and nothing else. */
static CUgraph end_chain(const struct rank *rank, const struct lane *lane)
{
    CUgraph graph = end_capture(rank, lane->stream);
    if (options.structure) {
        check_structure(rank->worker, graph, CALLS);
    }
    return graph;
}

static CUgraph capture(const struct rank *rank, const struct lane *lane, CUstreamCaptureMode mode)
{
    begin_capture(rank, lane->stream, mode);
    call_chain(rank, lane);
    return end_chain(rank, lane);
}

/* The first two lanes as graphs. */
static void capture_both(struct rank *rank, CUstreamCaptureMode mode)
{
    for (int l = 0; l < 2; l++) {
        rank->lane[l].exec = instantiate(rank, capture(rank, &rank->lane[l], mode));
    }
}

/* And as none. */
static void destroy_both(struct rank *rank)
{
    for (int l = 0; l < 2; l++) {
        CF_CU(rank->worker, GraphExecDestroy(rank->lane[l].exec));
        rank->lane[l].exec = NULL;
    }
}

/* Rounds of graphs that have been made, and their end. */
static void mix_and_destroy(struct rank *rank)
{
    mix(rank, options.rounds);
    destroy_both(rank);
}

/* --- scenarios ---------------------------------------------------------------------------------------------------- */

static void modes(struct rank *rank)
{
    static const CUstreamCaptureMode all[] = {CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                              CU_STREAM_CAPTURE_MODE_GLOBAL};
    for (int m = 0; m < (options.threads ? 2 : 3); m++) {
        capture_both(rank, all[m]);
        mix_and_destroy(rank);
        mix(rank, 2 * RING); /* eager again, on all lanes */
    }
}

/* Two captures at the same time, call by call. */
static void turns(struct rank *rank)
{
    struct lane *lane = rank->lane;
    begin_capture(rank, lane[0].stream, usual_mode());
    begin_capture(rank, lane[1].stream, usual_mode());
    for (int c = 0; c < CALLS; c++) {
        call(rank, &lane[0], c, lane[0].stream);
        call(rank, &lane[1], c, lane[1].stream);
    }
    lane[0].exec = instantiate(rank, end_chain(rank, &lane[0]));
    lane[1].exec = instantiate(rank, end_chain(rank, &lane[1]));
    mix_and_destroy(rank);
}

/* A graph captured again takes the place of the one in use, while that may still run. */
static void update(struct rank *rank)
{
    capture_both(rank, usual_mode());
    for (int i = 0; i < 4; i++) {
        CUgraphExecUpdateResultInfo info;
        struct lane *lane = &rank->lane[i % 2];
        mix(rank, options.rounds / 4);
        run_round(rank, lane);
        CUgraph graph = capture(rank, lane, usual_mode());
        CF_CU(rank->worker, GraphExecUpdate(lane->exec, graph, &info));
        CF_CU(rank->worker, GraphDestroy(graph));
    }
    mix(rank, options.rounds / 4);
    destroy_both(rank);
}

/* The lane's chain as the child of a graph, behind a clone of itself. */
static void children(struct rank *rank)
{
    for (int l = 0; l < 2; l++) {
        CUgraph parent, graph = capture(rank, &rank->lane[l], usual_mode()), clone;
        CUgraphNode first, second;
        CF_CU(rank->worker, GraphClone(&clone, graph));
        CF_CU(rank->worker, GraphCreate(&parent, 0));
        CF_CU(rank->worker, GraphAddChildGraphNode(&first, parent, NULL, 0, clone));
        CF_CU(rank->worker, GraphAddChildGraphNode(&second, parent, &first, 1, graph));
        CF_CU(rank->worker, GraphDestroy(graph));
        CF_CU(rank->worker, GraphDestroy(clone));
        rank->lane[l].exec = instantiate(rank, parent);
    }
    mix_and_destroy(rank);
}

/* Captures on two streams: the first graph's calls change stream; others on a branch that nothing orders with them. */
static void branches(struct rank *rank)
{
    struct lane *lane = &rank->lane[0], spare;
    open_lane(rank->worker, &spare, BRANCH);
    begin_capture(rank, lane->stream, usual_mode());
    cf_join(rank->worker, lane->stream, BRANCH);
    call(rank, lane, 0, lane->stream);
    call(rank, &spare, 0, BRANCH);
    cf_join(rank->worker, lane->stream, SIDE);
    call(rank, lane, 1, SIDE);
    call(rank, &spare, 1, BRANCH);
    CF_NCCL(rank->worker, GroupStart());
    call(rank, lane, 2, SIDE);
    CF_NCCL(rank->worker, GroupEnd());
    call(rank, &spare, 2, BRANCH);
    cf_join(rank->worker, BRANCH, lane->stream);
    cf_join(rank->worker, SIDE, lane->stream);
    lane->exec = instantiate(rank, end_capture(rank, lane->stream));
    rank->lane[1].exec = instantiate(rank, capture(rank, &rank->lane[1], usual_mode()));
    mix_and_destroy(rank);
    close_lane(rank->worker, &spare);
}

/* Work between calls. */
static void set_memory(const struct rank *rank, CUdeviceptr memory, size_t bytes, int stream)
{
    CF_CU(rank->worker, MemsetD8Async(memory, 0, bytes, stream_of(rank, stream)));
}

/* Calls of which some are followed by another of the same communicator, some by something else; to see which let in the
 * next early. What comes of them is looked at elsewhere. */
static void early(struct rank *rank)
{
    struct cf_worker *worker = rank->worker;
    const struct lane *lane = &rank->lane[0];
    const int main = lane->stream, side = rank->lane[2].stream;
    const size_t large = 1 << 19, bytes = large * sizeof(float);
    CUdeviceptr in, out;
    struct cf_set set = rank->set, other;
    cf_set_create(worker, CF_INIT_RANK, &other);
    CF_CU(worker, MemAlloc(&in, bytes));
    CF_CU(worker, MemAlloc(&out, bytes));
    begin_capture(rank, main, usual_mode());
    set_memory(rank, in, bytes, main);
    call(rank, lane, 0, main); /* the first that lets in the next */
    call(rank, lane, 1, main);
    set_memory(rank, out, sizeof(float), main);
    call(rank, lane, 0, main);
    rank->set = other;
    call(rank, lane, 1, main);
    rank->set = set;
    call(rank, lane, 0, main);
    set_memory(rank, out, sizeof(float), main);
    for (int i = 0; i < 2;
         i++) { /* the second depends on the first, and up to four ranks they are too large together */
        reduce(rank, in, in, large, main);
    }
    set_memory(rank, out, sizeof(float), main);
    CF_NCCL(worker, GroupStart()); /* two types, two kernels: the second and third that do */
    call(rank, lane, 0, main);
    CF_NCCL(worker,
            AllReduce((const void *)in, (void *)out, 100, ncclInt, ncclSum, set.comm[0], stream_of(rank, main)));
    CF_NCCL(worker, GroupEnd());
    call(rank, lane, 1, main);
    cf_join(worker, main, side);
    set_memory(rank, out, sizeof(float), side);
    cf_join(worker, side, main);
    call(rank, lane, 2, main); /* behind the call before and the branch */
    CUgraph graph = end_capture(rank, main);
    if (options.structure) {
        check_early(worker, graph, worker->nranks > 4 ? 4 : 3);
    }
    CUgraphExec exec = instantiate(rank, graph);
    CF_CU(worker, GraphLaunch(exec, stream_of(rank, main)));
    CF_CU(worker, GraphLaunch(exec, stream_of(rank, main)));
    CF_CU(worker, StreamSynchronize(stream_of(rank, main)));
    CF_CU(worker, GraphExecDestroy(exec));
    CF_CU(worker, MemFree(in));
    CF_CU(worker, MemFree(out));
    cf_set_destroy(worker, &other);
}

/* Graphs destroyed as soon as they are launched, before the communicator and after it; first use under capture. */
static void destroy(struct rank *rank)
{
    for (int i = 0; i < 6; i++) {
        cf_set_destroy(rank->worker, &rank->set);
        cf_set_create(rank->worker, CF_INIT_RANK, &rank->set);
        capture_both(rank, usual_mode());
        run_round(rank, &rank->lane[0]);
        run_round(rank, &rank->lane[1]);
        if (i % 3 == 1) {
            run_round(rank, &rank->lane[2]);
        }
        if (i % 3 == 2) {
            flush_all(rank);
        }
        destroy_both(rank);
    }
    flush_all(rank);
}

/* The chain in another way: each call on the next lane's stream, some whole, some in two halves. */
static void relay_round(struct rank *rank)
{
    struct lane *first = &rank->lane[0], *last = &rank->lane[LANES - 1];
    send_input(rank, first, last);
    for (int c = 0; c < CALLS; c++) {
        CUdeviceptr from = c == 0 ? first->in : first->out[c - 1], to = first->out[c];
        size_t half = cf_draw(&rank->common, 2) ? COUNT / 2 : COUNT;
        bool grouped = cf_draw(&rank->common, 2);
        if (grouped) {
            CF_NCCL(rank->worker, GroupStart());
        }
        for (size_t begin = 0; begin < COUNT; begin += half) {
            size_t count = COUNT - begin < half ? COUNT - begin : half, at = begin * sizeof(float);
            reduce(rank, from + at, to + at, count, rank->lane[c % LANES].stream);
        }
        if (grouped) {
            CF_NCCL(rank->worker, GroupEnd());
        }
    }
    fetch_result(rank, first, last);
}

/* Data that goes from stream to stream in the order of the calls alone, with whoever serves them. */
static void relay(struct rank *rank)
{
    struct lane *last = &rank->lane[LANES - 1];
    _Static_assert(CALLS == LANES, "the last call must be on the last lane");
    for (int l = 0; l < 2; l++) { /* a communicator's first change of stream is not ordered: doc/design.md, "Order" */
        call(rank, &rank->lane[l], 0, rank->lane[l].stream);
        CF_CU(rank->worker, StreamSynchronize(stream_of(rank, rank->lane[l].stream)));
    }
    for (int r = 0; r < options.rounds; r++) {
        relay_round(rank);
        if (last->filled == RING) {
            flush_lane(rank, last, "relay");
        }
    }
    flush_lane(rank, last, "relay");
}

/* Graphs that outlive their communicator. NCCL waits for its own graphs; onehop must not need them to end first. */
static void outlive(struct rank *rank)
{
    for (int i = 0; i < 4; i++) {
        capture_both(rank, usual_mode());
        run_round(rank, &rank->lane[i % LANES]);
        run_round(rank, &rank->lane[0]);
        if (i % 2 == 1) {
            flush_all(rank);
        }
        cf_set_destroy(rank->worker, &rank->set);
        cf_set_create(rank->worker, CF_INIT_RANK, &rank->set);
        destroy_both(rank);
        flush_all(rank);
    }
}

const struct scenario scenarios[] = {
    {"modes", modes},       {"turns", turns},     {"update", update},           {"children", children},
    {"branches", branches}, {"early", early},     {"chains", chains},           {"destroy", destroy},
    {"relay", relay},       {"outlive", outlive}, {"foreign", foreign_kernels}, {NULL, NULL},
};
