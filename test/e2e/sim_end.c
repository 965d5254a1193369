/* SPDX-License-Identifier: MIT */
/*
 * sim_end.c - scenarios of sim_app in which a process ends, forks or becomes another program, with communicators alive
 *
 * Nothing of theirs is destroyed. What must hold besides the results: the process is gone soon (the launcher has a
 * limit), and what it leaves is looked at by the tests.
 */
#include "test/e2e/sim_failure.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void run_rounds(struct app *app)
{
    for (int round = 0; round < app_options.rounds; round++) {
        app_run(app->call);
    }
}

/* As a program that returns from main. --rounds 0: before the first call, where a set-up may be under way. */
void app_end_exit(struct app *app)
{
    run_rounds(app);
    exit(0);
}

/* What it prints are the descriptors that it has been left with. */
void app_end_exec(struct app *app)
{
    run_rounds(app);
    fflush(stdout);
    execl("/bin/sh", "sh", "-c", "ls -l /proc/$$/fd", (char *)NULL);
    cf_die(app->worker, "exec: %s", strerror(errno));
}

/* A child of which nobody who has registered for forks knows. */
static pid_t fork_unseen(void)
{
    return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
}

/* One child ends in each way that runs, or does not run, what has been registered for the end. */
static void fork_one(struct app *app, int way)
{
    int status;
    fflush(stdout);
    pid_t pid = way % 4 == 3 ? fork_unseen() : fork();
    if (pid == 0) {
        switch (way % 4) {
        case 0:
        case 3:
            exit(0);
        case 1:
            _exit(0);
        default:
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
    }
    cf_check(app->worker, pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0,
             "a forked child did not end with status 0");
}

/* The parent must not notice. */
void app_end_fork(struct app *app)
{
    fork_one(app, 0);
    fork_one(app, 3);
    for (int round = 0; round < app_options.rounds; round++) {
        app_run(app->call);
        fork_one(app, round);
    }
}

/* While calls, or replays, wait on the GPU for the victim, which comes when the others have forked. */
void app_end_fork_busy(struct app *app)
{
    struct cf_worker *worker = app->worker;
    struct cf_graph graph;
    app_run(app->call);
    app_capture(app->call, &graph);
    for (int round = 0; round < 6; round++) {
        app_load(app->call);
        if (failure_is_victim(app)) {
            failure_await_count(app, &app->board->called, (worker->nranks - worker->members) * (round + 1));
        }
        if (round % 2 == 0) {
            app_call(app->call);
        } else {
            cf_graph_launch(worker, &graph, 0);
        }
        if (!failure_is_victim(app)) {
            cf_check(worker, !cf_finishes(worker, 0.002), "an allreduce ended without all of its ranks");
            fork_one(app, round / 2);
            failure_say(app, &app->board->called);
        }
        app_check(app->call);
    }
}
