/* SPDX-License-Identifier: MIT */
/*
 * reduce.cuh - element types, and what becomes of the elements of all ranks
 *
 * Elements are combined in rank order 0, 1, ... n-1, on every rank and in every algorithm, and rounded once to the
 * element type: all ranks, all algorithms and all runs give the same bits. Types of 16 and 8 bits are reduced in fp32,
 * fp32 and fp64 in their own type; integers wrap around. The first element starts the result (not 0), so that a sum of
 * negative zeros stays negative.
 *
 * Two reductions: oh_sum_of is compiled for each number of ranks, for the sums of the three types that programs are
 * made of; oh_any_of takes the op from the arguments, and is compiled for 2, 3 and 4 ranks, and for 5 to 8 together.
 */
#ifndef OH_KERNELS_REDUCE_CUH_
#define OH_KERNELS_REDUCE_CUH_

#include "kernels/primitives.cuh"

/*
 * What MIN, MAX and AVG mean, by the kind of number. `sign` is the operand of oh_kernel_args. Of a number and a NaN,
 * MIN and MAX take the number, as NCCL does (src/device/reduce_kernel.h of 2.28.9).
 */
template <class Value> struct oh_floating {
    typedef Value value;
    static const bool has_sentinel = true; /* a bit pattern that no result needs (lamport.cuh) */
    static const bool adds_bytes = false;
    static OH_INLINE Value least(Value a, Value b, uint64_t)
    {
        return fmin(a, b);
    }
    static OH_INLINE Value greatest(Value a, Value b, uint64_t)
    {
        return fmax(a, b);
    }
    static OH_INLINE Value average(Value sum, uint32_t n, uint64_t)
    {
        return sum / (Value)n;
    }
    static OH_INLINE bool is_finite(Value value)
    {
        return value - value == 0;
    }
};

/*
 * A type gives: how an element is stored, in what it is reckoned (value), and the conversion of a part, the least
 * number of whole 32-bit words that holds whole elements.
 */
struct oh_f32 : oh_floating<float> {
    typedef uint32_t element;
    static const int part_words = 1, per_part = 1;
    static const bool may_overflow = true;
    static OH_INLINE void unpack(const uint32_t *part, float *value)
    {
        memcpy(value, part, sizeof *value);
    }
    static OH_INLINE void pack(const float *value, uint32_t *part)
    {
        const float result = oh_result(*value);
        memcpy(part, &result, sizeof *part);
    }
};

struct oh_f64 : oh_floating<double> {
    typedef uint64_t element;
    static const int part_words = 2, per_part = 1;
    static const bool may_overflow = true;
    static OH_INLINE void unpack(const uint32_t *part, double *value)
    {
        uint64_t bits = part[0] | (uint64_t)part[1] << 32;
        memcpy(value, &bits, sizeof *value);
    }
    static OH_INLINE void pack(const double *value, uint32_t *part)
    {
        const double result = oh_result(*value);
        uint64_t bits;
        memcpy(&bits, &result, sizeof bits);
        part[0] = (uint32_t)bits;
        part[1] = (uint32_t)(bits >> 32);
    }
};

struct oh_f16 : oh_floating<float> {
    typedef uint16_t element;
    static const int part_words = 1, per_part = 2;
    static const bool may_overflow = false;
    static OH_INLINE void unpack(const uint32_t *part, float *value)
    {
        __half2 pair;
        memcpy(static_cast<void *>(&pair), part, sizeof pair);
        value[0] = __low2float(pair);
        value[1] = __high2float(pair);
    }
    static OH_INLINE void pack(const float *value, uint32_t *part)
    {
        __half2 pair = __floats2half2_rn(value[0], value[1]);
        memcpy(part, &pair, sizeof pair);
    }
};

