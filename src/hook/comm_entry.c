/* SPDX-License-Identifier: MIT */
/*
 * comm_entry.c - the NCCL functions that create and end communicators
 *
 * Does: Counts this rank in before NCCL creates a communicator, and lets go of it before NCCL ends it.
 * Threads: any, by NCCL's own rules.
 * Owns: a creation, until NCCL has returned or the group has ended.
 */
#include <stdatomic.h>
#include <string.h>

#include "comm/attach/attach.h"
#include "comm/attach/end.h"
#include "comm/watch/failure.h"
#include "hook/entry.h"
#include "hook/group.h"
#include "hook/initial_comm.h"
#include "util/clock.h"
#include "util/keep_errno.h"
#include "util/log.h"

/*
 * A split or shrinking of a non-blocking communicator gives ncclSuccess while NCCL works on it, and so may other
 * non-blocking creations (2.28.9 and 2.31, src/init.cc: what the helper thread is at, ncclGroupEndInternal says, but
 * NCCLCHECK drops ncclInProgress). The handle of a split must not be looked at before NCCL has said that the parent is
 * done; one that grows has a handle at once, whose state tells.
 */
static bool is_in_progress(const struct oh_real *real, const struct oh_creation *creation)
{
    ncclResult_t state = ncclSuccess;
    if (creation->parent && !creation->is_grow) {
        return !creation->parent->config.blocking;
    }
    return !creation->config.blocking && *creation->nccl_p &&
           REAL(real, CommGetAsyncError(*creation->nccl_p, &state)) == ncclSuccess && state == ncclInProgress;
}

static void begin_creation(struct oh_creation *creation, const struct oh_key *key, struct oh_comm_config config,
                           ncclComm_t *nccl_p)
{
    OH_KEEP_ERRNO();
    oh_stats_mark_reached();
    oh_initial_comm_creation_begin();
    oh_creation_begin(creation, key, &config, nccl_p);
}

/* After the real creator: completes the creations now, or at the end of the group. */
static void end_creations(const struct oh_real *real, struct oh_creation *creations, size_t count, ncclResult_t res)
{
    OH_KEEP_ERRNO();
    bool created = res == ncclSuccess || res == ncclInProgress;
    if (created && oh_group_depth() == 0) {
        bool later = res == ncclSuccess && count == 1 && is_in_progress(real, creations);
        oh_creations_finish(real, creations, count, later ? ncclInProgress : res);
    } else {
        for (size_t i = 0; i < count; i++) {
            if (!created || !oh_group_add_creation(&creations[i])) {
                oh_creation_cancel(&creations[i]);
            }
        }
    }
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    GET_REAL(real);
    if (!oh_entry_is_active()) {
        return real->CommInitRank(comm, nranks, id, rank);
    }
    struct oh_creation creation;
    struct oh_key key = oh_key_of_id(&id);
    begin_creation(&creation, &key, oh_config_read(NULL, NULL), comm);
    ncclResult_t res = REAL(real, CommInitRank(comm, nranks, id, rank));
    end_creations(real, &creation, 1, res);
    return res;
}

EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                           ncclConfig_t *config)
{
    GET_REAL(real);
    if (!oh_entry_is_active()) {
        return real->CommInitRankConfig(comm, nranks, id, rank, config);
    }
    struct oh_creation creation;
    struct oh_key key = oh_key_of_id(&id);
    begin_creation(&creation, &key, oh_config_read(config, NULL), comm);
    ncclResult_t res = REAL(real, CommInitRankConfig(comm, nranks, id, rank, config));
    end_creations(real, &creation, 1, res);
    return res;
}

EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int count, ncclUniqueId *ids,
                                             ncclConfig_t *config)
{
    GET_REAL(real);
    NEED_REAL(real, CommInitRankScalable);
    if (!oh_entry_is_active() || !ids || count < 1 || count > nranks) {
        return REAL(real, CommInitRankScalable(comm, nranks, rank, count, ids, config));
    }
    struct oh_creation creation;
    struct oh_key key = oh_key_of_ids(ids, count);
    begin_creation(&creation, &key, oh_config_read(config, NULL), comm);
    ncclResult_t res = REAL(real, CommInitRankScalable(comm, nranks, rank, count, ids, config));
    end_creations(real, &creation, 1, res);
    return res;
}

/* All ranks of the communicator are in this process: they meet under a key of their own. */
EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ndev, const int *devices)
{
    GET_REAL(real);
    struct oh_creation *creations =
        oh_entry_is_active() && comms && ndev > 0 ? calloc((size_t)ndev, sizeof *creations) : NULL;
    if (!creations) {
        return real->CommInitAll(comms, ndev, devices);
    }
    struct oh_key key = oh_key_random();
    for (int i = 0; i < ndev; i++) {
        begin_creation(&creations[i], &key, oh_config_read(NULL, NULL), &comms[i]);
    }
    ncclResult_t res = REAL(real, CommInitAll(comms, ndev, devices));
    end_creations(real, creations, (size_t)ndev, res);
    free(creations);
    return res;
}

/* NCCL works on the child of a non-blocking communicator in the background, whatever the child is. */
static struct oh_comm_config read_child(const ncclConfig_t *config, const struct oh_comm *parent)
{
    struct oh_comm_config read = oh_config_read(config, &parent->config);
    read.blocking &= parent->config.blocking;
    return read;
}

EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int order, ncclComm_t *newcomm, ncclConfig_t *config)
{
    struct oh_comm *parent = active_comm(comm);
    GET_REAL_OF(parent, real);
    if (!parent) {
        return real->CommSplit(comm, color, order, newcomm, config);
    }
    uint64_t sequence = parent->splits++; /* the same on all ranks, those without a colour too */
    if (color == NCCL_SPLIT_NOCOLOR || !newcomm) {
        return REAL(real, CommSplit(comm, color, order, newcomm, config));
    }
    struct oh_creation creation;
    struct oh_key key = oh_key_of_split(&parent->key, sequence, color);
    begin_creation(&creation, &key, read_child(config, parent), newcomm);
    creation.parent = parent;
    ncclResult_t res = REAL(real, CommSplit(comm, color, order, newcomm, config));
    parent->splits -= oh_entry_is_rejected(res);
    end_creations(real, &creation, 1, res);
    return res;
}

/* The arguments that NCCL takes (ncclCommInitChildComm, src/init.cc of 2.28.9), as far as onehop knows such a child. */
static bool can_shrink(const struct oh_comm *parent, const int *excluded, int count, const ncclComm_t *newcomm)
{
    bool right = excluded && newcomm && count > 0 && (uint32_t)count < parent->nranks;
    for (int i = 0; right && i < count; i++) {
        right = excluded[i] >= 0 && (uint32_t)excluded[i] < parent->nranks && excluded[i] != (int)parent->rank;
    }
    return right;
}

/*
 * With the abort flag (NCCL_SHRINK_ABORT, 1) NCCL ends what runs on the parent, and waits for it. So kernels leave
 * before the call, unless NCCL will reject its arguments.
 */
EXPORT ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *newcomm, ncclConfig_t *config,
                                   int flags)
{
    struct oh_comm *parent = active_comm(comm);
    GET_REAL_OF(parent, real);
    NEED_REAL(real, CommShrink);
    bool right = parent && can_shrink(parent, excluded, count, newcomm);
    if (right && (flags & 1)) {
        oh_comm_abort(parent);
    }
    if (!right) {
        return REAL(real, CommShrink(comm, excluded, count, newcomm, config, flags));
    }
    struct oh_creation creation;
    struct oh_key key = oh_key_of_shrink(&parent->key, parent->shrinks++, excluded, count);
    begin_creation(&creation, &key, read_child(config, parent), newcomm);
    creation.parent = parent;
    ncclResult_t res = REAL(real, CommShrink(comm, excluded, count, newcomm, config, flags));
    parent->shrinks -= oh_entry_is_rejected(res);
    end_creations(real, &creation, 1, res);
    return res;
}

static void begin_growing(struct oh_creation *creation, struct oh_comm *parent, const ncclUniqueId *id,
                          const ncclConfig_t *config, ncclComm_t *nccl_p)
{
    OH_KEEP_ERRNO();
    oh_initial_comm_creation_begin();
    const struct oh_comm_config read = oh_config_read(config, parent ? &parent->config : NULL);
    oh_creation_begin_grow(creation, parent, id, &read, nccl_p);
}

/* Ranks of the parent come with it, new ranks without; of the former only one needs to have the id. */
EXPORT ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                                 ncclConfig_t *config)
{
    struct oh_comm *parent = active_comm(comm);
    GET_REAL_OF(parent, real);
    NEED_REAL(real, CommGrow);
    if (!oh_entry_is_active() || !newcomm || (comm ? !parent : !id)) {
        return REAL(real, CommGrow(comm, nranks, id, rank, newcomm, config));
    }
    struct oh_creation creation;
    begin_growing(&creation, parent, id, config, newcomm);
    ncclResult_t res = REAL(real, CommGrow(comm, nranks, id, rank, newcomm, config));
    if (parent) {
        parent->grows -= oh_entry_is_rejected(res);
    }
    end_creations(real, &creation, 1, res);
    return res;
}

/* --- the end ---------------------------------------------------------------------------------------------------- */

/* In a group NCCL ends it later, with the group; a non-blocking one in the background. */
static void drain(const struct oh_comm *comm)
{
    OH_KEEP_ERRNO();
    if (comm->config.blocking && oh_group_depth() == 0) {
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

static void reclaim(void)
{
    OH_KEEP_ERRNO();
    oh_comms_reclaim();
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    struct oh_comm *ours = active_comm(comm);
    oh_stats_mark_reached();
    GET_REAL_OF(ours, real);
    if (!ours) {
        return real->CommDestroy(comm);
    }
    drain(ours);
    oh_entry_forget(ours);
    ncclResult_t res = REAL(real, CommDestroy(comm));
    reclaim();
    return res;
}

/* So that nobody need ask whose time it was: NCCL's threads may take a second to see an abort (doc/faults.md). */
static void log_times(ncclComm_t comm, uint64_t begin_ns, uint64_t nccl_ns)
{
    OH_KEEP_ERRNO();
    OH_INFO("comm %p: aborted in %.0f ms, of which NCCL took %.0f", (void *)comm,
            (double)(oh_now_ns() - begin_ns) / 1e6, (double)nccl_ns / 1e6);
}

EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    struct oh_comm *ours = active_comm(comm);
    oh_stats_mark_reached();
    GET_REAL_OF(ours, real);
    if (!ours) {
        return real->CommAbort(comm);
    }
    uint64_t begin_ns = oh_now_ns();
    oh_comm_abort(ours); /* kernels leave first: NCCL waits for the device */
    oh_entry_forget(ours);
    uint64_t told_ns = oh_now_ns();
    ncclResult_t res = REAL(real, CommAbort(comm));
    uint64_t ended_ns = oh_now_ns();
    reclaim();
    log_times(comm, begin_ns, ended_ns - told_ns);
    return res;
}

EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    struct oh_comm *ours = active_comm(comm);
    GET_REAL_OF(ours, real);
    NEED_REAL(real, CommRevoke);
    /* NCCL waits for the device, so kernels leave before the call, unless NCCL will reject it: 2.28.9 takes no flags,
     * and no communicator that is finalized or revoked. */
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
