/* SPDX-License-Identifier: MIT */
/*
 * cuda_graph.c - the stand-in driver's stream capture, graphs and user objects
 *
 * A captured graph is a program: the operations in the order in which they were captured, each with its lane, which
 * stands for the stream that it was captured on. Event records and waits stay in the program and order the lanes. A
 * launch queues the program: lane 0 on the stream that it is launched on, each other lane on a stream of the
 * executable graph's own, so that branches run at the same time. The program is shared by a graph and what is
 * instantiated from it, and does not change once the capture has ended.
 */
#include "test/simnode/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

/* For each lane, how many of its operations are known to be done. */
struct clock {
    uint32_t at[SIMCUDA_MAX_LANES];
};

struct program_step {
    int lane;
    struct simcuda_op op; /* RECORD and WAIT with a token */
};

struct program {
    unsigned references;
    int lanes;
    CUcontext ctx[SIMCUDA_MAX_LANES];
    size_t steps;
    struct program_step *step;
    uint32_t tokens;
};

/* References that a graph or executable graph holds. */
struct user_list {
    size_t count;
    struct {
        CUuserObject user;
        unsigned references;
    } * entry;
};

struct CUuserObject_st {
    struct simcuda_object object;
    void *data;
    CUhostFn destroy;
    unsigned references;
    CUuserObject next; /* of those to be destroyed */
};

struct CUgraph_st {
    struct simcuda_object object;
    bool capturing;
    struct program *program;
    struct user_list users;
};

struct CUgraphExec_st {
    struct simcuda_object object;
    unsigned references; /* the handle, and one for each launch that is not finished */
    struct program *program;
    struct user_list users;
    CUstream lane[SIMCUDA_MAX_LANES]; /* lane 0 is the stream launched on */
    struct simcuda_marker *last;      /* end of the latest launch: launches of one graph do not overlap */
};

struct simcuda_capture {
    struct simcuda_object object;
    cuuint64_t id;
    CUstreamCaptureMode mode;
    pthread_t thread;
    bool invalid;
    CUgraph graph;
    CUstream stream[SIMCUDA_MAX_LANES];
    struct clock clock[SIMCUDA_MAX_LANES]; /* what each lane comes after */
    struct clock *token;                   /* what each event record comes after */
};

static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* Room for one more: doubles an array at each power of two. */
static void *grown(void *array, size_t count, size_t size)
{
    if (count & (count - 1)) {
        return array;
    }
    void *bigger = simcuda_new((count ? 2 * count : 1) * size);
    if (count) {
        memcpy(bigger, array, count * size);
    }
    free(array);
    return bigger;
}

static void program_release(struct program *program)
{
    if (--program->references == 0) {
        free(program->step);
        free(program);
    }
}

/* ---- user objects ---- */

/* Drops references; an object without any joins the list of those to be destroyed. */
static void user_drop(CUuserObject user, unsigned references, CUuserObject *doomed)
{
    user->references -= references;
    if (user->references == 0) {
        simcuda_remove(&user->object);
        user->next = *doomed;
        *doomed = user;
    }
}

static void users_add(struct user_list *users, CUuserObject user, unsigned references)
{
    users->entry = grown(users->entry, users->count, sizeof *users->entry);
    users->entry[users->count].user = user;
    users->entry[users->count].references = references;
    users->count++;
}

static void users_copy(struct user_list *to, const struct user_list *from)
{
    for (size_t i = 0; i < from->count; i++) {
        from->entry[i].user->references += from->entry[i].references;
        users_add(to, from->entry[i].user, from->entry[i].references);
    }
}

static void users_drop(struct user_list *users, CUuserObject *doomed)
{
    for (size_t i = 0; i < users->count; i++) {
        user_drop(users->entry[i].user, users->entry[i].references, doomed);
    }
    free(users->entry);
}

void simcuda_users_destroy(CUuserObject doomed)
{
    while (doomed) {
        CUuserObject next = doomed->next;
        simcuda_callback(doomed->destroy, doomed->data);
        free(doomed);
        doomed = next;
    }
}

