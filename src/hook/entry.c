/* SPDX-License-Identifier: MIT */
/*
 * entry.c - the nccl* functions that applications call when libonehop.so stands in front of NCCL
 *
 * Each looks up the real library, does onehop's part, and forwards. Nothing is done before the first communicator is
 * created; in a process forked from one that uses onehop, and with ONEHOP_DISABLE=1, everything is forwarded. Calls
 * that NCCL makes to its own public names (facts about which: doc/design.md) pass straight through: `oh_inside` counts
 * how deep this thread is in NCCL on our behalf. errno is as NCCL left it, or as it was.
 */
#include "hook/entry.h"

#include <errno.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "comm/attach/attach.h"
#include "comm/attach/end.h"
#include "comm/watch/failure.h"
#include "hook/comm_config.h"
#include "hook/initial_comm.h"
#include "hook/group.h"
#include "hook/real.h"
#include "onehop/onehop.h"
#include "util/clock.h"
#include "util/env.h"
#include "util/log.h"

#define EXPORT __attribute__((visibility("default")))

/* nccl.h gives the first two without a prototype, and the others only in newer versions. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclGroupSimulateEnd(struct ncclSimInfo_v22200 *info);
ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int rank, int count, ncclUniqueId *ids,
                                      ncclConfig_t *config);
ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                          ncclConfig_t *config);
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *newcomm, ncclConfig_t *config,
                            int flags);

__thread int oh_inside;
static atomic_bool forked;

/* Calls the real function with NCCL's own calls to public names let through. */
#define REAL(real_, call_)                                                                                             \
    ({                                                                                                                 \
        oh_inside++;                                                                                                   \
        ncclResult_t result_ = (real_)->call_;                                                                         \
        oh_inside--;                                                                                                   \
        result_;                                                                                                       \
    })

/* Gets the real library or returns its error from the entry point. */
#define GET_REAL(real_)                                                                                                \
    const struct oh_real *real_;                                                                                       \
    do {                                                                                                               \
        ncclResult_t got_ = oh_real_get(&real_, __builtin_return_address(0));                                          \
        if (got_ != ncclSuccess) {                                                                                     \
            return got_;                                                                                               \
        }                                                                                                              \
    } while (0)

static void after_fork_in_child(void)
{
    atomic_store_explicit(&forked, true, memory_order_relaxed);
}

static bool disabled;

static void start_once(void)
{
    /* A set-user-ID program, which /etc/ld.so.preload reaches, works for somebody else than who has started it. */
    disabled = oh_env_flag(OH_ENV_DISABLE, false) || getauxval(AT_SECURE);
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

/* Does onehop look at this call at all? The first creation of a communicator is what starts it. */
static bool is_active(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (oh_inside > 0 || atomic_load_explicit(&forked, memory_order_relaxed)) {
        return false;
    }
    pthread_once(&once, start_once);
    return !disabled;
}

/* Forgets the communicator before NCCL frees it: NCCL may give the same pointer to another thread at once. */
static void forget(struct oh_comm *comm)
{
    int saved = errno;
    oh_initial_comm_forget(comm);
    oh_group_forget(comm);
    oh_comm_retire(comm);
    errno = saved;
}

static struct oh_comm *find_comm(ncclComm_t comm, const void *caller, bool counts)
{
    if (oh_inside > 0 || atomic_load_explicit(&forked, memory_order_relaxed)) {
        return NULL;
    }
    bool awaited = atomic_load_explicit(&oh_initial_comm_expected,
                                        memory_order_acquire); /* before the search: see initial_comm.c */
    struct oh_comm *ours = oh_comm_find(comm);
    if (!ours && awaited && is_active()) {
        oh_inside++;
        ours = oh_initial_comm_find(comm, caller, counts);
        oh_inside--;
    }
    if (ours && ours == atomic_load_explicit(&oh_initial_comm, memory_order_acquire) &&
        atomic_load_explicit(&oh_initial_comm_is_stale, memory_order_relaxed)) {
        forget(ours);
        ours = NULL;
    }
    return ours;
}

#define active_comm(comm_) find_comm((comm_), __builtin_return_address(0), false)

/* The NCCL that made a communicator, or the one that the caller means for one that onehop does not know. */
static ncclResult_t real_of(const struct oh_comm *comm, const struct oh_real **real_p, const void *caller)
{
    if (comm) {
        *real_p = comm->library;
        return ncclSuccess;
    }
    return oh_real_get(real_p, caller);
}

#define GET_REAL_OF(comm_, real_)                                                                                      \
    const struct oh_real *real_;                                                                                       \
    do {                                                                                                               \
        ncclResult_t got_ = real_of((comm_), &real_, __builtin_return_address(0));                                     \
        if (got_ != ncclSuccess) {                                                                                     \
            return got_;                                                                                               \
        }                                                                                                              \
    } while (0)

/* --- creation --------------------------------------------------------------------------------------------------- */

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
    int saved = errno;
    oh_stats_mark_reached();
    oh_initial_comm_creation_begin();
    oh_creation_begin(creation, key, &config, nccl_p);
    errno = saved;
}

