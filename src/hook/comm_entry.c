/* SPDX-License-Identifier: MIT */
/*
 * comm_entry.c - the NCCL functions that create and end communicators
 *
 * Does: Counts this rank in before NCCL creates a communicator. Registers the communicator, with the rank that NCCL
 *    tells, at once or when NCCL has finished. Lets go of it before NCCL ends it.
 * Threads: any, by NCCL's own rules.
 * Owns: a communicator that is not registered yet.
 */
#include <pthread.h>

#include "comm/attach/attach.h"
#include "hook/entry.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/scope.h"

static bool identify(const struct oh_real *real, ncclComm_t nccl, struct oh_nccl_rank *rank_p)
{
    return real->CommCount(nccl, &rank_p->nranks) == ncclSuccess &&
           real->CommUserRank(nccl, &rank_p->rank) == ncclSuccess &&
           real->CommCuDevice(nccl, &rank_p->cuda_device) == ncclSuccess;
}

static void finish_creation(const struct oh_real *real, struct oh_comm *comm)
{
    struct oh_nccl_rank rank;
    const ncclComm_t nccl = *oh_comm_id(comm)->nccl_p;
    if (!nccl || !identify(real, nccl, &rank)) {
        oh_creation_cancel(comm);
    } else if (oh_creation_register(comm, nccl)) {
        oh_comm_created(comm, &rank);
    }
    if (nccl) {
        oh_initial_comm_creation_end(real);
    }
}

/* NCCL creates it in the background. Of a split the handle is undefined until NCCL has written it. */
static void await_creation(struct oh_comm *comm)
{
    const struct oh_comm_identity *id = oh_comm_id(comm);
    const ncclComm_t nccl = id->parent && !id->is_grow ? NULL : *id->nccl_p;
    if (nccl) {
        oh_creation_register(comm, nccl);
    } else if (id->parent) {
        oh_creation_watch(comm);
    } else {
        oh_creation_cancel(comm);
    }
}

unsigned oh_creations_finish(const struct oh_real *real, struct oh_comm *list, ncclResult_t res)
{
    unsigned count = 0;
    OH_KEEP_ERRNO();
    oh_inside++;
    for (struct oh_comm *comm = list, *next; comm; comm = next, count++) {
        struct oh_comm_identity *id = oh_comm_id(comm);
        next = id->next;
        id->next = NULL;
        id->library = real;
        real->GetVersion(&id->nccl_version);
        if (res == ncclSuccess) {
            finish_creation(real, comm);
        } else if (res == ncclInProgress) {
            await_creation(comm);
        } else {
            oh_creation_cancel(comm);
        }
    }
    oh_inside--;
    return count;
}

void oh_creations_poll(struct oh_comm *comm, ncclResult_t state)
{
    /* Guards what follows: a second thread must not use a child before the first has registered it. */
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    const struct oh_real *real = oh_comm_id(comm)->library;
    struct oh_nccl_rank rank;
    OH_KEEP_ERRNO();
    if (state == ncclInProgress) {
        return;
    }
    oh_inside++;
    pthread_mutex_lock(&mutex);
    oh_comm_children_done(comm, oh_creations_finish(real, oh_comm_take_children(comm), ncclSuccess));
    pthread_mutex_unlock(&mutex);
    if (oh_comm_is_creating(comm)) { /* also if it has fallen back meanwhile */
        const bool created = state == ncclSuccess && identify(real, oh_comm_id(comm)->nccl, &rank);
        if (oh_comm_created(comm, created ? &rank : NULL) && created) {
            oh_initial_comm_creation_end(real);
        }
    }
    oh_inside--;
}

/*
 * Returns whether NCCL still works on a creation for which it returned ncclSuccess: the split and shrinking of a
 * non-blocking communicator, and maybe others (2.28.9 and 2.31, src/init.cc: NCCLCHECK drops ncclInProgress). The
 * handle of a split is undefined until the parent is ready; one that grows has a handle at once, whose state tells.
 */
static bool is_in_progress(const struct oh_real *real, const struct oh_comm *comm)
{
    const struct oh_comm_identity *id = oh_comm_id(comm);
    ncclResult_t state = ncclSuccess;
    if (id->parent && !id->is_grow) {
        return !oh_comm_id(id->parent)->config.blocking;
    }
    return !id->config.blocking && *id->nccl_p && REAL(real, CommGetAsyncError(*id->nccl_p, &state)) == ncclSuccess &&
           state == ncclInProgress;
}

