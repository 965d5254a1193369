/* SPDX-License-Identifier: MIT */
/*
 * case_property.c - random calls whose type, op and count are the same on all ranks, and nothing else is
 *
 * If anything of a rank's own entered the choice of who serves a call, and how, ranks would wait for ever or differ.
 */
#include "test/conformance/cases.h"

static struct cf_batch *random_batch(struct cf_worker *worker, int items, bool plain, struct cf_source *common,
                                     struct cf_source *own)
{
    struct cf_batch *batch = cf_batch_new(worker, &worker->world);
    for (int i = 0; i < items; i++) {
        struct cf_spec spec = cf_random_spec(worker, &worker->world, common, own, plain);
        cf_batch_add(batch, &spec);
    }
    return batch;
}

void cf_case_property(struct cf_worker *worker)
{
    for (int round = 0; round < (worker->full ? 60 : 6); round++) {
        struct cf_source common = cf_common_source(worker, (uint64_t)round),
                         own = cf_own_source(worker, (uint64_t)round);
        struct cf_batch *batch = random_batch(worker, 25, false, &common, &own);
        enum cf_style style = cf_draw(&common, 3) == 0 ? CF_GROUPED : CF_SINGLE;
        int stream = (int)cf_draw(&own, CF_ALL_STREAMS); /* also a default one */
        cf_batch_load(batch, stream);
        cf_batch_issue(batch, style, stream);
        cf_batch_finish(batch, stream);
    }
}

/* The batch as a graph of this worker's, which is launched when all ranks are ready. */
static void run_captured(struct cf_worker *worker, struct cf_batch *batch)
{
    struct cf_graph graph;
    cf_capture_begin(worker, 1, CU_STREAM_CAPTURE_MODE_RELAXED, &graph);
    cf_batch_issue(batch, CF_SINGLE, 1);
    cf_capture_end(worker, &graph);
    cf_graph_instantiate(worker, &graph);
    cf_graph_launch(worker, &graph, 1);
    cf_batch_judge(batch, 1, true);
    cf_graph_destroy(worker, &graph);
}

static void run_eager(struct cf_worker *worker, struct cf_batch *batch)
{
    cf_barrier(worker);
    cf_batch_issue(batch, CF_SINGLE, 1);
    cf_batch_judge(batch, 1, true);
}

/*
 * NCCL wants all ranks to capture or none. Onehop's choice must not depend on it, so calls that it serves work in any
 * mixture: first a round without, to see that all of this kind are served.
 */
void cf_case_property_capture(struct cf_worker *worker)
{
    for (int round = 0; round < (worker->full ? 30 : 5); round++) {
        for (int captured = 0; captured < 2; captured++) {
            struct cf_source common = cf_common_source(worker, 500 + (uint64_t)round);
            struct cf_source own = cf_own_source(worker, 500 + (uint64_t)round);
            struct cf_batch *batch = random_batch(worker, 8, true, &common, &own);
            cf_batch_load(batch, 1);
            if (captured && cf_draw(&own, 2)) {
                run_captured(worker, batch);
            } else {
                run_eager(worker, batch);
            }
            bool served = batch->served;
            cf_batch_free(batch);
            if (!cf_agree(worker, served) || !served) {
                cf_check(worker, cf_agree(worker, served), "served on some ranks only");
                break; /* NCCL has some of these: leave its rule alone */
            }
        }
    }
}
