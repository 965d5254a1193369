/* SPDX-License-Identifier: MIT */
/*
 * members.c - the communicators of a group
 *
 * Does: Keeps what a group knows of each communicator, and what waits for all of them at the group's end: for NCCL's
 *    launch in the background, and for the kernels of communicators that end.
 * Threads: the group's.
 * Owns: the members and their streams.
 */
#include "comm/call/internal.h"

#include <stdlib.h>
#include <unistd.h>

#include "comm/attach/attach.h"
#include "comm/launch/launch.h"
#include "comm/watch/watch.h"
#include "util/log.h"

__thread struct oh_group oh_group;

/* Where the list has the member, or ends. */
static struct oh_group_member **place_of(const struct oh_comm *comm, ncclComm_t handle)
{
    struct oh_group_member **at = &oh_group.members;
    while (*at && ((*at)->comm != comm || (*at)->handle != handle)) {
        at = &(*at)->next;
    }
    return at;
}

struct oh_group_member *oh_group_member_find(const struct oh_comm *comm)
{
    return *place_of(comm, comm->id.nccl);
}

struct oh_group_member *oh_group_member_add(struct oh_comm *comm, const struct oh_nccl *nccl, ncclComm_t handle)
{
    struct oh_group_member **at = place_of(comm, handle), *member = *at;
    if (member) {
        return member;
    }
    member = malloc(sizeof *member);
    if (!member) {
        OH_WARN("out of memory for the communicators of a group");
        return NULL;
    }
    member->next = NULL; /* by fields: first_stream is set when it is used, and zeros cost time */
    member->comm = comm;
    member->handle = handle;
    member->nccl = nccl;
    member->has_nccl_call = member->ends = false;
    member->needs_all_ranks = true;
    member->streams = NULL;
    *at = member;
    if (comm) {
        oh_comm_retain(comm);
    }
    return member;
}

ncclResult_t oh_group_note_result(ncclResult_t result)
{
    if (result != ncclSuccess && result != ncclInProgress && oh_group.error == ncclSuccess) {
        oh_group.error = result;
    }
    return result;
}

ncclResult_t oh_group_fail(const struct oh_comm *comm, ncclResult_t error)
{
    if (error != ncclSuccess) {
        oh_group_note_result(error);
        /* NCCL's part must not run either, so NCCL gets a call that it refuses. It may have freed what is aborted. */
        const ncclComm_t handle = oh_comm_is_aborted(comm) ? NULL : comm->id.nccl;
        OH_NCCL(comm->id.library, AllReduce(NULL, NULL, 1, (ncclDataType_t)-1, ncclSum, handle, NULL));
    }
    return error;
}

void oh_group_note_nccl(struct oh_group_member *member, const struct oh_call *call)
{
    member->has_nccl_call = true;
    member->needs_all_ranks &= oh_call_needs_all_ranks(call);
}

void oh_group_add_unknown(const struct oh_nccl *nccl, ncclComm_t comm)
{
    struct oh_group_member *member = oh_group_is_open() ? oh_group_member_add(NULL, nccl, comm) : NULL;
    if (member) {
        member->has_nccl_call = true;
    } else if (oh_group_is_open()) {
        oh_group_note_result(ncclSystemError); /* NCCL's part runs, so the others in the group fail on all ranks */
    }
}

void oh_group_add_end(struct oh_comm *comm)
{
    struct oh_group_member *member = oh_group_member_add(comm, comm->id.library, comm->id.nccl);
    if (member) {
        member->ends = true;
    }
}

bool oh_group_has_calls(const struct oh_comm *comm)
{
    const struct oh_group_member *member = oh_group_member_find(comm);
    bool found = member && member->has_nccl_call;
    for (size_t i = 0; i < oh_group.call_count; i++) {
        found |= oh_group.calls[i].comm == comm;
    }
    return found;
}

static void free_streams(struct oh_group_member *member)
{
    for (struct oh_group_stream *next; member->streams; member->streams = next) {
        next = member->streams->next;
        if (member->streams != &member->first_stream) {
            free(member->streams);
        }
    }
}

