/* SPDX-License-Identifier: MIT */
/*
 * nccl_collectives.c - the operations of the simulated NCCL
 *
 * A call is checked on the caller's thread and becomes a host function on the caller's stream. There the ranks go
 * through the message piece by piece: each shows its piece, waits for the others', and takes what it needs.
 * Operations of one communicator are chained by events over streams. The chain of a capture is its own: a graph and
 * eager calls of one communicator must be ordered by the program (NCCL orders these as well).
 *
 * A launch owns a reference to the core. It is freed by the host function, or with the graph that holds it.
 */
#include "nccl_internal.h"

#include <stdlib.h>
#include <string.h>

#include "nccl_reduce.h"

#define FP8_CAPABILITY 90
#define ONE_RANK_FLAWED_SINCE 21901
#define ONE_RANK_MENDED_SINCE 22907
#define ONE_RANK_MAX_BLOCKS 32
#define ONE_RANK_BLOCK_BYTES 16384
#define PACK_BYTES 16

struct launch {
    struct simnccl_core *core;
    bool captured;
    int held; /* 1: as long as a graph holds it, the communicator does not end */
    size_t number;
    struct simnccl_operation operation[];
};

/* --- on the stream ------------------------------------------------------------------------------------------- */

/* The same on all ranks that run the same call; its top byte tells the function. */
static uint32_t signature(const struct simnccl_operation *op, size_t offset)
{
    uint64_t mix = op->count;
    mix = mix * 31 + (uint64_t)op->type;
    mix = mix * 31 + (op->op < ncclNumOps ? (uint64_t)op->op : ncclNumOps);
    mix = mix * 31 + (uint64_t)op->peer;
    mix = mix * 31 + offset;
    mix *= 0x9e3779b97f4a7c15u;
    return (uint32_t)op->function << 24 | (uint32_t)(mix >> 40);
}

static bool has_user_op(const struct simnccl_operation *op)
{
    return op->op >= ncclNumOps;
}

/* A rank multiplies what it shows by its own factor, rounded to the type. */
static void scale(const struct simnccl_operation *op, const void *in, size_t count, void *out)
{
    const void *scalar = op->user.on_device ? op->user.device_scalar : &op->user.host_scalar;
    simnccl_reduce(op->type, op->op, scalar, &in, 1, count, out);
}

static void reduce_pieces(const struct simnccl_operation *op, size_t piece_offset, size_t count, void *out)
{
    const void *in[SIMNCCL_MAX_RANKS];
    for (int r = 0; r < op->core->nranks; r++) {
        in[r] = (const char *)simnccl_core_piece(op->core, SIMNCCL_STREAM, r) + piece_offset;
    }
    simnccl_reduce(op->type, has_user_op(op) ? ncclSum : op->op, NULL, in, op->core->nranks, count, out);
}

/* What collectives do: a rank shows its send buffer piece by piece, and takes from what all have shown. */
static const struct shape {
    bool blocks; /* the send buffer has a block for each rank, which takes its own; else all take the same */
    bool from_root, at_root; /* only the root shows; only the root takes */
    enum {
        COPY, /* of what the root shows */
        GATHER,
        REDUCE
    } take;
} shapes[SIMNCCL_FUNCTION_COUNT] = {
    [SIMNCCL_AllReduce] = {.take = REDUCE},
    [SIMNCCL_Reduce] = {.take = REDUCE, .at_root = true},
    [SIMNCCL_ReduceScatter] = {.take = REDUCE, .blocks = true},
    [SIMNCCL_AllGather] = {.take = GATHER},
    [SIMNCCL_Gather] = {.take = GATHER, .at_root = true},
    [SIMNCCL_AlltoAll] = {.take = GATHER, .blocks = true},
    [SIMNCCL_Broadcast] = {.from_root = true},
    [SIMNCCL_Scatter] = {.from_root = true, .blocks = true},
};

