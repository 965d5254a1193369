/* SPDX-License-Identifier: MIT */
/* sim_scenario.c - the scenarios of sim_app, their common parts, and those about communicators that end */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/common/resources.h"
#include "test/e2e/sim_app.h"

#define SETTLED_ROUND 10 /* of churn: by then everything that is made once has been made */

void app_load(struct cf_batch *batch)
{
    cf_batch_load(batch, 0);
    cf_sync(batch->worker);
}

void app_call(struct cf_batch *batch)
{
    cf_batch_issue(batch, CF_GROUPED, 0);
}

void app_check(struct cf_batch *batch)
{
    cf_sync(batch->worker);
    cf_batch_judge(batch, 0, true);
}

void app_run(struct cf_batch *batch)
{
    app_load(batch);
    app_call(batch);
    app_check(batch);
}

void app_capture(struct cf_batch *batch, struct cf_graph *graph_p)
{
    cf_capture_begin(batch->worker, 0, CU_STREAM_CAPTURE_MODE_GLOBAL, graph_p);
    app_call(batch);
    cf_capture_end(batch->worker, graph_p);
    cf_graph_instantiate(batch->worker, graph_p);
}

/* Communicators made, used and ended many times leave nothing behind. */
static void churn(struct app *app)
{
    /* Pools of memory may grow; a sanitizer maps memory of its own. */
    const struct resources_bounds bounds = {
        .host_kib = 1 << 20, .gpu_kib = 1 << 20, .handles = getenv("OH_SANITIZERS") != NULL ? 64 : 0};
    struct resources settled = {0};
    for (int round = 0; round < app_options.rounds; round++) {
        if (round > 0) {
            app_comm_make(app);
        }
        app_run(app->call);
        app_comm_end(app);
        if (round == SETTLED_ROUND) {
            settled = resources_measure(app->worker);
        }
    }
    if (app_options.rounds > SETTLED_ROUND) {
        resources_compare(app->worker, &bounds, &settled);
    }
}

static const struct scenario {
    const char *names; /* each with a blank behind it */
    void (*run)(struct app *app);
    bool alone; /* one rank a process */
    bool calls; /* begins with a call of all ranks */
} scenarios[] = {
    {"churn ", churn, false, false},
    {"fault-stops fault-on ", app_fault, true, false},
    {"exit ", app_end_exit, false, false},
    {"exec ", app_end_exec, false, false},
    {"fork ", app_end_fork, false, false},
    {"fork-busy ", app_end_fork_busy, false, false},
    {"kill kill-setup kill-call kill-replay kill-suspended kill-idle kill-poll kill-large kill-fault kill-destroy "
     "kill-finalize kill-trap ",
     app_guard_kill, false, false},
    {"kill-revoke revoke-call revoke-replay revoke-idle ", app_guard_revoke, true, true},
    {"kill-shrink shrink-call shrink-replay shrink-idle ", app_guard_shrink, true, true},
    {"kill-init kill-attach abort-init abort-setup ", app_guard_unborn, true, true},
    {"abort-call abort-replay abort-idle abort-launch abort-first ", app_guard_abort, true, false},
    {"abort-peer abort-large ", app_guard_leave, true, true},
    {"stop stop-long ", app_guard_stop, true, true},
    {"absent timeout ", app_guard_absent, true, true},
    {"mismatch mismatch-type mismatch-op mismatch-kind mismatch-root ", app_guard_mismatch, true, true},
    {"differ ", app_guard_differ, true, true},
    {"exit-last exit-call quit-last quit-call ", app_guard_exit, true, true},
    {"destroy-first destroy-suspended ", app_guard_destroy, true, true},
    {"reset-call reset-idle reset-abort ", app_guard_reset, true, true},
};

static const struct scenario *find(void)
{
    char name[64];
    int length = snprintf(name, sizeof name, "%s ", app_options.scenario);
    for (size_t s = 0; s < sizeof scenarios / sizeof *scenarios; s++) {
        const char *at = scenarios[s].names;
        while (*at != '\0' && strncmp(at, name, (size_t)length) != 0) {
            at = strchr(at, ' ') + 1;
        }
        if (*at != '\0') {
            return &scenarios[s];
        }
    }
    return NULL;
}

bool app_has_scenario(void)
{
    return find() != NULL;
}

void app_scenario_run(struct app *app)
{
    const struct scenario *scenario = find();
    if (scenario == NULL) {
        cf_die(app->worker, "no scenario was asked for");
    }
    struct cf_spec spec = app_case(0), other = spec;
    other.count = app_options.count[app_options.counts > 1 ? 1 : 0];
    other.kind = app_options.kind[app_options.kinds > 1 ? 1 : 0];
    app->call = cf_batch_new(app->worker, &app->set[0]);
    cf_batch_add(app->call, &spec);
    cf_batch_open(app->call);
    app->other = cf_batch_new(app->worker, &app->set[app_options.comms > 1 ? 1 : 0]);
    cf_batch_add(app->other, &other);
    cf_batch_open(app->other);
    cf_check(app->worker, !scenario->alone || app->worker->members == 1, "this scenario is for one rank a process");
    if (scenario->calls) {
        app_run(app->call);
    }
    scenario->run(app);
    cf_batch_free(app->call);
    cf_batch_free(app->other);
}
