/* SPDX-License-Identifier: MIT */
/*
 * creation.c - from presence, before NCCL creates a communicator, to a communicator that may attach
 *
 * Does: Counts ranks before NCCL's creation, and decides after it whether all are present.
 * Threads: the one that creates the communicator; oh_comm_created any.
 * Owns: the communicator until it is registered; then the registry's users do.
 */
#include "comm/attach/attach.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/launch/launch.h"
#include "util/clock.h"
#include "util/env.h"
#include "util/log.h"
#include "util/scope.h"
#include "util/selection.h"

/* --- before NCCL creates it --------------------------------------------------------------------------------------- */

/*
 * Votes no. The first reason is this rank's. Without the segment a rank of the parent votes no in the parent segment,
 * where the other ranks of the parent read the vote (agreement.c).
 */
static void refuse(struct oh_comm *comm, const char *reason)
{
    if (!comm->attach.reason[0]) {
        snprintf(comm->attach.reason, sizeof comm->attach.reason, "%s", reason);
    }
    oh_segment_vote_no(comm->segment.shared ? &comm->segment : &comm->attach.parent_segment, reason);
}

/* A rank of the parent that knows the key of the grown communicator publishes it in the parent segment. */
static bool open_parent_segment(struct oh_comm *comm, const struct oh_key *key, uint64_t number)
{
    struct oh_comm *parent = comm->id.parent;
    struct oh_segment *segment = &comm->attach.parent_segment;
    struct oh_key parent_key = oh_key_of_grow(&parent->id.key, number);
    comm->attach.parent_ranks = parent->id.nranks;
    if (oh_segment_open(segment, &parent_key) != ncclSuccess ||
        (key && oh_segment_open_uncounted(&comm->segment, key) != ncclSuccess)) {
        return false;
    }
    if (key) {
        atomic_store(&comm->segment.shared->parent_ranks, parent->id.nranks);
        segment->shared->target = *key;
        atomic_store(&segment->shared->target_set, 1);
    }
    return true;
}

struct oh_comm *oh_creation_begin(const struct oh_key *key, const struct oh_comm_config *config, struct oh_comm *parent,
                                  ncclComm_t *nccl_p, bool is_grow)
{
    const uint64_t start = oh_now_ns();
    const uint64_t number = is_grow && parent ? parent->id.child_count++ : 0; /* the same on all ranks of the parent */
    struct oh_comm *comm = calloc(1, sizeof *comm);
    oh_comms_reclaim();
    if (!comm) {
        OH_INFO("out of memory for a communicator: its ranks fall back to NCCL");
        return NULL;
    }
    if (parent) {
        oh_comm_retain(parent); /* another thread may abort it before the creation ends */
    }
    comm->id = (struct oh_comm_identity){.config = *config, .parent = parent, .nccl_p = nccl_p, .is_grow = is_grow};
    /* Until it is known, its own: else the children of all communicators without a key would have one name. */
    comm->id.key = key ? *key : oh_key_random();
    comm->attach.creating = true;
    comm->attach.awaited = 1;
    pthread_mutex_init(&comm->attach.mutex, NULL);
    const bool is_present = is_grow && parent ? open_parent_segment(comm, key, number)
                                              : oh_segment_open(&comm->segment, &comm->id.key) == ncclSuccess;
    if (!is_present) {
        refuse(comm, "this rank cannot open the shared memory of the communicator");
    } else if (config->zero_cta) {
        refuse(comm, "the program asks for the zero-CTA policy");
    } else if (config->launch_order) {
        refuse(comm, "the program asks for an implicit launch order of all communicators");
    }
    comm->attach.ms = (double)(oh_now_ns() - start) / 1e6;
    return comm;
}

static void forget_parent(struct oh_comm *comm)
{
    if (comm->id.parent) {
        oh_comm_release(comm->id.parent);
    }
    comm->id.parent = NULL;
}

