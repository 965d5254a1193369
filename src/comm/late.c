/* SPDX-License-Identifier: MIT */
/*
 * late.c - communicators that are set up while their calls go on
 *
 * Until a communicator is settled its calls are counted. Each call that goes to NCCL is noted in the meeting
 * (switch.h); once all ranks have agreed, the ranks' words are closed, and that gives the number of the first call that
 * is served. See doc/design.md, "Late attach".
 *
 * The set-up itself is done by a thread of its own, started when there is something to do and ended when there is not.
 * Its list is guarded by a mutex that is never held over a call to the driver; a communicator's own mutex may be taken
 * after it, not before.
 */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/agree.h"
#include "comm/failure.h"
#include "util/log.h"
#include "util/worker.h"

#define PERIOD_NS (UINT64_C(100) * 1000) /* between looks at set-ups that wait, at first */
#define PERIOD_MAX_NS (UINT64_C(5) * 1000 * 1000)
#define STOP_NS (UINT64_C(100) * 1000 * 1000) /* the most that the end of the process waits for the thread */

static void work(void);
static void stop_at_exit(void);
static struct oh_worker worker = OH_WORKER(work, stop_at_exit);
static struct oh_setup *incoming; /* guarded by the worker's mutex */

/* --- calls ------------------------------------------------------------------------------------------------------ */

/*
 * Served for good when the next call is, on every rank: no call needs to be counted any more. Not while NCCL has a call
 * that it may reject, since the next call has the number of that one then.
 */
static void settle_when_reached(struct oh_comm *comm)
{
    if (comm->late.first != 0 && !comm->late.passing && comm->late.calls + 1 >= comm->late.first) {
        atomic_store(&comm->served, true);
        /* A communicator that fails just now refuses its calls. seq_cst: this load comes after the store to `served`,
         * and in oh_comm_fail and oh_monitor the store to `served` after that to `failure` or `lost`; so one sees the
         * other. */
        if (atomic_load(&comm->failure) != ncclSuccess || atomic_load(&comm->lost) != 0) {
            atomic_store(&comm->served, false);
        }
        atomic_store_explicit(&comm->settled, true, memory_order_release);
        oh_board_show(comm);
    }
}

/*
 * Cuts the table to the room of the rank that has least: the same on all ranks, since each has published its room
 * before its vote. The table fits each rank. If it does not fit the least of both numbers, no rank serves a message.
 */
static void fit_table(struct oh_comm *comm)
{
    struct oh_plan_room least = {UINT32_MAX, UINT32_MAX};
    comm->overlaps = true;
    for (uint32_t r = 0; r < comm->nranks; r++) {
        const struct oh_slot *slot = &comm->segment.meeting->slot[r];
        const struct oh_plan_room room = slot->room;
        least.sms = room.sms < least.sms ? room.sms : least.sms;
        least.sm_threads = room.sm_threads < least.sm_threads ? room.sm_threads : least.sm_threads;
        comm->overlaps &= slot->programmatic != 0;
    }
    const struct oh_plan_table whole = comm->table;
    if (!oh_plan_table_fit(&comm->table, &least)) {
        comm->table.rows.count = 0;
    }
    if (memcmp(&whole, &comm->table, sizeof whole) != 0) {
        OH_INFO("comm %p rank %u: a GPU has room for %u threads on each of %u SMs: grids are %s", (void *)comm->nccl,
                comm->rank, least.sm_threads, least.sms, comm->table.rows.count > 0 ? "smaller" : "too large");
    }
}

/*
 * Where calls of any kind may have gone to NCCL meanwhile, one more allreduce goes there: by then every rank has voted,
 * and so has the event with which that call's end is told to the first that is served (order.c). NCCL itself orders the
 * earlier ones before it. A rank that marks the meeting does so before it votes, so all see the mark here.
 */
void oh_late_switch_on(struct oh_comm *comm)
{
    if (comm->late.first == 0) {
        struct oh_meeting *meeting = comm->segment.meeting;
        comm->late.first = oh_switch_close(&meeting->first, comm->nranks) + (atomic_load(&meeting->late) != 0);
        comm->progress = &comm->segment.meeting->progress[comm->rank];
        fit_table(comm);
    }
    settle_when_reached(comm);
}

