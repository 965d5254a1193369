/* SPDX-License-Identifier: MIT */
/*
 * op.h - what the kernels are told of a datatype and an op
 *
 * Pure functions of values that are equal on all ranks, but for the scalar of a PreMulSum op, which is each rank's own
 * and never enters a decision. No state, no locks; usable from any thread.
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

/* Element types as the kernels know them: integers by width alone. The first OH_SUM_TYPES have kernels of their own for
 * the sum. */
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

/* The name of a kernels' type in the names of kernels ("f32", "i8", ...); type in range. */
const char *oh_kernel_type_name(int kernel_type);

/* Bytes of one of its elements; type in range. */
uint32_t oh_kernel_type_size(int kernel_type);

/* True for the types that NCCL takes from compute capability 9.0 on only. */
bool oh_type_is_fp8(ncclDataType_t type);

/* One of NCCL's own five ops on that type. False: not one of them, or no such type. */
bool oh_op_builtin(ncclRedOp_t op, ncclDataType_t type, struct oh_op *op_p);

/*
 * An op of ncclRedOpCreatePreMulSum. scalar: one element of that type, read now, or by the kernels if `on_device`.
 * False: no such type, or no scalar.
 */
bool oh_op_scaled(ncclDataType_t type, const void *scalar, bool on_device, struct oh_op *op_p);

#endif
