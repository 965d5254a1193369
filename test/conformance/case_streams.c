/* SPDX-License-Identifier: MIT */
/* case_streams.c - default streams, several streams, the order between them, and calls that NCCL serves between */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/conformance/cases.h"

static void run_on_default(struct cf_worker *worker, int stream)
{
    for (int style = CF_SINGLE; style <= CF_GROUPED; style++) {
        struct cf_batch *batch = cf_some_calls(worker, &worker->world, 12);
        cf_batch_try(batch, (enum cf_style)style, stream);
        cf_batch_free(batch);
    }
}

void cf_case_stream_null(struct cf_worker *worker)
{
    run_on_default(worker, CF_LEGACY_STREAM);
}

void cf_case_stream_per_thread(struct cf_worker *worker)
{
    run_on_default(worker, CF_PER_THREAD_STREAM);
}

void cf_case_stream_several(struct cf_worker *worker)
{
    struct cf_batch *batch = cf_some_calls(worker, &worker->world, 30);
    cf_batch_load(batch, 0);
    cf_join(worker, 0, 1);
    cf_join(worker, 0, 2);
    for (int i = 0; i < batch->items; i++) {
        cf_batch_issue_one(batch, i, false, i % CF_STREAMS);
    }
    cf_join(worker, 1, 0);
    cf_join(worker, 2, 0);
    cf_batch_finish(batch, 0);
}

/* One group whose calls are on three streams: it starts after the load on the first, and all streams wait for it. */
void cf_case_stream_group(struct cf_worker *worker)
{
    for (int last = 0; last < CF_STREAMS; last++) {
        struct cf_batch *batch = cf_some_calls(worker, &worker->world, 9);
        cf_batch_load(batch, 0);
        CF_NCCL(worker, GroupStart());
        for (int i = 0; i < batch->items; i++) {
            cf_batch_issue_one(batch, i, false, i % CF_STREAMS);
        }
        CF_NCCL(worker, GroupEnd());
        cf_batch_finish(batch, last);
    }
}

/* --- with calls that NCCL serves ---------------------------------------------------------------------------------- */

#define OTHER_BYTES 4096
#define ROUND_MICROSECONDS 4000 /* between rounds, in which onehop's set-up in the background goes on */
#define ON_WORLD CF_MAKERS      /* for other_open */

/* The communicator, and of each member: what it sends, and behind that room for what all ranks send. */
struct other {
    struct cf_set set;
    bool made; /* the communicator, for these calls */
    size_t bytes;
    CUdeviceptr device[CF_MAX_RANKS];
    unsigned char *host[CF_MAX_RANKS];
};

enum other_call {
    OTHER_BROADCAST,
    OTHER_RING,
    OTHER_GATHER,
    OTHER_BOTH, /* the first two, the ring's piece behind the broadcast's */
    OTHER_CALLS
};

static unsigned char other_byte(const struct cf_worker *worker, int rank, size_t i)
{
    return (unsigned char)cf_mix(worker->board->seed + worker->serial * 16 + (uint64_t)rank + i * 1024);
}

static void other_open(struct cf_worker *worker, enum cf_maker maker, struct other *other_p)
{
    *other_p = (struct other){
        .set = worker->world, .made = maker != ON_WORLD, .bytes = OTHER_BYTES * (1 + (size_t)worker->nranks)};
    if (other_p->made) {
        cf_set_create(worker, maker, &other_p->set);
    }
    for (int m = 0; cf_use(worker, m); m++) {
        other_p->host[m] = malloc(other_p->bytes);
        if (other_p->host[m] == NULL) {
            cf_die(worker, "no memory");
        }
        CF_CU(worker, MemAlloc(&other_p->device[m], other_p->bytes));
    }
}

static void other_close(struct cf_worker *worker, struct other *other)
{
    for (int m = 0; cf_use(worker, m); m++) {
        CF_CU(worker, MemFree(other->device[m]));
        free(other->host[m]);
    }
    if (other->made) {
        cf_set_end(worker, &other->set);
    }
}

