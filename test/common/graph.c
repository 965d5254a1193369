/* SPDX-License-Identifier: MIT */
/* graph.c - graphs of what each member captures on one of its streams */
#include "test/common/worker.h"

/* A capture in another mode than the relaxed one forbids calls in other threads of the process. */
static void meet(struct cf_worker *worker, const struct cf_graph *graph)
{
    if (graph->mode != CU_STREAM_CAPTURE_MODE_RELAXED && worker->board->layout.threads) {
        cf_barrier(worker);
    }
}

void cf_capture_begin(struct cf_worker *worker, int stream, CUstreamCaptureMode mode, struct cf_graph *graph_p)
{
    *graph_p = (struct cf_graph){.stream = stream, .mode = mode};
    cf_sync(worker);
    meet(worker, graph_p);
    for (int m = 0; cf_use(worker, m); m++) {
        CF_CU(worker, StreamBeginCapture(worker->member[m].stream[stream], mode));
    }
}

void cf_capture_end(struct cf_worker *worker, struct cf_graph *graph)
{
    for (int m = 0; cf_use(worker, m); m++) {
        CF_CU(worker, StreamEndCapture(worker->member[m].stream[graph->stream], &graph->graph[m]));
    }
    meet(worker, graph);
}

void cf_graph_instantiate(struct cf_worker *worker, struct cf_graph *graph)
{
    for (int m = 0; cf_use(worker, m); m++) {
        CF_CU(worker, GraphInstantiate(&graph->exec[m], graph->graph[m], 0));
    }
    cf_barrier(worker); /* it may wait for kernels, as all that allocates */
}

void cf_graph_launch(struct cf_worker *worker, const struct cf_graph *graph, int stream)
{
    for (int m = 0; cf_use(worker, m); m++) {
        CF_CU(worker, GraphLaunch(graph->exec[m], worker->member[m].stream[stream]));
    }
}

void cf_graph_destroy(struct cf_worker *worker, const struct cf_graph *graph)
{
    for (int m = 0; cf_use(worker, m); m++) {
        CF_CU(worker, GraphExecDestroy(graph->exec[m]));
        CF_CU(worker, GraphDestroy(graph->graph[m]));
    }
}
