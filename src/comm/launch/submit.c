/* SPDX-License-Identifier: MIT */
/*
 * submit.c - launches the calls of a submission
 *
 * Does: Launches kernels on the stream of the submission's first call, and joins the other streams of its calls to it.
 *    decide.c has which kernels, order.c, nccl.c and capture.c in which order.
 * Threads: the one that uses the communicator.
 * Owns: nothing; the caller has the submission.
 */
#include "comm/watch/watch.h"
#include "comm/launch/launch.h"
#include "gpu/context.h"
#include "util/nvtx.h"

static const char *const ranges[ONEHOP_COLLECTIVE_COUNT][ONEHOP_ALGORITHM_COUNT] = {
    [ONEHOP_ALLREDUCE] = {"ncclAllReduce oneshot", "ncclAllReduce twoshot"},
    [ONEHOP_ALLGATHER] = {"ncclAllGather oneshot"},
    [ONEHOP_REDUCESCATTER] = {"ncclReduceScatter oneshot"},
    [ONEHOP_BROADCAST] = {"ncclBroadcast oneshot"},
};

void oh_ranges_start(void)
{
    oh_nvtx_start(&ranges[0][0], ONEHOP_COLLECTIVE_COUNT * ONEHOP_ALGORITHM_COUNT);
}

/* Opens an NVTX range, if a profiler is there. True: oh_nvtx_pop must follow. */
static bool open_range(const struct oh_call *calls, size_t count, const struct oh_plan *plan)
{
    if (!oh_nvtx_on()) {
        return false;
    }
    struct oh_stats_record record;
    struct oh_nvtx_payload payload = {.comm = calls->comm->id.key.word[0],
                                      .collective = plan->collective,
                                      .algorithm = plan->algorithm,
                                      .calls = count};
    oh_stats_copy(oh_comm_counters(calls->comm), &record);
    payload.sequence = oh_stats_served(&record);
    for (size_t i = 0; i < count; i++) {
        payload.bytes += oh_call_bytes(&calls[i]);
    }
    oh_nvtx_push((int)(plan->collective * ONEHOP_ALGORITHM_COUNT + plan->algorithm), &payload);
    return true;
}

/* After each launch of a kernel. */
static CUresult after_kernel(struct oh_submission *submission)
{
    submission->kernels++;
    return oh_capture_link(submission);
}

/* Fills in what the kernels of `call`, or of a list of calls like it with `count` elements in all, have in common. */
static struct oh_launch describe(const struct oh_submission *submission, const struct oh_call *call,
                                 const struct oh_plan *plan, uint64_t count, struct oh_kernel_args *args_p)
{
    const struct oh_comm *comm = call->comm;
    *args_p = comm->serve.args;
    args_p->signature = oh_signature_of(call, (int)plan->algorithm);
    args_p->call_number = submission->call_number;
    args_p->report_count = oh_report_count(count);
    return (struct oh_launch){
        .set = comm->serve.kernels,
        .plan = plan,
        .op = &call->op,
        .type = call->type,
        .stream = submission->stream_state.stream,
        /* Before CUDA 12.3 edges of graphs carry no data, so that captured kernels cannot overlap. */
        .serial = submission->stream_state.graph && !oh_driver.stream_get_capture_info_v3,
    };
}

/* Publishes `calls` calls, like `call`, with `count` elements in all. */
static void announce(struct oh_submission *submission, const struct oh_call *call, const struct oh_plan *plan,
                     size_t calls, uint64_t count)
{
    const uint32_t signature = oh_signature_of(call, (int)plan->algorithm);
    submission->call_number = (uint32_t)oh_progress_add(call->comm, calls, signature, count);
}

/*
 * Launches the parts of a call, as many as the turn allows. A call of many parts takes several turns: its parts alone
 * could fill the launch queue, while the same thread has yet to launch those of the other ranks.
 */
