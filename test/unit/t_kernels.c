/* SPDX-License-Identifier: MIT */
/*
 * t_kernels.c - the kernels themselves, on the CPU, without driver or plugin
 *
 * Ranks are threads with a staging memory each; a rank runs a list of calls one after the other, as programmatic launch
 * does: a kernel may begin while the one before still runs. Shown here is what the end-to-end tests cannot arrange:
 * every change of algorithm, grid and size from call to call, ranks and blocks running far apart, the wrap of epochs,
 * an abort flag, and that all algorithms give the same bits.
 *
 *   t_kernels [SEED [SECONDS]]
 *
 * SECONDS: only what shows the protocols, for the few kernels of test/protocol/kernels.cpp; ends at the first fault,
 * and when no rank ends a call for so long.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "test/simnode/kernels.h"
#include "test/tap.h"
#include "test/unit/kernel_node.h"
#include "test/unit/unit.h"

#define ITEMS 5

/* Sleeps now and then, differently in every thread and every run of the same seed. */
static void hesitate(void)
{
    static atomic_uint turn;
    unsigned seed = atomic_fetch_add(&turn, 1) * 2654435761u;
    if (rand_r(&seed) % 4 == 0) {
        usleep((useconds_t)(rand_r(&seed) % (rand_r(&seed) % 8 ? 200 : 4000)));
    }
}

/* The largest random message, for any number of ranks: what slots hold. */
static uint64_t most(enum algorithm algorithm, ncclDataType_t type)
{
    static const uint64_t bytes[] = {
        [ONESHOT] = (OH_SECTION_WORDS(OH_MAX_RANKS) - ITEMS) * OH_WORD_BYTES, /* as a list */
        [TWOSHOT] = (OH_PART_WORDS(OH_MAX_RANKS) - ITEMS) * OH_WORD_BYTES,
    };
    return bytes[algorithm == TWOSHOT ? TWOSHOT : ONESHOT] / cf_types[type].size;
}

static struct call random_call(unsigned ranks, unsigned *seed)
{
    static const ncclDataType_t few[] = {ncclFloat32, ncclInt32, ncclUint32};
    struct call call = {0};
    call.type = watch_seconds > 0 ? few[rand_r(seed) % 3] : (ncclDataType_t)(rand_r(seed) % ncclNumTypes);
    call.algorithm = (enum algorithm)(rand_r(seed) % ALGORITHMS);
    call.op = rand_r(seed) % 3 == 0 ? OH_OP_SUM : (enum oh_kernel_op)(rand_r(seed) % OH_OPS);
    call.any = rand_r(seed) % 2;
    if (watch_seconds > 0 && call.type == ncclFloat32) {
        call.op = OH_OP_SUM;
        call.any = false;
    }
    call.items = 1 + (unsigned)rand_r(seed) % ITEMS;
    call.scalar_in_memory = rand_r(seed) % 2;
    uint64_t limit = rand_r(seed) % 3 == 0 ? 20 : most(call.algorithm, call.type);
    call.count = 1 + (uint64_t)rand_r(seed) % limit;
    call.blocks = 1 + (unsigned)rand_r(seed) % 12;
    call.in_place = rand_r(seed) % 2;
    call.root = (unsigned)rand_r(seed) % ranks;
    if (call.in_place && (call.algorithm == ALLGATHER || call.algorithm == REDUCESCATTER)) {
        call.items = 1; /* the parts of several calls in place are not where they are out of place */
    }
    call.concurrent = rand_r(seed) % 3 == 0;
    call.early_trigger = rand_r(seed) % 2;
    call.late_trigger = rand_r(seed) % 2;
    const unsigned per_word = (unsigned)(OH_WORD_BYTES / cf_types[call.type].size);
    const bool whole = rand_r(seed) % 2; /* words have a faster way: on some ranks, on others not */
    if (whole) {
        call.count = (call.count + per_word - 1) / per_word * per_word;
    }
    for (unsigned r = 0; r < OH_MAX_RANKS; r++) {
        call.half[r] = rand_r(seed) % 3 == 0;
        const unsigned unit = whole && rand_r(seed) % 4 > 0 ? per_word : 1;
        call.send_offset[r] = (size_t)rand_r(seed) % (8 / unit + 1) * unit;
        call.recv_offset[r] = (size_t)rand_r(seed) % (8 / unit + 1) * unit;
    }
    return call;
}

