/* SPDX-License-Identifier: MIT */
/*
 * op.h - what a datatype and an op mean to the kernels
 *
 * Does: Maps NCCL's types and ops to those of kernels/abi.h. All values are equal on all ranks, but for the scalar of a
 *    PreMulSum op, which never enters a decision.
 * Threads: pure functions.
 * Owns: nothing.
 */
#ifndef OH_PLAN_OP_H_
#define OH_PLAN_OP_H_

#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/abi.h"

/* The last two of ncclDataType_t, which older nccl.h do not name (since NCCL 2.24). */
#define OH_NCCL_FP8_E4M3 ((ncclDataType_t)10)
#define OH_NCCL_FP8_E5M2 ((ncclDataType_t)11)
#define OH_NCCL_TYPES 12

/* Element types of the kernels: integers by width alone. The first OH_SUM_TYPES have separate kernels for the sum. */
enum oh_kernel_type {
    OH_TYPE_F32,
    OH_TYPE_F16,
    OH_TYPE_BF16,
    OH_SUM_TYPES,
    OH_TYPE_F64 = OH_SUM_TYPES,
    OH_TYPE_E4M3,
    OH_TYPE_E5M2,
    OH_TYPE_I8,
    OH_TYPE_I32,
    OH_TYPE_I64,
    OH_KERNEL_TYPES
};

/* What an op makes of the elements of all ranks. */
struct oh_op {
    enum oh_kernel_op kind;
    uint64_t operand;   /* as in struct oh_kernel_args */
    const void *scalar; /* likewise */
};

/* Bytes of one element; 0 for a value outside ncclDataType_t. */
size_t oh_type_size(ncclDataType_t type);

/* The kernels' type; -1 for a value outside ncclDataType_t. */
int oh_type_kernel(ncclDataType_t type);

/* The name of a kernels' type, which is in range: "f32", "i8", ... */
const char *oh_kernel_type_name(int kernel_type);

/* Returns whether NCCL takes the type from compute capability 9.0 on only. */
bool oh_type_is_fp8(ncclDataType_t type);

/* Gets one of NCCL's own five ops. Returns false for another op or no type. */
bool oh_op_builtin(ncclRedOp_t op, ncclDataType_t type, struct oh_op *op_p);

/*
 * Gets an op of ncclRedOpCreatePreMulSum. scalar: one element, read now, or if `on_device` by the kernels. Returns
 * false without type or scalar.
 */
bool oh_op_scaled(ncclDataType_t type, const void *scalar, bool on_device, struct oh_op *op_p);

#endif
