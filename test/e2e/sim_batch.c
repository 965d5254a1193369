/* SPDX-License-Identifier: MIT */
/*
 * sim_batch.c - the cases of sim_app, some calls at a time
 *
 * Call b of a batch goes to communicator b mod --comms and stream b mod --streams; nothing waits between the calls of
 * a batch. With --graph a batch is captured on all streams and replayed, with eager rounds of the same calls between.
 */
#include "sim_app.h"

#include <stdlib.h>
#include <unistd.h>

#define EAGER_EVERY 8 /* replays between two eager rounds */

/* What one member needs for a batch. */
struct lane {
    struct app_item *item;
    CUgraphExec graph;
};

static struct app_comm *comm_of(struct app_worker *worker, int m, int b)
{
    return &worker->member[m].comm[b % worker->options->comms];
}

static void issue_one(struct app_worker *worker, const struct lane *lane, int m, int b)
{
    const struct app_options *options = worker->options;
    const struct app_comm *comm = comm_of(worker, m, b);
    if (comm->comm == NULL) { /* not part of this one */
        return;
    }
    app_jitter(worker);
    if (options->nested) {
        APP_NCCL(ncclGroupStart());
    }
    APP_NCCL(app_item_call(&lane->item[b], comm, worker->member[m].stream[b % options->streams]));
    if (options->nested) {
        APP_NCCL(ncclGroupEnd());
    }
}

/* A member's calls of a group; with --scramble communicator by communicator. */
static void issue_group(struct app_worker *worker, const struct lane *lane, int m, int first, int end)
{
    const struct app_options *options = worker->options;
    int comms = options->scramble ? options->comms : 1, odd = worker->member[m].world_rank % 2;
    for (int c = 0; c < comms; c++) {
        int chosen = odd ? comms - 1 - c : c;
        for (int b = first; b < end; b++) {
            if (b % comms == chosen) {
                issue_one(worker, lane, m, b);
            }
        }
    }
}

/* Makes the calls of the batch, in groups as the options say. Several members in a thread always need groups. */
static void issue(struct app_worker *worker, const struct lane *lanes)
{
    const struct app_options *options = worker->options;
    int step = options->group > 0 ? options->group : 1;
    bool grouped = options->group > 0 || worker->members > 1;
    for (int first = 0; first < options->batch; first += step) {
        if (grouped) {
            APP_NCCL(ncclGroupStart());
        }
        for (int m = 0; m < worker->members; m++) {
            app_member_use(&worker->member[m]);
            issue_group(worker, &lanes[m], m, first, first + step < options->batch ? first + step : options->batch);
        }
        if (grouped) {
            APP_NCCL(ncclGroupEnd());
        }
    }
}

static void fill(struct app_worker *worker, struct lane *lanes)
{
    for (int m = 0; m < worker->members; m++) {
        app_member_use(&worker->member[m]);
        for (int b = 0; b < worker->options->batch; b++) {
            app_item_fill(worker->options, &worker->member[m], &lanes[m].item[b], worker->serial + (uint64_t)b);
        }
    }
    worker->serial += (uint64_t)worker->options->batch;
}

static void verify(struct app_worker *worker, const struct lane *lanes)
{
    for (int m = 0; m < worker->members; m++) {
        app_member_sync(worker, &worker->member[m]);
        for (int b = 0; b < worker->options->batch; b++) {
            const struct app_comm *comm = comm_of(worker, m, b);
            if (comm->comm != NULL) {
                app_item_verify(worker->options, &worker->member[m], comm, &lanes[m].item[b]);
            }
        }
    }
}

static void run_eager(struct app_worker *worker, struct lane *lanes)
{
    fill(worker, lanes);
    issue(worker, lanes);
    verify(worker, lanes);
}

/* Makes `to` wait for `from`; in a capture this takes `to` into it. */
static void follow(CUstream from, CUstream to)
{
    CUevent event;
    APP_CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    APP_CU(cuEventRecord(event, from));
    APP_CU(cuStreamWaitEvent(to, event, 0));
    APP_CU(cuEventDestroy(event));
}

