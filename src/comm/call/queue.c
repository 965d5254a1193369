/* SPDX-License-Identifier: MIT */
/*
 * queue.c - the launches of a group
 *
 * Does: Launches the calls that onehop executes, in order with the earlier and the later work of all streams: by
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
    OH_TRY(oh_group_join(OH_GROUP_PART_NCCL, false));
    OH_TRY(launch_calls());
    return oh_group_join(OH_GROUP_PART_NCCL, true);
}
