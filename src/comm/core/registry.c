/* SPDX-License-Identifier: MIT */
/*
 * registry.c - from ncclComm_t to struct oh_comm
 *
 * Does: Keeps an open-addressed hash table. A search compares handles only: it never reads a struct oh_comm that
 *    another thread may be freeing. A removed slot keeps a mark, so that a search goes on behind it. A handle is
 *    removed before NCCL destroys the communicator, since NCCL may reuse it for the next. The slot has the number of
 *    uses, in memory that is never freed: a search counts its use first, and then checks that the handle is still
 *    there. So the slot is the communicator's until that is freed.
 * Threads: any; searches take no lock, writers hold `mutex`.
 * Owns: the table.
 */
#include "comm/comm_internal.h"

#include <pthread.h>
#include <stddef.h>

#include "util/scope.h"

#define SLOTS 4096 /* power of two */

/* A slot has a line of its own: threads with different communicators count uses at the same time. */
struct oh_comm_slot {
    _Alignas(64) _Atomic(ncclComm_t) nccl; /* NULL: empty; REMOVED, FREED: was in use */
    _Atomic(struct oh_comm *) comm;
    atomic_uint users; /* uses, from oh_comm_find or oh_comm_retain to oh_comm_release */
};

static char removed_mark, freed_mark;
#define REMOVED ((ncclComm_t)(void *)&removed_mark) /* the communicator may still be in use */
#define FREED ((ncclComm_t)(void *)&freed_mark)

static struct oh_comm_slot slots[SLOTS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned taken; /* slots of communicators that are not freed; guarded by mutex */

static size_t first_slot(ncclComm_t nccl)
{
    return (size_t)(((uintptr_t)nccl >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 52) % SLOTS;
}

/* The slot of a handle, NULL when it is not there. Lock-free. */
static struct oh_comm_slot *slot_of(ncclComm_t nccl)
{
    size_t at = first_slot(nccl);
    for (size_t i = 0; i < SLOTS; i++) {
        struct oh_comm_slot *slot = &slots[(at + i) % SLOTS];
        ncclComm_t there = atomic_load_explicit(&slot->nccl, memory_order_acquire); /* pairs with fill_slot */
        if (!there) {
            return NULL;
        }
        if (there == nccl) {
            return slot;
        }
    }
    return NULL;
}

static void end_use(struct oh_comm_slot *slot)
{
    /* release: the work is done before the count. Pairs with the acquire load in oh_comm_is_used(). */
    atomic_fetch_sub_explicit(&slot->users, 1, memory_order_release);
}

struct oh_comm *oh_comm_find(ncclComm_t nccl)
{
    struct oh_comm_slot *slot = nccl ? slot_of(nccl) : NULL;
    if (!slot) {
        return NULL;
    }
    /*
     * seq_cst, both: pairs with the store in oh_registry_remove() and the load in oh_comm_is_used(). Either this thread
     * finds that the handle has been removed, or the thread that would free the communicator finds this use.
     */
    atomic_fetch_add(&slot->users, 1);
    if (atomic_load(&slot->nccl) == nccl) {
        return atomic_load_explicit(&slot->comm, memory_order_relaxed); /* the slot is its own while this use lasts */
    }
    end_use(slot);
    return NULL;
}

bool oh_comm_is_registered(const struct oh_comm *comm)
{
    const struct oh_comm_slot *slot = comm->slot;
    return slot && atomic_load_explicit(&slot->nccl, memory_order_acquire) == comm->id.nccl;
}

void oh_comm_retain(struct oh_comm *comm)
{
    atomic_fetch_add_explicit(&comm->slot->users, 1, memory_order_relaxed); /* the caller has a use already */
}

void oh_comm_release(struct oh_comm *comm)
{
    end_use(comm->slot);
}

bool oh_comm_is_used(const struct oh_comm *comm)
{
    /* seq_cst: pairs with oh_comm_find(). Acquire: pairs with the release in end_use(). */
    return comm->slot && atomic_load(&comm->slot->users) > 0;
}

/* The use of the thread that registers the communicator is the first. A search may count one that it takes back. */
static void fill_slot(struct oh_comm_slot *slot, struct oh_comm *comm)
{
    comm->slot = slot;
    atomic_fetch_add_explicit(&slot->users, 1, memory_order_relaxed);
    atomic_store_explicit(&slot->comm, comm, memory_order_relaxed);
    /* release: publishes `comm`. Pairs with the loads in oh_comm_find(), which could else return the old one. */
    atomic_store_explicit(&slot->nccl, comm->id.nccl, memory_order_release);
    taken++;
}

ncclResult_t oh_registry_add(struct oh_comm *comm)
{
    size_t at = first_slot(comm->id.nccl);
    OH_LOCK(&mutex);
    /* Half full at most, so that a search soon finds an empty slot. */
    for (size_t i = 0; i < SLOTS && taken < SLOTS / 2; i++) {
        struct oh_comm_slot *slot = &slots[(at + i) % SLOTS];
        ncclComm_t there = atomic_load_explicit(&slot->nccl, memory_order_relaxed);
        if (!there || there == FREED) {
            fill_slot(slot, comm);
            return ncclSuccess;
        }
    }
    return ncclInternalError;
}

/* If the next slot is empty, no search goes on behind this mark, nor behind the marks right before it. */
static void clear_marks(size_t at)
{
    if (atomic_load_explicit(&slots[(at + 1) % SLOTS].nccl, memory_order_relaxed)) {
        return;
    }
    while (atomic_load_explicit(&slots[at].nccl, memory_order_relaxed) == FREED) {
        atomic_store_explicit(&slots[at].nccl, NULL, memory_order_release);
        at = (at + SLOTS - 1) % SLOTS;
    }
}

bool oh_registry_remove(struct oh_comm *comm)
{
    OH_LOCK(&mutex);
    if (!oh_comm_is_registered(comm)) {
        return false;
    }
    atomic_store(&comm->slot->nccl, REMOVED); /* seq_cst: as in oh_comm_find() */
    oh_live_remove(&comm->live);              /* with the mutex held: oh_comms_describe finds it in one sum */
    return true;
}

void oh_registry_free_slot(struct oh_comm *comm)
{
    if (comm->slot) {
        OH_LOCK(&mutex);
        atomic_store_explicit(&comm->slot->nccl, FREED, memory_order_release);
        clear_marks((size_t)(comm->slot - slots));
        taken--;
    }
}

void oh_registry_visit(void (*visit)(struct oh_comm *comm, void *user), void *user)
{
    OH_LOCK(&mutex);
    for (size_t i = 0; i < SLOTS && OH_IS_LOCKED(); i++) {
        ncclComm_t there = atomic_load_explicit(&slots[i].nccl, memory_order_relaxed);
        if (there && there != REMOVED && there != FREED) {
            visit(atomic_load_explicit(&slots[i].comm, memory_order_relaxed), user);
        }
    }
}
