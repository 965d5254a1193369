/* SPDX-License-Identifier: MIT */
#include "test/common/others.h"

#include <stdlib.h>
#include <string.h>

#define ELEMENTS (CF_OTHER_BYTES / 4)
#define FORM ELEMENTS, ncclInt32
#define UNTOUCHED 0xee /* bytes */
#define RESULTS 10

/* X(call, the blocks of its result that this rank gets, element i of block b of it, how it is made). */
#define CALLS_(X)                                                                                                      \
    X(BROADCAST, 1, input(others, world[root], i), Broadcast(data, out, FORM, root, comm, on))                         \
    X(BCAST, 1, input(others, world[root], i), Bcast(out, FORM, root, comm, on))                                       \
    X(REDUCE, rank == root, sum(others, m, i), Reduce(data, out, FORM, ncclSum, root, comm, on))                       \
    X(REDUCE_SCATTER, 1, sum(others, m, rank *ELEMENTS + i), ReduceScatter(data, out, FORM, ncclSum, comm, on))        \
    X(ALL_GATHER, n, input(others, world[b], i), AllGather(data, out, FORM, comm, on))                                 \
    X(SEND, 0, 0, Send(data, FORM, (rank + 1) % n, comm, on))                                                          \
    X(RECEIVE, 1, input(others, world[(rank + n - 1) % n], i), Recv(out, FORM, (rank + n - 1) % n, comm, on))          \
    X(ALL_TO_ALL, n, input(others, world[b], rank *ELEMENTS + i), AlltoAll(data, out, FORM, comm, on))                 \
    X(GATHER, rank == root ? n : 0, input(others, world[b], i), Gather(data, out, FORM, root, comm, on))               \
    X(SCATTER, 1, input(others, world[root], rank *ELEMENTS + i), Scatter(data, out, FORM, root, comm, on))

/* Sums over all ranks fit an int32_t. */
static int32_t input(const struct cf_others *others, int world_rank, int i)
{
    uint64_t seed = others->worker->board->seed + others->serial * 16 + (uint64_t)world_rank;
    return (int32_t)(cf_mix(cf_mix(seed) + (uint64_t)i) & 0x7ffffff);
}

static int32_t sum(const struct cf_others *others, int m, int i)
{
    int32_t all = 0;
    for (int r = 0; r < others->set->nranks[m]; r++) {
        all += input(others, others->set->world[m][r], i);
    }
    return all;
}

/* Offset of a result in a member's buffer, in bytes. */
static size_t result_at(const struct cf_others *others, enum cf_other call, int m)
{
    return (size_t)(1 + __builtin_ctz(call)) * (size_t)others->set->nranks[m] * CF_OTHER_BYTES;
}

static size_t bytes_of(const struct cf_others *others, int m)
{
    return (1 + RESULTS) * (size_t)others->set->nranks[m] * CF_OTHER_BYTES;
}

void *cf_others_input(const struct cf_others *others, int m)
{
    return (void *)(uintptr_t)others->device[m];
}

void *cf_others_result(const struct cf_others *others, enum cf_other call, int m)
{
    return (void *)(uintptr_t)(others->device[m] + result_at(others, call, m));
}

void cf_others_open(struct cf_worker *worker, const struct cf_set *set, struct cf_others *others_p)
{
    *others_p = (struct cf_others){.worker = worker, .set = set};
    for (int m = 0; cf_use(worker, m); m++) {
        if (set->nranks[m] > 0) {
            others_p->host[m] = cf_need(worker, malloc(bytes_of(others_p, m)));
            CF_CU(worker, MemAlloc(&others_p->device[m], bytes_of(others_p, m)));
        }
    }
}

void cf_others_close(struct cf_others *others)
{
    for (int m = 0; cf_use(others->worker, m); m++) {
        if (others->host[m] != NULL) {
            CF_CU(others->worker, MemFree(others->device[m]));
            free(others->host[m]);
        }
    }
}

void cf_others_load(struct cf_others *others, int stream)
{
    struct cf_worker *worker = others->worker;
    others->serial = ++worker->serial;
    for (int m = 0; cf_use(worker, m); m++) {
        int32_t *host = others->host[m];
        if (host == NULL) {
            continue;
        }
        memset(host, UNTOUCHED, bytes_of(others, m));
        for (int i = 0; i < others->set->nranks[m] * ELEMENTS; i++) {
            host[i] = input(others, worker->member[m].world_rank, i);
        }
        memcpy((char *)host + result_at(others, CF_BCAST, m), host, CF_OTHER_BYTES); /* it is in place */
        CF_CU(worker, MemcpyHtoDAsync(others->device[m], host, bytes_of(others, m), worker->member[m].stream[stream]));
    }
}

void cf_others_issue(const struct cf_others *others, unsigned calls, int stream)
{
    struct cf_worker *worker = others->worker;
    for (int m = 0; cf_use(worker, m); m++) {
        int rank = others->set->rank[m], n = others->set->nranks[m], root = n - 1;
        ncclComm_t comm = others->set->comm[m];
        CUstream on = worker->member[m].stream[stream];
        const void *data = cf_others_input(others, m);
#define MAKE_CALL(call_, blocks_, value_, made_)                                                                       \
    if (n > 0 && (calls & CF_##call_)) {                                                                               \
        void *out = cf_others_result(others, CF_##call_, m);                                                           \
        (void)out;                                                                                                     \
        CF_NCCL(worker, made_);                                                                                        \
    }
        CALLS_(MAKE_CALL)
#undef MAKE_CALL
    }
}

static void judge_member(struct cf_others *others, unsigned calls, int m)
{
    int rank = others->set->rank[m], n = others->set->nranks[m], root = n - 1;
    const int *world = others->set->world[m];
    int32_t untouched;
    memset(&untouched, UNTOUCHED, sizeof untouched);
#define CHECK_CALL(call_, blocks_, value_, made_)                                                                      \
    {                                                                                                                  \
        const int32_t *got = others->host[m] + result_at(others, CF_##call_, m) / sizeof *got;                         \
        int written = calls & CF_##call_ ? (blocks_) : 0, bad = 0;                                                     \
        for (int at = 0; at < n * ELEMENTS; at++) {                                                                    \
            int b = at / ELEMENTS, i = at % ELEMENTS;                                                                  \
            int32_t before = CF_##call_ == CF_BCAST && b == 0 ? input(others, world[rank], i) : untouched;             \
            bad += got[at] != (b < written ? (value_) : before);                                                       \
        }                                                                                                              \
        cf_check(others->worker, bad == 0, "%s: %d elements of the result are wrong", #call_, bad);                    \
    }
    CALLS_(CHECK_CALL)
#undef CHECK_CALL
}

void cf_others_judge(struct cf_others *others, unsigned calls, int stream)
{
    struct cf_worker *worker = others->worker;
    for (int m = 0; cf_use(worker, m); m++) {
        CUstream on = worker->member[m].stream[stream];
        if (others->host[m] != NULL) {
            CF_CU(worker, MemcpyDtoHAsync(others->host[m], others->device[m], bytes_of(others, m), on));
            CF_CU(worker, StreamSynchronize(on));
            judge_member(others, calls, m);
        }
    }
}
