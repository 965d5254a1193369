/* SPDX-License-Identifier: MIT */
/*
 * group.c - calls between ncclGroupStart and ncclGroupEnd
 *
 * Does: Keeps calls that onehop executes and communicators that NCCL creates until the outermost ncclGroupEnd, when
 *    NCCL starts its part, too. A communicator whose ranks have not agreed cannot say yet who executes a call, so the
 *    group keeps that call, and from then on all calls of all communicators, and decides them at its end, in the order
 *    made: one thread may drive the ranks that are waited for, and NCCL gets its calls in the program's order. The
 *    order of the rest is the same on all ranks: NCCL's part, the new communicators, onehop's calls (parts.c).
 * Threads: one group for each thread, thread-local.
 * Owns: the group's calls, until the group ends.
 */
#include "comm/call/internal.h"

#include <stdlib.h>

#include "comm/attach/attach.h"
#include "comm/launch/launch.h"
#include "comm/watch/watch.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/scope.h"

void oh_group_begin(void)
{
    oh_group.depth++;
}

/* Before a call gets a number, which would not be given back. */
static ncclResult_t make_room(void)
{
    if (oh_group.call_count == oh_group.call_room) {
        const size_t room = oh_group.call_room ? 2 * oh_group.call_room : 16;
        struct oh_call *grown = realloc(oh_group.calls, room * sizeof *grown);
        if (!grown) {
            OH_WARN("out of memory for the calls of a group");
            return ncclSystemError;
        }
        oh_group.calls = grown;
        oh_group.call_room = room;
    }
    return ncclSuccess;
}

static void add_call(struct oh_call *call)
{
    call->serial = oh_group.call_count;
    oh_group.calls[oh_group.call_count++] = *call;
}

/* --- a call ------------------------------------------------------------------------------------------------------- */

static bool must_keep(const struct oh_call *call)
{
    const bool is_undecided = oh_call_is_counted(call) && !oh_comm_is_settled(call->comm);
    /* A call on a communicator that is revoked returns NCCL's error. */
    return oh_comm_is_created(call->comm) && (oh_group.keeps || is_undecided) && oh_call_is_valid(call) &&
           !oh_comm_is_aborted(call->comm);
}

static ncclResult_t keep(struct oh_group_member *member, struct oh_call *call)
{
    struct oh_group_stream *stream;
    OH_TRY(oh_kept_config_add(&oh_group.configs, call));
    call->route = OH_ROUTE_PENDING;
    oh_group.keeps = true;
    if (oh_attach_wants(call)) {
        oh_attach_begin(call->comm, call->stream);
    }
    if (oh_call_has_work(call) && oh_comm_is_ordered(call->comm)) {
        OH_TRY(oh_group_stream_add(member, call, &stream));
    }
    add_call(call);
    return ncclSuccess;
}

/* NCCL makes the call, too, if it is chosen: in its part of the group, which comes before onehop's. */
static ncclResult_t add_verified(struct oh_group_member *member, struct oh_call *call, struct oh_group_stream *stream)
{
    size_t before = 0;
    for (size_t i = 0; i < oh_group.call_count; i++) {
        const struct oh_call *other = &oh_group.calls[i];
        before += other != call && other->comm == call->comm && other->route == OH_ROUTE_ONEHOP;
    }
    if (!oh_verify_choose(call, before)) {
        return ncclSuccess;
    }
    oh_group_note_nccl(member, call);
    stream->parts |= OH_GROUP_PART_NCCL;
    return oh_verified_forward(call);
}

/* onehop executes the call. */
static ncclResult_t add_served(struct oh_group_member *member, struct oh_call *call)
{
    struct oh_group_stream *stream;
    OH_TRY(oh_call_check_launched(call->comm));
    OH_TRY(oh_group_stream_add(member, call, &stream));
    OH_TRY(call->comm->verify.interval > 0 ? add_verified(member, call, stream) : ncclSuccess);
    stream->parts |= OH_GROUP_PART_ONEHOP;
    oh_group.serves = true;
    return ncclSuccess;
}

/* NCCL executes the call. */
static ncclResult_t add_nccl(struct oh_group_member *member, const struct oh_call *call)
{
    struct oh_group_stream *stream;
    if (!oh_call_has_work(call)) {
        return ncclSuccess;
    }
    oh_attach_note_call(call);
    oh_group_note_nccl(member, call);
    if (oh_comm_is_ordered(call->comm)) {
        OH_TRY(oh_group_stream_add(member, call, &stream));
        stream->parts |= OH_GROUP_PART_NCCL;
    }
    return ncclSuccess;
}

