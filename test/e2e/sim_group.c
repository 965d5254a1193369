/* SPDX-License-Identifier: MIT */
/*
 * sim_group.c - scenarios of sim_app about groups
 *
 * The slices of an item, one call each, have the same result as one call on the whole: so any number of calls can be
 * made and compared with little memory.
 */
#include "sim_app.h"

#define PARTS 7 /* slices of an item where their number does not matter */

/* Calls all slices of the items, each on one of the streams; slice s of all members before slice s + 1. */
static void call_slices(struct app_worker *worker, const struct app_item *items, size_t slices)
{
    size_t count = items[0].count, first = 0;
    for (size_t s = 0; s < slices; s++) {
        size_t end = count * (s + 1) / slices;
        for (int m = 0; m < worker->members && end > first; m++) {
            struct app_member *member = &worker->member[m];
            app_member_use(member);
            APP_NCCL(app_item_call_part(&items[m], first, end - first, &member->comm[0],
                                        member->stream[s % (size_t)worker->options->streams]));
        }
        first = end;
    }
}

/* --group N calls in one group, --rounds times; nested groups with --nested. */
void app_group_slices(struct app_worker *worker, struct app_item *items)
{
    const struct app_options *options = worker->options;
    for (int round = 0; round < options->rounds; round++) {
        app_scenario_fill(worker, items);
        APP_NCCL(ncclGroupStart());
        if (options->nested) {
            APP_NCCL(ncclGroupStart());
        }
        call_slices(worker, items, (size_t)options->group);
        if (options->nested) {
            APP_NCCL(ncclGroupEnd());
        }
        APP_NCCL(ncclGroupEnd());
        app_scenario_verify(worker, items);
    }
}

static void call_parts(struct app_worker *worker, void *items)
{
    call_slices(worker, items, PARTS);
}

/* Allreduces in one group with broadcast, allgather, reducescatter, send and receive. */
void app_group_together(struct app_worker *worker, struct app_item *items)
{
    for (int round = 0; round < worker->options->rounds; round++) {
        app_scenario_fill(worker, items);
        app_mix_run_with(worker, call_parts, items);
        app_scenario_verify(worker, items);
    }
}

static void begin_capture(struct app_worker *worker)
{
    for (int m = 0; m < worker->members; m++) {
        app_member_use(&worker->member[m]);
        APP_CU(cuStreamBeginCapture(worker->member[m].stream[0], CU_STREAM_CAPTURE_MODE_RELAXED));
    }
}

/* Nothing has been captured. */
static void end_capture(struct app_worker *worker)
{
    for (int m = 0; m < worker->members; m++) {
        CUgraph graph;
        size_t nodes = 1;
        app_member_use(&worker->member[m]);
        APP_CU(cuStreamEndCapture(worker->member[m].stream[0], &graph));
        APP_CU(cuGraphGetNodes(graph, NULL, &nodes));
        APP_CHECK(nodes == 0, "%zu nodes were captured", nodes);
        APP_CU(cuGraphDestroy(graph));
    }
}

/*
 * A call on a captured stream and one on a stream that is not, and nothing runs. Of one communicator (other: 0) the
 * second call says so; of two, the end of the group does.
 */
static void half_captured(struct app_worker *worker, int other, const struct app_item *first,
                          const struct app_item *second)
{
    begin_capture(worker);
    APP_NCCL(ncclGroupStart());
    for (int m = 0; m < worker->members; m++) {
        struct app_member *member = &worker->member[m];
        app_member_use(member);
        APP_NCCL(app_item_call(&first[m], &member->comm[0], member->stream[0]));
        APP_NCCL_IS(app_item_call(&second[m], &member->comm[other], member->stream[1]),
                    other == 0 ? ncclInvalidUsage : ncclSuccess);
    }
    APP_NCCL_IS(ncclGroupEnd(), ncclInvalidUsage);
    end_capture(worker);
}

/* The second item has the second of --counts, which may be one that falls back. */
void app_group_captured(struct app_worker *worker, struct app_item *items)
{
    const struct app_options *options = worker->options;
    struct app_item second[APP_MAX_RANKS];
    APP_CHECK(options->streams > 1 && options->comms > 1, "scenario captured needs --streams 2 --comms 2");
    for (int m = 0; m < worker->members; m++) {
        app_member_use(&worker->member[m]);
        app_item_open(options, &second[m]);
        app_item_choose(options, options->counts > 1 ? 1 : 0, &second[m]);
    }
    for (int round = 0; round < options->rounds; round++) {
        app_scenario_fill(worker, items);
        app_scenario_fill(worker, second);
        for (int other = 0; other < 2; other++) {
            half_captured(worker, other, round % 2 ? second : items, round % 2 ? items : second);
        }
        app_scenario_verify_untouched(worker, items);
        app_scenario_verify_untouched(worker, second);
        APP_NCCL(ncclGroupStart());
        call_slices(worker, items, PARTS);
        call_slices(worker, second, PARTS);
        APP_NCCL(ncclGroupEnd());
        app_scenario_verify(worker, items);
        app_scenario_verify(worker, second);
    }
    for (int m = 0; m < worker->members; m++) {
        app_member_use(&worker->member[m]);
        app_item_close(&second[m]);
    }
}