/* Votes no, and frees the communicator, which nobody knows. */
static void discard(struct oh_comm *comm, const char *reason)
{
    refuse(comm, reason);
    forget_parent(comm);
    oh_segment_discard(&comm->attach.parent_segment);
    oh_segment_discard(&comm->segment);
    free(comm);
}

void oh_creation_cancel(struct oh_comm *comm)
{
    discard(comm, "NCCL did not create the communicator on a rank");
}

/* --- NCCL has a handle -------------------------------------------------------------------------------------------- */

bool oh_creation_register(struct oh_comm *comm, ncclComm_t nccl)
{
    comm->id.nccl = nccl;
    forget_parent(comm); /* may end before this one */
    comm->id.nccl_p = NULL;
    comm->attach.thread = pthread_self();
    oh_ranges_start();
    oh_live_add(&comm->live, comm->id.key.word[0]);
    if (oh_registry_add(comm) != ncclSuccess) {
        oh_live_remove(&comm->live);
        oh_live_free(&comm->live);
        discard(comm, "a rank has more communicators than onehop keeps track of");
        return false;
    }
    OH_LOCK(&comm->attach.mutex);
    oh_comm_publish_facts(comm);
    return true;
}

void oh_creations_append(struct oh_comm **list, struct oh_comm *comm)
{
    while (*list) {
        list = &(*list)->id.next;
    }
    *list = comm;
}

bool oh_creation_watch(struct oh_comm *comm)
{
    struct oh_attach *parent = &comm->id.parent->attach;
    OH_LOCK(&parent->mutex);
    if (!oh_comm_is_registered(comm->id.parent)) { /* else who removes it cancels what is in the list */
        return false;
    }
    atomic_fetch_add(&parent->awaited, 1);
    /* release: after NCCL has begun. Pairs with the load in oh_comm_children_begun(). */
    atomic_fetch_add_explicit(&parent->children_begun, 1, memory_order_release);
    oh_creations_append(&parent->children, comm);
    return true;
}

struct oh_comm *oh_comm_take_children(struct oh_comm *comm, unsigned begun)
{
    OH_LOCK(&comm->attach.mutex);
    if (oh_comm_children_begun(comm) != begun) {
        return NULL;
    }
    struct oh_comm *children = comm->attach.children;
    comm->attach.children = NULL;
    return children;
}

void oh_comm_children_done(struct oh_comm *comm, unsigned count)
{
    atomic_fetch_sub_explicit(&comm->attach.awaited, count,
                              memory_order_release); /* pairs with oh_comm_has_pending_creations */
}

/* --- NCCL has created it ------------------------------------------------------------------------------------------ */

/*
 * For a rank of the parent: takes the key from the parent segment, if all the parent's ranks are present. All of them
 * read the same. If not all are, a rank that has the id votes no in the grown communicator's segment, which the new
 * ranks read.
 */
static void read_parent_segment(struct oh_comm *comm)
{
    char reason[OH_REASON_BYTES];
    const struct oh_shared *of_parent = comm->attach.parent_segment.shared;
    uint32_t present = atomic_load(&of_parent->present);
    if (present != comm->attach.parent_ranks) {
        snprintf(reason, sizeof reason, "onehop is present on this host for %u of %u ranks that it grows from", present,
                 comm->attach.parent_ranks);
        refuse(comm, reason);
    } else if (!atomic_load(&of_parent->target_set)) {
        refuse(comm, "no rank that it grows from had the unique id");
    } else {
        comm->id.key = of_parent->target;
        if (!comm->segment.shared && oh_segment_open_uncounted(&comm->segment, &comm->id.key) != ncclSuccess) {
            refuse(comm, "a rank that it grows from cannot open the shared memory of the communicator");
        }
    }
}

