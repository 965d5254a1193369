/* SPDX-License-Identifier: MIT */
/*
 * group.c - calls between ncclGroupStart and ncclGroupEnd
 *
 * Does: Queues served calls, orders NCCL's part of the group with them, launches them at the outermost end.
 * Threads: one queue for each thread, thread-local.
 * Owns: the queue's arrays, until the thread ends.
 */
#include "hook/group.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/watch/failure.h"
#include "hook/entry.h"
#include "hook/initial_comm.h"
#include "util/log.h"
#include "util/keep_errno.h"

/* A stream that a communicator's calls of the group are on. */
struct stream_use {
    struct oh_comm *comm;
    CUstream stream;
    cuuint64_t capture;            /* 0: not captured, or the only one */
    bool served;                   /* with a call that onehop serves */
    bool has_nccl_call;            /* with a call that NCCL serves */
    bool allreduce;                /* ... which is an allreduce */
    struct oh_nccl_call nccl_call; /* of the second kind, once NCCL's part is about to begin */
};

/* One per thread; the arrays live from the first use in a group to its end. */
struct group {
    int depth;
    ncclResult_t error; /* of the first call that onehop refused: nothing of the group may run */
    struct oh_call *calls;
    size_t call_count, call_room;
    struct stream_use *use;
    size_t use_count, use_room;
    ncclComm_t in_nccl; /* a communicator with a call in NCCL's part; NULL: none that onehop knows */
    struct oh_creation *creations;
    size_t creation_count, creation_room;
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

/* Copies an element of `size` bytes to the end of an array. Returns ncclSuccess, or ncclSystemError (logged). */
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

/* The first of the group is looked at when there is a second: mostly there is none. */
static ncclResult_t check_captures(struct stream_use *use)
{
    struct stream_use *first = &group.use[0];
    ncclResult_t res = ncclSuccess;
    if (group.use_count == 1) {
        res = oh_comm_capture(first->comm, first->stream, &first->capture);
    }
    return res == ncclSuccess ? oh_comm_capture(use->comm, use->stream, &use->capture) : res;
}

ncclResult_t oh_group_add_stream(struct oh_comm *comm, CUstream stream, enum oh_group_call kind)
{
    struct stream_use *known = find_use(comm, stream);
    struct stream_use use = {.comm = comm,
                             .stream = stream,
                             .served = kind == OH_CALL_SERVED,
                             .has_nccl_call = kind == OH_CALL_NCCL || kind == OH_CALL_NCCL_ALLREDUCE,
                             .allreduce = kind == OH_CALL_NCCL_ALLREDUCE};
    if (known) {
        known->served |= use.served;
        known->has_nccl_call |= use.has_nccl_call;
        known->allreduce |= use.allreduce;
        return ncclSuccess;
    }
    ncclResult_t res = group.use_count > 0 ? check_captures(&use) : ncclSuccess;
    if (res != ncclSuccess) {
        return res;
    }
    if (!captured_like_others(&use)) {
        OH_WARN("comm %p: the streams of a communicator in a group must be captured all, by one graph, or not at all",
                (void *)comm->nccl);
        return ncclInvalidUsage;
    }
    return append((void **)&group.use, &group.use_count, &group.use_room, &use, sizeof use);
}

/* The same between communicators (NCCL: doLaunches): each may have its graph, but all are captured, or none. */
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

void oh_group_fail(const struct oh_real *real, const struct oh_comm *comm, ncclResult_t error)
{
    group.error = group.error == ncclSuccess ? error : group.error;
    /* Nothing of NCCL's part may run either: so it is given a call that it refuses. */
    real->AllReduce(NULL, NULL, 1, (ncclDataType_t)-1, ncclSum, comm->nccl, NULL);
}

void oh_group_note_forwarded(const struct oh_comm *comm)
{
    group.in_nccl = comm->nccl;
}

/* NCCL has launched its part just now, or (in_background) is launching it. Returns the first failure. */
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

/* The first stream of a communicator that is in NCCL's part of the group, or in onehop's. */
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
 * NCCL joins the streams of its part of a group for each communicator, and onehop those of its own. A communicator that
 * is in both parts has them joined here, as if the group were one: each stream that is in one part alone (of_nccl:
 * NCCL's) waits for the first stream of the other part, or that for it.
 */
static ncclResult_t join_parts(bool of_nccl, bool waits)
{
    ncclResult_t res = ncclSuccess;
    for (size_t i = 0; i < group.use_count && res == ncclSuccess; i++) {
        const struct stream_use *one = &group.use[i];
        const struct stream_use *other = first_use(one->comm, !of_nccl);
        if (other && one->has_nccl_call == of_nccl && one->served != of_nccl) {
            res = waits ? oh_comm_join(one->comm, other->stream, one->stream)
                        : oh_comm_join(one->comm, one->stream, other->stream);
        }
    }
    return res;
}

ncclResult_t oh_group_add_call(const struct oh_call *call)
{
    struct oh_call kept = *call;
    kept.serial = group.call_count;
    ncclResult_t res = oh_group_add_stream(call->comm, call->stream, OH_CALL_SERVED);
    return res == ncclSuccess ? append((void **)&group.calls, &group.call_count, &group.call_room, &kept, sizeof kept)
                              : res;
}

bool oh_group_add_creation(const struct oh_creation *creation)
{
    return append((void **)&group.creations, &group.creation_count, &group.creation_room, creation, sizeof *creation) ==
           ncclSuccess;
}

ncclResult_t oh_group_defer(const struct oh_call *call, ncclRedOp_t op)
{
    const struct oh_deferred deferred = {.call = *call, .op = op};
    ncclResult_t res =
        call->comm->attach.ordering ? oh_group_add_stream(call->comm, call->stream, OH_CALL_DEFERRED) : ncclSuccess;
    return res == ncclSuccess ? append((void **)&group.deferred, &group.deferred_count, &group.deferred_room, &deferred,
                                       sizeof deferred)
                              : res;
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

void oh_group_forget(const struct oh_comm *comm)
{
    size_t kept = 0;
    for (size_t i = 0; i < group.call_count; i++) {
        if (group.calls[i].comm != comm) {
            group.calls[kept++] = group.calls[i];
        }
    }
    group.call_count = kept;
    kept = 0;
    for (size_t i = 0; i < group.use_count; i++) {
        if (group.use[i].comm != comm) {
            group.use[kept++] = group.use[i];
        }
    }
    group.use_count = kept;
    kept = 0;
    for (size_t i = 0; i < group.deferred_count; i++) {
        if (group.deferred[i].call.comm != comm) {
            group.deferred[kept++] = group.deferred[i];
        }
    }
    group.deferred_count = kept;
    group.in_nccl = group.in_nccl == comm->nccl ? NULL : group.in_nccl;
}

/* Who this rank is in a communicator, as NCCL says. */
struct identity {
    int rank, nranks, cuda_device;
};

static bool identify(const struct oh_real *real, ncclComm_t nccl, struct identity *identity_p)
{
    return real->CommCount(nccl, &identity_p->nranks) == ncclSuccess &&
           real->CommUserRank(nccl, &identity_p->rank) == ncclSuccess &&
           real->CommCuDevice(nccl, &identity_p->cuda_device) == ncclSuccess;
}

/* NCCL has created it. */
static void finish_creation(const struct oh_real *real, struct oh_creation *creation)
{
    struct identity self;
    ncclComm_t nccl = *creation->nccl_p;
    struct oh_comm *comm = nccl && identify(real, nccl, &self) ? oh_creation_register(creation, nccl) : NULL;
    if (comm) {
        oh_comm_created(comm, self.rank, self.nranks, self.cuda_device);
    } else {
        oh_creation_cancel(creation);
    }
    if (nccl) {
        oh_initial_comm_creation_end(real);
    }
}

/* NCCL works on it in the background. Of a split NCCL writes the handle when it is done: one must not look before. */
static void await_creation(struct oh_creation *creation)
{
    ncclComm_t nccl = creation->parent && !creation->is_grow ? NULL : *creation->nccl_p;
    if (nccl) {
        oh_creation_register(creation, nccl);
    } else if (creation->parent) {
        oh_creation_watch(creation);
    } else {
        oh_creation_cancel(creation);
    }
}

void oh_creations_finish(const struct oh_real *real, struct oh_creation *creations, size_t count, ncclResult_t res)
{
    for (size_t i = 0; i < count; i++) {
        creations[i].library = real;
        real->GetVersion(&creations[i].nccl_version);
        if (res == ncclSuccess) {
            finish_creation(real, &creations[i]);
        } else if (res == ncclInProgress) {
            await_creation(&creations[i]);
        } else {
            oh_creation_cancel(&creations[i]);
        }
    }
}

/* Returns their number. */
static unsigned finish_children(const struct oh_real *real, struct oh_creation *child)
{
    unsigned count = 0;
    for (; child; count++) {
        struct oh_creation *next = child->next;
        finish_creation(real, child);
        free(child);
        child = next;
    }
    return count;
}

void oh_creations_poll(const struct oh_real *real, struct oh_comm *comm, ncclResult_t state)
{
    struct identity self;
    if (state == ncclInProgress) {
        return;
    }
    /* Two threads may ask at once: the second must not go on, and use a child, before the first has registered it. */
    static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&looking);
    oh_comm_children_done(comm, finish_children(real, oh_comm_take_children(comm)));
    pthread_mutex_unlock(&looking);
    if (atomic_load_explicit(&comm->created, memory_order_acquire)) {
        return;
    }
    if (state != ncclSuccess || !identify(real, comm->nccl, &self)) {
        oh_comm_not_created(comm);
    } else if (oh_comm_created(comm, self.rank, self.nranks, self.cuda_device)) {
        oh_initial_comm_creation_end(real);
    }
}

/* By communicator in the order of keys, the calls of each in the order made. */
static int compare_calls(const void *a, const void *b)
{
    const struct oh_call *x = a, *y = b;
    int order = oh_key_compare(&x->comm->key, &y->comm->key);
    if (order == 0) {
        order = (x->comm->rank > y->comm->rank) - (x->comm->rank < y->comm->rank);
    }
    return order ? order : (x->serial > y->serial) - (x->serial < y->serial);
}

/* Cuts the sorted queue into one submission for each communicator and begins them. */
static ncclResult_t begin_submissions(struct oh_submission *submissions, size_t *count_p)
{
    ncclResult_t res = ncclSuccess;
    size_t count = 0;
    for (size_t i = 0, next; i < group.call_count && res == ncclSuccess; i = next) {
        for (next = i + 1; next < group.call_count && group.calls[next].comm == group.calls[i].comm; next++) {
        }
        res = oh_submission_begin(&submissions[count++], &group.calls[i], next - i);
    }
    *count_p = count;
    return res;
}

static ncclResult_t round_robin(struct oh_submission *submissions, size_t count)
{
    for (bool more = true; more;) {
        more = false;
        for (size_t b = 0; b < count; b++) {
            if (submissions[b].launched < submissions[b].count) {
                ncclResult_t res = oh_submission_advance(&submissions[b]);
                if (res != ncclSuccess) {
                    return res;
                }
                more = true;
            }
        }
    }
    return ncclSuccess;
}

static ncclResult_t launch_queue(void)
{
    size_t count;
    struct oh_submission *submissions = malloc(group.call_count * sizeof *submissions);
    if (!submissions) {
        OH_WARN("out of memory for the calls of a group");
        return ncclSystemError;
    }
    qsort(group.calls, group.call_count, sizeof *group.calls, compare_calls);
    ncclResult_t res = begin_submissions(submissions, &count);
    if (res == ncclSuccess) {
        res = round_robin(submissions, count);
    }
    for (size_t b = 0; b < count; b++) { /* after a failure too: what did go out must be known to have */
        ncclResult_t ended = submissions[b].launched > 0 ? oh_submission_end(&submissions[b]) : ncclSuccess;
        res = res == ncclSuccess ? ended : res;
    }
    free(submissions);
    return res;
}

static void empty_group(void)
{
    free(group.calls);
    free(group.use);
    free(group.creations);
    free(group.deferred);
    group = (struct group){0};
}

/* From here to the end of the group this thread may block, while another aborts a communicator of it. */
static void enter_communicators(void)
{
    for (size_t i = 0; i < group.use_count; i++) {
        oh_comm_begin_use(group.use[i].comm);
    }
}

static void leave_communicators(void)
{
    for (size_t i = 0; i < group.use_count; i++) {
        oh_comm_end_use(group.use[i].comm);
    }
}

/* The launch of a group makes all its communicators ready at once: one that none of onehop's calls is on. */
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
 * NCCL launches its part in the background, as it does for non-blocking communicators. Waits until it has: on a stream
 * that both parts use, the order must be the same on all ranks. NCCL does not stay "in progress" of itself: it launches
 * or fails. Should it wait for a rank that is gone (for connections of its own, say), this ends when the monitor has
 * seen that, or when another thread aborts the communicator: either ends the wait. A rank that is alive and does
 * not come keeps stock NCCL waiting just so.
 */
static ncclResult_t await_nccl(const struct oh_real *real)
{
    for (size_t i = 0; i < group.use_count; i++) {
        struct oh_comm *comm = group.use[i].comm;
        ncclResult_t state = ncclInProgress;
        /* One that is about to be served stays so when the monitor fails it: its failure ends the wait. */
        while (oh_comm_is_ordered(comm) && oh_comm_failure(comm) == ncclSuccess &&
               real->CommGetAsyncError(comm->nccl, &state) == ncclSuccess && state == ncclInProgress) {
            usleep(20);
        }
        if (state != ncclSuccess) {
            ncclResult_t failure = oh_comm_failure(comm);
            return failure == ncclSuccess ? state : failure;
        }
    }
    return await_other(real);
}

/* Before NCCL's part of the outermost group: it comes after the earlier work of all streams. */
static void prepare_streams(const struct oh_real *real)
{
    OH_KEEP_ERRNO();
    if (group.error == ncclSuccess && group.use_count > 1) {
        ncclResult_t res = communicators_alike() ? join_parts(false, false) : ncclInvalidUsage;
        if (res != ncclSuccess) {
            oh_group_fail(real, group.use[0].comm, res);
        }
    }
    for (size_t i = 0; i < group.use_count && group.error == ncclSuccess; i++) {
        struct stream_use *use = &group.use[i];
        if (use->has_nccl_call) {
            oh_order_before_nccl(use->comm, use->stream, use->allreduce, &use->nccl_call);
        }
    }
}

/*
 * A failure that the program has not made, as by wrong arguments, may be this rank's alone: the others have launched
 * what this one has not.
 */
static void fail_communicators(ncclResult_t res)
{
    if (res == ncclSuccess || res == ncclInProgress || res == ncclInvalidArgument || res == ncclInvalidUsage) {
        return;
    }
    for (size_t i = 0; i < group.use_count; i++) {
        struct oh_comm *comm = group.use[i].comm;
        if (oh_comm_fail(comm, res, OH_MAX_RANKS)) {
            OH_WARN("comm %p rank %u of %u: a group with calls of this communicator has failed: calls now return error "
                    "%d",
                    (void *)comm->nccl, comm->rank, comm->nranks, (int)res);
        }
        oh_comm_failure(comm); /* its calls are refused */
    }
}

/* Onehop's part, after NCCL's; the later work of all streams comes after it. */
static ncclResult_t launch_part(void)
{
    ncclResult_t res = group.use_count > 1 ? join_parts(true, false) : ncclSuccess;
    if (res == ncclSuccess) {
        res = launch_queue();
    }
    return res == ncclSuccess && group.use_count > 1 ? join_parts(true, true) : res;
}

/*
 * After NCCL has ended the outermost group with `res`: notes NCCL's calls, and launches those that onehop serves, once
 * NCCL has launched its own. Returns the result of the whole group; ncclInProgress: NCCL still works on its part.
 */
static ncclResult_t launch_group(const struct oh_real *real, ncclResult_t res)
{
    const ncclResult_t nccl = res == ncclInProgress && group.call_count > 0 ? await_nccl(real) : res;
    if (nccl != ncclSuccess && nccl != ncclInProgress) {
        return nccl;
    }
    const ncclResult_t noted = note_nccl_calls(nccl == ncclInProgress);
    if (noted != ncclSuccess) {
        return noted;
    }
    const bool ready = nccl == ncclSuccess && group.call_count > 0;
    const ncclResult_t launched = ready ? launch_part() : ncclSuccess;
    return launched == ncclSuccess ? res : launched; /* in progress still: new communicators may be */
}

ncclResult_t oh_group_leave(const struct oh_real *real, ncclResult_t (*end)(const struct oh_real *, void *),
                            void *argument, bool simulate)
{
    if (group.depth == 1) {
        enter_communicators();
    }
    if (group.depth == 1 && !simulate) {
        prepare_streams(real);
    }
    ncclResult_t res = end(real, argument);
    if (group.depth == 0 || --group.depth > 0) {
        return res; /* depth 0: NCCL has said that this is not allowed */
    }
    OH_KEEP_ERRNO();
    res = group.error == ncclSuccess ? res : group.error;
    if (group.creation_count > 0) {
        oh_inside++;
        oh_creations_finish(real, group.creations, group.creation_count, simulate ? ncclInvalidUsage : res);
        oh_inside--;
    }
    if (!simulate) {
        res = launch_group(real, res);
        fail_communicators(res);
    }
    leave_communicators();
    empty_group();
    return res;
}
