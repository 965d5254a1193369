/* SPDX-License-Identifier: MIT */
/*
 * nccl_reduce.cpp - see nccl_reduce.h
 *
 * Narrow floats are converted by CUDA's own types: to nearest even, and fp8 saturates instead of overflowing.
 */
#include "nccl_reduce.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <type_traits>

/* What a type is reduced in, and the arithmetic of that: integers wrap around, which unsigned ones keep defined. */
template <class T> struct arithmetic {
    static const bool integral = std::is_integral<T>::value;
    using integer = std::conditional_t<std::is_signed<T>::value, int64_t, uint64_t>;
    using real = std::conditional_t<std::is_same<T, double>::value, double, float>;
    using wide = std::conditional_t<integral, integer, real>;
    using modular = std::conditional_t<integral, uint64_t, real>;
};

/* As CUDA's fmin and fmax: a NaN gives way to a number, and -0 is less than +0. */
template <class W> static bool is_less(W a, W b)
{
    return a < b || (a == b && std::signbit(a) && !std::signbit(b));
}

/* scalar: NULL, or by what each input is multiplied. */
template <class T, class Combine>
static void fold(const T *scalar, const void *const *in, int inputs, size_t count, void *out, bool divides,
                 Combine combine)
{
    using W = typename arithmetic<T>::wide;
    using M = typename arithmetic<T>::modular;
    const W factor = scalar ? static_cast<W>(*scalar) : W(1);
    const auto input = [&](int r, size_t i) {
        const W value = static_cast<W>(static_cast<const T *>(in[r])[i]);
        return scalar ? static_cast<W>(static_cast<M>(value) * static_cast<M>(factor)) : value;
    };
    static const bool by_ring = getenv("SIMNODE_NCCL_RING") != nullptr;
    for (size_t i = 0; i < count; i++) {
        const int first = by_ring ? (int)(i % (size_t)inputs) : 0;
        W result = input(first, i);
        for (int r = 1; r < inputs; r++) {
            result = combine(result, input((first + r) % inputs, i));
            result = by_ring ? static_cast<W>(static_cast<T>(result)) : result;
        }
        const T reduced = static_cast<T>(result);
        static_cast<T *>(out)[i] = divides ? static_cast<T>(static_cast<W>(reduced) / static_cast<W>(inputs)) : reduced;
    }
}

/* NCCL takes the average of integers by dividing their sum in T, and that of floats by multiplying each input by
 * T(1/n). */
template <class T>
static void reduce(ncclRedOp_t op, const void *scalar, const void *const *in, int inputs, size_t count, void *out)
{
    using W = typename arithmetic<T>::wide;
    using M = typename arithmetic<T>::modular;
    const bool averages = !scalar && op == ncclAvg, divides = averages && arithmetic<T>::integral;
    const T share = static_cast<T>(W(1) / static_cast<W>(inputs));
    const T *factor = averages && !divides ? &share : static_cast<const T *>(scalar);
    if (!scalar && op == ncclProd) {
        fold<T>(factor, in, inputs, count, out, divides,
                [](W a, W b) { return static_cast<W>(static_cast<M>(a) * static_cast<M>(b)); });
    } else if (!scalar && op == ncclMin) {
        fold<T>(factor, in, inputs, count, out, divides,
                [](W a, W b) { return std::isnan(a) || is_less(b, a) ? b : a; });
    } else if (!scalar && op == ncclMax) {
        fold<T>(factor, in, inputs, count, out, divides,
                [](W a, W b) { return std::isnan(a) || is_less(a, b) ? b : a; });
    } else {
        fold<T>(factor, in, inputs, count, out, divides,
                [](W a, W b) { return static_cast<W>(static_cast<M>(a) + static_cast<M>(b)); });
    }
}

static const struct {
    size_t size;
    void (*reduce)(ncclRedOp_t, const void *, const void *const *, int, size_t, void *);
} types[ncclNumTypes] = {
    /* in the order of ncclDataType_t */
    {1, reduce<int8_t>},  {1, reduce<uint8_t>},       {4, reduce<int32_t>},       {4, reduce<uint32_t>},
    {8, reduce<int64_t>}, {8, reduce<uint64_t>},      {2, reduce<__half>},        {4, reduce<float>},
    {8, reduce<double>},  {2, reduce<__nv_bfloat16>}, {1, reduce<__nv_fp8_e4m3>}, {1, reduce<__nv_fp8_e5m2>},
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
