/* SPDX-License-Identifier: MIT */
/*
 * registry.c - from ncclComm_t to struct oh_comm
 *
 * Does: Keeps an open-addressed hash table. A search compares handles only: it never reads a struct oh_comm that
 *    another thread may be freeing. A removed slot keeps a mark, so that a search goes on behind it. A handle is
 *    removed before NCCL destroys the communicator, since NCCL may reuse it for the next.
 * Threads: any; searches take no lock, writers hold `mutex`.
 * Owns: the table.
 */
#include "comm/comm_internal.h"

#include <pthread.h>
#include <stddef.h>

#include "util/scope.h"

#define SLOTS 4096 /* power of two */

struct slot {
    _Atomic(ncclComm_t) nccl; /* NULL: empty; REMOVED: was in use */
    _Atomic(struct oh_comm *) comm;
};

static char removed_mark;
#define REMOVED ((ncclComm_t)(void *)&removed_mark)

static struct slot slots[SLOTS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned live; /* guarded by mutex */

static size_t first_slot(ncclComm_t nccl)
{
    return (size_t)(((uintptr_t)nccl >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 52) % SLOTS;
}

/* The slot of a handle, NULL when it is not there. Lock-free. */
static struct slot *slot_of(ncclComm_t nccl)
{
    size_t at = first_slot(nccl);
    for (size_t i = 0; i < SLOTS; i++) {
        struct slot *slot = &slots[(at + i) % SLOTS];
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

struct oh_comm *oh_comm_find(ncclComm_t nccl)
{
    struct slot *slot = nccl ? slot_of(nccl) : NULL;
    return slot ? atomic_load_explicit(&slot->comm, memory_order_relaxed) : NULL;
}

static void fill_slot(struct slot *slot, struct oh_comm *comm)
{
    atomic_store_explicit(&slot->comm, comm, memory_order_relaxed);
    /* release: publishes `comm`. Pairs with the acquire load in slot_of(), which could else return the old one. */
    atomic_store_explicit(&slot->nccl, comm->id.nccl, memory_order_release);
    live++;
}

ncclResult_t oh_registry_add(struct oh_comm *comm)
{
    size_t at = first_slot(comm->id.nccl);
    OH_LOCK(&mutex);
    /* Half full at most, so that a search soon finds an empty slot. */
    for (size_t i = 0; i < SLOTS && live < SLOTS / 2; i++) {
        struct slot *slot = &slots[(at + i) % SLOTS];
        ncclComm_t there = atomic_load_explicit(&slot->nccl, memory_order_relaxed);
        if (!there || there == REMOVED) {
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
    while (atomic_load_explicit(&slots[at].nccl, memory_order_relaxed) == REMOVED) {
        atomic_store_explicit(&slots[at].nccl, NULL, memory_order_release);
        at = (at + SLOTS - 1) % SLOTS;
    }
}

void oh_registry_remove(struct oh_comm *comm)
{
    OH_LOCK(&mutex);
    struct slot *slot = slot_of(comm->id.nccl);
    if (slot && atomic_load_explicit(&slot->comm, memory_order_relaxed) == comm) {
        atomic_store_explicit(&slot->nccl, REMOVED, memory_order_release);
        clear_marks((size_t)(slot - slots));
        live--;
    }
    oh_live_remove(&comm->live); /* with the mutex held: oh_comms_describe finds it in one sum */
}

void oh_registry_visit(void (*visit)(struct oh_comm *comm, void *user), void *user)
{
    OH_LOCK(&mutex);
    for (size_t i = 0; i < SLOTS && OH_IS_LOCKED(); i++) {
        ncclComm_t there = atomic_load_explicit(&slots[i].nccl, memory_order_relaxed);
        if (there && there != REMOVED) {
            visit(atomic_load_explicit(&slots[i].comm, memory_order_relaxed), user);
        }
    }
}
