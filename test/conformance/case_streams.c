/* SPDX-License-Identifier: MIT */
/* case_streams.c - default streams, several streams, and the order between them */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

void cf_case_stream_several(struct cf_worker *worker)
{
    CUstream stream[CF_STREAMS][CF_MAX_RANKS];
    struct cf_batch *batch = some_calls(worker, &worker->world, 30);
    for (int s = 0; s < CF_STREAMS; s++) {
        cf_streams(worker, s, stream[s]);
    }
    cf_batch_load(batch, stream[0]);
    cf_join(worker, 0, 1);
    cf_join(worker, 0, 2);
    for (int i = 0; i < batch->items; i++) {
        cf_batch_issue_one(batch, i, false, stream[i % CF_STREAMS]);
    }
    cf_join(worker, 1, 0);
    cf_join(worker, 2, 0);
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

/* --- with calls that NCCL serves ---------------------------------------------------------------------------------- */

#define OTHER_BYTES 4096
#define ROUND_MICROSECONDS 4000 /* between rounds, in which onehop's set-up in the background goes on */

/* Of each member: what it sends, and behind that room for what all ranks send. */
struct other {
    size_t bytes;
    CUdeviceptr device[CF_MAX_RANKS];
    unsigned char *host[CF_MAX_RANKS];
};

enum other_call {
    OTHER_BROADCAST,
    OTHER_RING,
    OTHER_GATHER,
    OTHER_CALLS
};

static unsigned char other_byte(const struct cf_worker *worker, int rank, size_t i)
{
    return (unsigned char)cf_mix(worker->options->seed + worker->serial * 16 + (uint64_t)rank + i * 1024);
}

static void other_open(struct cf_worker *worker, struct other *other_p)
{
    *other_p = (struct other){.bytes = OTHER_BYTES * (1 + (size_t)worker->nranks)};
    for (int m = 0; m < worker->members; m++) {
        other_p->host[m] = malloc(other_p->bytes);
        if (other_p->host[m] == NULL) {
            cf_die(worker, "no memory");
        }
        cf_use(worker, m);
        CF_CU(worker, MemAlloc(&other_p->device[m], other_p->bytes));
    }
}

static void other_close(struct cf_worker *worker, struct other *other)
{
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        CF_CU(worker, MemFree(other->device[m]));
        free(other->host[m]);
    }
}

static void other_load(struct cf_worker *worker, struct other *other, CUstream *stream)
{
    for (int m = 0; m < worker->members; m++) {
        memset(other->host[m], 0xee, other->bytes);
        for (size_t i = 0; i < OTHER_BYTES; i++) {
            other->host[m][i] = other_byte(worker, worker->member[m].world_rank, i);
        }
        cf_use(worker, m);
        CF_CU(worker, MemcpyHtoDAsync(other->device[m], other->host[m], other->bytes, stream[m]));
    }
}

static void other_issue(struct cf_worker *worker, struct other *other, enum other_call which, CUstream *stream)
{
    for (int m = 0; m < worker->members; m++) {
        int rank = worker->member[m].world_rank, n = worker->nranks;
        char *send = (char *)(uintptr_t)other->device[m], *recv = send + OTHER_BYTES;
        ncclComm_t comm = worker->world.comm[m];
        if (which == OTHER_BROADCAST) {
            CF_NCCL(worker, Broadcast(send, recv, OTHER_BYTES, ncclUint8, n - 1, comm, stream[m]));
        } else if (which == OTHER_RING) {
            CF_NCCL(worker, Send(send, OTHER_BYTES, ncclUint8, (rank + n - 1) % n, comm, stream[m]));
            CF_NCCL(worker, Recv(recv, OTHER_BYTES, ncclUint8, (rank + 1) % n, comm, stream[m]));
        } else {
            CF_NCCL(worker, AllGather(send, recv, OTHER_BYTES, ncclUint8, comm, stream[m]));
        }
    }
}

static void other_judge(struct cf_worker *worker, struct other *other, enum other_call which, CUstream *stream)
{
    static const char *const names[OTHER_CALLS] = {"broadcast", "send and receive", "allgather"};
    for (int m = 0; m < worker->members; m++) {
        int rank = worker->member[m].world_rank, n = worker->nranks;
        size_t end = which == OTHER_GATHER ? other->bytes : (size_t)2 * OTHER_BYTES, bad = 0;
        cf_use(worker, m);
        CF_CU(worker, MemcpyDtoHAsync(other->host[m], other->device[m], other->bytes, stream[m]));
        CF_CU(worker, StreamSynchronize(stream[m]));
        for (size_t i = OTHER_BYTES; i < end; i++) {
            int from = which == OTHER_BROADCAST ? n - 1
                       : which == OTHER_RING    ? (rank + 1) % n
                                                : (int)(i / OTHER_BYTES) - 1;
            bad += other->host[m][i] != other_byte(worker, from, i % OTHER_BYTES);
        }
        cf_check(worker, bad == 0, "%s: %zu bytes are wrong", names[which], bad);
    }
}

