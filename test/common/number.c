/* SPDX-License-Identifier: MIT */
/*
 * number.c - see number.h
 *
 * The bound for floats. NCCL's ring rounds to the type at each of n - 1 additions; avg multiplies each input by 1/n,
 * itself rounded, before that; PreMulSum by the factor. With u, half an ulp of 1 in the type, any such evaluation in
 * any order lies within ((1 + u)^k - 1) * sum|x| of the true sum (Higham, Accuracy and Stability of Numerical
 * Algorithms, 4.2), with k = n - 1 for sum and prod (then of |product|), n for PreMulSum, n + 1 for avg. Products may
 * underflow: half a smallest subnormal each. fp8 goes through fp16, and narrow types may go through fp32, so u is taken
 * as u + 2^-11 (fp8) or u + 2^-24. In ulps of the type at sum|x| that is k/2 ulps, a little more for fp8. Sums of
 * subnormals are exact.
 *
 * Order and rounding that onehop documents (doc/numerics.md), checked as well when a call was served: in rank
 * order in fp32 (fp64 in fp64), avg divided after, rounded once; a factor of PreMulSum multiplied in and rounded
 * before. So the bits are known (result_in_order).
 */
#include "test/common/number.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>

#define ONES(bits_) ((UINT64_C(1) << (bits_)) - 1)
#define INTEGER(name_, type_, size_, signed_) [type_] = {name_, type_, size_, signed_, 0, false, 0, 0}
#define FLOAT(name_, type_, size_, exponent_, mantissa_, fp8_)                                                         \
    [type_] = {name_, type_, size_, true, mantissa_, fp8_, ONES(8 * size_ - 1) + 1, ONES(exponent_) << mantissa_}

const struct cf_type cf_types[ncclNumTypes] = {
    INTEGER("int8", ncclInt8, 1, true),
    INTEGER("uint8", ncclUint8, 1, false),
    INTEGER("int32", ncclInt32, 4, true),
    INTEGER("uint32", ncclUint32, 4, false),
    INTEGER("int64", ncclInt64, 8, true),
    INTEGER("uint64", ncclUint64, 8, false),
    FLOAT("float16", ncclFloat16, 2, 5, 10, false),
    FLOAT("float32", ncclFloat32, 4, 8, 23, false),
    FLOAT("float64", ncclFloat64, 8, 11, 52, false),
    FLOAT("bfloat16", ncclBfloat16, 2, 8, 7, false),
    FLOAT("float8e4m3", ncclFloat8e4m3, 1, 4, 3, true),
    FLOAT("float8e5m2", ncclFloat8e5m2, 1, 5, 2, true),
};

const char *const cf_op_names[CF_OPS] = {"sum", "prod", "min", "max", "avg", "premul-host", "premul-device"};
const char *const cf_family_names[CF_FAMILIES] = {"exact", "wide", "special", "sentinel"};

uint64_t cf_mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

uint64_t cf_load(const struct cf_type *type, const void *at)
{
    uint64_t bits = 0;
    memcpy(&bits, at, type->size); /* little endian, as every host of these GPUs */
    return bits;
}

void cf_store(const struct cf_type *type, void *at, uint64_t bits)
{
    memcpy(at, &bits, type->size);
}

/* --- floats ------------------------------------------------------------------------------------------------------ */

#define POWERS 1100 /* more than any float has */
static long double power[2 * POWERS + 1];

__attribute__((constructor)) static void fill_powers(void)
{
    for (int i = -POWERS; i <= POWERS; i++) {
        power[i + POWERS] = ldexpl(1, i);
    }
}

/* As ldexpl, which takes a tenth of the time of the tests that judge much. */
static long double times_power(long double value, int exponent)
{
    return abs(exponent) <= POWERS ? value * power[exponent + POWERS] : ldexpl(value, exponent);
}

