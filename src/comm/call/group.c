/* SPDX-License-Identifier: MIT */
/*
 * group.c - calls between ncclGroupStart and ncclGroupEnd
 *
 * Does: Keeps calls that onehop executes and communicators that NCCL creates until the outermost ncclGroupEnd, when
 *    NCCL starts its part, too. A communicator whose ranks have not agreed cannot say yet who executes a call, so the
 *    group keeps that call, and from then on all calls of all communicators, and decides them at its end, in the order
 *    made: one thread may drive the ranks that are waited for, and NCCL gets its calls in the program's order. The
 *    order of the rest is the same on all ranks: NCCL's part, the new communicators, onehop's calls by communicator in
 *    the order of their keys. Communicators take turns of a few launches, so that a thread that drives many GPUs never
 *    fills the launch queue of one GPU before its peers have got their kernels.
 * Threads: one queue for each thread, thread-local.
 * Owns: the queue's arrays, until the group ends.
 */
#include "comm/call/internal.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/attach/attach.h"
#include "comm/launch/launch.h"
#include "comm/watch/watch.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/scope.h"

#define OH_CALL_CONFIG_MAX 4096 /* bytes; 72 in NCCL 2.32 */

/* A stream with calls of a communicator. */
struct stream_use {
    struct oh_comm *comm;
    CUstream stream;
    cuuint64_t capture; /* 0: not captured, or the only stream */
    bool served;        /* onehop executes a call on it */
    bool has_nccl_call; /* NCCL executes a call on it */
    struct oh_nccl_call nccl_call;
};

/* The arrays live from their first use in a group to its end. */
struct group {
    int depth;
    ncclResult_t error;    /* of the first call that onehop or NCCL has refused: nothing of the group runs */
    struct oh_call *calls; /* in the order made: those that are kept, and those for which there are kernels; retained */
    size_t call_count, call_room;
    size_t served_count;         /* calls that onehop executes */
    bool keeps;                  /* a call is kept, and so are all further calls */
    struct kept_config *configs; /* of kept calls; a list */
    struct stream_use *use;      /* retained, as the calls */
    size_t use_count, use_room;
    ncclComm_t in_nccl;        /* a communicator with a call that NCCL executes; NULL: none is known */
    struct oh_key key_in_nccl; /* its key */
    bool mixes_in_nccl;        /* so has one of another key */
    ncclComm_t unknown;        /* a communicator with a call that onehop does not know; NULL: none */
    const struct oh_nccl *unknown_nccl;
    struct oh_comm *creations; /* a list */
    struct oh_comm **ends;     /* communicators that end in the group; retained */
    size_t end_count, end_room;
};

/* A copy of a call's configuration, which is the program's until the call returns. */
struct kept_config {
    struct kept_config *next;
    _Alignas(max_align_t) char bytes[];
};

static __thread struct group group;

bool oh_group_is_open(void)
{
    return group.depth > 0;
}

void oh_group_begin(void)
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

/* Notes the stream of a call of an ordered communicator. Returns as oh_group_add does. */
static ncclResult_t add_stream(const struct oh_call *call, struct stream_use **use_p)
{
    struct stream_use *use = find_use(call->comm, call->stream);
    if (!use) {
        struct stream_use new_use = {.comm = call->comm, .stream = call->stream};
        OH_TRY(group.use_count > 0 ? get_captures(&new_use) : ncclSuccess);
        if (!captured_like_others(&new_use)) {
            OH_WARN("comm %p: the streams of a communicator in a group must be captured all, by one graph, or not at "
                    "all",
                    (void *)call->handle);
            return ncclInvalidUsage;
        }
        OH_TRY(append((void **)&group.use, &group.use_count, &group.use_room, &new_use, sizeof new_use));
        oh_comm_retain(call->comm);
        use = &group.use[group.use_count - 1];
    }
    *use_p = use;
    return ncclSuccess;
}

static ncclResult_t add_call(struct oh_call *call)
{
    call->serial = group.call_count;
    OH_TRY(append((void **)&group.calls, &group.call_count, &group.call_room, call, sizeof *call));
    oh_comm_retain(call->comm);
    return ncclSuccess;
}

/* NCCL's rule for several communicators (doLaunches): all are captured, maybe by several graphs, or none. */
static bool are_captured_alike(void)
{
    for (size_t i = 1; i < group.use_count; i++) {
        if ((group.use[i].capture != 0) != (group.use[0].capture != 0)) {
            OH_WARN("the communicators of a group must be captured all, or not at all");
            return false;
        }
    }
    return true;
}

