/* SPDX-License-Identifier: MIT */
/*
 * t_kernels.c - the kernels themselves, on the CPU, without driver or plugin
 *
 * Ranks are threads with a staging memory each; a rank runs a list of calls one after the other, waiting for nothing
 * but its peers' data. Shown here is what the end-to-end tests cannot arrange: every change of algorithm, grid and
 * size from call to call, ranks and blocks running far apart, the wrap of epochs, stale flags that the sweep must
 * remove, an abort word, and that all algorithms give the same bits.
 */
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

enum algorithm {
    ONESHOT_LL,
    TWOSHOT_LL,
    TWOSHOT_PUSH,
    ONESHOT_MARKER,
    TWOSHOT_MARKER,
    ALGORITHMS
};
enum type {
    F32,
    F16,
    BF16,
    TYPES
};
static const char *const algorithm_names[] = {"oneshot_ll", "twoshot_ll", "twoshot_push", "oneshot_marker",
                                              "twoshot_marker"};
static const char *const type_names[] = {"f32", "f16", "bf16"};
static const size_t type_bytes[] = {4, 2, 2};

struct call {
    enum algorithm algorithm;
    enum type type;
    uint64_t count;
    unsigned blocks;
    size_t send_offset[OH_MAX_RANKS], recv_offset[OH_MAX_RANKS]; /* elements */
    bool in_place;
    int late_rank;   /* sleeps before its kernel; -1: none */
    bool concurrent; /* the blocks run at the same time, else one after the other */
    char *send[OH_MAX_RANKS], *recv[OH_MAX_RANKS], *input[OH_MAX_RANKS]; /* input: a copy of what was sent */
};

struct node {
    unsigned ranks;
    char *staging[OH_MAX_RANKS];
    uint32_t abort_word;
};

static struct node node;

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
    node.abort_word = 0;
    for (unsigned r = 0; r < ranks; r++) {
        node.staging[r] = must(aligned_alloc(4096, OH_STAGING_BYTES));
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
    return call->send[rank] + GUARD + call->send_offset[rank] * type_bytes[call->type];
}

static char *recvbuff(const struct call *call, unsigned rank)
{
    return call->in_place ? sendbuff(call, rank)
                          : call->recv[rank] + GUARD + call->recv_offset[rank] * type_bytes[call->type];
}

static size_t message_bytes(const struct call *call)
{
    return call->count * type_bytes[call->type];
}

/* One block of one rank's kernel. */
struct block_job {
    simnode_kernel_fn kernel;
    struct oh_kernel_args args;
    unsigned block, blocks;
    pthread_t thread;
};

static void *run_block(void *user)
{
    struct block_job *job = user;
    job->kernel(&job->args, job->block, job->blocks);
    return NULL;
}

static void run_kernel(const struct call *call, unsigned rank)
{
    struct block_job job[OH_MAX_BLOCKS];
    struct oh_kernel_args args = {.count = call->count, .abort_word = &node.abort_word, .rank = rank};
    char name[64];

    for (unsigned j = 0; j < node.ranks; j++) {
        args.staging[j] = node.staging[(rank + j) % node.ranks];
    }
    args.sendbuff = sendbuff(call, rank);
    args.recvbuff = recvbuff(call, rank);
    snprintf(name, sizeof name, "oh_%s_sum_%s_n%u", algorithm_names[call->algorithm], type_names[call->type],
             node.ranks);
    for (unsigned b = 0; b < call->blocks; b++) {
        job[b] = (struct block_job){simnode_kernel_find(name), args, b, call->blocks, 0};
        if (!job[b].kernel) {
            abort();
        }
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
    }
    return NULL;
}