/* Of a positive number: as ilogbl, which takes as long as all else in encode. */
static int exponent_of(long double value)
{
#if LDBL_MANT_DIG == 64
    uint16_t top;
    memcpy(&top, (const char *)&value + 8, sizeof top);
    if (top > 0) {
        return top - 16383;
    }
#endif
    return ilogbl(value);
}

/* To a whole number, for numbers below 2^62: as rintl, in line. */
static long double to_whole(long double value)
{
#if LDBL_MANT_DIG == 64
    const long double large = 0x1p63L;
    return value + large - large;
#else
    return rintl(value);
#endif
}

static int bias_of(const struct cf_type *type)
{
    return (int)(type->ones >> type->mantissa >> 1);
}

static bool has_infinity(const struct cf_type *type)
{
    return !(type->fp8 && type->mantissa == 3);
}

static int least_exponent(const struct cf_type *type)
{
    return 1 - bias_of(type);
}

static int most_exponent(const struct cf_type *type)
{
    return has_infinity(type) ? bias_of(type) : bias_of(type) + 1;
}

static long double most(const struct cf_type *type)
{
    /* e4m3: the pattern above the largest number is its NaN. */
    const long double last = 2 - times_power(1, (has_infinity(type) ? 0 : 1) - type->mantissa);
    return times_power(last, most_exponent(type));
}

static long double least_subnormal(const struct cf_type *type)
{
    return times_power(1, least_exponent(type) - type->mantissa);
}

static long double decode(const struct cf_type *type, uint64_t bits)
{
    uint64_t magnitude = bits & (type->sign - 1);
    uint64_t fraction = magnitude & ONES(type->mantissa);
    int exponent = (int)(magnitude >> type->mantissa);
    long double value = INFINITY;
    if (has_infinity(type) ? magnitude > type->ones : magnitude == type->sign - 1) {
        return nanl("");
    } else if (exponent == 0) {
        value = (long double)fraction * least_subnormal(type);
    } else if (!has_infinity(type) || magnitude < type->ones) {
        fraction += UINT64_C(1) << type->mantissa;
        value = times_power((long double)fraction, exponent - bias_of(type) - type->mantissa);
    }
    return bits & type->sign ? -value : value;
}

static uint64_t infinity_or_most(const struct cf_type *type)
{
    if (!type->fp8) {
        return type->ones;
    }
    return has_infinity(type) ? type->ones - 1 : type->sign - 2;
}

/* To nearest, ties to even; fp8 saturates, infinities too, as NCCL's conversions do. */
static uint64_t encode(const struct cf_type *type, long double value)
{
    uint64_t sign = signbit(value) ? type->sign : 0;
    long double magnitude = fabsl(value);
    if (isnan(value)) {
        return type->sign - 1;
    }
    if (isinf(value)) {
        return sign | infinity_or_most(type);
    }
    int exponent = magnitude > 0 ? exponent_of(magnitude) : least_exponent(type);
    exponent = exponent < least_exponent(type) ? least_exponent(type) : exponent;
    magnitude = times_power(to_whole(times_power(magnitude, type->mantissa - exponent)), exponent - type->mantissa);
    if (magnitude > most(type)) {
        return sign | infinity_or_most(type);
    }
    if (magnitude < times_power(1, least_exponent(type))) {
        return sign | (uint64_t)(magnitude / least_subnormal(type));
    }
    exponent = exponent_of(magnitude);
    uint64_t fraction = (uint64_t)times_power(magnitude, type->mantissa - exponent) - (UINT64_C(1) << type->mantissa);
    return sign | (uint64_t)(exponent + bias_of(type)) << type->mantissa | fraction;
}

/* --- inputs ------------------------------------------------------------------------------------------------------ */

static uint64_t mask_of(const struct cf_type *type)
{
    return type->size == 8 ? UINT64_MAX : (UINT64_C(1) << (type->size * 8)) - 1;
}

