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

#define CALL(name_, parameters_, arguments_)                                                                           \
    static ncclResult_t call_##name_ parameters_                                                                       \
    {                                                                                                                  \
        return nccl##name_ arguments_;                                                                                 \
    }
REACH_FUNCTIONS(CALL)

/* Only a newer NCCL has it. */
__attribute__((weak)) ncclResult_t ncclAllReduceConfig(const void *send, void *recv, size_t count, ncclDataType_t type,
                                                       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                                       const void *config);

static ncclResult_t all_reduce_config(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                      ncclComm_t comm, cudaStream_t stream)
{
    return reach_configured(ncclAllReduceConfig, send, recv, count, type, op, comm, stream);
}

/* NCCL's documented name for tools; nccl.h declares some only. */
#define CALL_DIRECTLY(name_, parameters_, arguments_)                                                                  \
    ncclResult_t pnccl##name_ parameters_;                                                                             \
    static ncclResult_t direct_##name_ parameters_                                                                     \
    {                                                                                                                  \
        return pnccl##name_ arguments_;                                                                                \
    }
REACH_FUNCTIONS(CALL_DIRECTLY)

#define CALLED(name_, parameters_, arguments_) .name_ = call_##name_,
EXPORT const struct reach_api reach_calls = {REACH_FUNCTIONS(CALLED)};
EXPORT const struct reach_api reach_newer = {call_GetUniqueId,  call_CommInitRank, call_CommDestroy,
                                             all_reduce_config, call_GroupStart,   call_GroupEnd};
#define CALLED_DIRECTLY(name_, parameters_, arguments_) .name_ = direct_##name_,
EXPORT const struct reach_api reach_direct = {REACH_FUNCTIONS(CALLED_DIRECTLY)};
#define ADDRESS(name_, parameters_, arguments_) .name_ = nccl##name_,
EXPORT const struct reach_api reach_addresses = {REACH_FUNCTIONS(ADDRESS)};

EXPORT struct reach_api reach_early, reach_early_dlsym;

__attribute__((constructor)) static void take_addresses(void)
{
    const struct reach_api *volatile table = &reach_addresses; /* as the dynamic linker has bound it */
    void *nccl = dlopen(REACH_LIBRARY, RTLD_NOW);
    if (nccl) {
#define LOOK_UP(name_, parameters_, arguments_)                                                                        \
    reach_early_dlsym.name_ = (__typeof__(reach_early_dlsym.name_))dlsym(nccl, "nccl" #name_);
        REACH_FUNCTIONS(LOOK_UP)
    }
    reach_early = *table;
}
