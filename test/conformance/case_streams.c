/* SPDX-License-Identifier: MIT */
/* case_streams.c - default streams, several streams, the order between them, and calls of other functions between */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/common/others.h"
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
    for (int s = 1; s < CF_STREAMS; s++) {
        cf_join(worker, 0, s);
    }
    for (int i = 0; i < batch->items; i++) {
        cf_batch_issue_one(batch, i, false, i % CF_STREAMS);
    }
    for (int s = 1; s < CF_STREAMS; s++) {
        cf_join(worker, s, 0);
    }
    cf_batch_finish(batch, 0);
}

static void CUDA_CB be_slow(void *microseconds)
{
    usleep((useconds_t)(uintptr_t)microseconds);
}

static void hold_up(struct cf_worker *worker, int stream, useconds_t microseconds)
{
    for (int m = 0; cf_use(worker, m); m++) {
        CF_CU(worker, LaunchHostFunc(worker->member[m].stream[stream], be_slow, (void *)(uintptr_t)microseconds));
    }
}

#define LOAD_MICROSECONDS 20000 /* before a load: what does not wait for it comes too early */

/* One group whose calls are on all streams: it starts after the load on the first, and all streams wait for it. */
void cf_case_stream_group(struct cf_worker *worker)
{
    for (int last = 0; last < CF_STREAMS; last++) {
        struct cf_batch *batch = cf_some_calls(worker, &worker->world, 9);
        hold_up(worker, 0, LOAD_MICROSECONDS);
        cf_batch_load(batch, 0);
        CF_NCCL(worker, GroupStart());
        for (int i = 0; i < batch->items; i++) {
            cf_batch_issue_one(batch, i, false, i % CF_STREAMS);
        }
        CF_NCCL(worker, GroupEnd());
        cf_batch_finish(batch, last);
    }
}

/* --- with calls that NCCL may serve ------------------------------------------------------------------------------- */

#define RING (CF_SEND | CF_RECEIVE)
#define ROUND_MICROSECONDS 4000 /* between rounds, in which onehop's set-up in the background goes on */

/* Calls on a communicator made for them. */
static void open_fresh(struct cf_worker *worker, enum cf_maker maker, struct cf_set *set_p, struct cf_others *others_p)
{
    cf_set_create(worker, maker, set_p);
    cf_others_open(worker, set_p, others_p);
}

static void close_fresh(struct cf_worker *worker, struct cf_set *set, struct cf_others *others)
{
    cf_others_close(others);
    cf_set_end(worker, set);
}

/* Others in a group, and allreduces on the same stream: in the group before them, or after it. */
void cf_case_group_mixed(struct cf_worker *worker)
{
    struct cf_others others;
    cf_others_open(worker, &worker->world, &others);
    for (int grouped = 0; grouped < 2; grouped++) {
        struct cf_batch *batch = cf_some_calls(worker, &worker->world, 9);
        cf_batch_load(batch, 0);
        cf_others_load(&others, 0);
        CF_NCCL(worker, GroupStart());
        if (grouped) {
            cf_batch_issue(batch, CF_SINGLE, 0);
        }
        cf_others_issue(&others, CF_ALL_OTHERS, 0);
        CF_NCCL(worker, GroupEnd());
        if (!grouped) {
            cf_batch_issue(batch, CF_SINGLE, 0);
        }
        cf_others_judge(&others, CF_ALL_OTHERS, 0);
        cf_batch_finish(batch, 0);
    }
    cf_others_close(&others);
}

/*
 * A group of an allreduce on one stream and another call on a second. As NCCL joins all streams of a group, both start
 * after what is loaded on either stream, and either stream waits for both.
 */
