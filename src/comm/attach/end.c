/* SPDX-License-Identifier: MIT */
/*
 * end.c - see end.h
 *
 * ncclCommDestroy is no barrier, so nobody waits here for another rank: what is left of a communicator goes to
 * retire.c.
 */
#include "comm/attach/end.h"

#include <unistd.h>

#include "comm/attach/attach.h"
#include "comm/watch/failure.h"
#include "comm/core/event.h"
#include "comm/core/state.h"

void oh_comm_abort(struct oh_comm *comm)
{
    atomic_store(&comm->aborted, true);
    oh_rank_state_publish(comm, OH_RANK_ABORTED);
    oh_comm_suspend(comm);
    pthread_mutex_lock(&comm->attach.mutex);
    /* Also when it was suspended already: its kernels may still be waiting. None was launched without a first call. */
    if (comm->attach.cutover_call != 0 && comm->staging.control) {
        oh_comm_release_kernels(comm);
    }
    pthread_mutex_unlock(&comm->attach.mutex);
}

void oh_comm_suspend(struct oh_comm *comm)
{
    oh_attach_cancel(comm, "it was ended before its ranks had agreed");
    oh_rank_state_publish(comm, OH_RANK_ENDED);
    pthread_mutex_lock(&comm->attach.mutex);
    oh_comm_enter(comm, OH_COMM_ENDED);
    oh_comm_publish_facts(comm);
    pthread_mutex_unlock(&comm->attach.mutex);
}

/*
 * As NCCL waits for its own: the process may end when ncclCommDestroy has returned, and would take with it what peers
 * still wait for. Not longer than they live: the monitor sees to it that a call without them fails.
 */
void oh_comm_drain(const struct oh_comm *comm)
{
    while (oh_comm_state(comm) == OH_COMM_SERVED && oh_event_query_launches(comm) != CUDA_SUCCESS) {
        usleep(50);
    }
}

/*
 * The monitor watches on until the kernels have left: one may wait for a peer that departs only now. If the
 * communicator has failed, kernels that wait do so in vain.
 */
void oh_comm_retire(struct oh_comm *comm)
{
    oh_registry_remove(comm);
    oh_comm_print_stats(comm);
    oh_live_remove(&comm->live);
    oh_comm_suspend(comm);
    oh_comm_ops_forget(comm);
    if (oh_attach_leave(comm)) {
        return; /* the set-up under way buries it */
    }
    atomic_store(&comm->destroyed, true);
    if (atomic_load(&comm->failure) != ncclSuccess && comm->staging.control) {
        oh_comm_release_kernels(comm);
    }
    oh_comm_release(comm); /* the caller reaps, when NCCL's part is done */
}

static void abandon(struct oh_comm *comm)
{
    oh_rank_state_publish(comm, OH_RANK_EXITED); /* the others need not take it for one that was killed */
    if (!oh_comm_is_settled(comm)) {
        oh_attach_cancel(comm, "a rank's process ended before its ranks had agreed");
        oh_segment_unlink(&comm->segment);
    }
}

void oh_comms_end_process(void)
{
    oh_registry_visit(abandon);
}
