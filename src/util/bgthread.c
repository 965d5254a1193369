/* SPDX-License-Identifier: MIT */
/*
 * bgthread.c - a background thread that ends when it has no work
 *
 * Does: Starts it on demand, and stops it at exit and in a forked child.
 * Threads: any; the mutex of struct oh_bgthread.
 * Owns: the thread.
 */
#include "util/bgthread.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "util/clock.h"

static void prepare(struct oh_bgthread *worker)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&worker->wake, &attributes);
    pthread_cond_init(&worker->passed, &attributes);
    pthread_condattr_destroy(&attributes);
    worker->owner = getpid();
    atexit(worker->at_exit);
    worker->prepared = true;
}

static void *run(void *argument)
{
    struct oh_bgthread *worker = argument;
    pthread_mutex_lock(&worker->mutex);
    worker->work();
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
    if (!worker->prepared) {
        prepare(worker);
    }
    if (worker->running) {
        pthread_cond_signal(&worker->wake);
    } else if (!worker->stopping) {
        worker->running = start_thread(worker);
    }
    return worker->running;
}

static bool wait_until(struct oh_bgthread *worker, pthread_cond_t *condition, uint64_t until_ns)
{
    const struct timespec until = {(time_t)(until_ns / 1000000000), (long)(until_ns % 1000000000)};
    return pthread_cond_timedwait(condition, &worker->mutex, &until) == 0;
}

bool oh_bgthread_sleep(struct oh_bgthread *worker, uint64_t ns)
{
    return wait_until(worker, &worker->wake, oh_now_ns() + ns);
}

void oh_bgthread_pass(struct oh_bgthread *worker)
{
    pthread_cond_broadcast(&worker->passed);
}

bool oh_bgthread_await(struct oh_bgthread *worker, uint64_t until_ns)
{
    return wait_until(worker, &worker->passed, until_ns);
}

bool oh_bgthread_stop(struct oh_bgthread *worker, uint64_t ns)
{
    uint64_t until_ns = oh_now_ns() + ns;
    if (getpid() != worker->owner) {
        return false;
    }
    pthread_mutex_lock(&worker->mutex);
    worker->stopping = true;
    pthread_cond_signal(&worker->wake);
    while (worker->running && oh_bgthread_await(worker, until_ns)) {
    }
    pthread_mutex_unlock(&worker->mutex);
    return true;
}