static ncclResult_t add_routed(struct oh_group_member *member, struct oh_call *call)
{
    oh_call_route(call);
    const ncclResult_t res = call->route == OH_ROUTE_ONEHOP ? add_served(member, call) : add_nccl(member, call);
    if (res != ncclSuccess) {
        oh_attach_end_call(call, false); /* NCCL does not get the call, so the next call gets its number */
    }
    return res;
}

/* Whether the call needs a peer that has departed counts at the end: the group may be an estimate. */
static ncclResult_t add(struct oh_call *call)
{
    OH_TRY(call->kind == OH_CALL_OP_DESTROY ? ncclSuccess : oh_comm_refuse_call(call->comm, false));
    oh_creations_query(call->comm);
    OH_TRY(oh_invariant_check(call));
    struct oh_group_member *member = oh_group_member_add(call->comm, call->comm->id.library, call->handle);
    if (!member) {
        return ncclSystemError;
    }
    OH_TRY(make_room());
    if (must_keep(call)) {
        return keep(member, call);
    }
    OH_TRY(add_routed(member, call));
    if (oh_kind_has_kernels(call->kind)) {
        add_call(call);
    }
    return ncclSuccess;
}

ncclResult_t oh_group_add(struct oh_call *call)
{
    OH_KEEP_ERRNO();
    return oh_group_fail(call->comm, add(call));
}

