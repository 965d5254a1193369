/* SPDX-License-Identifier: MIT */
/*
 * creation.c - from presence, before NCCL creates a communicator, to a struct oh_comm that may attach
 *
 * Does: Counts ranks before NCCL's creation, and decides after it whether all are present.
 * Threads: the one that creates the communicator; oh_comm_created any.
 * Owns: a struct oh_creation is the creating thread's, then (a copy) the communicator's, until NCCL has created that.
 */
#include "comm/attach/attach.h"

#include <stdio.h>
#include <stdlib.h>

#include "comm/comm_internal.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/nvtx.h"

/* --- before NCCL creates it --------------------------------------------------------------------------------------- */

static void refuse(struct oh_creation *creation, const char *reason)
{
    if (!creation->decline_reason[0]) {
        snprintf(creation->decline_reason, sizeof creation->decline_reason, "%s", reason);
    }
    oh_segment_vote_no(&creation->segment, reason);
}

static void end_begin(struct oh_creation *creation, uint64_t start)
{
    if (!creation->present) {
        refuse(creation, "this rank cannot open the shared memory of the communicator");
    } else if (creation->config.zero_cta) {
        refuse(creation, "the program asks for the zero-CTA policy");
    }
    creation->spent_ns = oh_now_ns() - start;
}

void oh_creation_begin(struct oh_creation *creation, const struct oh_key *key, const struct oh_comm_config *config,
                       ncclComm_t *nccl_p)
{
    uint64_t start = oh_now_ns();
    *creation = (struct oh_creation){.key = *key, .config = *config, .nccl_p = nccl_p};
    oh_comms_reclaim();
    creation->present = oh_segment_open(&creation->segment, key) == ncclSuccess;
    end_begin(creation, start);
}

/* A rank of the parent that has the id publishes the key of the grown communicator in the parent segment. */
static void open_parent_segment(struct oh_creation *creation, struct oh_comm *parent, const ncclUniqueId *id)
{
    struct oh_key parent_key = oh_key_of_grow(&parent->id.key, parent->id.grows++);
    creation->parent_ranks = parent->id.nranks;
    creation->parent = parent;
    creation->present = oh_segment_open(&creation->parent_segment, &parent_key) == ncclSuccess &&
                        (!id || oh_segment_open_uncounted(&creation->segment, &creation->key) == ncclSuccess);
    if (creation->present && id) {
        atomic_store(&creation->segment.shared->parent_ranks, parent->id.nranks);
        creation->parent_segment.shared->target = creation->key;
        atomic_store(&creation->parent_segment.shared->target_set, 1);
    }
}

void oh_creation_begin_grow(struct oh_creation *creation, struct oh_comm *parent, const ncclUniqueId *id,
                            const struct oh_comm_config *config, ncclComm_t *nccl_p)
{
    uint64_t start = oh_now_ns();
    *creation = (struct oh_creation){.config = *config, .nccl_p = nccl_p, .is_grow = true};
    if (id) {
        creation->key = oh_key_of_ids(id, 1);
    }
    if (parent) {
        open_parent_segment(creation, parent, id);
    } else {
        creation->present = oh_segment_open(&creation->segment, &creation->key) == ncclSuccess;
    }
    end_begin(creation, start);
}

/* Votes no, and discards the segments. */
static void abandon(struct oh_creation *creation, const char *reason)
{
    refuse(creation, reason);
    oh_segment_discard(&creation->parent_segment);
    oh_segment_discard(&creation->segment);
}

void oh_creation_cancel(struct oh_creation *creation)
{
    abandon(creation, "NCCL did not create the communicator on a rank");
}

/* --- NCCL has a handle -------------------------------------------------------------------------------------------- */

