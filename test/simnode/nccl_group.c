/* SPDX-License-Identifier: MIT */
/*
 * nccl_group.c - groups of the simulated NCCL
 *
 * All calls between the outermost GroupStart and GroupEnd of a thread are kept and started together: communicators
 * first, each in a thread of its own when there are several, then operations, communicator by communicator in the
 * order of their names, which is the same on all ranks. One failed call, and nothing is started. The state is
 * thread-local; the queues belong to it.
 */
#include "nccl_internal.h"

ncclResult_t ncclGroupStart(void); /* nccl.h leaves the parentheses empty, which is no prototype in C */
ncclResult_t ncclGroupEnd(void);
struct queue {
    void *items;
    size_t number;
    bool background; /* one of the items is for a thread that nobody joins */
};

struct work {
    struct queue jobs, operations;
};

static _Thread_local struct {
    int depth;
    ncclResult_t error;
    struct work work;
} group;

/* A copy of the item at the end. */
static void queue_add(struct queue *queue, const void *item, size_t size, bool background)
{
    queue->items = simnode_grown(queue->items, queue->number, size);
    memcpy((char *)queue->items + size * queue->number++, item, size);
    queue->background |= background;
}

static void queue_clear(struct queue *queue)
{
    free(queue->items);
    *queue = (struct queue){0};
}

static void work_clear(struct work *work)
{
    queue_clear(&work->jobs);
    queue_clear(&work->operations);
}

ncclResult_t simnccl_group_fail(ncclResult_t result)
{
    if (group.depth > 0 && result != ncclSuccess && group.error == ncclSuccess) {
        group.error = result;
    }
    return result;
}

/* The capture that a stream of a core is in; 0: none. */
static cuuint64_t capture_of(const struct simnccl_operation *operation)
{
    CUstreamCaptureStatus status;
    CUcontext context;
    cuuint64_t id = 0;
    cuCtxPushCurrent(operation->core->context);
    cuStreamGetCaptureInfo_v2(operation->stream, &status, &id, NULL, NULL, NULL);
    cuCtxPopCurrent(&context);
    return id;
}

/* A communicator's streams in a group are all in one capture, or in none. */
static bool captured_alike(const struct simnccl_operation *operation)
{
    const struct simnccl_operation *queued = group.work.operations.items;
    for (size_t i = 0; i < group.work.operations.number; i++) {
        if (queued[i].core == operation->core && queued[i].stream != operation->stream) {
            return capture_of(&queued[i]) == capture_of(operation);
        }
    }
    return true;
}

ncclResult_t simnccl_group_add_operation(const struct simnccl_operation *operation)
{
    if (!captured_alike(operation)) {
        return simnccl_group_fail(ncclInvalidUsage);
    }
    queue_add(&group.work.operations, operation, sizeof *operation, operation->background);
    return ncclSuccess;
}

void simnccl_group_add_job(const struct simnccl_job *job)
{
    queue_add(&group.work.jobs, job, sizeof *job, job->background);
}

static void *job_thread(void *argument)
{
    struct simnccl_job *job = argument;
    job->result = job->run(job);
    return NULL;
}

/* Runs the jobs side by side; the first on the calling thread. */
static ncclResult_t run_jobs(const struct queue *queue)
{
    struct simnccl_job *jobs = queue->items;
    ncclResult_t result = ncclSuccess;
    pthread_t *threads = simnode_new((queue->number + 1) * sizeof *threads);
    for (size_t i = 1; i < queue->number; i++) {
        if (pthread_create(&threads[i], NULL, job_thread, &jobs[i]) != 0) {
            abort(); /* a test machine without threads: nothing sensible is left to do */
        }
    }
    for (size_t i = 0; i < queue->number; i++) {
        if (i == 0) {
            job_thread(&jobs[0]);
        } else {
            pthread_join(threads[i], NULL);
        }
        if (result == ncclSuccess) {
            result = jobs[i].result;
        }
    }
    free(threads);
    return result;
}

/* Communicators that the group was to make stay behind, good for ncclCommAbort only. */
static void fail_jobs(const struct queue *jobs, ncclResult_t error)
{
    const struct simnccl_job *job = jobs->items;
    for (size_t i = 0; i < jobs->number; i++) {
        if (job[i].comm != NULL) {
            job[i].comm->core->result = error;
        }
    }
}

static int compare_cores(const struct simnccl_core *a, const struct simnccl_core *b)
{
    const int order = strcmp(a->name, b->name);
    return order != 0 ? order : a->rank - b->rank;
}

/* Insertion sort: stable, and groups are short. */
static void sort_operations(struct simnccl_operation *operation, size_t number)
{
    for (size_t i = 1; i < number; i++) {
        struct simnccl_operation moving = operation[i];
        size_t place = i;
        while (place > 0 && compare_cores(operation[place - 1].core, moving.core) > 0) {
            operation[place] = operation[place - 1];
            place--;
        }
        operation[place] = moving;
    }
}

