/* SPDX-License-Identifier: MIT */
/*
 * perf_data.c - inputs whose sum is known exactly
 */
#include "tools/perf.h"

#include <string.h>

const struct oh_perf_type oh_perf_types[OH_PERF_TYPES] = {
    {"float", ncclFloat32, 4, 1 << 24},
    {"half", ncclFloat16, 2, 1 << 11},
    {"bfloat16", ncclBfloat16, 2, 1 << 8},
};

/* A whole number from -bound to bound, a good mix of both arguments. */
static int value(uint32_t rank, size_t element, uint32_t bound)
{
    uint64_t x = (uint64_t)element * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)(rank + 1) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return (int)(((x >> 32) * (2 * bound + 1)) >> 32) - (int)bound;
}

static uint32_t float_bits(int number)
{
    float real = (float)number;
    uint32_t bits;
    memcpy(&bits, &real, sizeof bits);
    return bits;
}

/* Exact for |number| < 2048: the exponent is rebiased, and no mantissa bit is lost. */
static uint16_t half_bits(int number)
{
    uint32_t bits = float_bits(number);
    uint32_t magnitude = bits & 0x7fffffffu;
    return (uint16_t)((bits >> 16 & 0x8000u) | (magnitude ? (magnitude >> 13) - ((127u - 15u) << 10) : 0));
}

static void store(const struct oh_perf_type *type, void *array, size_t element, int number)
{
    switch (type->nccl) {
    case ncclFloat32:
        ((uint32_t *)array)[element] = float_bits(number);
        break;
    case ncclFloat16:
        ((uint16_t *)array)[element] = half_bits(number);
        break;
    default: /* bfloat16: the upper half of a float */
        ((uint16_t *)array)[element] = (uint16_t)(float_bits(number) >> 16);
        break;
    }
}

void oh_perf_fill(const struct oh_perf_type *type, int ranks, int rank, size_t count, void *input, void *expected)
{
    uint32_t bound = (uint32_t)((type->exact - 1) / ranks);
    for (size_t i = 0; i < count; i++) {
        int sum = 0;
        for (int r = 0; r < ranks; r++) {
            int number = value((uint32_t)r, i, bound);
            sum += number;
            if (r == rank) {
                store(type, input, i, number);
            }
        }
        store(type, expected, i, sum);
    }
}

uint64_t oh_perf_wrong(const struct oh_perf_type *type, const void *got, const void *expected, size_t count)
{
    const unsigned char *g = got, *e = expected;
    uint64_t wrong = 0;
    if (memcmp(g, e, count * type->size) != 0) {
        for (size_t i = 0; i < count; i++) {
            wrong += memcmp(g + i * type->size, e + i * type->size, type->size) != 0;
        }
    }
    for (size_t i = 0; i < OH_PERF_GUARD; i++) {
        wrong += g[count * type->size + i] != OH_PERF_POISON;
    }
    return wrong;
}