/* All ranks see the same number, since each was counted before NCCL's barrier. */
static void count_ranks(struct oh_comm *comm)
{
    char reason[OH_REASON_BYTES];
    const bool is_grow = comm->id.is_grow;
    const struct oh_shared *shared = comm->segment.shared;
    const uint32_t from = is_grow ? atomic_load(&shared->parent_ranks) : 0;
    const uint32_t present = atomic_load(&shared->present);
    if (is_grow && (from == 0 || from >= comm->id.nranks)) {
        refuse(comm, "onehop is present on this host for no rank that it grows from and that has the unique id");
    } else if (present != comm->id.nranks - from) {
        snprintf(reason, sizeof reason, "onehop is present on this host for %u of %u %sranks", present,
                 comm->id.nranks - from, is_grow ? "new " : "");
        refuse(comm, reason);
    }
}

/* Refuses a communicator that the user does not leave to onehop, and asks nothing of it. */
static void select_comm(struct oh_comm *comm)
{
    char host[256] = "", reason[OH_REASON_BYTES];
    const char *text = oh_env_text(OH_ENV_COMMS);
    gethostname(host, sizeof host - 1);
    const enum oh_selection selection =
        text ? oh_selection_match(text, comm->id.nranks, comm->id.config.name, host) : OH_SELECTION_IN;
    if (selection == OH_SELECTION_INVALID) {
        oh_env_reject(OH_ENV_COMMS);
    } else if (selection == OH_SELECTION_OUT) {
        comm->id.config.invariant = false;
        snprintf(reason, sizeof reason, "ONEHOP_COMMS leaves it out: %u ranks, name \"%.60s\"", comm->id.nranks,
                 comm->id.config.name);
        oh_text_clean(reason, sizeof reason); /* the name has any bytes */
        refuse(comm, reason);
    }
}

/* With the mutex held. Refuses where not all ranks can be served. */
static void take_rank(struct oh_comm *comm, const struct oh_nccl_rank *rank)
{
    comm->id.rank = (uint32_t)rank->rank;
    comm->id.nranks = (uint32_t)rank->nranks;
    comm->attach.cuda_device = rank->cuda_device;
    if (comm->attach.parent_segment.shared) {
        read_parent_segment(comm);
    }
    if (comm->attach.reason[0]) { /* a refusal before the segment was open has reached no other rank */
        oh_segment_vote_no(&comm->segment, comm->attach.reason);
    }
    if (comm->id.nranks < 2 || comm->id.nranks > OH_MAX_RANKS) {
        refuse(comm, comm->id.nranks < 2 ? "a single rank" : "more than 8 ranks");
    }
    if (!comm->attach.reason[0]) {
        select_comm(comm);
    }
    if (!comm->attach.reason[0]) {
        count_ranks(comm);
    }
    oh_segment_unlink(&comm->attach.parent_segment); /* after NCCL's barrier: all ranks have opened it */
    if (!comm->id.is_grow) {
        oh_segment_unlink(&comm->segment);
    }
    if (!comm->attach.reason[0]) {
        oh_peer_info_identify(&comm->segment.shared->peer_info[comm->id.rank]);
        for (uint64_t call = 1; call <= comm->attach.calls; call++) { /* made during NCCL's creation */
            oh_cutover_announce(&comm->segment.shared->cutover, comm->id.rank, call);
        }
    }
}

bool oh_comm_created(struct oh_comm *comm, const struct oh_nccl_rank *rank)
{
    pthread_mutex_lock(&comm->attach.mutex);
    const bool is_first = comm->attach.creating;
    comm->attach.creating = false;
    if (is_first && rank) {
        take_rank(comm, rank);
    } else if (is_first) {
        refuse(comm, "NCCL did not create the communicator on a rank");
    }
    const bool is_refused = comm->attach.reason[0] != '\0';
    if (is_first) {
        oh_comm_enter(comm, is_refused ? OH_COMM_FALLBACK : OH_COMM_IDLE);
        oh_comm_publish_facts(comm);
    }
    pthread_mutex_unlock(&comm->attach.mutex);
    if (is_first && is_refused) {
        oh_segment_discard(&comm->attach.parent_segment);
        oh_segment_unlink(&comm->segment);
        oh_comm_detach(comm);
    }
    if (is_first) {
        oh_comm_children_done(comm, 1); /* at last: a thread that reads that it is no longer awaited reads the rest */
    }
    return is_first;
}
