/* SPDX-License-Identifier: MIT */
/*
 * t_kernels.c - the kernels themselves, on the CPU, without driver or plugin
 *
 * Ranks are threads with a staging memory each; a rank runs a list of calls one after the other, waiting for nothing
 * but its peers' data. Shown here is what the end-to-end tests cannot arrange: every change of algorithm, grid and
 * size from call to call, ranks and blocks running far apart, the wrap of epochs, stale flags that the sweep must
 * remove, an abort word, and that all algorithms give the same bits.
 *
 *   t_kernels [SEED [SECONDS]]
 *
 * SECONDS: only what shows the protocols, for the few kernels of test/protocol/kernels.cpp; ends at the first fault,
 * and when no rank ends a call for so long.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/abi.h"
#include "test/simnode/kernels.h"
#include "test/tap.h"

#define GUARD 64
#define PAGE 4096u

enum algorithm {
    ONESHOT_LL,
    TWOSHOT_LL,
    TWOSHOT_PUSH,
    ONESHOT_MARKER,
    TWOSHOT_MARKER,
    ALGORITHMS
};
static const char *const algorithm_names[] = {"oneshot_ll", "twoshot_ll", "twoshot_push", "oneshot_marker",
                                              "twoshot_marker"};

enum type {
    F32,
    F16,
    BF16,
    F64,
    E4M3,
    E5M2,
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    TYPES
};
static const struct {
    const char *name, *kernel;
    size_t bytes;
    int exponent, fraction; /* bits; 0: an integer */
    uint64_t sign;          /* of signed integers */
} types[TYPES] = {
    [F32] = {"f32", "f32", 4, 8, 23, 0},         [F16] = {"f16", "f16", 2, 5, 10, 0},
    [BF16] = {"bf16", "bf16", 2, 8, 7, 0},       [F64] = {"f64", "f64", 8, 11, 52, 0},
    [E4M3] = {"e4m3", "e4m3", 1, 4, 3, 0},       [E5M2] = {"e5m2", "e5m2", 1, 5, 2, 0},
    [I8] = {"i8", "i8", 1, 0, 0, 0x80},          [U8] = {"u8", "i8", 1, 0, 0, 0},
    [I32] = {"i32", "i32", 4, 0, 0, 0x80000000}, [U32] = {"u32", "i32", 4, 0, 0, 0},
    [I64] = {"i64", "i64", 8, 0, 0, 1ull << 63}, [U64] = {"u64", "i64", 8, 0, 0, 0},
};

static const char *const op_names[OH_OPS] = {"sum", "prod", "min", "max", "avg", "scaled_sum"};

#define ITEMS 5
#define TOLD_CALL 17 /* what kernels tell of a call; it means nothing to them */
#define TOLD_WHAT 0x20301

struct call {
    enum algorithm algorithm;
    enum type type;
    enum oh_kernel_op op;
    bool any;       /* by the kernel for any op, where there is one for this op alone */
    unsigned items; /* of a list: one-shot by the kernel for any op; they share the message out */
    uint64_t count;
    unsigned blocks;
    size_t send_offset[OH_MAX_RANKS], recv_offset[OH_MAX_RANKS]; /* elements */
    bool in_place;
    bool scalar_in_memory;
    int late_rank;   /* sleeps before its kernel; -1: none */
    bool concurrent; /* the blocks run at the same time, else one after the other */
    char *send[OH_MAX_RANKS], *recv[OH_MAX_RANKS], *input[OH_MAX_RANKS]; /* input: a copy of what was sent */
};

static bool is_float(enum type type)
{
    return types[type].exponent > 0;
}

static bool carries(enum algorithm algorithm, enum type type)
{
    bool flags = algorithm == ONESHOT_LL || algorithm == TWOSHOT_LL;
    return !flags || !is_float(type);
}

static bool has_sum_kernel(const struct call *call)
{
    return call->op == OH_OP_SUM && call->type <= BF16;
}

