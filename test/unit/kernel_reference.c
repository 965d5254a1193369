/* SPDX-License-Identifier: MIT */
/*
 * kernel_reference.c - inputs of calls, and what must come out, apart from the kernels' own conversions
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "test/tap.h"
#include "test/unit/kernel_node.h"

static const char *const op_names[OH_OPS] = {"sum", "prod", "min", "max", "avg", "scaled_sum"};

static uint64_t bits_of(enum type type, const char *at)
{
    uint64_t bits = 0;
    memcpy(&bits, at, types[type].bytes);
    return bits;
}

/* A finite floating-point number; exact, since a double holds all of these types. */
static double decode_bits(enum type type, uint64_t bits)
{
    int fraction_bits = types[type].fraction, exponent_bits = types[type].exponent;
    uint64_t fraction = bits & ((1ull << fraction_bits) - 1);
    int exponent = (int)(bits >> fraction_bits & ((1u << exponent_bits) - 1));
    double value = exponent ? (double)(fraction | 1ull << fraction_bits) : (double)fraction;
    value = ldexp(value, (exponent ? exponent : 1) - ((1 << (exponent_bits - 1)) - 1) - fraction_bits);
    return bits >> (fraction_bits + exponent_bits) & 1 ? -value : value;
}

static double decode(enum type type, const char *at)
{
    return decode_bits(type, bits_of(type, at));
}

bool is_nan(enum type type, const char *at)
{
    uint64_t magnitude = bits_of(type, at) & ((1ull << (types[type].bytes * 8 - 1)) - 1);
    uint64_t infinity = ((1ull << types[type].exponent) - 1) << types[type].fraction;
    return type == E4M3 ? magnitude == 0x7f : magnitude > infinity;
}

/* Is a result the value of the type that is nearest to `value`, ties to even? Tried among its neighbours. */
static bool is_nearest(enum type type, double value, const char *result)
{
    uint64_t bits = bits_of(type, result);
    double best = decode_bits(type, bits), distance = fabs(best - value);
    for (int step = -1; step <= 1; step += 2) {
        double its = fabs(decode_bits(type, bits + (uint64_t)step) - value);
        if (its < distance || (its == distance && distance > 0 && (bits & 1))) {
            return false;
        }
    }
    return true;
}

/* Numbers of mixed sign and magnitude, so that order and rounding show; products stay near one. Any integer. */
static void encode_random(enum type type, enum oh_kernel_op op, unsigned *seed, char *at)
{
    uint64_t random = (uint64_t)rand_r(seed) << 40 ^ (uint64_t)rand_r(seed) << 20 ^ (uint64_t)rand_r(seed);
    int fraction_bits = types[type].fraction, exponent_bits = types[type].exponent;
    if (is_float(type)) {
        int spread = op == OH_OP_PROD ? 2 : 6;
        int exponent = (1 << (exponent_bits - 1)) - 1 - spread / 2 + rand_r(seed) % spread;
        random &= (1ull << fraction_bits) - 1;
        random |= (uint64_t)exponent << fraction_bits | (uint64_t)(rand_r(seed) & 1) << (fraction_bits + exponent_bits);
    }
    memcpy(at, &random, types[type].bytes);
}

/* The reference for floating-point types: in fp32 (fp64 in itself), in rank order. */
static double combine_floats(const struct call *call, uint64_t i)
{
    size_t size = types[call->type].bytes;
    double result = 0;
    for (unsigned r = 0; r < node.ranks; r++) {
        uint64_t scalar = scalar_bits(call->type, r);
        double next = decode(call->type, call->input[r] + i * size);
        next *= call->op == OH_OP_SCALED_SUM ? decode_bits(call->type, scalar) : 1;
        double combined = call->op == OH_OP_PROD  ? result * next
                          : call->op == OH_OP_MIN ? fmin(result, next)
                          : call->op == OH_OP_MAX ? fmax(result, next)
                                                  : result + next;
        result = r == 0 ? next : call->type == F64 ? combined : (double)(float)combined;
    }
    if (call->op == OH_OP_AVG) {
        result = call->type == F64 ? result / node.ranks : (double)((float)result / (float)node.ranks);
    }
    return result;
}

static int64_t as_signed(enum type type, uint64_t bits)
{
    int unused = 64 - 8 * (int)types[type].bytes;
    return (int64_t)(bits << unused) >> unused;
}

static bool integer_less(enum type type, uint64_t a, uint64_t b)
{
    return types[type].sign ? as_signed(type, a) < as_signed(type, b) : a < b;
}

