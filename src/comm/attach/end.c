/* SPDX-License-Identifier: MIT */
/*
 * end.c - the end of a communicator on this rank
 *
 * Does: Publishes that this rank leaves, passes later calls to NCCL, and hands the memory to reclaim.c.
 * Threads: any.
 * Owns: nothing.
 */
#include "comm/attach/attach.h"

#include <stdio.h>

#include "comm/watch/watch.h"
#include "util/bgthread.h"
#include "util/scope.h"

void oh_comm_abort(struct oh_comm *comm)
{
    oh_comm_leave(comm, OH_END_ABORTED);
    /* Also if it had ended before: its kernels may still wait. Before the cutover none was launched. */
    if (oh_comm_has_agreed(comm) && comm->staging.control) {
        oh_kernels_abort(comm);
    }
}

/* Notes an end, for this rank's threads and for the other ranks. */
static void note_end(struct oh_comm *comm, enum oh_end end)
{
    static const enum oh_rank_state rank_states[] = {
        [OH_END_EXITED] = OH_RANK_EXITED,
        [OH_END_FINALIZED] = OH_RANK_ENDED,
        [OH_END_DESTROYED] = OH_RANK_ENDED,
        [OH_END_ABORTED] = OH_RANK_ABORTED,
    };
    unsigned before = atomic_load(&comm->health.end);
    while (before < end && !atomic_compare_exchange_weak(&comm->health.end, &before, end)) {
    }
    oh_rank_state_publish(comm, rank_states[end]);
}

static void enter_ended(struct oh_comm *comm)
{
    OH_LOCK(&comm->attach.mutex);
    oh_comm_enter(comm, OH_COMM_ENDED);
    oh_comm_publish_facts(comm);
}

void oh_comm_pass_calls(struct oh_comm *comm, const char *reason)
{
    oh_attach_cancel(comm, reason);
    pthread_mutex_lock(&comm->attach.mutex);
    snprintf(comm->attach.reason, sizeof comm->attach.reason, "%s", reason);
    pthread_mutex_unlock(&comm->attach.mutex);
    enter_ended(comm);
}

void oh_comm_leave(struct oh_comm *comm, enum oh_end end)
{
    note_end(comm, end); /* first: a call that waits for the ranks goes on when the set-up is cancelled, and reads it */
    oh_attach_cancel(comm, "it was ended before its ranks had agreed");
    enter_ended(comm);
}

/* Cancels the splits of the communicator that NCCL still creates, and its own creation. */
static void cancel_creations(struct oh_comm *comm)
{
    struct oh_comm *child = oh_comm_take_children(comm, oh_comm_children_begun(comm));
    unsigned count = 0;
    for (struct oh_comm *next; child; child = next, count++) {
        next = child->id.next;
        oh_creation_cancel(child);
    }
    oh_comm_children_done(comm, count);
    oh_comm_created(comm, NULL);
}

ncclResult_t oh_comm_report_end(struct oh_comm *comm)
{
    const ncclResult_t differs = oh_difference_log(comm); /* first: the monitor may not have looked since */
    oh_comm_print_stats(comm);
    return differs;
}

static void report(struct oh_comm *comm, void *unused)
{
    (void)unused;
    oh_comm_report_end(comm);
}

void oh_comms_print_stats(void)
{
    OH_KEEP_ERRNO();
    oh_registry_visit(report, NULL);
    oh_stats_print_process();
}

/* The monitor watches until the kernels have ended: a kernel may wait for a peer that departs only now. */
void oh_comm_retire(struct oh_comm *comm)
{
    oh_comm_leave(comm, OH_END_DESTROYED);
    cancel_creations(comm);
    oh_attach_await(comm);
    oh_comm_release(comm); /* before it is freed: most communicators are free at once then */
    oh_comm_free(comm);    /* the caller reclaims when NCCL's part is done */
}

static void abandon(struct oh_comm *comm, void *unused)
{
    (void)unused;
    note_end(comm, OH_END_EXITED);
    if (oh_comm_is_settled(comm)) {
        return;
    }
    if (oh_comm_state(comm) ==
        OH_COMM_IDLE) { /* its record says that no call was made, unless a destructor makes one */
        oh_segment_vote_no(&comm->segment, oh_bgthread_refusal());
    } else {
        oh_attach_cancel(comm, oh_bgthread_refusal());
    }
    oh_segment_unlink(&comm->segment);
}

void oh_comms_end_process(void)
{
    oh_initial_comm_end_process();
    oh_bgthread_refuse();
    oh_registry_visit(abandon, NULL);
}