static CUresult launch_parts(struct oh_submission *submission, const struct oh_call *call)
{
    const size_t size = oh_type_size(call->type);
    const uint64_t part = oh_call_part_count(call);
    struct oh_kernel_args args;
    if (submission->done == 0) {
        announce(submission, call, &call->plan, 1, call->count);
    }
    const struct oh_launch launch = describe(submission, call, &call->plan, call->count, &args);
    args.stride = oh_call_stride(call);
    args.root = (uint32_t)call->root;
    while (submission->done < call->count && submission->kernels < submission->turn_end) {
        const uint64_t done = submission->done, left = call->count - done, count = left < part ? left : part;
        /* NULL: a broadcast of another root */
        args.sendbuff = call->sendbuff ? (const char *)call->sendbuff + done * size : NULL;
        args.recvbuff = (char *)call->recvbuff + done * size;
        args.count = oh_call_elements(call, count);
        submission->done += count;
        OH_TRY(oh_kernel_launch(&launch, &args));
        OH_TRY(after_kernel(submission));
    }
    return CUDA_SUCCESS;
}

static CUresult launch_list(struct oh_submission *submission, const struct oh_call *calls, size_t count,
                            const struct oh_plan *plan, struct oh_kernel_list_args *args)
{
    uint64_t elements = 0;
    for (size_t i = 0; i < count; i++) {
        elements += calls[i].count;
    }
    announce(submission, calls, plan, count, elements);
    const struct oh_launch launch = describe(submission, calls, plan, elements, &args->base);
    OH_TRY(oh_kernel_launch_list(&launch, args));
    return after_kernel(submission);
}

/* The submission's stream waits for every other stream of its calls (`before`), or these wait for it. */
static CUresult join_streams(const struct oh_submission *submission, bool before)
{
    const struct oh_comm *comm = submission->calls[0].comm;
    const CUevent event = comm->order.event[OH_EVENT_JOIN]; /* a wait is for the record before it */
    const CUstream own = submission->stream_state.stream;
    bool is_recorded = false; /* on its own stream: once */
    for (size_t i = 1; i < submission->count; i++) {
        const CUstream stream = submission->calls[i].stream;
        if (stream == own || stream == submission->calls[i - 1].stream) {
            continue;
        }
        if (before || !is_recorded) {
            OH_TRY(oh_driver.event_record(event, before ? stream : own));
            is_recorded = true;
        }
        OH_TRY(oh_driver.stream_wait_event(before ? own : stream, event, 0));
    }
    return CUDA_SUCCESS;
}

/* Orders the submission's stream after the last launch, eager or in the capture that the stream is in. */
static CUresult order(struct oh_submission *submission)
{
    struct oh_comm *comm = submission->calls[0].comm;
    struct oh_stream_state *stream_state = &submission->stream_state;
    OH_TRY(oh_order_get_stream(stream_state));
    if (stream_state->graph) {
        OH_TRY(oh_capture_before(comm, stream_state, &submission->capture));
        return oh_capture_unfence(submission->capture, stream_state->stream);
    }
    OH_TRY(oh_order_follow_launches(comm, stream_state));
    return oh_order_follow_nccl(comm, stream_state);
}

/* Records the launches of the submission as the last ones. */
static CUresult record(struct oh_submission *submission)
{
    const struct oh_stream_state *stream_state = &submission->stream_state;
    if (!submission->capture) {
        return oh_order_record_launch(submission->calls[0].comm, stream_state);
    }
    OH_TRY(oh_capture_fence(submission->capture, stream_state->stream));
    return oh_capture_after(submission->capture, stream_state->stream);
}

