/* SPDX-License-Identifier: MIT */
/*
 * cuda_stream.c - the simulated driver's streams, markers and events
 *
 * A stream's thread starts with its first operation, runs detached, and holds a reference to the stream; closing the
 * stream lets it run dry and end. Work of a context's legacy stream comes after all earlier work of its blocking
 * streams, and their later work after it.
 */
#include "test/simnode/cuda_internal.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

struct simcuda_marker *simcuda_marker_new(unsigned streams)
{
    struct simcuda_marker *marker = simnode_new(sizeof *marker);
    pthread_cond_init(&marker->reached, NULL);
    marker->references = 1;
    marker->left = streams;
    return marker;
}

void simcuda_marker_release(struct simcuda_marker *marker)
{
    if (marker && --marker->references == 0) {
        pthread_cond_destroy(&marker->reached);
        free(marker);
    }
}

static void marker_reach(struct simcuda_marker *marker)
{
    struct timespec now;
    if (--marker->left == 0) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        marker->time = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
        pthread_cond_broadcast(&marker->reached);
    }
}

/* For host threads and stream threads alike. The caller's reference keeps the marker. */
static void marker_wait(struct simcuda_marker *marker)
{
    while (marker->left > 0) {
        pthread_cond_wait(&marker->reached, &simcuda.lock);
    }
}

CUstream simcuda_stream_new(CUcontext ctx, unsigned flags)
{
    static uint32_t made;
    CUstream stream = simnode_new(sizeof *stream);
    stream->ctx = ctx;
    stream->flags = flags;
    stream->references = 1;
    stream->tail = &stream->head;
    /* Streams differ, in an order that the seed fixes. */
    stream->id = ++made;
    stream->random = simcuda.seed + 977u * made + 7919u * (uint32_t)simcuda_gpu(ctx);
    pthread_cond_init(&stream->wake, NULL);
    return stream;
}

void simcuda_stream_retain(CUstream stream)
{
    stream->references++;
}

void simcuda_stream_release(CUstream stream)
{
    if (--stream->references == 0) {
        pthread_cond_destroy(&stream->wake);
        free(stream);
    }
}

void simcuda_stream_close(CUstream stream)
{
    stream->closing = true;
    pthread_cond_signal(&stream->wake);
    simcuda_stream_release(stream);
}

static void fill(const struct simcuda_op *op)
{
    uint32_t *to = op->set.to;
    if (op->set.empties) {
        simcuda_memory_empty(to, op->set.count * op->set.width);
    } else if (op->set.width == 1) { /* never with a pitch */
        memset(to, (int)op->set.value, op->set.count);
    } else if (op->set.pitch == sizeof(wchar_t)) { /* faster */
        wmemset((wchar_t *)to, (wchar_t)op->set.value, op->set.count);
    } else {
        for (size_t i = 0; i < op->set.count; i++) {
            to[i * (op->set.pitch / sizeof *to)] = op->set.value;
        }
    }
}

/* A sleep of 0 us is one of 50 us. */
static bool is_slow(const struct simcuda_op *op)
{
    return simcuda.copy_2d_us > 0 && op->set.pitch != op->set.width;
}

/* The part of an operation that runs without the lock. */
static void run_unlocked(CUstream stream, const struct simcuda_op *op)
{
    switch (op->kind) {
    case SIMCUDA_OP_KERNEL:
        simcuda_kernel_run(stream->ctx, op, &stream->random);
        break;
    case SIMCUDA_OP_COPY:
        memmove(op->copy.to, op->copy.from, op->copy.bytes);
        break;
    case SIMCUDA_OP_SET:
        if (is_slow(op)) {
            usleep(simcuda.copy_2d_us);
        }
        fill(op);
        break;
    case SIMCUDA_OP_HOST:
        simcuda_callback(op->host.run, op->host.data);
        break;
    default:
        break;
    }
}

/*
 * One connection: the streams of a context share a queue, whose head blocks what is behind it until it can start; an
 * operation can start when those before it in its stream have ended, and a wait when it is over.
 */