static bool is_list(const struct call *call)
{
    return (call->algorithm == ONESHOT_LL || call->algorithm == ONESHOT_MARKER) && (call->any || !has_sum_kernel(call));
}

struct node {
    unsigned ranks;
    char *staging[OH_MAX_RANKS];
    struct oh_signal signal;
};

static struct node node;
static int watch_seconds; /* 0: none, and all kernels */
static atomic_uint calls_ended, ranks_running;

static void *must(void *memory)
{
    if (!memory) {
        abort();
    }
    return memory;
}

static void start_node(unsigned ranks, uint32_t epoch)
{
    const uint32_t marker = OH_MARKER;
    node.ranks = ranks;
    node.signal = (struct oh_signal){0};
    for (unsigned r = 0; r < ranks; r++) {
        node.staging[r] = must(aligned_alloc(PAGE, (OH_STAGING_BYTES + PAGE - 1) / PAGE * PAGE));
        memset(node.staging[r], 0, OH_STAGING_BYTES);
        for (size_t at = OH_MARKER_OFFSET; at < OH_PUSH_OFFSET; at += sizeof marker) {
            memcpy(node.staging[r] + at, &marker, sizeof marker);
        }
        for (unsigned b = 0; b < OH_MAX_BLOCKS; b++) {
            memcpy(node.staging[r] + OH_EPOCH_OFFSET + b * 4, &epoch, sizeof epoch);
        }
    }
}

static void stop_node(void)
{
    for (unsigned r = 0; r < node.ranks; r++) {
        free(node.staging[r]);
    }
}

static void set_epochs(uint32_t epoch)
{
    for (unsigned r = 0; r < node.ranks; r++) {
        for (unsigned b = 0; b < OH_MAX_BLOCKS; b++) {
            memcpy(node.staging[r] + OH_EPOCH_OFFSET + b * 4, &epoch, sizeof epoch);
        }
    }
}

static char *sendbuff(const struct call *call, unsigned rank)
{
    return call->send[rank] + GUARD + call->send_offset[rank] * types[call->type].bytes;
}

static char *recvbuff(const struct call *call, unsigned rank)
{
    return call->in_place ? sendbuff(call, rank)
                          : call->recv[rank] + GUARD + call->recv_offset[rank] * types[call->type].bytes;
}

static size_t message_bytes(const struct call *call)
{
    return call->count * types[call->type].bytes;
}

/* One block of one rank's kernel. */
struct block_job {
    simnode_kernel_fn kernel;
    const void *args;
    unsigned block, blocks;
    pthread_t thread;
};

static void *run_block(void *user)
{
    struct block_job *job = user;
    job->kernel(job->args, job->block, job->blocks);
    return NULL;
}

/* Scalars by rank: powers of two, so that the product is exact in every type; of integers the numbers themselves. */
static uint64_t scalar_bits(enum type type, unsigned rank)
{
    uint64_t bits = 0;
    if (!is_float(type)) {
        return 3 + rank;
    }
    bits = (uint64_t)((1 << (types[type].exponent - 1)) - 1 - (int)(rank % 2)) << types[type].fraction;
    return rank % 3 == 2 ? bits | 1ull << (types[type].bytes * 8 - 1) : bits;
}

static struct oh_kernel_args base_args(const struct call *call, unsigned rank, const uint64_t *scalar)
{
    struct oh_kernel_args args = {.count = call->count,
                                  .abort_word = &node.signal.abort,
                                  .signal = &node.signal,
                                  .call = TOLD_CALL,
                                  .what = TOLD_WHAT,
                                  .rank = rank};
    for (unsigned j = 0; j < node.ranks; j++) {
        args.staging[j] = node.staging[(rank + j) % node.ranks];
    }
    args.sendbuff = sendbuff(call, rank);
    args.recvbuff = recvbuff(call, rank);
    args.nranks = node.ranks;
    args.op = call->op;
    args.operand = call->op == OH_OP_SCALED_SUM ? *scalar : types[call->type].sign;
    if (call->op == OH_OP_SCALED_SUM && call->scalar_in_memory) {
        args.scalar = scalar;
        args.operand = 0;
    }
    return args;
}

