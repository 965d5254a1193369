/* SPDX-License-Identifier: MIT */
/*
 * setup.c - set-ups in the background, and the calls that wait for them
 *
 * Does: Advances the set-ups of all communicators (agreement.c), and has a first call wait for the ranks' decision, as
 *    long as NCCL would have it wait. See doc/design.md, "Attach".
 * Threads: the thread that uses the communicator. A background thread, which ends when there is no set-up, advances the
 *    set-ups; its mutex is never held over a call of the driver.
 * Owns: the set-ups.
 */
#include "comm/attach/attach.h"

#include <string.h>

#include "util/bgthread.h"
#include "util/clock.h"
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

/* --- the begin ---------------------------------------------------------------------------------------------------- */

void oh_attach_begin(struct oh_comm *comm, CUstream stream)
{
    struct oh_attach *attach = &comm->attach;
    if (oh_comm_state(comm) != OH_COMM_IDLE) {
        return;
    }
    oh_agreement_begin(comm, stream);
    pthread_mutex_lock(&attach->mutex);
    oh_comm_enter(comm, OH_COMM_ATTACHING);
    oh_comm_publish_facts(comm);
    pthread_mutex_unlock(&attach->mutex);
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
        oh_segment_vote_no(&comm->segment, oh_bgthread_refusal());
        oh_agreement_end(comm);
    }
}

/* --- calls that wait ---------------------------------------------------------------------------------------------- */

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
