/* SPDX-License-Identifier: MIT */
/* graph_scenarios.c - in which ways graphs and eager calls are made and mixed */
#define CHECK_WHO "graph_scenarios.c, "
#include "test/gpu/graph_mixing.h"

static void modes(struct rank *rank)
{
    static const CUstreamCaptureMode all[] = {CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                              CU_STREAM_CAPTURE_MODE_GLOBAL};
    for (int m = 0; m < (options.threads ? 2 : 3); m++) {
        for (int l = 0; l < 2; l++) {
            rank->lane[l].exec = instantiate(capture(rank, &rank->lane[l], all[m]));
        }
        mix(rank, options.rounds);
        destroy_both(rank);
        mix(rank, 2 * RING); /* eager again, on all lanes */
    }
}

/* Two captures at the same time, call by call. */
static void turns(struct rank *rank)
{
    CU(begin_capture(rank->lane[0].stream, usual_mode()));
    CU(begin_capture(rank->lane[1].stream, usual_mode()));
    for (int c = 0; c < CALLS; c++) {
        call(rank, &rank->lane[0], c, rank->lane[0].stream);
        call(rank, &rank->lane[1], c, rank->lane[1].stream);
    }
    rank->lane[0].exec = instantiate(end_capture(&rank->lane[0]));
    rank->lane[1].exec = instantiate(end_capture(&rank->lane[1]));
    mix(rank, options.rounds);
    destroy_both(rank);
}

/* A graph captured again takes the place of the one in use, while that may still run. */
static void update(struct rank *rank)
{
    capture_both(rank);
    for (int i = 0; i < 4; i++) {
        CUgraphExecUpdateResultInfo info;
        struct lane *lane = &rank->lane[i % 2];
        mix(rank, options.rounds / 4);
        lane_round(rank, lane);
        CUgraph graph = capture(rank, lane, usual_mode());
        CUresult result = cu.update(lane->exec, graph, &info);
        CHECK(result == CUDA_SUCCESS, "update: CUDA error %d, result %d", (int)result, (int)info.result);
        CU(graph_destroy(graph));
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
        CU(graph_clone(&clone, graph));
        CU(graph_create(&parent, 0));
        CU(graph_add_child(&first, parent, NULL, 0, clone));
        CU(graph_add_child(&second, parent, &first, 1, graph));
        CU(graph_destroy(graph));
        CU(graph_destroy(clone));
        rank->lane[l].exec = instantiate(parent);
    }
    mix(rank, options.rounds);
    destroy_both(rank);
}

/* Makes `to` wait for `from`; under capture this takes `to` into it. */
static void follow(CUstream from, CUstream to)
{
    CUevent event;
    CU(event_create(&event, CU_EVENT_DISABLE_TIMING));
    CU(event_record(event, from));
    CU(wait_event(to, event, 0));
    CU(event_destroy(event));
}

/* Captures on two streams: the first graph's calls change stream; others on a branch that nothing orders with them. */
static void branches(struct rank *rank)
{
    struct lane *lane = &rank->lane[0], spare = {0};
    CUstream side, branch;
    CUgraph graph;
    CU(stream_create(&side, CU_STREAM_NON_BLOCKING));
    CU(stream_create(&branch, CU_STREAM_NON_BLOCKING));
    lane_open(&spare, branch);
    CU(begin_capture(lane->stream, usual_mode()));
    follow(lane->stream, branch);
    call(rank, lane, 0, lane->stream);
    call(rank, &spare, 0, branch);
    follow(lane->stream, side);
    call(rank, lane, 1, side);
    call(rank, &spare, 1, branch);
    NCCL(group_start());
    call(rank, lane, 2, side);
    NCCL(group_end());
    call(rank, &spare, 2, branch);
    follow(branch, lane->stream);
    follow(side, lane->stream);
    CU(end_capture(lane->stream, &graph));
    lane->exec = instantiate(graph);
    rank->lane[1].exec = instantiate(capture(rank, &rank->lane[1], usual_mode()));
    mix(rank, options.rounds);
    destroy_both(rank);
    lane_close(&spare);
    CU(stream_destroy(side));
}

void make_comm(struct rank *rank)
{
    struct board *board = rank->board;
    int number = rank->ids++;
    CHECK(number < 64, "too many communicators");
    if (rank->rank == 0) {
        NCCL(unique_id(&board->id[number]));
        atomic_store(&board->ids, number + 1);
    }
    for (int i = 0; atomic_load(&board->ids) <= number; i++) {
        CHECK(i < 60000, "rank 0 has published no id");
        usleep(1000);
    }
    NCCL(init_rank(&rank->comm, options.ranks, board->id[number], rank->rank));
}

/* Calls of which some are followed by another of the same communicator, some by something else; to see which let in the
 * next early. What comes of them is looked at elsewhere. */
