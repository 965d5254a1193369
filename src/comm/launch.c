/* SPDX-License-Identifier: MIT */
/*
 * launch.c - putting calls on streams
 *
 * A burst is launched on one stream, that of its first call; the other streams of its calls are joined to it. What
 * puts bursts in order is in order.c.
 */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

#include "comm/failure.h"
#include "comm/fuse.h"
#include "comm/order.h"
#include "gpu/context.h"
#include "util/env.h"
#include "util/log.h"
#include "util/nvtx.h"

/* NCCL's own switch for the same thing. */
static bool nccl_mixes_graphs(void)
{
    const char *text = getenv("NCCL_GRAPH_MIXING_SUPPORT");
    return !text || strcmp(text, "0") != 0;
}

/* Events are destroyed with the communicator (retire.c), also when this fails half-way. */
ncclResult_t oh_comm_prepare_order(struct oh_comm *comm)
{
    const struct oh_driver *driver = comm->staging.driver;
    struct oh_context_scope scope;
    ncclResult_t res = ncclSuccess;
    if (oh_context_enter_relaxed(driver, &comm->staging.context, &scope) != CUDA_SUCCESS) {
        return ncclUnhandledCudaError;
    }
    for (int e = 0; e < OH_EVENTS; e++) {
        OH_CU_GOTO(driver, event_create(&comm->event[e], CU_EVENT_DISABLE_TIMING), res, out);
    }
    comm->graph_mixing = oh_env_flag(OH_ENV_GRAPH_MIXING, nccl_mixes_graphs());
    comm->early_send = oh_env_flag(OH_ENV_EARLY_SEND, true);
    comm->launch_order = oh_env_flag(OH_ENV_LAUNCH_ORDER, true);
out:
    oh_context_leave_relaxed(driver, &scope);
    return res;
}

ncclResult_t oh_comm_prepare_launch(struct oh_comm *comm)
{
    const struct oh_staging *staging = &comm->staging;
    const struct oh_driver *driver = staging->driver;
    struct oh_context_scope scope;

    if (oh_context_enter_relaxed(driver, &staging->context, &scope) != CUDA_SUCCESS) {
        return ncclUnhandledCudaError;
    }
    ncclResult_t res = oh_kernel_set_get(driver, staging->device, comm->nranks, &comm->kernels);
    oh_context_leave_relaxed(driver, &scope);
    if (res != ncclSuccess) {
        return res;
    }
    for (uint32_t j = 0; j < comm->nranks; j++) {
        comm->args.staging[j] = (char *)(uintptr_t)staging->peer[(comm->rank + j) % comm->nranks].base;
    }
    comm->args.control = (struct oh_control *)(uintptr_t)staging->control_device;
    comm->args.abort_flag = &comm->args.control->abort_flag;
    comm->args.rank = comm->rank;
    comm->args.nranks = comm->nranks;
    return ncclSuccess;
}

bool oh_call_plan(struct oh_call *call, ncclRedOp_t op)
{
    struct oh_comm *comm = call->comm;
    return atomic_load_explicit(&comm->served, memory_order_acquire) &&
           oh_comm_op_find(comm, op, call->type, &call->op) && (!comm->check || oh_check_call(call)) &&
           oh_plan_choose(&comm->table, call->count, call->type, &call->plan);
}

/* A burst runs on the stream of its first call. */
static CUstream stream_of(const struct oh_burst *burst)
{
    return burst->calls[0].stream;
}

/* Edges of graphs carry data since CUDA 12.3; before, a captured kernel gains nothing by asking. */
static bool is_serial(const struct oh_burst *burst)
{
    return burst->place.graph && !burst->calls[0].comm->staging.driver->stream_get_capture_info_v3;
}

/* For a profiler, if there is one: what a launch of so many calls carries. True when close_range is due. */
static bool open_range(const struct oh_call *calls, size_t count, enum onehop_algorithm algorithm)
{
    if (!oh_nvtx_on()) {
        return false;
    }
    struct oh_stats_record record;
    struct oh_nvtx_payload payload = {.comm = calls->comm->key.word[0], .algorithm = algorithm, .calls = count};
    oh_stats_copy(oh_comm_counters(calls->comm), &record);
    payload.sequence = oh_stats_served(&record);
    for (size_t i = 0; i < count; i++) {
        payload.bytes += calls[i].count * oh_type_size(calls[i].type);
    }
    oh_nvtx_push(&payload);
    return true;
}

