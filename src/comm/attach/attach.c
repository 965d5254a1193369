/* SPDX-License-Identifier: MIT */
/*
 * attach.c - the calls of a communicator that is not settled
 *
 * Does: Counts the calls until a communicator is settled, and stores the number of each call that NCCL serves in the
 *    segment (cutover.c). Once all ranks have voted yes, the number of the first served call follows from these. See
 *    doc/design.md, "Attach".
 * Threads: the thread that uses the communicator, where the decision takes effect.
 * Owns: nothing.
 */
#include "comm/attach/attach.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/launch/launch.h"
#include "comm/watch/watch.h"
#include "util/log.h"
#include "util/scope.h"

/* --- the cutover -------------------------------------------------------------------------------------------------- */

/*
 * Cuts the table to the room of the rank that has least: the same on all ranks, since each has published its room
 * before its vote. The table fits each rank. If it does not fit the least of both numbers, no rank serves a message.
 */
static void fit_table(struct oh_comm *comm)
{
    struct oh_plan_room least;
    memset(&least, 0xff, sizeof least);
    for (uint32_t r = 0; r < comm->id.nranks; r++) {
        const struct oh_plan_room room = comm->segment.shared->peer_info[r].room;
        least.sms = room.sms < least.sms ? room.sms : least.sms;
        for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT; c++) {
            least.sm_threads[c] = room.sm_threads[c] < least.sm_threads[c] ? room.sm_threads[c] : least.sm_threads[c];
        }
        least.max_blocks = room.max_blocks < least.max_blocks ? room.max_blocks : least.max_blocks;
    }
    comm->serve.room = least;
    const struct oh_plan_table whole = comm->serve.table;
    if (!oh_plan_table_fit(&comm->serve.table, &least, comm->id.config.invariant)) {
        oh_plan_table_keep(&comm->serve.table, 0);
    }
    if (memcmp(&whole, &comm->serve.table, sizeof whole) != 0) {
        OH_INFO("comm %p rank %u: room for %u threads on each of %u SMs, for %u blocks in all: grids are %s",
                (void *)comm->id.nccl, comm->id.rank, oh_plan_room_threads(&least), least.sms, least.max_blocks,
                oh_plan_table_end(&comm->serve.table) > 0 ? "smaller" : "too large");
    }
}

/*
 * All ranks have voted yes. Returns true if this call has closed the words. A failure before the cutover takes effect
 * here, so that the other ranks, whose cutover is due as well, read it. With the mutex held.
 */
static bool close_words(struct oh_comm *comm)
{
    struct oh_shared *shared = comm->segment.shared;
    comm->attach.cutover_call = oh_cutover_close(&shared->cutover, comm->id.nranks);
    comm->serve.progress = &shared->progress[comm->id.rank];
    fit_table(comm);
    if (comm->id.config.invariant) {
        oh_plan_table_complete(&comm->serve.table);
    }
    const bool closed = oh_comm_enter(comm, OH_COMM_CUTOVER);
    if (oh_comm_error(comm) != ncclSuccess) { /* oh_comm_fail() stores it before it enters FAILED; both are seq_cst */
        oh_comm_enter(comm, OH_COMM_FAILED);
    }
    return closed;
}

/*
 * The other ranks' decision takes effect at this call: enters FALLBACK. With the mutex held. The set-up, which may not
 * have noticed the decision yet, frees what it has made.
 */
static bool fall_back(struct oh_comm *comm)
{
    struct oh_attach *attach = &comm->attach;
    const bool has_declined = oh_comm_has_declined(comm);
    if (oh_comm_state(comm) != OH_COMM_ATTACHING ||
        (!has_declined && oh_segment_decision(&comm->segment) != OH_DECISION_OFF)) {
        return false;
    }
    if (!has_declined) {
        oh_segment_reason(&comm->segment, attach->reason);
    }
    oh_comm_enter(comm, OH_COMM_FALLBACK);
    oh_comm_publish_facts(comm);
    return true;
}

/*
 * Counts the call as one that NCCL executes, unless it is past the cutover, whose number is known then. Returns true if
 * this call has entered CUTOVER. With the mutex held.
 */
static bool count_call(struct oh_call *call)
{
    struct oh_comm *comm = call->comm;
    struct oh_attach *attach = &comm->attach;
    bool closed = false;
    if (oh_comm_state(comm) < OH_COMM_CUTOVER) {
        const bool on = attach->voted && oh_segment_decision(&comm->segment) == OH_DECISION_ON;
        if (!on && oh_cutover_announce(&comm->segment.shared->cutover, comm->id.rank, attach->calls + 1)) {
            call->number = ++attach->calls;
            return false;
        }
        closed = attach->voted && close_words(comm); /* `on`, or another rank has closed this rank's word */
    }
    if (!oh_attach_is_past_cutover(comm)) {
        call->number = ++attach->calls;
    }
    return closed;
}

bool oh_attach_is_past_cutover(const struct oh_comm *comm)
{
    return oh_comm_has_agreed(comm) && comm->attach.calls + 1 >= comm->attach.cutover_call;
}

static void log_served(const struct oh_comm *comm)
{
    char sizes[40] = "at every size (invariant)";
    if (!comm->id.config.invariant) {
        const uint64_t allreduce = oh_plan_rows_end(&comm->serve.table.rows[ONEHOP_ALLREDUCE]);
        snprintf(sizes, sizeof sizes, "up to %" PRIu64 " bytes",
                 allreduce ? allreduce : oh_plan_table_end(&comm->serve.table));
    }
    OH_INFO("comm %p rank %u nranks %u: served by onehop %s from call %" PRIu64
            " on, %u MiB of GPU memory, attached in %.1f ms",
            OH_COMM_VALUES(comm), sizes, comm->attach.cutover_call, (unsigned)(oh_staging_bytes(&comm->staging) >> 20),
            comm->attach.ms);
}

