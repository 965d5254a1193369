/* SPDX-License-Identifier: MIT */
/*
 * nccl_floats.h - conversion between fp32 and the narrow float types
 *
 * Written for the simulated NCCL and for the reference results of the tests, on purpose apart from the kernels' own
 * conversions. Rounds to nearest even. fp8 saturates instead of overflowing, as NCCL's does. Pure functions.
 */
#ifndef TEST_SIMNODE_NCCL_FLOATS_H_
#define TEST_SIMNODE_NCCL_FLOATS_H_

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t simnccl_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float simnccl_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float simnccl_bf16_load(uint16_t half)
{
    return simnccl_float((uint32_t)half << 16);
}

static inline uint16_t simnccl_bf16_store(float value)
{
    uint32_t bits = simnccl_bits(value);
    if (value != value) {
        return 0x7fff;
    }
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline float simnccl_f16_load(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
    if (magnitude < 0x400) { /* subnormal */
        return simnccl_float(sign | simnccl_bits((float)magnitude * 0x1p-24f));
    }
    uint32_t rebias = magnitude < 0x7c00 ? (127 - 15) << 23 : (255 - 31) << 23;
    return simnccl_float(sign | ((magnitude << 13) + rebias));
}

static inline uint16_t simnccl_f16_store(float value)
{
    uint32_t bits = simnccl_bits(value), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    if (value != value) {
        return 0x7fff;
    }
    if (magnitude < 113u << 23) { /* below 2^-14: subnormal or zero; the sum's rounding is the rounding wanted */
        return (uint16_t)(sign | (uint32_t)rintf(simnccl_float(magnitude) * 0x1p24f));
    }
    magnitude += 0xfff + ((magnitude >> 13) & 1);
    magnitude = magnitude >= 143u << 23 ? 0x7c00 : (magnitude >> 13) - ((127 - 15) << 10);
    return (uint16_t)(sign | magnitude);
}

/* fp8: mantissa bits 3 (e4m3: no infinity, largest 0x7e) or 2 (e5m2: largest finite 0x7b). */
static inline float simnccl_fp8_load(uint8_t code, int mantissa_bits)
{
    int bias = mantissa_bits == 3 ? 7 : 15;
    int exponent = (code & 0x7f) >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    float magnitude;
    if (mantissa_bits == 3 ? (code & 0x7f) == 0x7f : (code & 0x7f) > 0x7c) {
        magnitude = NAN;
    } else if (mantissa_bits == 2 && (code & 0x7f) == 0x7c) {
        magnitude = INFINITY;
    } else if (exponent == 0) {
        magnitude = ldexpf((float)mantissa, 1 - bias - mantissa_bits);
    } else {
        magnitude = ldexpf((float)(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
    }
    return code & 0x80 ? -magnitude : magnitude;
}

static inline uint8_t simnccl_fp8_store(float value, int mantissa_bits)
{
    uint8_t sign = signbit(value) ? 0x80 : 0, low = 0, high = mantissa_bits == 3 ? 0x7e : 0x7b;
    float magnitude = fabsf(value);
    if (value != value) {
        return 0x7f;
    }
    if (magnitude >= simnccl_fp8_load(high, mantissa_bits)) {
        return sign | high;
    }
    while (high - low > 1) { /* codes ascend with their values */
        uint8_t middle = (uint8_t)((low + high) / 2);
        if (simnccl_fp8_load(middle, mantissa_bits) <= magnitude) {
            low = middle;
        } else {
            high = middle;
        }
    }
    float below = magnitude - simnccl_fp8_load(low, mantissa_bits);
    float above = simnccl_fp8_load(high, mantissa_bits) - magnitude;
    return sign | (below < above || (below == above && low % 2 == 0) ? low : high);
}

static inline float simnccl_e4m3_load(uint8_t code)
{
    return simnccl_fp8_load(code, 3);
}

static inline uint8_t simnccl_e4m3_store(float value)
{
    return simnccl_fp8_store(value, 3);
}

static inline float simnccl_e5m2_load(uint8_t code)
{
    return simnccl_fp8_load(code, 2);
}

static inline uint8_t simnccl_e5m2_store(float value)
{
    return simnccl_fp8_store(value, 2);
}

#endif
