/* SPDX-License-Identifier: MIT */
/*
 * attach.c - the first calls of a communicator, and the background thread of the set-ups
 *
 * Does: Counts the calls until a communicator is settled, and stores the number of each call that NCCL serves in the
 *    segment (cutover.c). Once all ranks have voted yes, the number of the first served call follows from these. See
 *    doc/design.md, "Attach".
 * Threads: the thread that uses the communicator, where the decision takes effect. A background thread, which ends when
 *    there is no set-up, advances the set-ups; its mutex is never held over a call of the driver.
 * Owns: the set-ups.
 */
#include "comm/attach/attach.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/launch/launch.h"
#include "comm/watch/watch.h"
#include "util/bgthread.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/nccl_conf.h"
#include "util/scope.h"

#define PERIOD_MAX_NS (UINT64_C(20) * 1000 * 1000)    /* between polls of set-ups that wait, */
#define PERIOD_AWAITED_NS (UINT64_C(1) * 1000 * 1000) /* and while a call waits */
#define LEAVE_NS (UINT64_C(50) * 1000 * 1000)         /* the most that the end of a communicator waits for the thread */

/*
 * How long a call waits for other ranks. NCCL connects a communicator in its first collective, and waits there until
 * all ranks have made that call (src/group.cc:147 of 2.30.7). PATIENCE_NS covers ranks that compile, load and warm up
 * side by side, and bounds what a program loses where NCCL would not have waited. Once all ranks are here it is the
 * time without a step, since a busy machine takes longer for the same steps; MOST_PATIENCE_NS bounds that. COURTESY_NS
 * is for calls where NCCL is known not to wait: it covers the usual distance of ranks.
 */
#define PATIENCE_NS (UINT64_C(2) * 1000 * 1000 * 1000)
#define MOST_PATIENCE_NS (5 * PATIENCE_NS)
#define COURTESY_NS (UINT64_C(20) * 1000 * 1000)

static enum oh_step advance(struct oh_job *job);
static struct oh_bgthread worker = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                                    .work = oh_bgthread_advance_jobs,
                                    .stop_ns = UINT64_C(100) * 1000 * 1000,
                                    .step = advance,
                                    .period_ns = UINT64_C(100) * 1000,
                                    .period_max_ns = PERIOD_MAX_NS};
