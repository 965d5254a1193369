/* SPDX-License-Identifier: MIT */
/*
 * reach.h - the functions of NCCL that reach.c calls, got in one way or another
 */
#ifndef TEST_E2E_REACH_H_
#define TEST_E2E_REACH_H_

#include <nccl.h>
#include <stdlib.h>
#include <string.h>

/* X(function without "nccl", parameters, arguments) */
#define REACH_FUNCTIONS(X)                                                                                             \
    X(GetUniqueId, (ncclUniqueId * id), (id))                                                                          \
    X(CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank), (comm, nranks, id, rank))              \
    X(CommDestroy, (ncclComm_t comm), (comm))                                                                          \
    X(AllReduce,                                                                                                       \
      (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,               \
       cudaStream_t stream),                                                                                           \
      (send, recv, count, type, op, comm, stream))                                                                     \
    X(GroupStart, (void), ())                                                                                          \
    X(GroupEnd, (void), ())

struct reach_api {
#define REACH_FIELD(name_, parameters_, arguments_) ncclResult_t(*name_) parameters_;
    REACH_FUNCTIONS(REACH_FIELD)
};

/*
 * Exported by objects that are linked with NCCL (reach_nccl.c): through calls, as a table of addresses, as that table
 * was when the object's constructors ran, and what dlsym gave then.
 */
extern const struct reach_api reach_calls;
extern const struct reach_api reach_direct; /* calls of pncclX */
extern const struct reach_api reach_addresses;
extern struct reach_api reach_early, reach_early_dlsym;

/* The beginning of ncclCollConfig_t in NCCL 2.31 and 2.32. */
struct reach_call_config {
    size_t size;
    unsigned magic, version;
    void *extensions;
    int limits[4];
    const char *algorithms;
};
/* A function of NCCL that is newer than this header, and calls through it instead of ncclAllReduce. */
typedef ncclResult_t (*reach_config)(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                     ncclComm_t comm, cudaStream_t stream, const void *config);
extern const struct reach_api reach_newer;

/*
 * Makes a call whose configuration is the program's again when it returns, in an open group, too. REACH_BROKEN: it is
 * one that NCCL rejects, and that must not be looked into.
 */
static inline ncclResult_t reach_configured(reach_config function, const void *send, void *recv, size_t count,
                                            ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    char algorithms[] = "ring";
    struct reach_call_config config = {
        .size = sizeof config, .magic = 0xcafebeef, .version = 23200, .algorithms = algorithms};
    if (getenv("REACH_BROKEN")) {
        config.magic = 0;
        config.algorithms = (const char *)1;
    }
    const ncclResult_t res = function(send, recv, count, type, op, comm, stream, &config);
    memset(algorithms, 'x', sizeof algorithms - 1);
    config.magic = 0xcafebeef;
    config.algorithms = algorithms;
    return res;
}

#endif
