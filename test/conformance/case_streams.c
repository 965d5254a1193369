/* SPDX-License-Identifier: MIT */
/* case_streams.c - default streams, several streams, the order between them, and calls of other functions between */
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

/*
 * One group whose calls are on all streams, each by onehop or by NCCL: it starts after the load on any stream, and all
 * streams wait for it.
 */
void cf_case_stream_group(struct cf_worker *worker)
{
    for (int last = 0; last < CF_STREAMS; last++) {
        struct cf_batch *batch = cf_some_calls(worker, &worker->world, 9);
        int first = last * 3 % CF_STREAMS; /* each stream once */
        hold_up(worker, first, LOAD_MICROSECONDS);
        cf_batch_load(batch, first);
        CF_NCCL(worker, GroupStart());
        for (int i = 0; i < batch->items; i++) {
            cf_batch_issue_one(batch, i, false, i % CF_STREAMS);
        }
        CF_NCCL(worker, GroupEnd());
        cf_batch_finish(batch, last);
    }
}

/* --- with calls that NCCL may serve ------------------------------------------------------------------------------- */

#define ROUND_MICROSECONDS 4000 /* between rounds, in which onehop's set-up in the background goes on */

/*
 * Two broadcasts of the same data, the second one in place. Turns make other calls on their buffers: a broadcast fills
 * the first result, and an allreduce takes that to the second one. All ranks have equal inputs then, so that a maximum
 * is the input.
 */
static struct cf_batch *open_turns(struct cf_worker *worker, const struct cf_set *set)
{
    struct cf_batch *batch = cf_batch_new(worker, set);
    for (int i = 0; i < 2; i++) {
        cf_batch_add(batch, &(struct cf_spec){.kind = ONEHOP_BROADCAST,
                                              .type = ncclUint8,
                                              .count = 4096,
                                              .root = worker->nranks - 1,
                                              .in_place = i == 1});
    }
    batch->replayed = true; /* other calls than those that are judged */
    cf_batch_open(batch);
    return batch;
}

/* New data. */
static void load_turns(struct cf_batch *batch, int stream)
{
    batch->item[0].spec.key = batch->item[1].spec.key = batch->worker->serial + 1;
    cf_batch_load(batch, stream);
}

/*
 * The call of one turn on each member, broadcasts on a stream of the caller's choice, allreduces on the first: each
 * takes what the call before has left behind. Before turn 0, broadcasts are in place.
 */
static void take_turn(const struct cf_batch *batch, int turn, int broadcasts)
{
    struct cf_worker *worker = batch->worker;
    size_t count = batch->item[0].spec.count;
    cf_calls_begin(worker, false);
    for (int m = 0; cf_use(worker, m); m++) {
        void *first = cf_batch_recv(batch, 0, m), *second = cf_batch_recv(batch, 1, m);
        ncclComm_t comm = batch->set->comm[m];
        CUstream *stream = worker->member[m].stream;
        if (turn > 0 && turn % 2 == 1) {
            CF_START(worker, AllReduce(first, second, count, ncclUint8, ncclMax, comm, stream[0]));
        } else {
            CF_START(worker, Broadcast(second, turn < 0 ? second : first, count, ncclUint8,
                                       turn <= 0 ? worker->nranks - 1 : 0, comm, stream[broadcasts]));
        }
    }
    cf_calls_end(worker, false, batch->set);
}

static void take_turns(const struct cf_batch *batch, int first, int last)
{
    for (int turn = first; turn <= last; turn++) {
        take_turn(batch, turn, 1);
    }
}

/* Calls in turn that nothing else orders where they are on two streams. */
static void round_robin(struct cf_batch *batch, int broadcasts)
{
    load_turns(batch, broadcasts);
    for (int turn = 0; turn < 6; turn++) {
        take_turn(batch, turn, broadcasts);
    }
    cf_batch_judge(batch, 0, true);
}

void cf_case_stream_mixed(struct cf_worker *worker)
{
    struct cf_batch *batch = open_turns(worker, &worker->world);
    for (int round = 0; round < 6; round++) {
        round_robin(batch, 1);
    }
    cf_batch_free(batch);
}

#define MANY_TURNS 200

/* Many broadcasts on one stream, the last of which leaves what an allreduce on another takes: a communicator's first.
 */
void cf_case_stream_change(struct cf_worker *worker)
{
    struct cf_set set;
    cf_set_create(worker, CF_INIT_RANK, &set);
    struct cf_batch *batch = open_turns(worker, &set);
    load_turns(batch, 1);
    take_turns(batch, 1 - MANY_TURNS, 3);
    cf_batch_finish(batch, 0);
    cf_set_end(worker, &set);
}

#define SLOW_MICROSECONDS 300000 /* a stream is held up; onehop's set-up in the background takes less */