static void free_first(struct oh_group_member **list)
{
    struct oh_group_member *member = *list;
    *list = member->next;
    free_streams(member);
    if (member->comm) {
        oh_comm_release(member->comm);
    }
    free(member);
}

static void remove_calls(const struct oh_comm *comm)
{
    size_t kept = 0;
    for (size_t i = 0; i < oh_group.call_count; i++) {
        if (oh_group.calls[i].comm != comm) {
            oh_group.calls[kept++] = oh_group.calls[i];
        }
    }
    oh_group.call_count = kept;
}

void oh_group_forget(struct oh_comm *comm)
{
    struct oh_group_member **at = place_of(comm, comm->id.nccl);
    remove_calls(comm);
    if (*at && (*at)->ends) {
        free_streams(*at);
    } else if (*at) {
        free_first(at);
    }
}

void oh_group_members_free(void)
{
    while (oh_group.members) {
        free_first(&oh_group.members);
    }
}

void oh_group_members_fail(ncclResult_t res)
{
    for (const struct oh_group_member *member = oh_group.members; member; member = member->next) {
        if (!member->streams) {
            continue;
        }
        if (oh_comm_fail(member->comm, res, OH_MAX_RANKS)) {
            OH_WARN("comm %p rank %u of %u: a group with calls of this communicator has failed: calls now return error "
                    "%d",
                    OH_COMM_VALUES(member->comm), (int)res);
        }
        oh_comm_refuse_call(member->comm, false); /* stops this rank's graphs */
    }
}

/* --- waits -------------------------------------------------------------------------------------------------------- */

/* As oh_call_check for the group's calls of the communicator: sends and receives may not need a departed peer. */
static ncclResult_t refuse_group(struct oh_comm *comm)
{
    bool needs_departed = false;
    for (size_t i = 0; i < oh_group.call_count && oh_comm_state(comm) == OH_COMM_FAILING; i++) {
        needs_departed |= oh_group.calls[i].comm == comm && oh_call_needs_peers(&oh_group.calls[i]);
    }
    return oh_comm_refuse_call(comm, needs_departed);
}

/* False: another thread has aborted the communicator, and NCCL may have freed it; or it has failed. */
static bool may_await(const struct oh_group_member *member)
{
    struct oh_comm *comm = member->comm;
    return !comm || (oh_comm_is_registered(comm) && !oh_comm_is_aborted(comm) && refuse_group(comm) == ncclSuccess);
}

static ncclResult_t await_member(const struct oh_group_member *member)
{
    ncclResult_t state = ncclInProgress;
    while (may_await(member) && member->nccl->CommGetAsyncError(member->handle, &state) == ncclSuccess &&
           state == ncclInProgress) {
        usleep(20);
    }
    if (member->streams && state != ncclSuccess) {
        const ncclResult_t failure = refuse_group(member->comm);
        const ncclResult_t ended = state == ncclInProgress ? ncclInternalError : state; /* it is aborted */
        return failure == ncclSuccess ? ended : failure;
    }
    return state == ncclInProgress ? ncclSuccess : state; /* without streams, its end concerns no other */
}

ncclResult_t oh_group_await_nccl(const struct oh_nccl *nccl)
{
    for (const struct oh_group_member *member = oh_group.members; member; member = member->next) {
        if (member->nccl == nccl && (member->has_nccl_call || member->streams)) {
            OH_TRY(await_member(member));
        }
    }
    return ncclSuccess;
}

ncclResult_t oh_group_await_ends(ncclResult_t res)
{
    ncclResult_t differs = ncclSuccess;
    for (const struct oh_group_member *member = oh_group.members; member; member = member->next) {
        struct oh_comm *comm = member->comm;
        if (!member->ends) {
            continue;
        }
        while (res == ncclSuccess && !oh_comm_is_aborted(comm) && oh_comm_error(comm) == ncclSuccess &&
               oh_order_query_end(comm) == CUDA_ERROR_NOT_READY) {
            usleep(50);
        }
        const bool is_destroyed = !oh_comm_is_registered(comm); /* or it is finalized */
        const ncclResult_t of_comm = is_destroyed ? oh_comm_report_end(comm) : oh_difference_log(comm);
        differs = differs == ncclSuccess ? of_comm : differs;
    }
    return differs;
}
