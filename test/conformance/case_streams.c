/* SPDX-License-Identifier: MIT */
/* case_streams.c - default streams, several streams, and the order between them */
#include "test/conformance/cases.h"

static struct cf_batch *some_calls(struct cf_worker *worker, const struct cf_set *set, int items)
{
    static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclInt32, ncclFloat16};
    struct cf_batch *batch = cf_batch_new(worker, set);
    for (int i = 0; i < items; i++) {
        cf_batch_add(batch, &(struct cf_spec){.type = types[i % 4],
                                              .op = i % 5 == 4 ? CF_MAX : CF_SUM,
                                              .family = CF_EXACT,
                                              .count = 1 + (size_t)i * 977 % 9000,
                                              .in_place = i % 2 == 1});
    }
    return batch;
}

static void run_on_default(struct cf_worker *worker, CUstream handle)
{
    CUstream stream[CF_MAX_RANKS];
    for (int m = 0; m < worker->members; m++) {
        stream[m] = handle;
    }
    for (int style = CF_SINGLE; style <= CF_GROUPED; style++) {
        struct cf_batch *batch = some_calls(worker, &worker->world, 12);
        cf_batch_load(batch, stream);
        cf_batch_issue(batch, (enum cf_style)style, stream);
        cf_batch_judge(batch, stream, true);
        cf_batch_free(batch);
    }
}

void cf_case_stream_null(struct cf_worker *worker)
{
    run_on_default(worker, NULL);
}

void cf_case_stream_per_thread(struct cf_worker *worker)
{
    run_on_default(worker, CU_STREAM_PER_THREAD);
}

/* Makes stream `to` of each member wait for what is on its stream `from` now. */
static void join(struct cf_worker *worker, int from, int to)
{
    for (int m = 0; m < worker->members; m++) {
        CUevent event;
        cf_use(worker, m);
        CF_CU(worker, EventCreate(&event, CU_EVENT_DISABLE_TIMING));
        CF_CU(worker, EventRecord(event, worker->member[m].stream[from]));
        CF_CU(worker, StreamWaitEvent(worker->member[m].stream[to], event, 0));
        CF_CU(worker, EventDestroy(event));
    }
}

void cf_case_stream_several(struct cf_worker *worker)
{
    CUstream stream[CF_STREAMS][CF_MAX_RANKS];
    struct cf_batch *batch = some_calls(worker, &worker->world, 30);
    for (int s = 0; s < CF_STREAMS; s++) {
        cf_streams(worker, s, stream[s]);
    }
    cf_batch_load(batch, stream[0]);
    join(worker, 0, 1);
    join(worker, 0, 2);
    for (int i = 0; i < batch->items; i++) {
        cf_batch_issue_one(batch, i, false, stream[i % CF_STREAMS]);
    }
    join(worker, 1, 0);
    join(worker, 2, 0);
    cf_batch_judge(batch, stream[0], true);
    cf_batch_free(batch);
}

/* One group whose calls are on three streams: it starts after the load on the first, and all streams wait for it. */
void cf_case_stream_group(struct cf_worker *worker)
{
    CUstream stream[CF_STREAMS][CF_MAX_RANKS];
    for (int last = 0; last < CF_STREAMS; last++) {
        struct cf_batch *batch = some_calls(worker, &worker->world, 9);
        for (int s = 0; s < CF_STREAMS; s++) {
            cf_streams(worker, s, stream[s]);
        }
        cf_batch_load(batch, stream[0]);
        CF_NCCL(worker, GroupStart());
        for (int i = 0; i < batch->items; i++) {
            cf_batch_issue_one(batch, i, false, stream[i % CF_STREAMS]);
        }
        CF_NCCL(worker, GroupEnd());
        cf_batch_judge(batch, stream[last], true);
        cf_batch_free(batch);
    }
}

/* As NCCL joins all streams of a group, the allreduce on one waits for the load on the broadcast's, and is waited for.
 */
