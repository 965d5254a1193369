/* SPDX-License-Identifier: MIT */
/*
 * bgthread.h - a background thread of the library
 *
 * Does: Runs work() in a detached thread with all signals blocked, from the time when there is something to do until
 *    work() returns. A thread of jobs advances all of them, again and again, each by steps that do not wait. At exit
 *    ends the thread, before the driver's own handlers, which cuInit registered earlier.
 * Threads: the mutex guards the fields and whatever the user of the object says. A forked child has the handler but no
 *    thread, and maybe a locked mutex: oh_bgthread_stop does nothing there, and nothing else may be called.
 * Owns: the thread. A job is part of its user's object.
 */
#ifndef OH_UTIL_BGTHREAD_H_
#define OH_UTIL_BGTHREAD_H_

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct oh_job {
    struct oh_job *next;
};

/* The result of a step of a job. */
enum oh_step {
    OH_STEP_WAITS,
    OH_STEP_MOVED, /* others may move now, too */
    OH_STEP_DONE   /* the same, and the thread does not use this job any more: the step may have freed it */
};

struct oh_bgthread {
    pthread_mutex_t mutex;
    void (*work)(struct oh_bgthread *worker); /* called, and returns, with the mutex held */
    uint64_t stop_ns;                         /* the most that the end of the process waits for the thread */
    enum oh_step (*step)(struct oh_job *job); /* of a thread of jobs; called without the mutex */
    uint64_t period_ns;                       /* between passes over jobs that wait: at first, and at most */
    uint64_t period_max_ns;
    struct oh_job *jobs; /* but for those of the pass under way */
    uint64_t passes;     /* over the jobs */
    bool running;
    bool stopping;         /* the process exits: the thread must end, and none starts */
    bool woken;            /* this and the rest are private; by oh_bgthread_start, since the last sleep */
    pid_t owner;           /* the process; 0: the conditions are not made yet */
    pthread_cond_t wake;   /* the thread waits for it */
    pthread_cond_t passed; /* other threads wait for it: after each pass over jobs, and at the end of the thread */
};

/* work() of a thread of jobs. */
void oh_bgthread_advance_jobs(struct oh_bgthread *worker);

/* The object of which a job is a part. */
#define OH_JOB_OWNER(job_, type_, member_) ((type_ *)(void *)((char *)(job_)-offsetof(type_, member_)))

/* All but the last are called with the mutex held. Times are of the monotonic clock (oh_now_ns). */

/* Wakes the thread, or starts it. Returns whether there is one. */
bool oh_bgthread_start(struct oh_bgthread *worker);

/* The same. If the system refuses a thread, tries again until `until_ns`, with the mutex unlocked between the tries. */
bool oh_bgthread_start_within(struct oh_bgthread *worker, uint64_t until_ns);

/* The process is ending: from now on no thread starts. */
void oh_bgthread_refuse(void);

/* Why oh_bgthread_start has found none. */
const char *oh_bgthread_refusal(void);

/* Adds a job, which the next pass advances; oh_bgthread_start wakes the thread for it. */
void oh_bgthread_add(struct oh_bgthread *worker, struct oh_job *job);

/* In the thread: waits up to `ns` for oh_bgthread_start, and returns whether that was called since the last sleep. */
bool oh_bgthread_sleep(struct oh_bgthread *worker, uint64_t ns);

/* In other threads: waits for a signal of `passed`. Returns false when the time is over. */
bool oh_bgthread_await(struct oh_bgthread *worker, uint64_t until_ns);

/* Has the thread end, and waits up to stop_ns for that. Returns false in a forked child. */
bool oh_bgthread_stop(struct oh_bgthread *worker);

#endif