/* The next launch of the submission: a call, or a list of fused calls. */
static CUresult launch_next(struct oh_submission *submission)
{
    const struct oh_call *calls = &submission->calls[submission->launched];
    const struct oh_plan_table *table = &calls[0].comm->serve.table;
    struct oh_counters *counters = oh_comm_counters(calls[0].comm);
    const size_t count = oh_fuse_count(table, calls, submission->count - submission->launched);
    struct oh_plan plan = calls[0].plan;
    struct oh_kernel_list_args list;
    if (count > 1) {
        oh_fuse_list(table, calls, count, &list, &plan);
    }
    const bool range = open_range(calls, count, &plan);
    CUresult result = count > 1 ? launch_list(submission, calls, count, &plan, &list) : launch_parts(submission, calls);
    if (range) {
        oh_nvtx_pop();
    }
    OH_TRY(result);
    if (count == 1 && submission->done < calls->count) {
        return CUDA_SUCCESS; /* the rest has the next turn */
    }
    submission->done = 0;
    for (size_t i = 0; i < count; i++) {
        oh_counter_add(&counters->calls[plan.algorithm], 1);
        oh_counter_add(&counters->collectives[plan.collective], 1);
        oh_counter_add(&counters->bytes, oh_call_bytes(&calls[i]));
        OH_TRY(calls[i].verified.count > 0 ? oh_verify_compare(submission, &calls[i]) : CUDA_SUCCESS);
    }
    submission->launched += count;
    return CUDA_SUCCESS;
}

static CUresult launch_in_context(struct oh_submission *submission)
{
    CUresult result = CUDA_SUCCESS;
    submission->turn_end = submission->kernels + OH_SUBMISSION_QUANTUM;
    while (submission->kernels < submission->turn_end && submission->launched < submission->count &&
           result == CUDA_SUCCESS) {
        result = launch_next(submission);
    }
    if (result != CUDA_SUCCESS && submission->kernels > 0) {
        record(submission); /* kernels before the one that failed: memory is freed only after them */
    }
    return result;
}

static CUresult end_in_context(struct oh_submission *submission)
{
    OH_TRY(record(submission));
    return submission->count > 1 ? join_streams(submission, false) : CUDA_SUCCESS;
}

/* One change of context for each turn: in a group of one thread's GPUs it costs as much as the rest. */
static CUresult turn_in_context(struct oh_submission *submission)
{
    if (!submission->stream_state.known) { /* the first turn */
        OH_TRY(submission->count > 1 ? join_streams(submission, true) : CUDA_SUCCESS);
        OH_TRY(order(submission));
    }
    OH_TRY(launch_in_context(submission));
    return submission->launched == submission->count ? end_in_context(submission) : CUDA_SUCCESS;
}

static CUresult join_in_context(struct oh_submission *submission)
{
    return join_streams(submission, true);
}

typedef CUresult (*submission_step)(struct oh_submission *);

/*
 * Runs one of the steps above in the communicator's context. After a failure the other ranks do not know how many
 * kernels of the submission this rank has launched. So none may follow, and a capture that may hold some is never
 * replayed.
 */
static ncclResult_t in_context(struct oh_submission *submission, submission_step step)
{
    struct oh_comm *comm = submission->calls[0].comm;
    OH_CONTEXT_SCOPE(scope);
    submission->stream_state.stream = submission->calls[0].stream;
    CUresult result = oh_context_enter(&comm->staging.context, &scope);
    if (result == CUDA_SUCCESS) {
        result = step(submission);
    }
    return result == CUDA_SUCCESS ? ncclSuccess
                                  : oh_order_check(comm, &submission->stream_state, result, "launching a call");
}

ncclResult_t oh_submission_advance(struct oh_submission *submission)
{
    OH_TRY(submission->stream_state.known ? ncclSuccess : oh_comm_refuse_call(submission->calls[0].comm, false));
    return in_context(submission, turn_in_context);
}

ncclResult_t oh_submission_leave(struct oh_submission *submission)
{
    return in_context(submission, end_in_context);
}

ncclResult_t oh_call_launch(const struct oh_call *call)
{
    struct oh_submission submission = {.calls = call, .count = 1};
    while (submission.launched < submission.count) {
        OH_TRY(in_context(&submission, turn_in_context));
    }
    return ncclSuccess;
}

ncclResult_t oh_comm_join(struct oh_comm *comm, CUstream from, CUstream to)
{
    const struct oh_call calls[] = {{.comm = comm, .stream = to}, {.comm = comm, .stream = from}};
    struct oh_submission submission = {.calls = calls, .count = 2};
    return in_context(&submission, join_in_context);
}