/*
 * A group of an allreduce on one stream and another call on a second. As NCCL joins all streams of a group, both start
 * after what is loaded on either stream, and either stream waits for both.
 */
void cf_case_stream_group_mixed(struct cf_worker *worker)
{
    CUstream stream[2][CF_MAX_RANKS];
    struct other other;
    cf_streams(worker, 0, stream[0]);
    cf_streams(worker, 1, stream[1]);
    other_open(worker, &other);
    for (int round = 0; round < 8 * OTHER_CALLS; round++) {
        enum other_call which = (enum other_call)(round % OTHER_CALLS);
        CUstream *outer = stream[round / OTHER_CALLS % 2];
        struct cf_batch *batch = some_calls(worker, &worker->world, 1);
        cf_batch_load(batch, outer);
        other_load(worker, &other, outer);
        CF_NCCL(worker, GroupStart());
        if (round / 2 % 2) {
            cf_batch_issue_one(batch, 0, false, stream[0]);
        }
        other_issue(worker, &other, which, stream[1]);
        if (!(round / 2 % 2)) {
            cf_batch_issue_one(batch, 0, false, stream[0]);
        }
        CF_NCCL(worker, GroupEnd());
        other_judge(worker, &other, which, outer);
        cf_batch_judge(batch, outer, true);
        cf_batch_free(batch);
    }
    other_close(worker, &other);
}

/* The call of one turn on each member: an odd one reduces to the front what the broadcast before it has left behind. */
static void call_in_turn(struct cf_worker *worker, const struct cf_set *set, struct other *other, int turn,
                         CUstream stream[2][CF_MAX_RANKS])
{
    for (int m = 0; m < worker->members; m++) {
        char *front = (char *)(uintptr_t)other->device[m], *back = front + OTHER_BYTES;
        int root = turn == 0 ? worker->nranks - 1 : 0;
        cf_use(worker, m);
        ncclResult_t result =
            turn % 2 ? nccl.AllReduce(back, front, OTHER_BYTES, ncclUint8, ncclMax, set->comm[m], stream[0][m])
                     : nccl.Broadcast(front, back, OTHER_BYTES, ncclUint8, root, set->comm[m], stream[1][m]);
        if (result != ncclSuccess && result != ncclInProgress) {
            cf_die(worker, "turn %d gave %d", turn, (int)result);
        }
    }
}

/* One turn on all members, which waits where the communicator is non-blocking. */
static void take_turn(struct cf_worker *worker, const struct cf_set *set, struct other *other, int turn,
                      CUstream stream[2][CF_MAX_RANKS])
{
    bool grouped = worker->members > 1;
    if (grouped) {
        CF_NCCL(worker, GroupStart());
    }
    call_in_turn(worker, set, other, turn, stream);
    if (grouped) {
        cf_group_end(worker, set);
    } else {
        cf_set_ready(worker, set);
    }
}

/*
 * Calls in turn on two streams that nothing else orders: an allreduce takes what the broadcast before it has written,
 * and a broadcast what the allreduce has. All ranks have equal inputs, so that a maximum is the input.
 */
static void round_robin(struct cf_worker *worker, const struct cf_set *set, struct other *other, int streams)
{
    enum {
        TURNS = 6
    };
    CUstream stream[2][CF_MAX_RANKS];
    cf_streams(worker, 0, stream[0]);
    cf_streams(worker, streams - 1, stream[1]);
    worker->serial++;
    other_load(worker, other, stream[1]);
    for (int turn = 0; turn < TURNS; turn++) {
        take_turn(worker, set, other, turn, stream);
    }
    other_judge(worker, other, OTHER_BROADCAST, stream[0]);
}

void cf_case_stream_mixed(struct cf_worker *worker)
{
    struct other other;
    other_open(worker, &other);
    for (int round = 0; round < 6; round++) {
        round_robin(worker, &worker->world, &other, 2);
    }
    other_close(worker, &other);
}

#define MANY_TURNS 200

/* Many broadcasts on one stream, the last of which leaves what an allreduce on another takes: a communicator's first.
 */
