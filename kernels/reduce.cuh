/* SPDX-License-Identifier: MIT */
/*
 * reduce.cuh - element types and the sum over ranks
 *
 * Sums are taken in fp32, in rank order 0, 1, ... n-1, on every rank and in every algorithm, and rounded once to the
 * element type: all ranks, all algorithms and all runs give the same bits. The first addend starts the sum (not 0),
 * so that a sum of negative zeros stays negative.
 */
#ifndef OH_KERNELS_REDUCE_CUH_
#define OH_KERNELS_REDUCE_CUH_

#include "kernels/primitives.cuh"

/* A type gives: its elements per 32-bit word, its storage type, and conversion of one word to and from fp32. */
struct oh_f32 {
    typedef uint32_t element;
    static const int per_word = 1;
    static OH_INLINE void unpack(uint32_t word, float *value)
    {
        memcpy(value, &word, sizeof word);
    }
    static OH_INLINE uint32_t pack(const float *value)
    {
        uint32_t word;
        memcpy(&word, value, sizeof word);
        return word;
    }
};

struct oh_f16 {
    typedef uint16_t element;
    static const int per_word = 2;
    static OH_INLINE void unpack(uint32_t word, float *value)
    {
        __half2 pair;
        memcpy(static_cast<void *>(&pair), &word, sizeof word);
        value[0] = __low2float(pair);
        value[1] = __high2float(pair);
    }
    static OH_INLINE uint32_t pack(const float *value)
    {
        __half2 pair = __floats2half2_rn(value[0], value[1]);
        uint32_t word;
        memcpy(&word, &pair, sizeof word);
        return word;
    }
};

struct oh_bf16 {
    typedef uint16_t element;
    static const int per_word = 2;
    static OH_INLINE void unpack(uint32_t word, float *value)
    {
        uint32_t low = word << 16, high = word & 0xffff0000u; /* a bf16 is the upper half of an fp32 */
        memcpy(&value[0], &low, sizeof low);
        memcpy(&value[1], &high, sizeof high);
    }
    static OH_INLINE uint32_t pack(const float *value)
    {
        __nv_bfloat162 pair = __floats2bfloat162_rn(value[0], value[1]);
        uint32_t word;
        memcpy(&word, &pair, sizeof word);
        return word;
    }
};

/* The fp32 sums of the elements of one word. */
template <class Type, class Word> struct oh_accumulator {
    static const int words = sizeof(Word) / sizeof(uint32_t);
    float sum[words][Type::per_word];

    OH_INLINE void start(const Word &addend)
    {
        OH_UNROLL
        for (int w = 0; w < words; w++) {
            Type::unpack(addend.w[w], sum[w]);
        }
    }
    OH_INLINE void add(const Word &addend)
    {
        OH_UNROLL
        for (int w = 0; w < words; w++) {
            float value[Type::per_word];
            Type::unpack(addend.w[w], value);
            OH_UNROLL
            for (int k = 0; k < Type::per_word; k++) {
                sum[w][k] += value[k];
            }
        }
    }
    OH_INLINE Word round() const
    {
        Word result;
        OH_UNROLL
        for (int w = 0; w < words; w++) {
            result.w[w] = Type::pack(sum[w]);
        }
        return result;
    }
};

/* Sums the words of ranks 0, 1, ... n-1 in that order. */
template <class Type, int ranks, class Word> OH_DEVICE Word oh_sum(const Word (&addend)[ranks])
{
    oh_accumulator<Type, Word> accumulator;
    accumulator.start(addend[0]);
    OH_UNROLL
    for (int r = 1; r < ranks; r++) {
        accumulator.add(addend[r]);
    }
    return accumulator.round();
}

#endif
