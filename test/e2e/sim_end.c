/* SPDX-License-Identifier: MIT */
/*
 * sim_end.c - scenarios of sim_app in which a process ends, forks or becomes another program, with communicators alive
 *
 * Nothing of theirs is destroyed. What must hold besides the results: the process is gone soon (the launcher has a
 * limit), and what it leaves is looked at by the tests.
 */
#include "sim_peer_failure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void call_and_verify(struct app_worker *worker, struct app_item *items)
{
    app_scenario_fill(worker, items);
    APP_NCCL(ncclGroupStart());
    for (int m = 0; m < worker->members; m++) {
        struct app_member *member = &worker->member[m];
        app_member_use(member);
        APP_NCCL(app_item_call(&items[m], &member->comm[0], member->stream[0]));
    }
    APP_NCCL(ncclGroupEnd());
    app_scenario_verify(worker, items);
}

/* As a program that returns from main. --rounds 0: before the first call, where a set-up may be under way. */
void app_end_exit(struct app_worker *worker, struct app_item *items)
{
    for (int round = 0; round < worker->options->rounds; round++) {
        call_and_verify(worker, items);
    }
    exit(0);
}

/* What it prints are the descriptors that it has been left with. */
void app_end_exec(struct app_worker *worker, struct app_item *items)
{
    for (int round = 0; round < worker->options->rounds; round++) {
        call_and_verify(worker, items);
    }
    fflush(stdout);
    execl("/bin/sh", "sh", "-c", "ls -l /proc/$$/fd", (char *)NULL);
    app_fail(__FILE__, __LINE__, "exec: %s", strerror(errno));
}

/* One child ends in each way that runs, or does not run, what has been registered for the end. */
static void fork_one(int way)
{
    int status;
    fflush(stdout);
    pid_t pid = fork();
    APP_CHECK(pid >= 0, "fork: %s", strerror(errno));
    if (pid == 0) {
        switch (way % 3) {
        case 0:
            exit(0);
        case 1:
            _exit(0);
        default:
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
    }
    APP_CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0,
              "a forked child ended with status %x", (unsigned)status);
}

/* The parent must not notice. */
void app_end_fork(struct app_worker *worker, struct app_item *items)
{
    fork_one(0);
    for (int round = 0; round < worker->options->rounds; round++) {
        call_and_verify(worker, items);
        fork_one(round);
    }
}

/* While calls, or replays, wait on the GPU for the victim, which comes when the others have forked. */
void app_end_fork_busy(struct app_worker *worker, struct app_item *items)
{
    CUgraphExec exec[APP_MAX_RANKS];
    call_and_verify(worker, items);
    app_scenario_capture(worker, items, exec);
    for (int round = 0; round < 6; round++) {
        app_scenario_fill(worker, items);
        if (failure_is_victim(worker)) {
            failure_await_count(&worker->board->called, (worker->options->nranks - worker->members) * (round + 1));
        }
        if (round % 2 == 0) {
            app_scenario_call(worker, items);
        } else {
            app_scenario_replay(worker, exec);
        }
        if (!failure_is_victim(worker)) {
            APP_CHECK(!app_scenario_finishes(worker, POLL_MICROSECONDS), "an allreduce ended without all of its ranks");
            fork_one(round / 2);
            failure_say(worker, &worker->board->called);
        }
        app_scenario_verify(worker, items);
    }
}
