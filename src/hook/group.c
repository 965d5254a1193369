/* SPDX-License-Identifier: MIT */
/*
 * group.c - calls between ncclGroupStart and ncclGroupEnd
 *
 * Does: Keeps calls that onehop serves and communicators that NCCL creates until the outermost ncclGroupEnd, when NCCL
 *    starts its part, too. The order is the same on all ranks: NCCL's part, the new communicators, the queued calls by
 *    communicator in the order of their keys. Communicators take turns of a few launches, so that a thread that drives
 *    many GPUs never fills the launch queue of one GPU before its peers have got their kernels.
 * Threads: one queue for each thread, thread-local.
 * Owns: the queue's arrays, until the thread ends.
 */

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hook/entry.h"
#include "util/log.h"
#include "util/scope.h"

/* A stream with calls of a communicator. */
struct stream_use {
    struct oh_comm *comm;
    CUstream stream;
    cuuint64_t capture; /* 0: not captured, or the only stream */
    bool served;        /* by onehop: one call at least */
    bool has_nccl_call; /* and one that NCCL serves */
    bool allreduce;     /* which is an allreduce */
    struct oh_nccl_call nccl_call;
};

/* The arrays live from their first use in a group to its end. */
struct group {
    int depth;
    ncclResult_t error; /* of the first call that onehop has refused: nothing of the group may run */
    struct oh_call *calls;
    size_t call_count, call_room;
    struct stream_use *use;
    size_t use_count, use_room;
    ncclComm_t in_nccl;        /* a communicator with a call that NCCL serves; NULL: none is known */
    struct oh_comm *creations; /* a list */
    struct oh_deferred *deferred;
    size_t deferred_count, deferred_room;
};

static __thread struct group group;

int oh_group_depth(void)
{
    return group.depth;
}

void oh_group_enter(void)
{
    group.depth++;
}

/* Returns ncclSuccess, or ncclSystemError (logged). */
static ncclResult_t append(void **array, size_t *count, size_t *room, const void *element, size_t size)
{
    if (*count == *room) {
        const size_t more = *room ? 2 * *room : 16;
        void *grown = realloc(*array, more * size);
        if (!grown) {
            OH_WARN("out of memory for the calls of a group");
            return ncclSystemError;
        }
        *array = grown;
        *room = more;
    }
    memcpy((char *)*array + *count * size, element, size);
    ++*count;
    return ncclSuccess;
}

static struct stream_use *find_use(const struct oh_comm *comm, CUstream stream)
{
    for (size_t i = 0; i < group.use_count; i++) {
        if (group.use[i].comm == comm && group.use[i].stream == stream) {
            return &group.use[i];
        }
    }
    return NULL;
}

/* NCCL's rule (2.28.9, src/enqueue.cc:2349): a communicator's streams in a group are all in one capture, or in none. */
static bool captured_like_others(const struct stream_use *use)
{
    for (size_t i = 0; i < group.use_count; i++) {
        if (group.use[i].comm == use->comm) {
            return group.use[i].capture == use->capture;
        }
    }
    return true;
}

/* Asks for the first stream's capture only when there is a second stream. */
static ncclResult_t get_captures(struct stream_use *use)
{
    struct stream_use *first = &group.use[0];
    if (group.use_count == 1) {
        OH_TRY(oh_comm_capture(first->comm, first->stream, &first->capture));
    }
    return oh_comm_capture(use->comm, use->stream, &use->capture);
}

ncclResult_t oh_group_add_stream(struct oh_comm *comm, CUstream stream, enum oh_group_call kind)
{
    struct stream_use *use = find_use(comm, stream);
    if (!use) {
        struct stream_use new_use = {.comm = comm, .stream = stream};
        OH_TRY(group.use_count > 0 ? get_captures(&new_use) : ncclSuccess);
        if (!captured_like_others(&new_use)) {
            OH_WARN("comm %p: the streams of a communicator in a group must be captured all, by one graph, or not at "
                    "all",
                    (void *)oh_comm_id(comm)->nccl);
            return ncclInvalidUsage;
        }
        OH_TRY(append((void **)&group.use, &group.use_count, &group.use_room, &new_use, sizeof new_use));
        use = &group.use[group.use_count - 1];
    }
    use->served |= kind == OH_CALL_SERVED;
    use->has_nccl_call |= kind == OH_CALL_NCCL || kind == OH_CALL_NCCL_ALLREDUCE;
    use->allreduce |= kind == OH_CALL_NCCL_ALLREDUCE;
    return ncclSuccess;
}

