/* SPDX-License-Identifier: MIT */
/* nccl_reduce.c - see nccl_reduce.h; one function a type, made by a macro, one loop an op. */
#include "nccl_reduce.h"

#include <math.h>
#include <stdint.h>

#include "nccl_floats.h"

#define SAME(x_) (x_)
#define PLUS(a_, b_) ((a_) + (b_))
#define TIMES(a_, b_) ((a_) * (b_))
#define INT_LESSER(a_, b_) ((b_) < (a_) ? (b_) : (a_))
#define INT_GREATER(a_, b_) ((b_) > (a_) ? (b_) : (a_))
/* As CUDA's fmin and fmax: a NaN gives way to a number, and -0 is less than +0. */
#define FLOAT_IS_LESS(a_, b_) ((a_) < (b_) || ((a_) == (b_) && signbit(a_) && !signbit(b_)))
#define FLOAT_LESSER(a_, b_) (isnan(a_) || FLOAT_IS_LESS(b_, a_) ? (b_) : (a_))
#define FLOAT_GREATER(a_, b_) (isnan(a_) || FLOAT_IS_LESS(a_, b_) ? (b_) : (a_))
/* Integers wrap around; unsigned arithmetic keeps that defined. */
#define INT_PLUS(a_, b_) (int64_t)((uint64_t)(a_) + (uint64_t)(b_))
#define INT_TIMES(a_, b_) (int64_t)((uint64_t)(a_) * (uint64_t)(b_))

#define FOLD(type_, sum_t_, load_, store_, prepare_, combine_, finish_)                                                \
    for (size_t i = 0; i < count; i++) {                                                                               \
        sum_t_ sum = prepare_(load_(((const type_ *)in[0])[i]));                                                       \
        for (int r = 1; r < inputs; r++) {                                                                             \
            sum_t_ next = prepare_(load_(((const type_ *)in[r])[i]));                                                  \
            sum = combine_(sum, next);                                                                                 \
        }                                                                                                              \
        ((type_ *)out)[i] = (type_)finish_(store_(sum));                                                               \
    }

/* average_: how NCCL takes it. Integers: sum in T, then divide; floats: multiply every input by T(1/n), then sum. */
#define SCALED(x_) ((x_)*scale)
#define INT_SCALED(x_) INT_TIMES(x_, scale)
#define DIVIDED(x_) ((x_) / divisor)

#define DEFINE_REDUCE(name_, type_, sum_t_, load_, store_, plus_, times_, lesser_, greater_, scaled_, average_)        \
    static void name_(ncclRedOp_t op, const void *scalar, const void *const *in, int inputs, size_t count, void *out)  \
    {                                                                                                                  \
        if (scalar != NULL) {                                                                                          \
            sum_t_ scale = load_(*(const type_ *)scalar);                                                              \
            FOLD(type_, sum_t_, load_, store_, scaled_, plus_, SAME)                                                   \
        } else if (op == ncclSum) {                                                                                    \
            FOLD(type_, sum_t_, load_, store_, SAME, plus_, SAME)                                                      \
        } else if (op == ncclProd) {                                                                                   \
            FOLD(type_, sum_t_, load_, store_, SAME, times_, SAME)                                                     \
        } else if (op == ncclMax) {                                                                                    \
            FOLD(type_, sum_t_, load_, store_, SAME, greater_, SAME)                                                   \
        } else if (op == ncclMin) {                                                                                    \
            FOLD(type_, sum_t_, load_, store_, SAME, lesser_, SAME)                                                    \
        } else {                                                                                                       \
            average_(type_, sum_t_, load_, store_, plus_)                                                              \
        }                                                                                                              \
    }

#define AVERAGE_FLOAT(type_, sum_t_, load_, store_, plus_)                                                             \
    sum_t_ scale = load_(store_((sum_t_)1 / (sum_t_)inputs));                                                          \
    FOLD(type_, sum_t_, load_, store_, SCALED, plus_, SAME)
#define AVERAGE_INT(type_, sum_t_, load_, store_, plus_)                                                               \
    sum_t_ divisor = (sum_t_)inputs;                                                                                   \
    FOLD(type_, sum_t_, load_, (type_)store_, SAME, plus_, DIVIDED)

#define DEFINE_FLOAT(name_, type_, sum_t_, load_, store_)                                                              \
    DEFINE_REDUCE(name_, type_, sum_t_, load_, store_, PLUS, TIMES, FLOAT_LESSER, FLOAT_GREATER, SCALED, AVERAGE_FLOAT)
#define DEFINE_SIGNED(name_, type_)                                                                                    \
    DEFINE_REDUCE(name_, type_, int64_t, SAME, SAME, INT_PLUS, INT_TIMES, INT_LESSER, INT_GREATER, INT_SCALED,         \
                  AVERAGE_INT)
#define DEFINE_UNSIGNED(name_, type_)                                                                                  \
    DEFINE_REDUCE(name_, type_, uint64_t, SAME, SAME, PLUS, TIMES, INT_LESSER, INT_GREATER, INT_SCALED, AVERAGE_INT)

DEFINE_SIGNED(reduce_i8, int8_t)
DEFINE_UNSIGNED(reduce_u8, uint8_t)
DEFINE_SIGNED(reduce_i32, int32_t)
DEFINE_UNSIGNED(reduce_u32, uint32_t)
DEFINE_SIGNED(reduce_i64, int64_t)
DEFINE_UNSIGNED(reduce_u64, uint64_t)
DEFINE_FLOAT(reduce_f16, uint16_t, float, simnccl_f16_load, simnccl_f16_store)
DEFINE_FLOAT(reduce_f32, float, float, SAME, SAME)
DEFINE_FLOAT(reduce_f64, double, double, SAME, SAME)
DEFINE_FLOAT(reduce_bf16, uint16_t, float, simnccl_bf16_load, simnccl_bf16_store)
DEFINE_FLOAT(reduce_e4m3, uint8_t, float, simnccl_e4m3_load, simnccl_e4m3_store)
DEFINE_FLOAT(reduce_e5m2, uint8_t, float, simnccl_e5m2_load, simnccl_e5m2_store)

static const struct {
    size_t size;
    void (*reduce)(ncclRedOp_t, const void *, const void *const *, int, size_t, void *);
} types[ncclNumTypes] = {
    [ncclInt8] = {1, reduce_i8},       [ncclUint8] = {1, reduce_u8},        [ncclInt32] = {4, reduce_i32},
    [ncclUint32] = {4, reduce_u32},    [ncclInt64] = {8, reduce_i64},       [ncclUint64] = {8, reduce_u64},
    [ncclFloat16] = {2, reduce_f16},   [ncclFloat32] = {4, reduce_f32},     [ncclFloat64] = {8, reduce_f64},
    [ncclBfloat16] = {2, reduce_bf16}, [ncclFloat8e4m3] = {1, reduce_e4m3}, [ncclFloat8e5m2] = {1, reduce_e5m2},
};

size_t simnccl_type_size(ncclDataType_t type)
{
    return (unsigned)type < ncclNumTypes ? types[type].size : 0;
}

void simnccl_reduce(ncclDataType_t type, ncclRedOp_t op, const void *scalar, const void *const *in, int inputs,
                    size_t count, void *out)
{
    types[type].reduce(op, scalar, in, inputs, count, out);
}