/* A point about a list of calls; in test_protocols the first that fails is the last. */
#define POINT(right_, ...)                                                                                             \
    if (!tap_ok((right_), __VA_ARGS__) && watch_seconds > 0) {                                                         \
        exit(tap_done());                                                                                              \
    }

#define LIST 60
#define LIST_LENGTH (watch_seconds > 0 ? 10 : LIST) /* short in test_protocols */

static void test_random_calls(unsigned ranks, uint32_t epoch, unsigned seed)
{
    struct call calls[LIST];
    int count = LIST_LENGTH;
    for (int i = 0; i < count; i++) {
        calls[i] = random_call(ranks, &seed);
    }
    POINT(run_and_check(ranks, epoch, calls, count, &seed),
          "n=%u: %d calls, algorithm, grid, type, size and alignment changing, from epoch %u", ranks, count, epoch);
}

/* Kernels that follow one another with nothing between, blocks far apart. */
static void test_early_triggers(unsigned ranks, unsigned seed)
{
    const unsigned section = OH_SECTION_WORDS(ranks);
    struct call calls[LIST];
    for (int i = 0; i < LIST; i++) {
        struct call *call = &calls[i];
        *call = (struct call){.algorithm = (enum algorithm)(rand_r(&seed) % ALGORITHMS),
                              .root = (unsigned)rand_r(&seed) % ranks,
                              .type = rand_r(&seed) % 4 ? ncclFloat32 : ncclInt32,
                              .blocks = 1 + (unsigned)rand_r(&seed) % 6,
                              .concurrent = true,
                              .early_trigger = true};
        unsigned words = rand_r(&seed) % 4 > 0        ? 1 + (unsigned)rand_r(&seed) % 20
                         : call->algorithm == TWOSHOT ? ranks * section
                                                      : section;
        call->count = words * (OH_WORD_BYTES / 4);
        for (unsigned r = 0; r < ranks; r++) {
            call->half[r] = rand_r(&seed) % 3 == 0;
        }
    }
    POINT(run_and_check(ranks, 1, calls, LIST, &seed), "n=%u: kernels with early triggers", ranks);
}

/* Sums of so few words that the kernels for the CPU have a quad for each. There a quad is a thread, so which threads of
 * a warp make one, and how they exchange words, is for virtual_ranks to show. */
static void test_quads(unsigned ranks, unsigned seed)
{
    static const enum algorithm sums[] = {ONESHOT, TWOSHOT, REDUCESCATTER};
    struct call calls[LIST];
    for (int i = 0; i < LIST; i++) {
        const enum algorithm algorithm = sums[rand_r(&seed) % 3];
        const unsigned words = 2 + 2 * ((unsigned)rand_r(&seed) % 3); /* in the longest loop */
        const unsigned past_end = (unsigned)rand_r(&seed) % ranks;    /* of these, in the last chunk */
        calls[i] =
            (struct call){.algorithm = algorithm,
                          .type = ncclFloat32,
                          .family = rand_r(&seed) % 4 ? CF_WIDE : CF_SENTINEL,
                          .count = (algorithm == TWOSHOT ? words * ranks - past_end : words) * (OH_WORD_BYTES / 4),
                          .blocks = words + (unsigned)rand_r(&seed) % 3,
                          .in_place = rand_r(&seed) % 2,
                          .concurrent = true,
                          .early_trigger = true};
    }
    POINT(run_and_check(ranks, 1, calls, LIST, &seed), "n=%u: sums in quads", ranks);
}

/* One-shot messages of one size in grids that change: a place belongs to another block in each call. */
static void test_grids(unsigned ranks, unsigned seed)
{
    struct call calls[LIST];
    int count = LIST_LENGTH;
    for (int i = 0; i < count; i++) {
        calls[i] = (struct call){.algorithm = ONESHOT,
                                 .type = ncclFloat32,
                                 .count = 400,
                                 .blocks = 1 + i % 3,
                                 .concurrent = i % 4 > 0,
                                 .early_trigger = true};
    }
    POINT(run_and_check(ranks, 1, calls, count, &seed), "n=%u: oneshot in grids that change", ranks);
}

