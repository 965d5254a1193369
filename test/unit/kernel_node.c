/* SPDX-License-Identifier: MIT */
#include "test/unit/kernel_node.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/simnode/kernels.h"
#include "test/unit/unit.h"

#define PAGE 4096u

const char *const algorithm_names[ALGORITHMS] = {"oneshot", "twoshot", "reducescatter", "allgather", "broadcast"};

/* In the names of kernels; those of unsigned integers are those of signed ones. */
static const char *const kernel_types[ncclNumTypes] = {"i8",  "i8",  "i32", "i32",  "i64",  "i64",
                                                       "f16", "f32", "f64", "bf16", "e4m3", "e5m2"};

struct node node;
int watch_seconds;
static atomic_uint calls_ended, ranks_running;

bool is_float(ncclDataType_t type)
{
    return cf_types[type].mantissa > 0;
}

static bool has_sum_kernel(const struct call *call)
{
    return call->op == OH_OP_SUM &&
           (call->type == ncclFloat32 || call->type == ncclFloat16 || call->type == ncclBfloat16);
}

/* Whether the kernel takes the type as bytes. */
static bool moves_bytes(const struct call *call)
{
    return call->algorithm == ALLGATHER || call->algorithm == BROADCAST;
}

static bool is_list(const struct call *call)
{
    return call->any || (!moves_bytes(call) && !has_sum_kernel(call));
}

unsigned span_count(const struct call *call)
{
    const unsigned items = is_list(call) && call->items > 0 ? call->items : 1;
    return items > call->count ? (unsigned)call->count : items;
}

struct span span_of(const struct call *call, unsigned item)
{
    const unsigned items = span_count(call);
    const uint64_t each = call->count / items;
    return (struct span){item * each, item + 1 == items ? call->count - item * each : each};
}

unsigned root_of(const struct call *call, unsigned item)
{
    return (call->root + item) % node.ranks;
}

/* Blocks of a kernel. Each count has a mutex of its own, so that ThreadSanitizer sees no more order than there is. */
struct block_count {
    pthread_mutex_t mutex;
    pthread_cond_t all;
    unsigned blocks;
};

/*
 * A kernel of one rank. The next begins when all blocks of this one have let it in, or ended; its blocks wait for the
 * end of this one where oh_pdl_wait stands.
 */
struct kernel_run {
    struct kernel_run *before; /* NULL: none */
    struct oh_kernel_args args;
    struct oh_kernel_list_args list;
    uint64_t scalar;
    unsigned blocks;
    bool joined;
    struct block_count released, ended;
    struct block_job {
        struct kernel_run *run;
        simnode_kernel_fn kernel;
        const void *args;
        unsigned block;
        pthread_t thread;
    } job[OH_MAX_BLOCKS];
};
static _Thread_local struct kernel_run *running;
static _Thread_local bool has_released;

static void await_blocks(struct block_count *count, unsigned blocks)
{
    pthread_mutex_lock(&count->mutex);
    while (count->blocks < blocks) {
        pthread_cond_wait(&count->all, &count->mutex);
    }
    pthread_mutex_unlock(&count->mutex);
}

static void count_block(struct block_count *count)
{
    pthread_mutex_lock(&count->mutex);
    if (++count->blocks == running->blocks) {
        pthread_cond_broadcast(&count->all);
    }
    pthread_mutex_unlock(&count->mutex);
}

static void grid_wait(void)
{
    if (running->before) {
        await_blocks(&running->before->ended, running->before->blocks);
    }
}

static void grid_release(void)
{
    if (!has_released) {
        has_released = true;
        atomic_fetch_add(&node.triggers, 1);
        count_block(&running->released);
    }
}

static void *run_block(void *user)
{
    struct block_job *job = user;
    running = job->run;
    has_released = false;
    job->kernel(job->args, job->block, running->blocks);
    grid_release();
    count_block(&running->ended);
    return NULL;
}

/* Where a slot more than there are would end. */
static size_t end_of(unsigned ranks)
{
    return OH_ROUND_UP(OH_SLOT_OFFSET(OH_SLOTS + 1, ranks), PAGE);
}

void start_node(unsigned ranks, uint32_t epoch)
{
    const uint32_t marker = OH_SENTINEL;
    node.ranks = ranks;
    node.control = (struct oh_control){0};
    atomic_store(&node.triggers, 0);
    simnode_pdl_wait = grid_wait;
    simnode_pdl_trigger = grid_release;
    for (unsigned r = 0; r < ranks; r++) {
        node.staging[r] = unit_need(aligned_alloc(PAGE, end_of(ranks)));
        memset(node.staging[r], 0, OH_WORDS_OFFSET);
        for (size_t at = OH_WORDS_OFFSET; at < end_of(ranks); at += sizeof marker) {
            memcpy(node.staging[r] + at, &marker, sizeof marker);
        }
        for (unsigned b = 0; b < OH_MAX_BLOCKS; b++) {
            memcpy(node.staging[r] + OH_EPOCH_OFFSET + b * sizeof(struct oh_epoch), &epoch, sizeof epoch);
        }
    }
}