static void run_calls(const struct call *calls, int count)
{
    pthread_t thread[OH_MAX_RANKS];
    struct rank_job job[OH_MAX_RANKS];
    for (unsigned r = 0; r < node.ranks; r++) {
        job[r] = (struct rank_job){calls, count, r};
        if (pthread_create(&thread[r], NULL, run_rank, &job[r]) != 0) {
            abort();
        }
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

static float decode(enum type type, const char *at)
{
    uint32_t bits = 0;
    float value;
    memcpy(&bits, at, type_bytes[type]);
    if (type == F16) {
        uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
        float scale = exponent ? (float)(1024 + fraction) : (float)fraction;
        int shift = (int)(exponent ? exponent : 1) - 25;
        value = exponent == 31 ? 0 : scale;
        for (; shift > 0; shift--) {
            value *= 2;
        }
        for (; shift < 0; shift++) {
            value /= 2;
        }
        return bits & 0x8000 ? -value : value;
    }
    bits <<= type == BF16 ? 16 : 0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static bool is_nan(enum type type, const char *at)
{
    uint32_t bits = 0;
    memcpy(&bits, at, type_bytes[type]);
    return type == F32   ? (bits & 0x7fffffff) > 0x7f800000
           : type == F16 ? (bits & 0x7fff) > 0x7c00
                         : (bits & 0x7fff) > 0x7f80;
}

/* The value of the type that is nearest to `sum`, ties to even: tried among the neighbours of the result. */
static bool is_nearest(enum type type, float sum, const char *result)
{
    if (type == F32) {
        return memcmp(&sum, result, sizeof sum) == 0;
    }
    uint16_t bits, near[3];
    memcpy(&bits, result, sizeof bits);
    near[0] = bits;
    near[1] = (uint16_t)(bits + 1);
    near[2] = (uint16_t)(bits - 1);
    float best = decode(type, result);
    float distance = best > sum ? best - sum : sum - best;
    for (int i = 1; i < 3; i++) {
        float other = decode(type, (const char *)&near[i]);
        float its = other > sum ? other - sum : sum - other;
        if (its < distance || (its == distance && other != best && (bits & 1))) {
            return false;
        }
    }
    return true;
}

static void encode_random(enum type type, unsigned *seed, char *at)
{
    /* Finite values of mixed magnitude and sign, so that order and rounding show. */
    float value = (float)(rand_r(seed) % 4001 - 2000) / (float)(1 << (rand_r(seed) % 9));
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (type == F32) {
        memcpy(at, &bits, 4);
    } else if (type == BF16) {
        bits >>= 16;
        memcpy(at, &bits, 2);
    } else {
        uint16_t half = (uint16_t)((rand_r(seed) & 0x8000) | (uint32_t)(rand_r(seed) % 0x5800));
        memcpy(at, &half, 2);
    }
}

static void prepare(struct call *call, unsigned *seed)
{
    size_t bytes = message_bytes(call);
    size_t room = bytes + 2 * GUARD + 16 * type_bytes[call->type];
    for (unsigned r = 0; r < node.ranks; r++) {
        call->send[r] = must(malloc(room));
        call->recv[r] = must(malloc(room));
        call->input[r] = must(malloc(bytes));
        memset(call->send[r], 0xA5, room);
        memset(call->recv[r], 0xA5, room);
        for (uint64_t i = 0; i < call->count; i++) {
            encode_random(call->type, seed, sendbuff(call, r) + i * type_bytes[call->type]);
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
    size_t size = type_bytes[call->type];
    for (unsigned r = 0; r < node.ranks; r++) {
        const char *result = recvbuff(call, r);
        for (uint64_t i = 0; i < call->count; i++) {
            float sum = decode(call->type, call->input[0] + i * size);
            for (unsigned s = 1; s < node.ranks; s++) {
                sum += decode(call->type, call->input[s] + i * size);
            }
            if (!is_nearest(call->type, sum, result + i * size)) {
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
            tap_note("call %d: %s %s count %llu blocks %u in_place %d: %s", i, algorithm_names[calls[i].algorithm],
                     type_names[calls[i].type], (unsigned long long)calls[i].count, calls[i].blocks, calls[i].in_place,
                     here);
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
    return bytes[algorithm] / type_bytes[type];
}

static struct call random_call(unsigned *seed)
{
    struct call call = {.late_rank = -1};
    call.algorithm = (enum algorithm)(rand_r(seed) % ALGORITHMS);
    call.type = (enum type)(rand_r(seed) % TYPES);
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

static void test_random_calls(unsigned ranks, uint32_t epoch, unsigned seed)
{
    struct call calls[LIST];
    start_node(ranks, epoch);
    for (int i = 0; i < LIST; i++) {
        calls[i] = random_call(&seed);
    }
    const char *wrong = run_and_check(calls, LIST, &seed);
    stop_node();
    tap_ok(!wrong, "n=%u: %d calls, algorithm, grid, type, size and alignment changing, from epoch %u", ranks, LIST,
           epoch);
}

/* Messages of several rounds with a short last one, and blocks that run far apart. */
static void test_rounds(enum algorithm algorithm, unsigned ranks, unsigned seed)
{
    struct call calls[LIST];
    start_node(ranks, 1);
    for (int i = 0; i < LIST; i++) {
        calls[i] = (struct call){
            .algorithm = algorithm, .type = F32, .blocks = 3 + i % 4, .late_rank = -1, .concurrent = true};
        calls[i].count = ((1u + i % 3) * 12288u + 16u * (unsigned)(rand_r(&seed) % 300)) / 4;
    }
    const char *wrong = run_and_check(calls, LIST, &seed);
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
    struct call large = {.algorithm = algorithm, .type = F32, .count = 3000, .blocks = 9, .late_rank = -1};
    start_node(3, 99);
    const char *wrong = run_and_check(&large, 1, &seed); /* epoch 100 */
    for (uint32_t half = 1; half <= 2 && !wrong; half++) {
        set_epochs((half * OH_SWEEP_PERIOD - 2) & OH_EPOCH_MASK);
        for (int i = 0; i < 5 && !wrong; i++) {
            struct call small = {
                .algorithm = (enum algorithm)(i % ALGORITHMS), .type = F32, .count = 5, .blocks = 2, .late_rank = -1};
            wrong = run_and_check(&small, 1, &seed);
        }
    }
    set_epochs(99);
    large.late_rank = 1; /* the others find its old words, if they still stand */
    wrong = wrong ? wrong : run_and_check(&large, 1, &seed);
    stop_node();
    tap_ok(!wrong, "%s: stale flags are swept before epochs repeat", algorithm_names[algorithm]);
}

static void *raise_abort_word(void *unused)
{
    (void)unused;
    usleep(30000);
    __atomic_store_n(&node.abort_word, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* A peer that never comes: the others leave once the abort word is set. */
static void test_abort(enum algorithm algorithm)
{
    struct call call = {.algorithm = algorithm, .type = BF16, .count = 1000, .blocks = 3, .late_rank = -1};
    struct rank_job job = {&call, 1, 0};
    pthread_t thread, aborter;
    struct timespec limit;
    unsigned seed = 1;
    start_node(4, 1);
    prepare(&call, &seed);
    pthread_create(&aborter, NULL, raise_abort_word, NULL);
    pthread_create(&thread, NULL, run_rank, &job);
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 20;
    bool left = pthread_timedjoin_np(thread, NULL, &limit) == 0;
    pthread_join(aborter, NULL);
    tap_ok(left, "%s: leaves when the abort word is set", algorithm_names[algorithm]);
    if (left) {
        release(&call);
        stop_node();
    }
}

/* The same input through every algorithm: the same bits. */
static void test_same_bits(unsigned ranks, unsigned seed)
{
    bool same = true;
    for (int type = 0; type < TYPES; type++) {
        char *first = NULL;
        size_t bytes = 301 * type_bytes[type];
        for (int a = 0; a < ALGORITHMS; a++) {
            unsigned again = seed;
            struct call call = {
                .algorithm = (enum algorithm)a, .type = (enum type)type, .count = 301, .blocks = 4, .late_rank = -1};
            start_node(ranks, 1);
            prepare(&call, &again);
            run_calls(&call, 1);
            for (unsigned r = 0; r < ranks; r++) {
                if (!first) {
                    first = must(malloc(bytes));
                    memcpy(first, recvbuff(&call, r), bytes);
                }
                same &= memcmp(first, recvbuff(&call, r), bytes) == 0;
            }
            release(&call);
            stop_node();
        }
        free(first);
    }
    tap_ok(same, "n=%u: all algorithms and ranks give the same bits", ranks);
}

static void test_negative_zero(enum algorithm algorithm)
{
    struct call call = {.algorithm = algorithm, .type = F32, .count = 3, .blocks = 1, .late_rank = -1};
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
    const uint32_t marker = OH_MARKER;
    bool right = true;
    unsigned seed = 1;
    start_node(3, 1);
    prepare(&call, &seed);
    for (unsigned r = 0; r < 3; r++) {
        for (uint64_t i = r; i < 300; i += 7 + r) { /* alone, beside another, and in all ranks at once */
            memcpy(sendbuff(&call, r) + i * type_bytes[type], &marker, type_bytes[type]);
        }
        memcpy(call.input[r], sendbuff(&call, r), message_bytes(&call));
    }
    run_calls(&call, 1);
    for (unsigned r = 0; r < 3; r++) {
        for (uint64_t i = 0; i < 300; i++) {
            bool nan = i % 7 == 0 || (i >= 1 && (i - 1) % 8 == 0) || (i >= 2 && (i - 2) % 9 == 0);
            right &= is_nan(type, recvbuff(&call, r) + i * type_bytes[type]) == nan;
        }
    }
    release(&call);
    stop_node();
    tap_ok(right, "%s %s: inputs that hold the marker give NaN, and no other do", algorithm_names[algorithm],
           type_names[type]);
}

int main(int argc, char **argv)
{
    unsigned seed = argc > 1 ? (unsigned)atoi(argv[1]) : (unsigned)time(NULL);
    tap_note("seed %u", seed);
    simnode_hesitate = hesitate;
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
            test_marker_values((enum algorithm)a, (enum type)type);
        }
        test_negative_zero((enum algorithm)a);
    }
    return tap_done();
}