static struct oh_comm *make_comm(const struct oh_creation *creation, ncclComm_t nccl)
{
    struct oh_comm *comm = calloc(1, sizeof *comm);
    struct oh_creation *copy = malloc(sizeof *copy);
    if (!comm || !copy) {
        free(comm);
        free(copy);
        return NULL;
    }
    *copy = *creation;
    comm->id.nccl = nccl;
    comm->id.key = creation->key;
    comm->id.library = creation->library;
    comm->id.nccl_version = creation->nccl_version;
    comm->id.config = creation->config;
    comm->segment = creation->segment;
    comm->attach.creation = copy;
    comm->attach.thread = pthread_self();
    comm->attach.awaited = 1;
    pthread_mutex_init(&comm->attach.mutex, NULL);
    return comm;
}

struct oh_comm *oh_creation_register(struct oh_creation *creation, ncclComm_t nccl)
{
    struct oh_comm *comm = make_comm(creation, nccl), *stale;
    if (!comm) {
        abandon(creation, "a rank is out of memory");
        return NULL;
    }
    while ((stale = oh_comm_find(nccl))) { /* NCCL has reused the handle of one that was destroyed unseen */
        oh_comm_retire(stale);
    }
    oh_nvtx_start(oh_algorithm_name, ONEHOP_ALGORITHM_COUNT);
    oh_live_add(&comm->live, comm->id.key.word[0]);
    if (oh_registry_add(comm) != ncclSuccess) {
        oh_live_remove(&comm->live);
        abandon(creation, "a rank has more communicators than onehop keeps track of");
        free(comm->attach.creation);
        free(comm);
        return NULL;
    }
    pthread_mutex_lock(&comm->attach.mutex);
    oh_comm_publish_facts(comm);
    pthread_mutex_unlock(&comm->attach.mutex);
    return comm;
}

void oh_creation_watch(struct oh_creation *creation)
{
    struct oh_attach *parent = &creation->parent->attach;
    struct oh_creation *copy = malloc(sizeof *copy);
    if (!copy) {
        abandon(creation, "a rank is out of memory");
        return;
    }
    *copy = *creation;
    atomic_fetch_add(&creation->parent->attach.awaited, 1);
    pthread_mutex_lock(&parent->mutex);
    struct oh_creation **at = &parent->children; /* in the order made */
    while (*at) {
        at = &(*at)->next;
    }
    *at = copy;
    pthread_mutex_unlock(&parent->mutex);
}

struct oh_creation *oh_comm_take_children(struct oh_comm *comm)
{
    pthread_mutex_lock(&comm->attach.mutex);
    struct oh_creation *children = comm->attach.children;
    comm->attach.children = NULL;
    pthread_mutex_unlock(&comm->attach.mutex);
    return children;
}

void oh_comm_children_done(struct oh_comm *comm, unsigned count)
{
    atomic_fetch_sub_explicit(&comm->attach.awaited, count, memory_order_release); /* pairs with oh_comm_is_creating */
}

/* --- NCCL has created it ------------------------------------------------------------------------------------------ */

/*
 * For a rank of the parent: takes the key from the parent segment, if all the parent's ranks are present. All of them
 * read the same. If not all are, a rank that has the id votes no in the grown communicator's segment, which the new
 * ranks read.
 */
static void read_parent_segment(struct oh_comm *comm, struct oh_creation *creation)
{
    char reason[OH_REASON_BYTES];
    const struct oh_shared *of_parent = creation->parent_segment.shared;
    uint32_t present = atomic_load(&of_parent->present);
    if (present != creation->parent_ranks) {
        snprintf(reason, sizeof reason, "onehop is present on this host for %u of %u ranks that it grows from", present,
                 creation->parent_ranks);
        refuse(creation, reason);
    } else if (!atomic_load(&of_parent->target_set)) {
        refuse(creation, "no rank that it grows from had the unique id");
    } else {
        comm->id.key = of_parent->target;
        if (!comm->segment.shared && oh_segment_open_uncounted(&comm->segment, &comm->id.key) != ncclSuccess) {
            refuse(creation, "this rank cannot open the shared memory of the communicator");
        }
    }
}

