/* SPDX-License-Identifier: MIT */
/*
 * op.c - what an op, a type and a scalar mean to the kernels
 *
 * Does: Maps NCCL's types and ops to those of kernels/abi.h.
 * Threads: pure functions.
 * Owns: nothing.
 */
#include "plan/plan.h"

#include <string.h>

/* By ncclDataType_t. sign: the top bit of a signed integer. */
static const struct {
    size_t size;
    int kernel_type;
    uint64_t sign;
} types[OH_NCCL_TYPES] = {
    [ncclInt8] = {1, OH_TYPE_I8, UINT64_C(1) << 7},
    [ncclUint8] = {1, OH_TYPE_I8, 0},
    [ncclInt32] = {4, OH_TYPE_I32, UINT64_C(1) << 31},
    [ncclUint32] = {4, OH_TYPE_I32, 0},
    [ncclInt64] = {8, OH_TYPE_I64, UINT64_C(1) << 63},
    [ncclUint64] = {8, OH_TYPE_I64, 0},
    [ncclFloat16] = {2, OH_TYPE_F16, 0},
    [ncclFloat32] = {4, OH_TYPE_F32, 0},
    [ncclFloat64] = {8, OH_TYPE_F64, 0},
    [ncclBfloat16] = {2, OH_TYPE_BF16, 0},
    [OH_NCCL_FP8_E4M3] = {1, OH_TYPE_E4M3, 0},
    [OH_NCCL_FP8_E5M2] = {1, OH_TYPE_E5M2, 0},
};

static bool is_type(ncclDataType_t type)
{
    return (size_t)type < OH_NCCL_TYPES; /* a negative value is large */
}

size_t oh_type_size(ncclDataType_t type)
{
    return is_type(type) ? types[type].size : 0;
}

int oh_type_kernel(ncclDataType_t type)
{
    return is_type(type) ? types[type].kernel_type : -1;
}

bool oh_type_is_fp8(ncclDataType_t type)
{
    return type == OH_NCCL_FP8_E4M3 || type == OH_NCCL_FP8_E5M2;
}

bool oh_op_builtin(ncclRedOp_t op, ncclDataType_t type, struct oh_op *op_p)
{
    static const enum oh_kernel_op kinds[] = {
        [ncclSum] = OH_OP_SUM, [ncclProd] = OH_OP_PROD, [ncclMax] = OH_OP_MAX,
        [ncclMin] = OH_OP_MIN, [ncclAvg] = OH_OP_AVG,
    };
    if (!is_type(type) || (size_t)op >= sizeof kinds / sizeof *kinds) {
        return false;
    }
    *op_p = (struct oh_op){.kind = kinds[op], .operand = types[type].sign};
    return true;
}

bool oh_op_scaled(ncclDataType_t type, const void *scalar, bool on_device, struct oh_op *op_p)
{
    if (!is_type(type) || !scalar) {
        return false;
    }
    struct oh_op made = {.kind = OH_OP_SCALED_SUM};
    if (on_device) {
        made.scalar = scalar;
    } else {
        memcpy(&made.operand, scalar, types[type].size); /* little-endian, as every host of such GPUs */
    }
    *op_p = made;
    return true;
}
