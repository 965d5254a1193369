/* SPDX-License-Identifier: MIT */
/* case_groups.c - calls between ncclGroupStart and ncclGroupEnd */
#include <stdlib.h>
#include <string.h>

#include "test/conformance/cases.h"

#define MIXED_BYTES 4096

static void add_some(struct cf_batch *batch, int items)
{
    static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclInt32, ncclFloat16, ncclFloat64};
    static const enum cf_op ops[] = {CF_SUM, CF_SUM, CF_MAX, CF_SUM, CF_PREMUL_HOST, CF_SUM, CF_AVG};
    for (int i = 0; i < items; i++) {
        cf_batch_add(batch, &(struct cf_spec){.type = types[i % 5],
                                              .op = ops[i % 7],
                                              .family = CF_EXACT,
                                              .count = 1 + (size_t)i * 131 % 3000,
                                              .in_place = i % 3 == 1});
    }
}

void cf_case_group(struct cf_worker *worker)
{
    for (int items = 1; items <= 40; items += 13) {
        struct cf_batch *batch = cf_batch_new(worker, &worker->world);
        add_some(batch, items);
        cf_batch_run(batch, CF_GROUPED);
    }
}

void cf_case_group_nested(struct cf_worker *worker)
{
    struct cf_batch *batch = cf_batch_new(worker, &worker->world);
    add_some(batch, 20);
    cf_batch_run(batch, CF_NESTED);
}

/* Large calls of one type and op, one after another, of lengths and alignments that differ: more together than the
 * largest one-shot message. */
void cf_case_group_together(struct cf_worker *worker)
{
    static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclInt32, ncclInt8};
    static const enum cf_op ops[] = {CF_SUM, CF_SUM, CF_MAX, CF_AVG};
    for (int t = 0; t < 4; t++) {
        struct cf_batch *batch = cf_batch_new(worker, &worker->world);
        unsigned size = (unsigned)cf_types[types[t]].size;
        for (int i = 0; i < 12; i++) {
            cf_batch_add(batch, &(struct cf_spec){.type = types[t],
                                                  .op = ops[t],
                                                  .family = CF_EXACT,
                                                  .count = (100000 + (size_t)i * 4099) / size,
                                                  .send_shift = (unsigned)i % 3 * size,
                                                  .recv_shift = (unsigned)i % 2 * size,
                                                  .in_place = i % 4 == 3});
        }
        cf_batch_run(batch, CF_GROUPED);
    }
}

/* An empty group, and one whose only call has nothing to do. */
void cf_case_group_empty(struct cf_worker *worker)
{
    CF_IS(worker, ncclSuccess, GroupStart());
    CF_IS(worker, ncclSuccess, GroupEnd());
    CF_IS(worker, ncclSuccess, GroupStart());
    CF_IS(worker, ncclSuccess, GroupStart());
    CF_IS(worker, ncclSuccess, GroupEnd());
    CF_IS(worker, ncclSuccess, GroupEnd());
    CF_IS(worker, ncclInvalidUsage, GroupEnd());
}

/* More calls than a launch queue holds. */
void cf_case_group_5000(struct cf_worker *worker)
{
    struct cf_batch *batch = cf_batch_new(worker, &worker->world);
    for (int i = 0; i < 5000; i++) {
        cf_batch_add(batch, &(struct cf_spec){.type = i % 2 ? ncclBfloat16 : ncclFloat32,
                                              .family = CF_EXACT,
                                              .count = 1 + (size_t)i % 97,
                                              .in_place = i % 5 == 0});
    }
    cf_batch_run(batch, CF_GROUPED);
}

/* Batches on several communicators, their calls in turn within one group. */
void cf_case_group_communicators(struct cf_worker *worker)
{
    enum {
        SETS = 3
    };
    struct cf_set set[SETS];
    struct cf_batch *batch[SETS];
    CUstream stream[CF_MAX_RANKS];
    cf_streams(worker, 0, stream);
    for (int s = 0; s < SETS; s++) {
        cf_set_create(worker, CF_INIT_RANK, &set[s]);
        batch[s] = cf_batch_new(worker, &set[s]);
        add_some(batch[s], 12);
        cf_batch_load(batch[s], stream);
    }
    CF_NCCL(worker, GroupStart());
    for (int s = 0; s < SETS; s++) {
        cf_batch_issue(batch[s], s == 1 ? CF_NESTED : CF_SINGLE, stream);
    }
    CF_NCCL(worker, GroupEnd());
    for (int s = 0; s < SETS; s++) {
        cf_batch_judge(batch[s], stream, true);
        cf_batch_free(batch[s]);
    }
    cf_barrier(worker);
    for (int s = 0; s < SETS; s++) {
        cf_set_destroy(worker, &set[s]);
    }
}

/* --- with other calls -------------------------------------------------------------------------------------------- */

/* Memory of a member for broadcast, send and receive: three pieces of MIXED_BYTES. */
struct mixed {
    CUdeviceptr device[CF_MAX_RANKS];
    unsigned char host[3 * MIXED_BYTES];
};

static unsigned char mixed_byte(const struct cf_worker *worker, int rank, size_t i)
{
    return (unsigned char)cf_mix(worker->serial * 8 + (uint64_t)rank + i * 64);
}