bool is_emptied(unsigned rank)
{
    const char *staging = node.staging[rank];
    static const uint32_t empty[] = {OH_SENTINEL, OH_SENTINEL, OH_SENTINEL, OH_SENTINEL};
    const size_t section = OH_SECTION_WORDS(node.ranks) * OH_WORD_BYTES;
    struct oh_epoch epoch;
    memcpy(&epoch, staging + OH_EPOCH_OFFSET, sizeof epoch);
    bool right = true;
    for (unsigned b = 1; b < OH_MAX_BLOCKS; b++) {
        right &= memcmp(staging + OH_EPOCH_OFFSET + b * sizeof epoch, &epoch, sizeof epoch) == 0;
    }
    for (size_t at = OH_WORDS_OFFSET; at < end_of(node.ranks); at += OH_WORD_BYTES) {
        const size_t in_slot = at - OH_SLOT_OFFSET(OH_GATHER_SLOT + epoch.gather, node.ranks); /* wraps outside */
        const bool left = in_slot < (node.ranks - 1) * section && in_slot % section < epoch.left * OH_WORD_BYTES;
        right &= left || memcmp(staging + at, empty, sizeof empty) == 0;
    }
    for (size_t at = OH_ESCAPE_OFFSET; at < OH_WORDS_OFFSET; at++) {
        right &= staging[at] == 0;
    }
    return right;
}

void stop_node(void)
{
    for (unsigned r = 0; r < node.ranks; r++) {
        free(node.staging[r]);
    }
}

static size_t part_bytes(const struct call *call)
{
    return call->count * cf_types[call->type].size;
}

size_t send_bytes(const struct call *call)
{
    return part_bytes(call) * (call->algorithm == REDUCESCATTER ? node.ranks : 1);
}

size_t recv_bytes(const struct call *call)
{
    return part_bytes(call) * (call->algorithm == ALLGATHER ? node.ranks : 1);
}

/* In place by NCCL's rule: a rank's part is where it is in the buffer that has all parts. */
static size_t own_part(const struct call *call, unsigned rank, enum algorithm algorithm)
{
    return call->in_place && call->algorithm == algorithm ? rank * part_bytes(call) : 0;
}

char *sendbuff(const struct call *call, unsigned rank)
{
    return call->send[rank] + GUARD + call->send_offset[rank] * cf_types[call->type].size +
           own_part(call, rank, ALLGATHER);
}

char *recvbuff(const struct call *call, unsigned rank)
{
    return call->in_place ? sendbuff(call, rank) - own_part(call, rank, ALLGATHER) + own_part(call, rank, REDUCESCATTER)
                          : call->recv[rank] + GUARD + call->recv_offset[rank] * cf_types[call->type].size;
}

/* Of signed integers. */
static uint64_t sign_bit(ncclDataType_t type)
{
    return cf_types[type].is_signed ? 1ull << (cf_types[type].size * 8 - 1) : 0;
}

static struct oh_kernel_args base_args(const struct call *call, unsigned rank, const uint64_t *scalar)
{
    struct oh_kernel_args args = {.sendbuff = sendbuff(call, rank),
                                  .recvbuff = recvbuff(call, rank),
                                  .count = call->count,
                                  .abort_flag = &node.control.abort_flag,
                                  .control = &node.control,
                                  .call_number = REPORTED_CALL,
                                  .signature = REPORTED_SIGNATURE,
                                  .report_count = (uint32_t)call->count,
                                  .trigger = call->early_trigger  ? OH_TRIGGER_EARLY
                                             : call->late_trigger ? OH_TRIGGER_LATE
                                                                  : OH_TRIGGER_NONE,
                                  .rank = rank,
                                  .nranks = node.ranks,
                                  .op = call->op};
    for (unsigned j = 0; j < node.ranks; j++) {
        args.staging[j] = node.staging[(rank + j) % node.ranks];
    }
    args.root = call->root;
    args.stride = call->algorithm == REDUCESCATTER || call->algorithm == ALLGATHER ? part_bytes(call) : 0;
    args.count = moves_bytes(call) ? part_bytes(call) : call->count;
    args.operand = call->op == OH_OP_SCALED_SUM ? *scalar : sign_bit(call->type);
    if (call->op == OH_OP_SCALED_SUM && call->scalar_in_memory) {
        args.scalar = scalar;
        args.operand = 0;
    }
    return args;
}