/* NCCL's rule for several communicators (doLaunches): all are captured, maybe by several graphs, or none. */
static bool communicators_alike(void)
{
    for (size_t i = 1; i < group.use_count; i++) {
        if ((group.use[i].capture != 0) != (group.use[0].capture != 0)) {
            OH_WARN("the communicators of a group must be captured all, or not at all");
            return false;
        }
    }
    return true;
}

ncclResult_t oh_group_fail(const struct oh_comm *comm, ncclResult_t error)
{
    if (error != ncclSuccess && group.depth > 0) {
        const struct oh_real *real = oh_comm_id(comm)->library;
        group.error = group.error == ncclSuccess ? error : group.error;
        /* NCCL's part must not run either, so NCCL gets a call that it refuses. */
        REAL(real, AllReduce(NULL, NULL, 1, (ncclDataType_t)-1, ncclSum, oh_comm_id(comm)->nccl, NULL));
    }
    return error;
}

void oh_group_note_forwarded(const struct oh_comm *comm)
{
    group.in_nccl = group.depth > 0 ? oh_comm_id(comm)->nccl : NULL;
}

/* NCCL has launched its part, or is launching it in the background. Returns the first failure. */
static ncclResult_t note_nccl_calls(bool in_background)
{
    ncclResult_t res = ncclSuccess;
    for (size_t i = 0; i < group.use_count; i++) {
        struct stream_use *use = &group.use[i];
        if (use->has_nccl_call) {
            ncclResult_t noted = in_background ? oh_order_after_nccl_async(use->comm, &use->nccl_call)
                                               : oh_order_after_nccl(use->comm, &use->nccl_call);
            res = res == ncclSuccess ? noted : res;
        }
    }
    return res;
}

/* The first stream of a communicator with calls in NCCL's part of the group, or in onehop's. */
static const struct stream_use *first_use(const struct oh_comm *comm, bool has_nccl_call)
{
    for (size_t i = 0; i < group.use_count; i++) {
        if (group.use[i].comm == comm && (has_nccl_call ? group.use[i].has_nccl_call : group.use[i].served)) {
            return &group.use[i];
        }
    }
    return NULL;
}

/*
 * NCCL joins the streams of each communicator in its part, onehop those in its own. This joins the two parts of a
 * communicator: each stream that is in one part alone (of_nccl: NCCL's) waits for the first stream of the other part
 * (waits), or that stream for it.
 */
static ncclResult_t join_parts(bool of_nccl, bool waits)
{
    for (size_t i = 0; i < group.use_count; i++) {
        const struct stream_use *one = &group.use[i];
        const struct stream_use *other = first_use(one->comm, !of_nccl);
        if (other && one->has_nccl_call == of_nccl && one->served != of_nccl) {
            OH_TRY(waits ? oh_comm_join(one->comm, other->stream, one->stream)
                         : oh_comm_join(one->comm, one->stream, other->stream));
        }
    }
    return ncclSuccess;
}

ncclResult_t oh_group_add_call(const struct oh_call *call)
{
    struct oh_call kept = *call;
    kept.serial = group.call_count;
    OH_TRY(oh_group_add_stream(call->comm, call->stream, OH_CALL_SERVED));
    return append((void **)&group.calls, &group.call_count, &group.call_room, &kept, sizeof kept);
}

void oh_group_add_creations(struct oh_comm *list)
{
    oh_creations_append(&group.creations, list);
}

ncclResult_t oh_group_defer(const struct oh_call *call, ncclRedOp_t op)
{
    const struct oh_deferred deferred = {.call = *call, .op = op};
    if (oh_comm_is_ordered(call->comm)) {
        OH_TRY(oh_group_add_stream(call->comm, call->stream, OH_CALL_DEFERRED));
    }
    return append((void **)&group.deferred, &group.deferred_count, &group.deferred_room, &deferred, sizeof deferred);
}

