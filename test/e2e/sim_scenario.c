/* SPDX-License-Identifier: MIT */
/* sim_scenario.c - the odd ways of sim_app: groups that come to nothing, wrong arguments, many rounds. */
#include "sim_app.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NO_SUCH_TYPE ((ncclDataType_t)99)
#define NO_SUCH_OP ((ncclRedOp_t)77)
#define SETTLED_ROUND 5 /* of churn: by then everything that is made once has been made */
/* What the last communicator may still hold: its memory, until the peers have left it. */
#define DESCRIPTORS_TOLERATED 2
#define MAPPINGS_TOLERATED 4
#define LEAVE_MICROSECONDS 10000000
#define POLL_MICROSECONDS 2000

void app_scenario_fill(struct app_worker *worker, struct app_item *items)
{
    for (int m = 0; m < worker->members; m++) {
        app_member_use(&worker->member[m]);
        app_item_fill(worker->options, &worker->member[m], &items[m], worker->serial);
    }
    worker->serial++;
}

static void call_all(struct app_worker *worker, const struct app_item *items)
{
    for (int m = 0; m < worker->members; m++) {
        struct app_member *member = &worker->member[m];
        app_member_use(member);
        APP_NCCL(app_item_call(&items[m], &member->comm[0], member->stream[0]));
    }
}

void app_scenario_call(struct app_worker *worker, const struct app_item *items)
{
    APP_NCCL(ncclGroupStart());
    call_all(worker, items);
    APP_NCCL(ncclGroupEnd());
}

void app_scenario_verify(struct app_worker *worker, const struct app_item *items)
{
    for (int m = 0; m < worker->members; m++) {
        struct app_member *member = &worker->member[m];
        app_member_sync(worker, member);
        app_item_verify(worker->options, member, &member->comm[0], &items[m]);
    }
}

void app_scenario_verify_untouched(struct app_worker *worker, const struct app_item *items)
{
    usleep(10 * POLL_MICROSECONDS); /* time to do what must not be done */
    for (int m = 0; m < worker->members; m++) {
        app_member_sync(worker, &worker->member[m]);
        app_item_verify_untouched(worker->options, &worker->member[m], &items[m]);
    }
}

/* A call as it should be; what came before must not have broken anything. */
static void run_plain(struct app_worker *worker, struct app_item *items)
{
    app_scenario_fill(worker, items);
    app_scenario_call(worker, items);
    app_scenario_verify(worker, items);
}

static void simulate(struct app_worker *worker, struct app_item *items)
{
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    run_plain(worker, items);
    app_scenario_fill(worker, items);
    APP_NCCL(ncclGroupStart());
    call_all(worker, items);
    APP_NCCL(ncclGroupSimulateEnd(&info));
    app_scenario_verify_untouched(worker, items);
    run_plain(worker, items);
}

/* A bad call in a group: the call says so, the end of the group says so, and the good calls do not run. */
static void group_error(struct app_worker *worker, struct app_item *items)
{
    for (int bad_first = 0; bad_first < 2; bad_first++) {
        app_scenario_fill(worker, items);
        APP_NCCL(ncclGroupStart());
        if (!bad_first) {
            call_all(worker, items);
        }
        APP_NCCL(ncclGroupStart());
        APP_NCCL_IS(ncclAllReduce(&items, &items, 1, NO_SUCH_TYPE, ncclSum, worker->member[0].comm[0].comm,
                                  worker->member[0].stream[0]),
                    ncclInvalidArgument);
        APP_NCCL(ncclGroupEnd());
        if (bad_first) {
            call_all(worker, items);
        }
        APP_NCCL_IS(ncclGroupEnd(), ncclInvalidArgument);
        app_scenario_verify_untouched(worker, items);
        run_plain(worker, items);
    }
}

/* What NCCL rejects of functions that end a communicator, or make another of it, leaves the communicator as it was. */
static void reject_endings(ncclComm_t comm, int rank)
{
    ncclComm_t child = NULL;
    APP_NCCL_IS(ncclCommRevoke(comm, -1), ncclInvalidArgument);
    APP_NCCL_IS(ncclCommShrink(comm, NULL, 1, &child, NULL, NCCL_SHRINK_ABORT), ncclInvalidArgument);
    APP_NCCL_IS(ncclCommShrink(comm, &rank, 1, &child, NULL, NCCL_SHRINK_ABORT), ncclInvalidArgument);
    APP_NCCL_IS(ncclCommShrink(comm, &rank, 0, &child, NULL, NCCL_SHRINK_ABORT), ncclInvalidArgument);
    APP_CHECK(child == NULL, "a child of a call that was rejected");
}