static void other_load(struct cf_worker *worker, struct other *other, int stream)
{
    worker->serial++;
    for (int m = 0; cf_use(worker, m); m++) {
        memset(other->host[m], 0xee, other->bytes);
        for (size_t i = 0; i < OTHER_BYTES; i++) {
            other->host[m][i] = other_byte(worker, worker->member[m].world_rank, i);
        }
        CF_CU(worker,
              MemcpyHtoDAsync(other->device[m], other->host[m], other->bytes, worker->member[m].stream[stream]));
    }
}

static void other_issue(struct cf_worker *worker, struct other *other, enum other_call which, int on)
{
    for (int m = 0; cf_use(worker, m); m++) {
        int rank = worker->member[m].world_rank, n = worker->nranks;
        char *send = (char *)(uintptr_t)other->device[m], *recv = send + OTHER_BYTES;
        ncclComm_t comm = other->set.comm[m];
        CUstream stream = worker->member[m].stream[on];
        if (which == OTHER_GATHER) {
            CF_NCCL(worker, AllGather(send, recv, OTHER_BYTES, ncclUint8, comm, stream));
        }
        if (which == OTHER_BROADCAST || which == OTHER_BOTH) {
            CF_NCCL(worker, Broadcast(send, recv, OTHER_BYTES, ncclUint8, n - 1, comm, stream));
        }
        if (which == OTHER_RING || which == OTHER_BOTH) {
            recv += which == OTHER_BOTH ? OTHER_BYTES : 0;
            CF_NCCL(worker, Send(send, OTHER_BYTES, ncclUint8, (rank + n - 1) % n, comm, stream));
            CF_NCCL(worker, Recv(recv, OTHER_BYTES, ncclUint8, (rank + 1) % n, comm, stream));
        }
    }
}

/* Whose bytes are in a received piece; -1: nobody's. */
static int sender_of(const struct cf_worker *worker, enum other_call which, int rank, int piece)
{
    int next = (rank + 1) % worker->nranks, root = worker->nranks - 1;
    switch (which) {
    case OTHER_BROADCAST:
        return piece == 0 ? root : -1;
    case OTHER_RING:
        return piece == 0 ? next : -1;
    case OTHER_GATHER:
        return piece;
    default:
        return piece == 0 ? root : piece == 1 ? next : -1;
    }
}

static void other_judge(struct cf_worker *worker, struct other *other, enum other_call which, int on)
{
    static const char *const names[OTHER_CALLS] = {"broadcast", "send and receive", "allgather",
                                                   "broadcast, send and receive"};
    for (int m = 0; cf_use(worker, m); m++) {
        CUstream stream = worker->member[m].stream[on];
        size_t bad = 0;
        CF_CU(worker, MemcpyDtoHAsync(other->host[m], other->device[m], other->bytes, stream));
        CF_CU(worker, StreamSynchronize(stream));
        for (size_t i = OTHER_BYTES; i < other->bytes; i++) {
            int from = sender_of(worker, which, worker->member[m].world_rank, (int)(i / OTHER_BYTES) - 1);
            bad += other->host[m][i] != (from < 0 ? 0xee : other_byte(worker, from, i % OTHER_BYTES));
        }
        cf_check(worker, bad == 0, "%s: %zu bytes are wrong", names[which], bad);
    }
}

/* Others in a group, and allreduces on the same stream: in the group before them, or after it. */
void cf_case_group_mixed(struct cf_worker *worker)
{
    struct other other;
    other_open(worker, ON_WORLD, &other);
    for (int grouped = 0; grouped < 2; grouped++) {
        struct cf_batch *batch = cf_some_calls(worker, &worker->world, 9);
        cf_batch_load(batch, 0);
        other_load(worker, &other, 0);
        CF_NCCL(worker, GroupStart());
        if (grouped) {
            cf_batch_issue(batch, CF_SINGLE, 0);
        }
        other_issue(worker, &other, OTHER_BOTH, 0);
        CF_NCCL(worker, GroupEnd());
        if (!grouped) {
            cf_batch_issue(batch, CF_SINGLE, 0);
        }
        other_judge(worker, &other, OTHER_BOTH, 0);
        cf_batch_finish(batch, 0);
    }
    other_close(worker, &other);
}