/* Shares the message out among the items, the last with what is left. */
static struct oh_kernel_list_args list_args(const struct call *call, const struct oh_kernel_args *base)
{
    struct oh_kernel_list_args list = {.base = *base};
    size_t size = types[call->type].bytes;
    uint64_t done = 0, words = 0, items = call->items > 0 ? call->items : 1;
    items = items > call->count ? call->count : items;
    for (uint64_t k = 0; k < items; k++) {
        uint64_t count = k + 1 == items ? call->count - done : call->count / items;
        list.item[k] = (struct oh_list_item){(const char *)base->sendbuff + done * size,
                                             (char *)base->recvbuff + done * size, count, words};
        done += count;
        words += (count * size + OH_WORD_BYTES - 1) / OH_WORD_BYTES;
    }
    list.calls = (uint32_t)items;
    list.words = (uint32_t)words;
    return list;
}

static simnode_kernel_fn kernel_of(const struct call *call)
{
    char name[64];
    if (has_sum_kernel(call) && !call->any) {
        snprintf(name, sizeof name, "oh_%s_sum_%s_n%u", algorithm_names[call->algorithm], types[call->type].kernel,
                 node.ranks);
    } else {
        static const char *const suffix[] = {"", "", "n2", "n3", "n4", "upto8", "upto8", "upto8", "n8"};
        snprintf(name, sizeof name, "oh_%s_any_%s_%s%s", algorithm_names[call->algorithm], types[call->type].kernel,
                 suffix[node.ranks], is_list(call) ? "_list" : "");
    }
    simnode_kernel_fn kernel = simnode_kernel_find(name, NULL);
    if (!kernel) {
        tap_note("no kernel %s", name);
        abort();
    }
    return kernel;
}

static void run_kernel(const struct call *call, unsigned rank)
{
    struct block_job job[OH_MAX_BLOCKS];
    uint64_t scalar = scalar_bits(call->type, rank);
    struct oh_kernel_args args = base_args(call, rank, &scalar);
    struct oh_kernel_list_args list = list_args(call, &args);
    simnode_kernel_fn kernel = kernel_of(call);

    for (unsigned b = 0; b < call->blocks; b++) {
        job[b] = (struct block_job){kernel, is_list(call) ? (void *)&list : &args, b, call->blocks, 0};
        if (!call->concurrent) {
            run_block(&job[b]);
        } else if (pthread_create(&job[b].thread, NULL, run_block, &job[b]) != 0) {
            abort();
        }
    }
    for (unsigned b = 0; call->concurrent && b < call->blocks; b++) {
        pthread_join(job[b].thread, NULL);
    }
}

struct rank_job {
    const struct call *calls;
    int count;
    unsigned rank;
};

static void *run_rank(void *user)
{
    const struct rank_job *job = user;
    for (int i = 0; i < job->count; i++) {
        if ((int)job->rank == job->calls[i].late_rank) {
            usleep(20000);
        }
        run_kernel(&job->calls[i], job->rank);
        atomic_fetch_add(&calls_ended, 1);
    }
    atomic_fetch_sub(&ranks_running, 1);
    return NULL;
}

#define WATCH_MICROSECONDS 10000

/* Ranks that wait for ever leave when the abort word is set, and their results are wrong. */
static void watch_ranks(void)
{
    unsigned seen = 0;
    for (long still = 0; atomic_load(&ranks_running) > 0; usleep(WATCH_MICROSECONDS)) {
        unsigned ended = atomic_load(&calls_ended);
        still = ended == seen ? still + 1 : 0;
        seen = ended;
        if (still * WATCH_MICROSECONDS > watch_seconds * 1000000L) {
            tap_note("no rank has ended a call for %d s", watch_seconds);
            __atomic_store_n(&node.signal.abort, 1, __ATOMIC_RELAXED);
        }
    }
}

