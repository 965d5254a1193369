/* SPDX-License-Identifier: MIT */
/*
 * perf/data.c - inputs whose result is known exactly
 *
 * Does: Makes inputs and expectations, and compares. Inputs repeat with a prime period: they take little time, and a
 *    block of elements in the place of another block is still seen.
 * Threads: pure functions.
 * Owns: nothing.
 */
#include "tools/perf/perf.h"

#include <string.h>

#include "plan/plan.h"

#define PERIOD 1048573u
/* Ranks that multiply by 2: the product must fit every type. */
#define DOUBLING_RANKS 6

const struct oh_perf_type oh_perf_types[OH_PERF_TYPES] = {
    {ncclInt8, 1, 127, 0, 0, true},
    {ncclUint8, 1, 255, 0, 0, false},
    {ncclInt32, 4, 1 << 28, 0, 0, true},
    {ncclUint32, 4, 1 << 28, 0, 0, false},
    {ncclInt64, 8, 1 << 28, 0, 0, true},
    {ncclUint64, 8, 1 << 28, 0, 0, false},
    {ncclFloat16, 2, 1 << 11, 10, 5, true},
    {ncclFloat32, 4, 1 << 24, 23, 8, true},
    {ncclFloat64, 8, 1 << 28, 52, 11, true},
    {ncclBfloat16, 2, 1 << 8, 7, 8, true},
    {OH_NCCL_FP8_E4M3, 1, 1 << 4, 3, 4, true},
    {OH_NCCL_FP8_E5M2, 1, 1 << 3, 2, 5, true},
};

const char *const oh_perf_type_names[OH_PERF_TYPES] = {"int8", "uint8", "int32",  "uint32",   "int64",  "uint64",
                                                       "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2"};
const char *const oh_perf_op_names[OH_PERF_OPS] = {"sum", "prod", "min", "max", "avg", "mulsum"};

/* A whole number from least to most, a good mix of rank and element. */
static int64_t mixed(uint32_t rank, size_t element, int64_t least, int64_t most)
{
    uint64_t x = (uint64_t)element * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)(rank + 1) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return least + (int64_t)(((x >> 32) * (uint64_t)(most - least + 1)) >> 32);
}

/* The largest input of an op, so that the result is exact in the type. */
static int64_t bound(const struct oh_perf_type *type, enum oh_perf_op op, int ranks)
{
    switch (op) {
    case OH_PERF_MIN:
    case OH_PERF_MAX:
        return type->exact;
    case OH_PERF_MULSUM: /* twice a float is as exact as the float */
        return type->exact / ranks / (type->mantissa ? 1 : 2);
    default:
        return type->exact / ranks;
    }
}

static int64_t input_value(const struct oh_perf_type *type, enum oh_perf_op op, int ranks, int rank, size_t element)
{
    if (op == OH_PERF_PROD) {
        int64_t which = mixed((uint32_t)rank, element, 0, 3);
        int64_t factor = rank < DOUBLING_RANKS && which / 2 ? 2 : 1;
        return type->negative && which % 2 ? -factor : factor;
    }
    /* Averages of one sign: a quotient of integers is rounded in one direction, the error of floats is relative. */
    bool both = type->negative && op != OH_PERF_AVG;
    int64_t most = bound(type, op, ranks);
    return mixed((uint32_t)rank, element, both ? -most : 0, most);
}

static int64_t combine(enum oh_perf_op op, int64_t a, int64_t b)
{
    switch (op) {
    case OH_PERF_PROD:
        return a * b;
    case OH_PERF_MIN:
        return a < b ? a : b;
    case OH_PERF_MAX:
        return a > b ? a : b;
    default:
        return a + b;
    }
}

/* A float of at most 16 bits; of a number that it cannot hold the next one towards zero. */
static uint16_t narrow(const struct oh_perf_type *type, double number)
{
    float real = (float)number;
    uint32_t bits;
    memcpy(&bits, &real, sizeof bits);
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t bias = (1u << (type->exponent - 1)) - 1;
    uint32_t sign = (bits >> 31) << (type->mantissa + type->exponent);
    return (uint16_t)(sign | (magnitude ? (magnitude >> (23 - type->mantissa)) - ((127 - bias) << type->mantissa) : 0));
}

