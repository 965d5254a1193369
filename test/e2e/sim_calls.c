/* SPDX-License-Identifier: MIT */
/* sim_calls.c - see sim_app.h: the calls that the options say */
#include <unistd.h>

#include "test/e2e/sim_app.h"

#define EAGER_EVERY 8 /* replays between two eager rounds */

/*
 * The calls that the program makes before it waits. Call b goes to communicator b mod --comms, and there is item b /
 * --comms of its batch, and to stream b mod --streams.
 */
struct calls {
    struct app *app;
    struct cf_batch *batch[APP_MAX_COMMS];
};

static void issue_one(struct calls *calls, int m, int b)
{
    struct cf_worker *worker = calls->app->worker;
    struct cf_batch *batch = calls->batch[b % app_options.comms];
    if (batch == NULL) {
        cf_die(worker, "no calls for communicator %d", b % app_options.comms);
    }
    if (batch->set->nranks[m] == 0) { /* not part of this one */
        return;
    }
    cf_jitter(worker);
    if (app_options.nested) {
        CF_NCCL(worker, GroupStart());
    }
    ncclResult_t result =
        cf_batch_call(batch, b / app_options.comms, m, worker->member[m].stream[b % app_options.streams]);
    if (result != ncclSuccess) {
        cf_die(worker, "%s gave %d, expected 0", cf_kind_names[batch->item[b / app_options.comms].spec.kind],
               (int)result);
    }
    if (app_options.nested) {
        CF_NCCL(worker, GroupEnd());
    }
}

/* A member's calls of a group; with --scramble communicator by communicator. */
static void issue_group(struct calls *calls, int m, int first, int end)
{
    int comms = app_options.scramble ? app_options.comms : 1, odd = calls->app->worker->member[m].world_rank % 2;
    for (int c = 0; c < comms; c++) {
        int chosen = odd ? comms - 1 - c : c;
        for (int b = first; b < end; b++) {
            if (b % comms == chosen) {
                issue_one(calls, m, b);
            }
        }
    }
}

/* In groups as the options say. Several members in a thread always need groups. */
static void issue(struct calls *calls)
{
    struct cf_worker *worker = calls->app->worker;
    int step = app_options.group > 0 ? app_options.group : 1;
    bool grouped = app_options.group > 0 || worker->members > 1;
    for (int first = 0; first < app_options.batch; first += step) {
        if (grouped) {
            CF_NCCL(worker, GroupStart());
        }
        for (int m = 0; cf_use(worker, m); m++) {
            issue_group(calls, m, first, first + step < app_options.batch ? first + step : app_options.batch);
        }
        if (grouped) {
            CF_NCCL(worker, GroupEnd());
        }
    }
}

static void load(struct calls *calls)
{
    for (int c = 0; c < app_options.comms && calls->batch[c] != NULL; c++) {
        cf_batch_load(calls->batch[c], 0);
    }
    cf_sync(calls->app->worker);
}

static void judge(struct calls *calls)
{
    cf_sync(calls->app->worker);
    for (int c = 0; c < app_options.comms && calls->batch[c] != NULL; c++) {
        cf_batch_judge(calls->batch[c], 0, true);
    }
}

static void run_eager(struct calls *calls)
{
    load(calls);
    issue(calls);
    judge(calls);
}

static void capture(struct calls *calls, struct cf_graph *graph_p)
{
    struct cf_worker *worker = calls->app->worker;
    cf_capture_begin(worker, 0,
                     app_options.layout.threads ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : CU_STREAM_CAPTURE_MODE_GLOBAL,
                     graph_p);
    for (int s = 1; s < app_options.streams; s++) {
        cf_join(worker, 0, s);
    }
    issue(calls);
    for (int s = 1; s < app_options.streams; s++) {
        cf_join(worker, s, 0);
    }
    cf_capture_end(worker, graph_p);
    cf_graph_instantiate(worker, graph_p);
}

static void run_graph(struct calls *calls)
{
    struct cf_worker *worker = calls->app->worker;
    int launches = app_options.in_place ? 1 : 2; /* without waiting: a call that is not in place gives the same again */
    struct cf_graph graph;
    capture(calls, &graph);
    usleep((useconds_t)app_options.pause * 1000);
    for (int replay = 0; replay < app_options.replays; replay++) {
        if (replay % EAGER_EVERY == 0) {
            run_eager(calls);
        }
        load(calls);
        for (int i = 0; i < launches; i++) {
            cf_graph_launch(worker, &graph, 0);
        }
        judge(calls);
    }
    cf_graph_destroy(worker, &graph);
}

/* The cases from `first` on, --batch of them. */
static void run_cases(struct app *app, size_t first, size_t cases)
{
    struct calls calls = {.app = app};
    for (int b = 0; b < app_options.batch; b++) {
        struct cf_batch **batch = &calls.batch[b % app_options.comms];
        struct cf_spec spec = app_case((first + (size_t)b) % cases);
        *batch = *batch != NULL ? *batch : cf_batch_new(app->worker, &app->set[b % app_options.comms]);
        cf_batch_add(*batch, &spec);
    }
    for (int i = 0; i < app_options.iterations; i++) {
        run_eager(&calls);
        usleep((useconds_t)(first == 0 && i == 0 ? app_options.pause : 0) * 1000);
    }
    if (app_options.replays > 0) {
        load(&calls); /* nothing may be allocated in a capture */
        run_graph(&calls);
    }
    for (int c = 0; c < app_options.comms && calls.batch[c] != NULL; c++) {
        cf_batch_free(calls.batch[c]);
    }
}

void app_calls_run(struct app *app)
{
    size_t cases = app_case_count();
    for (size_t first = 0; first < cases; first += (size_t)app_options.batch) {
        run_cases(app, first, cases);
    }
}
