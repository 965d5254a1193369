/* SPDX-License-Identifier: MIT */
/*
 * pnccl_tool.c - a tool for NCCL as NCCL documents it: a preloaded object that defines ncclX and calls pncclX
 *
 * Stands for the functions that reach.c calls, counts calls, and prints the allreduces at exit. TOOL_NEXT: finds the
 * functions by RTLD_NEXT instead.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "reach.h"

#define EXPORT __attribute__((visibility("default")))

static unsigned calls_of_AllReduce, calls_of_GetUniqueId, calls_of_CommInitRank, calls_of_CommDestroy,
    calls_of_GroupStart, calls_of_GroupEnd;

#define DEFINE(name_, parameters_, arguments_)                                                                         \
    ncclResult_t nccl##name_ parameters_;                                                                              \
    ncclResult_t pnccl##name_ parameters_;                                                                             \
    EXPORT ncclResult_t nccl##name_ parameters_                                                                        \
    {                                                                                                                  \
        calls_of_##name_++;                                                                                            \
        if (getenv("TOOL_NEXT")) {                                                                                     \
            return ((__typeof__(nccl##name_) *)dlsym(RTLD_NEXT, "nccl" #name_))arguments_;                             \
        }                                                                                                              \
        return pnccl##name_ arguments_;                                                                                \
    }
REACH_FUNCTIONS(DEFINE)

__attribute__((destructor)) static void say(void)
{
    if (calls_of_CommInitRank > 0) {
        printf("tool: allreduces %u, made %u, ended %u\n", calls_of_AllReduce, calls_of_CommInitRank,
               calls_of_CommDestroy);
    }
}