/* Elements of the result from `first` on. */
static void take_pieces(const struct simnccl_operation *op, const struct shape *shape, size_t first, size_t count)
{
    const struct simnccl_core *core = op->core;
    size_t size = simnccl_type_size(op->type), bytes = count * size;
    size_t own = shape->blocks ? (size_t)core->rank * bytes : 0;
    char *out = (char *)op->recv + first * size;
    if (shape->take == REDUCE) {
        reduce_pieces(op, own, count, out);
    } else if (shape->take == COPY) {
        memcpy(out, (const char *)simnccl_core_piece(core, SIMNCCL_STREAM, op->peer) + own, bytes);
    } else {
        for (int r = 0; r < core->nranks; r++) {
            const char *piece = simnccl_core_piece(core, SIMNCCL_STREAM, r);
            memcpy(out + (size_t)r * op->count * size, piece + own, bytes);
        }
    }
    const char *wrong = getenv("SIMNODE_NCCL_WRONG"); /* for tests of who checks results */
    if (wrong && count > 0) {
        ((unsigned char *)out)[strcmp(wrong, "high") == 0 ? size - 1 : 0] ^= 1;
    }
}

static ncclResult_t run_collective(const struct simnccl_operation *op)
{
    struct simnccl_core *core = op->core;
    const struct shape *shape = &shapes[op->function];
    bool is_root = core->rank == op->peer, shows = !shape->from_root || is_root, takes = !shape->at_root || is_root;
    size_t size = simnccl_type_size(op->type), blocks = shape->blocks ? (size_t)core->nranks : 1;
    size_t step = SIMNCCL_CHUNK_BYTES / size / blocks;
    bool packs = shape->blocks || has_user_op(op); /* else it shows the send buffer itself */
    /* NCCL's root is through when its message is in the buffers of the others, be they late. */
    bool leaves = shape->from_root && is_root && simnode_setting("SIMNODE_NCCL_EARLY_ROOT") == 1;
    char *parts = packs ? simnode_new(SIMNCCL_CHUNK_BYTES) : NULL;
    ncclResult_t result = ncclSuccess;
    for (size_t first = 0; first < op->count && result == ncclSuccess; first += step) {
        size_t count = op->count - first < step ? op->count - first : step, bytes = count * size;
        for (size_t b = 0; b < blocks && shows && packs; b++) {
            const char *block = (const char *)op->send + (b * op->count + first) * size;
            if (has_user_op(op)) {
                scale(op, block, count, parts + b * bytes);
            } else {
                memcpy(parts + b * bytes, block, bytes);
            }
        }
        const char *shown = packs || !shows ? parts : (const char *)op->send + first * size;
        result = (leaves ? simnccl_core_show : simnccl_core_exchange)(core, SIMNCCL_STREAM, signature(op, first), shown,
                                                                      shows ? blocks * bytes : 0);
        if (result == ncclSuccess && takes) {
            take_pieces(op, shape, first, count);
        }
    }
    free(parts);
    return result;
}

/* Moves one send or receive on as far as its mailbox lets it; op->count counts down in bytes. True if it moved. */
static bool progress(struct simnccl_operation *op)
{
    struct simnccl_core *core = op->core;
    bool sends = op->function == SIMNCCL_Send;
    struct simnccl_mailbox *box =
        sends ? &core->segment->mail[core->rank][op->peer] : &core->segment->mail[op->peer][core->rank];
    if (atomic_load(&box->full) == (sends ? 1 : 0)) {
        return false;
    }
    size_t bytes = op->count < SIMNCCL_MAIL_BYTES ? op->count : SIMNCCL_MAIL_BYTES;
    if (sends) {
        memcpy(box->data, op->send, bytes);
        box->bytes = (uint32_t)bytes;
        op->send = (const char *)op->send + bytes;
    } else {
        bytes = box->bytes < op->count ? box->bytes : op->count;
        memcpy(op->recv, box->data, bytes);
        op->recv = (char *)op->recv + bytes;
    }
    op->count -= bytes;
    atomic_store(&box->full, sends ? 1 : 0);
    simnccl_core_ring(core);
    return true;
}

/* True when no earlier operation of the batch uses the same mailbox: messages between two ranks keep their order. */
static bool is_next(const struct simnccl_operation *op, size_t index)
{
    for (size_t i = 0; i < index; i++) {
        if (op[i].count > 0 && op[i].function == op[index].function && op[i].peer == op[index].peer) {
            return false;
        }
    }
    return true;
}

