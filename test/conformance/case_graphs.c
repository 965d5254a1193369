/* SPDX-License-Identifier: MIT */
/*
 * case_graphs.c - calls captured in CUDA graphs
 *
 * A factor of PreMulSum in device memory is read at each replay, so it changes with the inputs.
 */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "test/conformance/cases.h"

/* A captured batch, one graph for each member. */
struct capture {
    struct cf_batch *batch;
    CUgraph graph[CF_MAX_RANKS];
    CUgraphExec exec[CF_MAX_RANKS];
};

/* in_place: some of them; such a call gives something else each time that it runs. */
static struct cf_batch *make_calls(struct cf_worker *worker, const struct cf_set *set, int items, bool in_place)
{
    static const struct cf_spec specs[] = {
        {.type = ncclFloat32, .op = CF_SUM, .count = 3001},
        {.type = ncclBfloat16, .op = CF_SUM, .count = 17, .in_place = true},
        {.type = ncclInt32, .op = CF_PREMUL_DEVICE, .count = 500},
        {.type = ncclFloat16, .op = CF_SUM, .count = 20001, .recv_shift = 6},
        {.type = ncclFloat64, .op = CF_MIN, .count = 64, .in_place = true},
    };
    struct cf_batch *batch = cf_batch_new(worker, set);
    for (int i = 0; i < items; i++) {
        struct cf_spec spec = specs[i % 5];
        spec.in_place &= in_place;
        cf_batch_add(batch, &spec);
    }
    return batch;
}

static struct cf_batch *some_calls(struct cf_worker *worker, const struct cf_set *set, int items)
{
    return make_calls(worker, set, items, true);
}

void cf_capture_begin(struct cf_worker *worker, CUstreamCaptureMode mode)
{
    /* A capture in global mode forbids calls in other threads of the process: they must be here as well. */
    cf_sync(worker);
    cf_barrier(worker);
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        CF_CU(worker, StreamBeginCapture(worker->member[m].stream[0], mode));
    }
}

void cf_capture_end(struct cf_worker *worker, CUgraph *graph_p)
{
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        CF_CU(worker, StreamEndCapture(worker->member[m].stream[0], &graph_p[m]));
    }
    cf_barrier(worker);
}

static void instantiate(struct cf_worker *worker, struct capture *capture)
{
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        CF_CU(worker, GraphInstantiate(&capture->exec[m], capture->graph[m], 0));
    }
    cf_barrier(worker); /* it may wait for kernels, as all that allocates */
}

/* The arenas must be there before the capture: memory is allocated in cf_batch_load. */
static void capture_batch(struct cf_worker *worker, struct cf_batch *batch, CUstreamCaptureMode mode,
                          enum cf_style style, struct capture *capture_p)
{
    CUstream stream[CF_MAX_RANKS];
    cf_streams(worker, 0, stream);
    *capture_p = (struct capture){.batch = batch};
    cf_batch_load(batch, stream);
    cf_capture_begin(worker, mode);
    cf_batch_issue(batch, style, stream);
    cf_batch_count(batch);
    cf_capture_end(worker, capture_p->graph);
    cf_batch_judge(batch, stream, false); /* nothing has run */
    instantiate(worker, capture_p);
}

/* Calls one by one, in the mode that leaves other threads alone. */
static void capture_calls(struct cf_worker *worker, const struct cf_set *set, int items, struct capture *capture_p)
{
    capture_batch(worker, some_calls(worker, set, items), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CF_SINGLE, capture_p);
}

/* New inputs, a launch, and a look at the results; all on the first stream. */
static void replay(struct cf_worker *worker, struct capture *capture)
{
    CUstream stream[CF_MAX_RANKS];
    cf_streams(worker, 0, stream);
    cf_batch_load(capture->batch, stream);
    capture->batch->replayed = true;
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        CF_CU(worker, GraphLaunch(capture->exec[m], stream[m]));
    }
    cf_batch_judge(capture->batch, stream, true);
}

static void destroy_graphs(struct cf_worker *worker, struct capture *capture)
{
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        if (capture->exec[m] != NULL) {
            CF_CU(worker, GraphExecDestroy(capture->exec[m]));
        }
        CF_CU(worker, GraphDestroy(capture->graph[m]));
    }
}

static void close_capture(struct cf_worker *worker, struct capture *capture)
{
    destroy_graphs(worker, capture);
    cf_batch_free(capture->batch);
}

void cf_case_graph_modes(struct cf_worker *worker)
{
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                CU_STREAM_CAPTURE_MODE_RELAXED};
    for (int m = 0; m < 3; m++) {
        for (int style = CF_SINGLE; style <= CF_GROUPED; style++) {
            struct capture capture;
            capture_batch(worker, some_calls(worker, &worker->world, 5), modes[m], (enum cf_style)style, &capture);
            for (int r = 0; r < 3; r++) {
                replay(worker, &capture);
            }
            close_capture(worker, &capture);
        }
    }
}