void cf_case_stream_group_mixed(struct cf_worker *worker)
{
    struct cf_others others;
    cf_others_open(worker, &worker->world, &others);
    for (int round = 0; round < 32; round++) {
        static const unsigned calls[] = {CF_BROADCAST, RING, CF_ALL_GATHER, CF_BROADCAST | RING};
        int outer = round / 4 % 2;
        bool first = round / 8 % 2;
        struct cf_batch *batch = cf_some_calls(worker, &worker->world, 1);
        cf_batch_load(batch, outer);
        cf_others_load(&others, outer);
        CF_NCCL(worker, GroupStart());
        if (first) {
            cf_batch_issue_one(batch, 0, false, 0);
        }
        cf_others_issue(&others, calls[round % 4], 1);
        if (!first) {
            cf_batch_issue_one(batch, 0, false, 0);
        }
        CF_NCCL(worker, GroupEnd());
        cf_others_judge(&others, calls[round % 4], outer);
        cf_batch_finish(batch, outer);
    }
    cf_others_close(&others);
}

/*
 * The call of one turn on each member, broadcasts on a stream of the caller's choice, allreduces on the first: an odd
 * one reduces to the front what the broadcast before it has left behind. Before turn 0, broadcasts are in place.
 */
static void take_turn(const struct cf_others *others, int turn, int broadcasts)
{
    struct cf_worker *worker = others->worker;
    cf_calls_begin(worker, false);
    for (int m = 0; cf_use(worker, m); m++) {
        void *front = cf_others_input(others, m), *back = cf_others_result(others, CF_BROADCAST, m);
        ncclComm_t comm = others->set->comm[m];
        CUstream *stream = worker->member[m].stream;
        if (turn > 0 && turn % 2 == 1) {
            CF_START(worker, AllReduce(back, front, CF_OTHER_BYTES, ncclUint8, ncclMax, comm, stream[0]));
        } else {
            CF_START(worker, Broadcast(front, turn < 0 ? front : back, CF_OTHER_BYTES, ncclUint8,
                                       turn <= 0 ? worker->nranks - 1 : 0, comm, stream[broadcasts]));
        }
    }
    cf_calls_end(worker, false, others->set);
}

static void take_turns(const struct cf_others *others, int first, int last)
{
    for (int turn = first; turn <= last; turn++) {
        take_turn(others, turn, 1);
    }
}

/*
 * Calls in turn that nothing else orders where they are on two streams: an allreduce takes what the broadcast before it
 * has written, and a broadcast what the allreduce has. All ranks have equal inputs, so that a maximum is the input.
 */
static void round_robin(struct cf_others *others, int broadcasts)
{
    cf_others_load(others, broadcasts);
    for (int turn = 0; turn < 6; turn++) {
        take_turn(others, turn, broadcasts);
    }
    cf_others_judge(others, CF_BROADCAST, 0);
}

void cf_case_stream_mixed(struct cf_worker *worker)
{
    struct cf_others others;
    cf_others_open(worker, &worker->world, &others);
    for (int round = 0; round < 6; round++) {
        round_robin(&others, 1);
    }
    cf_others_close(&others);
}

#define MANY_TURNS 200

/* Many broadcasts on one stream, the last of which leaves what an allreduce on another takes: a communicator's first.
 */
void cf_case_stream_change(struct cf_worker *worker)
{
    struct cf_set set;
    struct cf_others others;
    open_fresh(worker, CF_INIT_RANK, &set, &others);
    cf_others_load(&others, 1);
    take_turns(&others, 1 - MANY_TURNS, 3);
    cf_others_judge(&others, CF_BROADCAST, 0);
    close_fresh(worker, &set, &others);
}

#define SLOW_MICROSECONDS 300000 /* a stream is held up; onehop's set-up in the background takes less */

/* A broadcast of a new, non-blocking communicator waits on its stream while onehop comes in; then an allreduce on
 * another stream takes what it leaves. */
void cf_case_stream_late(struct cf_worker *worker)
{
    struct cf_set set;
    struct cf_others others;
    open_fresh(worker, CF_INIT_NONBLOCKING, &set, &others);
    cf_others_load(&others, 1);
    hold_up(worker, 1, SLOW_MICROSECONDS);
    take_turn(&others, 0, 1);
    usleep(SLOW_MICROSECONDS / 2);
    take_turns(&others, 1, 5);
    cf_others_judge(&others, CF_BROADCAST, 0);
    close_fresh(worker, &set, &others);
}

