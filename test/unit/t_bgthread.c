/* SPDX-License-Identifier: MIT */
/*
 * t_bgthread.c - a thread in the background: it starts, is woken, ends; and the end of a process forked meanwhile
 *
 * The child inherits the exit handler and the mutex as it was, perhaps locked by a thread that it does not have. It
 * must end all the same.
 */
#include "test/tap.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/bgthread.h"

#define LONG_NS (UINT64_C(20) * 1000 * 1000 * 1000) /* no test waits as long, unless it fails */

static void work(void);
static void stop_at_exit(void);
static struct oh_bgthread worker = OH_BGTHREAD(work, stop_at_exit);
static int jobs; /* these three are guarded by the worker's mutex */
static int done;
static int starts;

static void work(void)
{
    starts++;
    while (!worker.stopping && done < 3) {
        while (jobs > 0) {
            jobs--;
            done++;
        }
        oh_bgthread_pass(&worker);
        if (done < 3) {
            oh_bgthread_sleep(&worker, LONG_NS);
        }
    }
}

static void stop_at_exit(void)
{
    oh_bgthread_stop(&worker, LONG_NS);
}

/* Gives it a job and waits until it is done; called with the mutex held. */
static bool give_job(void)
{
    int enough = done + 1;
    uint64_t until_ns = oh_now_ns() + LONG_NS;
    jobs++;
    bool works = oh_bgthread_start(&worker);
    while (works && done < enough && oh_bgthread_await(&worker, until_ns)) {
    }
    return done >= enough;
}

static void await_end(void)
{
    uint64_t until_ns = oh_now_ns() + LONG_NS;
    while (worker.running && oh_bgthread_await(&worker, until_ns)) {
    }
}

static bool child_ends(void)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        alarm(5); /* a child that waits for the mutex ends by this signal */
        exit(0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(void)
{
    pthread_mutex_lock(&worker.mutex);
    bool first = give_job();
    tap_ok(first && starts == 1, "it starts when there is something to do");
    bool second = give_job();
    tap_ok(second && starts == 1, "it is woken when there is more");
    tap_ok(child_ends(), "a child forked while the mutex was held ends");
    bool third = give_job();
    await_end();
    tap_ok(third && !worker.running, "it ends when its function returns");
    done = 0;
    bool again = give_job();
    tap_ok(again && starts == 2, "it starts again");
    pthread_mutex_unlock(&worker.mutex);
    uint64_t start = oh_now_ns();
    bool mine = oh_bgthread_stop(&worker, LONG_NS);
    pthread_mutex_lock(&worker.mutex);
    tap_ok(mine && !worker.running && oh_now_ns() - start < LONG_NS, "it is stopped while it sleeps");
    tap_ok(!oh_bgthread_start(&worker), "once stopped it does not start again");
    pthread_mutex_unlock(&worker.mutex);
    return tap_done();
}
