/* SPDX-License-Identifier: MIT */
/*
 * parts.c - NCCL's part of a group, and onehop's
 *
 * Does: NCCL joins the streams of each communicator in its part of the group, onehop those in its own. This file joins
 *    the two parts, NCCL's first, and orders NCCL's part with onehop's other calls. It launches onehop's part, by
 *    communicator in the order of their keys, which is the same on all ranks. Communicators take turns of a few
 *    launches, so that a thread that drives many GPUs never fills the launch queue of one GPU before its peers have got
 *    their kernels.
 * Threads: the group's.
 * Owns: nothing.
 */
#include "comm/call/internal.h"

#include <stdlib.h>

#include "comm/launch/launch.h"
#include "util/log.h"

/* The first stream of the communicator with calls in a part of the group. */
static const struct oh_group_stream *first_in(const struct oh_group_member *member, enum oh_group_part part)
{
    const struct oh_group_stream *stream = member->streams;
    while (stream && !(stream->parts & part)) {
        stream = stream->next;
    }
    return stream;
}

/* The first member with streams; NULL: none. */
static struct oh_group_member *first_ordered(void)
{
    struct oh_group_member *member = oh_group.members;
    while (member && !member->streams) {
        member = member->next;
    }
    return member;
}

/* --- captures ----------------------------------------------------------------------------------------------------- */

static ncclResult_t get_capture(const struct oh_group_member *member, struct oh_group_stream *stream)
{
    if (!stream->is_capture_known) {
        OH_TRY(oh_comm_capture(member->comm, stream->stream, &stream->capture));
        stream->is_capture_known = true;
    }
    return ncclSuccess;
}

/* NCCL's rule (2.28.9, src/enqueue.cc:2349): a communicator's streams in a group are all in one capture, or in none. */
static ncclResult_t check_capture(const struct oh_group_member *member, struct oh_group_stream *stream)
{
    const struct oh_group_member *first = first_ordered();
    if (!first) {
        return ncclSuccess;
    }
    OH_TRY(get_capture(first, first->streams));
    OH_TRY(get_capture(member, stream));
    if (member->streams && member->streams->capture != stream->capture) {
        OH_WARN("comm %p: the streams of a communicator in a group must be captured all, by one graph, or not at all",
                (void *)member->handle);
        return ncclInvalidUsage;
    }
    return ncclSuccess;
}

/* NCCL's rule for several communicators (doLaunches): all are captured, maybe by several graphs, or none. */
static ncclResult_t check_captures(void)
{
    bool some = false, others = false;
    for (const struct oh_group_member *member = oh_group.members; member; member = member->next) {
        some |= member->streams && member->streams->capture != 0;
        others |= member->streams && member->streams->capture == 0;
    }
    if (some && others) {
        OH_WARN("the communicators of a group must be captured all, or not at all");
        return ncclInvalidUsage;
    }
    return ncclSuccess;
}

ncclResult_t oh_group_stream_add(struct oh_group_member *member, const struct oh_call *call,
                                 struct oh_group_stream **stream_p)
{
    struct oh_group_stream **at = &member->streams;
    while (*at && (*at)->stream != call->stream) {
        at = &(*at)->next;
    }
    if (!*at) {
        struct oh_group_stream added = {.stream = call->stream};
        OH_TRY(check_capture(member, &added));
        *at = member->streams ? malloc(sizeof **at) : &member->first_stream;
        if (!*at) {
            OH_WARN("out of memory for the streams of a group");
            return ncclSystemError;
        }
        **at = added;
    }
    *stream_p = *at;
    return ncclSuccess;
}

/* --- the order of the parts --------------------------------------------------------------------------------------- */

/*
 * Joins the two parts of each communicator: a stream that is in one part alone waits for the first stream of the other
 * part (waits), or that stream for it.
 */
static ncclResult_t join_parts(enum oh_group_part part, bool waits)
{
    const enum oh_group_part other_part = part == OH_GROUP_PART_NCCL ? OH_GROUP_PART_ONEHOP : OH_GROUP_PART_NCCL;
    for (const struct oh_group_member *member = oh_group.members; member; member = member->next) {
        const struct oh_group_stream *other = first_in(member, other_part);
        for (const struct oh_group_stream *one = member->streams; one && other; one = one->next) {
            if (one->parts == part) {
                OH_TRY(waits ? oh_comm_join(member->comm, other->stream, one->stream)
                             : oh_comm_join(member->comm, one->stream, other->stream));
            }
        }
    }
    return ncclSuccess;
}

/*
 * No rank completes NCCL's part without all others: it has calls of one communicator alone, each of which needs all
 * ranks. Calls of another one may be between them and the event behind the part, and wait for ranks of their own.
 */
static bool needs_all_ranks(void)
{
    const struct oh_comm *first = NULL;
    bool needs = true;
    for (const struct oh_group_member *member = oh_group.members; member && needs; member = member->next) {
        if (member->has_nccl_call) {
            first = first ? first : member->comm;
            needs =
                member->comm && member->needs_all_ranks && oh_key_compare(&member->comm->id.key, &first->id.key) == 0;
        }
    }
    return needs;
}

