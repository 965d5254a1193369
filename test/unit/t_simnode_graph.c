/* SPDX-License-Identifier: MIT */
/*
 * t_simnode_graph.c - the simulated driver: stream capture, graphs and what they hold
 */
#include <unistd.h>

#include "test/unit/scenario.h"

/* Not the names that this cuda.h gives them. */
CUresult cuStreamGetCaptureInfo_v2(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **,
                                   size_t *);
#undef cuStreamUpdateCaptureDependencies
#undef cuGraphAddDependencies
#undef cuGraphRemoveDependencies
CUresult cuStreamUpdateCaptureDependencies(CUstream, CUgraphNode *, size_t, unsigned);
CUresult cuGraphAddDependencies(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);
CUresult cuGraphRemoveDependencies(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);

static CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec exec = NULL;
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    return exec;
}

static void capture(void)
{
    CUstream origin, side;
    CUevent fork_event, join_event;
    CUgraph graph, during;
    CUstreamCaptureStatus status;
    cuuint64_t id, side_id;
    atomic_int counter = 0, on_side = 0;
    start(0);
    OK(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));

    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuLaunchHostFunc(origin, count, &counter));
    OK(cuEventRecord(fork_event, origin));
    OK(cuStreamWaitEvent(side, fork_event, 0));
    OK(cuLaunchHostFunc(side, count, &on_side));
    OK(cuLaunchHostFunc(origin, wait_flag, &on_side)); /* branches run at the same time */
    OK(cuStreamGetCaptureInfo_v2(origin, &status, &id, &during, NULL, NULL));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuStreamGetCaptureInfo_v2(side, &status, &side_id, NULL, NULL, NULL));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id == side_id);
    FAILS(cuEventQuery(fork_event), CUDA_ERROR_CAPTURED_EVENT);
    OK(cuEventRecord(join_event, side));
    OK(cuStreamWaitEvent(origin, join_event, 0));
    OK(cuStreamEndCapture(origin, &graph));
    CHECK(graph == during);
    OK(cuStreamIsCapturing(side, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK(counter == 0);

    CUgraphExec exec = instantiate(graph);
    for (int i = 0; i < 50; i++) {
        OK(cuGraphLaunch(exec, i % 3 == 2 ? side : origin));
    }
    OK(cuGraphExecDestroy(exec)); /* while it runs */
    OK(cuCtxSynchronize());
    CHECK(counter == 50 && on_side == 50);
}

/* origin -> a -> b -> origin: the origin waits for b alone, and so for a too. */
static void capture_chain(void)
{
    CUstream stream[3];
    CUevent event[3];
    CUgraph graph;
    atomic_int counter = 0;
    start(0);
    for (int i = 0; i < 3; i++) {
        OK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
        OK(cuEventCreate(&event[i], CU_EVENT_DISABLE_TIMING));
    }
    OK(cuStreamBeginCapture(stream[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < 3; i++) {
        OK(cuLaunchHostFunc(stream[i], count, &counter));
        OK(cuEventRecord(event[i], stream[i]));
        OK(cuStreamWaitEvent(stream[(i + 1) % 3], event[i], 0));
    }
    OK(cuStreamEndCapture(stream[0], &graph));
    CUgraphExec exec = instantiate(graph);
    OK(cuGraphLaunch(exec, stream[0]));
    OK(cuStreamSynchronize(stream[0]));
    CHECK(counter == 3);
    OK(cuGraphExecDestroy(exec));
}

static void capture_errors(void)
{
    CUstream origin, side, blocking;
    CUevent event;
    CUgraph graph;
    CUdeviceptr address;
    CUstreamCaptureStatus status;
    atomic_int counter = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    start(0);
    OK(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    FAILS(cuStreamEndCapture(origin, &graph), CUDA_ERROR_ILLEGAL_STATE);

    /* A stream that was forked off and not joined. */
    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuEventRecord(event, origin));
    OK(cuStreamWaitEvent(side, event, 0));
    OK(cuLaunchHostFunc(side, count, &counter));
    FAILS(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    CHECK(graph == NULL);

    /* Allocating: invalid, unless this thread says that it knows what it does. */
    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    OK(cuMemAlloc(&address, 100));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    FAILS(cuMemFree(address), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    OK(cuStreamIsCapturing(origin, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    FAILS(cuLaunchHostFunc(origin, count, &counter), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    FAILS(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuMemFree(address));

    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
    FAILS(cuStreamSynchronize(origin), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    FAILS(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    /* The legacy stream would have to wait for a stream that captures. */
    OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    FAILS(cuLaunchHostFunc(NULL, count, &counter), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    FAILS(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    /* Waiting for what is not part of the capture. */
    OK(cuEventRecord(event, side));
    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    FAILS(cuStreamWaitEvent(origin, event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    FAILS(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(counter == 0);
}

/* The one node that a captured stream's next operation comes after. */
static CUgraphNode tip(CUstream stream)
{
    CUstreamCaptureStatus status;
    const CUgraphNode *nodes;
    size_t number = 0;
    OK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &nodes, &number));
    CHECK(number == 1);
    return number == 1 ? nodes[0] : NULL;
}

/* A graph under capture is changed by hand: edges, a node, what a stream comes after. */
static void capture_by_hand(void)
{
    CUstream origin, side;
    CUevent event, fork_event;
    CUgraph graph, during;
    CUstreamCaptureStatus status;
    CUgraphNode first, second, record;
    atomic_int counter = 0;
    size_t number;
    start(0);
    OK(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
    FAILS(cuStreamUpdateCaptureDependencies(origin, NULL, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES),
          CUDA_ERROR_ILLEGAL_STATE);
    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamGetCaptureInfo_v2(origin, &status, NULL, &during, NULL, &number));
    CHECK(number == 0);
    OK(cuLaunchHostFunc(origin, count, &counter));
    first = tip(origin);
    OK(cuGraphAddEventRecordNode(&record, during, &first, 1, event));
    OK(cuLaunchHostFunc(origin, count, &counter));
    second = tip(origin);
    CHECK(second != first && second != record);
    FAILS(cuGraphAddDependencies(during, &first, &record, 1), CUDA_ERROR_INVALID_VALUE);     /* there is one */
    FAILS(cuGraphAddDependencies(during, &record, &first, 1), CUDA_ERROR_INVALID_VALUE);     /* a cycle */
    FAILS(cuGraphRemoveDependencies(during, &second, &record, 1), CUDA_ERROR_INVALID_VALUE); /* there is none */
    OK(cuGraphAddDependencies(during, &second, &record, 1));
    OK(cuGraphRemoveDependencies(during, &first, &record, 1));
    FAILS(cuGraphDestroy(during), CUDA_ERROR_INVALID_VALUE);

    /* A branch that is given up by hand need not be joined; the record node never was on a stream. */
    OK(cuEventRecord(fork_event, origin));
    OK(cuStreamWaitEvent(side, fork_event, 0));
    OK(cuLaunchHostFunc(side, count, &counter));
    OK(cuStreamUpdateCaptureDependencies(side, &second, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    CHECK(tip(side) == second);
    OK(cuStreamEndCapture(origin, &graph));
    OK(cuGraphGetNodes(graph, NULL, &number));
    CHECK(number == 4);
    CUgraphExec exec = instantiate(graph);
    OK(cuGraphLaunch(exec, origin));
    OK(cuEventSynchronize(event));
    CHECK(counter >= 2);
    OK(cuStreamSynchronize(origin));
    CHECK(counter == 3);
}

/* Records and waits of graphs meet those of streams, in the order in which the host makes them. */
static void external_events(void)
{
    CUstream origin, other;
    CUevent event;
    CUgraph graph;
    atomic_int counter = 0, flag = 0, later = 0;
    start(0);
    OK(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    FAILS(cuStreamWaitEvent(origin, event, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuEventRecordWithFlags(event, origin, CU_EVENT_RECORD_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamWaitEvent(origin, event, CU_EVENT_WAIT_EXTERNAL));
    OK(cuLaunchHostFunc(origin, count, &counter));
    OK(cuEventRecordWithFlags(event, origin, CU_EVENT_RECORD_EXTERNAL));
    OK(cuStreamEndCapture(origin, &graph));
    OK(cuEventQuery(event)); /* the capture has not touched it */
    CUgraphExec exec = instantiate(graph);
    OK(cuGraphLaunch(exec, origin)); /* an event never recorded holds nothing up */
    OK(cuStreamSynchronize(origin));
    CHECK(counter == 1);

    OK(cuLaunchHostFunc(other, wait_flag, &flag));
    OK(cuEventRecord(event, other));
    OK(cuGraphLaunch(exec, origin)); /* waits for the other stream */
    OK(cuStreamWaitEvent(other, event, 0));
    OK(cuLaunchHostFunc(other, count, &later)); /* and that, now, for the graph */
    usleep(20000);
    CHECK(counter == 1 && later == 0);
    atomic_store(&flag, 1);
    OK(cuStreamSynchronize(other));
    CHECK(counter == 2 && later == 1);
    OK(cuEventDestroy(event));
    FAILS(cuGraphLaunch(exec, origin), CUDA_ERROR_INVALID_HANDLE);
}

/* A graph of one host function, with a user object that counts when it is gone. */
static CUgraph counting_graph(CUstream stream, atomic_int *counter, atomic_int *destroyed, int calls)
{
    CUgraph graph;
    CUuserObject object;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < calls; i++) {
        OK(cuLaunchHostFunc(stream, count, counter));
    }
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuUserObjectCreate(&object, destroyed, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    return graph;
}

/* Clones, child graphs and updates hold what the graph they are made of holds. */
static void graph_copies(void)
{
    CUstream stream;
    CUgraph clone, parent;
    CUgraphNode child, behind;
    CUgraphExecUpdateResultInfo info;
    atomic_int counter = 0, destroyed = 0, second = 0, second_destroyed = 0;
    start(0);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph = counting_graph(stream, &counter, &destroyed, 2);
    OK(cuGraphClone(&clone, graph));
    OK(cuGraphDestroy(graph));
    OK(cuGraphCreate(&parent, 0));
    OK(cuGraphAddChildGraphNode(&child, parent, NULL, 0, clone));
    OK(cuGraphAddChildGraphNode(&behind, parent, &child, 1, clone));
    CUgraphExec exec = instantiate(parent), single = instantiate(clone);
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(counter == 4);
    OK(cuGraphExecDestroy(exec));
    CHECK(destroyed == 0);

    CUgraph longer = counting_graph(stream, &second, &second_destroyed, 3);
    FAILS(cuGraphExecUpdate_v2(single, longer, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    OK(cuGraphDestroy(longer));
    CUgraph like = counting_graph(stream, &second, &second_destroyed, 2);
    OK(cuGraphExecUpdate_v2(single, like, &info));
    OK(cuGraphDestroy(like));
    wait_until(&destroyed, 1);
    wait_until(&second_destroyed, 1); /* of the longer */
    OK(cuGraphLaunch(single, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(counter == 4 && second == 2);
    OK(cuGraphExecDestroy(single));
    wait_until(&second_destroyed, 2);
}

static void user_objects(void)
{
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUuserObject object;
    CUstreamCaptureStatus status;
    atomic_int destroyed = 0, flag = 0;
    start(0);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, NULL, NULL));
    OK(cuUserObjectCreate(&object, &destroyed, count, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    OK(cuUserObjectRelease(object, 1));
    OK(cuLaunchHostFunc(stream, wait_flag, &flag));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuGraphDestroy(graph));
    OK(cuGraphExecDestroy(exec));
    CHECK(destroyed == 0); /* the launch still runs */
    atomic_store(&flag, 1);
    OK(cuStreamSynchronize(stream));
    for (int i = 0; i < 1000 && destroyed == 0; i++) {
        usleep(1000);
    }
    CHECK(destroyed == 1);

    /* Without a graph. */
    OK(cuUserObjectCreate(&object, &destroyed, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    FAILS(cuUserObjectRelease(object, 2), CUDA_ERROR_INVALID_VALUE);
    OK(cuUserObjectRelease(object, 1));
    CHECK(destroyed == 2);
}

int main(void)
{
    static const struct scenario scenarios[] = {
        {capture, "capture with a branch, launched 50 times"},
        {capture_chain, "capture along a chain of streams"},
        {capture_errors, "what a capture forbids"},
        {capture_by_hand, "a graph changed by hand while it is captured"},
        {external_events, "event nodes of graphs and events of streams"},
        {graph_copies, "clones, child graphs, updates"},
        {user_objects, "user objects"},
    };
    return run_scenarios(scenarios, sizeof scenarios / sizeof *scenarios);
}