static void close_range(bool open)
{
    if (open) {
        oh_nvtx_pop();
    }
}

/* Behind each launch of a kernel: passes its result on. linked: the kernel before has an early trigger for this one. */
static CUresult after_kernel(struct oh_burst *burst, bool linked, CUresult result)
{
    if (result == CUDA_SUCCESS) {
        burst->kernels++;
        result = oh_order_launched(burst, linked);
    }
    return result;
}

/* Words of the parts that a call goes in: as few as can be, and as long as one another, the last but for a few. */
static uint64_t part_words(const struct oh_call *call)
{
    const uint64_t per_word = OH_WORD_BYTES / oh_type_size(call->type);
    const uint64_t words = (call->count + per_word - 1) / per_word;
    const uint64_t most = oh_plan_kernel_words(call->plan.algorithm, call->comm->nranks);
    const uint64_t parts = (words + most - 1) / most;
    return (words + parts - 1) / parts;
}

/*
 * How the parts of a call follow one another. Their grid is the same on all ranks; whether they overlap is this rank's
 * own affair (doc/design.md, "Parts of a call").
 */
struct parts {
    uint64_t words; /* of each, but for the last */
    uint64_t count; /* elements of each */
    struct oh_plan plan;
    bool overlap;     /* each but the last has an early trigger */
    bool sends_early; /* each but the first sends before the part before it has ended */
};

static struct parts parts_of(const struct oh_burst *burst, const struct oh_call *call)
{
    const struct oh_comm *comm = call->comm;
    const uint64_t words = part_words(call);
    struct parts parts = {
        .words = words, .count = words * (OH_WORD_BYTES / oh_type_size(call->type)), .plan = call->plan};
    const uint32_t blocks =
        oh_plan_pipeline_blocks(comm->nranks, call->plan.blocks, call->plan.threads, comm->max_blocks);
    if (call->count > parts.count && comm->overlaps && blocks > 0) {
        parts.plan.blocks = blocks;
        parts.overlap = !is_serial(burst);
        parts.sends_early =
            parts.overlap && comm->early_send && oh_plan_can_send_early(call->plan.algorithm, comm->nranks);
    }
    return parts;
}

/* The arguments of the next kernel, whose first element is number `done` of the call. */
static void next_part(const struct oh_call *call, const struct parts *parts, uint64_t done, struct oh_kernel_args *args)
{
    const size_t size = oh_type_size(call->type);
    const uint64_t left = call->count - done;
    args->sendbuff = (const char *)call->sendbuff + done * size;
    args->recvbuff = (char *)call->recvbuff + done * size;
    args->count = left < parts->count ? left : parts->count;
    args->early_trigger = parts->overlap && left > parts->count;
    args->pipeline_head = parts->sends_early && done == 0;
    args->pipeline_position = parts->sends_early ? (uint32_t)(done / parts->count) : 0;
}

static CUresult launch_call(struct oh_burst *burst, const struct oh_call *call)
{
    const struct oh_comm *comm = call->comm;
    const struct parts parts = parts_of(burst, call);
    struct oh_kernel_args args = comm->args;
    args.signature = oh_what((int)call->plan.algorithm, call->type, call->op.kind);
    args.call_number = (uint32_t)oh_comm_note_launch(call->comm, 1, args.signature, call->count);
    args.report_count = (uint32_t)call->count; /* OH_MESSAGE_BYTES sees to it that it fits */
    const struct oh_launch launch = {
        .driver = comm->staging.driver,
        .set = comm->kernels,
        .plan = &parts.plan,
        .op = &call->op,
        .type = call->type,
        .stream = stream_of(burst),
        .serial = is_serial(burst),
    };
    CUresult result = CUDA_SUCCESS;
    bool range = open_range(call, 1, call->plan.algorithm);
    for (uint64_t done = 0; done < call->count && result == CUDA_SUCCESS; done += args.count) {
        next_part(call, &parts, done, &args);
        result = after_kernel(burst, parts.overlap && done > 0, oh_kernel_launch(&launch, &args));
    }
    close_range(range);
    return result;
}