/* Aborts once a kernel has told that it waits, or never will. Returns how many blocks had triggered by then. */
static unsigned abort_waiting(void)
{
    for (int i = 0; i < 10000 && __atomic_load_n(&node.control.spins, __ATOMIC_RELAXED) == 0; i++) {
        usleep(1000);
    }
    const unsigned triggers = atomic_load(&node.triggers);
    __atomic_store_n(&node.control.abort_flag, 1, __ATOMIC_RELEASE);
    return triggers;
}

/* Some block has not ended a kernel after this epoch. (Those without words end.) */
static bool epoch_stands(unsigned rank, uint32_t epoch)
{
    bool stands = false;
    for (unsigned b = 0; b < OH_MAX_BLOCKS; b++) {
        struct oh_epoch of_block;
        memcpy(&of_block, node.staging[rank] + OH_EPOCH_OFFSET + b * sizeof of_block, sizeof of_block);
        stands |= of_block.last == epoch;
    }
    return stands;
}

/*
 * Runs a call of rank 0, whose peers never come. It leaves once the abort flag is set; or another kernel of the rank
 * has seen an abort, and it leaves without polling the host. If it does not, the program ends.
 */
static void run_alone(struct call *call, bool abort_seen)
{
    struct rank_job job = {call, 1, 0};
    const uint32_t seen = abort_seen;
    struct timespec limit;
    pthread_t thread;
    unsigned seed = 1;
    start_node(4, 1);
    prepare_call(call, &seed);
    memcpy(node.staging[0] + OH_ABORT_SEEN_OFFSET, &seen, sizeof seen);
    pthread_create(&thread, NULL, run_rank, &job);
    if (!abort_seen) {
        abort_waiting();
    }
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 20;
    if (!tap_ok(pthread_timedjoin_np(thread, NULL, &limit) == 0, "%s: leaves when %s", algorithm_names[call->algorithm],
                abort_seen ? "another kernel of the rank has seen the abort" : "the abort flag is set")) {
        exit(tap_done());
    }
    tap_ok(epoch_stands(0, 1), "%s of %u: its epoch has not ended", algorithm_names[call->algorithm],
           (unsigned)call->count);
    release_call(call);
    stop_node();
}

static void test_abort(enum algorithm algorithm, uint64_t count)
{
    struct call call = {.algorithm = algorithm, .type = ncclFloat32, .count = count, .blocks = 3};
    const struct oh_control *control = &node.control;
    run_alone(&call, false);
    tap_ok(control->spins > 0 && control->epoch == 1 && control->call_number == REPORTED_CALL &&
               control->signature == REPORTED_SIGNATURE && control->report_count == call.count,
           "%s: tells in which call it waits", algorithm_names[algorithm]);
    run_alone(&call, true);
}

/*
 * A kernel of rank 0 leaves after an abort, and the rank's next kernel, which was queued, begins. It has the epoch of
 * the call that was left, in which a peer that is late may still be: so it sends nothing.
 */
static void test_queued_behind_abort(enum algorithm algorithm, uint64_t count)
{
    struct call calls[] = {{.algorithm = algorithm, .type = ncclFloat32, .count = count, .blocks = 3},
                           {.algorithm = algorithm, .type = ncclFloat32, .count = count, .blocks = 5}};
    const size_t bytes = OH_STAGING_BYTES(3);
    char *sent[3] = {NULL};
    bool same = true;
    unsigned seed = 1;
    start_node(3, 1);
    for (int i = 0; i < 2; i++) {
        struct rank_job job = {&calls[i], 1, 0};
        pthread_t thread;
        prepare_call(&calls[i], &seed);
        pthread_create(&thread, NULL, run_rank, &job);
        if (i == 0) {
            abort_waiting();
        }
        pthread_join(thread, NULL);
        for (unsigned r = 1; r < 3; r++) {
            same = same && (i == 0 || memcmp(sent[r], node.staging[r], bytes) == 0);
            sent[r] = i == 0 ? memcpy(unit_need(malloc(bytes)), node.staging[r], bytes) : sent[r];
        }
    }
    POINT(same, "%s of %u: behind a kernel that an abort has ended, a queued one sends nothing",
          algorithm_names[algorithm], (unsigned)count);
    for (int i = 0; i < 2; i++) {
        release_call(&calls[i]);
        free(sent[i + 1]);
    }
    stop_node();
}