bool oh_group_keeps_op(const struct oh_comm *comm, ncclRedOp_t op)
{
    for (size_t i = 0; op >= ncclNumOps && i < group.deferred_count; i++) {
        struct oh_deferred *deferred = &group.deferred[i];
        if (deferred->call.comm == comm && deferred->op == op && !deferred->op_ends) {
            deferred->op_ends = true;
            return true;
        }
    }
    return false;
}

struct oh_deferred *oh_group_take_deferred(size_t *count_p)
{
    struct oh_deferred *deferred = group.deferred;
    *count_p = group.deferred_count;
    group.deferred = NULL;
    group.deferred_count = group.deferred_room = 0;
    return deferred;
}

/* Removes the items of a communicator from an array; each begins with a pointer to its communicator. */
static void remove_of(const struct oh_comm *comm, void *array, size_t *count, size_t size)
{
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++) {
        char *item = (char *)array + i * size;
        if (*(struct oh_comm *const *)(const void *)item != comm) {
            memmove((char *)array + kept++ * size, item, size);
        }
    }
    *count = kept;
}

_Static_assert(offsetof(struct oh_call, comm) == 0 && offsetof(struct stream_use, comm) == 0 &&
                   offsetof(struct oh_deferred, call) == 0,
               "remove_of finds the communicator at the beginning");

void oh_group_forget(const struct oh_comm *comm)
{
    remove_of(comm, group.calls, &group.call_count, sizeof *group.calls);
    remove_of(comm, group.use, &group.use_count, sizeof *group.use);
    remove_of(comm, group.deferred, &group.deferred_count, sizeof *group.deferred);
    group.in_nccl = group.in_nccl == oh_comm_id(comm)->nccl ? NULL : group.in_nccl;
}