ncclResult_t oh_group_note_result(ncclResult_t result)
{
    if (result != ncclSuccess && result != ncclInProgress && group.error == ncclSuccess) {
        group.error = result;
    }
    return result;
}

/* A call has failed before NCCL got it. Returns `error`. */
static ncclResult_t fail_group(const struct oh_call *call, ncclResult_t error)
{
    if (error != ncclSuccess) {
        oh_group_note_result(error);
        /* NCCL's part must not run either, so NCCL gets a call that it refuses. It may have freed what is aborted. */
        const ncclComm_t comm = oh_comm_is_aborted(call->comm) ? NULL : call->comm->id.nccl;
        OH_NCCL(call->comm->id.library, AllReduce(NULL, NULL, 1, (ncclDataType_t)-1, ncclSum, comm, NULL));
    }
    return error;
}

/* NCCL has launched its part, or is launching it in the background. Returns the first failure. */
static ncclResult_t note_nccl_calls(bool in_background)
{
    ncclResult_t res = ncclSuccess;
    const unsigned launch = in_background ? oh_order_new_launch(group.use_count > 1) : 0;
    for (size_t i = 0; i < group.use_count; i++) {
        struct stream_use *use = &group.use[i];
        if (use->has_nccl_call) {
            const ncclResult_t noted = oh_order_after_nccl(use->comm, &use->nccl_call, launch);
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

enum part {
    OH_PART_ONEHOP,
    OH_PART_NCCL
};

/*
 * NCCL joins the streams of each communicator in its part, onehop those in its own. This joins the two parts of a
 * communicator: each stream that is in `part` alone waits for the first stream of the other part (waits), or that
 * stream for it.
 */
static ncclResult_t join_parts(enum part part, bool waits)
{
    const bool of_nccl = part == OH_PART_NCCL;
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

/* --- a call ------------------------------------------------------------------------------------------------------- */

static bool must_keep(const struct oh_call *call)
{
    const bool is_undecided = oh_call_is_counted(call) && !oh_comm_is_settled(call->comm);
    /* A call on a communicator that is revoked returns NCCL's error. */
    return oh_comm_is_created(call->comm) && (group.keeps || is_undecided) && oh_call_is_valid(call) &&
           !oh_comm_is_aborted(call->comm);
}

/* The beginning of ncclCollConfig_t in NCCL 2.31 and 2.32, which later versions keep (nccl.h). */
struct call_config {
    size_t size;
    unsigned magic, version;
    const void *extensions; /* a list of other vendors', which NCCL ignores */
    int limits[4];
    const char *algorithms;
};

/* Of one without NCCL's mark, for which NCCL rejects the call, nothing but the head is read. */
static ncclResult_t keep_config(struct oh_call *call)
{
    const struct call_config *given = (const void *)call->config;
    const bool is_known = given && given->magic == OH_NCCL_CONFIG_MAGIC;
    if (!given || (is_known && (given->size < sizeof *given || given->size > OH_CALL_CONFIG_MAX))) {
        return ncclSuccess; /* none, or one that NCCL rejects, or that has grown */
    }
    const size_t size = is_known ? given->size : offsetof(struct call_config, version);
    const size_t length = is_known && given->algorithms ? strlen(given->algorithms) + 1 : 0;
    struct kept_config *kept = calloc(1, sizeof *kept + sizeof *given + size + length);
    if (!kept) {
        OH_WARN("out of memory for the calls of a group");
        return ncclSystemError;
    }
    kept->next = group.configs;
    group.configs = kept;
    struct call_config *copy = memcpy(kept->bytes, given, size);
    copy->extensions = NULL;
    if (length > 0) {
        copy->algorithms = memcpy(kept->bytes + size, given->algorithms, length);
    }
    call->config = (const void *)copy;
    return ncclSuccess;
}

static void free_configs(void)
{
    for (struct kept_config *kept = group.configs, *next; kept; kept = next) {
        next = kept->next;
        free(kept);
    }
}

static ncclResult_t keep(struct oh_call *call)
{
    struct stream_use *use;
    OH_TRY(keep_config(call));
    call->route = OH_ROUTE_PENDING;
    group.keeps = true;
    if (oh_attach_wants(call)) {
        oh_attach_begin(call->comm, call->stream);
    }
    OH_TRY(oh_call_has_work(call) && oh_comm_is_ordered(call->comm) ? add_stream(call, &use) : ncclSuccess);
    return add_call(call);
}

/* NCCL has a call on the stream. */
static void note_nccl_call(struct stream_use *use, const struct oh_call *call)
{
    use->nccl_call.needs_all_ranks =
        oh_call_needs_all_ranks(call) && (!use->has_nccl_call || use->nccl_call.needs_all_ranks);
    use->has_nccl_call = true;
}

/* NCCL makes the call, too, if it is chosen: in its part of the group, which comes before onehop's. */
static ncclResult_t add_verified(struct oh_call *call, struct stream_use *use)
{
    size_t before = 0;
    for (size_t i = 0; i < group.call_count; i++) {
        const struct oh_call *other = &group.calls[i];
        before += other != call && other->comm == call->comm && other->route == OH_ROUTE_ONEHOP;
    }
    if (!oh_verify_choose(call, before)) {
        return ncclSuccess;
    }
    note_nccl_call(use, call);
    return oh_verified_forward(call);
}

/* onehop executes the call. */
static ncclResult_t add_served(struct oh_call *call)
{
    struct stream_use *use;
    OH_TRY(oh_comm_is_launching(call->comm) ? oh_call_check_launched(call->comm) : ncclSuccess);
    OH_TRY(add_stream(call, &use));
    OH_TRY(call->comm->verify.interval > 0 ? add_verified(call, use) : ncclSuccess);
    use->served = true;
    group.served_count++;
    return ncclSuccess;
}

/* NCCL executes the call. */
static ncclResult_t add_nccl(const struct oh_call *call)
{
    struct stream_use *use;
    if (!oh_call_has_work(call)) {
        return ncclSuccess;
    }
    oh_attach_note_call(call);
    group.mixes_in_nccl |= group.in_nccl && oh_key_compare(&group.key_in_nccl, &call->comm->id.key) != 0;
    group.in_nccl = call->handle;
    group.key_in_nccl = call->comm->id.key;
    if (oh_comm_is_ordered(call->comm)) {
        OH_TRY(add_stream(call, &use));
        note_nccl_call(use, call);
    }
    return ncclSuccess;
}

static ncclResult_t add_routed(struct oh_call *call)
{
    oh_call_route(call);
    const ncclResult_t res = call->route == OH_ROUTE_ONEHOP ? add_served(call) : add_nccl(call);
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
    if (must_keep(call)) {
        return keep(call);
    }
    OH_TRY(add_routed(call));
    return oh_kind_has_kernels(call->kind) ? add_call(call) : ncclSuccess;
}

ncclResult_t oh_group_add(struct oh_call *call)
{
    OH_KEEP_ERRNO();
    return fail_group(call, add(call));
}

void oh_creations_end(const struct oh_nccl *library, struct oh_comm *list, ncclResult_t res)
{
    OH_KEEP_ERRNO();
    if (oh_group_is_open() && (res == ncclSuccess || res == ncclInProgress)) {
        oh_creations_keep_handles(list);
        oh_creations_append(&group.creations, list);
    } else if (list) {
        const bool later = res == ncclSuccess && !list->id.next && oh_creation_is_in_progress(library, list);
        oh_creations_finish(library, list, later ? ncclInProgress : res);
    }
}

/* Removes the items of a communicator from an array; each begins with a pointer to its communicator. */
static void remove_of(struct oh_comm *comm, void *array, size_t *count, size_t size)
{
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++) {
        char *item = (char *)array + i * size;
        if (*(struct oh_comm *const *)(const void *)item != comm) {
            memmove((char *)array + kept++ * size, item, size);
        } else {
            oh_comm_release(comm);
        }
    }
    *count = kept;
}

_Static_assert(offsetof(struct oh_call, comm) == 0 && offsetof(struct stream_use, comm) == 0,
               "remove_of finds the communicator at the beginning");

/* It may be between the calls of the others and the events behind the group, and wait for ranks of its own. */
void oh_group_note_unknown(const struct oh_nccl *nccl, ncclComm_t comm)
{
    if (oh_group_is_open()) {
        group.mixes_in_nccl = true;
        group.unknown = comm;
        group.unknown_nccl = nccl;
    }
}

bool oh_group_has_calls(const struct oh_comm *comm)
{
    bool found = group.in_nccl == comm->id.nccl;
    for (size_t i = 0; i < group.call_count; i++) {
        found |= group.calls[i].comm == comm;
    }
    return found;
}

void oh_group_forget(struct oh_comm *comm)
{
    remove_of(comm, group.calls, &group.call_count, sizeof *group.calls);
    remove_of(comm, group.use, &group.use_count, sizeof *group.use);
    group.in_nccl = group.in_nccl == comm->id.nccl ? NULL : group.in_nccl;
}

void oh_group_add_end(struct oh_comm *comm)
{
    const size_t size = sizeof(struct oh_comm *); /* NOLINT(bugprone-sizeof-expression): pointers are kept */
    if (append((void **)&group.ends, &group.end_count, &group.end_room, &comm, size) == ncclSuccess) {
        oh_comm_retain(comm);
    }
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

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
    for (size_t i = 0; i < group.call_count; i++) {
        if (group.calls[i].route == OH_ROUTE_ONEHOP) {
            group.calls[kept++] = group.calls[i];
        } else {
            oh_comm_release(group.calls[i].comm);
        }
    }
    group.call_count = kept;
}

static ncclResult_t launch_queue(void)
{
    size_t count = 0;
    keep_served();
    if (group.call_count == 0) { /* their communicators have been aborted meanwhile */
        return ncclSuccess;
    }
    struct oh_submission *submissions = malloc(group.call_count * sizeof *submissions);
    if (!submissions) {
        OH_WARN("out of memory for the calls of a group");
        return ncclSystemError;
    }
    qsort(group.calls, group.call_count, sizeof *group.calls, compare_calls);
    for (size_t i = 0, next; i < group.call_count; i = next) { /* one for each communicator */
        for (next = i + 1; next < group.call_count && group.calls[next].comm == group.calls[i].comm; next++) {
        }
        submissions[count] = (struct oh_submission){.calls = &group.calls[i], .count = next - i};
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

/* The launch of a group makes all its communicators ready at once: waits for one that has no call of onehop's. */
static ncclResult_t await_other(const struct oh_nccl *nccl)
{
    ncclResult_t state = ncclInProgress;
    while (group.in_nccl && oh_comm_find(group.in_nccl) &&
           nccl->CommGetAsyncError(group.in_nccl, &state) == ncclSuccess && state == ncclInProgress) {
        usleep(20);
    }
    while (group.unknown && group.unknown_nccl == nccl && state == ncclInProgress &&
           nccl->CommGetAsyncError(group.unknown, &state) == ncclSuccess && state == ncclInProgress) {
        usleep(20);
    }
    return state == ncclInProgress ? ncclSuccess : state; /* it is being aborted, or there is none */
}

/* As oh_call_check for the group's calls of the communicator: sends and receives may not need a departed peer. */
static ncclResult_t refuse_group(struct oh_comm *comm)
{
    bool needs_departed = false;
    for (size_t i = 0; i < group.call_count && oh_comm_state(comm) == OH_COMM_FAILING; i++) {
        needs_departed |= group.calls[i].comm == comm && oh_call_needs_peers(&group.calls[i]);
    }
    return oh_comm_refuse_call(comm, needs_departed);
}

/* NCCL has its call, though it is not ordered any more: a peer has departed, or it has fallen back in the group. */
static bool is_left_to_nccl(const struct oh_comm *comm)
{
    const enum oh_comm_state state = oh_comm_state(comm);
    return state == OH_COMM_FAILING || state == OH_COMM_FALLBACK;
}

/*
 * NCCL launches its part in the background, as for non-blocking communicators. Waits until it has: on a stream of both
 * parts the order must be the same on all ranks. The wait ends, because NCCL launches or fails, the monitor fails the
 * communicator, or another thread aborts it. A rank that is alive and does not call blocks stock NCCL here, too.
 */
static ncclResult_t await_nccl(const struct oh_nccl *nccl)
{
    for (size_t i = 0; i < group.use_count; i++) {
        struct oh_comm *comm = group.use[i].comm;
        ncclResult_t state = ncclInProgress;
        while ((oh_comm_is_ordered(comm) || is_left_to_nccl(comm)) && refuse_group(comm) == ncclSuccess &&
               nccl->CommGetAsyncError(comm->id.nccl, &state) == ncclSuccess && state == ncclInProgress) {
            usleep(20);
        }
        if (state != ncclSuccess) {
            const ncclResult_t failure = refuse_group(comm),
                               ended = state == ncclInProgress ? ncclInternalError : state;
            return failure == ncclSuccess ? ended : failure; /* in progress: another thread has aborted it */
        }
    }
    return await_other(nccl);
}

static void fail_communicators(ncclResult_t res)
{
    for (size_t i = 0; i < group.use_count; i++) {
        struct oh_comm *comm = group.use[i].comm;
        if (oh_comm_fail(comm, res, OH_MAX_RANKS)) {
            OH_WARN("comm %p rank %u of %u: a group with calls of this communicator has failed: calls now return error "
                    "%d",
                    OH_COMM_VALUES(comm), (int)res);
        }
        oh_comm_refuse_call(comm, false); /* stops this rank's graphs */
    }
}

/* A failure that the program has not caused may be this rank's alone: the other ranks have launched the group. */
static void end_communicators(ncclResult_t res)
{
    if (res != ncclSuccess && res != ncclInProgress && !oh_nccl_is_rejected(res)) {
        fail_communicators(res);
    }
}

/* After NCCL's part: launches the queue, in order with the earlier and the later work of all streams. */
static ncclResult_t launch_part(void)
{
    const bool joins = group.use_count > 1;
    OH_TRY(joins ? join_parts(OH_PART_NCCL, false) : ncclSuccess);
    OH_TRY(launch_queue());
    return joins ? join_parts(OH_PART_NCCL, true) : ncclSuccess;
}

/*
 * Ends the calls of the group that NCCL executes, or has rejected: then the next calls get their numbers. Compares
 * calls where ranks compare them: those that are executed, in the order made.
 */
static ncclResult_t end_calls(bool is_executed)
{
    ncclResult_t res = ncclSuccess;
    for (size_t i = group.call_count; i-- > 0;) { /* the last number first */
        if (group.calls[i].route == OH_ROUTE_NCCL) {
            oh_attach_end_call(&group.calls[i], is_executed);
        }
    }
    for (size_t i = 0; i < group.call_count && is_executed && res == ncclSuccess; i++) {
        const struct oh_call *call = &group.calls[i];
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
    const bool is_executed = group.error == ncclSuccess && !oh_nccl_is_rejected(res);
    const ncclResult_t ended = end_calls(is_executed);
    const ncclResult_t of_nccl = res == ncclInProgress && group.served_count > 0 ? await_nccl(nccl) : res;
    if (of_nccl != ncclSuccess && of_nccl != ncclInProgress) {
        return of_nccl;
    }
    OH_TRY(note_nccl_calls(of_nccl == ncclInProgress));
    if (ended != ncclSuccess) { /* the calls of one communicator differ; the other ranks launch those of the others */
        fail_communicators(ended);
        return ended;
    }
    if (of_nccl == ncclSuccess && group.served_count > 0) {
        OH_TRY(launch_part());
    }
    return res; /* still in progress: new communicators may be */
}

/*
 * No rank completes the group's calls of the communicator in NCCL's part without all others. Calls of another
 * communicator may be between them and the event behind the part, and wait for ranks of their own.
 */
static bool needs_all_ranks(const struct oh_comm *comm)
{
    bool needs = !group.mixes_in_nccl;
    for (size_t i = 0; i < group.use_count; i++) {
        const struct stream_use *use = &group.use[i];
        const bool is_same = oh_key_compare(&use->comm->id.key, &comm->id.key) == 0;
        needs &= !use->has_nccl_call || (is_same && use->nccl_call.needs_all_ranks);
    }
    return needs;
}

/* Before NCCL's part: orders it after the earlier work of all streams. */
static void order_before_nccl(void)
{
    if (group.error == ncclSuccess && group.use_count > 1) {
        const struct oh_call first = {.comm = group.use[0].comm};
        fail_group(&first, are_captured_alike() ? join_parts(OH_PART_ONEHOP, false) : ncclInvalidUsage);
    }
    for (size_t i = 0; i < group.use_count && group.error == ncclSuccess; i++) {
        struct stream_use *use = &group.use[i];
        if (use->has_nccl_call) {
            oh_order_before_nccl(use->comm, use->stream, needs_all_ranks(use->comm), &use->nccl_call);
        }
    }
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
    if (fail_group(call, add_routed(call)) != ncclSuccess) {
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
            fail_group(call, ncclInternalError);
        }
    } else if (call->kind == OH_CALL_OP_DESTROY) {
        if (oh_call_forward(call) == ncclSuccess) {
            oh_comm_op_remove(call->comm, call->redop);
        }
    } else if (group.error == ncclSuccess && is_estimate) {
        oh_group_note_result(estimate(call));
    } else if (group.error == ncclSuccess) {
        make(call);
    }
}

/* Waits until the communicators of the kept calls have decided, and makes these calls in their order. */
static void decide_kept(bool is_estimate)
{
    const uint64_t start_ns = oh_now_ns();
    const size_t count = group.call_count;
    for (size_t i = 0; i < count && !is_estimate && group.error == ncclSuccess; i++) {
        if (group.calls[i].route == OH_ROUTE_PENDING) {
            oh_attach_wait(group.calls[i].comm, start_ns);
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (group.calls[i].route == OH_ROUTE_PENDING) {
            decide(&group.calls[i], is_estimate);
        }
    }
}

/*
 * A departed peer fails a communicator only at a call that needs the peer, and an estimate needs none. Another thread
 * may have aborted a communicator since the call.
 */
static void check_calls(void)
{
    for (size_t i = 0; i < group.call_count && group.error == ncclSuccess; i++) {
        const struct oh_call *call = &group.calls[i];
        if (call->route == OH_ROUTE_ONEHOP && oh_comm_is_aborted(call->comm)) {
            fail_group(call, ncclInternalError);
        } else if (call->route == OH_ROUTE_ONEHOP || call->route == OH_ROUTE_NCCL) {
            fail_group(call, oh_call_check(call));
        }
    }
}

/* As NCCL's part does, what runs before it waits for all streams of the communicator: any may prepare a call's data. */
static ncclResult_t join_verified(void)
{
    for (size_t i = 0; i < group.use_count; i++) {
        const struct stream_use *use = &group.use[i], *first = first_use(use->comm, true);
        if (use->comm->verify.interval > 0 && use->has_nccl_call && use != first) {
            OH_TRY(oh_comm_join(use->comm, use->stream, first->stream));
        }
    }
    return ncclSuccess;
}

static ncclResult_t begin_one(const struct oh_call *call, bool *joined)
{
    OH_TRY(*joined ? ncclSuccess : join_verified());
    *joined = true;
    return oh_verified_begin(call, first_use(call->comm, true)->stream);
}

/* Before NCCL's part, which has the calls already. */
static void begin_verified(void)
{
    bool joined = false;
    for (size_t i = 0; i < group.call_count && group.error == ncclSuccess; i++) {
        if (group.calls[i].verified.count > 0) {
            fail_group(&group.calls[i], begin_one(&group.calls[i], &joined));
        }
    }
}

/* The wait ends: the monitor fails a communicator whose peer has departed. Returns as oh_difference_log does. */
static ncclResult_t await_ends(ncclResult_t res)
{
    ncclResult_t differs = ncclSuccess;
    for (size_t i = 0; i < group.end_count; i++) {
        struct oh_comm *comm = group.ends[i];
        while (res == ncclSuccess && !oh_comm_is_aborted(comm) && oh_comm_error(comm) == ncclSuccess &&
               oh_order_query_end(comm) == CUDA_ERROR_NOT_READY) {
            usleep(50);
        }
        const bool is_destroyed = oh_comm_find(comm->id.nccl) != comm; /* or it is finalized */
        const ncclResult_t of_comm = is_destroyed ? oh_comm_report_end(comm) : oh_difference_log(comm);
        differs = differs == ncclSuccess ? of_comm : differs;
        oh_comm_release(comm);
    }
    return differs;
}

void oh_group_decide(bool is_estimate)
{
    OH_KEEP_ERRNO();
    if (group.depth != 1) {
        return;
    }
    if (group.keeps) {
        decide_kept(is_estimate);
    }
    if (!is_estimate) {
        check_calls();
        order_before_nccl();
        begin_verified();
    }
}

ncclResult_t oh_group_end(const struct oh_nccl *nccl, ncclResult_t res, bool is_estimate)
{
    if (group.depth == 0 || --group.depth > 0) {
        return res; /* depth 0: NCCL has rejected the call */
    }
    OH_KEEP_ERRNO();
    res = group.error == ncclSuccess ? res : group.error;
    oh_creations_finish(nccl, group.creations, is_estimate ? ncclInvalidUsage : res);
    if (is_estimate) {
        end_calls(false); /* a call that was not kept, since NCCL rejects its arguments, has a number */
    } else {
        res = launch_group(nccl, res);
        end_communicators(res);
    }
    for (size_t i = 0; i < group.use_count; i++) {
        oh_comm_release(group.use[i].comm);
    }
    for (size_t i = 0; i < group.call_count; i++) {
        oh_comm_release(group.calls[i].comm);
    }
    const ncclResult_t differs = await_ends(res);
    free_configs();
    free(group.calls);
    free(group.use);
    free(group.ends);
    group = (struct group){0};
    return res == ncclSuccess ? differs : res;
}
