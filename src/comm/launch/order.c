/* SPDX-License-Identifier: MIT */
/*
 * order.c - the order of a communicator's calls on different streams and in graphs
 *
 * Does: Kernels of one communicator share epochs and slots, and must not overlap, but for the parts of a call. As NCCL
 *    does (2.28.9, src/misc/strongstream.cc), orders them in the order in which the host launches them:
 *      eager      OH_EVENT_LAUNCH is recorded after every call; a call on another stream waits for it. While graphs of
 *                 the communicator exist every call waits: a replay may have been launched since.
 *      captured   a call on another stream of the capture gets edges from the newest call (capture.c).
 *      graphs     the first call of a graph comes after an external wait for OH_EVENT_LAUNCH, and an external record of
 *                 it comes after the last. So a launch of the graph is one more call in the eager order.
 *      NCCL       a captured call that NCCL serves is ordered like onehop's. An eager call waits for OH_EVENT_LAUNCH if
 *                 it is on another stream; OH_EVENT_NCCL or OH_EVENT_NCCL_ALL_RANKS is recorded after it, and onehop's
 *                 next call waits for that event. The monitor queries the second: only an allreduce waits for all
 *                 ranks (nccl.c).
 *    A capture does not show which call is the last. So the record node is created after the first call and moved
 *    behind each further one: a graph under capture allows all changes but the removal of nodes
 *    (cuStreamGetCaptureInfo). The node is a leaf, so that the edges between kernels stay programmatic. A graph holds
 *    a reference on the communicator's memory, as NCCL's graphs do (src/enqueue.cc:1542), and so on OH_EVENT_LAUNCH.
 * Threads: the one that uses the communicator, unless launch.h says any.
 * Owns: nothing.
 */
#include "comm/launch/launch.h"

#include <stdio.h>

#include "comm/watch/watch.h"
#include "gpu/context.h"
#include "util/log.h"
#include "util/scope.h"

CUresult oh_order_get_stream(struct oh_stream_state *stream_state_p)
{
    CUstreamCaptureStatus status;
    struct oh_stream_state stream_state = {.known = true, .stream = stream_state_p->stream};
    OH_TRY(oh_driver.stream_get_capture_info(stream_state.stream, &status, &stream_state.capture_id,
                                             &stream_state.graph, NULL, NULL));
    if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        /* By id, which the driver does not return for a capturing stream: handles are reused, and the handle of the
         * per-thread default stream means another stream in each thread. */
        stream_state.graph = NULL;
        OH_TRY(oh_driver.stream_get_id(stream_state.stream, &stream_state.stream_id));
    }
    *stream_state_p = stream_state;
    return CUDA_SUCCESS;
}

CUresult oh_order_follow_launches(struct oh_comm *comm, const struct oh_stream_state *stream_state)
{
    bool moved = comm->order.launched && stream_state->stream_id != comm->order.last_stream;
    /* A replay may have been launched since. */
    bool replayed = comm->order.graph_mixing && atomic_load_explicit(&comm->order.graphs, memory_order_relaxed) > 0;
    return moved || replayed ? oh_driver.stream_wait_event(stream_state->stream, comm->order.event[OH_EVENT_LAUNCH], 0)
                             : CUDA_SUCCESS;
}

/* A communicator whose memory is freed waits for OH_EVENT_LAUNCH: so a record that fails is tried once more. */
CUresult oh_order_record_launch(struct oh_comm *comm, const struct oh_stream_state *stream_state)
{
    CUresult result = oh_driver.event_record(comm->order.event[OH_EVENT_LAUNCH], stream_state->stream);
    comm->order.launched = true;
    if (result == CUDA_SUCCESS) {
        comm->order.last_stream = stream_state->stream_id;
    } else {
        comm->order.unrecorded =
            oh_driver.event_record(comm->order.event[OH_EVENT_LAUNCH], stream_state->stream) != CUDA_SUCCESS;
    }
    return result;
}

CUresult oh_order_query(const struct oh_comm *comm)
{
    return comm->order.event[OH_EVENT_LAUNCH]
               ? oh_context_ignore_lost(oh_staging_query(&comm->staging, comm->order.event[OH_EVENT_LAUNCH]))
               : CUDA_SUCCESS;
}

CUresult oh_order_query_end(const struct oh_comm *comm)
{
    const bool may_replay = !comm->order.graph_mixing && atomic_load(&comm->order.graphs) > 0;
    return may_replay ? CUDA_ERROR_NOT_READY : oh_order_query(comm);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

CUresult oh_order_pass_on(struct oh_comm *comm, const struct oh_stream_state *stream_state, CUresult result)
{
    /* A query does so (CUDA programming guide, "Prohibited and Unhandled Operations"). */
    if (result != CUDA_SUCCESS && oh_comm_has_agreed(comm) && (stream_state->graph || !stream_state->known)) {
        oh_driver.stream_query(stream_state->stream);
    }
    return result;
}

bool oh_order_withdraw(struct oh_comm *comm, CUresult result)
{
    char reason[OH_REASON_BYTES];
    if (oh_order_is_void(result)) { /* NCCL gets the call, and returns the program's error */
        return !oh_comm_has_agreed(comm);
    }
    snprintf(reason, sizeof reason, "rank %u: calls cannot be put in order: %s", comm->id.rank,
             oh_driver_error_name(result));
    OH_LOCK(&comm->attach.mutex);
    if (oh_comm_is_settled(comm) || oh_comm_has_declined(comm)) {
        return !oh_comm_has_agreed(comm); /* another rank, or the program, was faster */
    }
    oh_segment_vote_no(&comm->segment, reason);
    return oh_segment_decision(&comm->segment) == OH_DECISION_OFF;
}

ncclResult_t oh_order_fail(struct oh_comm *comm, CUresult result, const char *what)
{
    if (oh_order_withdraw(comm, result)) {
        return ncclSuccess;
    }
    bool first = !oh_order_is_void(result) && oh_comm_fail(comm, ncclUnhandledCudaError, OH_MAX_RANKS);
    OH_WARN("comm %p rank %u: %s: %s%s", (void *)comm->id.nccl, comm->id.rank, what, oh_driver_error_name(result),
            first ? ": calls now return ncclUnhandledCudaError" : "");
    return ncclUnhandledCudaError;
}

ncclResult_t oh_order_refuse(struct oh_comm *comm, ncclResult_t res)
{
    if (res != ncclSuccess) {
        oh_comm_refuse_call(comm, false);
    }
    return res;
}

ncclResult_t oh_order_check(struct oh_comm *comm, const struct oh_stream_state *stream_state, CUresult result,
                            const char *what)
{
    return oh_order_pass_on(comm, stream_state, result) == CUDA_SUCCESS
               ? ncclSuccess
               : oh_order_refuse(comm, oh_order_fail(comm, result, what));
}