/* A float of random sign and fraction, its exponent between low and high. */
static uint64_t random_float(const struct cf_type *type, uint64_t random, int low, int high)
{
    uint64_t fraction = (random >> 8) & ONES(type->mantissa);
    int exponent = low + (int)((random >> 1) % 97 % (uint64_t)(high - low + 1));
    uint64_t bits = (random & 1 ? type->sign : 0) | (uint64_t)(exponent + bias_of(type)) << type->mantissa;
    return fabsl(decode(type, bits | fraction)) <= most(type) ? bits | fraction : bits;
}

static uint64_t exact_input(const struct cf_data *data, uint64_t random)
{
    const struct cf_type *type = data->type;
    if (data->op == CF_PROD) { /* signed powers of two */
        return encode(type, (random & 1 ? -1 : 1) * times_power(1, (int)((random >> 1) % 3) - 1));
    }
    if (data->op == CF_MIN || data->op == CF_MAX) {
        return random_float(type, random, least_exponent(type), most_exponent(type));
    }
    /* Whole numbers of which eight have a sum within the precision of the type. */
    int bits = MIN(type->mantissa + 1 - 3, 40);
    uint64_t most_whole = UINT64_C(1) << bits;
    return encode(type, (long double)((random >> 8) % (2 * most_whole + 1)) - (long double)most_whole);
}

static uint64_t wide_input(const struct cf_data *data, uint64_t random)
{
    const struct cf_type *type = data->type;
    if (data->op == CF_PROD) { /* eight of them fit every type, and none is subnormal on the way */
        return random_float(type, random, 0, 0);
    }
    return random_float(type, random, MAX(least_exponent(type), -12), MIN(most_exponent(type) - 5, 12));
}

/* A neutral element of the op, where it has one that suits the case. */
static uint64_t neutral(const struct cf_data *data)
{
    return encode(data->type, data->op == CF_PROD ? 1 : 0);
}

/* What element i is about is the same on all ranks. */
enum special {
    ONE_NAN,
    ALL_NAN,
    MIXED_ZEROS,
    NEGATIVE_ZEROS,
    SUBNORMAL,
    ONE_INFINITY,
    BOTH_INFINITIES,
    TOO_LARGE,
    SPECIALS
};

static uint64_t any_nan(const struct cf_type *type, uint64_t random)
{
    uint64_t sign = random & 1 ? type->sign : 0;
    if (!has_infinity(type)) {
        return sign | (type->sign - 1);
    }
    uint64_t payload = (random >> 8) & ONES(type->mantissa);
    return sign | type->ones | (payload != 0 ? payload : 1);
}

static uint64_t infinity_of(const struct cf_type *type, bool negative)
{
    uint64_t bits = has_infinity(type) ? type->ones : infinity_or_most(type);
    return bits | (negative ? type->sign : 0);
}

/* So many subnormals that the sum of eight of them is exact. */
static uint64_t tiny_fractions(const struct cf_type *type)
{
    return type->mantissa > 3 ? UINT64_C(1) << (type->mantissa - 2) : 2;
}

static uint64_t special_input(const struct cf_data *data, int world, size_t i, uint64_t random)
{
    const struct cf_type *type = data->type;
    uint64_t about = cf_mix(data->key ^ (i * 31 + 7));
    bool chosen = world == (int)((about >> 32) % (uint64_t)data->nranks);
    bool negative = about >> 20 & 1;
    switch ((enum special)(about % SPECIALS)) {
    case ONE_NAN:
        return chosen ? any_nan(type, random) : wide_input(data, random);
    case ALL_NAN:
        return any_nan(type, random);
    case MIXED_ZEROS:
        return random & 1 ? type->sign : 0;
    case NEGATIVE_ZEROS:
        return type->sign;
    case SUBNORMAL:
        if (data->op == CF_PROD && !chosen) {
            return neutral(data);
        }
        return (random & 1 ? type->sign : 0) | (random >> 8) % tiny_fractions(type);
    case ONE_INFINITY:
        return chosen ? infinity_of(type, negative) : encode(type, data->op == CF_PROD ? 1 : (int)(random % 3));
    case BOTH_INFINITIES:
        return type->fp8 ? encode(type, 1) : infinity_of(type, chosen);
    default: /* the same on all ranks; with avg half of it, as 1/n rounded up is too large a factor */
        return encode(type, (negative ? -1 : 1) * most(type) / (data->op == CF_AVG ? 2 : 1));
    }
}