/* number: whole for an integer type. */
static void store(const struct oh_perf_type *type, void *array, size_t element, double number)
{
    int64_t whole = (int64_t)number;
    float real = (float)number;
    uint16_t bits;
    void *at = (char *)array + element * type->size;
    if (type->mantissa == 0) {
        memcpy(at, &whole, type->size); /* little endian: the low bytes come first */
    } else if (type->size == 8) {
        memcpy(at, &number, sizeof number);
    } else if (type->size == 4) {
        memcpy(at, &real, sizeof real);
    } else {
        bits = narrow(type, number);
        memcpy(at, &bits, type->size);
    }
}

static double finish(const struct oh_perf_type *type, enum oh_perf_op op, int ranks, int64_t all)
{
    switch (op) {
    case OH_PERF_AVG:
        /* NOLINTNEXTLINE(bugprone-integer-division): integers are cut off */
        return type->mantissa ? (double)all / ranks : (double)(all / ranks);
    case OH_PERF_MULSUM:
        return 2.0 * (double)all;
    default:
        return (double)all;
    }
}

static void repeat(void *array, size_t size, size_t count)
{
    for (size_t done = PERIOD; done < count; done += PERIOD) {
        size_t part = count - done < PERIOD ? count - done : PERIOD;
        memcpy((char *)array + done * size, array, part * size);
    }
}

void oh_perf_fill(const struct oh_perf_type *type, enum oh_perf_op op, int ranks, int rank, size_t count, void *input,
                  void *expected)
{
    for (size_t i = 0; i < count && i < PERIOD; i++) {
        int64_t all = input_value(type, op, ranks, 0, i);
        for (int r = 1; r < ranks; r++) {
            all = combine(op, all, input_value(type, op, ranks, r, i));
        }
        store(type, input, i, (double)input_value(type, op, ranks, rank, i));
        store(type, expected, i, finish(type, op, ranks, all));
    }
    repeat(input, type->size, count);
    repeat(expected, type->size, count);
}

void oh_perf_fill_moved(const struct oh_perf_type *type, int ranks, int rank, size_t first, size_t count, void *values)
{
    for (size_t i = 0; i < count; i++) {
        store(type, values, i, (double)input_value(type, OH_PERF_SUM, ranks, rank, (first + i) % PERIOD));
    }
}

void oh_perf_scalar(const struct oh_perf_type *type, void *scalar_p)
{
    store(type, scalar_p, 0, 2);
}

/* The bits of an element, as a whole number: neighbours of one sign differ by 1. */
static uint64_t bits_of(const struct oh_perf_type *type, const char *array, size_t element)
{
    uint64_t bits = 0;
    memcpy(&bits, array + element * type->size, type->size);
    return bits;
}

/*
 * How many units in the last place an average of floats may be off. NCCL multiplies each input by 1/n, rounded to the
 * type, and adds in the type: 2 n roundings, and one unit of the expectation, which is cut. For f8e5m2 this is nearly
 * anything; test/conformance compares exactly.
 */
static uint64_t tolerance(const struct oh_perf_type *type, enum oh_perf_op op, int ranks)
{
    bool exact = op != OH_PERF_AVG || type->mantissa == 0 || (ranks & (ranks - 1)) == 0;
    return exact ? 0 : 2 * (uint64_t)(ranks + 1);
}

uint64_t oh_perf_wrong(const struct oh_perf_type *type, enum oh_perf_op op, int ranks, const void *got,
                       const void *expected, size_t count)
{
    const unsigned char *behind = (const unsigned char *)got + count * type->size;
    const uint64_t off = tolerance(type, op, ranks);
    const bool same = memcmp(got, expected, count * type->size) == 0;
    uint64_t wrong = 0;
    for (size_t i = 0; i < count && !same; i++) {
        wrong += bits_of(type, got, i) - bits_of(type, expected, i) + off > 2 * off; /* modulo 2^64 */
    }
    for (size_t i = 0; i < OH_PERF_GUARD; i++) {
        wrong += behind[i] != OH_PERF_POISON;
    }
    return wrong;
}