static void arguments(struct app_worker *worker, struct app_item *items)
{
    ncclComm_t comm = worker->member[0].comm[0].comm;
    CUstream stream = worker->member[0].stream[0];
    void *data = (void *)(uintptr_t)items[0].send;
    app_scenario_fill(worker, items);
    app_member_use(&worker->member[0]);
    APP_NCCL_IS(ncclAllReduce(data, data, 1, ncclFloat, ncclSum, NULL, stream), ncclInvalidArgument);
    APP_NCCL_IS(ncclAllReduce(data, data, 1, ncclNumTypes, ncclSum, comm, stream), ncclInvalidArgument);
    APP_NCCL_IS(ncclAllReduce(data, data, 1, ncclFloat, NO_SUCH_OP, comm, stream), ncclInvalidArgument);
    APP_NCCL_IS(ncclAllReduce(data, data, 0, NO_SUCH_TYPE, ncclSum, comm, stream), ncclInvalidArgument);
    APP_NCCL(ncclAllReduce(data, data, 0, ncclFloat, ncclSum, comm, stream));
    APP_NCCL(ncclAllReduce(NULL, NULL, 0, ncclFloat, ncclSum, comm, stream));
    APP_NCCL_IS(ncclGroupEnd(), ncclInvalidUsage);
    APP_NCCL(ncclCommDestroy(NULL));
    APP_NCCL(ncclCommAbort(NULL));
    reject_endings(comm, worker->member[0].world_rank);
    app_scenario_verify_untouched(worker, items);
    run_plain(worker, items);
}

static long count_descriptors(void)
{
    long number = 0;
    DIR *directory = opendir("/proc/self/fd");
    APP_CHECK(directory != NULL, "/proc/self/fd");
    while (readdir(directory) != NULL) {
        number++;
    }
    closedir(directory);
    return number;
}

/* Shared mappings: memory of GPUs and of meetings. Those of the C library and of sanitizers are private. */
static long count_mappings(void)
{
    long number = 0;
    char line[1024], access[5];
    FILE *file = fopen("/proc/self/maps", "r");
    APP_CHECK(file != NULL, "/proc/self/maps");
    while (fgets(line, sizeof line, file) != NULL) {
        number += sscanf(line, "%*s %4s", access) == 1 && access[3] == 's';
    }
    fclose(file);
    return number;
}

/* False after some time in which what is left of the last communicators should have gone. */
static bool has_stayed(long descriptors, long mappings)
{
    for (useconds_t waited = 0; waited < LEAVE_MICROSECONDS; waited += POLL_MICROSECONDS) {
        if (count_descriptors() <= descriptors + DESCRIPTORS_TOLERATED &&
            count_mappings() <= mappings + MAPPINGS_TOLERATED) {
            return true;
        }
        usleep(POLL_MICROSECONDS);
    }
    return false;
}

/* Communicators made, used and ended many times leave nothing behind. */
static void churn(struct app_worker *worker, struct app_item *items)
{
    long descriptors = 0, mappings = 0;
    for (int round = 0; round < worker->options->rounds; round++) {
        if (round > 0) {
            app_comm_make(worker);
        }
        run_plain(worker, items);
        app_comm_end(worker);
        if (round == SETTLED_ROUND) {
            descriptors = count_descriptors();
            mappings = count_mappings();
        }
    }
    if (worker->options->rounds > SETTLED_ROUND) {
        APP_CHECK(has_stayed(descriptors, mappings), "descriptors went from %ld to %ld, mappings from %ld to %ld",
                  descriptors, count_descriptors(), mappings, count_mappings());
    }
}

bool app_scenario_finishes(const struct app_worker *worker, unsigned microseconds)
{
    for (unsigned waited = 0; waited < microseconds; waited += POLL_MICROSECONDS) {
        bool all = true;
        for (int m = 0; m < worker->members; m++) {
            app_member_use(&worker->member[m]);
            all &= cuStreamQuery(worker->member[m].stream[0]) == CUDA_SUCCESS;
        }
        if (all) {
            return true;
        }
        usleep(POLL_MICROSECONDS);
    }
    return false;
}

