/* SPDX-License-Identifier: MIT */
/*
 * nccl.h - a copy of NCCL, as a table of its functions
 *
 * Does: Lists the functions of NCCL that onehop exports or calls, and calls them. src/interpose fills two tables for
 *    each copy of NCCL in the process: NCCL's own functions, and those that the program would call without onehop. They
 *    differ where a tool defines ncclX, and calls pncclX, as NCCL documents.
 * Threads: any.
 * Owns: nothing; src/interpose has the tables, which are never freed.
 */
#ifndef OH_COMM_NCCL_H_
#define OH_COMM_NCCL_H_

#include <nccl.h>
#include <stdbool.h>

/*
 * X(name without the prefix, parameters, arguments); all return ncclResult_t. onehop exports a function for each name,
 * except the queries. NCCL 2.19 has all but the optional functions. Most calls begin with OH_FROM_TO.
 */
#define OH_FROM_TO const void *from, void *to, size_t count, ncclDataType_t type
#define OH_FROM_TO_OP OH_FROM_TO, ncclRedOp_t op
#define OH_ON_STREAM(...) (__VA_ARGS__, ncclComm_t comm, cudaStream_t stream)
#define OH_WITH_CONFIG(...) (__VA_ARGS__, ncclComm_t comm, cudaStream_t stream, const oh_nccl_call_config *config)
#define OH_NCCL_REQUIRED(X)                                                                                            \
    X(CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank), (comm, nranks, id, rank))              \
    X(CommInitRankConfig, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config),            \
      (comm, nranks, id, rank, config))                                                                                \
    X(CommInitAll, (ncclComm_t * comms, int count, const int *devices), (comms, count, devices))                       \
    X(CommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config),                        \
      (comm, color, key, made, config))                                                                                \
    X(CommFinalize, (ncclComm_t comm), (comm))                                                                         \
    X(CommDestroy, (ncclComm_t comm), (comm))                                                                          \
    X(CommAbort, (ncclComm_t comm), (comm))                                                                            \
    X(CommGetAsyncError, (ncclComm_t comm, ncclResult_t * error), (comm, error))                                       \
    X(AllReduce, OH_ON_STREAM(OH_FROM_TO_OP), (from, to, count, type, op, comm, stream))                               \
    X(RedOpCreatePreMulSum,                                                                                            \
      (ncclRedOp_t * op, void *scalar, ncclDataType_t type, ncclScalarResidence_t where, ncclComm_t comm),             \
      (op, scalar, type, where, comm))                                                                                 \
    X(RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm), (op, comm))                                                     \
    X(GroupStart, (void), ())                                                                                          \
    X(GroupEnd, (void), ())

#define OH_NCCL_OPTIONAL(X)                                                                                            \
    X(GroupSimulateEnd, (struct ncclSimInfo_v22200 * info), (info))                                                    \
    X(CommInitRankScalable,                                                                                            \
      (ncclComm_t * comm, int nranks, int rank, int count, ncclUniqueId *ids, ncclConfig_t *config),                   \
      (comm, nranks, rank, count, ids, config))                                                                        \
    X(CommGrow,                                                                                                        \
      (ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *made, ncclConfig_t *config),         \
      (comm, nranks, id, rank, made, config))                                                                          \
    X(CommRevoke, (ncclComm_t comm, int flags), (comm, flags))                                                         \
    X(CommShrink, (ncclComm_t comm, int *excluded, int count, ncclComm_t *made, ncclConfig_t *config, int flags),      \
      (comm, excluded, count, made, config, flags))                                                                    \
    X(Reduce, OH_ON_STREAM(OH_FROM_TO_OP, int root), (from, to, count, type, op, root, comm, stream))                  \
    X(Bcast, OH_ON_STREAM(void *data, size_t count, ncclDataType_t type, int root),                                    \
      (data, count, type, root, comm, stream))                                                                         \
    X(Broadcast, OH_ON_STREAM(OH_FROM_TO, int root), (from, to, count, type, root, comm, stream))                      \
    X(ReduceScatter, OH_ON_STREAM(OH_FROM_TO_OP), (from, to, count, type, op, comm, stream))                           \
    X(AllGather, OH_ON_STREAM(OH_FROM_TO), (from, to, count, type, comm, stream))                                      \
    X(Send, OH_ON_STREAM(const void *from, size_t count, ncclDataType_t type, int peer),                               \
      (from, count, type, peer, comm, stream))                                                                         \
    X(Recv, OH_ON_STREAM(void *to, size_t count, ncclDataType_t type, int peer),                                       \
      (to, count, type, peer, comm, stream))                                                                           \
    X(AlltoAll, OH_ON_STREAM(OH_FROM_TO), (from, to, count, type, comm, stream))                                       \
    X(Gather, OH_ON_STREAM(OH_FROM_TO, int root), (from, to, count, type, root, comm, stream))                         \
    X(Scatter, OH_ON_STREAM(OH_FROM_TO, int root), (from, to, count, type, root, comm, stream))                        \
    X(CommSuspend, (ncclComm_t comm, int flags), (comm, flags))                                                        \
    X(AllReduceConfig, OH_WITH_CONFIG(OH_FROM_TO_OP), (from, to, count, type, op, comm, stream, config))               \
    X(ReduceConfig, OH_WITH_CONFIG(OH_FROM_TO_OP, int root), (from, to, count, type, op, root, comm, stream, config))  \
    X(BroadcastConfig, OH_WITH_CONFIG(OH_FROM_TO, int root), (from, to, count, type, root, comm, stream, config))      \
    X(ReduceScatterConfig, OH_WITH_CONFIG(OH_FROM_TO_OP), (from, to, count, type, op, comm, stream, config))           \
    X(AllGatherConfig, OH_WITH_CONFIG(OH_FROM_TO), (from, to, count, type, comm, stream, config))                      \
    X(AlltoAllConfig, OH_WITH_CONFIG(OH_FROM_TO), (from, to, count, type, comm, stream, config))                       \
    X(GatherConfig, OH_WITH_CONFIG(OH_FROM_TO, int root), (from, to, count, type, root, comm, stream, config))         \
    X(ScatterConfig, OH_WITH_CONFIG(OH_FROM_TO, int root), (from, to, count, type, root, comm, stream, config))