static unsigned waiting; /* calls that wait for a set-up */

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
    const bool has_declined = oh_comm_has_declined(comm);
    if (!is_executed && call->number != 0) {
        if (!has_declined) {
            oh_cutover_retract(&comm->segment.shared->cutover, comm->id.rank, call->number);
        }
        attach->calls--;
        call->number = 0;
    } else if (is_executed && call->number == 0 && oh_comm_state(comm) < OH_COMM_CUTOVER && !has_declined) {
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

void oh_attach_begin(struct oh_comm *comm, CUstream stream)
{
    struct oh_attach *attach = &comm->attach;
    if (oh_comm_state(comm) != OH_COMM_IDLE) {
        return;
    }
    oh_agreement_begin(comm, stream);
    oh_comm_enter(comm, OH_COMM_ATTACHING);
    attach->patient = true;
    attach->first_call = true;
    attach->steps = oh_agreement_steps(comm); /* so that a first look is no step: a group looks late */
    pthread_mutex_lock(&worker.mutex);
    const bool left = atomic_load(&comm->health.end) >= OH_END_DESTROYED; /* before oh_attach_await gets the mutex */
    const bool works = !left && oh_bgthread_start(&worker);
    if (works) {
        attach->in_background = true;
        oh_comm_retain(comm);
        oh_bgthread_add(&worker, &comm->agreement.job);
    }
    pthread_mutex_unlock(&worker.mutex);
    if (!works && !left) { /* else another thread has aborted it meanwhile: reclaim.c frees what was made */
        oh_agreement_decline(comm, oh_bgthread_refusal());
        oh_agreement_end(comm);
    }
}

/* Another rank of the same communicator that this thread has created, and whose first call it may make next. */
struct sibling {
    const struct oh_comm *of;
    bool found;
};

static void find_sibling(struct oh_comm *comm, void *user)
{
    struct sibling *sibling = user;
    sibling->found |= comm != sibling->of && oh_comm_state(comm) == OH_COMM_IDLE &&
                      oh_key_compare(&comm->id.key, &sibling->of->id.key) == 0 &&
                      pthread_equal(comm->attach.thread, sibling->of->attach.thread);
}

#define NCCL_2_22 22200 /* the first version that connects a communicator in its first collective */

/* NCCL connects the communicator when it creates it, so that the first call does not wait. */
static bool connects_early(const struct oh_comm *comm)
{
    const char *lazily = oh_nccl_variable("NCCL_RUNTIME_CONNECT"), *mapped = oh_nccl_variable("NCCL_CUMEM_ENABLE");
    return (comm->id.nccl_version > 0 && comm->id.nccl_version < NCCL_2_22) || (lazily && strcmp(lazily, "0") == 0) ||
           (mapped && strcmp(mapped, "0") == 0);
}

/* How long the first call waits for ranks that have not made theirs. */
static uint64_t patience_for_peers(const struct oh_comm *comm)
{
    if (!comm->attach.first_call || comm->attach.unordered || !comm->id.config.blocking) {
        return 0;
    }
    struct sibling sibling = {.of = comm};
    oh_registry_visit(find_sibling, &sibling);
    return sibling.found || connects_early(comm) ? COURTESY_NS : PATIENCE_NS;
}

/* Returns the current limit on a call's wait. for_peers: on the wait for ranks without a first call. */
static uint64_t patience(const struct oh_comm *comm, uint64_t for_peers, bool *all_here_p)
{
    struct oh_peer_info *info = comm->segment.shared->peer_info;
    uint32_t call = OH_WITHHELD_CALL;
    if (oh_segment_decision(&comm->segment) != OH_DECISION_PENDING) {
        return 0;
    }
    if (!comm->attach.first_call) { /* it has returned, and was captured: else this rank would have voted */
        atomic_compare_exchange_strong(&info[comm->id.rank].withheld, &call, OH_WITHHELD_LATER);
    }
    if (oh_cutover_is_after(&comm->segment.shared->cutover, comm->id.nranks, comm->attach.calls + 1)) {
        return 0; /* NCCL has the call of a rank, whose set-up may wait for that, and NCCL there for this rank */
    }
    for (uint32_t r = 0; r < comm->id.nranks; r++) {
        if (!atomic_load(&info[r].begun)) {
            return for_peers;
        }
        const uint32_t withheld = atomic_load(&info[r].withheld);
        if (withheld == OH_WITHHELD_LATER || (r == comm->id.rank && withheld != OH_WITHHELD_NOT)) {
            return 0;
        }
    }
    *all_here_p = true;
    return PATIENCE_NS;
}

/* True while the call that began to wait at `start_ns` waits on. If the wait fails, no later call waits. */
static bool is_waiting(struct oh_comm *comm, uint64_t start_ns, uint64_t for_peers)
{
    struct oh_attach *attach = &comm->attach;
    bool all_here = false;
    pthread_mutex_lock(&attach->mutex);
    const bool pending = oh_comm_state(comm) == OH_COMM_ATTACHING && !oh_comm_has_declined(comm) && attach->patient;
    const uint64_t most = pending ? patience(comm, for_peers, &all_here) : 0;
    const uint32_t steps = pending ? oh_agreement_steps(comm) : attach->steps;
    pthread_mutex_unlock(&attach->mutex);
    const uint64_t now_ns = oh_now_ns();
    if (steps != attach->steps) {
        attach->steps = steps;
        attach->step_ns = now_ns;
    }
    const bool extends = all_here && for_peers == PATIENCE_NS && attach->step_ns > start_ns;
    const bool waits = now_ns - (extends ? attach->step_ns : start_ns) < most && now_ns - start_ns < MOST_PATIENCE_NS;
    attach->patient &= waits || !all_here;
    return waits;
}

/* A call begins (1) or ends (-1) to wait: meanwhile the thread polls more often. */
static void note_waiting(int change)
{
    OH_LOCK(&worker.mutex);
    waiting += (unsigned)change;
    worker.period_max_ns = waiting > 0 ? PERIOD_AWAITED_NS : PERIOD_MAX_NS;
    if (change > 0 && worker.running) {
        oh_bgthread_start(&worker); /* wakes it */
    }
}

void oh_attach_wait(struct oh_comm *comm, uint64_t start_ns)
{
    const uint64_t for_peers = patience_for_peers(comm);
    note_waiting(1);
    if (comm->id.config.invariant) {
        oh_invariant_wait(comm, start_ns, for_peers == PATIENCE_NS);
    }
    while (is_waiting(comm, start_ns, for_peers)) {
        oh_segment_pause(oh_now_ns() - start_ns);
    }
    note_waiting(-1);
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

void oh_attach_await(struct oh_comm *comm)
{
    const uint64_t until_ns = oh_now_ns() + LEAVE_NS;
    OH_LOCK(&worker.mutex);
    const bool works = comm->attach.in_background && oh_bgthread_start(&worker);
    while (works && worker.running && comm->attach.in_background && oh_bgthread_await(&worker, until_ns)) {
    }
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

static enum oh_step advance(struct oh_job *job)
{
    struct oh_comm *comm = OH_JOB_OWNER(job, struct oh_comm, agreement.job);
    const enum oh_step step = oh_agreement_advance(comm);
    if (step != OH_STEP_DONE) {
        return step;
    }
    oh_agreement_end(comm);
    OH_LOCK(&worker.mutex);
    comm->attach.in_background = false;
    oh_comm_release(comm); /* it may be freed now */
    pthread_cond_broadcast(&worker.passed);
    return OH_STEP_DONE;
}
