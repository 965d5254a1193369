/* SPDX-License-Identifier: MIT */
/* graph_capture.c - graphs of chains of calls, and what they must look like */
#define CHECK_WHO "graph_capture.c, "
#include "test/gpu/graph_mixing.h"

CUgraphNodeType type_of(CUgraphNode node)
{
    CUgraphNodeType type;
    CU(node_type(node, &type));
    return type;
}

/* Both of onehop, of one communicator, small enough to be on the GPU together, and one comes after the other alone. */
static bool may_be_let_in(CUgraphNode before, CUgraphNode kernel, const CUgraphNode *to, size_t edges)
{
    CUDA_KERNEL_NODE_PARAMS first, second;
    size_t into = 0;
    if (type_of(kernel) != CU_GRAPH_NODE_TYPE_KERNEL) {
        return false;
    }
    CU(kernel_params(before, &first));
    CU(kernel_params(kernel, &second));
    const struct oh_kernel_args *one = first.kernelParams[0], *other = second.kernelParams[0];
    for (size_t i = 0; i < edges; i++) {
        into += to[i] == kernel;
    }
    return into == 1 && one->staging[0] == other->staging[0] &&
           first.gridDimX * first.blockDimX + second.gridDimX * second.blockDimX <= (options.ranks > 4 ? 16384 : 32768);
}

/* A kernel of onehop lets the next in early where that is known to be right, and nowhere else. */
void check_early(CUgraph graph, int expected)
{
    CUgraphNode nodes[64], from[256], to[256];
    CUgraphEdgeData data[256];
    size_t count = 64, edges = 256;
    int early = 0;
    CU(graph_nodes(graph, nodes, &count));
    CU(graph_edges(graph, from, to, data, &edges));
    for (size_t n = 0; n < count; n++) {
        CUDA_KERNEL_NODE_PARAMS params;
        bool right = false;
        if (type_of(nodes[n]) != CU_GRAPH_NODE_TYPE_KERNEL) {
            continue;
        }
        for (size_t i = 0; i < edges; i++) {
            right |= from[i] == nodes[n] && may_be_let_in(nodes[n], to[i], to, edges);
        }
        CU(kernel_params(nodes[n], &params));
        const struct oh_kernel_args *args = params.kernelParams[0];
        CHECK(args->early_trigger == (right ? 1 : 0), "kernel %zu: early_trigger is %u", n, args->early_trigger);
        early += right;
    }
    CHECK(early == expected, "%d kernels let the next in early, not %d", early, expected);
}

/* One wait, one record as a leaf behind the last kernel, and kernels that follow one another programmatically. */
static void check_structure(CUgraph graph, int kernels_expected)
{
    CUgraphNode recorded = NULL;
    CUgraphNode nodes[64], from[256], to[256];
    CUgraphEdgeData data[256];
    size_t count = 64, edges = 256, of_type[32] = {0}, programmatic = 0, into_record = 0, out_of_record = 0;
    CU(graph_nodes(graph, nodes, &count));
    for (size_t i = 0; i < count; i++) {
        of_type[type_of(nodes[i])]++;
    }
    CU(graph_edges(graph, from, to, data, &edges));
    check_early(graph, kernels_expected - 1);
    for (size_t i = 0; i < edges; i++) {
        programmatic += data[i].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
        out_of_record += type_of(from[i]) == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
        if (type_of(to[i]) == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
            into_record++;
            recorded = from[i];
        }
    }
    for (size_t i = 0; i < edges; i++) {
        CHECK(from[i] != recorded || type_of(to[i]) == CU_GRAPH_NODE_TYPE_EVENT_RECORD,
              "the record node is not behind the last kernel");
    }
    CHECK(of_type[CU_GRAPH_NODE_TYPE_KERNEL] == (size_t)kernels_expected, "%zu kernels",
          of_type[CU_GRAPH_NODE_TYPE_KERNEL]);
    CHECK(of_type[CU_GRAPH_NODE_TYPE_WAIT_EVENT] == 1 && of_type[CU_GRAPH_NODE_TYPE_EVENT_RECORD] == 1,
          "%zu wait and %zu record nodes", of_type[CU_GRAPH_NODE_TYPE_WAIT_EVENT],
          of_type[CU_GRAPH_NODE_TYPE_EVENT_RECORD]);
    CHECK(programmatic == (size_t)kernels_expected - 1, "%zu programmatic edges", programmatic);
    CHECK(into_record == 1 && out_of_record == 0, "%zu edges into the record node, %zu out of it", into_record,
          out_of_record);
}

/* Of a capture of the lane's chain and nothing else. */
CUgraph end_capture(const struct lane *lane)
{
    CUgraph graph;
    CU(end_capture(lane->stream, &graph));
    if (options.structure) {
        check_structure(graph, CALLS);
    }
    return graph;
}

CUgraph capture(const struct rank *rank, const struct lane *lane, CUstreamCaptureMode mode)
{
    CU(begin_capture(lane->stream, mode));
    call_chain(rank, lane);
    return end_capture(lane);
}

CUgraphExec instantiate(CUgraph graph)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUgraphExec exec;
    CU(exchange_mode(&mode));
    CU(instantiate(&exec, graph, 0));
    CU(exchange_mode(&mode));
    CU(graph_destroy(graph));
    return exec;
}

/* In a process of several ranks other threads make calls that a global capture would forbid. */
CUstreamCaptureMode usual_mode(void)
{
    return options.threads ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : CU_STREAM_CAPTURE_MODE_GLOBAL;
}

void capture_both(struct rank *rank)
{
    for (int l = 0; l < 2; l++) {
        rank->lane[l].exec = instantiate(capture(rank, &rank->lane[l], usual_mode()));
    }
}

void destroy_both(struct rank *rank)
{
    for (int l = 0; l < 2; l++) {
        CU(exec_destroy(rank->lane[l].exec));
        rank->lane[l].exec = NULL;
    }
}