/* The reference for integers, in the low bits of what is returned. */
static uint64_t combine_integers(const struct call *call, uint64_t i)
{
    size_t size = types[call->type].bytes;
    uint64_t mask = ~0ull >> (64 - 8 * size), result = 0;
    for (unsigned r = 0; r < node.ranks; r++) {
        uint64_t next = bits_of(call->type, call->input[r] + i * size);
        next *= call->op == OH_OP_SCALED_SUM ? scalar_bits(call->type, r) : 1;
        bool less = integer_less(call->type, next, result);
        uint64_t combined = call->op == OH_OP_PROD  ? result * next
                            : call->op == OH_OP_MIN ? (less ? next : result)
                            : call->op == OH_OP_MAX ? (less ? result : next)
                                                    : result + next;
        result = (r == 0 ? next : combined) & mask;
    }
    if (call->op == OH_OP_AVG) {
        result = types[call->type].sign ? (uint64_t)(as_signed(call->type, result) / (int64_t)node.ranks)
                                        : result / node.ranks;
    }
    return result & mask;
}

bool is_right(const struct call *call, uint64_t i, const char *result)
{
    return is_float(call->type) ? is_nearest(call->type, combine_floats(call, i), result)
                                : combine_integers(call, i) == bits_of(call->type, result);
}

/* Eight bytes of integers that come out as the marker, or as the escape, when they are sent. */
static uint64_t hard_integers(unsigned random)
{
    return ~(OH_XOR_LOW | (uint64_t)OH_XOR_HIGH << 32) ^ (random & 1);
}

/* Puts such bytes here and there. */
static void harden(const struct call *call, char *buffer, unsigned seed)
{
    for (size_t at = 0; at + 8 <= message_bytes(call); at += 8) {
        uint64_t hard = hard_integers((unsigned)rand_r(&seed));
        if (rand_r(&seed) % 4 == 0) {
            memcpy(buffer + at, &hard, 8);
        }
    }
}

void prepare_call(struct call *call, unsigned *seed)
{
    unsigned hard_seed = (unsigned)rand_r(seed);
    size_t bytes = message_bytes(call);
    size_t room = bytes + 2 * GUARD + 16 * types[call->type].bytes;
    for (unsigned r = 0; r < node.ranks; r++) {
        call->send[r] = must(malloc(room));
        call->recv[r] = must(malloc(room));
        call->input[r] = must(malloc(bytes));
        memset(call->send[r], 0xA5, room);
        memset(call->recv[r], 0xA5, room);
        for (uint64_t i = 0; i < call->count; i++) {
            encode_random(call->type, call->op, seed, sendbuff(call, r) + i * types[call->type].bytes);
        }
        if (!is_float(call->type) && hard_seed % 2 == 0) { /* often in all ranks alike, so that results hold them */
            harden(call, sendbuff(call, r), hard_seed + (hard_seed % 3 == 0 ? r : 0));
        }
        memcpy(call->input[r], sendbuff(call, r), bytes);
    }
}

void release_call(struct call *call)
{
    for (unsigned r = 0; r < node.ranks; r++) {
        free(call->send[r]);
        free(call->recv[r]);
        free(call->input[r]);
    }
}

static bool guards_hold(const char *start, size_t bytes)
{
    for (size_t i = 1; i <= GUARD; i++) {
        if ((unsigned char)start[-(ptrdiff_t)i] != 0xA5 || (unsigned char)start[bytes + i - 1] != 0xA5) {
            return false;
        }
    }
    return true;
}

const char *check_call(const struct call *call)
{
    size_t size = types[call->type].bytes;
    for (unsigned r = 0; r < node.ranks; r++) {
        const char *result = recvbuff(call, r);
        for (uint64_t i = 0; i < call->count; i++) {
            if (!is_right(call, i, result + i * size)) {
                return "a wrong value";
            }
        }
        if (!guards_hold(result, message_bytes(call))) {
            return "a write outside the message";
        }
    }
    return NULL;
}

const char *run_and_check(struct call *calls, int count, unsigned *seed)
{
    const char *wrong = NULL;
    for (int i = 0; i < count; i++) {
        prepare_call(&calls[i], seed);
    }
    run_calls(calls, count);
    for (int i = 0; i < count; i++) {
        const char *here = check_call(&calls[i]);
        if (here && !wrong) {
            wrong = here;
            tap_note("call %d: %s %s %s any %d items %u count %llu blocks %u in_place %d: %s", i,
                     algorithm_names[calls[i].algorithm], op_names[calls[i].op], types[calls[i].type].name,
                     calls[i].any, calls[i].items, (unsigned long long)calls[i].count, calls[i].blocks,
                     calls[i].in_place, here);
        }
        release_call(&calls[i]);
    }
    return wrong;
}