static ncclResult_t run_point_to_point(const struct simnccl_operation *operations, size_t number)
{
    struct simnccl_core *core = operations[0].core;
    struct simnccl_operation *op = simnode_new(number * sizeof *op);
    ncclResult_t result = ncclSuccess;
    memcpy(op, operations, number * sizeof *op);
    for (size_t i = 0; i < number; i++) {
        op[i].count *= simnccl_type_size(op[i].type);
    }
    for (size_t left = number; left > 0 && result == ncclSuccess;) {
        uint32_t seen = atomic_load(&core->segment->doorbell);
        bool moved = false;
        left = 0;
        for (size_t i = 0; i < number; i++) {
            if (op[i].count > 0 && is_next(op, i)) {
                moved |= progress(&op[i]);
            }
            left += op[i].count > 0;
        }
        if (left > 0 && !moved && !simnccl_core_wait(core, seen)) {
            result = ncclInternalError;
        }
    }
    free(op);
    return result;
}

static bool reduces(const struct simnccl_operation *op)
{
    return shapes[op->function].take == REDUCE;
}

/* Has NCCL the reduction of one rank done by a kernel of its own, which multiplies? An average of floats is one. */
static bool multiplies_alone(const struct simnccl_operation *op)
{
    bool is_float = op->type >= ncclFloat16;
    return reduces(op) && op->core->nranks == 1 && (has_user_op(op) || (op->op == ncclAvg && is_float));
}

/*
 * NCCL from 2.19.1 to 2.29.3 (src/device/onerank.cu, oneRankReduce) gives each block alignUp(nElts/bn, EltPerPack)
 * elements: where nElts/bn, which is rounded down, is a multiple already, the last nElts%bn are left as they were.
 */
static size_t one_rank_count(const struct simnccl_operation *op)
{
    size_t size = simnccl_type_size(op->type), pack = PACK_BYTES / size;
    size_t blocks = (op->count * size + ONE_RANK_BLOCK_BYTES - 1) / ONE_RANK_BLOCK_BYTES;
    int version = simnccl_version();
    if (version < ONE_RANK_FLAWED_SINCE || version >= ONE_RANK_MENDED_SINCE) {
        return op->count;
    }
    blocks = blocks < ONE_RANK_MAX_BLOCKS ? blocks : ONE_RANK_MAX_BLOCKS;
    size_t done = (op->count / blocks + pack - 1) / pack * pack * blocks;
    return done < op->count ? done : op->count;
}

static ncclResult_t run_operations(const struct simnccl_operation *operations, size_t number)
{
    struct simnccl_operation op = *operations;
    op.count = multiplies_alone(&op) ? one_rank_count(&op) : op.count;
    if (simnccl_is_point_to_point(operations)) {
        return run_point_to_point(operations, number);
    }
    return run_collective(&op);
}

static void CUDA_CB launch_free(void *argument)
{
    struct launch *launch = argument;
    struct simnccl_core *core = launch->core;
    atomic_fetch_sub(&core->graphs, launch->held);
    simnccl_core_release(core);
    free(launch);
}

static void CUDA_CB launch_run(void *argument)
{
    struct launch *launch = argument;
    struct simnccl_core *core = launch->core;
    pthread_mutex_lock(&core->running);
    ncclResult_t result = core->aborted ? ncclSuccess : run_operations(launch->operation, launch->number);
    if (result != ncclSuccess) {
        core->result = result;
    }
    pthread_mutex_unlock(&core->running);
    if (!launch->captured) {
        atomic_fetch_sub(&core->pending, 1);
        launch_free(launch);
    }
}

/* --- on the caller's thread ---------------------------------------------------------------------------------- */