static void wait_for_start(CUstream stream, const struct simcuda_op *op)
{
    while (simcuda.one_connection && stream->ctx->started != op->ticket) {
        pthread_cond_wait(&simcuda.progress, &simcuda.lock);
    }
    if (op->kind == SIMCUDA_OP_WAIT) {
        marker_wait(op->marker);
    }
    if (simcuda.one_connection) {
        stream->ctx->started++;
        pthread_cond_broadcast(&simcuda.progress);
    }
}

static void run(CUstream stream, struct simcuda_op *op)
{
    wait_for_start(stream, op);
    switch (op->kind) {
    case SIMCUDA_OP_WAIT:
        simcuda_marker_release(op->marker);
        break;
    case SIMCUDA_OP_RECORD:
        marker_reach(op->marker);
        simcuda_marker_release(op->marker);
        break;
    case SIMCUDA_OP_RETIRE:
        simcuda_users_destroy(simcuda_image_release(op->image));
        break;
    default:
        pthread_mutex_unlock(&simcuda.lock);
        run_unlocked(stream, op);
        if (op->kind == SIMCUDA_OP_COPY && op->copy.pageable) {
            free((void *)op->copy.from);
        }
        pthread_mutex_lock(&simcuda.lock);
        break;
    }
    free(op);
}

/* Host functions are not: the simulated NCCL makes one of each call, where NCCL makes one launch of many calls. */
static bool is_bounded(const struct simcuda_op *op)
{
    return op->kind == SIMCUDA_OP_KERNEL || op->kind == SIMCUDA_OP_COPY || op->kind == SIMCUDA_OP_SET;
}

static void *stream_main(void *argument)
{
    CUstream stream = argument;
    pthread_mutex_lock(&simcuda.lock);
    for (;;) {
        while (stream->borrowed || (!stream->head && !stream->closing)) {
            pthread_cond_wait(&stream->wake, &simcuda.lock);
        }
        struct simcuda_op *op = stream->head;
        if (!op) {
            break;
        }
        stream->head = op->next;
        if (!op->next) {
            stream->tail = &stream->head;
        }
        bool bounded = is_bounded(op);
        run(stream, op);
        stream->pending--;
        if (bounded && stream->bounded-- == simcuda.queue) {
            pthread_cond_broadcast(&simcuda.progress); /* pairs with wait_for_room */
        }
    }
    simcuda_stream_release(stream);
    pthread_mutex_unlock(&simcuda.lock);
    return NULL;
}

/*
 * A stream has its thread from its first operation on, whatever that is: programs count threads. The program's signals
 * are for its own.
 */
static void start(CUstream stream)
{
    sigset_t all, old;
    pthread_t thread;
    if (stream->started) {
        return;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&thread, NULL, stream_main, stream) != 0) {
        fprintf(stderr, "simnode: no thread for a stream\n");
        abort();
    }
    pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    stream->started = true;
    simcuda_stream_retain(stream);
}

void simcuda_push(CUstream stream, const struct simcuda_op *op)
{
    struct simcuda_op *queued = simnode_new(sizeof *queued);
    *queued = *op;
    if (op->kind == SIMCUDA_OP_COPY && op->copy.pageable) {
        queued->copy.from = memcpy(simnode_new(op->copy.bytes), op->copy.from, op->copy.bytes);
    }
    queued->next = NULL;
    queued->ticket = stream->ctx->queued++;
    *stream->tail = queued;
    stream->tail = &queued->next;
    stream->pending++;
    stream->bounded += is_bounded(op);
    start(stream);
    pthread_cond_signal(&stream->wake);
}

static bool is_idle(CUstream stream)
{
    return stream->pending == 0 && !simcuda.one_connection;
}

void simcuda_push_marker(CUstream stream, enum simcuda_op_kind kind, struct simcuda_marker *marker)
{
    struct simcuda_op op = {.kind = kind, .marker = marker};
    if (kind == SIMCUDA_OP_RECORD && is_idle(stream)) {
        start(stream);
        marker_reach(marker); /* at once: no thread has to wake up */
        return;
    }
    marker->references++;
    simcuda_push(stream, &op);
}

static bool is_blocking(const struct CUstream_st *stream)
{
    return !stream->legacy && !(stream->flags & CU_STREAM_NON_BLOCKING);
}

/* Which streams of a context to look at. */
enum which {
    ALL,
    BLOCKING,
    LEGACY
};