/*
 * The first block of a kernel whose peers never come: an early trigger does not wait for them. A late one does: the
 * next kernel may take the room in which blocks of the peer, which this kernel waits for, would begin.
 */
static void test_trigger(unsigned ranks, enum algorithm algorithm, uint64_t count, bool late)
{
    struct call call = {.algorithm = algorithm,
                        .type = ncclFloat32,
                        .count = count,
                        .blocks = 3,
                        .early_trigger = !late,
                        .late_trigger = late};
    struct rank_job job = {&call, 1, 0};
    pthread_t thread;
    unsigned seed = 1;
    start_node(ranks, 1);
    prepare_call(&call, &seed);
    pthread_create(&thread, NULL, run_rank, &job);
    const unsigned triggers = abort_waiting();
    pthread_join(thread, NULL);
    POINT(triggers == (late ? 0 : 1), "n=%u: %s of %u: triggers %s", ranks, algorithm_names[algorithm], (unsigned)count,
          late ? "late" : "early");
    release_call(&call);
    stop_node();
}

/* A rank is held: its kernel sends nothing, and does not end with what the others send. All leave after an abort. */
static void test_held(enum algorithm algorithm, uint64_t count)
{
    struct call call = {.algorithm = algorithm, .type = ncclFloat32, .count = count, .blocks = 3, .concurrent = true};
    struct rank_job job[3];
    pthread_t thread[3];
    const uint32_t held = OH_SENTINEL;
    bool all_wait = true;
    unsigned seed = 1;
    start_node(3, 1);
    prepare_call(&call, &seed);
    for (unsigned b = 0; b < OH_MAX_BLOCKS; b++) {
        size_t at = OH_EPOCH_OFFSET + b * sizeof(struct oh_epoch) + offsetof(struct oh_epoch, held);
        memcpy(node.staging[1] + at, &held, sizeof held);
    }
    for (unsigned r = 0; r < 3; r++) {
        job[r] = (struct rank_job){&call, 1, r};
        pthread_create(&thread[r], NULL, run_rank, &job[r]);
    }
    usleep(100000);
    for (unsigned r = 0; r < 3; r++) {
        all_wait &= pthread_tryjoin_np(thread[r], NULL) == EBUSY;
    }
    tap_ok(all_wait, "%s of %u: where a rank is held, all wait", algorithm_names[algorithm], (unsigned)count);
    __atomic_store_n(&node.control.abort_flag, OH_ABORT_LEAVE, __ATOMIC_RELEASE);
    for (unsigned r = 0; all_wait && r < 3; r++) {
        pthread_join(thread[r], NULL);
    }
    if (all_wait) {
        release_call(&call);
        stop_node();
    }
}

/* Integers that go by an escape byte, call after call in the same slots, and not the same: a cell that was not cleared,
 * or not waited for, makes one of the other. */
static void test_escapes(enum algorithm algorithm, unsigned seed)
{
    struct call calls[LIST];
    for (int c = 0; c < LIST; c++) {
        calls[c] =
            (struct call){.algorithm = algorithm, .type = ncclInt32, .family = CF_SENTINEL, .count = 120, .blocks = 3};
    }
    POINT(run_and_check(3, 1, calls, LIST, &seed), "%s: integers that go by escape bytes", algorithm_names[algorithm]);
}

/*
 * Every op by every kernel, one call after the other: the bits are those of the reference, whatever the algorithm.
 * Three ranks also send what looks like the marker or an escape, NaNs, infinities, zeros and subnormals.
 */