/* Called by onehop, not exported by it. */
#define OH_NCCL_QUERIES(X)                                                                                             \
    X(CommCount, (const ncclComm_t, int *))                                                                            \
    X(CommCuDevice, (const ncclComm_t, int *))                                                                         \
    X(CommUserRank, (const ncclComm_t, int *))                                                                         \
    X(GetVersion, (int *))

/*
 * What the initializers of ncclConfig_t and ncclCollConfig_t write. NCCL rejects a configuration without it; its size
 * means nothing then (2.28.9, src/init.cc; nccl.h of 2.31).
 */
#define OH_NCCL_CONFIG_MAGIC 0xcafebeef

/* ncclCollConfig_t since NCCL 2.31, a struct that later versions make longer. */
#if NCCL_VERSION_CODE >= 23100
typedef ncclCollConfig_t oh_nccl_call_config;
#else
typedef struct oh_nccl_call_config oh_nccl_call_config;
#endif

struct ncclSimInfo_v22200; /* ncclSimInfo_t since NCCL 2.22; older headers do not have it */

/* nccl.h declares GroupStart and GroupEnd without a prototype, and some other functions only in newer versions. */
#define OH_NCCL_DECLARE(name_, parameters_, ...) ncclResult_t nccl##name_ parameters_;
OH_NCCL_REQUIRED(OH_NCCL_DECLARE)
OH_NCCL_OPTIONAL(OH_NCCL_DECLARE)
#undef OH_NCCL_DECLARE

struct oh_nccl {
    const struct oh_nccl *own;  /* NCCL's own functions */
    const struct oh_nccl *seen; /* those that the program would call */
    bool only_forwards;         /* older than 2.19: required functions may be NULL, no communicator is followed */
#define OH_NCCL_FIELD(name_, parameters_, ...) ncclResult_t(*name_) parameters_;
    OH_NCCL_REQUIRED(OH_NCCL_FIELD)
    OH_NCCL_QUERIES(OH_NCCL_FIELD)
    OH_NCCL_OPTIONAL(OH_NCCL_FIELD) /* NULL where this NCCL has none */
#undef OH_NCCL_FIELD
};

/* Depth of this thread in calls that onehop makes to NCCL: what NCCL calls by public names then passes onehop by. */
extern __thread int oh_nccl_depth __attribute__((visibility("hidden")));

/* Calls a function of NCCL. */
#define OH_NCCL(nccl_, call_)                                                                                          \
    ({                                                                                                                 \
        oh_nccl_depth++;                                                                                               \
        ncclResult_t result_ = (nccl_)->call_;                                                                         \
        oh_nccl_depth--;                                                                                               \
        result_;                                                                                                       \
    })

/* Warns that this NCCL has no such function. Returns ncclInvalidUsage. */
ncclResult_t oh_nccl_refuse_missing(const char *name);

/* True: NCCL has rejected a call, which has not happened. The next call gets its number. */
static inline bool oh_nccl_is_rejected(ncclResult_t res)
{
    return res == ncclInvalidArgument || res == ncclInvalidUsage;
}

#endif
