/* SPDX-License-Identifier: MIT */
/*
 * retire.c - the end of a communicator
 *
 * ncclCommDestroy is no barrier, so nothing here waits: a retired communicator stands in a list until its kernels
 * have finished and the graphs that hold its launches are gone; then it closes its peers' memory and counts itself
 * out of the meeting; when all have, it frees its own. The list is looked at whenever a communicator comes or goes.
 */
#include "comm/comm.h"

#include <pthread.h>
#include <stdlib.h>

#include "gpu/context.h"
#include "util/log.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct oh_comm *retired; /* guarded by mutex */

static void add_to_retired(struct oh_comm *comm)
{
    pthread_mutex_lock(&mutex);
    comm->next = retired;
    retired = comm;
    pthread_mutex_unlock(&mutex);
}

void oh_comm_abort(struct oh_comm *comm)
{
    if (atomic_exchange(&comm->served, false)) {
        __atomic_store_n(comm->staging.abort_word, 1, __ATOMIC_RELEASE); /* pairs with oh_patience in the kernels */
    }
}

void oh_comm_suspend(struct oh_comm *comm)
{
    atomic_store(&comm->served, false);
}

/* No kernel of this rank is running or can still be started by a graph. */
static bool is_quiet(const struct oh_comm *comm)
{
    if (atomic_load_explicit(&comm->graphs, memory_order_acquire) > 0) {
        return false;
    }
    /* Any other result than NOT_READY means done, or a context that is beyond help. */
    return !comm->launched || comm->staging.driver->event_query(comm->last_call) != CUDA_ERROR_NOT_READY;
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
        if (comm->captured_call) {
            driver->event_destroy(comm->captured_call);
        }
        oh_context_leave_relaxed(driver, &scope);
    }
    oh_staging_destroy(&comm->staging);
    oh_segment_close(&comm->segment);
    free(comm);
}

/* True when nothing of it is left. Called with the mutex held. */
static bool reap_one(struct oh_comm *comm)
{
    if (!is_quiet(comm)) {
        return false;
    }
    say_goodbye(comm);
    if (!oh_segment_deserted(&comm->segment, comm->rank, comm->nranks)) {
        return false;
    }
    free_remains(comm);
    return true;
}

void oh_comms_reap(void)
{
    pthread_mutex_lock(&mutex);
    struct oh_comm **at = &retired;
    while (*at) {
        struct oh_comm *next = (*at)->next;
        if (reap_one(*at)) {
            *at = next;
        } else {
            at = &(*at)->next;
        }
    }
    pthread_mutex_unlock(&mutex);
}

void oh_comm_strip(struct oh_comm *comm)
{
    struct oh_comm *remains;
    if (!comm->staging.base) {
        oh_segment_close(&comm->segment);
        return;
    }
    /* Peers may be opening this rank's memory right now: it goes the way of a retired communicator's. */
    remains = malloc(sizeof *remains);
    if (remains) {
        *remains = *comm;
        add_to_retired(remains);
    }
    comm->staging = (struct oh_staging){0};
    comm->segment.meeting = NULL;
    comm->last_call = NULL;
    comm->captured_call = NULL;
    oh_comms_reap();
}

void oh_comm_retire(struct oh_comm *comm)
{
    oh_registry_remove(comm);
    oh_comm_print_stats(comm);
    oh_comm_suspend(comm);
    if (comm->staging.base) {
        add_to_retired(comm);
    } else {
        free(comm);
    }
}
