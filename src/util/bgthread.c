/* SPDX-License-Identifier: MIT */
/*
 * bgthread.c - a background thread that ends when it has no work
 *
 * Does: Starts it on demand, advances its jobs, and stops it at exit.
 * Threads: any; the mutex of struct oh_bgthread.
 * Owns: the thread.
 */
#include "util/bgthread.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/scope.h"

#define RETRY_NS (UINT64_C(1) * 1000 * 1000)

static atomic_bool exiting;

void oh_bgthread_refuse(void)
{
    atomic_store_explicit(&exiting, true, memory_order_relaxed);
}

const char *oh_bgthread_refusal(void)
{
    return atomic_load_explicit(&exiting, memory_order_relaxed) ? "a rank's process is ending"
                                                                : "a rank cannot start a thread";
}

static void stop_at_exit(int status, void *argument)
{
    struct oh_bgthread *worker = argument;
    (void)status;
    OH_BOUND_LOCKS();
    oh_bgthread_refuse();
    oh_bgthread_stop(worker);
}

static void prepare(struct oh_bgthread *worker)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&worker->wake, &attributes);
    pthread_cond_init(&worker->passed, &attributes);
    pthread_condattr_destroy(&attributes);
    worker->owner = getpid();
    on_exit(stop_at_exit, worker);
}

static void *run(void *argument)
{
    struct oh_bgthread *worker = argument;
    pthread_mutex_lock(&worker->mutex);
    worker->work(worker);
    worker->running = false;
    pthread_cond_broadcast(&worker->passed);
    pthread_mutex_unlock(&worker->mutex);
    return NULL;
}

static bool start_thread(struct oh_bgthread *worker)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, NULL, run, worker) == 0 && pthread_detach(thread) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

bool oh_bgthread_start(struct oh_bgthread *worker)
{
    if (worker->owner == 0) {
        prepare(worker);
    }
    if (worker->running) {
        worker->woken = true;
        pthread_cond_signal(&worker->wake);
    } else if (!worker->stopping && !atomic_load_explicit(&exiting, memory_order_relaxed)) {
        worker->running = start_thread(worker);
    }
    return worker->running;
}

bool oh_bgthread_start_within(struct oh_bgthread *worker, uint64_t until_ns)
{
    while (!oh_bgthread_start(worker)) {
        const uint64_t now_ns = oh_now_ns();
        if (worker->stopping || atomic_load_explicit(&exiting, memory_order_relaxed) || now_ns >= until_ns) {
            return false;
        }
        oh_bgthread_await(worker, now_ns + RETRY_NS < until_ns ? now_ns + RETRY_NS : until_ns);
    }
    return true;
}

void oh_bgthread_add(struct oh_bgthread *worker, struct oh_job *job)
{
    job->next = worker->jobs;
    worker->jobs = job;
}

/* Returns whether a job has moved. Without the mutex meanwhile. */
static bool pass_over_jobs(struct oh_bgthread *worker)
{
    struct oh_job *job = worker->jobs, *left = NULL, **last = &left;
    bool moved = false;
    worker->jobs = NULL;
    pthread_mutex_unlock(&worker->mutex);
    for (struct oh_job *next; job; job = next) {
        next = job->next;
        const enum oh_step step = worker->step(job);
        moved |= step != OH_STEP_WAITS;
        if (step != OH_STEP_DONE) {
            *last = job;
            last = &job->next;
        }
    }
    pthread_mutex_lock(&worker->mutex);
    *last = worker->jobs;
    worker->jobs = left;
    worker->passes++;
    pthread_cond_broadcast(&worker->passed);
    return moved;
}

/* At the end of the process jobs are left, reachable for a leak checker. */
void oh_bgthread_advance_jobs(struct oh_bgthread *worker)
{
    uint64_t period = worker->period_ns;
    while (worker->jobs && !worker->stopping) {
        period = pass_over_jobs(worker) ? worker->period_ns : 2 * period;
        period = period < worker->period_max_ns ? period : worker->period_max_ns;
        if (worker->jobs && !worker->stopping && oh_bgthread_sleep(worker, period)) {
            period = worker->period_ns;
        }
    }
}

static bool wait_until(struct oh_bgthread *worker, pthread_cond_t *condition, uint64_t until_ns)
{
    const struct timespec until = {(time_t)(until_ns / 1000000000), (long)(until_ns % 1000000000)};
    return pthread_cond_timedwait(condition, &worker->mutex, &until) == 0;
}

bool oh_bgthread_sleep(struct oh_bgthread *worker, uint64_t ns)
{
    if (!worker->woken) {
        wait_until(worker, &worker->wake, oh_now_ns() + ns);
    }
    const bool woken = worker->woken;
    worker->woken = false;
    return woken;
}

bool oh_bgthread_await(struct oh_bgthread *worker, uint64_t until_ns)
{
    return wait_until(worker, &worker->passed, until_ns);
}

bool oh_bgthread_stop(struct oh_bgthread *worker)
{
    const uint64_t until_ns = oh_now_ns() + worker->stop_ns;
    if (getpid() != worker->owner) {
        return false;
    }
    OH_LOCK(&worker->mutex);
    worker->stopping = true; /* also without the mutex */
    if (!OH_IS_LOCKED()) {
        return true;
    }
    pthread_cond_signal(&worker->wake);
    while (worker->running && oh_bgthread_await(worker, until_ns)) {
    }
    return true;
}
