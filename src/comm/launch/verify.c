/* SPDX-License-Identifier: MIT */
/*
 * verify.c - ONEHOP_VERIFY: calls whose results are compared with NCCL's
 *
 * Does: Chooses the calls, by what is equal on all ranks, and launches the kernels that compare (kernels/verify.cu).
 *    NCCL makes such a call first, into memory of onehop's, since the program's receive buffer may be its send buffer
 *    (call/verified.c). watch/difference.c reports what the kernels find.
 * Threads: the one that uses the communicator.
 * Owns: nothing; the staging has the memory.
 */
#include "comm/launch/launch.h"

#include "comm/watch/watch.h"
#include "gpu/context.h"
#include "gpu/kernels.h"

#define ALIGNMENT 256u /* of what lies in the memory */
#define NCCL_FP8_VERSION 22403

/* Floats, by enum oh_kernel_type: half of an ulp of 1, the least number, and the largest. unit 0: integers. */
static const struct {
    double unit, least, most;
} types[OH_KERNEL_TYPES] = {
    [OH_TYPE_F32] = {0x1p-24, 0x1p-149, 0x1.fffffep127},
    [OH_TYPE_F16] = {0x1p-11, 0x1p-24, 65504},
    [OH_TYPE_BF16] = {0x1p-8, 0x1p-133, 0x1.fep127},
    [OH_TYPE_F64] = {0x1p-53, 0x1p-1074, 0x1.fffffffffffffp1023},
    [OH_TYPE_E4M3] = {0x1p-4, 0x1p-9, 448},
    [OH_TYPE_E5M2] = {0x1p-3, 0x1p-16, 57344},
};

static bool rounds(const struct oh_call *call)
{
    return oh_collective_reduces((enum onehop_collective)call->kind) && types[oh_type_kernel(call->type)].unit > 0;
}

/* Two elements take one operation, and one rounding: NCCL's bits are onehop's (doc/numerics.md). */
static bool is_rounded_once(const struct oh_call *call)
{
    return call->comm->id.nranks == 2 && !oh_type_is_fp8(call->type) && call->op.kind != OH_OP_SCALED_SUM;
}

/* The difference of two orders is bounded by the sum of magnitudes over all ranks. */
static bool needs_magnitudes(const struct oh_call *call)
{
    const enum oh_kernel_op op = call->op.kind;
    return rounds(call) && !is_rounded_once(call) && (op == OH_OP_SUM || op == OH_OP_AVG || op == OH_OP_SCALED_SUM);
}

/* A product in another order may overflow on the way, or lose all its digits. NCCL has fp8 since 2.24.3. */
static bool is_comparable(const struct oh_call *call)
{
    const bool nccl_has_type = !oh_type_is_fp8(call->type) || call->comm->id.nccl_version >= NCCL_FP8_VERSION;
    return nccl_has_type && (!rounds(call) || is_rounded_once(call) || call->op.kind != OH_OP_PROD);
}

static uint64_t rows_of_result(const struct oh_call *call)
{
    return call->kind == OH_CALL_ALL_GATHER ? call->comm->id.nranks : 1;
}

