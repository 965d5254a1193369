/* SPDX-License-Identifier: MIT */
/* case_groups.c - calls between ncclGroupStart and ncclGroupEnd */
#include "test/conformance/cases.h"

void cf_case_group(struct cf_worker *worker)
{
    for (int items = 1; items <= 40; items += 13) {
        struct cf_batch *batch = cf_some_calls(worker, &worker->world, items);
        cf_batch_run(batch, CF_GROUPED);
    }
}

void cf_case_group_nested(struct cf_worker *worker)
{
    struct cf_batch *batch = cf_some_calls(worker, &worker->world, 20);
    cf_batch_run(batch, CF_NESTED);
}

/* Large calls of one type and op, one after another, of lengths and alignments that differ: more together than the
 * largest one-shot message. */
void cf_case_group_together(struct cf_worker *worker)
{
    static const enum onehop_collective kinds[8] = {[5] = ONEHOP_ALLGATHER, ONEHOP_REDUCESCATTER, ONEHOP_BROADCAST};
    static const ncclDataType_t types[8] = {ncclFloat32, ncclBfloat16, ncclInt32, ncclInt8,
                                            ncclFloat32, ncclBfloat16, ncclInt32, ncclFloat16};
    static const enum cf_op ops[8] = {CF_SUM, CF_SUM, CF_MAX, CF_AVG, CF_PREMUL_HOST, [6] = CF_PREMUL_HOST};
    for (int t = 0; t < 8; t++) {
        struct cf_batch *batch = cf_batch_new(worker, &worker->world);
        batch->keeps_op = true;
        unsigned size = (unsigned)cf_types[types[t]].size, part = kinds[t] == ONEHOP_ALLREDUCE ? size : 2 * size;
        for (int i = 0; i < 12; i++) {
            cf_batch_add(batch, &(struct cf_spec){.kind = kinds[t],
                                                  .type = types[t],
                                                  .op = ops[t],
                                                  .root = i,
                                                  .family = CF_EXACT,
                                                  .count = (100000 + (size_t)i * 4099) / part,
                                                  .key = ops[t] == CF_PREMUL_HOST,
                                                  .send_shift = (unsigned)i % 3 * size,
                                                  .recv_shift = (unsigned)i % 2 * size,
                                                  .in_place = i % 4 == 3});
        }
        cf_batch_run(batch, CF_GROUPED);
    }
}

/* As all_gatherv of PyTorch: in place, or out of place on some ranks; some have nothing. */
void cf_case_group_uneven(struct cf_worker *worker)
{
    for (size_t most = 40; most <= 40000; most *= 10) {
        struct cf_batch *batch = cf_batch_new(worker, &worker->world);
        for (int root = 0; root < worker->nranks; root++) {
            cf_batch_add(batch, &(struct cf_spec){.kind = ONEHOP_BROADCAST,
                                                  .type = ncclBfloat16,
                                                  .family = CF_SPECIAL,
                                                  .count = root == 1 ? 0 : most - most / 3 * (size_t)root % most,
                                                  .root = root,
                                                  .recv_shift = 2 * (unsigned)root,
                                                  .in_place = (worker->index + root) % 2 == 0});
        }
        cf_batch_run(batch, CF_GROUPED);
    }
}

/* An empty group, and one whose only call has nothing to do. */
void cf_case_group_empty(struct cf_worker *worker)
{
    CF_IS(worker, ncclSuccess, GroupStart());
    CF_IS(worker, ncclSuccess, GroupEnd());
    CF_IS(worker, ncclSuccess, GroupStart());
    CF_IS(worker, ncclSuccess, GroupStart());
    CF_IS(worker, ncclSuccess, GroupEnd());
    CF_IS(worker, ncclSuccess, GroupEnd());
    CF_IS(worker, ncclInvalidUsage, GroupEnd());
}

/* More calls than a launch queue holds. */
void cf_case_group_5000(struct cf_worker *worker)
{
    struct cf_batch *batch = cf_batch_new(worker, &worker->world);
    for (int i = 0; i < 5000; i++) {
        cf_batch_add(batch, &(struct cf_spec){.kind = (enum onehop_collective)(i / 625 % ONEHOP_COLLECTIVE_COUNT),
                                              .type = i % 2 ? ncclBfloat16 : ncclFloat32,
                                              .root = i,
                                              .family = CF_EXACT,
                                              .count = 1 + (size_t)i % 97,
                                              .in_place = i % 5 == 0});
    }
    cf_batch_run(batch, CF_GROUPED);
}

/* Batches on several communicators, their calls in turn within one group. */
void cf_case_group_communicators(struct cf_worker *worker)
{
    enum {
        SETS = 3
    };
    struct cf_set set[SETS];
    struct cf_batch *batch[SETS];
    for (int s = 0; s < SETS; s++) {
        cf_set_create(worker, CF_INIT_RANK, &set[s]);
        batch[s] = cf_some_calls(worker, &set[s], 12);
        cf_batch_load(batch[s], 0);
    }
    CF_NCCL(worker, GroupStart());
    for (int s = 0; s < SETS; s++) {
        cf_batch_issue(batch[s], s == 1 ? CF_NESTED : CF_SINGLE, 0);
    }
    CF_NCCL(worker, GroupEnd());
    for (int s = 0; s < SETS; s++) {
        cf_batch_finish(batch[s], 0);
    }
    cf_barrier(worker);
    for (int s = 0; s < SETS; s++) {
        cf_set_destroy(worker, &set[s]);
    }
}