/* A broadcast of a new, non-blocking communicator waits on its stream while onehop comes in; then an allreduce on
 * another stream takes what it leaves. */
void cf_case_stream_late(struct cf_worker *worker)
{
    struct cf_set set;
    cf_set_create(worker, CF_INIT_NONBLOCKING, &set);
    struct cf_batch *batch = open_turns(worker, &set);
    load_turns(batch, 1);
    hold_up(worker, 1, SLOW_MICROSECONDS);
    take_turn(batch, 0, 1);
    usleep(SLOW_MICROSECONDS / 2);
    take_turns(batch, 1, 5);
    cf_batch_finish(batch, 0);
    cf_set_end(worker, &set);
}

/* Turns in a graph, up to turn `last`, on two streams of one capture that only NCCL's order of calls puts one behind
 * the other. */
static void capture_turns(const struct cf_batch *batch, int last, struct cf_graph *graph_p)
{
    struct cf_worker *worker = batch->worker;
    take_turn(batch, 0, 1); /* NCCL makes the first broadcast of ranks as threads only uncaptured */
    cf_capture_begin(worker, 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, graph_p);
    cf_join(worker, 0, 1);
    take_turns(batch, 0, last);
    cf_join(worker, 1, 0);
    cf_capture_end(worker, graph_p);
    cf_graph_instantiate(worker, graph_p);
}

/* Allreduces and broadcasts in turn on two streams of a capture. */
void cf_case_graph_mixed(struct cf_worker *worker)
{
    struct cf_graph graph;
    struct cf_batch *batch = open_turns(worker, &worker->world);
    capture_turns(batch, 5, &graph);
    for (int round = 0; round < 5; round++) {
        load_turns(batch, 0);
        cf_graph_launch(worker, &graph, 0);
        cf_batch_judge(batch, 0, true);
    }
    cf_sync(worker);
    cf_graph_destroy(worker, &graph);
    cf_batch_free(batch);
}

/* A graph of broadcasts alone on one stream, and allreduces on another, in turn. */
void cf_case_graph_others(struct cf_worker *worker)
{
    struct cf_graph graph;
    struct cf_batch *batch = open_turns(worker, &worker->world);
    capture_turns(batch, 0, &graph);
    for (int round = 0; round < 5; round++) {
        load_turns(batch, 1);
        for (int turn = 1; turn < 6; turn += 2) {
            cf_graph_launch(worker, &graph, 1);
            take_turn(batch, turn, 1);
        }
        cf_batch_judge(batch, 0, true);
    }
    cf_sync(worker);
    cf_graph_destroy(worker, &graph);
    cf_batch_free(batch);
}

/* As stream-mixed of a non-blocking communicator, whose calls NCCL launches in the background, and onehop comes in
 * late. */
void cf_case_stream_nonblocking(struct cf_worker *worker)
{
    struct cf_set set;
    cf_set_create(worker, CF_INIT_NONBLOCKING, &set);
    struct cf_batch *batch = open_turns(worker, &set);
    for (int round = 0; round < 40; round++) {
        round_robin(batch, 1);
        usleep(round < 25 ? ROUND_MICROSECONDS : 0);
    }
    cf_batch_free(batch);
    cf_set_end(worker, &set);
}

/* An allreduce on one communicator and a broadcast on another, new one in a group, both on one stream. */
static void group_of_two(struct cf_worker *worker, const struct cf_set *set)
{
    struct cf_set fresh;
    cf_set_create(worker, CF_INIT_NONBLOCKING, &fresh);
    struct cf_batch *batch = cf_some_calls(worker, set, 1), *broadcast = cf_some_calls_from(worker, &fresh, 4, 1);
    cf_batch_load(batch, 0);
    cf_batch_load(broadcast, 0);
    cf_calls_begin(worker, true);
    cf_batch_issue_one(batch, 0, true, 0);
    cf_batch_issue_one(broadcast, 0, true, 0);
    cf_calls_end(worker, true, set);
    cf_set_ready(worker, &fresh);
    cf_batch_finish(batch, 0);
    cf_batch_finish(broadcast, 0);
    cf_set_end(worker, &fresh);
}

/*
 * NCCL launches a group of non-blocking communicators in the background. Two calls of it on one stream must be there in
 * the same order on all ranks, or these wait for one another.
 */
void cf_case_stream_group_nonblocking(struct cf_worker *worker)
{
    struct cf_set set;
    cf_set_create(worker, CF_INIT_NONBLOCKING, &set);
    struct cf_batch *batch = open_turns(worker, &set);
    for (int round = 0; round < 25; round++) {
        round_robin(batch, 0);
        usleep(ROUND_MICROSECONDS);
    }
    cf_batch_free(batch);
    for (int round = 0; round < 10; round++) {
        group_of_two(worker, &set);
    }
    cf_set_end(worker, &set);
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
