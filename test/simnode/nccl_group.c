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
/* Not the name that this cuda.h gives it. */
CUresult cuStreamGetCaptureInfo_v2(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **,
                                   size_t *);

struct queue {
    void *items;
    size_t number;
};

static _Thread_local struct {
    int depth;
    ncclResult_t error;
    struct queue operations;
    struct queue jobs;
} group;

/* A new item at the end. */
static void *queue_extend(struct queue *queue, size_t size)
{
    queue->items = simnode_grown(queue->items, queue->number, size);
    return (char *)queue->items + size * queue->number++;
}

static void queue_clear(struct queue *queue)
{
    free(queue->items);
    *queue = (struct queue){0};
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
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUcontext context;
    cuuint64_t id = 0;
    cuCtxPushCurrent(operation->core->context);
    cuStreamGetCaptureInfo_v2(operation->stream, &status, &id, NULL, NULL, NULL);
    cuCtxPopCurrent(&context);
    return status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? id : 0;
}

/* A communicator's streams in a group are all in one capture, or in none. */
static bool captured_alike(const struct simnccl_operation *operation)
{
    const struct simnccl_operation *queued = group.operations.items;
    for (size_t i = 0; i < group.operations.number; i++) {
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
    struct simnccl_operation *item = queue_extend(&group.operations, sizeof *item);
    *item = *operation;
    return ncclSuccess;
}

void simnccl_group_add_job(const struct simnccl_job *job)
{
    struct simnccl_job *item = queue_extend(&group.jobs, sizeof *item);
    *item = *job;
}

static void *job_thread(void *argument)
{
    struct simnccl_job *job = argument;
    job->result = job->run(job);
    return NULL;
}

/* Runs the jobs side by side; the first on the calling thread. */
static ncclResult_t run_jobs(struct simnccl_job *jobs, size_t number)
{
    ncclResult_t result = ncclSuccess;
    pthread_t *threads = simnode_new(number * sizeof *threads);
    for (size_t i = 1; i < number; i++) {
        if (pthread_create(&threads[i], NULL, job_thread, &jobs[i]) != 0) {
            abort(); /* a test machine without threads: nothing sensible is left to do */
        }
    }
    job_thread(&jobs[0]);
    for (size_t i = 0; i < number; i++) {
        if (i > 0) {
            pthread_join(threads[i], NULL);
        }
        if (result == ncclSuccess) {
            result = jobs[i].result;
        }
    }
    free(threads);
    return result;
}

static ncclResult_t finish_jobs(const struct queue *jobs)
{
    return jobs->number > 0 ? run_jobs(jobs->items, jobs->number) : ncclSuccess;
}

/* Communicators that the group was to make stay behind, good for ncclCommAbort only. */
static void fail_jobs(struct queue *jobs, ncclResult_t error)
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

static bool is_point_to_point(const struct simnccl_operation *operation)
{
    return operation->function == SIMNCCL_Send || operation->function == SIMNCCL_Recv;
}

/* Sends and receives of a communicator that follow one another go together, so that they progress together. */
static ncclResult_t launch_in_order(struct simnccl_operation *operation, size_t number)
{
    for (size_t first = 0, next; first < number; first = next) {
        next = first + 1;
        while (next < number && is_point_to_point(&operation[first]) && is_point_to_point(&operation[next])) {
            next++;
        }
        SIMNCCL_TRY(simnccl_launch(&operation[first], next - first));
    }
    return ncclSuccess;
}

static ncclResult_t launch_operations(struct simnccl_operation *operation, size_t number)
{
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

/* What a thread finishes that nobody joins. */
struct rest {
    struct queue jobs, operations;
};

static void *background_thread(void *argument)
{
    struct rest *rest = argument;
    struct simnccl_operation *operation = rest->operations.items;
    ncclResult_t result = finish_jobs(&rest->jobs);
    if (rest->operations.number > 0 && result == ncclSuccess) {
        simnccl_be_late();
        result = launch_operations(operation, rest->operations.number);
    }
    for (size_t i = 0; i < rest->operations.number; i++) {
        operation[i].core->result = result;
        simnccl_core_release(operation[i].core);
    }
    queue_clear(&rest->jobs);
    queue_clear(&rest->operations);
    free(rest);
    return NULL;
}

/* Takes over both queues. Until their operations are launched the communicators' state is ncclInProgress. */
static ncclResult_t finish_in_background(struct queue *jobs, struct queue *operations)
{
    pthread_t thread;
    struct rest *rest = simnode_new(sizeof *rest);
    struct simnccl_operation *operation = operations->items;
    for (size_t i = 0; i < operations->number; i++) {
        simnccl_core_retain(operation[i].core);
        operation[i].core->result = ncclInProgress;
    }
    *rest = (struct rest){*jobs, *operations};
    *jobs = *operations = (struct queue){0};
    if (pthread_create(&thread, NULL, background_thread, rest) != 0) {
        abort(); /* as above */
    }
    pthread_detach(thread);
    return ncclInProgress;
}

static bool has_background_job(const struct queue *jobs)
{
    const struct simnccl_job *job = jobs->items;
    size_t i = 0;
    while (i < jobs->number && !job[i].background) {
        i++;
    }
    return i < jobs->number;
}

static bool has_background_operation(const struct queue *operations)
{
    const struct simnccl_operation *operation = operations->items;
    size_t i = 0;
    while (i < operations->number && !operation[i].background) {
        i++;
    }
    return i < operations->number;
}

/* Operations after the jobs, and all in the background where a communicator is non-blocking. */
static ncclResult_t finish_group(struct queue *jobs, struct queue *operations)
{
    if (has_background_job(jobs)) {
        return finish_in_background(jobs, operations);
    }
    SIMNCCL_TRY(finish_jobs(jobs));
    return has_background_operation(operations) ? finish_in_background(&(struct queue){0}, operations)
                                                : launch_operations(operations->items, operations->number);
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
    ncclResult_t result = group.error;
    struct queue operations = group.operations, jobs = group.jobs;
    group.operations = (struct queue){0};
    group.jobs = (struct queue){0};
    group.error = ncclSuccess;
    if (result == ncclSuccess) {
        result = finish_group(&jobs, &operations);
    } else {
        fail_jobs(&jobs, result);
    }
    queue_clear(&operations);
    queue_clear(&jobs);
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
    ncclResult_t result = group.error;
    group.error = ncclSuccess;
    queue_clear(&group.operations);
    queue_clear(&group.jobs);
    if (result == ncclSuccess && info != NULL) {
        info->estimatedTime = 1.0f;
    }
    return result;
}