/*
 * A group of an allreduce on one stream and another call on a second. As NCCL joins all streams of a group, both start
 * after what is loaded on either stream, and either stream waits for both.
 */
void cf_case_stream_group_mixed(struct cf_worker *worker)
{
    struct other other;
    other_open(worker, ON_WORLD, &other);
    for (int round = 0; round < 8 * OTHER_CALLS; round++) {
        enum other_call which = (enum other_call)(round % OTHER_CALLS);
        int outer = round / OTHER_CALLS % 2;
        bool first = round / OTHER_CALLS / 2 % 2;
        struct cf_batch *batch = cf_some_calls(worker, &worker->world, 1);
        cf_batch_load(batch, outer);
        other_load(worker, &other, outer);
        CF_NCCL(worker, GroupStart());
        if (first) {
            cf_batch_issue_one(batch, 0, false, 0);
        }
        other_issue(worker, &other, which, 1);
        if (!first) {
            cf_batch_issue_one(batch, 0, false, 0);
        }
        CF_NCCL(worker, GroupEnd());
        other_judge(worker, &other, which, outer);
        cf_batch_finish(batch, outer);
    }
    other_close(worker, &other);
}

/*
 * The call of one turn on each member, broadcasts on a stream of the caller's choice, allreduces on the first: an odd
 * one reduces to the front what the broadcast before it has left behind. Before turn 0, broadcasts are in place.
 */
static void take_turn(struct cf_worker *worker, struct other *other, int turn, int broadcasts)
{
    cf_calls_begin(worker, false);
    for (int m = 0; cf_use(worker, m); m++) {
        char *front = (char *)(uintptr_t)other->device[m], *back = front + OTHER_BYTES;
        ncclComm_t comm = other->set.comm[m];
        CUstream *stream = worker->member[m].stream;
        if (turn > 0 && turn % 2 == 1) {
            CF_START(worker, AllReduce(back, front, OTHER_BYTES, ncclUint8, ncclMax, comm, stream[0]));
        } else {
            CF_START(worker, Broadcast(front, turn < 0 ? front : back, OTHER_BYTES, ncclUint8,
                                       turn <= 0 ? worker->nranks - 1 : 0, comm, stream[broadcasts]));
        }
    }
    cf_calls_end(worker, false, &other->set);
}

static void take_turns(struct cf_worker *worker, struct other *other, int first, int last)
{
    for (int turn = first; turn <= last; turn++) {
        take_turn(worker, other, turn, 1);
    }
}

/*
 * Calls in turn that nothing else orders where they are on two streams: an allreduce takes what the broadcast before it
 * has written, and a broadcast what the allreduce has. All ranks have equal inputs, so that a maximum is the input.
 */
static void round_robin(struct cf_worker *worker, struct other *other, int broadcasts)
{
    other_load(worker, other, broadcasts);
    for (int turn = 0; turn < 6; turn++) {
        take_turn(worker, other, turn, broadcasts);
    }
    other_judge(worker, other, OTHER_BROADCAST, 0);
}

void cf_case_stream_mixed(struct cf_worker *worker)
{
    struct other other;
    other_open(worker, ON_WORLD, &other);
    for (int round = 0; round < 6; round++) {
        round_robin(worker, &other, 1);
    }
    other_close(worker, &other);
}

#define MANY_TURNS 200

/* Many broadcasts on one stream, the last of which leaves what an allreduce on another takes: a communicator's first.
 */