CUresult cuUserObjectCreate(CUuserObject *user_p, void *data, CUhostFn destroy, unsigned references, unsigned flags)
{
    SIMCUDA_ENTER();
    if (!destroy || references == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUuserObject user = simcuda_new(sizeof *user);
    user->data = data;
    user->destroy = destroy;
    user->references = references;
    pthread_mutex_lock(&simcuda.lock);
    simcuda_add(SIMCUDA_USER, &user->object);
    *user_p = user;
    return simcuda_leave(CUDA_SUCCESS);
}

CUresult cuUserObjectRelease(CUuserObject user, unsigned references)
{
    SIMCUDA_ENTER();
    CUuserObject doomed = NULL;
    pthread_mutex_lock(&simcuda.lock);
    if (!simcuda_has(SIMCUDA_USER, user) || references == 0 || references > user->references) {
        return simcuda_leave(CUDA_ERROR_INVALID_VALUE);
    }
    user_drop(user, references, &doomed);
    pthread_mutex_unlock(&simcuda.lock);
    simcuda_users_destroy(doomed);
    return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject user, unsigned references, unsigned flags)
{
    SIMCUDA_ENTER();
    pthread_mutex_lock(&simcuda.lock);
    if (!simcuda_has(SIMCUDA_GRAPH, graph) || !simcuda_has(SIMCUDA_USER, user) || references == 0 ||
        (flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE) || (flags && references > user->references)) {
        return simcuda_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) {
        user->references += references;
    }
    users_add(&graph->users, user, references);
    return simcuda_leave(CUDA_SUCCESS);
}

/* ---- capture ---- */

static void clock_merge(struct clock *to, const struct clock *from)
{
    for (int i = 0; i < SIMCUDA_MAX_LANES; i++) {
        to->at[i] = from->at[i] > to->at[i] ? from->at[i] : to->at[i];
    }
}

static CUresult capture_fail(struct simcuda_capture *capture, CUresult result)
{
    capture->invalid = true;
    return result;
}

static void add_step(struct simcuda_capture *capture, int lane, const struct simcuda_op *op)
{
    struct program *program = capture->graph->program;
    program->step = grown(program->step, program->steps, sizeof *program->step);
    program->step[program->steps++] = (struct program_step){lane, *op};
}

/* The stream becomes the capture's next lane. */
static void add_lane(struct simcuda_capture *capture, CUstream stream)
{
    struct program *program = capture->graph->program;
    int lane = program->lanes++;
    program->ctx[lane] = stream->ctx;
    capture->stream[lane] = stream;
    simcuda_stream_retain(stream);
    stream->capture = capture;
    stream->lane = lane;
}

static struct simcuda_capture *capture_by_id(cuuint64_t id)
{
    for (struct simcuda_object *object = simcuda.objects[SIMCUDA_CAPTURE]; object; object = object->next) {
        if (((struct simcuda_capture *)object)->id == id) {
            return (struct simcuda_capture *)object;
        }
    }
    return NULL;
}

CUresult simcuda_capture_check(void)
{
    CUresult result = CUDA_SUCCESS;
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_SUCCESS;
    }
    for (struct simcuda_object *object = simcuda.objects[SIMCUDA_CAPTURE]; object; object = object->next) {
        struct simcuda_capture *capture = (struct simcuda_capture *)object;
        bool mine = pthread_equal(capture->thread, pthread_self());
        bool all_global =
            thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (mine ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED : all_global) {
            result = capture_fail(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    return result;
}

CUresult simcuda_capture_check_legacy(CUcontext ctx, bool invalidate)
{
    CUresult result = CUDA_SUCCESS;
    for (struct simcuda_object *object = simcuda.objects[SIMCUDA_CAPTURE]; object; object = object->next) {
        struct simcuda_capture *capture = (struct simcuda_capture *)object;
        for (int i = 0; i < capture->graph->program->lanes; i++) {
            const struct CUstream_st *stream = capture->stream[i];
            if (stream->ctx == ctx && !(stream->flags & CU_STREAM_NON_BLOCKING)) {
                capture->invalid = capture->invalid || invalidate;
                result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
            }
        }
    }
    return result;
}

void simcuda_capture_invalidate(CUstream stream)
{
    stream->capture->invalid = true;
}

CUresult simcuda_capture_work(CUstream stream, const struct simcuda_op *op)
{
    struct simcuda_capture *capture = stream->capture;
    if (capture->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    add_step(capture, stream->lane, op);
    capture->clock[stream->lane].at[stream->lane]++;
    return CUDA_SUCCESS;
}

CUresult simcuda_capture_record(CUstream stream, CUevent event)
{
    struct simcuda_capture *capture = stream->capture;
    struct program *program = capture->graph->program;
    struct simcuda_op op = {.kind = SIMCUDA_OP_RECORD, .token = program->tokens};
    if (capture->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    capture->token = grown(capture->token, program->tokens, sizeof *capture->token);
    capture->token[program->tokens] = capture->clock[stream->lane];
    simcuda_marker_release(event->marker);
    event->marker = NULL;
    event->capture = capture->id;
    event->token = program->tokens++;
    add_step(capture, stream->lane, &op);
    return CUDA_SUCCESS;
}

CUresult simcuda_capture_wait(CUstream stream, CUevent event)
{
    struct simcuda_capture *capture = capture_by_id(event->capture);
    struct simcuda_op op = {.kind = SIMCUDA_OP_WAIT, .token = event->token};
    if (stream->capture && stream->capture != capture) {
        if (capture) {
            capture->invalid = true;
        }
        return capture_fail(stream->capture,
                            capture ? CUDA_ERROR_STREAM_CAPTURE_MERGE : CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    if (!capture) {
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (capture->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (!stream->capture) {
        if (stream->legacy || capture->graph->program->lanes == SIMCUDA_MAX_LANES) {
            return capture_fail(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        add_lane(capture, stream);
    }
    add_step(capture, stream->lane, &op);
    clock_merge(&capture->clock[stream->lane], &capture->token[event->token]);
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    SIMCUDA_ENTER();
    CUstreamCaptureMode old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

static CUgraph graph_new(void)
{
    CUgraph graph = simcuda_new(sizeof *graph);
    graph->program = simcuda_new(sizeof *graph->program);
    graph->program->references = 1;
    graph->capturing = true;
    simcuda_add(SIMCUDA_GRAPH, &graph->object);
    return graph;
}

/* Returns the user objects to destroy. */
static CUuserObject graph_free(CUgraph graph)
{
    CUuserObject doomed = NULL;
    simcuda_remove(&graph->object);
    users_drop(&graph->users, &doomed);
    program_release(graph->program);
    free(graph);
    return doomed;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
    SIMCUDA_ENTER();
    CUstream stream;
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&simcuda.lock);
    CUresult result = simcuda_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS && stream->legacy) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else if (result == CUDA_SUCCESS && stream->capture) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    }
    if (result != CUDA_SUCCESS) {
        return simcuda_leave(result);
    }
    struct simcuda_capture *capture = simcuda_new(sizeof *capture);
    capture->id = ++simcuda.captures;
    capture->mode = mode;
    capture->thread = pthread_self();
    capture->graph = graph_new();
    simcuda_add(SIMCUDA_CAPTURE, &capture->object);
    add_lane(capture, stream);
    return simcuda_leave(CUDA_SUCCESS);
}

/* What is wrong with a capture that is to end. */
static CUresult capture_verdict(const struct simcuda_capture *capture)
{
    if (capture->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    for (int i = 0; i < capture->graph->program->lanes; i++) {
        if (capture->clock[0].at[i] < capture->clock[i].at[i]) {
            return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        }
    }
    return CUDA_SUCCESS;
}

static void capture_free(struct simcuda_capture *capture)
{
    for (int i = 0; i < capture->graph->program->lanes; i++) {
        capture->stream[i]->capture = NULL;
        simcuda_stream_release(capture->stream[i]);
    }
    simcuda_remove(&capture->object);
    free(capture->token);
    free(capture);
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph_p)
{
    SIMCUDA_ENTER();
    CUstream stream;
    CUuserObject doomed = NULL;
    pthread_mutex_lock(&simcuda.lock);
    CUresult result = simcuda_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS && !stream->capture) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    }
    if (result != CUDA_SUCCESS) {
        return simcuda_leave(result);
    }
    struct simcuda_capture *capture = stream->capture;
    if (stream->lane != 0) {
        return simcuda_leave(capture_fail(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED));
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self())) {
        return simcuda_leave(capture_fail(capture, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD));
    }
    CUgraph graph = capture->graph;
    result = capture_verdict(capture);
    capture_free(capture);
    if (result != CUDA_SUCCESS) {
        doomed = graph_free(graph);
        graph = NULL;
    } else {
        graph->capturing = false;
    }
    *graph_p = graph;
    pthread_mutex_unlock(&simcuda.lock);
    simcuda_users_destroy(doomed);
    return result;
}

/* Every output but the status may be NULL. The simulated graph has no nodes to show, hence no dependencies. */
static CUresult capture_info(CUstream handle, CUstreamCaptureStatus *status_p, cuuint64_t *id_p, CUgraph *graph_p,
                             const CUgraphNode **dependencies_p, size_t *count_p)
{
    CUstream stream;
    pthread_mutex_lock(&simcuda.lock);
    CUresult result = simcuda_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS && stream->legacy) {
        result = simcuda_capture_check_legacy(stream->ctx, false);
    }
    if (result != CUDA_SUCCESS) {
        return simcuda_leave(result);
    }
    const struct simcuda_capture *capture = stream->capture;
    *status_p = CU_STREAM_CAPTURE_STATUS_NONE;
    if (capture) {
        *status_p = capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    }
    if (*status_p == CU_STREAM_CAPTURE_STATUS_ACTIVE && id_p) {
        *id_p = capture->id;
    }
    if (*status_p == CU_STREAM_CAPTURE_STATUS_ACTIVE && graph_p) {
        *graph_p = capture->graph;
    }
    if (dependencies_p) {
        *dependencies_p = NULL;
    }
    if (count_p) {
        *count_p = 0;
    }
    return simcuda_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status_p, cuuint64_t *id_p, CUgraph *graph_p,
                                   const CUgraphNode **dependencies_p, size_t *count_p)
{
    SIMCUDA_ENTER();
    return capture_info(stream, status_p, id_p, graph_p, dependencies_p, count_p);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status_p, cuuint64_t *id_p, CUgraph *graph_p,
                                   const CUgraphNode **dependencies_p, const CUgraphEdgeData **edges_p, size_t *count_p)
{
    SIMCUDA_ENTER();
    if (edges_p) {
        *edges_p = NULL;
    }
    return capture_info(stream, status_p, id_p, graph_p, dependencies_p, count_p);
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status_p)
{
    SIMCUDA_ENTER();
    return capture_info(stream, status_p, NULL, NULL, NULL, NULL);
}

/* ---- graphs ---- */

CUresult cuGraphDestroy(CUgraph graph)
{
    SIMCUDA_ENTER();
    pthread_mutex_lock(&simcuda.lock);
    if (!simcuda_has(SIMCUDA_GRAPH, graph) || graph->capturing) {
        return simcuda_leave(CUDA_ERROR_INVALID_VALUE);
    }
    CUuserObject doomed = graph_free(graph);
    pthread_mutex_unlock(&simcuda.lock);
    simcuda_users_destroy(doomed);
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec_p, CUgraph graph, unsigned long long flags)
{
    SIMCUDA_ENTER();
    (void)flags; /* about memory of graphs and where they are launched from */
    pthread_mutex_lock(&simcuda.lock);
    if (!simcuda_has(SIMCUDA_GRAPH, graph) || graph->capturing) {
        return simcuda_leave(CUDA_ERROR_INVALID_VALUE);
    }
    CUgraphExec exec = simcuda_new(sizeof *exec);
    exec->references = 1;
    exec->program = graph->program;
    exec->program->references++;
    users_copy(&exec->users, &graph->users);
    for (int i = 1; i < exec->program->lanes; i++) {
        exec->lane[i] = simcuda_stream_new(exec->program->ctx[i], CU_STREAM_NON_BLOCKING);
    }
    simcuda_add(SIMCUDA_EXEC, &exec->object);
    *exec_p = exec;
    return simcuda_leave(CUDA_SUCCESS);
}

CUuserObject simcuda_exec_release(CUgraphExec exec)
{
    CUuserObject doomed = NULL;
    if (--exec->references == 0) {
        users_drop(&exec->users, &doomed);
        for (int i = 1; i < exec->program->lanes; i++) {
            simcuda_stream_close(exec->lane[i]);
        }
        program_release(exec->program);
        simcuda_marker_release(exec->last);
        free(exec);
    }
    return doomed;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    SIMCUDA_ENTER();
    pthread_mutex_lock(&simcuda.lock);
    if (!simcuda_has(SIMCUDA_EXEC, exec)) {
        return simcuda_leave(CUDA_ERROR_INVALID_VALUE);
    }
    simcuda_remove(&exec->object);
    CUuserObject doomed = simcuda_exec_release(exec);
    pthread_mutex_unlock(&simcuda.lock);
    simcuda_users_destroy(doomed);
    return CUDA_SUCCESS;
}

/* Queues every step, each token's record and waits with a marker of this launch. */
static void launch_steps(CUgraphExec exec, CUstream stream)
{
    const struct program *program = exec->program;
    struct simcuda_marker **marker = simcuda_new((program->tokens + 1) * sizeof *marker);
    for (size_t i = 0; i < program->steps; i++) {
        const struct program_step *step = &program->step[i];
        CUstream lane = step->lane == 0 ? stream : exec->lane[step->lane];
        if (step->op.kind == SIMCUDA_OP_RECORD) {
            marker[step->op.token] = simcuda_marker_new(1);
            simcuda_push_record(lane, marker[step->op.token]);
        } else if (step->op.kind == SIMCUDA_OP_WAIT) {
            simcuda_push_wait(lane, marker[step->op.token]);
        } else {
            simcuda_push(lane, &step->op);
        }
    }
    for (uint32_t i = 0; i < program->tokens; i++) {
        simcuda_marker_release(marker[i]);
    }
    free(marker);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
    SIMCUDA_ENTER();
    CUstream stream;
    pthread_mutex_lock(&simcuda.lock);
    CUresult result = simcuda_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS && !simcuda_has(SIMCUDA_EXEC, exec)) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (result == CUDA_SUCCESS && stream->capture) {
        result = CUDA_ERROR_NOT_SUPPORTED; /* a graph within a graph */
    } else if (result == CUDA_SUCCESS && stream->legacy) {
        result = simcuda_capture_check_legacy(stream->ctx, true);
    }
    if (result != CUDA_SUCCESS) {
        return simcuda_leave(result);
    }
    struct simcuda_op retire = {.kind = SIMCUDA_OP_RETIRE, .exec = exec};
    simcuda_stream_order(stream);
    if (exec->last) {
        simcuda_push_wait(stream, exec->last);
        simcuda_marker_release(exec->last);
    }
    launch_steps(exec, stream);
    exec->last = simcuda_marker_new(1);
    simcuda_push_record(stream, exec->last);
    exec->references++;
    simcuda_push(stream, &retire);
    return simcuda_leave(CUDA_SUCCESS);
}
