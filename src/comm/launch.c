/* SPDX-License-Identifier: MIT */
/*
 * launch.c - putting calls on streams
 *
 * Kernels of one communicator must not overlap: they share epochs and slots. On one stream they do not. Where the
 * stream changes, an event recorded after the last call orders them, as NCCL orders its own kernels of a communicator
 * (2.28.9, src/enqueue.cc:1495-1503). Under capture the same holds within one graph; an event record adds no node.
 * Graphs hold a reference on the communicator's memory, as NCCL's do (enqueue.cc:1542).
 */
#include "comm/comm.h"

#include <string.h>

#include "gpu/context.h"
#include "util/log.h"

ncclResult_t oh_comm_prepare_launch(struct oh_comm *comm)
{
    const struct oh_staging *staging = &comm->staging;
    const struct oh_driver *driver = staging->driver;
    struct oh_context_scope scope;

    if (oh_context_enter_relaxed(driver, staging->context, &scope) != CUDA_SUCCESS) {
        return ncclUnhandledCudaError;
    }
    ncclResult_t res = oh_kernel_set_get(driver, staging->device, comm->nranks, &comm->kernels);
    if (res != ncclSuccess) {
        goto out;
    }
    /* Events are destroyed by oh_comms_reap, also when this fails half-way. */
    OH_CU_GOTO(driver, event_create(&comm->last_call, CU_EVENT_DISABLE_TIMING), res, out);
    OH_CU_GOTO(driver, event_create(&comm->captured_call, CU_EVENT_DISABLE_TIMING), res, out);
    for (uint32_t j = 0; j < comm->nranks; j++) {
        comm->args.staging[j] = (char *)(uintptr_t)staging->peer[(comm->rank + j) % comm->nranks].base;
    }
    comm->args.abort_word = (const uint32_t *)(uintptr_t)staging->abort_word_device;
    comm->args.rank = comm->rank;
    comm->args.nranks = comm->nranks;
out:
    oh_context_leave_relaxed(driver, &scope);
    return res;
}

bool oh_call_plan(struct oh_call *call, ncclRedOp_t op)
{
    struct oh_comm *comm = call->comm;
    bool served = atomic_load_explicit(&comm->served, memory_order_acquire);
    if (!served && !oh_comm_is_settled(comm)) {
        served = oh_late_decide(comm);
    }
    return served && oh_comm_op_find(comm, op, call->type, &call->op) &&
           oh_plan_choose(&comm->table, call->count, call->type, &call->plan);
}

static void CUDA_CB graph_is_gone(void *user)
{
    struct oh_comm *comm = user;
    atomic_fetch_sub_explicit(&comm->graphs, 1, memory_order_release); /* pairs with the load in retire.c */
}