void cf_case_stream_group_mixed(struct cf_worker *worker)
{
    CUstream stream[2][CF_MAX_RANKS];
    cf_streams(worker, 0, stream[0]);
    cf_streams(worker, 1, stream[1]);
    for (int round = 0; round < 20; round++) {
        struct cf_batch *batch = some_calls(worker, &worker->world, 1);
        struct cf_batch *other = some_calls(worker, &worker->world, 1);
        cf_batch_load(other, stream[1]);
        cf_batch_load(batch, stream[1]);
        CF_NCCL(worker, GroupStart());
        for (int m = 0; m < worker->members; m++) {
            void *buffer = (void *)(uintptr_t)(other->arena[m] + other->item[0].recv);
            CF_NCCL(worker, Broadcast(buffer, buffer, 4, ncclUint8, 0, worker->world.comm[m], stream[1][m]));
        }
        cf_batch_issue_one(batch, 0, false, stream[0]);
        CF_NCCL(worker, GroupEnd());
        cf_batch_judge(batch, stream[1], true);
        cf_batch_free(batch);
        cf_sync(worker);
        cf_batch_free(other);
    }
}

/*
 * The maximum of sums: item 1 takes item 0's result, copied there on another stream. What is judged of item 0 is its
 * own result; item 1's input is equal on all ranks, so its maximum is that input.
 */
void cf_case_stream_chain(struct cf_worker *worker)
{
    CUstream stream[CF_STREAMS][CF_MAX_RANKS];
    const size_t count = 5000, bytes = count * 4;
    for (int s = 0; s < CF_STREAMS; s++) {
        cf_streams(worker, s, stream[s]);
    }
    struct cf_batch *batch = cf_batch_new(worker, &worker->world);
    for (int i = 0; i < 2; i++) {
        cf_batch_add(batch, &(struct cf_spec){.type = ncclFloat32,
                                              .op = i == 0 ? CF_SUM : CF_MAX,
                                              .family = CF_EXACT,
                                              .count = count,
                                              .in_place = i == 1});
    }
    cf_batch_load(batch, stream[0]);
    cf_batch_issue_one(batch, 0, false, stream[0]);
    join(worker, 0, 1);
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        CF_CU(worker, MemcpyDtoDAsync(batch->arena[m] + batch->item[1].send, batch->arena[m] + batch->item[0].recv,
                                      bytes, stream[1][m]));
    }
    join(worker, 1, 2);
    cf_batch_issue_one(batch, 1, false, stream[2]);
    for (int m = 0; m < worker->members; m++) {
        unsigned char *got = batch->after[m];
        cf_use(worker, m);
        CF_CU(worker, MemcpyDtoHAsync(got, batch->arena[m], batch->bytes, stream[2][m]));
        CF_CU(worker, StreamSynchronize(stream[2][m]));
        size_t different = 0;
        for (size_t i = 0; i < bytes; i++) {
            different += got[batch->item[0].recv + i] != got[batch->item[1].recv + i];
        }
        cf_check(worker, different == 0, "%zu bytes of the second result are not the first's", different);
    }
    batch->items = 1; /* the second has inputs of its own */
    for (int m = 0; m < worker->members; m++) {
        CF_CU(worker, MemcpyHtoDAsync(batch->arena[m] + batch->item[1].send, batch->before[m] + batch->item[1].send,
                                      bytes, stream[2][m]));
    }
    batch->replayed = true; /* two calls were made, one is judged */
    cf_batch_judge(batch, stream[2], true);
    cf_batch_free(batch);
}

void cf_case_stream_communicators(struct cf_worker *worker)
{
    struct cf_set other;
    CUstream stream[2][CF_MAX_RANKS];
    cf_set_create(worker, CF_INIT_RANK, &other);
    struct cf_batch *batch[2] = {some_calls(worker, &worker->world, 20), some_calls(worker, &other, 20)};
    for (int s = 0; s < 2; s++) {
        cf_streams(worker, s + 1, stream[s]);
        cf_batch_load(batch[s], stream[s]);
    }
    for (int i = 0; i < 20; i++) {
        cf_batch_issue_one(batch[0], i, false, stream[0]);
        cf_batch_issue_one(batch[1], 19 - i, false, stream[1]);
    }
    for (int s = 0; s < 2; s++) {
        cf_batch_judge(batch[s], stream[s], true);
        cf_batch_free(batch[s]);
    }
    cf_barrier(worker);
    cf_set_destroy(worker, &other);
}