/* Sends and receives of a communicator that follow one another go together, so that they progress together. */
static ncclResult_t launch_in_order(struct simnccl_operation *operation, size_t number)
{
    for (size_t first = 0, next; first < number; first = next) {
        next = first + 1;
        while (next < number && simnccl_is_point_to_point(&operation[first]) &&
               simnccl_is_point_to_point(&operation[next])) {
            next++;
        }
        SIMNCCL_TRY(simnccl_launch(&operation[first], next - first));
    }
    return ncclSuccess;
}

static ncclResult_t launch_operations(const struct queue *queue)
{
    struct simnccl_operation *operation = queue->items;
    const size_t number = queue->number;
    sort_operations(operation, number);
    for (size_t i = 1; i < number; i++) { /* communicators are captured all, or not at all */
        if (operation[i].core != operation[i - 1].core && !capture_of(&operation[i]) != !capture_of(&operation[0])) {
            return ncclInvalidUsage;
        }
    }
    for (size_t first = 0, next; first < number; first = next) {
        next = first + 1;
        while (next < number && operation[next].core == operation[first].core) {
            next++;
        }
        SIMNCCL_TRY(simnccl_join(&operation[first], next - first, true));
        SIMNCCL_TRY(launch_in_order(&operation[first], next - first));
        SIMNCCL_TRY(simnccl_join(&operation[first], next - first, false));
    }
    return ncclSuccess;
}

/* Operations after the jobs. */
static void *background_thread(void *argument)
{
    struct work *work = argument;
    struct simnccl_operation *operation = work->operations.items;
    ncclResult_t result = run_jobs(&work->jobs);
    if (work->operations.number > 0 && result == ncclSuccess) {
        simnccl_be_late();
        result = launch_operations(&work->operations);
    }
    for (size_t i = 0; i < work->operations.number; i++) {
        operation[i].core->result = result;
        simnccl_core_release(operation[i].core);
    }
    work_clear(work);
    free(work);
    return NULL;
}

/* Takes the work over. Until its operations are launched the communicators' state is ncclInProgress. */
static ncclResult_t finish_in_background(struct work *work)
{
    pthread_t thread;
    struct work *rest = simnode_new(sizeof *rest);
    struct simnccl_operation *operation = work->operations.items;
    for (size_t i = 0; i < work->operations.number; i++) {
        simnccl_core_retain(operation[i].core);
        operation[i].core->result = ncclInProgress;
    }
    *rest = *work;
    *work = (struct work){0};
    if (pthread_create(&thread, NULL, background_thread, rest) != 0) {
        abort(); /* as above */
    }
    pthread_detach(thread);
    return ncclInProgress;
}

/* All in the background where a communicator is made there; else the operations, where one is non-blocking. */
static ncclResult_t finish_group(struct work *work)
{
    if (!work->jobs.background) {
        SIMNCCL_TRY(run_jobs(&work->jobs));
        queue_clear(&work->jobs);
    }
    return work->jobs.background || work->operations.background ? finish_in_background(work)
                                                                : launch_operations(&work->operations);
}

/* The work of the group that ends, and whether a call has failed: the next one begins anew. */
static ncclResult_t take_group(struct work *work_p)
{
    ncclResult_t error = group.error;
    *work_p = group.work;
    group.work = (struct work){0};
    group.error = ncclSuccess;
    return error;
}

bool simnccl_group_is_open(void)
{
    return group.depth > 0;
}

void simnccl_group_enter(void)
{
    group.depth++;
}

ncclResult_t simnccl_group_leave(void)
{
    if (--group.depth > 0) {
        return ncclSuccess;
    }
    struct work work;
    ncclResult_t result = take_group(&work);
    if (result == ncclSuccess) {
        result = finish_group(&work);
    } else {
        fail_jobs(&work.jobs, result);
    }
    work_clear(&work);
    return result;
}

SIMNCCL_API(ncclResult_t, GroupStart, (void))
{
    simnccl_group_enter();
    return ncclSuccess;
}

SIMNCCL_API(ncclResult_t, GroupEnd, (void))
{
    simnccl_count(SIMNCCL_GroupEnd);
    return group.depth > 0 ? simnccl_group_leave() : ncclInvalidUsage;
}

SIMNCCL_API(ncclResult_t, GroupSimulateEnd, (ncclSimInfo_t * info))
{
    if (group.depth == 0) {
        return ncclInvalidUsage;
    }
    if (--group.depth > 0) {
        return ncclSuccess;
    }
    struct work work;
    ncclResult_t result = take_group(&work);
    work_clear(&work);
    if (result == ncclSuccess && info != NULL) {
        info->estimatedTime = 1.0f;
    }
    return result;
}
