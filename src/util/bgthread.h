/* SPDX-License-Identifier: MIT */
/*
 * bgthread.h - a background thread of the library
 *
 * Does: Runs work() in a detached thread with all signals blocked, from the time when there is something to do until
 *    work() returns. At exit calls at_exit(), before the driver's own handlers, which cuInit registered earlier.
 * Threads: the mutex guards the fields and whatever the user of the object says. A forked child has the handler but no
 *    thread, and maybe a locked mutex: oh_bgthread_stop does nothing there, and nothing else may be called.
 * Owns: the thread.
 */
#ifndef OH_UTIL_BGTHREAD_H_
#define OH_UTIL_BGTHREAD_H_

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct oh_bgthread {
    pthread_mutex_t mutex;
    void (*work)(void);    /* called, and returns, with the mutex held */
    void (*at_exit)(void); /* called without it; calls oh_bgthread_stop */
    bool running;
    bool stopping; /* the process exits: the thread must end, and none starts */
    bool prepared; /* this and the rest are private */
    pid_t owner;
    pthread_cond_t wake;   /* the thread waits for it */
    pthread_cond_t passed; /* other threads wait for it */
};

#define OH_BGTHREAD(work_, at_exit_)                                                                                   \
    {                                                                                                                  \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .work = (work_), .at_exit = (at_exit_)                                     \
    }

/* All but the last are called with the mutex held. Times are of the monotonic clock (oh_now_ns). */

/* Wakes the thread, or starts it. Returns whether there is one. */
bool oh_bgthread_start(struct oh_bgthread *worker);

/* In the thread: waits up to `ns` for oh_bgthread_start, and returns whether that was called. */
bool oh_bgthread_sleep(struct oh_bgthread *worker, uint64_t ns);

/* In the thread: ends the oh_bgthread_await of other threads. */
void oh_bgthread_pass(struct oh_bgthread *worker);

/* In other threads: waits for oh_bgthread_pass or the thread's end. Returns false when the time is over. */
bool oh_bgthread_await(struct oh_bgthread *worker, uint64_t until_ns);

/* At exit: has the thread end, and waits up to `ns` for that. Returns false in a forked child. */
bool oh_bgthread_stop(struct oh_bgthread *worker, uint64_t ns);

#endif