static CUresult launch_list(struct oh_burst *burst, const struct oh_call *calls, size_t count,
                            enum onehop_algorithm *algorithm_p)
{
    const struct oh_comm *comm = calls[0].comm;
    struct oh_kernel_list_args args;
    struct oh_plan plan;
    args.base = comm->args;
    oh_fuse_list(&comm->table, calls, count, &args, &plan);
    *algorithm_p = plan.algorithm;
    args.base.report_count = 0;
    for (size_t i = 0; i < count; i++) {
        args.base.report_count += (uint32_t)calls[i].count;
    }
    args.base.signature = oh_what((int)plan.algorithm, calls[0].type, calls[0].op.kind);
    args.base.call_number =
        (uint32_t)oh_comm_note_launch(calls[0].comm, count, args.base.signature, args.base.report_count);
    const struct oh_launch launch = {
        .driver = comm->staging.driver,
        .set = comm->kernels,
        .plan = &plan,
        .op = &calls[0].op,
        .type = calls[0].type,
        .stream = stream_of(burst),
        .serial = is_serial(burst),
    };
    bool range = open_range(calls, count, plan.algorithm);
    CUresult result = after_kernel(burst, false, oh_kernel_launch_list(&launch, &args));
    close_range(range);
    return result;
}

static void count_call(const struct oh_call *call, enum onehop_algorithm algorithm)
{
    struct oh_counters *counters = oh_comm_counters(call->comm);
    oh_counter_add(&counters->calls[algorithm], 1);
    oh_counter_add(&counters->bytes, call->count * oh_type_size(call->type));
}

/* For every other stream of the burst: the burst's stream waits for it (`before`), or it for the burst's stream. */
static CUresult join_streams(const struct oh_burst *burst, bool before)
{
    const struct oh_comm *comm = burst->calls[0].comm;
    const struct oh_driver *driver = comm->staging.driver;
    const CUevent event = comm->event[OH_EVENT_JOIN]; /* a wait is for the record before it: it may be recorded again */
    CUresult result = CUDA_SUCCESS;
    if (!before) {
        result = driver->event_record(event, stream_of(burst));
    }
    for (size_t i = 1; i < burst->count && result == CUDA_SUCCESS; i++) {
        CUstream stream = burst->calls[i].stream;
        if (stream == stream_of(burst) || stream == burst->calls[i - 1].stream) {
            continue;
        }
        if (before) {
            result = driver->event_record(event, stream);
        }
        if (result == CUDA_SUCCESS) {
            result = driver->stream_wait_event(before ? stream_of(burst) : stream, event, 0);
        }
    }
    return result;
}

static CUresult begin_in_context(struct oh_burst *burst)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 1; i < burst->count; i++) {
        burst->joined |= burst->calls[i].stream != stream_of(burst);
    }
    if (burst->joined) {
        result = join_streams(burst, true);
    }
    return result == CUDA_SUCCESS ? oh_order_before(burst) : result;
}

/* Kernels that did go out must be known to have, even when a later one failed: memory is freed by that. */
static CUresult close_after_failure(struct oh_burst *burst, CUresult failure)
{
    if (burst->kernels > 0) {
        oh_order_after(burst);
    }
    return failure;
}

/* The next launch of the burst: a call, or a list of calls that go together. */
static CUresult launch_next(struct oh_burst *burst)
{
    const struct oh_call *calls = &burst->calls[burst->launched];
    size_t count = oh_fuse_count(&calls[0].comm->table, calls, burst->count - burst->launched);
    enum onehop_algorithm algorithm = calls[0].plan.algorithm;
    CUresult result = count > 1 ? launch_list(burst, calls, count, &algorithm) : launch_call(burst, calls);
    if (result == CUDA_SUCCESS) {
        for (size_t i = 0; i < count; i++) {
            count_call(&calls[i], algorithm);
        }
        burst->launched += count;
    }
    return result;
}

static CUresult launch_in_context(struct oh_burst *burst)
{
    CUresult result = CUDA_SUCCESS;
    const size_t until = burst->kernels + OH_BURST_TURN;
    while (burst->kernels < until && burst->launched < burst->count && result == CUDA_SUCCESS) {
        result = launch_next(burst);
    }
    return result == CUDA_SUCCESS ? result : close_after_failure(burst, result);
}