/* NULL: no memory. key NULL: unknown, of one that grows. */
static struct oh_comm *begin_any_creation(struct oh_comm *parent, const struct oh_key *key, const ncclConfig_t *config,
                                          ncclComm_t *nccl_p, bool is_grow)
{
    OH_KEEP_ERRNO();
    struct oh_comm_config read = oh_config_read(config, parent ? &oh_comm_id(parent)->config : NULL);
    if (parent && !is_grow) { /* NCCL creates the child of a non-blocking communicator in the background in any case */
        read.blocking &= oh_comm_id(parent)->config.blocking;
    }
    oh_stats_expect_calls(false);
    oh_initial_comm_creation_begin();
    return oh_creation_begin(key, &read, parent, nccl_p, is_grow);
}

static struct oh_comm *begin_creation(struct oh_comm *parent, struct oh_key key, const ncclConfig_t *config,
                                      ncclComm_t *nccl_p)
{
    return begin_any_creation(parent, &key, config, nccl_p, false);
}

/* After the real creator returned `res`: completes the creations now, or at the end of the group. Returns `res`. */
static ncclResult_t end_creations(const struct oh_real *real, struct oh_comm *list, ncclResult_t res)
{
    OH_KEEP_ERRNO();
    if (oh_group_depth() > 0 && (res == ncclSuccess || res == ncclInProgress)) {
        oh_group_add_creations(list);
    } else if (list) {
        const bool later = res == ncclSuccess && !oh_comm_id(list)->next && is_in_progress(real, list);
        oh_creations_finish(real, list, later ? ncclInProgress : res);
    }
    return res;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    GET_REAL(real);
    if (!oh_entry_is_active()) {
        return real->CommInitRank(comm, nranks, id, rank);
    }
    struct oh_comm *created = begin_creation(NULL, oh_key_of_ids(&id, 1), NULL, comm);
    return end_creations(real, created, REAL(real, CommInitRank(comm, nranks, id, rank)));
}

EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                           ncclConfig_t *config)
{
    GET_REAL(real);
    if (!oh_entry_is_active()) {
        return real->CommInitRankConfig(comm, nranks, id, rank, config);
    }
    struct oh_comm *created = begin_creation(NULL, oh_key_of_ids(&id, 1), config, comm);
    return end_creations(real, created, REAL(real, CommInitRankConfig(comm, nranks, id, rank, config)));
}

EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int count, ncclUniqueId *ids,
                                             ncclConfig_t *config)
{
    GET_REAL(real);
    NEED_REAL(real, CommInitRankScalable);
    if (!oh_entry_is_active() || !ids || count < 1 || count > nranks) {
        return REAL(real, CommInitRankScalable(comm, nranks, rank, count, ids, config));
    }
    struct oh_comm *created = begin_creation(NULL, oh_key_of_ids(ids, count), config, comm);
    ncclResult_t res = REAL(real, CommInitRankScalable(comm, nranks, rank, count, ids, config));
    return end_creations(real, created, res);
}

/* All ranks are in this process, and have a key of their own. */
EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ndev, const int *devices)
{
    GET_REAL(real);
    if (!oh_entry_is_active() || !comms) {
        return real->CommInitAll(comms, ndev, devices);
    }
    struct oh_key key = oh_key_random();
    struct oh_comm *list = NULL;
    for (int i = ndev - 1; i >= 0; i--) {
        struct oh_comm *created = begin_creation(NULL, key, NULL, &comms[i]);
        if (created) {
            oh_comm_id(created)->next = list;
            list = created;
        }
    }
    return end_creations(real, list, REAL(real, CommInitAll(comms, ndev, devices)));
}

EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int order, ncclComm_t *newcomm, ncclConfig_t *config)
{
    struct oh_comm *parent = active_comm(comm);
    GET_REAL_OF(parent, real);
    if (!parent) {
        return real->CommSplit(comm, color, order, newcomm, config);
    }
    uint64_t sequence = oh_comm_id(parent)->splits++; /* the same on all ranks, those without a colour too */
    if (color == NCCL_SPLIT_NOCOLOR || !newcomm) {
        return REAL(real, CommSplit(comm, color, order, newcomm, config));
    }
    struct oh_comm *created =
        begin_creation(parent, oh_key_of_split(&oh_comm_id(parent)->key, sequence, color), config, newcomm);
    ncclResult_t res = REAL(real, CommSplit(comm, color, order, newcomm, config));
    oh_comm_id(parent)->splits -= oh_entry_is_rejected(res);
    return end_creations(real, created, res);
}

/* The arguments that NCCL accepts (ncclCommInitChildComm, src/init.cc of 2.28.9). */
static bool can_shrink(const struct oh_comm *parent, const int *excluded, int count, const ncclComm_t *newcomm)
{
    bool right = excluded && newcomm && count > 0 && (uint32_t)count < oh_comm_id(parent)->nranks;
    for (int i = 0; right && i < count; i++) {
        right = excluded[i] >= 0 && (uint32_t)excluded[i] < oh_comm_id(parent)->nranks &&
                excluded[i] != (int)oh_comm_id(parent)->rank;
    }
    return right;
}

