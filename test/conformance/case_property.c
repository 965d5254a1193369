/* SPDX-License-Identifier: MIT */
/*
 * case_property.c - random calls whose type, op and count are the same on all ranks, and nothing else is
 *
 * If anything of a rank's own entered the choice of who serves a call, and how, ranks would wait for ever or differ.
 * Two sources of random numbers: what is common is drawn from the seed, what is a rank's own from seed and rank. (In
 * mode "group" all ranks have the same layout.)
 */
#include "test/conformance/cases.h"

struct source {
    uint64_t state;
};

static uint64_t draw(struct source *source, uint64_t below)
{
    source->state = cf_mix(source->state);
    return source->state % below;
}

static struct source common_source(const struct cf_worker *worker, uint64_t about)
{
    return (struct source){cf_mix(worker->options->seed + 77 * about)};
}

static struct source own_source(const struct cf_worker *worker, uint64_t about)
{
    return (struct source){cf_mix(worker->options->seed + 77 * about + 1000 + (uint64_t)worker->index)};
}

static size_t random_count(struct source *common, bool full)
{
    switch (draw(common, 8)) {
    case 0:
        return draw(common, 10);
    case 1:
        return draw(common, full ? 1 << 20 : 1 << 16);
    default:
        return draw(common, 4000);
    }
}

static struct cf_spec random_spec(struct cf_worker *worker, struct source *common, struct source *own, bool plain)
{
    static const ncclDataType_t plain_types[] = {ncclFloat32, ncclBfloat16, ncclFloat16};
    struct cf_spec spec = {.family = CF_EXACT};
    do {
        spec.type = plain ? plain_types[draw(common, 3)] : (ncclDataType_t)draw(common, ncclNumTypes);
    } while (cf_types[spec.type].fp8 && !worker->fp8);
    spec.op = plain || draw(common, 2) ? CF_SUM : (enum cf_op)draw(common, CF_OPS);
    if (cf_types[spec.type].mantissa > 0 && draw(common, 2)) {
        spec.family = CF_WIDE;
    }
    spec.count = random_count(common, worker->options->full);
    unsigned size = (unsigned)cf_types[spec.type].size;
    spec.in_place = draw(own, 2);
    spec.send_shift = (unsigned)draw(own, 16 / size) * size;
    spec.recv_shift = (unsigned)draw(own, 16 / size) * size;
    return spec;
}

static struct cf_batch *random_batch(struct cf_worker *worker, int items, bool plain, struct source *common,
                                     struct source *own)
{
    struct cf_batch *batch = cf_batch_new(worker, &worker->world);
    for (int i = 0; i < items; i++) {
        struct cf_spec spec = random_spec(worker, common, own, plain);
        cf_batch_add(batch, &spec);
    }
    return batch;
}

/* A stream of the rank's own choice: also a default one. */
static void choose_stream(struct cf_worker *worker, struct source *own, CUstream *stream_p)
{
    int which = (int)draw(own, CF_STREAMS + 2);
    for (int m = 0; m < worker->members; m++) {
        stream_p[m] = which < CF_STREAMS    ? worker->member[m].stream[which]
                      : which == CF_STREAMS ? NULL
                                            : CU_STREAM_PER_THREAD;
    }
}

void cf_case_property(struct cf_worker *worker)
{
    for (int round = 0; round < (worker->options->full ? 60 : 6); round++) {
        struct source common = common_source(worker, (uint64_t)round), own = own_source(worker, (uint64_t)round);
        CUstream stream[CF_MAX_RANKS];
        struct cf_batch *batch = random_batch(worker, 25, false, &common, &own);
        enum cf_style style = draw(&common, 3) == 0 ? CF_GROUPED : CF_SINGLE;
        choose_stream(worker, &own, stream);
        cf_batch_load(batch, stream);
        cf_batch_issue(batch, style, stream);
        cf_batch_judge(batch, stream, true);
        cf_batch_free(batch);
    }
}

/* The batch as a graph of this worker's, which is launched when all ranks are ready. */
static void run_captured(struct cf_worker *worker, struct cf_batch *batch, CUstream *stream)
{
    CUgraph graph[CF_MAX_RANKS];
    CUgraphExec exec[CF_MAX_RANKS];
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        CF_CU(worker, StreamBeginCapture(stream[m], CU_STREAM_CAPTURE_MODE_RELAXED));
    }
    cf_batch_issue(batch, CF_SINGLE, stream);
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        CF_CU(worker, StreamEndCapture(stream[m], &graph[m]));
        CF_CU(worker, GraphInstantiate(&exec[m], graph[m], 0));
    }
    cf_barrier(worker);
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        CF_CU(worker, GraphLaunch(exec[m], stream[m]));
    }
    cf_batch_judge(batch, stream, true);
    for (int m = 0; m < worker->members; m++) {
        cf_use(worker, m);
        CF_CU(worker, GraphExecDestroy(exec[m]));
        CF_CU(worker, GraphDestroy(graph[m]));
    }
}

static void run_eager(struct cf_worker *worker, struct cf_batch *batch, CUstream *stream)
{
    cf_barrier(worker);
    cf_batch_issue(batch, CF_SINGLE, stream);
    cf_batch_judge(batch, stream, true);
}

/*
 * NCCL wants all ranks to capture or none. Onehop's choice must not depend on it, so calls that it serves work in any
 * mixture: first a round without, to see that all of this kind are served.
 */
void cf_case_property_capture(struct cf_worker *worker)
{
    CUstream stream[CF_MAX_RANKS];
    cf_streams(worker, 1, stream);
    for (int round = 0; round < (worker->options->full ? 30 : 5); round++) {
        for (int captured = 0; captured < 2; captured++) {
            struct source common = common_source(worker, 500 + (uint64_t)round);
            struct source own = own_source(worker, 500 + (uint64_t)round);
            struct cf_batch *batch = random_batch(worker, 8, true, &common, &own);
            cf_batch_load(batch, stream);
            if (captured && draw(&own, 2)) {
                run_captured(worker, batch, stream);
            } else {
                run_eager(worker, batch, stream);
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