/* NCCL has taken the call for a mistake: it has not happened, and its number is that of the next. */
static bool is_rejected(ncclResult_t res)
{
    return res == ncclInvalidArgument || res == ncclInvalidUsage;
}

/* After the real creator: completes the creations now, or at the end of the group. */
static void end_creations(const struct oh_real *real, struct oh_creation *creations, size_t count, ncclResult_t res)
{
    int saved = errno;
    bool created = res == ncclSuccess || res == ncclInProgress;
    if (created && oh_group_depth() == 0) {
        bool later = res == ncclSuccess && count == 1 && is_in_progress(real, creations);
        oh_inside++;
        oh_creations_finish(real, creations, count, later ? ncclInProgress : res);
        oh_inside--;
    } else {
        for (size_t i = 0; i < count; i++) {
            if (!created || !oh_group_add_creation(&creations[i])) {
                oh_creation_cancel(&creations[i]);
            }
        }
    }
    errno = saved;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    GET_REAL(real);
    if (!is_active()) {
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
    if (!is_active()) {
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
    if (!real->CommInitRankScalable) {
        OH_WARN("this NCCL has no ncclCommInitRankScalable");
        return ncclInvalidUsage;
    }
    if (!is_active() || !ids || count < 1 || count > nranks) {
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
    struct oh_creation *creations = is_active() && comms && ndev > 0 ? calloc((size_t)ndev, sizeof *creations) : NULL;
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
    parent->splits -= is_rejected(res);
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
    if (!real->CommShrink) {
        OH_WARN("this NCCL has no ncclCommShrink");
        return ncclInvalidUsage;
    }
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
    parent->shrinks -= is_rejected(res);
    end_creations(real, &creation, 1, res);
    return res;
}

/* Ranks of the parent come with it, new ranks without; of the former only one needs to have the id. */
EXPORT ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                                 ncclConfig_t *config)
{
    struct oh_comm *parent = active_comm(comm);
    GET_REAL_OF(parent, real);
    if (!real->CommGrow) {
        OH_WARN("this NCCL has no ncclCommGrow");
        return ncclInvalidUsage;
    }
    if (!is_active() || !newcomm || (comm ? !parent : !id)) {
        return REAL(real, CommGrow(comm, nranks, id, rank, newcomm, config));
    }
    struct oh_creation creation;
    int saved = errno;
    oh_initial_comm_creation_begin();
    const struct oh_comm_config read = oh_config_read(config, parent ? &parent->config : NULL);
    oh_creation_begin_grow(&creation, parent, id, &read, newcomm);
    errno = saved;
    ncclResult_t res = REAL(real, CommGrow(comm, nranks, id, rank, newcomm, config));
    if (parent) {
        parent->grows -= is_rejected(res);
    }
    end_creations(real, &creation, 1, res);
    return res;
}

/* --- the end ---------------------------------------------------------------------------------------------------- */

/* In a group NCCL ends it later, with the group; a non-blocking one in the background. */
static void drain(const struct oh_comm *comm)
{
    int saved = errno;
    if (comm->config.blocking && oh_group_depth() == 0) {
        oh_comm_drain(comm);
    }
    errno = saved;
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

static void reap(void)
{
    int saved = errno;
    oh_comms_reclaim();
    errno = saved;
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
    forget(ours);
    ncclResult_t res = REAL(real, CommDestroy(comm));
    reap();
    return res;
}

/* So that nobody need ask whose time it was: NCCL's threads may take a second to see an abort (doc/faults.md). */
static void tell_times(ncclComm_t comm, uint64_t begin_ns, uint64_t nccl_ns)
{
    int saved = errno;
    OH_INFO("comm %p: aborted in %.0f ms, of which NCCL took %.0f", (void *)comm,
            (double)(oh_now_ns() - begin_ns) / 1e6, (double)nccl_ns / 1e6);
    errno = saved;
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
    forget(ours);
    uint64_t told_ns = oh_now_ns();
    ncclResult_t res = REAL(real, CommAbort(comm));
    uint64_t ended_ns = oh_now_ns();
    reap();
    tell_times(comm, begin_ns, ended_ns - told_ns);
    return res;
}

EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    struct oh_comm *ours = active_comm(comm);
    GET_REAL_OF(ours, real);
    if (!real->CommRevoke) {
        OH_WARN("this NCCL has no ncclCommRevoke");
        return ncclInvalidUsage;
    }
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

/* --- calls ------------------------------------------------------------------------------------------------------ */

/* Gives a result of a call in a group, whose failure is that of the group. */
static ncclResult_t in_group(const struct oh_comm *comm, ncclResult_t res)
{
    if (res != ncclSuccess) {
        const struct oh_real *real = comm->library;
        oh_inside++;
        oh_group_fail(real, comm, res);
        oh_inside--;
    }
    return res;
}

/*
 * NCCL may still be launching an earlier call, of a non-blocking communicator that the application has not asked about.
 * Then it takes no other (ncclCommEnsureReady, src/init.cc of 2.28.9), and so does onehop.
 */
static ncclResult_t check_launched(struct oh_comm *comm)
{
    const struct oh_real *real = comm->library;
    ncclResult_t state = ncclInProgress;
    if (REAL(real, CommGetAsyncError(comm->nccl, &state)) != ncclSuccess) {
        return ncclSuccess;
    }
    if (state == ncclInProgress) {
        OH_WARN("comm %p: a call before ncclCommGetAsyncError has said that the one before is launched",
                (void *)comm->nccl);
        return ncclInvalidArgument;
    }
    oh_order_nccl_launched(comm);
    return state;
}

static ncclResult_t serve(const struct oh_call *call)
{
    int saved = errno;
    ncclResult_t res = ncclSuccess;
    oh_comm_begin_use(call->comm);
    if (oh_comm_is_launching(call->comm)) {
        res = check_launched(call->comm);
    }
    if (res == ncclSuccess) {
        res = oh_group_depth() > 0 ? in_group(call->comm, oh_group_add_call(call)) : oh_call_launch(call);
    }
    oh_comm_end_use(call->comm);
    errno = saved;
    return res;
}

/* Before and after NCCL gets a call of a communicator of which others are served; in a group, both are at its end. */
static ncclResult_t begin_fallback(struct oh_comm *comm, CUstream stream, bool allreduce, struct oh_nccl_call *call_p)
{
    int saved = errno;
    ncclResult_t res = ncclSuccess;
    if (oh_group_depth() > 0) {
        res = in_group(comm, oh_group_add_stream(comm, stream, allreduce ? OH_CALL_NCCL_ALLREDUCE : OH_CALL_NCCL));
    } else {
        oh_order_before_nccl(comm, stream, allreduce, call_p);
    }
    errno = saved;
    return res;
}

/* Returns the result of the call: NCCL's, unless onehop has failed to put it in order. */
static ncclResult_t end_fallback(struct oh_comm *comm, struct oh_nccl_call *call, ncclResult_t res)
{
    int saved = errno;
    ncclResult_t ordered = ncclSuccess;
    if (oh_group_depth() == 0 && res == ncclSuccess) {
        ordered = oh_order_after_nccl(comm, call);
    } else if (oh_group_depth() == 0 && res == ncclInProgress) {
        ordered = oh_order_after_nccl_async(comm, call);
    }
    errno = saved;
    return ordered == ncclSuccess ? res : ordered;
}

static ncclResult_t fall_back(const struct oh_call *call, ncclRedOp_t op)
{
    struct oh_comm *comm = call->comm;
    const struct oh_real *real = comm->library;
    const bool works = call->count > 0, ordered = works && oh_comm_is_ordered(comm);
    struct oh_nccl_call nccl_call = {.result = CUDA_SUCCESS};
    ncclResult_t failure = oh_comm_failure(comm);
    if (failure != ncclSuccess) {
        return oh_group_depth() > 0 ? in_group(comm, failure) : failure;
    }
    oh_comm_count_fallback(comm, call->count, call->type, op);
    if (works && oh_group_depth() > 0) {
        oh_group_note_forwarded(comm);
    }
    ncclResult_t res = ordered ? begin_fallback(comm, call->stream, true, &nccl_call) : ncclSuccess;
    if (res != ncclSuccess) {
        return res;
    }
    res = REAL(real, AllReduce(call->sendbuff, call->recvbuff, call->count, call->type, op, comm->nccl,
                               (cudaStream_t)call->stream));
    if (works && !is_rejected(res)) {
        oh_attach_note_work(comm);
    }
    return ordered ? end_fallback(comm, &nccl_call, res) : res;
}

ncclResult_t oh_forward_begin(ncclComm_t comm, cudaStream_t stream, bool works, const void *caller,
                              struct oh_forward *forward_p)
{
    struct oh_comm *ours = find_comm(comm, caller, false);
    struct oh_forward forward = {.comm = NULL};
    ncclResult_t res = real_of(ours, &forward.real, caller);
    if (res == ncclSuccess && ours) {
        /* A departed peer alone is no error here: it may have no part in this call. */
        res = (ncclResult_t)atomic_load_explicit(&ours->failure, memory_order_acquire);
        res = oh_group_depth() > 0 ? in_group(ours, res) : res;
    }
    if (res == ncclSuccess && ours && works) {
        oh_attach_note_work(ours);
    }
    if (res == ncclSuccess && ours && works && oh_group_depth() > 0) {
        oh_group_note_forwarded(ours);
    }
    if (res == ncclSuccess && ours && works && oh_comm_is_ordered(ours)) {
        forward.comm = ours;
        oh_comm_begin_use(ours);
        res = begin_fallback(ours, (CUstream)stream, false, &forward.nccl_call);
        if (res != ncclSuccess) {
            oh_comm_end_use(ours);
        }
    }
    if (res == ncclSuccess) {
        *forward_p = forward;
        oh_inside++;
    }
    return res;
}

ncclResult_t oh_forward_end(struct oh_forward *forward, ncclResult_t result)
{
    oh_inside--;
    if (forward->comm) {
        result = end_fallback(forward->comm, &forward->nccl_call, result);
        oh_comm_end_use(forward->comm);
    }
    return result;
}

/* NCCL may have finished the creation since. */
static void check_creation(struct oh_comm *comm)
{
    const struct oh_real *real = comm->library;
    ncclResult_t state = ncclInProgress;
    int saved = errno;
    if (oh_comm_is_awaited(comm) && REAL(real, CommGetAsyncError(comm->nccl, &state)) == ncclSuccess) {
        oh_inside++;
        oh_creations_poll(real, comm, state);
        oh_inside--;
    }
    errno = saved;
}

/*
 * Serves the call, or falls back. While the communicator is not settled, the call is counted, unless it has no
 * elements: NCCL does nothing then, so that a program may make such a call on some ranks only.
 */
static ncclResult_t route(struct oh_call *call, ncclRedOp_t op)
{
    struct oh_comm *comm = call->comm;
    const bool settled = oh_comm_is_settled(comm), counts = !settled && call->count > 0;
    const bool counted = counts && atomic_load_explicit(&comm->created, memory_order_acquire);
    if ((counted ? oh_attach_decide(comm) : settled) && oh_call_decide(call, op)) {
        return serve(call);
    }
    oh_comm_begin_use(comm); /* NCCL may block */
    ncclResult_t res = fall_back(call, op);
    if (counts) {
        oh_attach_note_result(comm, counted, res);
    }
    oh_comm_end_use(comm);
    return res;
}

/* One of a communicator's first calls, until it is settled. In a group it is decided at the end of that. */
static ncclResult_t attach(struct oh_call *call, ncclRedOp_t op)
{
    struct oh_comm *comm = call->comm;
    int saved = errno;
    ncclResult_t res;
    check_creation(comm);
    oh_comm_begin_use(comm); /* another thread may abort it while this one waits */
    const bool wanted = oh_attach_wants(call, op), grouped = oh_group_depth() > 0;
    if (wanted) {
        oh_attach_begin(comm, call->stream);
    }
    if (wanted && grouped) {
        res = in_group(comm, oh_group_defer(call, op));
    } else {
        if (wanted) {
            oh_attach_wait(&comm, 1);
        }
        errno = saved;
        /* Aborted by another thread while this one waited, it is not NCCL's any more, whose calls return this then. */
        res = atomic_load(&comm->aborted) ? ncclInternalError : route(call, op);
    }
    oh_comm_end_use(comm);
    return res;
}

static ncclResult_t destroy_op(struct oh_comm *comm, ncclRedOp_t op)
{
    const struct oh_real *real = comm->library;
    ncclResult_t res = REAL(real, RedOpDestroy(op, comm->nccl));
    if (res == ncclSuccess) {
        int saved = errno;
        oh_comm_op_remove(comm, op);
        errno = saved;
    }
    return res;
}

/* The outermost group ends: its first calls are decided. What fails is the group's failure. */
static void route_deferred(void)
{
    size_t count;
    int saved = errno;
    struct oh_deferred *deferred = oh_group_depth() == 1 ? oh_group_take_deferred(&count) : NULL;
    struct oh_comm **comms = deferred ? calloc(count, sizeof(void *)) : NULL;
    if (!deferred) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        oh_comm_begin_use(deferred[i].call.comm);
    }
    if (comms) { /* else the calls do not wait */
        for (size_t i = 0; i < count; i++) {
            comms[i] = deferred[i].call.comm;
        }
        oh_attach_wait(comms, count);
    }
    errno = saved;
    for (size_t i = 0; i < count; i++) {
        if (!atomic_load(&deferred[i].call.comm->aborted)) { /* else it is not NCCL's any more */
            route(&deferred[i].call, deferred[i].op);
        }
    }
    saved = errno;
    for (size_t i = 0; i < count; i++) {
        if (deferred[i].op_ends && !atomic_load(&deferred[i].call.comm->aborted)) {
            destroy_op(deferred[i].call.comm, deferred[i].op);
        }
        oh_comm_end_use(deferred[i].call.comm);
    }
    free(comms);
    free(deferred);
    errno = saved;
}

EXPORT ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    struct oh_comm *ours = find_comm(comm, __builtin_return_address(0), true);
    if (ours) {
        struct oh_call call = {.comm = ours,
                               .sendbuff = sendbuff,
                               .recvbuff = recvbuff,
                               .count = count,
                               .type = type,
                               .stream = (CUstream)stream};
        return oh_comm_is_settled(ours) ? route(&call, op) : attach(&call, op);
    }
    if (oh_inside == 0) {
        oh_stats_count_unknown();
    }
    GET_REAL(real);
    return REAL(real, AllReduce(sendbuff, recvbuff, count, type, op, comm, stream));
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    struct oh_comm *ours = active_comm(comm);
    GET_REAL_OF(ours, real);
    ncclResult_t res = REAL(real, CommGetAsyncError(comm, error));
    if (ours && res == ncclSuccess && *error != ncclInProgress && oh_comm_is_launching(ours)) {
        int saved = errno;
        oh_order_nccl_launched(ours);
        errno = saved;
    }
    if (ours && res == ncclSuccess && oh_comm_is_awaited(ours)) {
        int saved = errno;
        oh_inside++;
        oh_creations_poll(real, ours, *error);
        oh_inside--;
        errno = saved;
    }
    if (ours && res == ncclSuccess && (*error == ncclSuccess || *error == ncclInProgress)) {
        /* Once it is being ended, NCCL tells how that goes. */
        ncclResult_t failure = atomic_load_explicit(&ours->failure, memory_order_acquire);
        *error = failure != ncclSuccess && oh_comm_is_in_use(ours) ? failure : *error;
    }
    return res;
}

/* onehop keeps what the op means, since its handle is NCCL's secret. */
EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                             ncclScalarResidence_t residence, ncclComm_t comm)
{
    struct oh_comm *ours = active_comm(comm);
    GET_REAL_OF(ours, real);
    ncclResult_t res = REAL(real, RedOpCreatePreMulSum(op, scalar, type, residence, comm));
    if (ours && res == ncclSuccess) {
        int saved = errno;
        res = oh_comm_op_add(ours, *op, type, scalar, residence == ncclScalarDevice);
        if (res != ncclSuccess) { /* a rank that does not know the op would decide otherwise than the rest */
            REAL(real, RedOpDestroy(*op, comm));
        }
        errno = saved;
    }
    return res;
}

EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    struct oh_comm *ours = active_comm(comm);
    GET_REAL_OF(ours, real);
    if (!ours) {
        return REAL(real, RedOpDestroy(op, comm));
    }
    return oh_group_keeps_op(ours, op) ? ncclSuccess : destroy_op(ours, op);
}

EXPORT ncclResult_t ncclGroupStart(void)
{
    GET_REAL(real);
    ncclResult_t res = REAL(real, GroupStart());
    if (res == ncclSuccess && oh_inside == 0) {
        oh_group_enter();
    }
    return res;
}

static ncclResult_t end_group(const struct oh_real *real, void *unused)
{
    (void)unused;
    return REAL(real, GroupEnd());
}

static ncclResult_t simulate_group(const struct oh_real *real, void *info)
{
    return REAL(real, GroupSimulateEnd(info));
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
    GET_REAL(real);
    if (oh_inside > 0) {
        return real->GroupEnd();
    }
    route_deferred();
    return oh_group_leave(real, end_group, NULL, false);
}

EXPORT ncclResult_t ncclGroupSimulateEnd(struct ncclSimInfo_v22200 *info)
{
    GET_REAL(real);
    if (!real->GroupSimulateEnd) {
        OH_WARN("this NCCL has no ncclGroupSimulateEnd");
        return ncclInvalidUsage;
    }
    if (oh_inside > 0) {
        return real->GroupSimulateEnd(info);
    }
    route_deferred();
    return oh_group_leave(real, simulate_group, info, true);
}