/* Makes `to` wait for all that is on `from`. */
static ncclResult_t join_streams(CUstream from, CUstream to)
{
    CUevent event;
    SIMNCCL_TRY_CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CUresult result = cuEventRecord(event, from);
    if (result == CUDA_SUCCESS) {
        result = cuStreamWaitEvent(to, event, 0);
    }
    cuEventDestroy(event);
    return result == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

static ncclResult_t need_event(CUevent *event)
{
    if (*event == NULL) {
        SIMNCCL_TRY_CU(cuEventCreate(event, CU_EVENT_DISABLE_TIMING));
    }
    return ncclSuccess;
}

/*
 * Makes the stream wait for the communicator's last operation, which may be on another stream, or be one of a graph
 * that was launched since: a graph begins with an external wait.
 */
static ncclResult_t chain_begin(struct simnccl_core *core, CUstream stream, cuuint64_t capture)
{
    SIMNCCL_TRY(need_event(&core->last_event));
    if (capture == 0) {
        SIMNCCL_TRY_CU(cuStreamWaitEvent(stream, core->last_event, 0));
    } else if (core->last_capture != capture) {
        SIMNCCL_TRY_CU(cuStreamWaitEvent(stream, core->last_event, CU_EVENT_WAIT_EXTERNAL));
    } else if (core->last_captured_stream != stream) {
        SIMNCCL_TRY_CU(cuStreamWaitEvent(stream, core->last_captured_event, 0));
    }
    return ncclSuccess;
}

/* Marks the end of the operation just put on the stream. */
static ncclResult_t chain_end(struct simnccl_core *core, CUstream stream, cuuint64_t capture)
{
    if (capture != 0) {
        SIMNCCL_TRY(need_event(&core->last_captured_event));
        SIMNCCL_TRY_CU(cuEventRecordWithFlags(core->last_event, stream, CU_EVENT_RECORD_EXTERNAL));
        SIMNCCL_TRY_CU(cuEventRecord(core->last_captured_event, stream));
        core->last_capture = capture;
        core->last_captured_stream = stream;
    } else {
        SIMNCCL_TRY_CU(cuEventRecord(core->last_event, stream));
    }
    return ncclSuccess;
}

/* Takes the launch over: what the stream cannot run is freed. A graph frees what it holds when it ends. */
static ncclResult_t put_on_stream(struct launch *launch, CUstream stream, CUgraph graph)
{
    CUuserObject object;
    if (!launch->captured) {
        atomic_fetch_add(&launch->core->pending, 1);
        if (cuLaunchHostFunc(stream, launch_run, launch) != CUDA_SUCCESS) {
            atomic_fetch_sub(&launch->core->pending, 1);
            launch_free(launch);
            return ncclUnhandledCudaError;
        }
        return ncclSuccess;
    }
    if (cuUserObjectCreate(&object, launch, launch_free, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) != CUDA_SUCCESS) {
        launch_free(launch);
        return ncclUnhandledCudaError;
    }
    if (cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) != CUDA_SUCCESS) {
        cuUserObjectRelease(object, 1);
        return ncclUnhandledCudaError;
    }
    SIMNCCL_TRY_CU(cuLaunchHostFunc(stream, launch_run, launch));
    return ncclSuccess;
}

static struct launch *launch_create(const struct simnccl_operation *operations, size_t number, bool captured)
{
    struct launch *launch = simnode_new(sizeof *launch + number * sizeof *operations);
    launch->core = operations[0].core;
    launch->captured = captured;
    launch->held = captured && launch->core->nranks > 1; /* alone, NCCL captures a kernel and no more */
    launch->number = number;
    memcpy(launch->operation, operations, number * sizeof *operations);
    simnccl_core_retain(launch->core);
    atomic_fetch_add(&launch->core->graphs, launch->held);
    return launch;
}

/* The other streams of the operations wait for `hub`, or (before) it for them. */
static ncclResult_t join_batch(const struct simnccl_operation *operations, size_t number, CUstream hub, bool before)
{
    for (size_t i = 0; i < number; i++) {
        CUstream other = operations[i].stream;
        if (other != hub && (i == 0 || other != operations[i - 1].stream)) {
            SIMNCCL_TRY(before ? join_streams(other, hub) : join_streams(hub, other));
        }
    }
    return ncclSuccess;
}