void cf_case_stream_change(struct cf_worker *worker)
{
    struct cf_set set;
    struct other other;
    CUstream stream[2][CF_MAX_RANKS];
    cf_streams(worker, 0, stream[0]);
    cf_streams(worker, 1, stream[1]);
    cf_set_create(worker, CF_INIT_RANK, &set);
    other_open(worker, &other);
    worker->serial++;
    other_load(worker, &other, stream[1]);
    for (int i = 0; i < MANY_TURNS; i++) {
        bool grouped = worker->members > 1;
        if (grouped) {
            CF_NCCL(worker, GroupStart());
        }
        for (int m = 0; m < worker->members; m++) {
            char *front = (char *)(uintptr_t)other.device[m];
            char *to = i < MANY_TURNS - 1 ? front : front + OTHER_BYTES; /* in place but for the last */
            cf_use(worker, m);
            CF_NCCL(worker,
                    Broadcast(front, to, OTHER_BYTES, ncclUint8, worker->nranks - 1, set.comm[m], stream[1][m]));
        }
        if (grouped) {
            CF_NCCL(worker, GroupEnd());
        }
    }
    for (int turn = 1; turn <= 3; turn++) {
        take_turn(worker, &set, &other, turn, stream);
    }
    other_judge(worker, &other, OTHER_BROADCAST, stream[0]);
    other_close(worker, &other);
    cf_barrier(worker);
    cf_set_destroy(worker, &set);
}

#define SLOW_MICROSECONDS 300000 /* a stream is held up; onehop's set-up in the background takes less */

static void CUDA_CB be_slow(void *nothing)
{
    (void)nothing;
    usleep(SLOW_MICROSECONDS);
}

/* A broadcast of a new, non-blocking communicator waits on its stream while onehop comes in; then an allreduce on
 * another stream takes what it leaves. */
void cf_case_stream_late(struct cf_worker *worker)
{
    struct cf_set set;
    struct other other;
    CUstream stream[2][CF_MAX_RANKS];
    cf_streams(worker, 0, stream[0]);
    cf_streams(worker, 1, stream[1]);
    cf_set_create(worker, CF_INIT_NONBLOCKING, &set);
    other_open(worker, &other);
    worker->serial++;
    other_load(worker, &other, stream[1]);
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        CF_CU(worker, LaunchHostFunc(stream[1][m], be_slow, NULL));
    }
    take_turn(worker, &set, &other, 0, stream);
    usleep(SLOW_MICROSECONDS / 2);
    for (int turn = 1; turn <= 5; turn++) {
        take_turn(worker, &set, &other, turn, stream);
    }
    other_judge(worker, &other, OTHER_BROADCAST, stream[0]);
    other_close(worker, &other);
    cf_barrier(worker);
    cf_set_destroy(worker, &set);
}

/*
 * Turns in a graph, from turn `first` to `last`, on two streams of one capture that only NCCL's order of calls puts one
 * behind the other.
 */
static void capture_turns(struct cf_worker *worker, const struct cf_set *set, struct other *other, int first, int last,
                          CUgraph *graph_p, CUgraphExec *exec_p)
{
    CUstream stream[2][CF_MAX_RANKS];
    cf_streams(worker, 0, stream[0]);
    cf_streams(worker, 1, stream[1]);
    take_turn(worker, set, other, 0, stream); /* NCCL makes the first broadcast of ranks as threads only uncaptured */
    cf_capture_begin(worker, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    cf_join(worker, 0, 1);
    for (int turn = first; turn <= last; turn++) {
        take_turn(worker, set, other, turn, stream);
    }
    cf_join(worker, 1, 0);
    cf_capture_end(worker, graph_p);
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        CF_CU(worker, GraphInstantiate(&exec_p[m], graph_p[m], 0));
    }
    cf_barrier(worker); /* it may wait for kernels, as all that allocates */
}

static void launch_graphs(struct cf_worker *worker, const CUgraphExec *exec, int which)
{
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        CF_CU(worker, GraphLaunch(exec[m], worker->member[m].stream[which]));
    }
}

static void destroy_graphs(struct cf_worker *worker, const CUgraph *graph, const CUgraphExec *exec)
{
    cf_sync(worker);
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        CF_CU(worker, GraphExecDestroy(exec[m]));
        CF_CU(worker, GraphDestroy(graph[m]));
    }
}