void cf_case_graph_replay(struct cf_worker *worker)
{
    struct capture capture;
    capture_calls(worker, &worker->world, 10, &capture);
    for (int r = 0; r < (worker->options->full ? 60 : 5); r++) {
        replay(worker, &capture);
    }
    close_capture(worker, &capture);
}

void cf_case_graph_eager(struct cf_worker *worker)
{
    struct capture capture;
    capture_calls(worker, &worker->world, 5, &capture);
    for (int r = 0; r < 4; r++) {
        replay(worker, &capture);
        cf_batch_run(some_calls(worker, &worker->world, 1 + r), r % 2 ? CF_GROUPED : CF_SINGLE);
    }
    close_capture(worker, &capture);
}

void cf_case_graph_two(struct cf_worker *worker)
{
    struct capture capture[2];
    for (int c = 0; c < 2; c++) {
        capture_calls(worker, &worker->world, 4 + c, &capture[c]);
    }
    for (int r = 0; r < 6; r++) {
        replay(worker, &capture[r % 3 == 1]);
    }
    close_capture(worker, &capture[0]); /* the other one stays good */
    replay(worker, &capture[1]);
    close_capture(worker, &capture[1]);
}

/* NCCL orders what two graphs of one communicator do, whatever streams they are launched on. */
void cf_case_graph_two_streams(struct cf_worker *worker)
{
    struct capture capture[2];
    CUstream stream[2][CF_MAX_RANKS];
    bool full = worker->options->full;
    for (int c = 0; c < 2; c++) {
        cf_streams(worker, c, stream[c]);
        capture_calls(worker, &worker->world, full ? 20 : 10, &capture[c]);
    }
    for (int r = 0; r < (full ? 10 : 5); r++) {
        for (int c = 0; c < 2; c++) {
            cf_batch_load(capture[c].batch, stream[c]);
            capture[c].batch->replayed = true;
        }
        cf_sync(worker);
        for (int c = 0; c < 2; c++) {
            for (int m = 0; m < worker->members; m++) {
                cf_use(worker, m);
                CF_CU(worker, GraphLaunch(capture[c].exec[m], stream[c][m]));
            }
        }
        for (int c = 0; c < 2; c++) {
            cf_batch_judge(capture[c].batch, stream[c], true);
        }
    }
    close_capture(worker, &capture[0]);
    close_capture(worker, &capture[1]);
}