struct oh_bf16 : oh_floating<float> {
    typedef uint16_t element;
    static const int part_words = 1, per_part = 2;
    static const bool may_overflow = true;
    static OH_INLINE void unpack(const uint32_t *part, float *value)
    {
        uint32_t low = *part << 16, high = *part & 0xffff0000u; /* a bf16 is the upper half of an fp32 */
        memcpy(&value[0], &low, sizeof low);
        memcpy(&value[1], &high, sizeof high);
    }
    static OH_INLINE void pack(const float *value, uint32_t *part)
    {
        __nv_bfloat162 pair = __floats2bfloat162_rn(value[0], value[1]);
        memcpy(part, &pair, sizeof pair);
    }
};

/* Both fp8 types. As NCCL converts: what is too large becomes the largest number, not infinity. */
template <__nv_fp8_interpretation_t kind> struct oh_fp8 : oh_floating<float> {
    typedef uint8_t element;
    static const int part_words = 1, per_part = 4;
    static const bool may_overflow = false;
    static OH_INLINE void unpack(const uint32_t *part, float *value)
    {
#if defined(OH_NO_FP8)
        value[0] = value[1] = value[2] = value[3] = 0;
#else
        OH_UNROLL
        for (int k = 0; k < 2; k++) {
            const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(*part >> (16 * k)), kind);
            const __half2 pair = raw;
            value[2 * k] = __low2float(pair);
            value[2 * k + 1] = __high2float(pair);
        }
#endif
    }
    static OH_INLINE void pack(const float *value, uint32_t *part)
    {
        *part = 0;
#if !defined(OH_NO_FP8)
        OH_UNROLL
        for (int k = 0; k < 2; k++) {
            const float2 pair = {value[2 * k], value[2 * k + 1]};
            *part |= (uint32_t)__nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, kind) << (16 * k);
        }
#endif
    }
};
typedef oh_fp8<__NV_E4M3> oh_e4m3;
typedef oh_fp8<__NV_E5M2> oh_e5m2;

/* Integers of one width, signed or not: only MIN, MAX and AVG care, and learn it from their operand. */
template <class Element, class Value> struct oh_integer {
    typedef Element element;
    typedef Value value;
    static const int part_words = sizeof(Element) <= 4 ? 1 : 2;
    static const int per_part = sizeof(Element) <= 4 ? 4 / sizeof(Element) : 1;
    static const bool may_overflow = false; /* it wraps around */
    static const bool adds_bytes = sizeof(Element) == 1;
    static const bool has_sentinel = false;
    static OH_INLINE void unpack(const uint32_t *part, Value *value)
    {
        uint64_t bits = part[0];
        if (part_words == 2) {
            bits |= (uint64_t)part[part_words - 1] << 32;
        }
        OH_UNROLL
        for (int k = 0; k < per_part; k++) {
            value[k] = (Element)(bits >> (k * 8 * sizeof(Element)));
        }
    }
    static OH_INLINE void pack(const Value *value, uint32_t *part)
    {
        uint64_t bits = 0;
        OH_UNROLL
        for (int k = 0; k < per_part; k++) {
            bits |= (uint64_t)(Element)value[k] << (k * 8 * sizeof(Element));
        }
        part[0] = (uint32_t)bits;
        if (part_words == 2) {
            part[part_words - 1] = (uint32_t)(bits >> 32);
        }
    }
    /* Four bytes at once: a carry ends in each byte's highest bit, which is added without one (H. S. Warren, Hacker's
     * Delight, 2nd ed., section 2-18). */
    static OH_INLINE uint32_t add_bytes(uint32_t a, uint32_t b)
    {
        const uint32_t high = 0x80808080u;
        return ((a & ~high) + (b & ~high)) ^ ((a ^ b) & high);
    }
    /* The sign bit turned round, unsigned order is signed order. */
    static OH_INLINE Value least(Value a, Value b, uint64_t sign)
    {
        return (a ^ (Value)sign) < (b ^ (Value)sign) ? a : b;
    }
    static OH_INLINE Value greatest(Value a, Value b, uint64_t sign)
    {
        return (a ^ (Value)sign) > (b ^ (Value)sign) ? a : b;
    }
    /* Of the sum as it wrapped, cut off towards zero. */
    static OH_INLINE Value average(Value sum, uint32_t n, uint64_t sign)
    {
        const Element wrapped = (Element)sum;
        const bool negative = wrapped & sign;
        const Element size = negative ? (Element)(0 - wrapped) : wrapped;
        return negative ? 0 - size / (Value)n : size / (Value)n;
    }
};
typedef oh_integer<uint8_t, uint32_t> oh_i8;
typedef oh_integer<uint32_t, uint32_t> oh_i32;
typedef oh_integer<uint64_t, uint64_t> oh_i64;

