/* SPDX-License-Identifier: MIT */
/*
 * pnccl.c - NCCL's functions under their other names
 *
 * Does: Exports pncclX, by which NCCL's documentation has tools call what they stand for. Such a call is the program's,
 *    as one of ncclX is: otherwise a rank with a tool would call NCCL, and the other ranks onehop. It leads to no tool.
 * Threads: any.
 * Owns: nothing.
 */
#include "interpose/real.h"

#define DEFINE(name_, parameters_, arguments_)                                                                         \
    ncclResult_t pnccl##name_ parameters_;                                                                             \
    __attribute__((visibility("default"))) ncclResult_t pnccl##name_ parameters_                                       \
    {                                                                                                                  \
        const struct oh_real *outer = oh_real_of_thunk;                                                                \
        oh_real_of_thunk = oh_real_find(__builtin_return_address(0));                                                  \
        const ncclResult_t res = nccl##name_ arguments_;                                                               \
        oh_real_of_thunk = outer;                                                                                      \
        return res;                                                                                                    \
    }

OH_NCCL_REQUIRED(DEFINE)
OH_NCCL_OPTIONAL(DEFINE)