static void test_inputs(unsigned ranks, enum algorithm algorithm, ncclDataType_t type)
{
    const bool few = watch_seconds > 0 && is_float(type); /* kernels */
    struct call calls[LIST];
    int count = 0;
    unsigned seed = ranks;
    const bool moves = algorithm == ALLGATHER || algorithm == BROADCAST;
    for (int op = 0; op < (few || moves ? 1 : OH_OPS); op++) {
        for (int any = 0; any <= (op == OH_OP_SUM && (!few || moves) ? 1 : 0); any++) {
            for (int family = CF_WIDE; family <= (ranks == 3 ? CF_SENTINEL : CF_WIDE); family++) {
                calls[count] = (struct call){.algorithm = algorithm,
                                             .type = type,
                                             .op = (enum oh_kernel_op)op,
                                             .family = (enum cf_family)family,
                                             .any = any,
                                             .items = 3,
                                             .count = 301,
                                             .blocks = 4};
                count++;
            }
        }
    }
    POINT(run_and_check(ranks, 1, calls, count, &seed), "n=%u: %s %s: every op%s", ranks, algorithm_names[algorithm],
          cf_types[type].name, ranks == 3 ? ", inputs that hold the marker, special numbers" : "");
}

static int test_protocols(unsigned seed)
{
    for (unsigned ranks = 2; ranks <= 3; ranks++) {
        for (unsigned i = 0; i < (ranks == 2 ? 4 : 1); i++) { /* of two ranks kernels send early, or wrongly */
            test_early_triggers(ranks, seed + 60 + ranks + 100 * i);
        }
        test_grids(ranks, seed + 70 + ranks);
        test_random_calls(ranks, 1, seed + ranks);
    }
    test_quads(3, seed + 80);
    for (enum algorithm a = ONESHOT; a < ALGORITHMS; a++) {
        test_inputs(3, a, ncclFloat32);
        test_inputs(3, a, ncclInt32);
        test_escapes(a, seed + 90);
        for (unsigned ranks = 2; ranks <= 3; ranks++) {
            test_trigger(ranks, a, 1000, true);
        }
    }
    test_random_calls(3, UINT32_MAX - 4, seed + 51);
    return tap_done();
}

int main(int argc, char **argv)
{
    unsigned seed = unit_seed(argc, argv);
    watch_seconds = argc > 2 ? atoi(argv[2]) : 0;
    simnode_litmus_delay = hesitate;
    if (watch_seconds > 0) {
        return test_protocols(seed);
    }
    for (unsigned ranks = 2; ranks <= OH_MAX_RANKS; ranks++) {
        test_random_calls(ranks, 1, seed + ranks);
    }
    test_random_calls(4, UINT32_MAX - 20, seed + 50);
    test_random_calls(2, UINT32_MAX - 20, seed + 52);
    for (unsigned ranks = 2; ranks <= 4; ranks++) {
        test_early_triggers(ranks, seed + 60 + ranks);
        test_grids(ranks, seed + 70 + ranks);
    }
    test_quads(3, seed + 83);
    test_quads(4, seed + 84);
    test_early_triggers(OH_MAX_RANKS, seed + 88);
    for (enum algorithm a = ONESHOT; a < ALGORITHMS; a++) {
        const uint64_t quads = a == TWOSHOT ? 32 : 8; /* two words to a rank, as quads of sums */
        test_abort(a, 1000);
        test_abort(a, quads);
        test_queued_behind_abort(a, quads);
        test_queued_behind_abort(a, 10);
        test_queued_behind_abort(a, 1000);
        test_held(a, quads - (a == TWOSHOT ? 8 : 0));
        test_held(a, 10);
        test_held(a, 1000);
        for (int i = 0; i < 8; i++) {
            test_trigger(i & 1 ? 2 : 4, a, i & 2 ? quads : 1000, i & 4);
        }
        for (int which = 0; which < (OH_MAX_RANKS - 1) * ncclNumTypes; which++) {
            test_inputs(2 + (unsigned)which / ncclNumTypes, a, (ncclDataType_t)(which % ncclNumTypes));
        }
        test_escapes(a, seed + 90);
    }
    return tap_done();
}
