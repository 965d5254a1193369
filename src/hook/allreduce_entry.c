/* SPDX-License-Identifier: MIT */
/*
 * allreduce_entry.c - ncclAllReduce, its ops, groups, ncclCommGetAsyncError, and the calls that NCCL always serves
 *
 * Does: Serves a call, or lets NCCL serve it, in order with those that onehop serves: NCCL orders all calls of a
 *    communicator, whatever streams they are on, and joins the streams of a group.
 * Threads: one at a time for a communicator, by NCCL's own rules; ncclCommGetAsyncError any.
 * Owns: nothing; group.c has the queue of a group.
 */
#include <stdlib.h>

#include "comm/attach/attach.h"
#include "hook/entry.h"
#include "util/clock.h"
#include "util/scope.h"
#include "util/log.h"

/*
 * NCCL may still be launching an earlier call of a non-blocking communicator whose state the program has not queried.
 * NCCL rejects other calls then (ncclCommEnsureReady, src/init.cc of 2.28.9), and so does onehop.
 */
static ncclResult_t check_launched(struct oh_comm *comm)
{
    const struct oh_real *real = oh_comm_id(comm)->library;
    ncclResult_t state = ncclInProgress;
    if (REAL(real, CommGetAsyncError(oh_comm_id(comm)->nccl, &state)) != ncclSuccess) {
        return ncclSuccess;
    }
    if (state == ncclInProgress) {
        OH_WARN("comm %p: a call before ncclCommGetAsyncError has said that the one before is launched",
                (void *)oh_comm_id(comm)->nccl);
        return ncclInvalidArgument;
    }
    oh_order_nccl_launched(comm);
    return state;
}

static ncclResult_t serve(const struct oh_call *call)
{
    OH_KEEP_ERRNO();
    const bool is_launching = oh_comm_is_launching(call->comm);
    if (!is_launching && oh_group_depth() == 0) {
        return oh_call_launch(call);
    }
    oh_comm_begin_use(call->comm);
    ncclResult_t res = is_launching ? check_launched(call->comm) : ncclSuccess;
    if (res == ncclSuccess) {
        res = oh_group_depth() > 0 ? oh_group_fail(call->comm, oh_group_add_call(call)) : oh_call_launch(call);
    }
    oh_comm_end_use(call->comm);
    return res;
}

/* Before and after NCCL gets a call of a communicator that is ordered. In a group, both happen at its end. */
static ncclResult_t begin_fallback(struct oh_comm *comm, CUstream stream, bool allreduce, struct oh_nccl_call *call_p)
{
    OH_KEEP_ERRNO();
    if (oh_group_depth() > 0) {
        const enum oh_group_call kind = allreduce ? OH_CALL_NCCL_ALLREDUCE : OH_CALL_NCCL;
        return oh_group_fail(comm, oh_group_add_stream(comm, stream, kind));
    }
    oh_order_before_nccl(comm, stream, allreduce, call_p);
    return ncclSuccess;
}

static ncclResult_t end_fallback(struct oh_comm *comm, struct oh_nccl_call *call, ncclResult_t res)
{
    OH_KEEP_ERRNO();
    if (oh_group_depth() > 0 || (res != ncclSuccess && res != ncclInProgress)) {
        return res;
    }
    ncclResult_t ordered = res == ncclSuccess ? oh_order_after_nccl(comm, call) : oh_order_after_nccl_async(comm, call);
    return ordered == ncclSuccess ? res : ordered;
}

static ncclResult_t fall_back(const struct oh_call *call, ncclRedOp_t op, bool settled)
{
    struct oh_comm *comm = call->comm;
    const struct oh_real *real = oh_comm_id(comm)->library;
    const bool works = call->count > 0, ordered = works && oh_comm_is_ordered(comm);
    struct oh_nccl_call nccl_call = {.result = CUDA_SUCCESS};
    OH_TRY(oh_group_fail(comm, oh_comm_failure(comm)));
    oh_comm_count_fallback(comm, call->count, call->type, op);
    if (works) {
        oh_group_note_forwarded(comm);
    }
    OH_TRY(ordered ? begin_fallback(comm, call->stream, true, &nccl_call) : ncclSuccess);
    ncclResult_t res = REAL(real, AllReduce(call->sendbuff, call->recvbuff, call->count, call->type, op,
                                            oh_comm_id(comm)->nccl, (cudaStream_t)call->stream));
    if (works && !settled && !oh_entry_is_rejected(res)) {
        oh_attach_note_work(comm);
    }
    return ordered ? end_fallback(comm, &nccl_call, res) : res;
}

/* A call that NCCL serves. */
struct forward {
    const struct oh_real *real;
    struct oh_comm *comm; /* NULL: no order to keep */
    struct oh_nccl_call nccl_call;
};