/* The next call goes to NCCL on every rank, or is the first that is served on every rank. */
static bool count_call(struct oh_comm *comm)
{
    struct oh_late *late = &comm->late;
    if (late->first == 0) {
        if (oh_switch_note(&comm->segment.meeting->first, comm->rank, late->calls + 1)) {
            late->calls++;
            late->passing = true;
            return false;
        }
        oh_late_switch_on(comm);
    }
    settle_when_reached(comm);
    if (oh_comm_is_settled(comm)) {
        return true;
    }
    late->calls++;
    late->passing = true;
    return false;
}

/* A rank that has no meeting can only be off, as then all are. */
static bool may_count(const struct oh_comm *comm)
{
    return comm->nranks <= OH_MAX_RANKS && !comm->late.setup && comm->segment.meeting;
}

bool oh_late_decide(struct oh_comm *comm)
{
    pthread_mutex_lock(&comm->late.mutex);
    bool served = oh_comm_is_settled(comm) ? atomic_load(&comm->served) : may_count(comm) && count_call(comm);
    pthread_mutex_unlock(&comm->late.mutex);
    return served;
}

bool oh_comm_is_ordered(struct oh_comm *comm)
{
    if (oh_comm_is_settled(comm)) {
        return atomic_load_explicit(&comm->served, memory_order_relaxed);
    }
    pthread_mutex_lock(&comm->late.mutex);
    bool ordered = comm->late.first != 0;
    pthread_mutex_unlock(&comm->late.mutex);
    return ordered;
}

bool oh_comm_pass_unborn(struct oh_comm *comm)
{
    pthread_mutex_lock(&comm->late.mutex);
    bool unborn = comm->late.setup != NULL;
    comm->late.passing |= unborn;
    pthread_mutex_unlock(&comm->late.mutex);
    return unborn;
}

void oh_comm_note_result(struct oh_comm *comm, bool counted, ncclResult_t result)
{
    struct oh_late *late = &comm->late;
    bool accepted = result != ncclInvalidArgument && result != ncclInvalidUsage;
    pthread_mutex_lock(&late->mutex);
    if (oh_comm_is_settled(comm) || accepted == counted || comm->nranks > OH_MAX_RANKS || !comm->segment.meeting) {
        /* As it was counted, or not to be counted. */
    } else if (accepted) {
        late->calls++; /* noted when it is born, and this rank's number is known */
    } else {
        /* Whether a word that is closed holds this number or not, the next call has it, and goes the same way. */
        oh_switch_retract(&comm->segment.meeting->first, comm->rank, late->calls);
        late->calls--;
    }
    late->passing = false;
    if (!oh_comm_is_settled(comm)) {
        settle_when_reached(comm);
    }
    pthread_mutex_unlock(&late->mutex);
}

/* --- births that NCCL works on ---------------------------------------------------------------------------------- */

void oh_comm_expect(struct oh_comm *comm, struct oh_setup *setup)
{
    pthread_mutex_lock(&comm->late.mutex);
    comm->late.setup = setup;
    atomic_fetch_add(&comm->awaited, 1);
    pthread_mutex_unlock(&comm->late.mutex);
}

/* Nothing is closed yet: that needs this rank's vote. */
void oh_late_note_early(struct oh_comm *comm)
{
    for (uint64_t call = 1; call <= comm->late.calls; call++) {
        oh_switch_note(&comm->segment.meeting->first, comm->rank, call);
    }
}

struct oh_setup *oh_comm_take_setup(struct oh_comm *comm)
{
    struct oh_setup *setup = comm->late.passing ? NULL : comm->late.setup;
    if (setup) {
        comm->late.setup = NULL;
        atomic_fetch_sub(&comm->awaited, 1);
    }
    return setup;
}

void oh_comm_add_child(struct oh_comm *comm, struct oh_birth *birth)
{
    pthread_mutex_lock(&comm->late.mutex);
    birth->next = comm->late.children;
    comm->late.children = birth;
    atomic_fetch_add(&comm->awaited, 1);
    pthread_mutex_unlock(&comm->late.mutex);
}

struct oh_birth *oh_comm_take_children(struct oh_comm *comm)
{
    pthread_mutex_lock(&comm->late.mutex);
    struct oh_birth *children = comm->late.children;
    comm->late.children = NULL;
    pthread_mutex_unlock(&comm->late.mutex);
    return children;
}