static CUresult end_in_context(struct oh_burst *burst)
{
    CUresult result = oh_order_after(burst);
    return result == CUDA_SUCCESS && burst->joined ? join_streams(burst, false) : result;
}

static CUresult whole_in_context(struct oh_burst *burst)
{
    CUresult result = begin_in_context(burst);
    while (result == CUDA_SUCCESS && burst->launched < burst->count) {
        result = launch_in_context(burst);
    }
    return result == CUDA_SUCCESS ? end_in_context(burst) : result;
}

static CUresult look_in_context(struct oh_burst *burst)
{
    return oh_order_look(burst->calls[0].comm, stream_of(burst), &burst->place);
}

static CUresult join_in_context(struct oh_burst *burst)
{
    return join_streams(burst, true);
}

/*
 * How many kernels of the burst are on their way, and in which order, is not known to the other ranks. So none follows
 * them, and a capture that may hold some is never replayed.
 */
static ncclResult_t fail_burst(const struct oh_burst *burst, CUresult result)
{
    struct oh_comm *comm = burst->calls[0].comm;
    if (oh_order_withdraw(comm, result)) {
        return ncclSuccess;
    }
    bool first = !oh_order_is_void(result) && oh_comm_fail(comm, ncclUnhandledCudaError, OH_MAX_RANKS);
    oh_comm_failure(comm); /* it is refused */
    OH_WARN("comm %p rank %u: launching an allreduce: %s%s", (void *)comm->nccl, comm->rank,
            oh_driver_error_name(comm->staging.driver, result),
            first ? ": calls now return ncclUnhandledCudaError" : "");
    return ncclUnhandledCudaError;
}

/* Runs one of the steps above in the communicator's context. */
static ncclResult_t in_context(struct oh_burst *burst, CUresult (*step)(struct oh_burst *))
{
    const struct oh_comm *comm = burst->calls[0].comm;
    const struct oh_staging *staging = &comm->staging;
    struct oh_context_scope scope;
    CUresult result = oh_context_enter(staging->driver, &staging->context, &scope);
    bool entered = result == CUDA_SUCCESS;
    if (entered) {
        result = step(burst);
    }
    if (result != CUDA_SUCCESS && comm->attach.first != 0) {
        oh_order_invalidate(comm, stream_of(burst), &burst->place);
    }
    if (entered) {
        oh_context_leave(staging->driver, &scope);
    }
    return result == CUDA_SUCCESS ? ncclSuccess : fail_burst(burst, result);
}

ncclResult_t oh_burst_begin(struct oh_burst *burst, const struct oh_call *calls, size_t count)
{
    *burst = (struct oh_burst){.calls = calls, .count = count};
    ncclResult_t res = oh_comm_failure(calls[0].comm);
    return res == ncclSuccess ? in_context(burst, begin_in_context) : res;
}

ncclResult_t oh_burst_turn(struct oh_burst *burst)
{
    return in_context(burst, launch_in_context);
}

ncclResult_t oh_burst_end(struct oh_burst *burst)
{
    return in_context(burst, end_in_context);
}

ncclResult_t oh_call_launch(const struct oh_call *call)
{
    struct oh_burst burst = {.calls = call, .count = 1};
    oh_comm_enter(call->comm);
    ncclResult_t res = in_context(&burst, whole_in_context);
    oh_comm_leave(call->comm);
    return res;
}

ncclResult_t oh_comm_capture(struct oh_comm *comm, CUstream stream, cuuint64_t *capture_p)
{
    struct oh_call call = {.comm = comm, .stream = stream};
    struct oh_burst burst = {.calls = &call, .count = 1};
    ncclResult_t res = in_context(&burst, look_in_context);
    if (res == ncclSuccess) {
        *capture_p = burst.place.graph ? burst.place.capture_id + 1 : 0;
    }
    return res;
}

ncclResult_t oh_comm_join(struct oh_comm *comm, CUstream from, CUstream to)
{
    const struct oh_call calls[] = {{.comm = comm, .stream = to}, {.comm = comm, .stream = from}};
    struct oh_burst burst = {.calls = calls, .count = 2};
    return in_context(&burst, join_in_context);
}