static struct oh_kernel_list_args list_args(const struct call *call, const struct oh_kernel_args *base)
{
    const size_t size = cf_types[call->type].size;
    const size_t sent = call->algorithm == REDUCESCATTER ? node.ranks : 1;
    const size_t received = call->algorithm == ALLGATHER ? node.ranks : 1;
    struct oh_kernel_list_args list = {.base = *base, .calls = span_count(call)};
    for (unsigned k = 0; k < list.calls; k++) {
        const struct span span = span_of(call, k);
        list.item[k] = (struct oh_list_item){.sendbuff = (const char *)base->sendbuff + span.first * sent * size,
                                             .recvbuff = (char *)base->recvbuff + span.first * received * size,
                                             .count = moves_bytes(call) ? span.count * size : span.count,
                                             .stride = sent * received > 1 ? span.count * size : 0,
                                             .root = root_of(call, k),
                                             .first_word = list.words};
        list.words += (uint32_t)((span.count * size + OH_WORD_BYTES - 1) / OH_WORD_BYTES);
    }
    return list;
}

static simnode_kernel_fn kernel_of(const struct call *call)
{
    static const char *const suffix[] = {"", "", "n2", "n3", "n4", "n5to8", "n5to8", "n5to8", "n5to8"};
    static const char *const collectives[] = {[ONESHOT] = "AllReduce",
                                              [TWOSHOT] = "AllReduce",
                                              [REDUCESCATTER] = "ReduceScatter",
                                              [ALLGATHER] = "AllGather",
                                              [BROADCAST] = "Broadcast"};
    const char *collective = collectives[call->algorithm], *type = kernel_types[call->type];
    const char *algorithm = call->algorithm == TWOSHOT ? "twoshot" : "oneshot";
    char name[80];
    if (moves_bytes(call)) {
        snprintf(name, sizeof name, "ncclDevKernel_%s%s_onehop_oneshot_%s", collective, is_list(call) ? "_List" : "",
                 suffix[node.ranks]);
    } else if (is_list(call)) {
        snprintf(name, sizeof name, "ncclDevKernel_%s_Any_%s_onehop_%s_%s", collective, type, algorithm,
                 suffix[node.ranks]);
    } else {
        snprintf(name, sizeof name, "ncclDevKernel_%s_Sum_%s_onehop_%s_n%u", collective, type, algorithm, node.ranks);
    }
    const struct simnode_kernel *kernel = simnode_kernel_find(name);
    if (!kernel) {
        tap_note("no kernel %s", name);
        abort();
    }
    return kernel->run;
}

/* NULL: none has run. */
static void join_kernel(struct kernel_run *run)
{
    if (!run || run->joined) {
        return;
    }
    for (unsigned b = 0; b < run->blocks; b++) {
        pthread_join(run->job[b].thread, NULL);
    }
    run->joined = true;
}

/* Begins the kernel of call i, which has room in *run; `before` may still be running. */
static void start_kernel(const struct rank_job *job, int i, struct kernel_run *before, struct kernel_run *run)
{
    const struct call *call = &job->calls[i];
    const unsigned rank = job->rank;
    simnode_kernel_fn kernel = kernel_of(call);
    if (before && call->concurrent) {
        await_blocks(&before->released, before->blocks);
    } else if (before) {
        join_kernel(before);
    }
    run->before = before;
    run->scalar = cf_scalar(&call->data, (int)rank);
    run->args = base_args(call, rank, &run->scalar);
    run->list = list_args(call, &run->args);
    run->blocks = call->concurrent && call->half[rank] ? (call->blocks + 1) / 2 : call->blocks;
    run->joined = !call->concurrent;
    run->released = (struct block_count){PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    run->ended = (struct block_count){PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    for (unsigned b = 0; b < run->blocks; b++) {
        struct block_job *block = &run->job[b];
        *block = (struct block_job){run, kernel, is_list(call) ? (void *)&run->list : &run->args, b, 0};
        if (!call->concurrent) {
            run_block(block);
        } else if (pthread_create(&block->thread, NULL, run_block, block) != 0) {
            abort();
        }
    }
}

/* Two kernels at a time at most: the third takes the place of the first. */
void *run_rank(void *user)
{
    const struct rank_job *job = user;
    struct kernel_run runs[2], *before = NULL;
    for (int i = 0; i < job->count; i++) {
        start_kernel(job, i, before, &runs[i % 2]);
        if (before) {
            join_kernel(before);
            atomic_fetch_add(&calls_ended, 1);
        }
        before = &runs[i % 2];
    }
    join_kernel(before);
    atomic_fetch_add(&calls_ended, 1);
    atomic_fetch_sub(&ranks_running, 1);
    return NULL;
}

#define WATCH_MICROSECONDS 10000

/* Ranks that wait for ever leave when the abort flag is set, and their results are wrong. */
static void watch_ranks(void)
{
    unsigned seen = 0;
    for (long still = 0; atomic_load(&ranks_running) > 0; usleep(WATCH_MICROSECONDS)) {
        unsigned ended = atomic_load(&calls_ended);
        still = ended == seen ? still + 1 : 0;
        seen = ended;
        if (still * WATCH_MICROSECONDS > watch_seconds * 1000000L) {
            tap_note("no rank has ended a call for %d s", watch_seconds);
            __atomic_store_n(&node.control.abort_flag, 1, __ATOMIC_RELAXED);
        }
    }
}

void run_calls(const struct call *calls, int count)
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