/* As NCCL's part does, what runs before it waits for all streams of the communicator: any may prepare a call's data. */
static ncclResult_t join_verified(void)
{
    for (const struct oh_group_member *member = oh_group.members; member; member = member->next) {
        const struct oh_group_stream *first = first_in(member, OH_GROUP_PART_NCCL);
        for (const struct oh_group_stream *one = first; one && member->comm->verify.interval > 0; one = one->next) {
            if ((one->parts & OH_GROUP_PART_NCCL) && one != first) {
                OH_TRY(oh_comm_join(member->comm, one->stream, first->stream));
            }
        }
    }
    return ncclSuccess;
}

/* NCCL has the calls already. */
static ncclResult_t begin_verified(void)
{
    bool joined = false;
    for (size_t i = 0; i < oh_group.call_count; i++) {
        const struct oh_call *call = &oh_group.calls[i];
        if (call->verified.count > 0) {
            OH_TRY(joined ? ncclSuccess : join_verified());
            joined = true;
            const struct oh_group_stream *first = first_in(oh_group_member_find(call->comm), OH_GROUP_PART_NCCL);
            OH_TRY(oh_verified_begin(call, first ? first->stream : call->stream));
        }
    }
    return ncclSuccess;
}

static ncclResult_t begin_nccl(void)
{
    const bool needs_all = needs_all_ranks();
    OH_TRY(check_captures());
    OH_TRY(join_parts(OH_GROUP_PART_ONEHOP, false));
    for (const struct oh_group_member *member = oh_group.members; member; member = member->next) {
        for (struct oh_group_stream *stream = member->streams; stream; stream = stream->next) {
            if (stream->parts & OH_GROUP_PART_NCCL) {
                oh_order_before_nccl(member->comm, stream->stream, needs_all, &stream->nccl_call);
            }
        }
    }
    return begin_verified();
}

void oh_group_begin_nccl(void)
{
    const struct oh_group_member *first = first_ordered();
    if (first && oh_group.error == ncclSuccess) {
        oh_group_fail(first->comm, begin_nccl());
    }
}

ncclResult_t oh_group_end_nccl(bool in_background)
{
    ncclResult_t res = ncclSuccess;
    const bool is_shared = oh_group.members && oh_group.members->next;
    const unsigned launch = in_background ? oh_order_new_launch(is_shared) : 0;
    for (const struct oh_group_member *member = oh_group.members; member; member = member->next) {
        for (struct oh_group_stream *stream = member->streams; stream; stream = stream->next) {
            if (stream->parts & OH_GROUP_PART_NCCL) {
                const ncclResult_t noted = oh_order_after_nccl(member->comm, &stream->nccl_call, launch);
                res = res == ncclSuccess ? noted : res;
            }
        }
    }
    return res;
}

/* --- the launches ------------------------------------------------------------------------------------------------- */

/* By communicator in the order of keys, then in the order made. */
static int compare_calls(const void *a, const void *b)
{
    const struct oh_call *x = a, *y = b;
    int order = oh_key_compare(&x->comm->id.key, &y->comm->id.key);
    if (order == 0) {
        order = (x->comm->id.rank > y->comm->id.rank) - (x->comm->id.rank < y->comm->id.rank);
    }
    return order ? order : (x->serial > y->serial) - (x->serial < y->serial);
}

static ncclResult_t round_robin(struct oh_submission *submissions, size_t count)
{
    for (bool more = true; more;) {
        more = false;
        for (size_t b = 0; b < count; b++) {
            if (submissions[b].launched < submissions[b].count) {
                OH_TRY(oh_submission_advance(&submissions[b]));
                more = true;
            }
        }
    }
    return ncclSuccess;
}

/* Removes the calls that onehop does not execute. */
static void keep_served(void)
{
    size_t kept = 0;
    for (size_t i = 0; i < oh_group.call_count; i++) {
        if (oh_group.calls[i].route == OH_ROUTE_ONEHOP) {
            oh_group.calls[kept++] = oh_group.calls[i];
        }
    }
    oh_group.call_count = kept;
}

static ncclResult_t launch_calls(void)
{
    size_t count = 0;
    keep_served();
    if (oh_group.call_count == 0) { /* their communicators have been aborted meanwhile */
        return ncclSuccess;
    }
    struct oh_submission *submissions = malloc(oh_group.call_count * sizeof *submissions);
    if (!submissions) {
        OH_WARN("out of memory for the calls of a group");
        return ncclSystemError;
    }
    struct oh_call *calls = oh_group.calls;
    qsort(calls, oh_group.call_count, sizeof *calls, compare_calls);
    for (size_t i = 0, next; i < oh_group.call_count; i = next) { /* one for each communicator */
        for (next = i + 1; next < oh_group.call_count && calls[next].comm == calls[i].comm; next++) {
        }
        submissions[count] = (struct oh_submission){.calls = &calls[i], .count = next - i};
        count++;
    }
    const ncclResult_t res = round_robin(submissions, count);
    for (size_t b = 0; b < count && res != ncclSuccess; b++) {
        if (submissions[b].kernels > 0 && submissions[b].launched < submissions[b].count) {
            oh_submission_leave(&submissions[b]);
        }
    }
    free(submissions);
    return res;
}

ncclResult_t oh_group_launch(void)
{
    OH_TRY(join_parts(OH_GROUP_PART_NCCL, false));
    OH_TRY(launch_calls());
    return join_parts(OH_GROUP_PART_NCCL, true);
}