/* The same communicator on both streams of one capture: NCCL puts its calls in order. */
void cf_case_graph_branches(struct cf_worker *worker)
{
    CUstream stream[2][CF_MAX_RANKS];
    struct capture capture = {.batch = some_calls(worker, &worker->world, 10)};
    cf_streams(worker, 0, stream[0]);
    cf_streams(worker, 1, stream[1]);
    cf_batch_load(capture.batch, stream[0]);
    cf_capture_begin(worker, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    cf_join(worker, 0, 1);
    for (int i = 0; i < capture.batch->items; i++) {
        cf_batch_issue_one(capture.batch, i, false, stream[i / 2 % 2]);
    }
    cf_batch_count(capture.batch);
    cf_join(worker, 1, 0);
    cf_capture_end(worker, capture.graph);
    instantiate(worker, &capture);
    for (int r = 0; r < 3; r++) {
        replay(worker, &capture);
    }
    close_capture(worker, &capture);
}

void cf_case_graph_first_use(struct cf_worker *worker)
{
    struct cf_set set;
    struct capture capture;
    cf_set_create(worker, CF_INIT_RANK, &set);
    capture_calls(worker, &set, 5, &capture);
    replay(worker, &capture);
    cf_batch_run(some_calls(worker, &set, 5), CF_SINGLE);
    replay(worker, &capture);
    close_capture(worker, &capture);
    cf_barrier(worker);
    cf_set_destroy(worker, &set);
}

void cf_case_graph_unused(struct cf_worker *worker)
{
    struct cf_set set;
    struct capture capture;
    cf_set_create(worker, CF_INIT_RANK, &set);
    capture_calls(worker, &set, 5, &capture);
    close_capture(worker, &capture);
    cf_batch_run(some_calls(worker, &set, 3), CF_SINGLE);
    cf_barrier(worker);
    cf_set_destroy(worker, &set);
}

struct late_end {
    struct cf_worker *worker;
    struct capture *capture;
};

static void *destroy_late(void *argument)
{
    struct late_end *late = argument;
    usleep(100000);
    destroy_graphs(late->worker, late->capture);
    return NULL;
}

/* NCCL's ncclCommDestroy waits for graphs that hold the communicator: another thread destroys them meanwhile. */
void cf_case_graph_outlives(struct cf_worker *worker)
{
    struct cf_set set;
    struct capture capture;
    pthread_t thread;
    struct late_end late = {worker, &capture};
    cf_set_create(worker, CF_INIT_RANK, &set);
    capture_calls(worker, &set, 5, &capture);
    replay(worker, &capture);
    cf_sync(worker);
    cf_barrier(worker);
    if (pthread_create(&thread, NULL, destroy_late, &late) != 0) {
        cf_die(worker, "no thread");
    }
    cf_set_destroy(worker, &set);
    pthread_join(thread, NULL);
    cf_batch_free(capture.batch);
    cf_batch_run(some_calls(worker, &worker->world, 3), CF_SINGLE);
}

void cf_case_graph_child(struct cf_worker *worker)
{
    struct capture capture, parent;
    if (cu.GraphCreate == NULL || cu.GraphAddChildGraphNode == NULL) {
        cf_skip(worker, "this driver has no child graphs");
        return;
    }
    capture_batch(worker, make_calls(worker, &worker->world, 5, false), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CF_SINGLE,
                  &capture);
    parent = (struct capture){.batch = capture.batch};
    for (int m = 0; m < worker->members; m++) { /* twice the same child, one after the other */
        CUgraphNode first, second;
        cf_use(worker, m);
        CF_CU(worker, GraphCreate(&parent.graph[m], 0));
        CF_CU(worker, GraphAddChildGraphNode(&first, parent.graph[m], NULL, 0, capture.graph[m]));
        CF_CU(worker, GraphAddChildGraphNode(&second, parent.graph[m], &first, 1, capture.graph[m]));
    }
    instantiate(worker, &parent);
    replay(worker, &capture);
    replay(worker, &parent);
    destroy_graphs(worker, &parent);
    close_capture(worker, &capture);
}

/* A driver that cannot update must say so; then the old graph is still good. */
void cf_case_graph_update(struct cf_worker *worker)
{
    struct capture capture[2];
    if (cu.GraphExecUpdate == NULL) {
        cf_skip(worker, "this driver does not update graphs");
        return;
    }
    for (int c = 0; c < 2; c++) {
        capture_calls(worker, &worker->world, 5, &capture[c]);
        replay(worker, &capture[c]);
    }
    for (int m = 0; m < worker->members; m++) {
        CUgraphExecUpdateResultInfo info;
        memset(&info, 0, sizeof info);
        cf_use(worker, m);
        CUresult result = cu.GraphExecUpdate(capture[0].exec[m], capture[1].graph[m], &info);
        if (result == CUDA_SUCCESS) { /* the first now does what the second does */
            CUgraphExec exec = capture[1].exec[m];
            capture[1].exec[m] = capture[0].exec[m];
            capture[0].exec[m] = exec;
        }
        cf_check(worker, result == CUDA_SUCCESS || result == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                 "cuGraphExecUpdate gave %d", (int)result);
    }
    replay(worker, &capture[1]);
    close_capture(worker, &capture[1]);
    close_capture(worker, &capture[0]);
}

/* --- bits (case_bits.c has the others) ---------------------------------------------------------------------------- */

void cf_case_bits_graph(struct cf_worker *worker)
{
    static const size_t counts[] = {1, 33, 4099, 70001};
    struct capture capture;
    struct cf_batch *batch[2];
    for (int b = 0; b < 2; b++) {
        batch[b] = cf_batch_new(worker, &worker->world);
        for (int i = 0; i < 8; i++) {
            cf_batch_add(batch[b], &(struct cf_spec){.type = i % 2 ? ncclFloat32 : ncclBfloat16,
                                                     .family = CF_WIDE,
                                                     .count = counts[i / 2],
                                                     .key = cf_mix((uint64_t)i + 99)});
        }
    }
    CUstream stream[CF_MAX_RANKS];
    cf_streams(worker, 0, stream);
    cf_batch_load(batch[0], stream);
    cf_batch_issue(batch[0], CF_SINGLE, stream);
    cf_batch_judge(batch[0], stream, true);
    capture_batch(worker, batch[1], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CF_SINGLE, &capture);
    replay(worker, &capture);
    for (int m = 0; m < worker->members; m++) {
        for (int i = 0; i < batch[0]->items; i++) {
            size_t bytes = counts[i / 2] * cf_types[batch[0]->item[i].spec.type].size;
            cf_check(worker, memcmp(cf_batch_result(batch[0], i, m), cf_batch_result(batch[1], i, m), bytes) == 0,
                     "item %d: other bits in a graph", i);
        }
    }
    close_capture(worker, &capture);
    cf_batch_free(batch[0]);
}
