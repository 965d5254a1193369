/* SPDX-License-Identifier: MIT */
/*
 * case_graphs.c - calls captured in CUDA graphs
 *
 * A factor of PreMulSum in device memory is read at each replay, so it changes with the inputs.
 */
#include <string.h>

#include "test/conformance/cases.h"

/* A captured batch. */
struct capture {
    struct cf_batch *batch;
    struct cf_graph graph;
};

/* A factor in host memory is read when the call is made. in_place: such a call gives something else each time that it
 * runs. */
static struct cf_batch *make_calls(struct cf_worker *worker, const struct cf_set *set, int items, bool in_place)
{
    struct cf_batch *batch = cf_batch_new(worker, set);
    for (int i = 0; i < items; i++) {
        struct cf_spec spec = cf_some_spec(i);
        spec.in_place &= in_place;
        spec.op = spec.op == CF_PREMUL_HOST ? CF_PREMUL_DEVICE : spec.op;
        cf_batch_add(batch, &spec);
    }
    return batch;
}

/* The arenas must be there before the capture: memory is allocated in cf_batch_load. */
static void capture_batch(struct cf_worker *worker, struct cf_batch *batch, CUstreamCaptureMode mode,
                          enum cf_style style, struct capture *capture_p)
{
    capture_p->batch = batch;
    cf_batch_load(batch, 0);
    cf_capture_begin(worker, 0, mode, &capture_p->graph);
    cf_batch_issue(batch, style, 0);
    cf_batch_count(batch);
    cf_capture_end(worker, &capture_p->graph);
    cf_batch_judge(batch, 0, false); /* nothing has run */
    cf_graph_instantiate(worker, &capture_p->graph);
}

/* Calls one by one, in the mode that leaves other threads alone. */
static void capture_calls(struct cf_worker *worker, const struct cf_set *set, int items, struct capture *capture_p)
{
    capture_batch(worker, make_calls(worker, set, items, true), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CF_SINGLE,
                  capture_p);
}

/* New inputs, a launch, and a look at the results; all on the first stream. */
static void replay(struct cf_worker *worker, struct capture *capture)
{
    cf_batch_load(capture->batch, 0);
    capture->batch->replayed = true;
    cf_graph_launch(worker, &capture->graph, 0);
    cf_batch_judge(capture->batch, 0, true);
}

static void close_capture(struct cf_worker *worker, struct capture *capture)
{
    cf_graph_destroy(worker, &capture->graph);
    cf_batch_free(capture->batch);
}

void cf_case_graph_modes(struct cf_worker *worker)
{
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                CU_STREAM_CAPTURE_MODE_RELAXED};
    for (int m = 0; m < 3; m++) {
        for (int style = CF_SINGLE; style <= CF_GROUPED; style++) {
            struct capture capture;
            capture_batch(worker, make_calls(worker, &worker->world, 9, true), modes[m], (enum cf_style)style,
                          &capture);
            for (int r = 0; r < 3; r++) {
                replay(worker, &capture);
            }
            close_capture(worker, &capture);
        }
    }
}

/* NCCL orders what two graphs of one communicator do, whatever streams they are launched on. */
void cf_case_graph_two_streams(struct cf_worker *worker)
{
    struct capture capture[2];
    bool full = worker->full;
    for (int c = 0; c < 2; c++) {
        capture_calls(worker, &worker->world, full ? 20 : 10, &capture[c]);
    }
    for (int r = 0; r < (full ? 10 : 5); r++) {
        for (int c = 0; c < 2; c++) {
            cf_batch_load(capture[c].batch, c);
            capture[c].batch->replayed = true;
        }
        cf_sync(worker);
        for (int c = 0; c < 2; c++) {
            cf_graph_launch(worker, &capture[c].graph, c);
        }
        for (int c = 0; c < 2; c++) {
            cf_batch_judge(capture[c].batch, c, true);
        }
    }
    close_capture(worker, &capture[0]);
    close_capture(worker, &capture[1]);
}

void cf_case_graph_first_use(struct cf_worker *worker)
{
    struct cf_set set;
    struct capture capture;
    cf_set_create(worker, CF_INIT_RANK, &set);
    capture_calls(worker, &set, 9, &capture);
    replay(worker, &capture);
    cf_batch_run(cf_some_calls(worker, &set, 5), CF_SINGLE);
    replay(worker, &capture);
    close_capture(worker, &capture);
    cf_set_end(worker, &set);
}

void cf_case_graph_unused(struct cf_worker *worker)
{
    struct cf_set set;
    struct capture capture;
    cf_set_create(worker, CF_INIT_RANK, &set);
    capture_calls(worker, &set, 9, &capture);
    close_capture(worker, &capture);
    cf_batch_run(cf_some_calls(worker, &set, 3), CF_SINGLE);
    cf_set_end(worker, &set);
}

void cf_case_graph_child(struct cf_worker *worker)
{
    struct capture capture, parent;
    if (cu.GraphCreate == NULL || cu.GraphAddChildGraphNode == NULL) {
        cf_skip(worker, "this driver has no child graphs");
        return;
    }
    capture_batch(worker, make_calls(worker, &worker->world, 9, false), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CF_SINGLE,
                  &capture);
    parent = (struct capture){.batch = capture.batch};
    for (int m = 0; cf_use(worker, m); m++) { /* twice the same child, one after the other */
        CUgraphNode first, second;
        CF_CU(worker, GraphCreate(&parent.graph.graph[m], 0));
        CF_CU(worker, GraphAddChildGraphNode(&first, parent.graph.graph[m], NULL, 0, capture.graph.graph[m]));
        CF_CU(worker, GraphAddChildGraphNode(&second, parent.graph.graph[m], &first, 1, capture.graph.graph[m]));
    }
    cf_graph_instantiate(worker, &parent.graph);
    replay(worker, &capture);
    replay(worker, &parent);
    cf_graph_destroy(worker, &parent.graph);
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
        capture_calls(worker, &worker->world, 9, &capture[c]);
        replay(worker, &capture[c]);
    }
    for (int m = 0; cf_use(worker, m); m++) {
        CUgraphExecUpdateResultInfo info;
        memset(&info, 0, sizeof info);
        CUresult result = cu.GraphExecUpdate(capture[0].graph.exec[m], capture[1].graph.graph[m], &info);
        if (result == CUDA_SUCCESS) { /* the first now does what the second does */
            CUgraphExec exec = capture[1].graph.exec[m];
            capture[1].graph.exec[m] = capture[0].graph.exec[m];
            capture[0].graph.exec[m] = exec;
        }
        cf_check(worker, result == CUDA_SUCCESS || result == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                 "cuGraphExecUpdate gave %d", (int)result);
    }
    replay(worker, &capture[1]);
    close_capture(worker, &capture[1]);
    close_capture(worker, &capture[0]);
}