static void open_mixed(struct cf_worker *worker, struct mixed *mixed, CUstream *stream)
{
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        memset(mixed->host, 0xee, sizeof mixed->host);
        for (size_t i = 0; i < MIXED_BYTES; i++) {
            mixed->host[i] = mixed_byte(worker, worker->member[m].world_rank, i);
        }
        CF_CU(worker, MemAlloc(&mixed->device[m], sizeof mixed->host));
        CF_CU(worker, MemcpyHtoDAsync(mixed->device[m], mixed->host, sizeof mixed->host, stream[m]));
        CF_CU(worker, StreamSynchronize(stream[m]));
    }
}

/* Broadcast of rank 0's piece into the second, the next rank's piece into the third. */
static void issue_mixed(struct cf_worker *worker, struct mixed *mixed, CUstream *stream)
{
    int n = worker->nranks;
    for (int m = 0; m < worker->members; m++) {
        int rank = worker->member[m].world_rank;
        char *memory = (char *)(uintptr_t)mixed->device[m];
        ncclComm_t comm = worker->world.comm[m];
        CF_NCCL(worker, Broadcast(memory, memory + MIXED_BYTES, MIXED_BYTES, ncclUint8, 0, comm, stream[m]));
        CF_NCCL(worker, Send(memory, MIXED_BYTES, ncclUint8, (rank + n - 1) % n, comm, stream[m]));
        CF_NCCL(worker, Recv(memory + 2 * MIXED_BYTES, MIXED_BYTES, ncclUint8, (rank + 1) % n, comm, stream[m]));
    }
}

static void judge_mixed(struct cf_worker *worker, struct mixed *mixed, CUstream *stream)
{
    for (int m = 0; m < worker->members; m++) {
        int rank = worker->member[m].world_rank, from[3] = {rank, 0, (rank + 1) % worker->nranks};
        cf_use(worker, m);
        CF_CU(worker, MemcpyDtoHAsync(mixed->host, mixed->device[m], sizeof mixed->host, stream[m]));
        CF_CU(worker, StreamSynchronize(stream[m]));
        size_t bad = 0;
        for (size_t i = 0; i < sizeof mixed->host; i++) {
            bad += mixed->host[i] != mixed_byte(worker, from[i / MIXED_BYTES], i % MIXED_BYTES);
        }
        cf_check(worker, bad == 0, "broadcast, send and receive: %zu bytes are wrong", bad);
        CF_CU(worker, MemFree(mixed->device[m]));
    }
}

void cf_case_group_mixed(struct cf_worker *worker)
{
    struct mixed mixed = {0};
    CUstream stream[CF_MAX_RANKS];
    cf_streams(worker, 0, stream);
    for (int grouped = 0; grouped < 2; grouped++) {
        struct cf_batch *batch = cf_batch_new(worker, &worker->world);
        add_some(batch, 9);
        cf_batch_load(batch, stream);
        open_mixed(worker, &mixed, stream);
        CF_NCCL(worker, GroupStart());
        if (grouped) { /* all in one group, calls before and after the others */
            cf_batch_issue(batch, CF_SINGLE, stream);
        }
        issue_mixed(worker, &mixed, stream);
        CF_NCCL(worker, GroupEnd());
        if (!grouped) {
            cf_batch_issue(batch, CF_SINGLE, stream);
        }
        judge_mixed(worker, &mixed, stream);
        cf_batch_judge(batch, stream, true);
        cf_batch_free(batch);
    }
}

/* --- groups that launch nothing ---------------------------------------------------------------------------------- */

/* The calls of a batch without cf_batch_issue, which takes an error for the end. */
static void call_all(struct cf_worker *worker, struct cf_batch *batch, CUstream *stream)
{
    for (int i = 0; i < batch->items; i++) {
        for (int m = 0; m < worker->members; m++) {
            ncclResult_t result = cf_batch_call(batch, i, m, stream[m]);
            cf_check(worker, result == ncclSuccess, "a call in a group gave %d", (int)result);
        }
    }
}

static struct cf_batch *open_batch(struct cf_worker *worker, CUstream *stream)
{
    struct cf_batch *batch = cf_batch_new(worker, &worker->world);
    add_some(batch, 8);
    cf_streams(worker, 0, stream);
    cf_batch_load(batch, stream);
    return batch;
}

void cf_case_group_simulate(struct cf_worker *worker)
{
    CUstream stream[CF_MAX_RANKS];
    if (nccl.GroupSimulateEnd == NULL) {
        cf_skip(worker, "this NCCL has no ncclGroupSimulateEnd");
        return;
    }
    struct cf_batch *batch = open_batch(worker, stream);
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    CF_NCCL(worker, GroupStart());
    call_all(worker, batch, stream);
    CF_IS(worker, ncclSuccess, GroupSimulateEnd(&info));
    cf_batch_judge(batch, stream, false);
    cf_batch_issue(batch, CF_GROUPED, stream); /* as if nothing had been */
    cf_batch_judge(batch, stream, true);
    cf_batch_free(batch);
}

/* One bad call, and the end of the group gives its error and starts nothing. */
void cf_case_group_error(struct cf_worker *worker)
{
    CUstream stream[CF_MAX_RANKS];
    struct cf_batch *batch = open_batch(worker, stream);
    CF_NCCL(worker, GroupStart());
    call_all(worker, batch, stream);
    for (int m = 0; m < worker->members; m++) {
        CF_IS(worker, ncclInvalidArgument,
              AllReduce(NULL, NULL, 1, ncclNumTypes, ncclSum, worker->world.comm[m], stream[m]));
    }
    CF_IS(worker, ncclInvalidArgument, GroupEnd());
    cf_batch_judge(batch, stream, false);
    cf_batch_issue(batch, CF_GROUPED, stream);
    cf_batch_judge(batch, stream, true);
    cf_batch_free(batch);
}