/* --- groups that launch nothing ---------------------------------------------------------------------------------- */

/* The calls of a batch without cf_batch_issue, which takes an error for the end. */
static void call_all(struct cf_worker *worker, struct cf_batch *batch)
{
    for (int i = 0; i < batch->items; i++) {
        for (int m = 0; m < worker->members; m++) {
            ncclResult_t result = cf_batch_call(batch, i, m, worker->member[m].stream[0]);
            cf_check(worker, result == ncclSuccess, "a call in a group gave %d", (int)result);
        }
    }
}

static struct cf_batch *open_batch(struct cf_worker *worker)
{
    struct cf_batch *batch = cf_some_calls(worker, &worker->world, 8);
    cf_batch_load(batch, 0);
    return batch;
}

void cf_case_group_simulate(struct cf_worker *worker)
{
    if (nccl.GroupSimulateEnd == NULL) {
        cf_skip(worker, "this NCCL has no ncclGroupSimulateEnd");
        return;
    }
    struct cf_batch *batch = open_batch(worker);
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    CF_NCCL(worker, GroupStart());
    call_all(worker, batch);
    CF_IS(worker, ncclSuccess, GroupSimulateEnd(&info));
    cf_batch_judge(batch, 0, false);
    cf_batch_issue(batch, CF_GROUPED, 0); /* as if nothing had been */
    cf_batch_finish(batch, 0);
}

/*
 * One bad call, in a group within, before the others or after them: the end of the group gives its error, and nothing
 * starts.
 */
void cf_case_group_error(struct cf_worker *worker)
{
    for (int bad_first = 0; bad_first < 2; bad_first++) {
        struct cf_batch *batch = open_batch(worker);
        CF_NCCL(worker, GroupStart());
        if (!bad_first) {
            call_all(worker, batch);
        }
        CF_NCCL(worker, GroupStart());
        for (int m = 0; m < worker->members; m++) {
            CF_IS(worker, ncclInvalidArgument,
                  AllReduce(NULL, NULL, 1, ncclNumTypes, ncclSum, worker->world.comm[m], worker->member[m].stream[0]));
        }
        CF_IS(worker, ncclSuccess, GroupEnd());
        if (bad_first) {
            call_all(worker, batch);
        }
        CF_IS(worker, ncclInvalidArgument, GroupEnd());
        cf_batch_judge(batch, 0, false);
        cf_batch_issue(batch, CF_GROUPED, 0);
        cf_batch_finish(batch, 0);
    }
}

/*
 * Item `which` of a batch on a captured stream, and the other one on a stream that is not, and nothing runs. Of one
 * communicator the second call says so; of two, the end of the group does.
 */
static void half_captured(struct cf_worker *worker, struct cf_batch *batch, int which, const struct cf_set *set)
{
    const struct cf_spec *spec = &batch->item[1 - which].spec;
    struct cf_graph graph;
    cf_capture_begin(worker, 0, CU_STREAM_CAPTURE_MODE_RELAXED, &graph);
    CF_NCCL(worker, GroupStart());
    for (int m = 0; cf_use(worker, m); m++) {
        ncclResult_t result = cf_batch_call(batch, which, m, worker->member[m].stream[0]);
        cf_check(worker, result == ncclSuccess, "the captured call gave %d", (int)result);
        CF_IS(worker, set == batch->set ? ncclInvalidUsage : ncclSuccess,
              AllReduce(cf_batch_send(batch, 1 - which, m), cf_batch_recv(batch, 1 - which, m), spec->count, spec->type,
                        ncclSum, set->comm[m], worker->member[m].stream[1]));
    }
    CF_IS(worker, ncclInvalidUsage, GroupEnd());
    cf_capture_end(worker, &graph);
    for (int m = 0; cf_use(worker, m); m++) {
        size_t nodes = 1;
        CF_CU(worker, GraphGetNodes(graph.graph[m], NULL, &nodes));
        cf_check(worker, nodes == 0, "%zu nodes were captured", nodes);
        CF_CU(worker, GraphDestroy(graph.graph[m]));
    }
}

/* Calls of two sizes, of which one may fall back. */
void cf_case_group_captured(struct cf_worker *worker)
{
    struct cf_set other;
    if (!worker->simulated) {
        cf_skip(worker, "as NCCL's source has it; nobody has asked GPUs");
        return;
    }
    cf_set_create(worker, CF_INIT_RANK, &other);
    for (int which = 0; which < 2; which++) {
        struct cf_batch *batch = cf_some_calls(worker, &worker->world, 2);
        cf_batch_load(batch, 0);
        half_captured(worker, batch, which, &worker->world);
        half_captured(worker, batch, which, &other);
        cf_sync(worker);
        cf_batch_judge(batch, 0, false);
        cf_batch_issue(batch, CF_GROUPED, 0);
        cf_batch_finish(batch, 0);
    }
    cf_set_end(worker, &other);
}