static bool concerns(const struct CUstream_st *stream, const struct CUctx_st *ctx, enum which which)
{
    return stream->ctx == ctx && stream->pending > 0 &&
           (which == ALL || (which == LEGACY ? stream->legacy : is_blocking(stream)));
}

/* A marker for the work that those streams have now; NULL when they have none. */
static struct simcuda_marker *mark_busy(CUcontext ctx, enum which which)
{
    static const enum simcuda_kind kinds[] = {SIMCUDA_STREAM, SIMCUDA_DEFAULT_STREAM};
    struct simcuda_marker *marker = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        for (struct simcuda_object *object = simcuda.objects[kinds[i]]; object; object = object->next) {
            CUstream stream = (CUstream)object;
            if (concerns(stream, ctx, which)) {
                marker = marker ? marker : simcuda_marker_new(0);
                marker->left++;
                simcuda_push_marker(stream, SIMCUDA_OP_RECORD, marker);
            }
        }
    }
    return marker;
}

void simcuda_stream_order(CUstream stream)
{
    struct simcuda_marker *marker = NULL;
    if (stream->legacy || is_blocking(stream)) {
        marker = mark_busy(stream->ctx, stream->legacy ? BLOCKING : LEGACY);
    }
    if (marker) {
        simcuda_push_marker(stream, SIMCUDA_OP_WAIT, marker);
        simcuda_marker_release(marker);
    }
}

/* A launch into a full queue blocks its caller, as the driver does. */
static void wait_for_room(CUstream stream)
{
    while (stream->bounded >= simcuda.queue) {
        pthread_cond_wait(&simcuda.progress, &simcuda.lock);
    }
}

CUresult simcuda_stream_check_legacy(CUstream stream)
{
    return stream->legacy ? simcuda_capture_check_legacy(stream->ctx, true) : CUDA_SUCCESS;
}

/* Copies and sets on an idle stream are done at once: its thread need not wake up for them. */
static bool is_done_at_once(CUstream stream, const struct simcuda_op *op)
{
    return is_idle(stream) && (op->kind == SIMCUDA_OP_COPY || (op->kind == SIMCUDA_OP_SET && !is_slow(op)));
}

static void do_at_once(CUstream stream, const struct simcuda_op *op)
{
    start(stream);
    stream->borrowed = true;
    stream->pending++;
    pthread_mutex_unlock(&simcuda.lock);
    run_unlocked(stream, op);
    pthread_mutex_lock(&simcuda.lock);
    stream->pending--;
    stream->borrowed = false;
    if (stream->head || stream->closing) { /* meanwhile */
        pthread_cond_signal(&stream->wake);
    }
}

CUresult simcuda_submit(CUstream stream, const struct simcuda_op *op)
{
    if (stream->capture) {
        return simcuda_capture_work(stream, op);
    }
    SIMCUDA_TRY(simcuda_stream_check_legacy(stream));
    simcuda_stream_retain(stream); /* another thread may destroy it while this one waits */
    if (is_bounded(op)) {
        wait_for_room(stream);
    }
    simcuda_stream_order(stream);
    if (is_done_at_once(stream, op)) {
        do_at_once(stream, op);
    } else {
        simcuda_push(stream, op);
    }
    simcuda_stream_release(stream);
    return CUDA_SUCCESS;
}

void simcuda_stream_wait(CUstream stream)
{
    struct simcuda_marker *marker = simcuda_marker_new(1);
    simcuda_stream_order(stream);
    simcuda_push_marker(stream, SIMCUDA_OP_RECORD, marker);
    marker_wait(marker);
    simcuda_marker_release(marker);
}

void simcuda_context_wait(CUcontext ctx)
{
    struct simcuda_marker *marker = mark_busy(ctx, ALL);
    if (marker) {
        marker_wait(marker);
        simcuda_marker_release(marker);
    }
}

/* The default stream of the context, of this thread if it is a per-thread one. */
static CUstream default_stream(CUcontext ctx, bool legacy)
{
    for (struct simcuda_object *object = simcuda.objects[SIMCUDA_DEFAULT_STREAM]; object; object = object->next) {
        CUstream stream = (CUstream)object;
        if (stream->ctx == ctx && stream->legacy == legacy &&
            (legacy || pthread_equal(stream->owner, pthread_self()))) {
            return stream;
        }
    }
    CUstream stream = simcuda_stream_new(ctx, CU_STREAM_DEFAULT);
    stream->legacy = legacy;
    stream->owner = pthread_self();
    simcuda_add(SIMCUDA_DEFAULT_STREAM, &stream->object);
    return stream;
}