/* Before a call of the real function, in a group too. `works`: NCCL enqueues something. */
static ncclResult_t begin_forward(ncclComm_t comm, cudaStream_t stream, bool works, const void *caller,
                                  struct forward *forward_p)
{
    struct oh_comm *ours = oh_entry_find_comm(comm, caller, false);
    forward_p->comm = NULL;
    OH_TRY(oh_entry_real_of(ours, &forward_p->real, caller));
    if (ours) { /* a departed peer alone is no error here: it may have no part in this call */
        OH_TRY(oh_group_fail(ours, oh_comm_error(ours)));
    }
    if (ours && works) {
        oh_attach_note_work(ours);
        oh_group_note_forwarded(ours);
        if (oh_comm_is_ordered(ours)) {
            oh_comm_begin_use(ours);
            ncclResult_t res = begin_fallback(ours, (CUstream)stream, false, &forward_p->nccl_call);
            if (res != ncclSuccess) {
                oh_comm_end_use(ours);
                return res;
            }
            forward_p->comm = ours;
        }
    }
    oh_inside++;
    return ncclSuccess;
}

/* After the call, if begin_forward has succeeded. Returns the result of the call. */
static ncclResult_t end_forward(struct forward *forward, ncclResult_t result)
{
    oh_inside--;
    if (forward->comm) {
        result = end_fallback(forward->comm, &forward->nccl_call, result);
        oh_comm_end_use(forward->comm);
    }
    return result;
}

#define DEFINE(name_, parameters_, arguments_, works_)                                                                 \
    EXPORT ncclResult_t nccl##name_ parameters_                                                                        \
    {                                                                                                                  \
        struct forward forward;                                                                                        \
        OH_TRY(begin_forward(comm, stream, (works_) != 0, __builtin_return_address(0), &forward));                     \
        return end_forward(&forward,                                                                                   \
                           forward.real->name_ ? forward.real->name_ arguments_ : oh_entry_is_missing("nccl" #name_)); \
    }

OH_REAL_FORWARDED(DEFINE)

/* NCCL may have finished the creation since. */
static void check_creation(struct oh_comm *comm)
{
    const struct oh_real *real = oh_comm_id(comm)->library;
    ncclResult_t state = ncclInProgress;
    if (oh_comm_is_creating(comm) && REAL(real, CommGetAsyncError(oh_comm_id(comm)->nccl, &state)) == ncclSuccess) {
        oh_creations_poll(comm, state);
    }
}

/*
 * Serves the call, or falls back. Until the communicator is settled, calls are counted, but those without elements:
 * NCCL does nothing for them, so that a program may make them on some ranks only.
 */
static ncclResult_t route(struct oh_call *call, ncclRedOp_t op, bool settled)
{
    struct oh_comm *comm = call->comm;
    const bool counts = !settled && call->count > 0;
    const bool counted = counts && oh_comm_is_created(comm);
    if ((counted ? oh_attach_decide(comm) : settled) && oh_call_decide(call, op)) {
        return serve(call);
    }
    oh_comm_begin_use(comm); /* NCCL may block */
    ncclResult_t res = fall_back(call, op, settled);
    if (counts) {
        oh_attach_note_result(comm, counted, res);
    }
    oh_comm_end_use(comm);
    return res;
}

/* Begins the attach for a call that could be served, and waits for it, or in a group defers the call (true). */
static bool attach_or_defer(const struct oh_call *call, ncclRedOp_t op, ncclResult_t *res_p)
{
    struct oh_comm *comm = call->comm;
    OH_KEEP_ERRNO();
    check_creation(comm);
    if (!oh_attach_wants(call, op)) {
        return false;
    }
    oh_attach_begin(comm, call->stream);
    if (oh_group_depth() > 0) {
        *res_p = oh_group_fail(comm, oh_group_defer(call, op));
        return true;
    }
    oh_attach_wait(comm, oh_now_ns());
    return false;
}

/* A call of a communicator that is not settled. */
static ncclResult_t attach(struct oh_call *call, ncclRedOp_t op)
{
    struct oh_comm *comm = call->comm;
    ncclResult_t res = ncclSuccess;
    oh_comm_begin_use(comm); /* another thread may abort it while this one waits; then NCCL's calls return this error */
    if (!attach_or_defer(call, op, &res)) {
        res = oh_comm_is_aborted(comm) ? ncclInternalError : route(call, op, oh_comm_is_settled(comm));
    }
    oh_comm_end_use(comm);
    return res;
}

static ncclResult_t destroy_op(struct oh_comm *comm, ncclRedOp_t op)
{
    const struct oh_real *real = oh_comm_id(comm)->library;
    ncclResult_t res = REAL(real, RedOpDestroy(op, oh_comm_id(comm)->nccl));
    if (res == ncclSuccess) {
        OH_KEEP_ERRNO();
        oh_comm_op_remove(comm, op);
    }
    return res;
}

/* Takes the deferred calls, and waits until their communicators have decided. */
static struct oh_deferred *await_deferred(size_t *count_p)
{
    OH_KEEP_ERRNO();
    struct oh_deferred *deferred = oh_group_depth() == 1 ? oh_group_take_deferred(count_p) : NULL;
    const uint64_t start_ns = deferred ? oh_now_ns() : 0; /* most groups have none, and no time for a clock */
    for (size_t i = 0; i < *count_p; i++) {
        oh_comm_begin_use(deferred[i].call.comm);
    }
    for (size_t i = 0; i < *count_p; i++) {
        oh_attach_wait(deferred[i].call.comm, start_ns);
    }
    return deferred;
}

/* Decides and makes the calls that the outermost group has deferred. A failure becomes the group's. */
static void route_deferred(void)
{
    size_t count = 0;
    struct oh_deferred *deferred = await_deferred(&count);
    if (!deferred) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (!oh_comm_is_aborted(deferred[i].call.comm)) { /* else NCCL has freed it */
            route(&deferred[i].call, deferred[i].op, oh_comm_is_settled(deferred[i].call.comm));
        }
    }
    OH_KEEP_ERRNO();
    for (size_t i = 0; i < count; i++) {
        if (deferred[i].op_ends && !oh_comm_is_aborted(deferred[i].call.comm)) {
            destroy_op(deferred[i].call.comm, deferred[i].op);
        }
        oh_comm_end_use(deferred[i].call.comm);
    }
    free(deferred);
}

EXPORT ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    struct oh_comm *ours = oh_entry_find_comm(comm, __builtin_return_address(0), true);
    if (ours) {
        struct oh_call call = {.comm = ours,
                               .sendbuff = sendbuff,
                               .recvbuff = recvbuff,
                               .count = count,
                               .type = type,
                               .stream = (CUstream)stream};
        return oh_comm_is_settled(ours) ? route(&call, op, true) : attach(&call, op);
    }
    if (oh_inside == 0) {
        oh_stats_count_unknown();
    }
    GET_REAL(real);
    return REAL(real, AllReduce(sendbuff, recvbuff, count, type, op, comm, stream));
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    struct oh_comm *ours = active_comm(comm);
    GET_REAL_OF(ours, real);
    ncclResult_t res = REAL(real, CommGetAsyncError(comm, error));
    if (ours && res == ncclSuccess && *error != ncclInProgress && oh_comm_is_launching(ours)) {
        OH_KEEP_ERRNO();
        oh_order_nccl_launched(ours);
    }
    if (ours && res == ncclSuccess && oh_comm_is_creating(ours)) {
        oh_creations_poll(ours, *error);
    }
    if (ours && res == ncclSuccess && (*error == ncclSuccess || *error == ncclInProgress)) {
        /* While the communicator ends, the state is NCCL's. */
        ncclResult_t failure = oh_comm_error(ours);
        *error = failure != ncclSuccess && oh_comm_is_in_use(ours) ? failure : *error;
    }
    return res;
}

EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                             ncclScalarResidence_t residence, ncclComm_t comm)
{
    struct oh_comm *ours = active_comm(comm);
    GET_REAL_OF(ours, real);
    ncclResult_t res = REAL(real, RedOpCreatePreMulSum(op, scalar, type, residence, comm));
    if (ours && res == ncclSuccess) {
        OH_KEEP_ERRNO();
        res = oh_comm_op_add(ours, *op, type, scalar, residence == ncclScalarDevice);
        if (res != ncclSuccess) { /* a rank that does not know the op would decide unlike the other ranks */
            REAL(real, RedOpDestroy(*op, comm));
        }
    }
    return res;
}

EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    struct oh_comm *ours = active_comm(comm);
    GET_REAL_OF(ours, real);
    if (!ours) {
        return REAL(real, RedOpDestroy(op, comm));
    }
    return oh_group_keeps_op(ours, op) ? ncclSuccess : destroy_op(ours, op);
}

EXPORT ncclResult_t ncclGroupStart(void)
{
    GET_REAL(real);
    ncclResult_t res = REAL(real, GroupStart());
    if (res == ncclSuccess && oh_inside == 0) {
        oh_group_enter();
    }
    return res;
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
    GET_REAL(real);
    if (oh_inside > 0) {
        return real->GroupEnd();
    }
    route_deferred();
    oh_group_begin_end(false);
    return oh_group_end(real, REAL(real, GroupEnd()), false);
}

EXPORT ncclResult_t ncclGroupSimulateEnd(struct ncclSimInfo_v22200 *info)
{
    GET_REAL(real);
    NEED_REAL(real, GroupSimulateEnd);
    if (oh_inside > 0) {
        return real->GroupSimulateEnd(info);
    }
    route_deferred();
    oh_group_begin_end(true);
    return oh_group_end(real, REAL(real, GroupSimulateEnd(info)), true);
}
