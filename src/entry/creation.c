/* SPDX-License-Identifier: MIT */
/*
 * creation.c - the NCCL functions that create communicators
 *
 * Does: Counts this rank in before NCCL creates a communicator, and registers it after.
 * Threads: any, by NCCL's own rules.
 * Owns: nothing.
 */
#include "comm/comm.h"
#include "entry/entry.h"

/* Returns whether onehop takes part in what this NCCL creates. */
static bool is_active_with(const struct oh_nccl *nccl)
{
    return oh_entry_is_active() && !nccl->only_forwards;
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

OH_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    const struct oh_nccl *nccl;
    OH_TRY(oh_real_get(OH_CALLER(), &nccl));
    if (!is_active_with(nccl)) {
        return nccl->CommInitRank(comm, nranks, id, rank);
    }
    struct oh_comm *created = begin_creation(NULL, oh_key_of_ids(&id, 1), NULL, comm);
    return oh_creations_end(nccl->own, created, OH_NCCL(nccl, CommInitRank(comm, nranks, id, rank)));
}

OH_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                              ncclConfig_t *config)
{
    const struct oh_nccl *nccl;
    OH_TRY(oh_real_get(OH_CALLER(), &nccl));
    if (!is_active_with(nccl)) {
        return nccl->CommInitRankConfig(comm, nranks, id, rank, config);
    }
    struct oh_comm *created = begin_creation(NULL, oh_key_of_ids(&id, 1), config, comm);
    return oh_creations_end(nccl->own, created, OH_NCCL(nccl, CommInitRankConfig(comm, nranks, id, rank, config)));
}

OH_EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int count, ncclUniqueId *ids,
                                                ncclConfig_t *config)
{
    const struct oh_nccl *nccl;
    OH_TRY(oh_real_get(OH_CALLER(), &nccl));
    OH_TRY(nccl->CommInitRankScalable ? ncclSuccess : oh_nccl_refuse_missing("ncclCommInitRankScalable"));
    if (!is_active_with(nccl) || !ids || count < 1 || count > nranks) {
        return OH_NCCL(nccl, CommInitRankScalable(comm, nranks, rank, count, ids, config));
    }
    struct oh_comm *created = begin_creation(NULL, oh_key_of_ids(ids, count), config, comm);
    ncclResult_t res = OH_NCCL(nccl, CommInitRankScalable(comm, nranks, rank, count, ids, config));
    return oh_creations_end(nccl->own, created, res);
}

/* All ranks are in this process, and have a key of their own. */
OH_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ndev, const int *devices)
{
    const struct oh_nccl *nccl;
    OH_TRY(oh_real_get(OH_CALLER(), &nccl));
    if (!is_active_with(nccl) || !comms) {
        return nccl->CommInitAll(comms, ndev, devices);
    }
    struct oh_key key = oh_key_random();
    struct oh_comm *list = NULL;
    for (int i = 0; i < ndev; i++) {
        struct oh_comm *created = begin_creation(NULL, key, NULL, &comms[i]);
        if (created) {
            oh_creations_append(&list, created);
        }
    }
    return oh_creations_end(nccl->own, list, OH_NCCL(nccl, CommInitAll(comms, ndev, devices)));
}

OH_EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int order, ncclComm_t *newcomm, ncclConfig_t *config)
{
    OH_COMM_SCOPE(parent);
    const struct oh_nccl *nccl;
    OH_TRY(oh_handle_find(comm, OH_CALLER(), false, &parent, &nccl));
    if (!parent) {
        return nccl->CommSplit(comm, color, order, newcomm, config);
    }
    uint64_t sequence = oh_comm_id(parent)->child_count++; /* the same on all ranks, those without a colour too */
    struct oh_comm *created = NULL;
    if (color != NCCL_SPLIT_NOCOLOR && newcomm) {
        created = begin_creation(parent, oh_key_of_split(&oh_comm_id(parent)->key, sequence, color), config, newcomm);
    }
    ncclResult_t res = OH_NCCL(nccl, CommSplit(comm, color, order, newcomm, config));
    oh_comm_id(parent)->child_count -= oh_nccl_is_rejected(res);
    return oh_creations_end(nccl->own, created, res);
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
OH_EXPORT ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *newcomm,
                                      ncclConfig_t *config, int flags)
{
    OH_COMM_SCOPE(parent);
    const struct oh_nccl *nccl;
    OH_TRY(oh_handle_find(comm, OH_CALLER(), false, &parent, &nccl));
    OH_TRY(nccl->CommShrink ? ncclSuccess : oh_nccl_refuse_missing("ncclCommShrink"));
    if (!parent || !can_shrink(parent, excluded, count, newcomm)) {
        return OH_NCCL(nccl, CommShrink(comm, excluded, count, newcomm, config, flags));
    }
    if (flags & 1) {
        oh_comm_abort(parent);
    }
    uint64_t *shrinks = oh_comm_shrinks(parent, excluded, count);
    struct oh_key key = shrinks ? oh_key_of_shrink(&oh_comm_id(parent)->key, (*shrinks)++, excluded, count)
                                : oh_key_random(); /* that of no other rank: all fall back */
    struct oh_comm *created = begin_creation(parent, key, config, newcomm);
    ncclResult_t res = OH_NCCL(nccl, CommShrink(comm, excluded, count, newcomm, config, flags));
    if (shrinks) {
        *shrinks -= oh_nccl_is_rejected(res);
    }
    return oh_creations_end(nccl->own, created, res);
}

/* Ranks of the parent pass it, and one of them or all the id; new ranks pass the id. */
OH_EXPORT ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                                    ncclConfig_t *config)
{
    OH_COMM_SCOPE(parent);
    const struct oh_nccl *nccl;
    OH_TRY(oh_handle_find(comm, OH_CALLER(), false, &parent, &nccl));
    OH_TRY(nccl->CommGrow ? ncclSuccess : oh_nccl_refuse_missing("ncclCommGrow"));
    if (!is_active_with(nccl) || !newcomm || (comm ? !parent : !id)) {
        return OH_NCCL(nccl, CommGrow(comm, nranks, id, rank, newcomm, config));
    }
    const struct oh_key key = id ? oh_key_of_ids(id, 1) : (struct oh_key){{0}};
    struct oh_comm *created = begin_any_creation(parent, id ? &key : NULL, config, newcomm, true);
    ncclResult_t res =
        oh_creations_end(nccl->own, created, OH_NCCL(nccl, CommGrow(comm, nranks, id, rank, newcomm, config)));
    if (parent) {
        oh_comm_id(parent)->child_count -= oh_nccl_is_rejected(res);
    }
    return res;
}