static void run_calls(const struct call *calls, int count)
{
    pthread_t thread[OH_MAX_RANKS];
    struct rank_job job[OH_MAX_RANKS];
    atomic_store(&ranks_running, node.ranks);
    for (unsigned r = 0; r < node.ranks; r++) {
        job[r] = (struct rank_job){calls, count, r};
        if (pthread_create(&thread[r], NULL, run_rank, &job[r]) != 0) {
            abort();
        }
    }
    if (watch_seconds > 0) {
        watch_ranks();
    }
    for (unsigned r = 0; r < node.ranks; r++) {
        pthread_join(thread[r], NULL);
    }
}

/* Sleeps now and then, differently in every thread and every run of the same seed. */
static void hesitate(void)
{
    static atomic_uint turn;
    unsigned seed = atomic_fetch_add(&turn, 1) * 2654435761u;
    if (rand_r(&seed) % 4 == 0) {
        usleep((useconds_t)(rand_r(&seed) % (rand_r(&seed) % 8 ? 200 : 4000)));
    }
}

/* --- data and reference, kept apart from the kernels' own conversions ------------------------------------------- */

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

static bool is_nan(enum type type, const char *at)
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

static bool is_right(const struct call *call, uint64_t i, const char *result)
{
    return is_float(call->type) ? is_nearest(call->type, combine_floats(call, i), result)
                                : combine_integers(call, i) == bits_of(call->type, result);
}