CUresult simcuda_stream_find(CUstream handle, CUstream *stream_p)
{
    if (handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
        *stream_p = handle;
        return simcuda_has(SIMCUDA_STREAM, handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    }
    CUcontext ctx = simcuda_current();
    SIMCUDA_FAIL_IF(!ctx, CUDA_ERROR_INVALID_CONTEXT);
    *stream_p = default_stream(ctx, handle != CU_STREAM_PER_THREAD);
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream_p, unsigned flags)
{
    SIMCUDA_LOCK();
    CUcontext ctx = simcuda_current();
    SIMCUDA_FAIL_IF(!ctx, CUDA_ERROR_INVALID_CONTEXT);
    SIMCUDA_FAIL_IF(flags & ~(unsigned)CU_STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE);
    CUstream stream = simcuda_stream_new(ctx, flags);
    simcuda_add(SIMCUDA_STREAM, &stream->object);
    *stream_p = stream;
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_STREAM, stream), CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture) {
        simcuda_capture_invalidate(stream);
    }
    simcuda_remove(&stream->object);
    simcuda_stream_close(stream);
    return CUDA_SUCCESS;
}

/* What synchronising and querying have in common: not while capturing. */
static CUresult find_uncaptured(CUstream handle, CUstream *stream_p)
{
    SIMCUDA_TRY(simcuda_stream_find(handle, stream_p));
    if ((*stream_p)->capture) {
        simcuda_capture_invalidate(*stream_p);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return simcuda_stream_check_legacy(*stream_p);
}

CUresult cuStreamSynchronize(CUstream handle)
{
    SIMCUDA_LOCK();
    CUstream stream;
    SIMCUDA_TRY(find_uncaptured(handle, &stream));
    simcuda_stream_wait(stream);
    return simcuda_after_wait();
}

CUresult cuStreamQuery(CUstream handle)
{
    SIMCUDA_LOCK();
    CUstream stream;
    SIMCUDA_TRY(find_uncaptured(handle, &stream));
    return stream->pending > 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context_p)
{
    SIMCUDA_LOCK();
    CUstream stream;
    SIMCUDA_TRY(find_uncaptured(handle, &stream)); /* it is not documented for others */
    *context_p = stream->ctx;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id_p)
{
    SIMCUDA_LOCK();
    CUstream stream;
    SIMCUDA_TRY(find_uncaptured(handle, &stream)); /* so does the driver (580) */
    *id_p = stream->id;
    return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data)
{
    SIMCUDA_LOCK();
    CUstream stream;
    struct simcuda_op op = {.kind = SIMCUDA_OP_HOST, .host = {function, data}};
    SIMCUDA_FAIL_IF(!function, CUDA_ERROR_INVALID_VALUE);
    SIMCUDA_TRY(simcuda_stream_find(handle, &stream));
    return simcuda_submit(stream, &op);
}

CUresult cuEventCreate(CUevent *event_p, unsigned flags)
{
    SIMCUDA_LOCK();
    CUcontext ctx = simcuda_current();
    SIMCUDA_FAIL_IF(!ctx, CUDA_ERROR_INVALID_CONTEXT);
    CUevent event = simnode_new(sizeof *event);
    event->ctx = ctx;
    event->flags = flags;
    simcuda_add(SIMCUDA_EVENT, &event->object);
    *event_p = event;
    return CUDA_SUCCESS;
}

static void event_free(CUevent event)
{
    simcuda_remove(&event->object);
    simcuda_marker_release(event->marker);
    free(event->after.node);
    free(event);
}

CUresult cuEventDestroy_v2(CUevent event)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_EVENT, event), CUDA_ERROR_INVALID_HANDLE);
    event_free(event);
    return CUDA_SUCCESS;
}