static ncclResult_t launch_in_context(const struct simnccl_operation *operations, size_t number)
{
    struct simnccl_core *core = operations[0].core;
    CUstream stream = operations[0].stream;
    CUstreamCaptureStatus status;
    cuuint64_t capture = 0; /* as long as the stream is in none */
    CUgraph graph = NULL;
    SIMNCCL_TRY_CU(cuStreamGetCaptureInfo_v2(stream, &status, &capture, &graph, NULL, NULL));
    SIMNCCL_TRY(chain_begin(core, stream, capture));
    SIMNCCL_TRY(join_batch(operations, number, stream, true));
    SIMNCCL_TRY(put_on_stream(launch_create(operations, number, capture != 0), stream, graph));
    SIMNCCL_TRY(join_batch(operations, number, stream, false));
    return chain_end(core, stream, capture);
}

/*
 * The caller's current context may be that of another device. A send connects its two ranks only (NCCL 2.28.9,
 * src/group.cc, ncclP2PPreconnectFunc).
 */
static ncclResult_t launch_all(const struct simnccl_operation *operations, size_t number)
{
    CUcontext context;
    SIMNCCL_TRY(simnccl_is_point_to_point(operations) ? ncclSuccess : simnccl_core_connect(operations[0].core));
    SIMNCCL_TRY_CU(cuCtxPushCurrent(operations[0].core->context));
    ncclResult_t result = launch_in_context(operations, number);
    SIMNCCL_TRY_CU(cuCtxPopCurrent(&context));
    return result;
}

/* Another thread may abort the communicator while this one waits for other ranks. */
ncclResult_t simnccl_launch(const struct simnccl_operation *operations, size_t number)
{
    struct simnccl_core *core = operations[0].core;
    simnccl_core_retain(core);
    ncclResult_t result = launch_all(operations, number);
    simnccl_core_release(core);
    return result;
}

ncclResult_t simnccl_join(const struct simnccl_operation *operations, size_t number, bool before)
{
    CUcontext context;
    CUstream hub = operations[before ? 0 : number - 1].stream;
    SIMNCCL_TRY_CU(cuCtxPushCurrent(operations[0].core->context));
    ncclResult_t result = join_batch(operations, number, hub, before);
    SIMNCCL_TRY_CU(cuCtxPopCurrent(&context));
    return result;
}

/* In NCCL's order: the communicator, its state, type and op. */
static ncclResult_t check_arguments(const struct simnccl_operation *op, ncclComm_t comm)
{
    ncclResult_t state;
    if (comm == NULL) {
        return ncclInvalidArgument;
    }
    if (comm->core->revoked || comm->core->suspended) {
        return ncclInvalidUsage;
    }
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess || state == ncclInProgress) { /* by its public name */
        return ncclInvalidArgument;
    }
    if (simnccl_type_size(op->type) == 0 || op->peer < 0 || op->peer >= comm->core->nranks) {
        return ncclInvalidArgument;
    }
    if ((int)op->op < 0 || (has_user_op(op) && simnccl_user_op_find(comm, (int)op->op) == NULL)) {
        return ncclInvalidArgument;
    }
    return state;
}

/* What NCCL checks only when there is something to do. */
static ncclResult_t check_reduction(const struct simnccl_operation *op, ncclComm_t comm)
{
    bool fp8 = op->type == ncclFloat8e4m3 || op->type == ncclFloat8e5m2;
    bool wrong_type = has_user_op(op) && op->user.type != op->type;
    /* NCCL's kernel for one rank lacks fp8 (device/onerank.cu, 2.24 to 2.30). */
    bool refused = wrong_type || (fp8 && (comm->core->capability < FP8_CAPABILITY || multiplies_alone(op)));
    return reduces(op) && refused ? ncclInvalidArgument : ncclSuccess;
}

/* For a bench: a call that is right is not carried out. Exported; looked up with dlsym. */
SIMNCCL_EXPORT void simnccl_idle(int on);

static int idle;

void simnccl_idle(int on)
{
    idle = on;
}