/* The elements of one word, as values. */
template <class Type, class Word> struct oh_values {
    typedef typename Type::value value;
    static const int parts = sizeof(Word) / sizeof(uint32_t) / Type::part_words;
    value at[parts][Type::per_part];

    explicit OH_DEVICE_METHOD oh_values(const Word &word)
    {
        OH_UNROLL
        for (int p = 0; p < parts; p++) {
            Type::unpack(word.w + p * Type::part_words, at[p]);
        }
    }
    OH_DEVICE_METHOD Word round() const
    {
        Word word;
        OH_UNROLL
        for (int p = 0; p < parts; p++) {
            Type::pack(at[p], word.w + p * Type::part_words);
        }
        return word;
    }
    /* Each element becomes combine(element, that of word). */
    template <class Combine> OH_DEVICE_METHOD void accumulate(const Word &word, Combine combine)
    {
        accumulate_values(oh_values(word), combine);
    }
    template <class Combine> OH_DEVICE_METHOD void accumulate_values(const oh_values &other, Combine combine)
    {
        OH_UNROLL
        for (int p = 0; p < parts; p++) {
            OH_UNROLL
            for (int k = 0; k < Type::per_part; k++) {
                at[p][k] = combine(at[p][k], other.at[p][k]);
            }
        }
    }
    template <class Change> OH_DEVICE_METHOD void each(Change change)
    {
        OH_UNROLL
        for (int p = 0; p < parts; p++) {
            OH_UNROLL
            for (int k = 0; k < Type::per_part; k++) {
                at[p][k] = change(at[p][k]);
            }
        }
    }
};

/*
 * A reduction gives: the type, the most ranks that it is compiled for (`ranks`, for static loops) and their number in
 * this communicator (nranks), whether it is compiled for the sum alone (is_sum), what a rank does to its own words
 * before it sends or combines them (prepare), and the combination of the words of ranks 0 to nranks-1.
 */
template <class Type, int ranks_> struct oh_sum_of {
    typedef Type type;
    static const int ranks = ranks_;
    static const bool is_sum = true;

    explicit OH_DEVICE_METHOD oh_sum_of(const oh_kernel_args &)
    {
    }
    static OH_INLINE uint32_t nranks(const oh_kernel_args &)
    {
        return ranks_;
    }
    template <class Word> OH_DEVICE_METHOD Word prepare(const Word &word) const
    {
        return word;
    }
    template <class Word> OH_DEVICE_METHOD Word combine(const Word (&word)[ranks_]) const
    {
        oh_values<Type, Word> sum(word[0]);
        OH_UNROLL
        for (int r = 1; r < ranks_; r++) {
            sum.accumulate(word[r], [](float a, float b) { return a + b; });
        }
        return sum.round();
    }
};

/* Ranks of a communicator that has `least` to `most`. */
template <int least, int most> OH_DEVICE uint32_t oh_nranks_of(const oh_kernel_args &args)
{
    if (least == most) {
        return most;
    }
    oh_assume(args.nranks >= least && args.nranks <= most);
    return args.nranks;
}