/* All ranks see the same number, since each was counted before NCCL's barrier. */
static void count_ranks(const struct oh_comm *comm, struct oh_creation *creation)
{
    char reason[OH_REASON_BYTES];
    const struct oh_shared *shared = comm->segment.shared;
    const uint32_t from = creation->is_grow ? atomic_load(&shared->parent_ranks) : 0;
    const uint32_t present = atomic_load(&shared->present);
    if (creation->is_grow && (from == 0 || from >= comm->id.nranks)) {
        refuse(creation, "onehop is present on this host for no rank that it grows from and that has the unique id");
    } else if (present != comm->id.nranks - from) {
        snprintf(reason, sizeof reason, "onehop is present on this host for %u of %u %sranks", present,
                 comm->id.nranks - from, creation->is_grow ? "new " : "");
        refuse(creation, reason);
    }
}

/* Declines what can be decided now. */
static void check_presence(struct oh_comm *comm, struct oh_creation *creation)
{
    if (creation->parent_segment.shared) {
        read_parent_segment(comm, creation);
        creation->segment = comm->segment; /* where refuse() votes */
    }
    if (comm->id.nranks < 2 || comm->id.nranks > OH_MAX_RANKS) {
        refuse(creation, comm->id.nranks < 2 ? "a single rank" : "more than 8 ranks");
    }
    if (!creation->decline_reason[0]) {
        count_ranks(comm, creation);
    }
}

/* With the mutex held. NULL: the creation has ended. */
static struct oh_creation *take_creation(struct oh_comm *comm)
{
    struct oh_creation *creation = comm->attach.creation;
    comm->attach.creation = NULL;
    return creation;
}

/* Without the mutex, after everything else: a thread that reads that it is no longer awaited reads the rest. */
static void end_creation(struct oh_comm *comm, struct oh_creation *creation)
{
    if (creation->decline_reason[0]) {
        oh_attach_cancel(comm, creation->decline_reason);
        OH_INFO("comm %p rank %u nranks %u: falls back to NCCL: %s", (void *)comm->id.nccl, comm->id.rank,
                comm->id.nranks, creation->decline_reason);
        oh_segment_unlink(&comm->segment);
        oh_comm_detach(comm);
    }
    oh_segment_discard(&creation->parent_segment);
    free(creation);
    oh_comm_children_done(comm, 1);
}

bool oh_comm_created(struct oh_comm *comm, int rank, int nranks, int cuda_device)
{
    pthread_mutex_lock(&comm->attach.mutex);
    struct oh_creation *creation = take_creation(comm);
    if (creation) {
        comm->id.rank = (uint32_t)rank;
        comm->id.nranks = (uint32_t)nranks;
        comm->attach.cuda_device = cuda_device;
        comm->attach.ms = (double)creation->spent_ns / 1e6;
        check_presence(comm, creation);
        if (!creation->is_grow) {
            oh_segment_unlink(&comm->segment); /* after NCCL's barrier: all ranks have opened it */
        }
        if (!creation->decline_reason[0]) {
            oh_peer_info_identify(&comm->segment.shared->peer_info[comm->id.rank]);
            for (uint64_t call = 1; call <= comm->attach.calls; call++) { /* made during NCCL's creation */
                oh_cutover_announce(&comm->segment.shared->cutover, comm->id.rank, call);
            }
        }
        oh_comm_enter(comm, OH_COMM_IDLE);
        oh_comm_publish_facts(comm);
    }
    pthread_mutex_unlock(&comm->attach.mutex);
    if (creation) {
        end_creation(comm, creation);
    }
    return creation != NULL;
}

void oh_comm_not_created(struct oh_comm *comm)
{
    pthread_mutex_lock(&comm->attach.mutex);
    struct oh_creation *creation = take_creation(comm);
    pthread_mutex_unlock(&comm->attach.mutex);
    if (creation) {
        refuse(creation, "NCCL did not create the communicator on a rank");
        end_creation(comm, creation);
    }
}
