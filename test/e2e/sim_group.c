/* SPDX-License-Identifier: MIT */
/* sim_group.c - scenarios of sim_app about groups */
#include "test/common/others.h"
#include "test/e2e/sim_app.h"

#define PARTS 7 /* calls where their number does not matter */

/* A call of so many elements in slices, each a call by itself; every slice lies as it would in the whole. */
static struct cf_batch *slice(struct app *app, size_t count, size_t slices)
{
    struct cf_batch *batch = cf_batch_new(app->worker, &app->set[0]);
    batch->keeps_op = true;
    for (size_t s = 0; s < slices; s++) {
        struct cf_spec spec = app_case(0);
        size_t first = count * s / slices, shift = first * cf_types[spec.type].size % 16;
        spec.count = count * (s + 1) / slices - first;
        spec.key = app_options.op >= CF_PREMUL_HOST ? 1 : 0; /* of an op of the program's own there is one */
        spec.send_shift = spec.recv_shift = (unsigned)shift;
        if (spec.count > 0) {
            cf_batch_add(batch, &spec);
        }
    }
    return batch;
}

/* Each call on one of the streams; call i of all members before call i + 1. */
static void call_slices(struct cf_batch *batch)
{
    for (int i = 0; i < batch->items; i++) {
        cf_batch_issue_one(batch, i, false, i % app_options.streams);
    }
}

/* --group N calls in one group, --rounds times; nested groups with --nested. */
void app_group_slices(struct app *app)
{
    struct cf_batch *batch = slice(app, app_options.count[0], (size_t)app_options.group);
    for (int round = 0; round < app_options.rounds; round++) {
        app_load(batch);
        CF_NCCL(app->worker, GroupStart());
        if (app_options.nested) {
            CF_NCCL(app->worker, GroupStart());
        }
        call_slices(batch);
        if (app_options.nested) {
            CF_NCCL(app->worker, GroupEnd());
        }
        CF_NCCL(app->worker, GroupEnd());
        app_check(batch);
    }
    cf_batch_free(batch);
}

void app_mix(struct app *app, const struct cf_set *set, struct cf_batch *batch)
{
    struct cf_others others;
    cf_others_open(app->worker, set, &others);
    cf_others_load(&others, 0);
    CF_NCCL(app->worker, GroupStart());
    if (batch != NULL) {
        call_slices(batch);
    }
    cf_others_issue(&others, CF_ALL_OTHERS, 0);
    CF_NCCL(app->worker, GroupEnd());
    cf_others_judge(&others, CF_ALL_OTHERS, 0);
    cf_others_close(&others);
}

/* Allreduces in one group with broadcast, allgather, reducescatter, send and receive. */
void app_group_together(struct app *app)
{
    struct cf_batch *batch = slice(app, app_options.count[0], PARTS);
    for (int round = 0; round < app_options.rounds; round++) {
        app_load(batch);
        app_mix(app, &app->set[0], batch);
        app_check(batch);
    }
    cf_batch_free(batch);
}

/* Nothing has been captured. */
static void end_capture(struct cf_worker *worker, struct cf_graph *graph)
{
    cf_capture_end(worker, graph);
    for (int m = 0; cf_use(worker, m); m++) {
        size_t nodes = 1;
        CF_CU(worker, GraphGetNodes(graph->graph[m], NULL, &nodes));
        cf_check(worker, nodes == 0, "%zu nodes were captured", nodes);
        CF_CU(worker, GraphDestroy(graph->graph[m]));
    }
}

/*
 * A call on a captured stream and one on a stream that is not, and nothing runs. Of one communicator (other: 0) the
 * second call says so; of two, the end of the group does.
 */
static void half_captured(struct app *app, int other, struct cf_batch *first, struct cf_batch *second)
{
    struct cf_worker *worker = app->worker;
    struct cf_graph graph;
    cf_capture_begin(worker, 0, CU_STREAM_CAPTURE_MODE_RELAXED, &graph);
    CF_NCCL(worker, GroupStart());
    for (int m = 0; cf_use(worker, m); m++) {
        const struct cf_spec *spec = &second->item[0].spec;
        ncclResult_t result = cf_batch_call(first, 0, m, worker->member[m].stream[0]);
        cf_check(worker, result == ncclSuccess, "the captured call gave %d", (int)result);
        CF_IS(worker, other == 0 ? ncclInvalidUsage : ncclSuccess,
              AllReduce(cf_batch_send(second, 0, m), cf_batch_recv(second, 0, m), spec->count, spec->type, ncclSum,
                        app->set[other].comm[m], worker->member[m].stream[1]));
    }
    CF_IS(worker, ncclInvalidUsage, GroupEnd());
    end_capture(worker, &graph);
}

/* Calls of two sizes, of which one may fall back. */
void app_group_captured(struct app *app)
{
    struct cf_batch *batch[2] = {app->call, app->other};
    for (int round = 0; round < app_options.rounds; round++) {
        app_load(app->call);
        app_load(app->other);
        for (int other = 0; other < 2; other++) {
            half_captured(app, other, batch[round % 2], batch[1 - round % 2]);
        }
        app_check_kept(app->call);
        app_check_kept(app->other);
        CF_NCCL(app->worker, GroupStart());
        call_slices(app->call);
        call_slices(app->other);
        CF_NCCL(app->worker, GroupEnd());
        app_check(app->call);
        app_check(app->other);
    }
}