void cf_case_stream_change(struct cf_worker *worker)
{
    struct other other;
    other_open(worker, CF_INIT_RANK, &other);
    other_load(worker, &other, 1);
    take_turns(worker, &other, 1 - MANY_TURNS, 3);
    other_judge(worker, &other, OTHER_BROADCAST, 0);
    other_close(worker, &other);
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
    struct other other;
    other_open(worker, CF_INIT_NONBLOCKING, &other);
    other_load(worker, &other, 1);
    for (int m = 0; cf_use(worker, m); m++) {
        CF_CU(worker, LaunchHostFunc(worker->member[m].stream[1], be_slow, NULL));
    }
    take_turn(worker, &other, 0, 1);
    usleep(SLOW_MICROSECONDS / 2);
    take_turns(worker, &other, 1, 5);
    other_judge(worker, &other, OTHER_BROADCAST, 0);
    other_close(worker, &other);
}

/* Turns in a graph, up to turn `last`, on two streams of one capture that only NCCL's order of calls puts one behind
 * the other. */
static void capture_turns(struct cf_worker *worker, struct other *other, int last, struct cf_graph *graph_p)
{
    take_turn(worker, other, 0, 1); /* NCCL makes the first broadcast of ranks as threads only uncaptured */
    cf_capture_begin(worker, 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, graph_p);
    cf_join(worker, 0, 1);
    take_turns(worker, other, 0, last);
    cf_join(worker, 1, 0);
    cf_capture_end(worker, graph_p);
    cf_graph_instantiate(worker, graph_p);
}

/* Allreduces and broadcasts in turn on two streams of a capture. */
void cf_case_graph_mixed(struct cf_worker *worker)
{
    struct cf_graph graph;
    struct other other;
    other_open(worker, ON_WORLD, &other);
    capture_turns(worker, &other, 5, &graph);
    for (int round = 0; round < 5; round++) {
        other_load(worker, &other, 0);
        cf_graph_launch(worker, &graph, 0);
        other_judge(worker, &other, OTHER_BROADCAST, 0);
    }
    cf_sync(worker);
    cf_graph_destroy(worker, &graph);
    other_close(worker, &other);
}

/* A graph of broadcasts alone on one stream, and allreduces on another, in turn. */
void cf_case_graph_others(struct cf_worker *worker)
{
    struct cf_graph graph;
    struct other other;
    other_open(worker, ON_WORLD, &other);
    capture_turns(worker, &other, 0, &graph);
    for (int round = 0; round < 5; round++) {
        other_load(worker, &other, 1);
        for (int turn = 1; turn < 6; turn += 2) {
            cf_graph_launch(worker, &graph, 1);
            take_turn(worker, &other, turn, 1);
        }
        other_judge(worker, &other, OTHER_BROADCAST, 0);
    }
    cf_sync(worker);
    cf_graph_destroy(worker, &graph);
    other_close(worker, &other);
}

/* As stream-mixed of a non-blocking communicator, whose calls NCCL launches in the background, and onehop comes in
 * late. */
void cf_case_stream_nonblocking(struct cf_worker *worker)
{
    struct other other;
    other_open(worker, CF_INIT_NONBLOCKING, &other);
    for (int round = 0; round < 40; round++) {
        round_robin(worker, &other, 1);
        usleep(round < 25 ? ROUND_MICROSECONDS : 0);
    }
    other_close(worker, &other);
}

/* An allreduce on one communicator and a broadcast on another, new one in a group, both on one stream. */
static void group_of_two(struct cf_worker *worker, const struct cf_set *set)
{
    struct other fresh;
    other_open(worker, CF_INIT_NONBLOCKING, &fresh);
    struct cf_batch *batch = cf_some_calls(worker, set, 1);
    cf_batch_load(batch, 0);
    other_load(worker, &fresh, 0);
    cf_calls_begin(worker, true);
    cf_batch_issue_one(batch, 0, true, 0);
    other_issue(worker, &fresh, OTHER_BROADCAST, 0);
    cf_calls_end(worker, true, set);
    cf_set_ready(worker, &fresh.set);
    cf_batch_finish(batch, 0);
    other_judge(worker, &fresh, OTHER_BROADCAST, 0);
    other_close(worker, &fresh);
}

