/* SPDX-License-Identifier: MIT */
/*
 * birth.c - from presence, before NCCL creates a communicator, to a set-up, when it has
 *
 * Births belong to the thread that creates the communicator. What becomes of them: a struct oh_comm with a set-up, that
 * is completed while the caller waits, or in the background; or, where NCCL has not finished, one that waits for news.
 */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>

#include "comm/agree.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/nvtx.h"

/* How long a rank waits for the others. They have just left the same barrier inside NCCL. */
#define AGREEMENT_NS (UINT64_C(10) * 1000 * 1000 * 1000)
/* The same in the background, where an application may notice much later that NCCL is done. */
#define LATE_AGREEMENT_NS (UINT64_C(120) * 1000 * 1000 * 1000)

/* --- birth ------------------------------------------------------------------------------------------------------ */

void oh_birth_refuse(struct oh_birth *birth, const char *reason)
{
    if (!birth->refusal[0]) {
        snprintf(birth->refusal, sizeof birth->refusal, "%s", reason);
    }
    oh_segment_refuse(&birth->segment, reason);
}

/* The other ranks shall not wait for this one. Too late for those that wait already: they look again and again. */
static void mark_late(const struct oh_segment *segment)
{
    if (segment->meeting) {
        atomic_store(&segment->meeting->late, 1);
    }
}

void oh_birth_begin(struct oh_birth *birth, const struct oh_key *key, bool blocking, ncclComm_t *nccl_p)
{
    uint64_t start = oh_now_ns();
    *birth = (struct oh_birth){.key = *key, .blocking = blocking, .nccl_p = nccl_p};
    oh_comms_reap();
    birth->present = oh_segment_open(&birth->segment, key) == ncclSuccess;
    if (!birth->present) {
        oh_birth_refuse(birth, "this rank has no shared memory to meet the others");
    } else if (!blocking) {
        mark_late(&birth->segment); /* before NCCL's barrier, so the others know it after that */
    }
    birth->spent_ns = oh_now_ns() - start;
}

/* The rank of the parent that has the id leads the others to the meeting of the grown communicator. */
static void open_gate(struct oh_birth *birth, struct oh_comm *parent, const ncclUniqueId *id)
{
    struct oh_key gate = oh_key_of_grow(&parent->key, parent->grows++);
    birth->grown_from = parent->nranks;
    birth->parent = parent;
    birth->present = oh_segment_open(&birth->gate, &gate) == ncclSuccess &&
                     (!id || oh_segment_visit(&birth->segment, &birth->key) == ncclSuccess);
    if (birth->present && id) {
        atomic_store(&birth->segment.meeting->grown_from, parent->nranks);
        birth->gate.meeting->target = birth->key;
        atomic_store(&birth->gate.meeting->redirected, 1);
    }
}

void oh_birth_begin_grown(struct oh_birth *birth, struct oh_comm *parent, const ncclUniqueId *id, bool blocking,
                          ncclComm_t *nccl_p)
{
    uint64_t start = oh_now_ns();
    *birth = (struct oh_birth){.blocking = blocking, .nccl_p = nccl_p, .grows = true};
    if (id) {
        birth->key = oh_key_of_id(id);
    }
    if (parent) {
        open_gate(birth, parent, id);
    } else {
        birth->present = oh_segment_open(&birth->segment, &birth->key) == ncclSuccess;
    }
    if (!birth->present) {
        oh_birth_refuse(birth, "this rank has no shared memory to meet the others");
    }
    if (!blocking) {
        mark_late(&birth->segment);
    }
    birth->spent_ns = oh_now_ns() - start;
}

/* Leaves the meeting for good, before anything was made for it. */
static void abandon(struct oh_birth *birth, const char *reason)
{
    oh_birth_refuse(birth, reason);
    oh_segment_drop(&birth->gate);
    oh_segment_drop(&birth->segment);
}

void oh_birth_cancel(struct oh_birth *birth)
{
    abandon(birth, "NCCL did not create the communicator on a rank");
}

/* --- from births to set-ups ------------------------------------------------------------------------------------- */

/* A struct oh_comm for the handle; from here on the communicator owns the segment. NULL: has refused. */
static struct oh_setup *adopt(struct oh_birth *birth, ncclComm_t nccl)
{
    struct oh_setup *setup = calloc(1, sizeof *setup);
    struct oh_comm *comm = calloc(1, sizeof *comm), *stale;
    if (!comm || !setup) {
        abandon(birth, "a rank is out of memory");
        goto err_free;
    }
    comm->nccl = nccl;
    comm->key = birth->key;
    comm->library = birth->library;
    comm->nccl_version = birth->nccl_version;
    comm->blocking = birth->blocking;
    comm->segment = birth->segment;
    pthread_mutex_init(&comm->late.mutex, NULL);
    setup->comm = comm;
    setup->alive = true;
    setup->unbarred = birth->unbarred;
    setup->grows = birth->grows;
    setup->grown_from = birth->grown_from;
    setup->gate = birth->gate;
    setup->lap_ns[OH_LAP_PRESENCE] = birth->spent_ns;
    if (birth->refusal[0]) {
        oh_setup_give_up(setup, birth->refusal);
    }
    while ((stale = oh_comm_find(nccl))) { /* destroyed unseen by onehop, and NCCL has given its handle again */
        oh_comm_retire(stale);
    }
    oh_nvtx_start(oh_algorithm_name, ONEHOP_ALGORITHMS);
    oh_board_enter(comm);
    if (oh_registry_add(comm) != ncclSuccess) {
        oh_board_leave(comm);
        abandon(birth, "a rank has more communicators than onehop keeps track of");
        goto err_free;
    }
    pthread_mutex_lock(&comm->late.mutex);
    oh_board_show(comm);
    pthread_mutex_unlock(&comm->late.mutex);
    return setup;

err_free:
    free(comm);
    free(setup);
    return NULL;
}

