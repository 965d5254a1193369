/* SPDX-License-Identifier: MIT */
/*
 * reclaim.c - the memory of communicators that have ended
 *
 * Does: ncclCommDestroy is no barrier, so this rank waits for no other: a retired communicator is in a list until its
 *    kernels have ended and the graphs that hold its launches are destroyed. Then this rank closes its peers' memory;
 *    when all ranks have, it frees its own.
 * Threads: any. Closing and freeing wait for the GPU, which may run a kernel that waits for a peer that the calling
 *    thread has yet to serve; so a background thread does both. Callers wait for it, for a bounded time, so that the
 *    memory is usually free when ncclCommDestroy returns.
 * Owns: the retired communicators.
 */
#include "comm/attach/attach.h"

#include <stdlib.h>

#include "comm/launch/launch.h"
#include "comm/watch/watch.h"
#include "gpu/context.h"
#include "util/bgthread.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/scope.h"

#define RECLAIM_TRIES 20                                 /* in two seconds, unless other communicators end meanwhile */
#define RECLAIM_COURTESY_NS (UINT64_C(50) * 1000 * 1000) /* the most that a caller waits for the thread */

static enum oh_step advance(struct oh_job *job);
static struct oh_bgthread worker = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                                    .work = oh_bgthread_advance_jobs,
                                    .stop_ns = 2 * RECLAIM_COURTESY_NS,
                                    .step = advance,
                                    .period_ns = UINT64_C(1) * 1000 * 1000,
                                    .period_max_ns = UINT64_C(100) * 1000 * 1000};

static void add_to_retired(struct oh_comm *comm)
{
    OH_LOCK(&worker.mutex);
    oh_bgthread_add(&worker, &comm->reclaim.job);
}

/* No kernel runs or can start, by a graph or by a call under way, and the monitor does not use it any more. */
static CUresult await_quiet(struct oh_comm *comm)
{
    if (atomic_load_explicit(&comm->order.graphs, memory_order_acquire) > 0 || oh_comm_is_used(comm)) {
        return CUDA_ERROR_NOT_READY;
    }
    OH_TRY(comm->order.unrecorded ? CUDA_ERROR_UNKNOWN : oh_order_query(comm));
    oh_monitor_remove(comm);
    return oh_monitor_is_asking(comm) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult close_peers(struct oh_comm *comm)
{
    OH_TRY(oh_staging_close_peers(&comm->staging));
    oh_segment_set_peers_closed(&comm->segment, comm->id.rank);
    comm->reclaim.peers_closed = true;
    return CUDA_SUCCESS;
}

static CUresult destroy_events(struct oh_comm *comm)
{
    OH_CONTEXT_RELAXED(&comm->staging.context);
    for (int e = 0; e < OH_EVENTS; e++) {
        CUevent *event = &comm->order.event[e];
        if (*event) {
            OH_TRY(oh_driver.event_destroy(*event));
        }
        *event = NULL;
    }
    return CUDA_SUCCESS;
}

static CUresult free_memory(struct oh_comm *comm)
{
    if (!oh_segment_is_unreferenced(&comm->segment, comm->id.rank, comm->id.nranks)) {
        return CUDA_ERROR_NOT_READY;
    }
    if (comm->staging.context.handle) {
        OH_TRY(oh_context_ignore_lost(destroy_events(comm)));
    }
    return oh_staging_destroy(&comm->staging);
}

/* CUDA_ERROR_NOT_READY: it waits for a kernel, a graph or a peer. After another error it is tried again. */
static CUresult reclaim(struct oh_comm *comm)
{
    if (!comm->reclaim.peers_closed) {
        OH_TRY(await_quiet(comm));
        OH_TRY(close_peers(comm));
    }
    return free_memory(comm);
}

/* The driver does not free the memory: it keeps it until the process ends. */
static void abandon_memory(struct oh_comm *comm)
{
    oh_monitor_remove(comm);
    oh_segment_set_peers_closed(&comm->segment, comm->id.rank);
    oh_staging_abandon(&comm->staging);
}

static void free_comm(struct oh_comm *comm)
{
    oh_registry_free_slot(comm);
    oh_live_free(&comm->live);
    oh_comm_ops_forget(comm);
    oh_comm_shrinks_free(comm);
    oh_segment_discard(&comm->attach.parent_segment);
    oh_segment_discard(&comm->segment);
    free(comm);
}

static enum oh_step advance(struct oh_job *job)
{
    struct oh_comm *comm = OH_JOB_OWNER(job, struct oh_comm, reclaim.job);
    const CUresult result = reclaim(comm);
    if (result != CUDA_SUCCESS) {
        const bool failed = result != CUDA_ERROR_NOT_READY && ++comm->reclaim.failures >= RECLAIM_TRIES;
        if (!failed || oh_monitor_is_asking(comm)) {
            return OH_STEP_WAITS;
        }
        abandon_memory(comm);
    }
    oh_captures_free(comm, true);
    free_comm(comm);
    return OH_STEP_DONE;
}

void oh_comms_reclaim(void)
{
    uint64_t until_ns = oh_now_ns() + RECLAIM_COURTESY_NS;
    OH_LOCK(&worker.mutex);
    if (worker.jobs || worker.running) {
        /* Without a thread, the next communicator tries again. */
        const bool works = oh_bgthread_start_within(&worker, until_ns);
        const uint64_t enough = worker.passes + 2; /* one may be under way */
        while (works && worker.running && worker.passes < enough && oh_bgthread_await(&worker, until_ns)) {
        }
    }
}

/*
 * Peers may be opening this rank's memory: it is reclaimed like that of a retired communicator. The communicator keeps
 * its context and its events, which the program's thread may be using. The mutex guards what other threads read.
 */
static struct oh_comm *split_off_staging(struct oh_comm *comm)
{
    struct oh_comm *remains = NULL;
    OH_LOCK(&comm->attach.mutex);
    if (!comm->staging.base && !comm->staging.control) {
        oh_segment_discard(&comm->segment);
    } else if ((remains = calloc(1, sizeof *remains))) {
        remains->id.rank = comm->id.rank;
        remains->id.nranks = comm->id.nranks;
        remains->segment.shared = comm->segment.shared; /* without its file, which has no name any more */
        oh_staging_move(&comm->staging, &remains->staging);
        comm->segment.shared = NULL;
    }
    return remains;
}

void oh_comm_detach(struct oh_comm *comm)
{
    struct oh_comm *remains = split_off_staging(comm); /* first: no thread changes the reason afterwards */
    OH_INFO("comm %p rank %u nranks %u: falls back to NCCL: %s", OH_COMM_VALUES(comm), comm->attach.reason);
    if (remains) {
        oh_staging_share_context(&remains->staging);
        add_to_retired(remains);
        oh_comms_reclaim();
    }
}

void oh_comm_free(struct oh_comm *comm)
{
    oh_segment_unlink(&comm->segment); /* of a grown communicator without a call: the process may end before the rest */
    if (oh_comm_is_used(comm) || comm->staging.context.handle) { /* a thread that uses it may be writing the handle */
        add_to_retired(comm);
    } else {
        free_comm(comm);
    }
}