/* For communicators of `least` to ranks_ ranks. */
template <class Type, int least, int ranks_> struct oh_any_of {
    typedef Type type;
    typedef typename Type::value value;
    static const int ranks = ranks_;
    static const bool is_sum = false;
    const uint32_t count, op;
    uint64_t operand;

    /* Behind oh_pdl_wait: the kernel before may have written a scalar in memory. */
    explicit OH_DEVICE_METHOD oh_any_of(const oh_kernel_args &args)
        : count(nranks(args)), op(args.op), operand(args.operand)
    {
        if (op == OH_OP_SCALED_SUM && args.scalar) {
            operand = *static_cast<const typename Type::element *>(args.scalar);
        }
    }
    static OH_INLINE uint32_t nranks(const oh_kernel_args &args)
    {
        return oh_nranks_of<least, ranks_>(args);
    }
    template <class Word> OH_DEVICE_METHOD Word prepare(const Word &word) const
    {
        if (op != OH_OP_SCALED_SUM) {
            return word;
        }
        const uint32_t part[2] = {(uint32_t)operand, (uint32_t)(operand >> 32)};
        value scalar[Type::per_part];
        Type::unpack(part, scalar);
        oh_values<Type, Word> values(word);
        values.each([&](value v) { return (value)(v * scalar[0]); });
        return values.round();
    }
    template <class Word, class Combine>
    OH_DEVICE_METHOD void over_ranks(oh_values<Type, Word> *result, const Word (&word)[ranks_], Combine combine) const
    {
        OH_UNROLL
        for (int r = 1; r < ranks_; r++) {
            if (r < (int)count) {
                result->accumulate(word[r], combine);
            }
        }
    }
    /* A third of the instructions that bytes by themselves take. */
    template <class Word> OH_DEVICE_METHOD Word sum_of_bytes(const Word (&word)[ranks_]) const
    {
        Word sum = word[0];
        OH_UNROLL
        for (int r = 1; r < ranks_; r++) {
            OH_UNROLL
            for (int w = 0; w < (int)(sizeof sum.w / sizeof *sum.w) && r < (int)count; w++) {
                sum.w[w] = Type::add_bytes(sum.w[w], word[r].w[w]);
            }
        }
        return sum;
    }
    template <class Word> OH_DEVICE_METHOD Word combine(const Word (&word)[ranks_]) const
    {
        if constexpr (Type::adds_bytes) {
            if (op == OH_OP_SUM || op == OH_OP_SCALED_SUM) {
                return sum_of_bytes(word);
            }
        }
        const uint64_t sign = operand;
        const uint32_t n = count;
        oh_values<Type, Word> result(word[0]);
        switch (op) {
        case OH_OP_PROD:
            over_ranks(&result, word, [](value a, value b) { return (value)(a * b); });
            break;
        case OH_OP_MIN:
            over_ranks(&result, word, [=](value a, value b) { return Type::least(a, b, sign); });
            break;
        case OH_OP_MAX:
            over_ranks(&result, word, [=](value a, value b) { return Type::greatest(a, b, sign); });
            break;
        default:
            over_ranks(&result, word, [](value a, value b) { return (value)(a + b); });
            if (op == OH_OP_AVG) {
                result.each([=](value v) { return Type::average(v, n, sign); });
                if constexpr (Type::may_overflow) {
                    avoid_overflow(&result, word);
                }
            }
        }
        return result.round();
    }
    /* Where the sum of an average was too large: the average of eighths, times eight. */
    template <class Word>
    OH_DEVICE_METHOD void avoid_overflow(oh_values<Type, Word> *average, const Word (&word)[ranks_]) const
    {
        bool finite = true;
        average->each([&](value v) {
            finite &= Type::is_finite(v);
            return v;
        });
        if (__builtin_expect(finite, 1)) {
            return;
        }
        const value eighth = (value)0.125, n = (value)count;
        oh_values<Type, Word> other(word[0]);
        other.each([=](value v) { return v * eighth; });
        over_ranks(&other, word, [=](value a, value b) { return a + b * eighth; });
        other.each([=](value v) { return v / (n * eighth); });
        average->accumulate_values(other, [](value a, value b) { return Type::is_finite(a) ? a : b; });
    }
};

/* In place of a reduction, for collectives that move bytes, with `least` to ranks_ ranks. */
template <int least, int ranks_> struct oh_bytes_of {
    typedef oh_i8 type;
    static const int ranks = ranks_;

    static OH_INLINE uint32_t nranks(const oh_kernel_args &args)
    {
        return oh_nranks_of<least, ranks_>(args);
    }
};

#endif