void oh_comm_children_done(struct oh_comm *comm, unsigned count)
{
    atomic_fetch_sub_explicit(&comm->awaited, count, memory_order_release); /* pairs with oh_comm_is_awaited */
}

/* --- the end ---------------------------------------------------------------------------------------------------- */

void oh_late_cancel(struct oh_comm *comm, const char *reason)
{
    pthread_mutex_lock(&comm->late.mutex);
    if (!oh_comm_is_settled(comm)) {
        oh_segment_refuse(&comm->segment, reason);
        snprintf(comm->reason, sizeof comm->reason, "%s", reason);
        atomic_store(&comm->settled, true);
    }
    pthread_mutex_unlock(&comm->late.mutex);
}

static void abandon(struct oh_comm *comm)
{
    oh_comm_say_farewell(comm, OH_FAREWELL_EXITED); /* the others need not take it for one that was killed */
    if (!oh_comm_is_settled(comm)) {
        oh_late_cancel(comm, "a rank's process ended before its ranks had agreed");
        oh_segment_unlink(&comm->segment);
    }
}

void oh_comms_abandon(void)
{
    oh_registry_visit(abandon);
}

bool oh_late_leave(struct oh_comm *comm)
{
    struct oh_birth *children = oh_comm_take_children(comm);
    unsigned count = 0;
    while (children) {
        struct oh_birth *next = children->next;
        oh_birth_cancel(children);
        free(children);
        children = next;
        count++;
    }
    oh_comm_children_done(comm, count);
    pthread_mutex_lock(&worker.mutex);
    bool busy = comm->in_background;
    comm->orphaned = busy;
    pthread_mutex_unlock(&worker.mutex);
    if (!busy && comm->late.setup) {
        oh_setup_drop(comm->late.setup);
        comm->late.setup = NULL;
    }
    return busy;
}

/* --- the thread ------------------------------------------------------------------------------------------------- */

static void finish(struct oh_setup *setup)
{
    struct oh_comm *comm = setup->comm;
    oh_setup_settle(setup);
    pthread_mutex_lock(&worker.mutex);
    comm->in_background = false;
    bool orphaned = comm->orphaned;
    pthread_mutex_unlock(&worker.mutex);
    if (orphaned) {
        oh_comm_bury(comm);
    }
}

/* Every set-up as far as it goes; returns those that wait. */
static struct oh_setup *advance_all(struct oh_setup *list, bool *moved_p)
{
    struct oh_setup *left = NULL;
    while (list) {
        struct oh_setup *setup = list;
        list = list->next;
        if (oh_setup_advance(setup, moved_p)) {
            *moved_p = true;
            finish(setup);
        } else {
            setup->next = left;
            left = setup;
        }
    }
    return left;
}

/* Adds what came in to the list; called with the mutex held. */
static struct oh_setup *take_incoming(struct oh_setup *list)
{
    while (incoming) {
        struct oh_setup *setup = incoming;
        incoming = setup->next;
        setup->next = list;
        list = setup;
    }
    return list;
}

static void work(void)
{
    struct oh_setup *list = NULL;
    uint64_t period = PERIOD_NS;
    while ((list = take_incoming(list)) && !worker.stopping) {
        bool moved = false;
        pthread_mutex_unlock(&worker.mutex);
        list = advance_all(list, &moved);
        pthread_mutex_lock(&worker.mutex);
        if (list && !incoming && !worker.stopping) {
            /* The application may take long to bring its other ranks this far. */
            period = moved ? PERIOD_NS : period < PERIOD_MAX_NS ? 2 * period : period;
            oh_worker_sleep(&worker, period);
        }
    }
    incoming = list; /* the process ends: not lost, in the eyes of a leak checker */
}

static void stop_at_exit(void)
{
    oh_worker_stop(&worker, STOP_NS);
}

void oh_setup_enqueue(struct oh_setup *setup)
{
    setup->background = true;
    pthread_mutex_lock(&worker.mutex);
    bool works = oh_worker_start(&worker);
    if (works) {
        setup->comm->in_background = true;
        setup->next = incoming;
        incoming = setup;
    }
    pthread_mutex_unlock(&worker.mutex);
    if (!works) {
        oh_segment_unlink(&setup->comm->segment);
        oh_setup_give_up(setup, "a rank has no thread for the set-up");
        oh_setup_settle(setup);
    }
}
