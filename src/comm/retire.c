/* SPDX-License-Identifier: MIT */
/*
 * retire.c - the end of a communicator
 *
 * ncclCommDestroy is no barrier, so nobody waits here for anybody: a retired communicator stands in a list until its
 * kernels have finished and the graphs that hold its launches are gone; then it closes its peers' memory and says so
 * in the meeting; when all have, it frees its own.
 *
 * Closing and freeing wait for the GPU (the driver does), which may be busy with a kernel that waits for a peer that
 * the calling thread has yet to serve. So a thread of its own does it, started when there is something in the list and
 * ended when there is nothing; callers give it a moment, with a bound, so that memory is usually back when
 * ncclCommDestroy returns. The list is guarded by a mutex that is never held over a call to the driver.
 */
#include "comm/comm.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "comm/order.h"
#include "gpu/context.h"
#include "util/log.h"

#define REAP_PERIOD_NS (UINT64_C(1) * 1000 * 1000) /* between looks at what is not ready yet, at first */
#define REAP_PERIOD_MAX_NS (UINT64_C(100) * 1000 * 1000)
#define REAP_COURTESY_NS (UINT64_C(50) * 1000 * 1000) /* the most that a caller waits for the thread */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake;   /* there is more in the list; both conditions wait by the monotonic clock */
static pthread_cond_t passed; /* the thread has looked at all there was */
static pthread_once_t prepared = PTHREAD_ONCE_INIT;
static struct oh_comm *retired; /* these four are guarded by mutex */
static uint64_t passes;
static bool running;
static pid_t owner;   /* the process that the thread belongs to; written once */
static bool stopping; /* the process ends: the thread shall too */

static void add_to_retired(struct oh_comm *comm)
{
    pthread_mutex_lock(&mutex);
    comm->next = retired;
    retired = comm;
    pthread_mutex_unlock(&mutex);
}

void oh_comm_abort(struct oh_comm *comm)
{
    oh_comm_suspend(comm);
    pthread_mutex_lock(&comm->late.mutex);
    /* Also when it was suspended already: its kernels may still be waiting. None was launched without a first call. */
    if (comm->late.first != 0 && comm->staging.abort_word) {
        __atomic_store_n(comm->staging.abort_word, 1, __ATOMIC_RELEASE); /* pairs with oh_patience in the kernels */
    }
    pthread_mutex_unlock(&comm->late.mutex);
}

void oh_comm_suspend(struct oh_comm *comm)
{
    oh_late_cancel(comm, "it was ended before its ranks had agreed");
    atomic_store(&comm->served, false);
    pthread_mutex_lock(&comm->late.mutex);
    oh_board_show(comm);
    pthread_mutex_unlock(&comm->late.mutex);
}

/*
 * No kernel of this rank is running or can still be started by a graph. Asked in the relaxed capture mode: in another
 * mode the question itself would break a capture under way elsewhere, and be answered with an error.
 */
static bool is_quiet(const struct oh_comm *comm)
{
    const struct oh_driver *driver = comm->staging.driver;
    struct oh_context_scope scope;
    bool quiet = true; /* a context that cannot be entered runs nothing */
    if (atomic_load_explicit(&comm->graphs, memory_order_acquire) > 0) {
        return false;
    }
    if (comm->launched && oh_context_enter_relaxed(driver, comm->staging.context, &scope) == CUDA_SUCCESS) {
        CUresult result = driver->event_query(comm->last_call);
        oh_context_leave_relaxed(driver, &scope);
        /* Other errors are those of a kernel that failed: the context is beyond use, and runs nothing. */
        quiet = result != CUDA_ERROR_NOT_READY;
    }
    return quiet;
}

static void say_goodbye(struct oh_comm *comm)
{
    if (!comm->said_goodbye) {
        oh_staging_close_peers(&comm->staging);
        oh_segment_leave(&comm->segment, comm->rank);
        comm->said_goodbye = true;
    }
}

static void free_remains(struct oh_comm *comm)
{
    const struct oh_driver *driver = comm->staging.driver;
    struct oh_context_scope scope;
    if (oh_context_enter_relaxed(driver, comm->staging.context, &scope) == CUDA_SUCCESS) {
        if (comm->last_call) {
            driver->event_destroy(comm->last_call);
        }
        if (comm->handed_back_call) {
            driver->event_destroy(comm->handed_back_call);
        }
        oh_context_leave_relaxed(driver, &scope);
    }
    oh_order_free(comm);
    oh_staging_destroy(&comm->staging);
    oh_segment_close(&comm->segment);
    free(comm);
}

/* True when nothing of it is left. */
static bool reap_one(struct oh_comm *comm)
{
    if (!comm->said_goodbye && !is_quiet(comm)) {
        return false;
    }
    say_goodbye(comm);
    if (!oh_segment_deserted(&comm->segment, comm->rank, comm->nranks)) {
        return false;
    }
    free_remains(comm);
    return true;
}

/* Works on a list that nobody else sees; returns what is left of it. */
static struct oh_comm *reap_list(struct oh_comm *list)
{
    struct oh_comm *left = NULL;
    while (list) {
        struct oh_comm *next = list->next;
        if (!reap_one(list)) {
            list->next = left;
            left = list;
        }
        list = next;
    }
    return left;
}