static void early(struct rank *rank)
{
    const struct lane *lane = &rank->lane[0];
    const size_t large = 1 << 19;
    CUdeviceptr in, out;
    CUgraph graph;
    CUgraphExec exec;
    ncclComm_t comm = rank->comm, other;
    make_comm(rank);
    other = rank->comm;
    rank->comm = comm;
    CU(alloc(&in, large * sizeof(float)));
    CU(alloc(&out, large * sizeof(float)));
    CU(begin_capture(lane->stream, usual_mode()));
    CU(memset(in, 0, large * sizeof(float), lane->stream));
    call(rank, lane, 0, lane->stream); /* the first that lets in the next */
    call(rank, lane, 1, lane->stream);
    CU(memset(out, 0, sizeof(float), lane->stream));
    call(rank, lane, 0, lane->stream);
    rank->comm = other;
    call(rank, lane, 1, lane->stream);
    rank->comm = comm;
    call(rank, lane, 0, lane->stream);
    CU(memset(out, 0, sizeof(float), lane->stream));
    for (int i = 0; i < 2; i++) { /* the second depends on the first, and together they are too large */
        NCCL(all_reduce((const void *)in, (void *)in, large, ncclFloat, ncclSum, comm, (cudaStream_t)lane->stream));
    }
    CU(memset(out, 0, sizeof(float), lane->stream));
    NCCL(group_start()); /* two types, two kernels: the second and third that do */
    call(rank, lane, 0, lane->stream);
    NCCL(all_reduce((const void *)in, (void *)out, 100, ncclInt, ncclSum, comm, (cudaStream_t)lane->stream));
    NCCL(group_end());
    call(rank, lane, 1, lane->stream);
    follow(lane->stream, rank->lane[2].stream);
    CU(memset(out, 0, sizeof(float), rank->lane[2].stream));
    follow(rank->lane[2].stream, lane->stream);
    call(rank, lane, 2, lane->stream); /* behind the call before and the branch */
    CU(end_capture(lane->stream, &graph));
    if (options.structure) {
        check_early(graph, 3);
    }
    exec = instantiate(graph);
    CU(graph_launch(exec, lane->stream));
    CU(graph_launch(exec, lane->stream));
    CU(synchronize(lane->stream));
    CU(exec_destroy(exec));
    CU(free(in));
    CU(free(out));
    NCCL(destroy(other));
}

/* Graphs destroyed as soon as they are launched, before the communicator and after it; first use under capture. */
static void destroy(struct rank *rank)
{
    for (int i = 0; i < 6; i++) {
        NCCL(destroy(rank->comm));
        make_comm(rank);
        capture_both(rank);
        lane_round(rank, &rank->lane[0]);
        lane_round(rank, &rank->lane[1]);
        if (i % 3 == 1) {
            lane_round(rank, &rank->lane[2]);
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
    size_t at = (size_t)last->filled * COUNT, bytes = COUNT * sizeof(float);
    uint32_t input = draw(&rank->common, PATTERN);
    for (size_t i = 0; i < COUNT; i++) {
        last->upload[at + i] = (float)(rank->rank + 1) * input_value(input, i);
    }
    last->input[last->filled++] = input;
    CU(upload(first->in, &last->upload[at], bytes, first->stream));
    for (int c = 0; c < CALLS; c++) {
        CUdeviceptr from = c == 0 ? first->in : first->out[c - 1], to = first->out[c];
        size_t half = draw(&rank->common, 2) ? COUNT / 2 : COUNT;
        bool grouped = draw(&rank->common, 2);
        if (grouped) {
            NCCL(group_start());
        }
        for (size_t begin = 0; begin < COUNT; begin += half) {
            size_t count = COUNT - begin < half ? COUNT - begin : half;
            NCCL(all_reduce((const void *)(from + begin * sizeof(float)), (void *)(to + begin * sizeof(float)), count,
                            ncclFloat, ncclSum, rank->comm, (cudaStream_t)rank->lane[c % LANES].stream));
        }
        if (grouped) {
            NCCL(group_end());
        }
    }
    CU(download(&last->download[at], first->out[CALLS - 1], bytes, last->stream));
}

/* Data that goes from stream to stream in the order of the calls alone, with whoever serves them. */
static void relay(struct rank *rank)
{
    CHECK(CALLS == LANES, "the last call must be on the last lane");
    for (int l = 0; l < 2; l++) { /* a communicator's first change of stream is not ordered: doc/design.md, "Order" */
        call(rank, &rank->lane[l], 0, rank->lane[l].stream);
        CU(synchronize(rank->lane[l].stream));
    }
    for (int r = 0; r < options.rounds; r++) {
        relay_round(rank);
        if (rank->lane[LANES - 1].filled == RING) {
            lane_flush(rank, &rank->lane[LANES - 1], "relay");
        }
    }
    lane_flush(rank, &rank->lane[LANES - 1], "relay");
}

/* Graphs that outlive their communicator. NCCL waits for its own graphs; onehop must not need them to end first. */
static void outlive(struct rank *rank)
{
    for (int i = 0; i < 4; i++) {
        capture_both(rank);
        lane_round(rank, &rank->lane[i % LANES]);
        lane_round(rank, &rank->lane[0]);
        if (i % 2 == 1) {
            flush_all(rank);
        }
        NCCL(destroy(rank->comm));
        make_comm(rank);
        destroy_both(rank);
        flush_all(rank);
    }
}

/* The last with --structure only, unless asked for. */
const struct scenario scenarios[] = {
    {"modes", modes},       {"turns", turns},     {"update", update}, {"children", children},
    {"branches", branches}, {"early", early},     {"chains", chains}, {"destroy", destroy},
    {"relay", relay},       {"outlive", outlive}, {NULL, NULL},
};