ncclResult_t oh_creations_end(const struct oh_nccl *library, struct oh_comm *list, ncclResult_t res)
{
    OH_KEEP_ERRNO();
    if (oh_group_is_open() && (res == ncclSuccess || res == ncclInProgress)) {
        oh_creations_keep_handles(list);
        oh_creations_append(&oh_group.creations, list);
    } else if (list) {
        const bool later = res == ncclSuccess && !list->id.next && oh_creation_is_in_progress(library, list);
        oh_creations_finish(library, list, later ? ncclInProgress : res);
    }
    return res;
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

/*
 * Ends the calls of the group that NCCL executes, or has rejected: then the next calls get their numbers. Compares
 * calls where ranks compare them: those that are executed, in the order made.
 */
static ncclResult_t end_calls(bool is_executed)
{
    ncclResult_t res = ncclSuccess;
    for (size_t i = oh_group.call_count; i-- > 0;) { /* the last number first */
        if (oh_group.calls[i].route == OH_ROUTE_NCCL) {
            oh_attach_end_call(&oh_group.calls[i], is_executed);
        }
    }
    for (size_t i = 0; i < oh_group.call_count && is_executed && res == ncclSuccess; i++) {
        const struct oh_call *call = &oh_group.calls[i];
        oh_attach_enter_served(call);
        res = call->route == OH_ROUTE_NCCL ? oh_call_note_executed(call) : oh_check_call(call);
    }
    return res;
}

/*
 * After NCCL has ended the group with `res`: notes NCCL's calls, and launches onehop's. Returns the result of the whole
 * group; ncclInProgress: NCCL still works on its part.
 */
static ncclResult_t launch_group(const struct oh_nccl *nccl, ncclResult_t res)
{
    const bool is_executed = oh_group.error == ncclSuccess && !oh_nccl_is_rejected(res);
    const ncclResult_t ended = end_calls(is_executed);
    const ncclResult_t of_nccl = res == ncclInProgress && oh_group.serves ? oh_group_await_nccl(nccl) : res;
    if (of_nccl != ncclSuccess && of_nccl != ncclInProgress) {
        return of_nccl;
    }
    OH_TRY(oh_group_end_nccl(of_nccl == ncclInProgress));
    if (ended != ncclSuccess) { /* the calls of one communicator differ; the other ranks launch those of the others */
        oh_group_members_fail(ended);
        return ended;
    }
    if (of_nccl == ncclSuccess && oh_group.serves) {
        OH_TRY(oh_group_launch());
    }
    return res; /* still in progress: new communicators may be */
}

/* --- the calls that are kept -------------------------------------------------------------------------------------- */

/* An estimate has no number, and NCCL estimates its own calls: a call that onehop may execute is left out. */
static ncclResult_t estimate(struct oh_call *call)
{
    const bool may_serve = oh_comm_state(call->comm) == OH_COMM_SERVED && oh_call_decide(call) == OH_FALLBACK_NONE;
    return may_serve || oh_attach_wants(call) ? ncclSuccess : oh_call_forward(call);
}

/* Makes a kept call now. Nothing of the group runs if that fails. */
static void make(struct oh_call *call)
{
    if (oh_group_fail(call->comm, add_routed(oh_group_member_find(call->comm), call)) != ncclSuccess) {
        call->route = OH_ROUTE_NONE;
    } else if (call->route == OH_ROUTE_NCCL) {
        oh_group_note_result(oh_call_forward(call));
    }
}

static void decide(struct oh_call *call, bool is_estimate)
{
    if (oh_comm_is_aborted(call->comm)) {
        /* By another thread meanwhile. NCCL, which may have freed it, returns this error from a call that waits. */
        call->route = OH_ROUTE_NONE;
        if (call->kind != OH_CALL_OP_DESTROY) {
            oh_group_fail(call->comm, ncclInternalError);
        }
    } else if (call->kind == OH_CALL_OP_DESTROY) {
        if (oh_call_forward(call) == ncclSuccess) {
            oh_comm_op_remove(call->comm, call->redop);
        }
    } else if (oh_group.error == ncclSuccess && is_estimate) {
        oh_group_note_result(estimate(call));
    } else if (oh_group.error == ncclSuccess) {
        make(call);
    }
}

/* Waits until the communicators of the kept calls have decided, and makes these calls in their order. */
static void decide_kept(bool is_estimate)
{
    const uint64_t start_ns = oh_now_ns();
    const size_t count = oh_group.call_count;
    for (size_t i = 0; i < count && !is_estimate && oh_group.error == ncclSuccess; i++) {
        if (oh_group.calls[i].route == OH_ROUTE_PENDING) {
            oh_attach_wait(oh_group.calls[i].comm, start_ns);
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (oh_group.calls[i].route == OH_ROUTE_PENDING) {
            decide(&oh_group.calls[i], is_estimate);
        }
    }
}

/*
 * A departed peer fails a communicator only at a call that needs the peer, and an estimate needs none. Another thread
 * may have aborted a communicator since the call.
 */
static void check_calls(void)
{
    for (size_t i = 0; i < oh_group.call_count && oh_group.error == ncclSuccess; i++) {
        const struct oh_call *call = &oh_group.calls[i];
        if (call->route == OH_ROUTE_ONEHOP && oh_comm_is_aborted(call->comm)) {
            oh_group_fail(call->comm, ncclInternalError);
        } else if (call->route == OH_ROUTE_ONEHOP || call->route == OH_ROUTE_NCCL) {
            oh_group_fail(call->comm, oh_call_check(call));
        }
    }
}

void oh_group_decide(bool is_estimate)
{
    OH_KEEP_ERRNO();
    if (oh_group.depth != 1) {
        return;
    }
    if (oh_group.keeps) { /* else no group asks for the time */
        decide_kept(is_estimate);
    }
    if (!is_estimate) {
        check_calls();
        oh_group_begin_nccl();
    }
}

ncclResult_t oh_group_end(const struct oh_nccl *nccl, ncclResult_t res, bool is_estimate)
{
    if (oh_group.depth == 0 || --oh_group.depth > 0) {
        return res; /* depth 0: NCCL has rejected the call */
    }
    OH_KEEP_ERRNO();
    res = oh_group.error == ncclSuccess ? res : oh_group.error;
    oh_creations_finish(nccl, oh_group.creations, is_estimate ? ncclInvalidUsage : res);
    if (is_estimate) {
        end_calls(false); /* a call that was not kept, since NCCL rejects its arguments, has a number */
    } else {
        res = launch_group(nccl, res);
        /* A failure that the program has not caused may be this rank's alone: the others have launched the group. */
        if (res != ncclSuccess && res != ncclInProgress && !oh_nccl_is_rejected(res)) {
            oh_group_members_fail(res);
        }
    }
    const ncclResult_t differs = oh_group_await_ends(res);
    oh_group_members_free();
    oh_kept_configs_free(oh_group.configs);
    free(oh_group.calls);
    oh_group = (struct oh_group){0};
    return res == ncclSuccess ? differs : res;
}