static uint64_t sentinel_input(const struct cf_data *data, int world, size_t i)
{
    /* The fourth: a number of fp64 of which half looks empty. The last two: eight bytes of integers that would be sent
     * as an empty word, and as the escape. */
    static const uint64_t patterns[] = {UINT64_MAX,          0xfffafffafffafffau, 0xfffafffbfffafffbu,
                                        0x40000000ffffffffu, 0x5cb24791a361ce58u, 0x5cb24791a361ce59u};
    bool integer = data->type->mantissa == 0;
    size_t byte = i * data->type->size;
    uint64_t about = cf_mix(data->key ^ ((integer ? byte / 8 : i) * 17 + 3));
    uint64_t pattern = integer ? patterns[about % 6] >> (byte % 8 * 8) : patterns[about % 4];
    pattern &= mask_of(data->type);
    bool all = about >> 16 & 1, chosen = world == (int)((about >> 32) % (uint64_t)data->nranks);
    uint64_t other = data->type->mantissa ? neutral(data) : data->op == CF_PROD;
    return all || chosen ? pattern : other;
}

uint64_t cf_input(const struct cf_data *data, int world, size_t i)
{
    uint64_t random = cf_mix(data->key + cf_mix((uint64_t)world * 0x10001 + 1) + i);
    if (data->family == CF_SENTINEL) {
        return sentinel_input(data, world, i);
    }
    if (data->type->mantissa == 0) {
        return random & mask_of(data->type);
    }
    switch (data->family) {
    case CF_EXACT:
        return exact_input(data, random);
    case CF_WIDE:
        return wide_input(data, random);
    default:
        return special_input(data, world, i, random);
    }
}

static bool is_premul(enum cf_op op)
{
    return op == CF_PREMUL_HOST || op == CF_PREMUL_DEVICE;
}

uint64_t cf_scalar(const struct cf_data *data, int world)
{
    uint64_t random = cf_mix((data->factor_key != 0 ? data->factor_key : data->key) ^ cf_mix((uint64_t)world + 1000));
    if (data->type->mantissa == 0) {
        return random & mask_of(data->type);
    }
    if (data->family == CF_WIDE) {
        return random_float(data->type, random, -1, 0);
    }
    /* One power of two, so that exact sums stay exact; of either sign. */
    return encode(data->type, random & 1 ? -2.0L : 2.0L);
}

/* --- integers ---------------------------------------------------------------------------------------------------- */

static int64_t as_signed(const struct cf_type *type, uint64_t bits)
{
    int shift = 64 - (int)type->size * 8;
    return (int64_t)(bits << shift) >> shift;
}

static bool is_less(const struct cf_type *type, uint64_t a, uint64_t b)
{
    return type->is_signed ? as_signed(type, a) < as_signed(type, b) : a < b;
}

static uint64_t combine_integers(const struct cf_data *data, uint64_t a, uint64_t b)
{
    switch (data->op) {
    case CF_PROD:
        return a * b & mask_of(data->type);
    case CF_MIN:
        return is_less(data->type, b, a) ? b : a;
    case CF_MAX:
        return is_less(data->type, a, b) ? b : a;
    default:
        return (a + b) & mask_of(data->type);
    }
}