/* Eight bytes of integers that come out as the marker, or as the escape, when they are sent. */
static uint64_t hard_integers(unsigned random)
{
    return ~(OH_KEY_LOW | (uint64_t)OH_KEY_HIGH << 32) ^ (random & 1);
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

static void prepare(struct call *call, unsigned *seed)
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

static void release(struct call *call)
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

/* NULL: right on all ranks; else what is wrong. */
static const char *check(const struct call *call)
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

/* Runs the list on all ranks, each at its own pace, and checks every call. */
static const char *run_and_check(struct call *calls, int count, unsigned *seed)
{
    const char *wrong = NULL;
    for (int i = 0; i < count; i++) {
        prepare(&calls[i], seed);
    }
    run_calls(calls, count);
    for (int i = 0; i < count; i++) {
        const char *here = check(&calls[i]);
        if (here && !wrong) {
            wrong = here;
            tap_note("call %d: %s %s %s any %d items %u count %llu blocks %u in_place %d: %s", i,
                     algorithm_names[calls[i].algorithm], op_names[calls[i].op], types[calls[i].type].name,
                     calls[i].any, calls[i].items, (unsigned long long)calls[i].count, calls[i].blocks,
                     calls[i].in_place, here);
        }
        release(&calls[i]);
    }
    return wrong;
}

/* --- tests ------------------------------------------------------------------------------------------------------ */

/* The largest random message: what a slot holds, or several rounds. */
static uint64_t most(enum algorithm algorithm, enum type type)
{
    static const uint64_t bytes[] = {
        [ONESHOT_LL] = 9000,
        [TWOSHOT_LL] = 20000,
        [TWOSHOT_PUSH] = 4 * OH_PUSH_ROUND_BYTES,
        [ONESHOT_MARKER] = OH_MARKER_SCATTER_BYTES / OH_MAX_RANKS,
        [TWOSHOT_MARKER] = 4 * OH_MARKER_SCATTER_BYTES,
    };
    return bytes[algorithm] / types[type].bytes;
}

static struct call random_call(unsigned *seed)
{
    static const enum type few[] = {F32, I32, U32};
    struct call call = {.late_rank = -1};
    call.type = watch_seconds > 0 ? few[rand_r(seed) % 3] : (enum type)(rand_r(seed) % TYPES);
    do {
        call.algorithm = (enum algorithm)(rand_r(seed) % ALGORITHMS);
    } while (!carries(call.algorithm, call.type));
    call.op = rand_r(seed) % 3 == 0 ? OH_OP_SUM : (enum oh_kernel_op)(rand_r(seed) % OH_OPS);
    call.any = rand_r(seed) % 2;
    if (watch_seconds > 0 && call.type == F32) {
        call.op = OH_OP_SUM;
        call.any = false;
    }
    call.items = 1 + (unsigned)rand_r(seed) % ITEMS;
    call.scalar_in_memory = rand_r(seed) % 2;
    uint64_t limit = rand_r(seed) % 3 == 0 ? 20 : most(call.algorithm, call.type);
    call.count = 1 + (uint64_t)rand_r(seed) % limit;
    call.blocks = 1 + (unsigned)rand_r(seed) % 12;
    call.in_place = rand_r(seed) % 2;
    call.concurrent = rand_r(seed) % 4 == 0;
    for (unsigned r = 0; r < OH_MAX_RANKS; r++) {
        call.send_offset[r] = (size_t)rand_r(seed) % 9;
        call.recv_offset[r] = (size_t)rand_r(seed) % 9;
    }
    return call;
}

#define LIST 60
#define SHORT_LIST 10 /* of test_protocols */

static int list_length(void)
{
    return watch_seconds > 0 ? SHORT_LIST : LIST;
}

static void test_random_calls(unsigned ranks, uint32_t epoch, unsigned seed)
{
    struct call calls[LIST];
    int count = list_length();
    start_node(ranks, epoch);
    for (int i = 0; i < count; i++) {
        calls[i] = random_call(&seed);
    }
    const char *wrong = run_and_check(calls, count, &seed);
    stop_node();
    tap_ok(!wrong, "n=%u: %d calls, algorithm, grid, type, size and alignment changing, from epoch %u", ranks, count,
           epoch);
}

/* The type that tests of one algorithm use. */
static enum type usual_type(enum algorithm algorithm)
{
    return carries(algorithm, F32) ? F32 : I32;
}

/* Messages of several rounds with a short last one, and blocks that run far apart. */
static void test_rounds(enum algorithm algorithm, unsigned ranks, unsigned seed)
{
    struct call calls[LIST];
    int count = list_length();
    unsigned rounds = algorithm == ONESHOT_LL || algorithm == TWOSHOT_LL ? 1 : 3;
    start_node(ranks, 1);
    for (int i = 0; i < count; i++) {
        calls[i] = (struct call){.algorithm = algorithm,
                                 .type = usual_type(algorithm),
                                 .blocks = 3 + i % 4,
                                 .late_rank = -1,
                                 .concurrent = true};
        calls[i].count = ((1u + i % rounds) * 12288u + 16u * (unsigned)(rand_r(&seed) % 300)) / 4;
    }
    const char *wrong = run_and_check(calls, count, &seed);
    stop_node();
    tap_ok(!wrong, "n=%u: %s in several rounds, blocks far apart", ranks, algorithm_names[algorithm]);
}

/*
 * A flag left by an early, large call and not written since must not be taken for new when the epochs come round to
 * the same number, 2^31 rounds later. The rounds between are skipped by setting the epoch words; the sweeps at the
 * multiples of OH_SWEEP_PERIOD are run.
 */
static void test_sweep(enum algorithm algorithm, unsigned seed)
{
    struct call large = {
        .algorithm = algorithm, .type = usual_type(algorithm), .count = 3000, .blocks = 9, .late_rank = -1};
    start_node(3, 99);
    const char *wrong = run_and_check(&large, 1, &seed); /* epoch 100 */
    for (uint32_t half = 1; half <= 2 && !wrong; half++) {
        set_epochs((half * OH_SWEEP_PERIOD - 2) & OH_EPOCH_MASK);
        for (int i = 0; i < 5 && !wrong; i++) {
            enum algorithm other = (enum algorithm)(i % ALGORITHMS);
            struct call small = {
                .algorithm = other, .type = usual_type(other), .count = 5, .blocks = 2, .late_rank = -1};
            wrong = run_and_check(&small, 1, &seed);
        }
    }
    set_epochs(99);
    large.late_rank = 1; /* the others find its old words, if they still stand */
    wrong = wrong ? wrong : run_and_check(&large, 1, &seed);
    stop_node();
    tap_ok(!wrong, "%s: stale flags are swept before epochs repeat", algorithm_names[algorithm]);
}

/* Aborts once a kernel has told that it waits, or never will. */
static void *abort_waiting(void *unused)
{
    (void)unused;
    for (int i = 0; i < 10000 && __atomic_load_n(&node.signal.looks, __ATOMIC_RELAXED) == 0; i++) {
        usleep(1000);
    }
    __atomic_store_n(&node.signal.abort, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* A peer that never comes: the others leave once the abort word is set. */
static void test_abort(enum algorithm algorithm)
{
    struct call call = {
        .algorithm = algorithm, .type = usual_type(algorithm), .count = 1000, .blocks = 3, .late_rank = -1};
    struct rank_job job = {&call, 1, 0};
    pthread_t thread, aborter;
    struct timespec limit;
    unsigned seed = 1;
    start_node(4, 1);
    prepare(&call, &seed);
    pthread_create(&aborter, NULL, abort_waiting, NULL);
    pthread_create(&thread, NULL, run_rank, &job);
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 20;
    bool left = pthread_timedjoin_np(thread, NULL, &limit) == 0;
    pthread_join(aborter, NULL);
    tap_ok(left, "%s: leaves when the abort word is set", algorithm_names[algorithm]);
    const struct oh_signal *signal = &node.signal;
    tap_ok(signal->looks > 0 && signal->epoch == 1 && signal->call == TOLD_CALL && signal->what == TOLD_WHAT &&
               signal->count == call.count,
           "%s: tells in which call it waits", algorithm_names[algorithm]);
    if (left) {
        release(&call);
        stop_node();
    }
}

/* One call; its result is compared with, or becomes, *first. */
static bool same_bits(struct call *call, unsigned seed, char **first)
{
    size_t bytes = message_bytes(call);
    bool same = true;
    prepare(call, &seed);
    run_calls(call, 1);
    for (unsigned r = 0; r < node.ranks; r++) {
        if (!*first) {
            *first = must(malloc(bytes));
            memcpy(*first, recvbuff(call, r), bytes);
        }
        same &= memcmp(*first, recvbuff(call, r), bytes) == 0;
    }
    release(call);
    return same;
}

/* The same input through every algorithm and both kinds of kernel: the same bits. */
static void test_same_bits(unsigned ranks, unsigned seed)
{
    bool same = true;
    start_node(ranks, 1);
    for (int which = 0; which < TYPES * OH_OPS; which++) {
        struct call call = {.type = (enum type)(which % TYPES), .op = (enum oh_kernel_op)(which / TYPES)};
        char *first = NULL;
        call.count = 301;
        call.blocks = 4;
        call.late_rank = -1;
        for (int a = 0; a < 2 * ALGORITHMS; a++) {
            call.algorithm = (enum algorithm)(a / 2);
            call.any = a % 2;
            call.items = 3;
            if (carries(call.algorithm, call.type)) {
                same &= same_bits(&call, seed, &first);
            }
        }
        free(first);
    }
    stop_node();
    tap_ok(same, "n=%u: all algorithms, kernels and ranks give the same bits", ranks);
}

static void test_negative_zero(enum algorithm algorithm)
{
    struct call call = {
        .algorithm = algorithm, .type = usual_type(algorithm), .count = 3, .blocks = 1, .late_rank = -1};
    uint32_t negative_zero = 0x80000000u, got[3];
    unsigned seed = 1;
    start_node(4, 1);
    prepare(&call, &seed);
    for (unsigned r = 0; r < 4; r++) {
        for (int i = 0; i < 3; i++) {
            memcpy(sendbuff(&call, r) + 4 * i, &negative_zero, 4);
        }
    }
    run_calls(&call, 1);
    memcpy(got, recvbuff(&call, 2), sizeof got);
    release(&call);
    tap_ok(got[0] == negative_zero && got[2] == negative_zero, "%s: a sum of negative zeros is negative zero",
           algorithm_names[algorithm]);
    stop_node();
}

/* A value that looks like the marker must neither stall its reader nor come out as a number. */
static void test_marker_values(enum algorithm algorithm, enum type type)
{
    struct call call = {.algorithm = algorithm, .type = type, .count = 300, .blocks = 3, .late_rank = -1};
    const uint64_t marker = OH_MARKER | (uint64_t)OH_MARKER << 32;
    bool right = true;
    unsigned seed = 1;
    start_node(3, 1);
    prepare(&call, &seed);
    for (unsigned r = 0; r < 3; r++) {
        for (uint64_t i = r; i < 300; i += 7 + r) { /* alone, beside another, and in all ranks at once */
            memcpy(sendbuff(&call, r) + i * types[type].bytes, &marker, types[type].bytes);
        }
        memcpy(call.input[r], sendbuff(&call, r), message_bytes(&call));
    }
    run_calls(&call, 1);
    for (unsigned r = 0; r < 3; r++) {
        for (uint64_t i = 0; i < 300; i++) {
            bool nan = i % 7 == 0 || (i >= 1 && (i - 1) % 8 == 0) || (i >= 2 && (i - 2) % 9 == 0);
            const char *result = recvbuff(&call, r) + i * types[type].bytes;
            right &= is_float(type) ? is_nan(type, result) == nan : is_right(&call, i, result);
        }
    }
    release(&call);
    stop_node();
    tap_ok(right, "%s %s: inputs that hold the marker are taken for what they are", algorithm_names[algorithm],
           types[type].name);
}

/* Half of a 64-bit number may look like the marker; that is a number like any other. */
static void test_half_markers(enum algorithm algorithm)
{
    struct call call = {.algorithm = algorithm, .type = F64, .count = 40, .blocks = 2, .late_rank = -1};
    unsigned seed = 1;
    start_node(3, 1);
    prepare(&call, &seed);
    for (unsigned r = 0; r < 3; r++) {
        for (uint64_t i = 0; i < 40; i += 2) {
            memset(sendbuff(&call, r) + i * 8, 0xff, 4);
        }
        memcpy(call.input[r], sendbuff(&call, r), message_bytes(&call));
    }
    run_calls(&call, 1);
    const char *wrong = check(&call);
    release(&call);
    stop_node();
    tap_ok(!wrong, "%s: fp64 whose lower half looks like the marker", algorithm_names[algorithm]);
}

/* NaN beside numbers: MIN and MAX take the number, the others NaN. */
static void test_nan_ops(enum type type)
{
    bool right = true;
    for (int op = 0; op < OH_OPS; op++) {
        struct call call = {.algorithm = ONESHOT_MARKER,
                            .type = type,
                            .op = (enum oh_kernel_op)op,
                            .any = true,
                            .items = 1,
                            .count = 9,
                            .blocks = 1,
                            .late_rank = -1};
        const uint64_t nan = 0x7fffffffffffffffull;
        unsigned seed = 1;
        start_node(3, 1);
        prepare(&call, &seed);
        memcpy(sendbuff(&call, 1) + 4 * types[type].bytes, (const char *)&nan + 8 - types[type].bytes,
               types[type].bytes);
        memcpy(call.input[1], sendbuff(&call, 1), message_bytes(&call));
        run_calls(&call, 1);
        for (uint64_t i = 0; i < 9; i++) {
            bool expected = i == 4 && op != OH_OP_MIN && op != OH_OP_MAX;
            right &= is_nan(type, recvbuff(&call, 2) + i * types[type].bytes) == expected;
        }
        release(&call);
        stop_node();
    }
    tap_ok(right, "%s: a NaN beside numbers", types[type].name);
}

/* Epochs with a sweep, again and again, in LL calls that fill the slots, so that they need what is cleared last. */
static void test_calls_at_sweep(enum algorithm algorithm, unsigned seed)
{
    uint64_t words = OH_LL_SLOT_BYTES / OH_WORD_BYTES, per_rank = algorithm == ONESHOT_LL ? words / 3 : words / 6 * 3;
    const char *wrong = NULL;
    for (int round = 0; round < 4 && !wrong; round++) {
        struct call calls[3];
        start_node(3, OH_SWEEP_PERIOD - 1);
        for (int i = 0; i < 3; i++) {
            calls[i] = (struct call){.algorithm = algorithm,
                                     .type = I32,
                                     .count = per_rank * OH_LL_WORD_PAYLOAD / 4,
                                     .blocks = 2,
                                     .late_rank = -1,
                                     .concurrent = true};
        }
        wrong = run_and_check(calls, 3, &seed);
        stop_node();
    }
    tap_ok(!wrong, "%s: calls at a sweep", algorithm_names[algorithm]);
}

/* The end, if something was wrong. */
static void go_on(void)
{
    if (tap_failures > 0) {
        exit(tap_done());
    }
}

static int test_protocols(unsigned seed)
{
    for (unsigned ranks = 2; ranks <= 3; ranks++) {
        for (enum algorithm a = ONESHOT_LL; a < ALGORITHMS; a++) {
            if (a != ONESHOT_MARKER) { /* its messages are smaller */
                test_rounds(a, ranks, seed + 60 + ranks);
                go_on();
            }
        }
        test_random_calls(ranks, 1, seed + ranks);
        go_on();
    }
    for (enum algorithm a = ONESHOT_LL; a <= TWOSHOT_PUSH; a++) {
        test_sweep(a, seed + 70);
        go_on();
        if (a != TWOSHOT_PUSH) {
            test_calls_at_sweep(a, seed + 80);
            go_on();
        }
    }
    for (enum algorithm a = ONESHOT_MARKER; a < ALGORITHMS; a++) {
        test_marker_values(a, F32);
        go_on();
        test_marker_values(a, I32);
        go_on();
    }
    test_random_calls(3, OH_SWEEP_PERIOD - 4, seed + 51);
    return tap_done();
}

int main(int argc, char **argv)
{
    unsigned seed = argc > 1 ? (unsigned)atoi(argv[1]) : (unsigned)time(NULL);
    watch_seconds = argc > 2 ? atoi(argv[2]) : 0;
    tap_note("seed %u", seed);
    simnode_hesitate = hesitate;
    if (watch_seconds > 0) {
        return test_protocols(seed);
    }
    for (unsigned ranks = 2; ranks <= OH_MAX_RANKS; ranks++) {
        test_random_calls(ranks, 1, seed + ranks);
        test_same_bits(ranks, seed + 100 + ranks);
    }
    test_random_calls(4, OH_EPOCH_MASK - 20, seed + 50);
    test_random_calls(3, OH_SWEEP_PERIOD - 20, seed + 51);
    for (unsigned ranks = 2; ranks <= 4; ranks++) {
        test_rounds(TWOSHOT_PUSH, ranks, seed + 60 + ranks);
        test_rounds(TWOSHOT_MARKER, ranks, seed + 65 + ranks);
    }
    for (int a = 0; a < ALGORITHMS; a++) {
        if (a != ONESHOT_MARKER && a != TWOSHOT_MARKER) { /* those have no flags */
            test_sweep((enum algorithm)a, seed + 70);
        }
        test_abort((enum algorithm)a);
    }
    for (int a = 0; a < ALGORITHMS; a++) {
        for (int type = 0; type < TYPES; type++) {
            if (carries((enum algorithm)a, (enum type)type)) {
                test_marker_values((enum algorithm)a, (enum type)type);
            }
        }
        if (carries((enum algorithm)a, F64)) {
            test_half_markers((enum algorithm)a);
            test_negative_zero((enum algorithm)a);
        }
    }
    for (int type = 0; type < TYPES; type++) {
        if (is_float((enum type)type)) {
            test_nan_ops((enum type)type);
        }
    }
    return tap_done();
}