/* By communicator in the order of keys, then in the order made. */
static int compare_calls(const void *a, const void *b)
{
    const struct oh_call *x = a, *y = b;
    int order = oh_key_compare(&oh_comm_id(x->comm)->key, &oh_comm_id(y->comm)->key);
    if (order == 0) {
        order = (oh_comm_id(x->comm)->rank > oh_comm_id(y->comm)->rank) -
                (oh_comm_id(x->comm)->rank < oh_comm_id(y->comm)->rank);
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

static ncclResult_t launch_queue(void)
{
    size_t count = 0;
    ncclResult_t res = ncclSuccess;
    struct oh_submission *submissions = malloc(group.call_count * sizeof *submissions);
    if (!submissions) {
        OH_WARN("out of memory for the calls of a group");
        return ncclSystemError;
    }
    qsort(group.calls, group.call_count, sizeof *group.calls, compare_calls);
    for (size_t i = 0, next; i < group.call_count && res == ncclSuccess; i = next) { /* one for each communicator */
        for (next = i + 1; next < group.call_count && group.calls[next].comm == group.calls[i].comm; next++) {
        }
        res = oh_submission_begin(&submissions[count++], &group.calls[i], next - i);
    }
    if (res == ncclSuccess) {
        res = round_robin(submissions, count);
    }
    for (size_t b = 0; b < count; b++) { /* after a failure, too: what was launched must be noted */
        ncclResult_t ended = submissions[b].launched > 0 ? oh_submission_end(&submissions[b]) : ncclSuccess;
        res = res == ncclSuccess ? ended : res;
    }
    free(submissions);
    return res;
}

/* The launch of a group makes all its communicators ready at once: waits for one that has no call of onehop's. */
static ncclResult_t await_other(const struct oh_real *real)
{
    ncclResult_t state = ncclInProgress;
    while (group.in_nccl && oh_comm_find(group.in_nccl) &&
           real->CommGetAsyncError(group.in_nccl, &state) == ncclSuccess && state == ncclInProgress) {
        usleep(20);
    }
    return state == ncclInProgress ? ncclSuccess : state; /* it is being aborted, or there is none */
}

/*
 * NCCL launches its part in the background, as for non-blocking communicators. Waits until it has: on a stream of both
 * parts the order must be the same on all ranks. The wait ends, because NCCL launches or fails, the monitor fails the
 * communicator, or another thread aborts it. A rank that is alive and does not call blocks stock NCCL here, too.
 */
static ncclResult_t await_nccl(const struct oh_real *real)
{
    for (size_t i = 0; i < group.use_count; i++) {
        struct oh_comm *comm = group.use[i].comm;
        ncclResult_t state = ncclInProgress;
        while (oh_comm_is_ordered(comm) && oh_comm_failure(comm) == ncclSuccess &&
               real->CommGetAsyncError(oh_comm_id(comm)->nccl, &state) == ncclSuccess && state == ncclInProgress) {
            usleep(20);
        }
        if (state != ncclSuccess) {
            ncclResult_t failure = oh_comm_failure(comm);
            return failure == ncclSuccess ? state : failure;
        }
    }
    return await_other(real);
}

/* A failure that the program has not caused may be this rank's alone: the other ranks have launched the group. */
static void fail_communicators(ncclResult_t res)
{
    if (res == ncclSuccess || res == ncclInProgress || oh_entry_is_rejected(res)) {
        return;
    }
    for (size_t i = 0; i < group.use_count; i++) {
        struct oh_comm *comm = group.use[i].comm;
        if (oh_comm_fail(comm, res, OH_MAX_RANKS)) {
            OH_WARN("comm %p rank %u of %u: a group with calls of this communicator has failed: calls now return error "
                    "%d",
                    (void *)oh_comm_id(comm)->nccl, oh_comm_id(comm)->rank, oh_comm_id(comm)->nranks, (int)res);
        }
        oh_comm_failure(comm); /* stops this rank's graphs */
    }
}

/* After NCCL's part: launches the queue, in order with the earlier and the later work of all streams. */
static ncclResult_t launch_part(void)
{
    const bool joins = group.use_count > 1;
    OH_TRY(joins ? join_parts(true, false) : ncclSuccess);
    OH_TRY(launch_queue());
    return joins ? join_parts(true, true) : ncclSuccess;
}

/*
 * After NCCL has ended the group with `res`: notes NCCL's calls, and launches onehop's. Returns the result of the whole
 * group; ncclInProgress: NCCL still works on its part.
 */
static ncclResult_t launch_group(const struct oh_real *real, ncclResult_t res)
{
    const ncclResult_t nccl = res == ncclInProgress && group.call_count > 0 ? await_nccl(real) : res;
    if (nccl != ncclSuccess && nccl != ncclInProgress) {
        return nccl;
    }
    OH_TRY(note_nccl_calls(nccl == ncclInProgress));
    if (nccl == ncclSuccess && group.call_count > 0) {
        OH_TRY(launch_part());
    }
    return res; /* still in progress: new communicators may be */
}

/* Before NCCL's part: orders it after the earlier work of all streams. */
static void order_before_nccl(void)
{
    if (group.error == ncclSuccess && group.use_count > 1) {
        oh_group_fail(group.use[0].comm, communicators_alike() ? join_parts(false, false) : ncclInvalidUsage);
    }
    for (size_t i = 0; i < group.use_count && group.error == ncclSuccess; i++) {
        struct stream_use *use = &group.use[i];
        if (use->has_nccl_call) {
            oh_order_before_nccl(use->comm, use->stream, use->allreduce, &use->nccl_call);
        }
    }
}

void oh_group_begin_end(bool simulate)
{
    OH_KEEP_ERRNO();
    if (group.depth != 1) {
        return;
    }
    for (size_t i = 0; i < group.use_count; i++) { /* another thread may abort them while this one blocks */
        oh_comm_begin_use(group.use[i].comm);
    }
    if (!simulate) {
        order_before_nccl();
    }
}

ncclResult_t oh_group_end(const struct oh_real *real, ncclResult_t res, bool simulate)
{
    if (group.depth == 0 || --group.depth > 0) {
        return res; /* depth 0: NCCL has rejected the call */
    }
    OH_KEEP_ERRNO();
    res = group.error == ncclSuccess ? res : group.error;
    oh_creations_finish(real, group.creations, simulate ? ncclInvalidUsage : res);
    if (!simulate) {
        res = launch_group(real, res);
        fail_communicators(res);
    }
    for (size_t i = 0; i < group.use_count; i++) {
        oh_comm_end_use(group.use[i].comm);
    }
    free(group.calls);
    free(group.use);
    free(group.deferred);
    group = (struct group){0};
    return res;
}