static uint64_t integer_result(const struct cf_data *data, const struct cf_element *element)
{
    const struct cf_type *type = data->type;
    uint64_t result = 0;
    for (int r = 0; r < data->nranks; r++) {
        uint64_t value = element->bits[r];
        if (is_premul(data->op)) {
            value = value * element->scalar[r] & mask_of(type);
        }
        result = r == 0 ? value : combine_integers(data, result, value);
    }
    if (data->op != CF_AVG) {
        return result;
    }
    uint64_t quotient = type->is_signed ? (uint64_t)(as_signed(type, result) / data->nranks)
                                        : result / (uint64_t)data->nranks; /* C truncates toward zero */
    return quotient & mask_of(type);
}

/* --- what floats must be ----------------------------------------------------------------------------------------- */

/* All that is set must be met; nothing: any result is right. */
struct expectation {
    bool nan;
    int patterns; /* one of so many; 0: any */
    uint64_t pattern[2];
    bool near; /* at most `error` from value */
    long double value, error;
};

/* The ranks' values, each times its factor, and what they have in common. */
struct column {
    const uint64_t *bits, *scalar;
    long double value[CF_MAX_RANKS];
    int nans, plus_infinities, minus_infinities, zeros;
};

static void read_column(const struct cf_data *data, const struct cf_element *element, struct column *column_p)
{
    *column_p = (struct column){.bits = element->bits, .scalar = element->scalar};
    for (int r = 0; r < data->nranks; r++) {
        long double value = decode(data->type, element->bits[r]);
        value *= is_premul(data->op) ? decode(data->type, element->scalar[r]) : 1;
        column_p->value[r] = value;
        column_p->nans += isnan(value) != 0;
        column_p->zeros += value == 0;
        column_p->plus_infinities += value == INFINITY;
        column_p->minus_infinities += value == -INFINITY;
    }
}

static const struct expectation anything, not_a_number = {.nan = true};

static struct expectation expect_bits(uint64_t bits)
{
    return (struct expectation){.patterns = 1, .pattern = {bits}};
}

static struct expectation expect_either(uint64_t bits, uint64_t or_bits)
{
    return (struct expectation){.patterns = 2, .pattern = {bits, or_bits}};
}

static struct expectation expect_near(long double value, long double error)
{
    return (struct expectation){.near = true, .value = value, .error = error};
}

/* An infinity that went through the type's conversions; e5m2 saturates it, or does not where nothing is converted. */
static struct expectation expect_infinity(const struct cf_type *type, bool negative)
{
    uint64_t sign = negative ? type->sign : 0;
    return expect_either(sign | infinity_or_most(type), infinity_of(type, negative));
}

/* fmin and fmax: a NaN only where there is nothing else. Which zero wins is left open by C, and so here. */
static struct expectation expect_extreme(const struct cf_data *data, const struct column *column)
{
    int best = -1;
    if (column->nans == data->nranks) {
        return not_a_number;
    }
    for (int r = 0; r < data->nranks; r++) {
        long double value = column->value[r];
        bool better = best < 0 || (data->op == CF_MIN ? value < column->value[best] : value > column->value[best]);
        best = !isnan(value) && better ? r : best;
    }
    if (isinf(column->value[best])) {
        return expect_infinity(data->type, column->value[best] < 0);
    }
    if (column->value[best] == 0) {
        return expect_either(0, data->type->sign);
    }
    return expect_bits(column->bits[best]);
}

static double rounding_of(const struct cf_type *type)
{
    double u = ldexp(1, -type->mantissa - 1);
    return type->fp8 ? u + 0x1p-11 * (1 + u) : type->mantissa < 23 ? u + 0x1p-24 * (1 + u) : u;
}

/* How far `roundings` of them may lead from a true value, as a part of it. */
static long double drift(const struct cf_type *type, int roundings)
{
    return powl(1 + (long double)rounding_of(type), roundings) - 1 + 0x1p-60L;
}

