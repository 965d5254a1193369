/* SPDX-License-Identifier: MIT */
/*
 * forward.c - the collectives, sends and receives that NCCL always serves
 *
 * Does: Tells onehop the streams of these calls: NCCL orders all calls of a communicator, whatever streams they are on,
 *    and joins the streams of a group; this must hold between its calls and onehop's, too.
 * Threads: any.
 * Owns: nothing.
 */
#include "hook/entry.h"

#define DEFINE(name_, types_, works_) DEFINE_(name_, types_, OH_PARAMETERS(types_), OH_ARGUMENTS(types_), works_)
#define DEFINE_(name_, types_, parameters_, arguments_, works_)                                                        \
    EXPORT ncclResult_t nccl##name_ parameters_                                                                        \
    {                                                                                                                  \
        struct oh_forward forward;                                                                                     \
        ncclResult_t res = oh_forward_begin(p2, p1, (works_) != 0, __builtin_return_address(0), &forward);             \
        if (res != ncclSuccess) {                                                                                      \
            return res;                                                                                                \
        }                                                                                                              \
        return oh_forward_end(&forward, forward.real->name_ ? forward.real->name_ arguments_                           \
                                                            : oh_entry_is_missing("nccl" #name_));                     \
    }

OH_REAL_FORWARDED(DEFINE)