void simcuda_streams_reset(CUcontext ctx)
{
    static const enum simcuda_kind kinds[] = {SIMCUDA_STREAM, SIMCUDA_DEFAULT_STREAM};
    struct simcuda_object *next;
    for (int k = 0; k < 2; k++) {
        for (struct simcuda_object *object = simcuda.objects[kinds[k]]; object; object = next) {
            next = object->next;
            if (((CUstream)object)->ctx == ctx) {
                simcuda_remove(object);
                simcuda_stream_close((CUstream)object);
            }
        }
    }
    for (struct simcuda_object *object = simcuda.objects[SIMCUDA_EVENT]; object; object = next) {
        next = object->next;
        if (((CUevent)object)->ctx == ctx) {
            event_free((CUevent)object);
        }
    }
}

/* An external record or wait: under capture only. */
static bool are_flags(CUstream stream, unsigned flags, unsigned external)
{
    return flags == 0 || (flags == external && stream->capture);
}

static CUresult record(CUevent event, CUstream handle, unsigned flags)
{
    CUstream stream;
    SIMCUDA_TRY(simcuda_stream_find(handle, &stream));
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_EVENT, event) || event->ctx != stream->ctx, CUDA_ERROR_INVALID_HANDLE);
    SIMCUDA_FAIL_IF(!are_flags(stream, flags, CU_EVENT_RECORD_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
    if (flags) {
        return simcuda_capture_work(stream, &(struct simcuda_op){.kind = SIMCUDA_OP_EVENT_RECORD, .event = event});
    }
    if (stream->capture) {
        return simcuda_capture_record(stream, event);
    }
    SIMCUDA_TRY(simcuda_stream_check_legacy(stream));
    simcuda_marker_release(event->marker);
    event->marker = simcuda_marker_new(1);
    event->capture = 0;
    simcuda_stream_order(stream);
    simcuda_push_marker(stream, SIMCUDA_OP_RECORD, event->marker);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    SIMCUDA_LOCK();
    return record(event, stream, 0);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    SIMCUDA_LOCK();
    return record(event, stream, flags);
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
    SIMCUDA_LOCK();
    CUstream stream;
    SIMCUDA_TRY(simcuda_stream_find(handle, &stream));
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_EVENT, event), CUDA_ERROR_INVALID_HANDLE);
    SIMCUDA_FAIL_IF(!are_flags(stream, flags, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
    if (flags) {
        return simcuda_capture_work(stream, &(struct simcuda_op){.kind = SIMCUDA_OP_EVENT_WAIT, .event = event});
    }
    if (event->capture != 0 || (stream->capture && event->marker)) {
        return simcuda_capture_wait(stream, event);
    }
    SIMCUDA_TRY(simcuda_stream_check_legacy(stream));
    if (event->marker) {
        simcuda_stream_order(stream);
        simcuda_push_marker(stream, SIMCUDA_OP_WAIT, event->marker);
    }
    return CUDA_SUCCESS;
}

/* What querying and synchronising have in common. */
static CUresult check_event(CUevent event)
{
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_EVENT, event), CUDA_ERROR_INVALID_HANDLE);
    return event->capture != 0 ? CUDA_ERROR_CAPTURED_EVENT : simcuda_capture_check();
}

CUresult cuEventQuery(CUevent event)
{
    SIMCUDA_LOCK();
    SIMCUDA_TRY(check_event(event));
    return event->marker && event->marker->left > 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event)
{
    SIMCUDA_LOCK();
    SIMCUDA_TRY(check_event(event));
    struct simcuda_marker *marker = event->marker;
    if (marker) {
        marker->references++; /* the event may be recorded again meanwhile */
        marker_wait(marker);
        simcuda_marker_release(marker);
    }
    return simcuda_after_wait();
}

CUresult cuEventElapsedTime(float *milliseconds_p, CUevent start_event, CUevent end_event)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_EVENT, start_event) || !simcuda_has(SIMCUDA_EVENT, end_event) ||
                        !start_event->marker || !end_event->marker ||
                        ((start_event->flags | end_event->flags) & CU_EVENT_DISABLE_TIMING),
                    CUDA_ERROR_INVALID_HANDLE);
    SIMCUDA_FAIL_IF(start_event->marker->left > 0 || end_event->marker->left > 0, CUDA_ERROR_NOT_READY);
    *milliseconds_p = (float)((double)(int64_t)(end_event->marker->time - start_event->marker->time) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *milliseconds_p, CUevent start_event, CUevent end_event)
    __attribute__((alias("cuEventElapsedTime")));
