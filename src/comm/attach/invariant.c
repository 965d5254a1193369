/* SPDX-License-Identifier: MIT */
/*
 * invariant.c - communicators that are served from their first call on, or not at all (ONEHOP_INVARIANT)
 *
 * Does: Has no allreduce executed by NCCL while the ranks have not agreed: the first waits for their decision. See
 *    doc/invariant.md, "How it works".
 * Threads: the thread that uses the communicator.
 * Owns: nothing.
 */
#include "comm/attach/attach.h"

#include <inttypes.h>
#include <stdio.h>

#include "util/clock.h"
#include "util/env.h"
#include "util/log.h"
#include "util/scope.h"

/* NCCL is known not to wait here. After this time the communicator falls back on all ranks. */
#define OUTER_PATIENCE_NS (UINT64_C(10) * 1000 * 1000 * 1000)
#define SECOND_NS (UINT64_C(1) * 1000 * 1000 * 1000)

ncclResult_t oh_invariant_check(const struct oh_call *call)
{
    const struct oh_comm *comm = call->comm;
    if (!comm->id.config.invariant || oh_comm_is_created(comm) || !oh_call_has_work(call)) {
        return ncclSuccess;
    }
    OH_WARN("comm %p: call rejected: NCCL still creates the communicator; poll ncclCommGetAsyncError first",
            (void *)call->handle);
    return ncclInvalidArgument;
}

static bool is_pending(struct oh_comm *comm)
{
    OH_LOCK(&comm->attach.mutex);
    return oh_comm_state(comm) == OH_COMM_ATTACHING && !oh_comm_has_declined(comm) &&
           oh_segment_decision(&comm->segment) == OH_DECISION_PENDING;
}

/* The vote has no effect if the ranks have agreed meanwhile. */
static void give_up(struct oh_comm *comm)
{
    char reason[OH_REASON_BYTES];
    snprintf(reason, sizeof reason, "rank %u: invariant, and a rank made no call within %" PRIu64 " s", comm->id.rank,
             OUTER_PATIENCE_NS / SECOND_NS);
    OH_LOCK(&comm->attach.mutex);
    oh_segment_vote_no(&comm->segment, reason);
}

/* The ranks whose program has made no call yet, as a list. */
static void report_wait(struct oh_comm *comm, uint64_t waited_ns)
{
    char ranks[4 * OH_MAX_RANKS] = "";
    size_t used = 0;
    pthread_mutex_lock(&comm->attach.mutex);
    const struct oh_shared *shared = oh_comm_state(comm) == OH_COMM_ATTACHING ? comm->segment.shared : NULL;
    for (uint32_t r = 0; shared && r < comm->id.nranks; r++) {
        if (!atomic_load(&shared->peer_info[r].begun)) {
            used += (size_t)snprintf(ranks + used, sizeof ranks - used, " %u", r);
        }
    }
    pthread_mutex_unlock(&comm->attach.mutex);
    if (used > 0) {
        OH_WARN("comm %p rank %u of %u: the first call waits for %" PRIu64 " s; ranks without a call:%s",
                OH_COMM_VALUES(comm), waited_ns / SECOND_NS, ranks);
    }
}

void oh_invariant_wait(struct oh_comm *comm, uint64_t start_ns, bool nccl_waits)
{
    const uint64_t stall_ns = oh_env_number(OH_ENV_STALL_SECONDS, false, 86400, 60) * SECOND_NS;
    bool reported = stall_ns == 0;
    while (is_pending(comm)) {
        const uint64_t waited_ns = oh_now_ns() - start_ns;
        if (!nccl_waits && waited_ns >= OUTER_PATIENCE_NS) {
            give_up(comm);
        } else if (!reported && waited_ns >= stall_ns) {
            report_wait(comm, waited_ns);
            reported = true;
        }
        oh_segment_pause(waited_ns);
    }
}
