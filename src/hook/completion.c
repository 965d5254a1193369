/* SPDX-License-Identifier: MIT */
/*
 * completion.c - communicators that NCCL has created
 *
 * Does: Asks NCCL who this rank is in a new communicator, and registers it, at once or when NCCL has finished.
 * Threads: any.
 * Owns: nothing.
 */
#include <pthread.h>
#include <stdlib.h>

#include "hook/entry.h"
#include "hook/initial_comm.h"
#include "util/keep_errno.h"

struct identity {
    int rank, nranks, cuda_device;
};

static bool identify(const struct oh_real *real, ncclComm_t nccl, struct identity *identity_p)
{
    return real->CommCount(nccl, &identity_p->nranks) == ncclSuccess &&
           real->CommUserRank(nccl, &identity_p->rank) == ncclSuccess &&
           real->CommCuDevice(nccl, &identity_p->cuda_device) == ncclSuccess;
}

static void finish_creation(const struct oh_real *real, struct oh_creation *creation)
{
    struct identity self;
    ncclComm_t nccl = *creation->nccl_p;
    struct oh_comm *comm = nccl && identify(real, nccl, &self) ? oh_creation_register(creation, nccl) : NULL;
    if (comm) {
        oh_comm_created(comm, self.rank, self.nranks, self.cuda_device);
    } else {
        oh_creation_cancel(creation);
    }
    if (nccl) {
        oh_initial_comm_creation_end(real);
    }
}

/* NCCL creates it in the background. Of a split the handle is undefined until NCCL has written it. */
static void await_creation(struct oh_creation *creation)
{
    ncclComm_t nccl = creation->parent && !creation->is_grow ? NULL : *creation->nccl_p;
    if (nccl) {
        oh_creation_register(creation, nccl);
    } else if (creation->parent) {
        oh_creation_watch(creation);
    } else {
        oh_creation_cancel(creation);
    }
}

void oh_creations_finish(const struct oh_real *real, struct oh_creation *creations, size_t count, ncclResult_t res)
{
    OH_KEEP_ERRNO();
    oh_inside++;
    for (size_t i = 0; i < count; i++) {
        creations[i].library = real;
        real->GetVersion(&creations[i].nccl_version);
        if (res == ncclSuccess) {
            finish_creation(real, &creations[i]);
        } else if (res == ncclInProgress) {
            await_creation(&creations[i]);
        } else {
            oh_creation_cancel(&creations[i]);
        }
    }
    oh_inside--;
}

/* Returns their number. */
static unsigned finish_children(const struct oh_real *real, struct oh_creation *child)
{
    unsigned count = 0;
    for (; child; count++) {
        struct oh_creation *next = child->next;
        finish_creation(real, child);
        free(child);
        child = next;
    }
    return count;
}

void oh_creations_poll(struct oh_comm *comm, ncclResult_t state)
{
    /* Guards what follows: a second thread must not use a child before the first has registered it. */
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    const struct oh_real *real = oh_comm_id(comm)->library;
    struct identity self;
    OH_KEEP_ERRNO();
    if (state == ncclInProgress) {
        return;
    }
    oh_inside++;
    pthread_mutex_lock(&mutex);
    oh_comm_children_done(comm, finish_children(real, oh_comm_take_children(comm)));
    pthread_mutex_unlock(&mutex);
    if (oh_comm_is_creating(comm)) { /* also if it has fallen back meanwhile */
        if (state != ncclSuccess || !identify(real, oh_comm_id(comm)->nccl, &self)) {
            oh_comm_not_created(comm);
        } else if (oh_comm_created(comm, self.rank, self.nranks, self.cuda_device)) {
            oh_initial_comm_creation_end(real);
        }
    }
    oh_inside--;
}