/* Captures the call of every member. */
void app_scenario_capture(struct app_worker *worker, const struct app_item *items, CUgraphExec *exec)
{
    for (int m = 0; m < worker->members; m++) {
        app_member_use(&worker->member[m]);
        APP_CU(cuStreamBeginCapture(worker->member[m].stream[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
    }
    app_scenario_call(worker, items);
    for (int m = 0; m < worker->members; m++) {
        CUgraph graph;
        app_member_use(&worker->member[m]);
        APP_CU(cuStreamEndCapture(worker->member[m].stream[0], &graph));
        exec[m] = app_member_instantiate(graph);
        APP_CU(cuGraphDestroy(graph));
    }
}

void app_scenario_replay(struct app_worker *worker, const CUgraphExec *exec)
{
    for (int m = 0; m < worker->members; m++) {
        app_member_use(&worker->member[m]);
        APP_CU(cuGraphLaunch(exec[m], worker->member[m].stream[0]));
    }
}

static void destroy_all(struct app_worker *worker, const CUgraphExec *exec)
{
    for (int m = 0; m < worker->members; m++) {
        app_member_use(&worker->member[m]);
        APP_CU(cuGraphExecDestroy(exec[m]));
    }
}

/* Everything is destroyed as soon as it has been started; what runs must still end well. */
static void drop(struct app_worker *worker, struct app_item *items)
{
    CUgraphExec exec[APP_MAX_RANKS];
    app_scenario_fill(worker, items);
    app_scenario_call(worker, items);
    app_comm_end(worker);
    app_scenario_verify(worker, items);

    app_comm_make(worker);
    app_scenario_fill(worker, items);
    app_scenario_capture(worker, items, exec);
    app_scenario_replay(worker, exec);
    destroy_all(worker, exec);
    app_comm_end(worker);
    app_scenario_verify(worker, items);
}

/* A graph on one stream and, at the same time, a call on another: NCCL puts them in an order, the same everywhere. */
static void overlap(struct app_worker *worker, struct app_item *items)
{
    struct app_item second[APP_MAX_RANKS];
    CUgraphExec exec[APP_MAX_RANKS];
    APP_CHECK(worker->options->streams > 1, "scenario overlap needs --streams 2");
    for (int m = 0; m < worker->members; m++) {
        app_member_use(&worker->member[m]);
        app_item_open(worker->options, &second[m]);
        app_item_choose(worker->options, 0, &second[m]);
    }
    app_scenario_capture(worker, items, exec);
    for (int round = 0; round < worker->options->rounds; round++) {
        app_scenario_fill(worker, items);
        app_scenario_fill(worker, second);
        app_scenario_replay(worker, exec);
        APP_NCCL(ncclGroupStart());
        for (int m = 0; m < worker->members; m++) {
            struct app_member *member = &worker->member[m];
            app_member_use(member);
            APP_NCCL(app_item_call(&second[m], &member->comm[0], member->stream[1]));
        }
        APP_NCCL(ncclGroupEnd());
        app_scenario_verify(worker, items);
        app_scenario_verify(worker, second);
    }
    destroy_all(worker, exec);
    for (int m = 0; m < worker->members; m++) {
        app_member_use(&worker->member[m]);
        app_item_close(&second[m]);
    }
}

void app_scenario_run(struct app_worker *worker)
{
    static const struct {
        const char *name;
        void (*run)(struct app_worker *, struct app_item *);
    } scenarios[] = {
        {"simulate", simulate},
        {"group-error", group_error},
        {"arguments", arguments},
        {"churn", churn},
        {"drop", drop},
        {"overlap", overlap},
        {"exit", app_end_exit},
        {"exec", app_end_exec},
        {"fork", app_end_fork},
        {"fork-busy", app_end_fork_busy},
        {"slices", app_group_slices},
        {"together", app_group_together},
        {"captured", app_group_captured},
        {"kill", app_guard_kill},
        {"kill-setup", app_guard_kill},
        {"kill-call", app_guard_kill},
        {"kill-replay", app_guard_kill},
        {"kill-idle", app_guard_kill},
        {"kill-poll", app_guard_kill},
        {"kill-large", app_guard_kill},
        {"kill-fault", app_guard_kill},
        {"kill-destroy", app_guard_kill},
        {"kill-trap", app_guard_kill},
        {"kill-revoke", app_guard_revoke},
        {"kill-shrink", app_guard_shrink},
        {"kill-init", app_guard_unborn},
        {"kill-attach", app_guard_unborn},
        {"abort-call", app_guard_abort},
        {"abort-replay", app_guard_abort},
        {"abort-idle", app_guard_abort},
        {"abort-launch", app_guard_abort},
        {"abort-first", app_guard_abort_first},
        {"abort-init", app_guard_unborn},
        {"abort-setup", app_guard_unborn},
        {"abort-peer", app_guard_leave},
        {"abort-large", app_guard_leave},
        {"revoke-call", app_guard_revoke},
        {"revoke-replay", app_guard_revoke},
        {"revoke-idle", app_guard_revoke},
        {"shrink-call", app_guard_shrink},
        {"shrink-replay", app_guard_shrink},
        {"shrink-idle", app_guard_shrink},
        {"stop", app_guard_stop},
        {"stop-long", app_guard_stop},
        {"absent", app_guard_absent},
        {"timeout", app_guard_absent},
        {"mismatch", app_guard_mismatch},
        {"mismatch-type", app_guard_mismatch},
        {"mismatch-op", app_guard_mismatch},
        {"differ", app_guard_differ},
        {"exit-last", app_guard_exit},
        {"destroy-first", app_guard_destroy},
        {"exit-call", app_guard_exit},
        {"quit-last", app_guard_exit},
        {"quit-call", app_guard_exit},
        {"reset-call", app_guard_reset},
        {"reset-idle", app_guard_reset},
        {"reset-abort", app_guard_reset},
    };
    struct app_item items[APP_MAX_RANKS];
    for (int m = 0; m < worker->members; m++) {
        app_member_use(&worker->member[m]);
        app_item_open(worker->options, &items[m]);
        app_item_choose(worker->options, 0, &items[m]);
    }
    size_t s = 0;
    while (s < sizeof scenarios / sizeof *scenarios && strcmp(worker->options->scenario, scenarios[s].name) != 0) {
        s++;
    }
    APP_CHECK(s < sizeof scenarios / sizeof *scenarios, "no scenario %s", worker->options->scenario);
    scenarios[s].run(worker, items);
    for (int m = 0; m < worker->members; m++) {
        app_member_use(&worker->member[m]);
        app_item_close(&items[m]);
    }
}