void oh_setup_drop(struct oh_setup *setup)
{
    oh_segment_drop(&setup->gate);
    oh_segment_unlink(&setup->comm->segment);
    free(setup);
}

/* NCCL has created the communicator; who this rank is in it, is known. */
static void start_clock(struct oh_setup *setup, int rank, int nranks, int cuda_device, uint64_t patience_ns)
{
    struct oh_comm *comm = setup->comm;
    comm->rank = (uint32_t)rank;
    comm->nranks = (uint32_t)nranks;
    setup->cuda_device = cuda_device;
    setup->mark_ns = oh_now_ns();
    setup->deadline_ns = setup->mark_ns + patience_ns;
    if (!setup->unbarred && !setup->grows) {
        oh_segment_unlink(&comm->segment); /* after NCCL's barrier: whoever comes has come */
    }
    if (setup->gate.meeting) {
        oh_setup_pass_gate(setup);
    }
    if (setup->alive && (nranks < 2 || nranks > OH_MAX_RANKS)) {
        oh_setup_give_up(setup, nranks < 2 ? "a single rank" : "more than 8 ranks");
    }
}

static struct oh_setup *start(struct oh_birth *birth, uint64_t patience_ns)
{
    struct oh_setup *setup = NULL;
    if (!birth->nccl) {
        oh_birth_cancel(birth);
    } else if ((setup = adopt(birth, birth->nccl))) {
        setup->context = oh_staging_current_context(birth->cuda_device);
        /* It is registered: the process may be ending in another thread. */
        pthread_mutex_lock(&setup->comm->late.mutex);
        start_clock(setup, birth->rank, birth->nranks, birth->cuda_device, patience_ns);
        pthread_mutex_unlock(&setup->comm->late.mutex);
    }
    return setup;
}

/* The caller waits: all set-ups advance together, so that ranks of one thread do not wait for one another. */
static void complete(struct oh_setup *list)
{
    while (list) {
        bool moved = false;
        for (struct oh_setup **at = &list; *at;) {
            struct oh_setup *setup = *at;
            if (oh_setup_advance(setup, &moved)) {
                *at = setup->next;
                oh_setup_settle(setup);
            } else if (atomic_load(&setup->comm->segment.meeting->late)) {
                *at = setup->next;
                setup->deadline_ns += LATE_AGREEMENT_NS - AGREEMENT_NS;
                oh_setup_enqueue(setup);
            } else {
                at = &setup->next;
            }
        }
        if (list && !moved) {
            oh_segment_pause();
        }
    }
}

void oh_births_complete(struct oh_birth *births, size_t count)
{
    struct oh_setup *list = NULL;
    for (size_t i = count; i-- > 0;) {
        struct oh_setup *setup = start(&births[i], AGREEMENT_NS);
        if (setup) {
            setup->next = list;
            list = setup;
        }
    }
    complete(list);
}

void oh_births_late(struct oh_birth *births, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct oh_setup *setup = start(&births[i], LATE_AGREEMENT_NS);
        if (setup) {
            mark_late(&setup->comm->segment);
            oh_setup_enqueue(setup);
        }
    }
}

/* A copy in the parent's list, until NCCL says that the parent is ready again. */
static void await_handle(struct oh_birth *birth)
{
    struct oh_birth *copy = birth->parent ? malloc(sizeof *copy) : NULL;
    if (!copy) {
        abandon(birth, "a rank cannot tell when NCCL has created the communicator");
        return;
    }
    *copy = *birth;
    oh_comm_add_child(birth->parent, copy);
}

void oh_births_await(struct oh_birth *births, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        /* Of a split NCCL writes the handle when it is done: one must not look before. */
        ncclComm_t nccl = births[i].parent && !births[i].grows ? NULL : *births[i].nccl_p;
        mark_late(&births[i].segment);
        if (!nccl) {
            await_handle(&births[i]);
            continue;
        }
        struct oh_setup *setup = adopt(&births[i], nccl);
        if (setup) {
            oh_comm_expect(setup->comm, setup);
        }
    }
}

void oh_comm_created(struct oh_comm *comm, int rank, int nranks, int cuda_device)
{
    CUcontext context = oh_staging_current_context(cuda_device);
    /* In one piece: from then on another thread may make calls that are counted. */
    pthread_mutex_lock(&comm->late.mutex);
    struct oh_setup *setup = oh_comm_take_setup(comm);
    if (setup) {
        setup->context = context;
        start_clock(setup, rank, nranks, cuda_device, LATE_AGREEMENT_NS);
        if (setup->alive) {
            oh_late_note_early(comm);
        }
    }
    pthread_mutex_unlock(&comm->late.mutex);
    if (setup) {
        oh_setup_enqueue(setup);
    }
}

void oh_comm_not_created(struct oh_comm *comm)
{
    pthread_mutex_lock(&comm->late.mutex);
    struct oh_setup *setup = oh_comm_take_setup(comm);
    pthread_mutex_unlock(&comm->late.mutex);
    if (setup) {
        oh_segment_drop(&setup->gate);
        oh_segment_unlink(&comm->segment);
        oh_setup_give_up(setup, "NCCL did not create the communicator on a rank");
        setup->mark_ns = oh_now_ns();
        oh_setup_settle(setup);
    }
}