/* Makes the graph hold the communicator's memory until it, and all made from it, are destroyed. */
static CUresult retain_for_graph(struct oh_comm *comm, CUgraph graph)
{
    const struct oh_driver *driver = comm->staging.driver;
    CUuserObject object;
    CUresult result = driver->user_object_create(&object, comm, graph_is_gone, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    atomic_fetch_add(&comm->graphs, 1);
    result = driver->graph_retain_user_object(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    if (result != CUDA_SUCCESS) {
        driver->user_object_release(object, 1); /* runs graph_is_gone */
    }
    return result;
}

/* A burst runs on the stream of its first call. */
static CUstream stream_of(const struct oh_burst *burst)
{
    return burst->calls[0].stream;
}

/* Eager: behind the last call, unless that is in the same stream. */
static CUresult order_eager(struct oh_burst *burst)
{
    struct oh_comm *comm = burst->calls[0].comm;
    const struct oh_driver *driver = comm->staging.driver;
    /* By id: handles come again after a stream is destroyed, and the per-thread default stream is one in each thread.
     */
    CUresult result = driver->stream_get_id(stream_of(burst), &burst->stream_id);
    if (result == CUDA_SUCCESS && comm->launched && burst->stream_id != comm->last_stream) {
        result = driver->stream_wait_event(stream_of(burst), comm->last_call, 0);
    }
    return result;
}

/* Under capture: behind the last call of the same graph. Streams have no id then, and live as long as the capture. */
static CUresult order_captured(struct oh_burst *burst, cuuint64_t id, CUgraph graph)
{
    struct oh_comm *comm = burst->calls[0].comm;
    CUresult result = CUDA_SUCCESS;
    if (id != comm->capture_id) {
        result = retain_for_graph(comm, graph);
    } else if (stream_of(burst) != comm->captured_stream || stream_of(burst) == CU_STREAM_PER_THREAD) {
        result = comm->staging.driver->stream_wait_event(stream_of(burst), comm->captured_call, 0);
    }
    if (result == CUDA_SUCCESS) {
        comm->capture_id = id;
    }
    return result;
}

/* Order after the last call of this communicator, in the world (eager, or one graph) that the stream is in now. */
static CUresult order_before(struct oh_burst *burst)
{
    const struct oh_driver *driver = burst->calls[0].comm->staging.driver;
    CUstreamCaptureStatus status;
    cuuint64_t id = 0;
    CUgraph graph = NULL;
    CUresult result = driver->stream_get_capture_info(stream_of(burst), &status, &id, &graph, NULL, NULL);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    burst->captured = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return burst->captured ? order_captured(burst, id, graph) : order_eager(burst);
}

static CUresult order_after(struct oh_burst *burst)
{
    struct oh_comm *comm = burst->calls[0].comm;
    CUstream stream = stream_of(burst);
    const struct oh_driver *driver = comm->staging.driver;
    if (burst->captured) {
        comm->captured_stream = stream;
        return driver->event_record(comm->captured_call, stream);
    }
    comm->launched = true;
    comm->last_stream = burst->stream_id;
    return driver->event_record(comm->last_call, stream);
}

static CUresult launch_call(const struct oh_call *call, CUstream stream)
{
    const struct oh_comm *comm = call->comm;
    struct oh_kernel_args args = comm->args;
    args.sendbuff = call->sendbuff;
    args.recvbuff = call->recvbuff;
    args.count = call->count;
    const struct oh_launch launch = {comm->staging.driver, comm->kernels, &call->plan, &call->op, call->type, stream};
    return oh_kernel_launch(&launch, &args);
}

static void count_call(const struct oh_call *call)
{
    struct oh_comm *comm = call->comm;
    atomic_fetch_add_explicit(&comm->calls[call->plan.algorithm], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&comm->bytes, call->count * oh_type_size(call->type), memory_order_relaxed);
}

/* For every other stream of the burst: the burst's stream waits for it (`before`), or it for the burst's stream. */
static CUresult join_streams(const struct oh_burst *burst, bool before)
{
    const struct oh_driver *driver = burst->calls[0].comm->staging.driver;
    CUevent event;
    CUresult result = driver->event_create(&event, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!before) {
        result = driver->event_record(event, stream_of(burst));
    }
    for (size_t i = 1; i < burst->count && result == CUDA_SUCCESS; i++) {
        CUstream stream = burst->calls[i].stream;
        if (stream == stream_of(burst) || stream == burst->calls[i - 1].stream) {
            continue;
        }
        if (before) {
            result = driver->event_record(event, stream);
        }
        if (result == CUDA_SUCCESS) {
            result = driver->stream_wait_event(before ? stream_of(burst) : stream, event, 0);
        }
    }
    driver->event_destroy(event); /* takes effect when the waits on it are done */
    return result;
}

static CUresult begin_in_context(struct oh_burst *burst)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 1; i < burst->count; i++) {
        burst->joined |= burst->calls[i].stream != stream_of(burst);
    }
    if (burst->joined) {
        result = join_streams(burst, true);
    }
    return result == CUDA_SUCCESS ? order_before(burst) : result;
}

/* Kernels that did go out must be known to have, even when a later one failed: memory is freed by that. */
static CUresult close_after_failure(struct oh_burst *burst, CUresult failure)
{
    if (burst->launched > 0) {
        order_after(burst);
    }
    return failure;
}

static CUresult launch_in_context(struct oh_burst *burst)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < OH_BURST_TURN && burst->launched < burst->count && result == CUDA_SUCCESS; i++) {
        const struct oh_call *call = &burst->calls[burst->launched];
        result = launch_call(call, stream_of(burst));
        if (result == CUDA_SUCCESS) {
            burst->launched++;
            count_call(call);
        }
    }
    return result == CUDA_SUCCESS ? result : close_after_failure(burst, result);
}

static CUresult end_in_context(struct oh_burst *burst)
{
    CUresult result = order_after(burst);
    return result == CUDA_SUCCESS && burst->joined ? join_streams(burst, false) : result;
}

static CUresult whole_in_context(struct oh_burst *burst)
{
    CUresult result = begin_in_context(burst);
    while (result == CUDA_SUCCESS && burst->launched < burst->count) {
        result = launch_in_context(burst);
    }
    return result == CUDA_SUCCESS ? end_in_context(burst) : result;
}

/* Runs one of the steps above in the communicator's context. */
static ncclResult_t in_context(struct oh_burst *burst, CUresult (*step)(struct oh_burst *))
{
    const struct oh_comm *comm = burst->calls[0].comm;
    const struct oh_staging *staging = &comm->staging;
    struct oh_context_scope scope;
    CUresult result = oh_context_enter(staging->driver, staging->context, &scope);
    if (result == CUDA_SUCCESS) {
        result = step(burst);
        oh_context_leave(staging->driver, &scope);
    }
    if (result != CUDA_SUCCESS) {
        OH_WARN("comm %p rank %u: launching an allreduce: %s", (void *)comm->nccl, comm->rank,
                oh_driver_error_name(staging->driver, result));
        return ncclUnhandledCudaError;
    }
    return ncclSuccess;
}

ncclResult_t oh_burst_begin(struct oh_burst *burst, const struct oh_call *calls, size_t count)
{
    *burst = (struct oh_burst){.calls = calls, .count = count};
    return in_context(burst, begin_in_context);
}

ncclResult_t oh_burst_turn(struct oh_burst *burst)
{
    return in_context(burst, launch_in_context);
}

ncclResult_t oh_burst_end(struct oh_burst *burst)
{
    return in_context(burst, end_in_context);
}

ncclResult_t oh_call_launch(const struct oh_call *call)
{
    struct oh_burst burst = {.calls = call, .count = 1};
    return in_context(&burst, whole_in_context);
}