static struct expectation expect_product(const struct cf_data *data, const struct column *column)
{
    long double product = 1;
    bool infinite = column->plus_infinities + column->minus_infinities > 0;
    for (int r = 0; r < data->nranks; r++) {
        product *= column->value[r];
    }
    if (column->nans > 0 || (infinite && column->zeros > 0)) {
        return not_a_number;
    }
    if (infinite || fabsl(product) > 2 * most(data->type)) {
        return expect_infinity(data->type, signbit(product));
    }
    if (data->family != CF_WIDE) {
        return expect_bits(encode(data->type, product));
    }
    return expect_near(product, drift(data->type, data->nranks - 1) * fabsl(product));
}

static int sum_roundings(const struct cf_data *data)
{
    return data->op == CF_SUM ? data->nranks - 1 : data->op == CF_AVG ? data->nranks + 1 : data->nranks;
}

/* Are all partial results of this call exact? Dividing by n is where n is a power of two. */
static bool is_exact(const struct cf_data *data)
{
    return data->family == CF_EXACT && (data->op != CF_AVG || (data->nranks & (data->nranks - 1)) == 0);
}

static struct expectation expect_sum(const struct cf_data *data, const struct column *column)
{
    const struct cf_type *type = data->type;
    bool plus = column->plus_infinities > 0, minus = column->minus_infinities > 0;
    long double sum = column->value[0], magnitude = fabsl(column->value[0]);
    if (column->nans > 0 || (plus && minus)) {
        return not_a_number;
    }
    if (plus || minus) {
        return expect_infinity(type, minus);
    }
    for (int r = 1; r < data->nranks; r++) {
        sum += column->value[r];
        magnitude += fabsl(column->value[r]);
    }
    if (data->op == CF_AVG) {
        sum /= data->nranks;
        magnitude /= data->nranks;
    }
    bool one_sign = fabsl(sum) == magnitude;
    /* Sums of whole numbers of least subnormals, as all values are, are exact up to there. */
    bool tiny = data->op == CF_SUM && magnitude <= times_power(1, least_exponent(type) + 1);
    if (column->zeros == data->nranks || tiny || is_exact(data)) {
        return expect_bits(encode(type, sum));
    }
    if (one_sign && magnitude > most(type) * 1.25L) {
        return expect_infinity(type, signbit(sum));
    }
    if (magnitude > most(type)) { /* partial results overflow or not, as the order has it */
        return anything;
    }
    long double underflow = data->op == CF_SUM ? 0 : (long double)data->nranks * least_subnormal(type) / 2;
    return expect_near(sum, drift(type, sum_roundings(data)) * magnitude + underflow);
}

/* A rank's factor times its element, rounded to the type. */
static long double scaled(const struct cf_data *data, const struct column *column, int r)
{
    const struct cf_type *type = data->type;
    long double element = decode(type, column->bits[r]), factor;
    if (!is_premul(data->op)) {
        return element;
    }
    factor = decode(type, column->scalar[r]);
    return type->mantissa > 23 ? (long double)((double)element * (double)factor)
                               : decode(type, encode(type, element * factor)); /* exact before it is rounded */
}

/* All ranks' values, each times `part`, combined in rank order. */
static void combine_in_order(const struct cf_data *data, const struct column *column, double part, double *wide_p,
                             float *narrow_p)
{
    for (int r = 0; r < data->nranks; r++) {
        double value = (double)scaled(data, column, r) * part;
        bool product = data->op == CF_PROD;
        *wide_p = r == 0 ? value : product ? *wide_p * value : *wide_p + value;
        *narrow_p = r == 0 ? (float)value : product ? *narrow_p * (float)value : *narrow_p + (float)value;
    }
}

/* onehop's documented result: in rank order, in fp32 or fp64, rounded once. An average whose sum is too large is taken
 * of eighths. */