static uint64_t rows_of_send(const struct oh_call *call)
{
    return call->kind == OH_CALL_REDUCE_SCATTER ? call->comm->id.nranks : 1;
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static ncclDataType_t magnitude_type(const struct oh_call *call)
{
    return call->type == ncclFloat64 ? ncclFloat64 : ncclFloat32;
}

/* Finds room in the memory. Of a call that is too large the first elements are compared; of a reduce-scatter none. */
static uint64_t place(struct oh_call *call)
{
    struct oh_verify *verify = &call->comm->verify;
    const uint64_t row = rows_of_result(call) * oh_type_size(call->type);
    const uint64_t of_magnitudes = needs_magnitudes(call) ? rows_of_send(call) * oh_type_size(magnitude_type(call)) : 0;
    const uint64_t left = OH_VERIFY_BYTES - verify->used;
    const uint64_t most = left > ALIGNMENT ? (left - ALIGNMENT) / (row + of_magnitudes) : 0;
    if (most < call->count && call->kind == OH_CALL_REDUCE_SCATTER) {
        return 0;
    }
    call->verified.count = most < call->count ? most : call->count;
    call->verified.reference = verify->used;
    call->verified.magnitudes = verify->used + aligned(call->verified.count * row);
    const uint64_t end = call->verified.magnitudes + call->verified.count * of_magnitudes;
    verify->used = aligned(end) < OH_VERIFY_BYTES ? aligned(end) : OH_VERIFY_BYTES;
    return call->verified.count;
}

bool oh_verify_choose(struct oh_call *call, size_t before)
{
    struct oh_verify *verify = &call->comm->verify;
    verify->used = before == 0 ? 0 : verify->used;
    call->verified.number = call->comm->serve.launched_calls + before + 1;
    /* The first call is one: NCCL connects the ranks and takes its memory then, not in the middle of the job. */
    return call->verified.number % verify->interval == 1 % verify->interval && is_comparable(call) &&
           oh_comm_state(call->comm) != OH_COMM_FAILING && /* else NCCL may wait for the peer that has departed */
           place(call) > 0;
}

static char *memory_at(const struct oh_call *call, uint64_t offset)
{
    return (char *)(uintptr_t)call->comm->staging.verify + offset;
}

struct oh_call oh_verify_call(const struct oh_call *call)
{
    struct oh_call copy = *call;
    copy.is_bcast = false;
    copy.recvbuff = memory_at(call, call->verified.reference);
    copy.count = call->verified.count;
    return copy;
}

bool oh_verify_magnitudes(const struct oh_call *call, struct oh_call *sum_p)
{
    if (!needs_magnitudes(call)) {
        return false;
    }
    char *const magnitudes = memory_at(call, call->verified.magnitudes);
    const uint64_t own = call->comm->id.rank * call->verified.count * oh_type_size(magnitude_type(call));
    *sum_p = *call;
    sum_p->sendbuff = magnitudes;
    sum_p->recvbuff = magnitudes + (call->kind == OH_CALL_REDUCE_SCATTER ? own : 0);
    sum_p->count = call->verified.count;
    sum_p->type = magnitude_type(call);
    sum_p->redop = ncclSum;
    return true;
}

/* --- the kernels -------------------------------------------------------------------------------------------------- */

/*
 * Roundings to the type, in all: NCCL's n - 1 additions; onehop's result, or its additions if they are in the type; for
 * avg and scaled sums NCCL's factor and its products, and onehop's (doc/numerics.md).
 */
static int roundings(const struct oh_call *call)
{
    const bool adds_in_type = call->type == ncclFloat32 || call->type == ncclFloat64;
    const int n = (int)call->comm->id.nranks;
    return (adds_in_type ? 2 * (n - 1) : n) + (call->op.kind == OH_OP_SUM ? 0 : 3);
}

/* By so much of the sum of magnitudes: (1 + unit)^roundings - 1, where 1 + unit may be no number of its own. */
static double relative_error(const struct oh_call *call)
{
    const double unit = types[oh_type_kernel(call->type)].unit;
    double error = 0;
    for (int i = 0; i < roundings(call); i++) {
        error += unit + error * unit;
    }
    return error;
}

static void bound(const struct oh_call *call, struct oh_verify_args *args)
{
    const int type = oh_type_kernel(call->type);
    const double n = call->comm->id.nranks, share = call->op.kind == OH_OP_AVG ? 1 / n : 1;
    if (!rounds(call)) {
        return;
    }
    args->rounds = 1;
    if (needs_magnitudes(call)) {
        args->relative = relative_error(call) * share;
        args->absolute = n * types[type].least;
        args->most = types[type].most / 2;
    } else if (call->op.kind == OH_OP_AVG) { /* NCCL halves the elements first, which rounds subnormal numbers */
        args->relative = 2 * types[type].unit;
        args->absolute = 2 * types[type].least;
    }
}

static struct oh_verify_args describe(const struct oh_call *call)
{
    struct oh_call sum;
    struct oh_verify_args args = {
        .call = call->comm->serve.args,
        .reference = memory_at(call, call->verified.reference),
        .type = (uint32_t)oh_type_kernel(call->type),
        .element_bytes = (uint32_t)oh_type_size(call->type),
    };
    args.call.sendbuff = call->sendbuff;
    args.call.recvbuff = call->recvbuff;
    args.call.count = call->verified.count;
    args.call.stride = oh_call_stride(call);
    args.call.op = call->op.kind;
    args.call.operand = call->op.operand;
    args.call.scalar = call->op.scalar;
    if (oh_verify_magnitudes(call, &sum)) {
        args.magnitudes = sum.recvbuff;
    }
    bound(call, &args);
    return args;
}

CUresult oh_verify_prepare(const struct oh_call *call, CUstream stream)
{
    struct oh_call sum;
    OH_CONTEXT_SCOPE(scope);
    if (!oh_verify_magnitudes(call, &sum)) {
        return CUDA_SUCCESS;
    }
    struct oh_verify_args args = describe(call);
    args.magnitudes = (void *)sum.sendbuff;
    args.rows = (uint32_t)rows_of_send(call);
    OH_TRY(oh_context_enter(&call->comm->staging.context, &scope));
    return oh_kernel_launch_verify(call->comm->verify.kernels.magnitudes, &args, args.rows * args.call.count, stream);
}

CUresult oh_verify_compare(struct oh_submission *submission, const struct oh_call *call)
{
    struct oh_comm *comm = call->comm;
    struct oh_verify_args args = describe(call);
    args.rows = (uint32_t)rows_of_result(call);
    args.call.signature = oh_signature_of(call, (int)call->plan.algorithm);
    args.call.call_number = (uint32_t)call->verified.number;
    args.call.report_count = oh_report_count(call->count);
    OH_TRY(oh_kernel_launch_verify(comm->verify.kernels.compare, &args, args.rows * args.call.count,
                                   submission->stream_state.stream));
    oh_counter_add(&oh_comm_counters(comm)->verified, 1);
    submission->kernels++;
    if (submission->capture) { /* onehop's newest kernel is not the last node of the stream */
        submission->capture->kernel = NULL;
    }
    return CUDA_SUCCESS;
}