/*
 * NCCL launches a group of non-blocking communicators in the background. Two calls of it on one stream must be there in
 * the same order on all ranks, or these wait for one another.
 */
void cf_case_stream_group_nonblocking(struct cf_worker *worker)
{
    struct other other;
    other_open(worker, CF_INIT_NONBLOCKING, &other);
    for (int round = 0; round < 25; round++) {
        round_robin(worker, &other, 0);
        usleep(ROUND_MICROSECONDS);
    }
    for (int round = 0; round < 10; round++) {
        group_of_two(worker, &other.set);
    }
    other_close(worker, &other);
}

/*
 * The maximum of sums: item 1 takes item 0's result, copied there on another stream. What is judged of item 0 is its
 * own result; item 1's input is equal on all ranks, so its maximum is that input.
 */
void cf_case_stream_chain(struct cf_worker *worker)
{
    const size_t count = 5000, bytes = count * 4;
    struct cf_batch *batch = cf_batch_new(worker, &worker->world);
    for (int i = 0; i < 2; i++) {
        cf_batch_add(batch, &(struct cf_spec){.type = ncclFloat32,
                                              .op = i == 0 ? CF_SUM : CF_MAX,
                                              .family = CF_EXACT,
                                              .count = count,
                                              .in_place = i == 1});
    }
    cf_batch_load(batch, 0);
    cf_batch_issue_one(batch, 0, false, 0);
    cf_join(worker, 0, 1);
    for (int m = 0; cf_use(worker, m); m++) {
        CF_CU(worker, MemcpyDtoDAsync(batch->arena[m] + batch->item[1].send, batch->arena[m] + batch->item[0].recv,
                                      bytes, worker->member[m].stream[1]));
    }
    cf_join(worker, 1, 2);
    cf_batch_issue_one(batch, 1, false, 2);
    for (int m = 0; cf_use(worker, m); m++) {
        unsigned char *got = batch->after[m];
        CF_CU(worker, MemcpyDtoHAsync(got, batch->arena[m], batch->bytes, worker->member[m].stream[2]));
        CF_CU(worker, StreamSynchronize(worker->member[m].stream[2]));
        size_t different = 0;
        for (size_t i = 0; i < bytes; i++) {
            different += got[batch->item[0].recv + i] != got[batch->item[1].recv + i];
        }
        cf_check(worker, different == 0, "%zu bytes of the second result are not the first's", different);
    }
    batch->items = 1; /* the second has inputs of its own */
    for (int m = 0; m < worker->members; m++) {
        CF_CU(worker, MemcpyHtoDAsync(batch->arena[m] + batch->item[1].send, batch->before[m] + batch->item[1].send,
                                      bytes, worker->member[m].stream[2]));
    }
    batch->replayed = true; /* two calls were made, one is judged */
    cf_batch_finish(batch, 2);
}

void cf_case_stream_communicators(struct cf_worker *worker)
{
    struct cf_set other;
    cf_set_create(worker, CF_INIT_RANK, &other);
    struct cf_batch *batch[2] = {cf_some_calls(worker, &worker->world, 20), cf_some_calls(worker, &other, 20)};
    for (int s = 0; s < 2; s++) {
        cf_batch_load(batch[s], s + 1);
    }
    for (int i = 0; i < 20; i++) {
        cf_batch_issue_one(batch[0], i, false, 1);
        cf_batch_issue_one(batch[1], 19 - i, false, 2);
    }
    for (int s = 0; s < 2; s++) {
        cf_batch_finish(batch[s], s + 1);
    }
    cf_set_end(worker, &other);
}