static uint64_t result_in_order(const struct cf_data *data, const struct column *column)
{
    double wide = 0, wide_eighth = 0;
    float narrow = 0, narrow_eighth = 0;
    combine_in_order(data, column, 1, &wide, &narrow);
    if (data->op == CF_AVG) {
        combine_in_order(data, column, 0.125, &wide_eighth, &narrow_eighth);
        wide = isfinite(wide) ? wide / data->nranks : wide_eighth / (data->nranks * 0.125);
        narrow = isfinite(narrow) ? narrow / (float)data->nranks : narrow_eighth / ((float)data->nranks * 0.125f);
    }
    return encode(data->type, data->type->mantissa > 23 ? (long double)wide : (long double)narrow);
}

static struct expectation expect_float(const struct cf_data *data, const struct cf_element *element, bool tight)
{
    struct column column;
    struct expectation expected;
    read_column(data, element, &column);
    if (data->op == CF_MIN || data->op == CF_MAX) {
        return expect_extreme(data, &column);
    }
    expected = data->op == CF_PROD ? expect_product(data, &column) : expect_sum(data, &column);
    if (tight && expected.near) {
        expected.patterns = 1;
        expected.pattern[0] = result_in_order(data, &column);
    }
    return expected;
}

static bool is_nan(const struct cf_type *type, uint64_t bits)
{
    return isnan(decode(type, bits));
}

static bool meets(const struct cf_type *type, const struct expectation *expected, uint64_t got)
{
    bool right = !expected->nan || is_nan(type, got);
    if (expected->patterns > 0) {
        right = got == expected->pattern[0] || (expected->patterns > 1 && got == expected->pattern[1]);
    }
    return right && (!expected->near || fabsl(decode(type, got) - expected->value) <= expected->error); /* not a NaN */
}

static double to_double(const struct cf_type *type, uint64_t bits)
{
    return type->mantissa > 0 ? (double)decode(type, bits)
           : type->is_signed  ? (double)as_signed(type, bits)
                              : (double)bits;
}

static void explain(const struct cf_type *type, const struct expectation *expected, uint64_t got, char *why_p,
                    size_t bytes)
{
    FILE *why = fmemopen(why_p, bytes, "w");
    if (why == NULL) {
        snprintf(why_p, bytes, "wrong");
        return;
    }
    fprintf(why, "%#llx (%.17g), expected%s", (unsigned long long)got, to_double(type, got),
            expected->nan ? " a NaN" : "");
    for (int p = 0; p < expected->patterns; p++) {
        fprintf(why, "%s %#llx (%.17g)", p > 0 ? " or" : "", (unsigned long long)expected->pattern[p],
                to_double(type, expected->pattern[p]));
    }
    if (expected->near) {
        fprintf(why, "%s %.17g, off by %g at most", expected->patterns > 0 ? " (onehop's order) and" : "",
                (double)expected->value, (double)expected->error);
    }
    fclose(why);
}

bool cf_judge_moved(const struct cf_data *data, int world, size_t i, uint64_t got, char *why_p, size_t why_bytes)
{
    const struct expectation expected = expect_bits(cf_input(data, world, i));
    if (got == expected.pattern[0]) {
        return true;
    }
    explain(data->type, &expected, got, why_p, why_bytes);
    return false;
}

bool cf_judge(const struct cf_data *data, const int *world, size_t i, uint64_t got, bool tight, char *why_p,
              size_t why_bytes)
{
    struct cf_element element;
    for (int r = 0; r < data->nranks; r++) {
        element.bits[r] = cf_input(data, world[r], i);
        element.scalar[r] = is_premul(data->op) ? cf_scalar(data, world[r]) : 0;
    }
    return cf_judge_element(data, &element, got, tight, why_p, why_bytes);
}

bool cf_judge_element(const struct cf_data *data, const struct cf_element *element, uint64_t got, bool tight,
                      char *why_p, size_t why_bytes)
{
    struct expectation expected =
        data->type->mantissa == 0 ? expect_bits(integer_result(data, element)) : expect_float(data, element, tight);
    if (meets(data->type, &expected, got)) {
        return true;
    }
    explain(data->type, &expected, got, why_p, why_bytes);
    return false;
}