static void deadline_after(uint64_t ns, struct timespec *deadline_p)
{
    clock_gettime(CLOCK_MONOTONIC, deadline_p);
    ns += (uint64_t)deadline_p->tv_nsec;
    deadline_p->tv_sec += (time_t)(ns / 1000000000);
    deadline_p->tv_nsec = (long)(ns % 1000000000);
}

static void put_back(struct oh_comm *list)
{
    while (list) {
        struct oh_comm *next = list->next;
        list->next = retired;
        retired = list;
        list = next;
    }
}

static void *reaper(void *unused)
{
    struct timespec deadline;
    uint64_t period = REAP_PERIOD_NS;
    (void)unused;
    pthread_mutex_lock(&mutex);
    while (retired && !stopping) {
        struct oh_comm *list = retired;
        retired = NULL;
        pthread_mutex_unlock(&mutex);
        list = reap_list(list);
        pthread_mutex_lock(&mutex);
        put_back(list);
        passes++;
        pthread_cond_broadcast(&passed);
        if (retired && !stopping) {
            /* What is not ready soon may take long: look less and less often. */
            period = period < REAP_PERIOD_MAX_NS ? 2 * period : period;
            deadline_after(period, &deadline);
            if (pthread_cond_timedwait(&wake, &mutex, &deadline) == 0) {
                period = REAP_PERIOD_NS;
            }
        }
    }
    running = false;
    pthread_cond_broadcast(&passed);
    pthread_mutex_unlock(&mutex);
    return NULL;
}

/*
 * At the end of the process: lets the thread finish what it is doing, with a bound, before the driver's own handlers
 * run. Those were registered earlier, by cuInit, and run later. A forked child has the handler but not the thread, and
 * may have been given the mutex locked: it must not touch it.
 */
static void stop_reaper(void)
{
    struct timespec deadline;
    if (getpid() != owner) {
        return;
    }
    pthread_mutex_lock(&mutex);
    stopping = true;
    deadline_after(2 * REAP_COURTESY_NS, &deadline);
    pthread_cond_signal(&wake);
    while (running && pthread_cond_timedwait(&passed, &mutex, &deadline) == 0) {
    }
    pthread_mutex_unlock(&mutex);
}

static void prepare_once(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&wake, &attributes);
    pthread_cond_init(&passed, &attributes);
    pthread_condattr_destroy(&attributes);
    owner = getpid();
    atexit(stop_reaper);
}

/* A detached thread that takes no signal from the application's threads. Called with the mutex held. */
static bool start_reaper(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    bool started;

    if (pthread_attr_init(&attributes) != 0) {
        return false;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    started = pthread_create(&thread, &attributes, reaper, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return started;
}

void oh_comms_reap(void)
{
    struct timespec deadline;
    pthread_mutex_lock(&mutex);
    if (!retired && !running) {
        pthread_mutex_unlock(&mutex);
        return;
    }
    pthread_once(&prepared, prepare_once);
    if (!running && !stopping) {
        running = start_reaper(); /* if not, the next one that comes or goes tries again */
    }
    /* Two passes: one may have been under way. */
    uint64_t enough = passes + 2;
    deadline_after(REAP_COURTESY_NS, &deadline);
    pthread_cond_signal(&wake);
    while (running && passes < enough && pthread_cond_timedwait(&passed, &mutex, &deadline) == 0) {
    }
    pthread_mutex_unlock(&mutex);
}

/*
 * Peers may be opening this rank's memory right now: it goes the way of a retired communicator's. Under the mutex,
 * since the application may be asking about the communicator or ending it, if this is the set-up in the background.
 */
static struct oh_comm *take_remains(struct oh_comm *comm)
{
    struct oh_comm *remains = NULL;
    pthread_mutex_lock(&comm->late.mutex);
    if (!comm->staging.base) {
        oh_segment_close(&comm->segment);
    } else if ((remains = calloc(1, sizeof *remains))) {
        remains->rank = comm->rank;
        remains->nranks = comm->nranks;
        remains->segment = comm->segment;
        remains->staging = comm->staging;
        remains->last_call = comm->last_call;
        remains->handed_back_call = comm->handed_back_call;
        comm->staging = (struct oh_staging){0};
        comm->segment.meeting = NULL;
        comm->last_call = NULL;
        comm->handed_back_call = NULL;
    }
    pthread_mutex_unlock(&comm->late.mutex);
    return remains;
}

void oh_comm_strip(struct oh_comm *comm)
{
    struct oh_comm *remains = take_remains(comm);
    if (remains) {
        add_to_retired(remains);
        oh_comms_reap();
    }
}

void oh_comm_bury(struct oh_comm *comm)
{
    if (comm->staging.base) {
        add_to_retired(comm);
        oh_comms_reap();
    } else {
        oh_segment_close(&comm->segment);
        free(comm);
    }
}

void oh_comm_retire(struct oh_comm *comm)
{
    oh_registry_remove(comm);
    oh_comm_print_stats(comm);
    oh_board_leave(comm);
    oh_comm_suspend(comm);
    oh_comm_ops_forget(comm);
    if (oh_late_leave(comm)) {
        return; /* the set-up under way buries it */
    }
    if (comm->staging.base) {
        add_to_retired(comm); /* the caller reaps, when NCCL's part is done */
    } else {
        oh_comm_bury(comm);
    }
}