/* Checks a call and puts it into the group, which is the call's own when the caller has none open. */
static ncclResult_t enqueue(enum simnccl_function function, const void *send, void *recv, size_t count,
                            ncclDataType_t type, ncclRedOp_t reduction, int peer, ncclComm_t comm, cudaStream_t stream)
{
    struct simnccl_operation op = {.function = function,
                                   .send = send,
                                   .recv = recv,
                                   .count = count,
                                   .type = type,
                                   .op = reduction,
                                   .peer = peer,
                                   .stream = stream};
    simnccl_group_enter();
    ncclResult_t result = simnccl_group_fail(check_arguments(&op, comm));
    bool empty = idle || (op.count == 0 && !simnccl_is_point_to_point(&op));
    if (result == ncclSuccess && !empty) {
        op.core = comm->core;
        op.background = !comm->blocking && simnode_setting("SIMNODE_NCCL_BACKGROUND") == 1;
        if (has_user_op(&op)) { /* which may be destroyed before the call runs */
            op.user = *simnccl_user_op_find(comm, (int)op.op);
        }
        result = simnccl_group_fail(check_reduction(&op, comm));
        result = result == ncclSuccess ? simnccl_group_add_operation(&op) : result;
    }
    ncclResult_t end = simnccl_group_leave();
    return result != ncclSuccess ? result : end;
}

#define BUFFERS const void *send, void *recv, size_t count, ncclDataType_t type
#define WHERE ncclComm_t comm, cudaStream_t stream
#define COLLECTIVE(name_, parameters_, op_, root_)                                                                     \
    SIMNCCL_API(ncclResult_t, name_, parameters_)                                                                      \
    {                                                                                                                  \
        simnccl_count(SIMNCCL_##name_);                                                                                \
        return enqueue(SIMNCCL_##name_, send, recv, count, type, op_, root_, comm, stream);                            \
    }
COLLECTIVE(AllReduce, (BUFFERS, ncclRedOp_t op, WHERE), op, 0)
COLLECTIVE(Reduce, (BUFFERS, ncclRedOp_t op, int root, WHERE), op, root)
COLLECTIVE(ReduceScatter, (BUFFERS, ncclRedOp_t op, WHERE), op, 0)
COLLECTIVE(AllGather, (BUFFERS, WHERE), ncclSum, 0)
COLLECTIVE(Gather, (BUFFERS, int root, WHERE), ncclSum, root)
COLLECTIVE(AlltoAll, (BUFFERS, WHERE), ncclSum, 0)
COLLECTIVE(Broadcast, (BUFFERS, int root, WHERE), ncclSum, root)
COLLECTIVE(Scatter, (BUFFERS, int root, WHERE), ncclSum, root)

SIMNCCL_API(ncclResult_t, Bcast,
            (void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream))
{
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream); /* by its public name, as NCCL does */
}

/* As 2.32 has it, unlike nccl.h here. */
struct call_config {
    size_t size;
    unsigned magic, version;
    void *extensions;
    int limits[4];
    const char *algorithms;
};
ncclResult_t ncclAllReduceConfig(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                 ncclComm_t comm, cudaStream_t stream, const void *config);
SIMNCCL_API(ncclResult_t, AllReduceConfig,
            (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
             cudaStream_t stream, const void *config))
{
    const struct call_config *given = config;
    simnccl_count(SIMNCCL_AllReduceConfig);
    if (given != NULL && (given->size < sizeof *given || given->magic != 0xcafebeef || given->algorithms == NULL ||
                          strcmp(given->algorithms, "ring") != 0)) {
        return ncclInvalidArgument;
    }
    return enqueue(SIMNCCL_AllReduce, send, recv, count, type, op, 0, comm, stream);
}

SIMNCCL_API(ncclResult_t, Send,
            (const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream))
{
    simnccl_count(SIMNCCL_Send);
    return enqueue(SIMNCCL_Send, send, NULL, count, type, ncclSum, peer, comm, stream);
}

SIMNCCL_API(ncclResult_t, Recv,
            (void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream))
{
    simnccl_count(SIMNCCL_Recv);
    return enqueue(SIMNCCL_Recv, NULL, recv, count, type, ncclSum, peer, comm, stream);
}
