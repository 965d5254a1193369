/* SPDX-License-Identifier: MIT */
/*
 * reach_nccl.c - a caller that is linked with NCCL: part of a program, or a shared object of its own
 */
#include "reach.h"

#include <dlfcn.h>
#include <string.h>

#define REACH_LIBRARY "libnccl.so.2"

#define EXPORT __attribute__((visibility("default")))

/* nccl.h gives these without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

static ncclResult_t get_unique_id(ncclUniqueId *id)
{
    return ncclGetUniqueId(id);
}

static ncclResult_t comm_init_rank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRank(comm, nranks, id, rank);
}

static ncclResult_t comm_destroy(ncclComm_t comm)
{
    return ncclCommDestroy(comm);
}

static ncclResult_t all_reduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    return ncclAllReduce(send, recv, count, type, op, comm, stream);
}

/* Only a newer NCCL has it. */
__attribute__((weak)) ncclResult_t ncclAllReduceConfig(const void *send, void *recv, size_t count, ncclDataType_t type,
                                                       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                                       const void *config);

static ncclResult_t all_reduce_config(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                      ncclComm_t comm, cudaStream_t stream)
{
    return ncclAllReduceConfig(send, recv, count, type, op, comm, stream, NULL);
}

static ncclResult_t group_start(void)
{
    return ncclGroupStart();
}

static ncclResult_t group_end(void)
{
    return ncclGroupEnd();
}

EXPORT const struct reach_api reach_calls = {get_unique_id, comm_init_rank, comm_destroy,
                                             all_reduce,    group_start,    group_end};
EXPORT const struct reach_api reach_newer = {get_unique_id,     comm_init_rank, comm_destroy,
                                             all_reduce_config, group_start,    group_end};
EXPORT const struct reach_api reach_addresses = {ncclGetUniqueId, ncclCommInitRank, ncclCommDestroy,
                                                 ncclAllReduce,   ncclGroupStart,   ncclGroupEnd};

EXPORT struct reach_api reach_early, reach_early_dlsym;

__attribute__((constructor)) static void take_addresses(void)
{
    const struct reach_api *volatile table = &reach_addresses; /* as the dynamic linker has bound it */
    void *nccl = dlopen(REACH_LIBRARY, RTLD_NOW);
    if (nccl) {
        void *address[] = {dlsym(nccl, "ncclGetUniqueId"), dlsym(nccl, "ncclCommInitRank"),
                           dlsym(nccl, "ncclCommDestroy"), dlsym(nccl, "ncclAllReduce"),
                           dlsym(nccl, "ncclGroupStart"),  dlsym(nccl, "ncclGroupEnd")};
        memcpy(&reach_early_dlsym, address, sizeof address);
    }
    reach_early = *table;
}