/* Allreduces and broadcasts in turn on two streams of a capture. */
void cf_case_graph_mixed(struct cf_worker *worker)
{
    CUstream stream[CF_MAX_RANKS];
    CUgraph graph[CF_MAX_RANKS];
    CUgraphExec exec[CF_MAX_RANKS];
    struct other other;
    cf_streams(worker, 0, stream);
    other_open(worker, &other);
    capture_turns(worker, &worker->world, &other, 0, 5, graph, exec);
    for (int round = 0; round < 5; round++) {
        worker->serial++;
        other_load(worker, &other, stream);
        launch_graphs(worker, exec, 0);
        other_judge(worker, &other, OTHER_BROADCAST, stream);
    }
    destroy_graphs(worker, graph, exec);
    other_close(worker, &other);
}

/* A graph of broadcasts alone on one stream, and allreduces on another, in turn. */
void cf_case_graph_others(struct cf_worker *worker)
{
    CUstream stream[2][CF_MAX_RANKS];
    CUgraph graph[CF_MAX_RANKS];
    CUgraphExec exec[CF_MAX_RANKS];
    struct other other;
    cf_streams(worker, 0, stream[0]);
    cf_streams(worker, 1, stream[1]);
    other_open(worker, &other);
    capture_turns(worker, &worker->world, &other, 0, 0, graph, exec);
    for (int round = 0; round < 5; round++) {
        worker->serial++;
        other_load(worker, &other, stream[1]);
        for (int turn = 0; turn < 6; turn += 2) {
            launch_graphs(worker, exec, 1);
            take_turn(worker, &worker->world, &other, turn + 1, stream);
        }
        other_judge(worker, &other, OTHER_BROADCAST, stream[0]);
    }
    destroy_graphs(worker, graph, exec);
    other_close(worker, &other);
}

/* As stream-mixed of a non-blocking communicator, whose calls NCCL launches in the background, and onehop comes in
 * late. */
void cf_case_stream_nonblocking(struct cf_worker *worker)
{
    struct cf_set set;
    struct other other;
    cf_set_create(worker, CF_INIT_NONBLOCKING, &set);
    other_open(worker, &other);
    for (int round = 0; round < 40; round++) {
        round_robin(worker, &set, &other, 2);
        usleep(round < 25 ? ROUND_MICROSECONDS : 0);
    }
    other_close(worker, &other);
    cf_barrier(worker);
    cf_set_destroy(worker, &set);
}

/* An allreduce on one communicator and a broadcast on another, new one in a group, both on one stream. */
static void group_of_two(struct cf_worker *worker, const struct cf_set *set, struct other *other)
{
    struct cf_set fresh;
    CUstream stream[CF_MAX_RANKS];
    cf_streams(worker, 0, stream);
    cf_set_create(worker, CF_INIT_NONBLOCKING, &fresh);
    struct cf_batch *batch = some_calls(worker, set, 1);
    cf_batch_load(batch, stream);
    other_load(worker, other, stream);
    CF_NCCL(worker, GroupStart());
    cf_batch_issue_one(batch, 0, true, stream);
    for (int m = 0; m < worker->members; m++) {
        char *send = (char *)(uintptr_t)other->device[m];
        CF_NCCL(worker, Broadcast(send, send + OTHER_BYTES, OTHER_BYTES, ncclUint8, worker->nranks - 1, fresh.comm[m],
                                  stream[m]));
    }
    cf_group_end(worker, set);
    cf_set_ready(worker, &fresh);
    cf_batch_judge(batch, stream, true);
    cf_batch_free(batch);
    other_judge(worker, other, OTHER_BROADCAST, stream);
    cf_barrier(worker);
    cf_set_destroy(worker, &fresh);
}

/*
 * NCCL launches a group of non-blocking communicators in the background. Two calls of it on one stream must be there in
 * the same order on all ranks, or these wait for one another.
 */
void cf_case_stream_group_nonblocking(struct cf_worker *worker)
{
    struct cf_set set;
    struct other other;
    cf_set_create(worker, CF_INIT_NONBLOCKING, &set);
    other_open(worker, &other);
    for (int round = 0; round < 25; round++) {
        round_robin(worker, &set, &other, 1);
        usleep(ROUND_MICROSECONDS);
    }
    for (int round = 0; round < 10; round++) {
        group_of_two(worker, &set, &other);
    }
    other_close(worker, &other);
    cf_barrier(worker);
    cf_set_destroy(worker, &set);
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
    cf_join(worker, 0, 1);
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        CF_CU(worker, MemcpyDtoDAsync(batch->arena[m] + batch->item[1].send, batch->arena[m] + batch->item[0].recv,
                                      bytes, stream[1][m]));
    }
    cf_join(worker, 1, 2);
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
