/* SPDX-License-Identifier: MIT */
/*
 * completion.c - the end of NCCL's part of a creation
 *
 * Does: Queries NCCL's state. Registers a communicator, with the rank that NCCL tells, at once or when NCCL is ready.
 * Threads: any.
 * Owns: a communicator that is not registered yet.
 */
#include <pthread.h>

#include "comm/attach/attach.h"
#include "comm/launch/launch.h"
#include "util/scope.h"

static bool identify(const struct oh_nccl *library, ncclComm_t nccl, struct oh_nccl_rank *rank_p)
{
    return library->CommCount(nccl, &rank_p->nranks) == ncclSuccess &&
           library->CommUserRank(nccl, &rank_p->rank) == ncclSuccess &&
           library->CommCuDevice(nccl, &rank_p->cuda_device) == ncclSuccess;
}

/* NCCL may have reused the handle of a communicator whose end onehop did not see. */
static bool register_comm(struct oh_comm *comm, ncclComm_t nccl)
{
    struct oh_comm *stale;
    while ((stale = oh_comm_find(nccl))) {
        oh_initial_comm_forget(stale);
        if (oh_registry_remove(stale)) {
            oh_comm_report_end(stale);
            oh_comm_retire(stale);
        } else {
            oh_comm_release(stale);
        }
    }
    return oh_creation_register(comm, nccl);
}

static bool is_child(const struct oh_comm *comm)
{
    return comm->id.parent && !comm->id.is_grow;
}

/* The program's variable may be gone by the end of a group. Of a split NCCL writes the handle last. */
static ncclComm_t handle_of(const struct oh_comm *comm)
{
    return comm->id.nccl ? comm->id.nccl : *comm->id.nccl_p;
}

void oh_creations_keep_handles(struct oh_comm *list)
{
    for (struct oh_comm *comm = list; comm; comm = comm->id.next) {
        comm->id.nccl = is_child(comm) ? NULL : *comm->id.nccl_p;
    }
}

static void finish_creation(struct oh_comm *comm)
{
    struct oh_nccl_rank rank;
    const struct oh_nccl *library = comm->id.library;
    const ncclComm_t nccl = handle_of(comm);
    if (!nccl || !identify(library, nccl, &rank)) {
        oh_creation_cancel(comm);
    } else if (register_comm(comm, nccl)) {
        oh_comm_created(comm, &rank);
        oh_comm_release(comm);
    }
    if (nccl) {
        oh_initial_comm_creation_end(library);
    }
}

/* NCCL creates it in the background. Of a split the handle is undefined until NCCL has written it. */
static void await_creation(struct oh_comm *comm)
{
    const ncclComm_t nccl = is_child(comm) ? NULL : handle_of(comm);
    if (nccl) {
        if (register_comm(comm, nccl)) {
            oh_comm_release(comm);
        }
    } else if (!comm->id.parent || !oh_creation_watch(comm)) {
        oh_creation_cancel(comm);
    }
}

unsigned oh_creations_finish(const struct oh_nccl *library, struct oh_comm *list, ncclResult_t res)
{
    unsigned count = 0;
    OH_KEEP_ERRNO();
    oh_nccl_depth++;
    for (struct oh_comm *comm = list, *next; comm; comm = next, count++) {
        next = comm->id.next;
        comm->id.next = NULL;
        comm->id.library = library;
        library->GetVersion(&comm->id.nccl_version);
        if (res == ncclSuccess) {
            finish_creation(comm);
        } else if (res == ncclInProgress) {
            comm->id.config.blocking = false; /* the parent's configuration may be unknown */
            await_creation(comm);
        } else {
            oh_creation_cancel(comm);
        }
    }
    oh_nccl_depth--;
    return count;
}

/* NCCL has returned `state`, not ncclInProgress, after oh_comm_children_begun had returned `begun`. */
static void complete(struct oh_comm *comm, unsigned begun, ncclResult_t state)
{
    /* Guards what follows: a second thread must not use a child before the first has registered it. */
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    const struct oh_nccl *library = comm->id.library;
    struct oh_nccl_rank rank;
    oh_nccl_depth++;
    pthread_mutex_lock(&mutex);
    oh_comm_children_done(comm, oh_creations_finish(library, oh_comm_take_children(comm, begun), ncclSuccess));
    pthread_mutex_unlock(&mutex);
    if (oh_comm_has_pending_creations(comm)) { /* also if it has fallen back meanwhile */
        const bool created = state == ncclSuccess && identify(library, comm->id.nccl, &rank);
        if (oh_comm_created(comm, created ? &rank : NULL) && created) {
            oh_initial_comm_creation_end(library);
        }
    }
    oh_nccl_depth--;
}

ncclResult_t oh_comm_query_nccl(struct oh_comm *comm, const struct oh_nccl *nccl, ncclResult_t *state_p)
{
    /* Read first: the state may be from before what the thread that uses the communicator begins meanwhile. */
    const unsigned launch = oh_order_launch(comm), children = oh_comm_children_begun(comm);
    OH_TRY(OH_NCCL(nccl, CommGetAsyncError(comm->id.nccl, state_p)));
    OH_KEEP_ERRNO();
    if (*state_p != ncclInProgress) {
        oh_order_nccl_launched(comm, launch);
        if (oh_comm_has_pending_creations(comm)) {
            complete(comm, children, *state_p);
        }
    }
    return ncclSuccess;
}

void oh_creations_query(struct oh_comm *comm)
{
    ncclResult_t state;
    if (oh_comm_has_pending_creations(comm)) {
        oh_comm_query_nccl(comm, comm->id.library, &state);
    }
}

static bool is_busy(const struct oh_nccl *library, ncclComm_t nccl)
{
    ncclResult_t state = ncclSuccess;
    return OH_NCCL(library, CommGetAsyncError(nccl, &state)) == ncclSuccess && state == ncclInProgress;
}

bool oh_creation_is_in_progress(const struct oh_nccl *library, const struct oh_comm *comm)
{
    const struct oh_comm_config *config = &comm->id.config;
    const struct oh_comm *parent = comm->id.parent;
    if (is_child(comm)) {
        config = &parent->id.config;
        return !config->blocking || (config->is_assumed && is_busy(library, parent->id.nccl));
    }
    return (!config->blocking || config->is_assumed) && *comm->id.nccl_p && is_busy(library, *comm->id.nccl_p);
}