/* With NCCL_SHRINK_ABORT (1) NCCL aborts the parent's kernels and waits for the device, so onehop's must end before. */
EXPORT ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *newcomm, ncclConfig_t *config,
                                   int flags)
{
    struct oh_comm *parent = active_comm(comm);
    GET_REAL_OF(parent, real);
    NEED_REAL(real, CommShrink);
    if (!parent || !can_shrink(parent, excluded, count, newcomm)) {
        return REAL(real, CommShrink(comm, excluded, count, newcomm, config, flags));
    }
    if (flags & 1) {
        oh_comm_abort(parent);
    }
    struct oh_key key = oh_key_of_shrink(&oh_comm_id(parent)->key, oh_comm_id(parent)->shrinks++, excluded, count);
    struct oh_comm *created = begin_creation(parent, key, config, newcomm);
    ncclResult_t res = REAL(real, CommShrink(comm, excluded, count, newcomm, config, flags));
    oh_comm_id(parent)->shrinks -= oh_entry_is_rejected(res);
    return end_creations(real, created, res);
}

/* Ranks of the parent pass it, and one of them or all the id; new ranks pass the id. */
EXPORT ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                                 ncclConfig_t *config)
{
    struct oh_comm *parent = active_comm(comm);
    GET_REAL_OF(parent, real);
    NEED_REAL(real, CommGrow);
    if (!oh_entry_is_active() || !newcomm || (comm ? !parent : !id)) {
        return REAL(real, CommGrow(comm, nranks, id, rank, newcomm, config));
    }
    const struct oh_key key = id ? oh_key_of_ids(id, 1) : (struct oh_key){{0}};
    struct oh_comm *created = begin_any_creation(parent, id ? &key : NULL, config, newcomm, true);
    ncclResult_t res = REAL(real, CommGrow(comm, nranks, id, rank, newcomm, config));
    if (parent) {
        oh_comm_id(parent)->grows -= oh_entry_is_rejected(res);
    }
    return end_creations(real, created, res);
}

/* In a group NCCL ends the communicator with the group, and a non-blocking one in the background. */
static void drain(const struct oh_comm *comm)
{
    OH_KEEP_ERRNO();
    if (oh_comm_id(comm)->config.blocking && oh_group_depth() == 0) {
        oh_comm_drain(comm);
    }
}

EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    struct oh_comm *ours = active_comm(comm);
    GET_REAL_OF(ours, real);
    if (ours) {
        drain(ours);
        oh_comm_suspend(ours);
    }
    return REAL(real, CommFinalize(comm));
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    struct oh_comm *ours = active_comm(comm);
    oh_stats_expect_calls(false);
    GET_REAL_OF(ours, real);
    if (!ours) {
        return real->CommDestroy(comm);
    }
    drain(ours);
    oh_entry_forget(ours);
    ncclResult_t res = REAL(real, CommDestroy(comm));
    OH_KEEP_ERRNO();
    oh_comms_reclaim();
    return res;
}

EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    struct oh_comm *ours = active_comm(comm);
    oh_stats_expect_calls(false);
    GET_REAL_OF(ours, real);
    if (!ours) {
        return real->CommAbort(comm);
    }
    uint64_t begin_ns = oh_now_ns();
    oh_comm_abort(ours); /* ends kernels first: NCCL waits for the device */
    oh_entry_forget(ours);
    uint64_t nccl_ns = oh_now_ns();
    ncclResult_t res = REAL(real, CommAbort(comm));
    OH_KEEP_ERRNO();
    nccl_ns = oh_now_ns() - nccl_ns;
    oh_comms_reclaim();
    /* NCCL's threads may take a second to see an abort (doc/faults.md). */
    OH_INFO("comm %p: aborted in %.0f ms, of which NCCL took %.0f", (void *)comm,
            (double)(oh_now_ns() - begin_ns) / 1e6, (double)nccl_ns / 1e6);
    return res;
}

EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    struct oh_comm *ours = active_comm(comm);
    GET_REAL_OF(ours, real);
    NEED_REAL(real, CommRevoke);
    /* NCCL waits for the device, so kernels end before, unless NCCL will reject the call: 2.28.9 rejects flags, and
     * communicators that are finalized or revoked. */
    bool first = ours && flags == 0 && oh_comm_is_in_use(ours);
    if (first) {
        oh_comm_abort(ours);
    }
    ncclResult_t res = REAL(real, CommRevoke(comm, flags));
    if (ours && (res == ncclSuccess || res == ncclInProgress)) {
        if (!first) {
            oh_comm_abort(ours);
        }
        oh_comm_revoked(ours);
    }
    return res;
}