bool oh_attach_count(struct oh_call *call)
{
    struct oh_comm *comm = call->comm;
    struct oh_attach *attach = &comm->attach;
    const bool is_counted = oh_call_is_counted(call) && oh_comm_is_created(comm), is_wanted = oh_attach_wants(call);
    if (!is_counted && oh_comm_state(comm) < OH_COMM_ATTACHING) {
        return false;
    }
    pthread_mutex_lock(&attach->mutex);
    const bool counts = !fall_back(comm) && is_counted && !oh_comm_is_settled(comm);
    const bool closed = counts && count_call(call);
    pthread_mutex_unlock(&attach->mutex);
    attach->first_call &= !is_wanted;
    if (closed) {
        oh_monitor_add(comm);
        log_served(comm);
    }
    return counts && call->number == 0;
}

void oh_attach_enter_served(const struct oh_call *call)
{
    struct oh_comm *comm = call->comm;
    const bool is_past_cutover = call->fallback != OH_FALLBACK_COMM;
    if (is_past_cutover && oh_comm_state(comm) == OH_COMM_CUTOVER) {
        OH_LOCK(&comm->attach.mutex);
        oh_comm_enter(comm, OH_COMM_SERVED);
        oh_comm_publish_facts(comm);
    }
}

void oh_attach_note_work(struct oh_comm *comm)
{
    if (oh_comm_state(comm) < OH_COMM_ATTACHING) { /* later the background thread reads it */
        comm->attach.unordered = true;
    }
}

void oh_attach_note_poll(struct oh_comm *comm)
{
    if (oh_comm_state(comm) == OH_COMM_IDLE && !atomic_load(&comm->attach.used)) {
        atomic_store(&comm->attach.polled, true);
    }
}

void oh_attach_note_call(const struct oh_call *call)
{
    if (oh_comm_state(call->comm) == OH_COMM_IDLE) {
        atomic_store(&call->comm->attach.used, true);
    }
    if (call->comm->id.config.invariant && oh_comm_is_created(call->comm)) {
        oh_attach_begin(call->comm, call->stream); /* then no work of NCCL's is without an event behind it */
    }
    if (!oh_call_is_counted(call)) { /* of a counted call oh_attach_end_call notes it */
        oh_attach_note_work(call->comm);
    }
}

/* NCCL has accepted a call that was not counted, since NCCL had not created the communicator as far as was known. */
static void count_late(struct oh_comm *comm)
{
    struct oh_attach *attach = &comm->attach;
    attach->calls++;
    if (oh_comm_is_created(comm)) { /* else when it is created */
        oh_cutover_announce(&comm->segment.shared->cutover, comm->id.rank, attach->calls);
    }
}

void oh_attach_end_call(struct oh_call *call, bool is_executed)
{
    struct oh_comm *comm = call->comm;
    struct oh_attach *attach = &comm->attach;
    if (oh_comm_is_settled(comm) || !oh_call_is_counted(call)) {
        return;
    }
    OH_LOCK(&attach->mutex);
    if (!is_executed && call->number != 0) {
        if (comm->segment.shared) { /* else the set-up has ended, and another thread may have ended the communicator */
            oh_cutover_retract(&comm->segment.shared->cutover, comm->id.rank, call->number);
        }
        attach->calls--;
        call->number = 0;
    } else if (is_executed && call->number == 0 && oh_comm_state(comm) < OH_COMM_CUTOVER &&
               !oh_comm_has_declined(comm)) {
        count_late(comm);
    }
    if (is_executed) {
        oh_attach_note_work(comm);
    }
}

/* --- the first calls ---------------------------------------------------------------------------------------------- */

/* No table serves more than the largest capacity. That of allreduce is two-shot's, which splits messages. */
static bool is_small(const struct oh_call *call)
{
    const enum onehop_collective collective = (enum onehop_collective)call->kind;
    const uint64_t most = oh_plan_capacity(collective, collective == ONEHOP_ALLREDUCE ? ONEHOP_TWOSHOT : ONEHOP_ONESHOT,
                                           call->comm->id.nranks) /
                          oh_collective_parts(collective, call->comm->id.nranks);
    const bool has_end = !call->comm->id.config.invariant || !oh_collective_reduces(collective);
    return call->count > 0 && (!has_end || call->count <= most / oh_type_size(call->type));
}

bool oh_attach_wants(const struct oh_call *call)
{
    const struct oh_comm *comm = call->comm;
    return oh_kind_has_kernels(call->kind) && !oh_comm_is_settled(comm) && oh_comm_is_created(comm) &&
           !call->has_config && oh_call_is_valid(call) && is_small(call) &&
           (oh_agreement_collectives() >> call->kind & 1);
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

void oh_attach_cancel(struct oh_comm *comm, const char *reason)
{
    OH_LOCK(&comm->attach.mutex);
    if (OH_IS_LOCKED() && oh_comm_state(comm) < OH_COMM_CUTOVER) {
        oh_segment_vote_no(&comm->segment, reason);
        if (!oh_comm_has_declined(comm)) {
            snprintf(comm->attach.reason, sizeof comm->attach.reason, "%s", reason);
        }
        oh_comm_enter(comm, OH_COMM_FALLBACK);
        oh_comm_publish_facts(comm);
    }
}
