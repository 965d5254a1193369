/* SPDX-License-Identifier: MIT */
/*
 * t_bgthread.c - a thread in the background: it starts, is woken, ends; and the end of a process forked meanwhile
 *
 * The child inherits the exit handler and the mutex as it was, perhaps locked by a thread that it does not have. It
 * must end all the same.
 */
#include "test/unit/unit.h"

#include <stdlib.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/bgthread.h"

#define LONG_NS (UINT64_C(20) * 1000 * 1000 * 1000) /* no test waits as long, unless it fails */

static void work(struct oh_bgthread *unused);
static struct oh_bgthread worker = {.mutex = PTHREAD_MUTEX_INITIALIZER, .work = work, .stop_ns = LONG_NS};
static int jobs; /* these three are guarded by the worker's mutex */
static int done;
static int starts;

static void work(struct oh_bgthread *unused)
{
    (void)unused;
    starts++;
    while (!worker.stopping && done < 3) {
        while (jobs > 0) {
            jobs--;
            done++;
        }
        pthread_cond_broadcast(&worker.passed);
        if (done < 3) {
            oh_bgthread_sleep(&worker, LONG_NS);
        }
    }
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

static void await_end(struct oh_bgthread *thread)
{
    uint64_t until_ns = oh_now_ns() + LONG_NS;
    while (thread->running && oh_bgthread_await(thread, until_ns)) {
    }
}

static int end_as_process(void)
{
    alarm(5); /* a child that waits for the mutex ends by this signal */
    exit(0);
}

/* --- jobs --------------------------------------------------------------------------------------------------------- */

#define COUNTING_JOBS 3

static enum oh_step count_down(struct oh_job *job);
static struct oh_bgthread counter = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                                     .work = oh_bgthread_advance_jobs,
                                     .stop_ns = LONG_NS,
                                     .step = count_down,
                                     .period_ns = 1000,
                                     .period_max_ns = 100000};

struct counting {
    struct oh_job job;
    int left;
};

static enum oh_step count_down(struct oh_job *job)
{
    struct counting *counting = OH_JOB_OWNER(job, struct counting, job);
    return --counting->left == 0 ? OH_STEP_DONE : counting->left % 2 ? OH_STEP_MOVED : OH_STEP_WAITS;
}

static void test_jobs(void)
{
    struct counting counting[COUNTING_JOBS] = {{.left = 1}, {.left = 20}, {.left = 7}};
    pthread_mutex_lock(&counter.mutex);
    for (int i = 0; i < COUNTING_JOBS; i++) {
        oh_bgthread_start(&counter);
        oh_bgthread_add(&counter, &counting[i].job);
    }
    await_end(&counter);
    tap_ok(!counter.running && !counter.jobs && counting[0].left == 0 && counting[1].left == 0 && counting[2].left == 0,
           "each job is advanced until it is done, and then no more");
    tap_ok(counter.passes >= 20 && counter.passes <= 22, "in as many passes as the longest needs: %d",
           (int)counter.passes);
    pthread_mutex_unlock(&counter.mutex);
}

/* --- a wake while the thread does not sleep ----------------------------------------------------------------------- */

static enum oh_step wake_once(struct oh_job *job);
static struct oh_bgthread sleeper = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                                     .work = oh_bgthread_advance_jobs,
                                     .stop_ns = LONG_NS,
                                     .step = wake_once,
                                     .period_ns = 2 * LONG_NS,
                                     .period_max_ns = 2 * LONG_NS};

static enum oh_step wake_once(struct oh_job *job)
{
    struct counting *counting = OH_JOB_OWNER(job, struct counting, job);
    pthread_mutex_lock(&sleeper.mutex);
    oh_bgthread_start(&sleeper);
    pthread_mutex_unlock(&sleeper.mutex);
    return --counting->left == 0 ? OH_STEP_DONE : OH_STEP_WAITS;
}

static void test_wake(void)
{
    struct counting counting = {.left = 2};
    pthread_mutex_lock(&sleeper.mutex);
    oh_bgthread_add(&sleeper, &counting.job);
    oh_bgthread_start(&sleeper);
    await_end(&sleeper);
    tap_ok(counting.left == 0, "a wake during a pass is not lost");
    pthread_mutex_unlock(&sleeper.mutex);
}

int main(void)
{
    pthread_mutex_lock(&worker.mutex);
    bool first = give_job();
    tap_ok(first && starts == 1, "it starts when there is something to do");
    bool second = give_job();
    tap_ok(second && starts == 1, "it is woken when there is more");
    tap_ok(unit_child(end_as_process) == 0, "a child forked while the mutex was held ends");
    bool third = give_job();
    await_end(&worker);
    tap_ok(third && !worker.running, "it ends when its function returns");
    done = 0;
    bool again = give_job();
    tap_ok(again && starts == 2, "it starts again");
    pthread_mutex_unlock(&worker.mutex);
    uint64_t start = oh_now_ns();
    bool mine = oh_bgthread_stop(&worker);
    pthread_mutex_lock(&worker.mutex);
    tap_ok(mine && !worker.running && oh_now_ns() - start < LONG_NS, "it is stopped while it sleeps");
    tap_ok(!oh_bgthread_start(&worker), "once stopped it does not start again");
    pthread_mutex_unlock(&worker.mutex);
    test_jobs();
    test_wake();
    return tap_done();
}
