/* SPDX-License-Identifier: MIT */
/*
 * route.c - who executes a call
 *
 * Does: Decides it by what is equal on all ranks: the state of the communicator, its agreed table, and kind, count,
 *    datatype and op of the call. Makes calls to NCCL.
 * Threads: one at a time for a communicator, by NCCL's own rules.
 * Owns: nothing.
 */
#include "comm/call/internal.h"

#include <stdio.h>

#include "comm/attach/attach.h"
#include "comm/launch/launch.h"
#include "comm/watch/watch.h"
#include "util/log.h"
#include "util/scope.h"

ncclResult_t oh_nccl_refuse_missing(const char *name)
{
    OH_WARN("this NCCL has no %s", name);
    return ncclInvalidUsage;
}

/* --- NCCL's part -------------------------------------------------------------------------------------------------- */

#define OPTIONAL(name_, ...) (nccl->name_ ? nccl->name_(__VA_ARGS__) : oh_nccl_refuse_missing("nccl" #name_))
#define PLAIN(name_, ...) OPTIONAL(name_, __VA_ARGS__, c->handle, stream)
/* NCCL has a second function for the calls that the program configures. */
#define EITHER(name_, ...)                                                                                             \
    (c->has_config ? OPTIONAL(name_##Config, __VA_ARGS__, c->handle, stream, c->config) : PLAIN(name_, __VA_ARGS__))

static ncclResult_t forward(const struct oh_call *c)
{
    const struct oh_nccl *nccl = c->nccl;
    const cudaStream_t stream = (cudaStream_t)c->stream;
    switch (c->kind) {
    case OH_CALL_ALLREDUCE:
        return EITHER(AllReduce, c->sendbuff, c->recvbuff, c->count, c->type, c->redop);
    case OH_CALL_REDUCE:
        return EITHER(Reduce, c->sendbuff, c->recvbuff, c->count, c->type, c->redop, c->root);
    case OH_CALL_BROADCAST:
        return c->is_bcast ? PLAIN(Bcast, c->recvbuff, c->count, c->type, c->root)
                           : EITHER(Broadcast, c->sendbuff, c->recvbuff, c->count, c->type, c->root);
    case OH_CALL_REDUCE_SCATTER:
        return EITHER(ReduceScatter, c->sendbuff, c->recvbuff, c->count, c->type, c->redop);
    case OH_CALL_ALL_GATHER:
        return EITHER(AllGather, c->sendbuff, c->recvbuff, c->count, c->type);
    case OH_CALL_SEND:
        return PLAIN(Send, c->sendbuff, c->count, c->type, c->root);
    case OH_CALL_RECV:
        return PLAIN(Recv, c->recvbuff, c->count, c->type, c->root);
    case OH_CALL_ALL_TO_ALL:
        return EITHER(AlltoAll, c->sendbuff, c->recvbuff, c->count, c->type);
    case OH_CALL_GATHER:
        return EITHER(Gather, c->sendbuff, c->recvbuff, c->count, c->type, c->root);
    case OH_CALL_SCATTER:
        return EITHER(Scatter, c->sendbuff, c->recvbuff, c->count, c->type, c->root);
    case OH_CALL_OP_DESTROY:
        return nccl->RedOpDestroy(c->redop, c->handle);
    }
    return ncclInternalError;
}

ncclResult_t oh_call_forward(const struct oh_call *call)
{
    oh_nccl_depth++;
    const ncclResult_t res = forward(call);
    oh_nccl_depth--;
    return res;
}

/* --- who executes a call ------------------------------------------------------------------------------------------ */

/* True: all earlier calls of the communicator are past the cutover. */
static bool is_past_cutover(struct oh_call *call)
{
    switch (oh_comm_state(call->comm)) {
    case OH_COMM_SERVED:
        return true;
    case OH_COMM_FAILING: /* a captured call needs no peer yet */
        return oh_attach_is_past_cutover(call->comm);
    case OH_COMM_FAILED:
    case OH_COMM_FALLBACK:
    case OH_COMM_ENDED:
        return false;
    default:
        return oh_attach_count(call);
    }
}

void oh_call_route(struct oh_call *call)
{
    call->fallback = is_past_cutover(call) ? oh_call_decide(call) : OH_FALLBACK_COMM;
    call->route = call->fallback == OH_FALLBACK_NONE ? OH_ROUTE_ONEHOP : OH_ROUTE_NCCL;
}

/*
 * Only a call that needs the departed peer fails: not an empty call, nor a broadcast that NCCL executes, nor a call
 * that NCCL rejects, nor a captured call, which may never be replayed. If a replay waits for the peer, the monitor
 * detects that.
 */
static bool needs_departed(const struct oh_call *call)
{
    return oh_comm_state(call->comm) == OH_COMM_FAILING && oh_call_needs_peers(call) && oh_call_is_valid(call) &&
           !oh_order_is_captured(call->comm, call->stream);
}

ncclResult_t oh_call_check(const struct oh_call *call)
{
    return call->kind == OH_CALL_OP_DESTROY ? ncclSuccess : oh_comm_refuse_call(call->comm, needs_departed(call));
}

ncclResult_t oh_call_check_launched(struct oh_comm *comm)
{
    ncclResult_t state;
    if (!oh_comm_is_launching(comm) || oh_comm_query_nccl(comm, comm->id.library, &state) != ncclSuccess) {
        return ncclSuccess;
    }
    if (state == ncclInProgress) {
        OH_WARN("comm %p: call rejected: the previous call is still in progress; poll ncclCommGetAsyncError first",
                (void *)comm->id.nccl);
        return ncclInvalidArgument;
    }
    return state;
}

/* NCCL executes an allreduce of a communicator that is to be invariant. One rank's sum has one order. */
static void warn_variant(const struct oh_call *call)
{
    struct oh_comm *comm = call->comm;
    if (comm->id.config.invariant && comm->id.nranks != 1 && !comm->serve.warned_variant) {
        char reason[OH_REASON_BYTES];
        comm->serve.warned_variant = true;
        pthread_mutex_lock(&comm->attach.mutex); /* not while the message is written, which may block */
        snprintf(reason, sizeof reason, "%s", comm->attach.reason[0] ? comm->attach.reason : OH_PENDING_REASON);
        pthread_mutex_unlock(&comm->attach.mutex);
        OH_WARN("comm %p rank %u nranks %u: not invariant, NCCL executes its allreduces: %s", OH_COMM_VALUES(comm),
                call->fallback == OH_FALLBACK_COMM ? reason : oh_fallback_text(call->fallback));
    }
}

ncclResult_t oh_call_note_executed(const struct oh_call *call)
{
    struct oh_counters *counters = oh_comm_counters(call->comm);
    if (oh_kind_has_kernels(call->kind)) {
        oh_counter_add(&counters->fallbacks[call->fallback], 1);
        oh_counter_add(&counters->fallback_bytes, oh_call_bytes(call));
    }
    if (call->kind == OH_CALL_ALLREDUCE && call->count > 0) {
        warn_variant(call);
        oh_counter_add(&counters->nccl_allreduces, 1);
    }
    return oh_check_call(call);
}
