/* SPDX-License-Identifier: MIT */
/*
 * call.c - the begin and the end of a call
 *
 * Does: Executes a call with onehop's kernels, or has NCCL execute it, in order with onehop's: NCCL orders all calls of
 *    a communicator, whatever streams they are on. What a program can notice (which library executes a call, its
 *    number, an error) changes in here and at the end of a group, never between two calls.
 * Threads: one at a time for a communicator, by NCCL's own rules.
 * Owns: nothing.
 */
#include "comm/call/internal.h"

#include "comm/attach/attach.h"
#include "comm/launch/launch.h"
#include "comm/watch/watch.h"
#include "util/clock.h"
#include "util/scope.h"

static ncclResult_t serve(struct oh_call *call)
{
    OH_KEEP_ERRNO();
    OH_TRY(oh_call_check_launched(call->comm));
    OH_TRY(oh_check_call(call));
    OH_TRY(call->comm->verify.interval > 0 ? oh_verified_alone(call) : ncclSuccess);
    return oh_call_launch(call);
}

/* Attaches the communicator at the first call that onehop could serve, and waits for the other ranks. */
static void attach(const struct oh_call *call)
{
    OH_KEEP_ERRNO();
    oh_creations_query(call->comm);
    if (oh_attach_wants(call)) {
        oh_attach_begin(call->comm, call->stream);
        oh_attach_wait(call->comm, oh_now_ns());
    }
}

/* Orders the call, which NCCL executes, after onehop's. */
static void begin_nccl(struct oh_call *call)
{
    if (!oh_call_has_work(call)) {
        return;
    }
    oh_attach_note_call(call);
    call->is_ordered = oh_comm_is_ordered(call->comm);
    if (call->is_ordered) {
        OH_KEEP_ERRNO();
        oh_order_before_nccl(call->comm, call->stream, oh_call_needs_all_ranks(call), &call->order);
    }
}

static ncclResult_t begin_alone(struct oh_call *call)
{
    struct oh_comm *comm = call->comm;
    if (!oh_comm_is_settled(comm)) {
        attach(call);
        if (oh_comm_is_aborted(comm)) { /* by another thread meanwhile: NCCL's calls return this error then */
            return ncclInternalError;
        }
        OH_TRY(oh_invariant_check(call));
    }
    oh_call_route(call);
    if (oh_comm_state(comm) != OH_COMM_SERVED) {
        OH_TRY(oh_call_check(call));
        oh_attach_enter_served(call);
    }
    if (call->route == OH_ROUTE_ONEHOP) {
        return serve(call);
    }
    begin_nccl(call);
    return ncclSuccess;
}

enum oh_route oh_call_begin(struct oh_call *call, ncclResult_t *result_p)
{
    *result_p = oh_group_is_open() ? oh_group_add(call) : begin_alone(call);
    call->route = *result_p == ncclSuccess ? call->route : OH_ROUTE_NONE;
    return call->route;
}

/* NCCL has the call, and returned `res`. */
static ncclResult_t end_nccl(struct oh_call *call, ncclResult_t res)
{
    OH_KEEP_ERRNO();
    oh_attach_end_call(call, !oh_nccl_is_rejected(res));
    if (res != ncclSuccess && res != ncclInProgress) {
        return res;
    }
    if (call->is_ordered) {
        const unsigned launch = res == ncclInProgress ? oh_order_new_launch(false) : 0;
        OH_TRY(oh_order_after_nccl(call->comm, &call->order, launch));
    }
    OH_TRY(oh_call_note_executed(call));
    return res;
}

static ncclResult_t end_op(const struct oh_call *call, ncclResult_t res)
{
    OH_KEEP_ERRNO();
    if (res == ncclSuccess) {
        oh_comm_op_remove(call->comm, call->redop);
    }
    return res;
}

ncclResult_t oh_call_end(struct oh_call *call, ncclResult_t result)
{
    if (call->route != OH_ROUTE_NCCL) {
        return result;
    }
    if (call->kind == OH_CALL_OP_DESTROY) {
        return end_op(call, result);
    }
    return oh_group_is_open() ? oh_group_note_result(result) : end_nccl(call, result);
}