/* Turns in a graph, up to turn `last`, on two streams of one capture that only NCCL's order of calls puts one behind
 * the other. */
static void capture_turns(const struct cf_others *others, int last, struct cf_graph *graph_p)
{
    struct cf_worker *worker = others->worker;
    take_turn(others, 0, 1); /* NCCL makes the first broadcast of ranks as threads only uncaptured */
    cf_capture_begin(worker, 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, graph_p);
    cf_join(worker, 0, 1);
    take_turns(others, 0, last);
    cf_join(worker, 1, 0);
    cf_capture_end(worker, graph_p);
    cf_graph_instantiate(worker, graph_p);
}

/* Allreduces and broadcasts in turn on two streams of a capture. */
void cf_case_graph_mixed(struct cf_worker *worker)
{
    struct cf_graph graph;
    struct cf_others others;
    cf_others_open(worker, &worker->world, &others);
    capture_turns(&others, 5, &graph);
    for (int round = 0; round < 5; round++) {
        cf_others_load(&others, 0);
        cf_graph_launch(worker, &graph, 0);
        cf_others_judge(&others, CF_BROADCAST, 0);
    }
    cf_sync(worker);
    cf_graph_destroy(worker, &graph);
    cf_others_close(&others);
}

/* A graph of broadcasts alone on one stream, and allreduces on another, in turn. */
void cf_case_graph_others(struct cf_worker *worker)
{
    struct cf_graph graph;
    struct cf_others others;
    cf_others_open(worker, &worker->world, &others);
    capture_turns(&others, 0, &graph);
    for (int round = 0; round < 5; round++) {
        cf_others_load(&others, 1);
        for (int turn = 1; turn < 6; turn += 2) {
            cf_graph_launch(worker, &graph, 1);
            take_turn(&others, turn, 1);
        }
        cf_others_judge(&others, CF_BROADCAST, 0);
    }
    cf_sync(worker);
    cf_graph_destroy(worker, &graph);
    cf_others_close(&others);
}

/* As stream-mixed of a non-blocking communicator, whose calls NCCL launches in the background, and onehop comes in
 * late. */
void cf_case_stream_nonblocking(struct cf_worker *worker)
{
    struct cf_set set;
    struct cf_others others;
    open_fresh(worker, CF_INIT_NONBLOCKING, &set, &others);
    for (int round = 0; round < 40; round++) {
        round_robin(&others, 1);
        usleep(round < 25 ? ROUND_MICROSECONDS : 0);
    }
    close_fresh(worker, &set, &others);
}

/* An allreduce on one communicator and a broadcast on another, new one in a group, both on one stream. */
static void group_of_two(struct cf_worker *worker, const struct cf_set *set)
{
    struct cf_set fresh;
    struct cf_others others;
    open_fresh(worker, CF_INIT_NONBLOCKING, &fresh, &others);
    struct cf_batch *batch = cf_some_calls(worker, set, 1);
    cf_batch_load(batch, 0);
    cf_others_load(&others, 0);
    cf_calls_begin(worker, true);
    cf_batch_issue_one(batch, 0, true, 0);
    cf_others_issue(&others, CF_BROADCAST, 0);
    cf_calls_end(worker, true, set);
    cf_set_ready(worker, &fresh);
    cf_batch_finish(batch, 0);
    cf_others_judge(&others, CF_BROADCAST, 0);
    close_fresh(worker, &fresh, &others);
}

/*
 * NCCL launches a group of non-blocking communicators in the background. Two calls of it on one stream must be there in
 * the same order on all ranks, or these wait for one another.
 */
void cf_case_stream_group_nonblocking(struct cf_worker *worker)
{
    struct cf_set set;
    struct cf_others others;
    open_fresh(worker, CF_INIT_NONBLOCKING, &set, &others);
    for (int round = 0; round < 25; round++) {
        round_robin(&others, 0);
        usleep(ROUND_MICROSECONDS);
    }
    for (int round = 0; round < 10; round++) {
        group_of_two(worker, &set);
    }
    close_fresh(worker, &set, &others);
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