static void capture(struct app_worker *worker, struct lane *lanes)
{
    const struct app_options *options = worker->options;
    CUstreamCaptureMode mode = options->threads ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : CU_STREAM_CAPTURE_MODE_GLOBAL;
    for (int m = 0; m < worker->members; m++) {
        CUstream *stream = worker->member[m].stream;
        app_member_use(&worker->member[m]);
        APP_CU(cuStreamBeginCapture(stream[0], mode));
        for (int s = 1; s < options->streams; s++) {
            follow(stream[0], stream[s]);
        }
    }
    issue(worker, lanes);
    for (int m = 0; m < worker->members; m++) {
        CUstream *stream = worker->member[m].stream;
        CUgraph graph;
        app_member_use(&worker->member[m]);
        for (int s = 1; s < options->streams; s++) {
            follow(stream[s], stream[0]);
        }
        APP_CU(cuStreamEndCapture(stream[0], &graph));
        lanes[m].graph = app_member_instantiate(graph);
        APP_CU(cuGraphDestroy(graph));
    }
}

/* A call that is not in place gives the same again: such batches are launched twice without waiting. */
static int launches_of(const struct app_worker *worker, const struct lane *lanes)
{
    const struct app_item *items = lanes[0].item;
    APP_CHECK(items != NULL, "a worker without a member");
    for (int b = 0; b < worker->options->batch; b++) {
        if (items[b].in_place) {
            return 1;
        }
    }
    return 2;
}

static void run_graph(struct app_worker *worker, struct lane *lanes)
{
    const struct app_options *options = worker->options;
    int launches = launches_of(worker, lanes);
    capture(worker, lanes);
    usleep((useconds_t)options->pause * 1000);
    for (int replay = 0; replay < options->replays; replay++) {
        if (replay % EAGER_EVERY == 0) {
            run_eager(worker, lanes);
        }
        fill(worker, lanes);
        for (int i = 0; i < launches; i++) {
            for (int m = 0; m < worker->members; m++) {
                app_member_use(&worker->member[m]);
                APP_CU(cuGraphLaunch(lanes[m].graph, worker->member[m].stream[0]));
            }
        }
        verify(worker, lanes);
    }
    for (int m = 0; m < worker->members; m++) {
        APP_CU(cuGraphExecDestroy(lanes[m].graph));
    }
}

static void open_lanes(struct app_worker *worker, struct lane *lanes)
{
    for (int m = 0; m < worker->members; m++) {
        app_member_use(&worker->member[m]);
        lanes[m].item = calloc((size_t)worker->options->batch, sizeof *lanes[m].item);
        APP_CHECK(lanes[m].item != NULL, "no memory");
        for (int b = 0; b < worker->options->batch; b++) {
            app_item_open(worker->options, &lanes[m].item[b]);
        }
    }
}

static void close_lanes(struct app_worker *worker, struct lane *lanes)
{
    for (int m = 0; m < worker->members; m++) {
        app_member_use(&worker->member[m]);
        for (int b = 0; b < worker->options->batch; b++) {
            app_item_close(&lanes[m].item[b]);
        }
        free(lanes[m].item);
    }
}

void app_batch_run_all(struct app_worker *worker)
{
    const struct app_options *options = worker->options;
    size_t cases = app_item_cases(options), batch = (size_t)options->batch;
    struct lane lanes[APP_MAX_RANKS] = {0};
    open_lanes(worker, lanes);
    for (size_t first = 0; first < cases; first += batch) {
        for (int m = 0; m < worker->members; m++) {
            for (size_t b = 0; b < batch; b++) {
                app_item_choose(options, (first + b) % cases, &lanes[m].item[b]);
            }
        }
        for (int i = 0; i < options->iterations; i++) {
            run_eager(worker, lanes);
            usleep((useconds_t)(first == 0 && i == 0 ? options->pause : 0) * 1000);
        }
        if (options->replays > 0) {
            run_graph(worker, lanes);
        }
        if (options->mix) {
            app_mix_run(worker);
        }
    }
    close_lanes(worker, lanes);
}
