/* SPDX-License-Identifier: MIT */
/*
 * bgthread.h - a thread of the library's own, which works in the background of an application
 *
 * It is detached, takes no signal from the application's threads, is started when there is something to do, and ends
 * when its function returns. A worker is one static object; its mutex guards its fields and whatever the user of it
 * says. At the end of the process at_exit is called, before the driver's own handlers: those were registered earlier,
 * by cuInit, and run later. A forked child has the handler but not the thread, and may have been given the mutex
 * locked: oh_bgthread_stop then does nothing, and the other functions may not be called.
 */
#ifndef OH_UTIL_BGTHREAD_H_
#define OH_UTIL_BGTHREAD_H_

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct oh_bgthread {
    pthread_mutex_t mutex;
    void (*work)(void);    /* the thread's function: is called, and returns, with the mutex held */
    void (*at_exit)(void); /* is called without it, and calls oh_bgthread_stop */
    bool running;
    bool stopping; /* the process ends: the thread shall too, and no other begins */
    bool prepared; /* this and the rest are private */
    pid_t owner;
    pthread_cond_t wake;   /* the thread waits for it; both by the monotonic clock */
    pthread_cond_t passed; /* others wait for the thread */
};

#define OH_BGTHREAD(work_, at_exit_)                                                                                   \
    {                                                                                                                  \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .work = (work_), .at_exit = (at_exit_)                                     \
    }

/* All but the last are called with the mutex held. */

/* Wakes the thread, or starts it. False: there is none, and none can be had. */
bool oh_bgthread_start(struct oh_bgthread *worker);

/* For the thread: waits until it is woken, but no longer than that; true when it was woken. */
bool oh_bgthread_sleep(struct oh_bgthread *worker, uint64_t ns);

/* For the thread: tells those who wait that it has come further. */
void oh_bgthread_pass(struct oh_bgthread *worker);

/* For others: waits until the thread has come further, or has ended. False: not until then (oh_now_ns). */
bool oh_bgthread_await(struct oh_bgthread *worker, uint64_t until_ns);

/* At the end of the process: tells the thread to end, and gives it so long. False: it is another process's. */
bool oh_bgthread_stop(struct oh_bgthread *worker, uint64_t ns);

#endif