/* --- public API and the end of the process ---------------------------------------------------------------------- */

EXPORT int onehopVersion(void)
{
    return ONEHOP_VERSION_CODE;
}

EXPORT const char *onehopAlgorithmName(int algorithm)
{
    return oh_algorithm_name(algorithm);
}

EXPORT const char *onehopFallbackName(int reason)
{
    return oh_fallback_name(reason);
}

EXPORT const char *onehopFallbackText(int reason)
{
    return oh_fallback_text(reason);
}

EXPORT int onehopProcessInfo(onehop_process_info_t *info, size_t size)
{
    onehop_process_info_t full;
    if (!info) {
        return -1;
    }
    oh_comms_describe(&full);
    memcpy(info, &full, size < sizeof full ? size : sizeof full);
    return 0;
}

EXPORT int onehopCommInfo(const void *nccl_comm, onehop_comm_info_t *info, size_t size)
{
    struct oh_comm *comm = oh_comm_find((ncclComm_t)nccl_comm);
    onehop_comm_info_t full;
    if (!comm || !info) {
        return -1;
    }
    oh_comm_describe(comm, &full);
    memcpy(info, &full, size < sizeof full ? size : sizeof full);
    return 0;
}

__attribute__((destructor)) static void leave_at_exit(void)
{
    if (!atomic_load_explicit(&forked, memory_order_relaxed)) {
        oh_comms_print_stats();
        oh_comms_end_process();
    }
}
