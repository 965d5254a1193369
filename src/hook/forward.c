/* SPDX-License-Identifier: MIT */
/*
 * forward.c - the collectives, sends and receives that NCCL serves always
 *
 * NCCL keeps all calls of a communicator in one order, whatever streams they are on, and joins the streams of a group.
 * So that this holds between its calls and onehop's, onehop must know the streams of these calls. Nothing else of them
 * is looked at. In any thread; nothing is kept here.
 */
#include <nccl.h>

#include "hook/entry.h"
#include "hook/parameters.h"
#include "util/log.h"

#define EXPORT __attribute__((visibility("default")))

/* nccl.h has some of them only in newer versions. */
#define DEFINE(name_, types_, works_) DEFINE_(name_, types_, OH_PARAMETERS(types_), OH_ARGUMENTS(types_), works_)
#define DEFINE_(name_, types_, parameters_, arguments_, works_)                                                        \
    ncclResult_t nccl##name_ types_;                                                                                   \
    EXPORT ncclResult_t nccl##name_ parameters_                                                                        \
    {                                                                                                                  \
        struct oh_forward forward;                                                                                     \
        ncclResult_t res = oh_forward_begin(p2, p1, (works_) != 0, __builtin_return_address(0), &forward);             \
        if (res != ncclSuccess) {                                                                                      \
            return res;                                                                                                \
        }                                                                                                              \
        return oh_forward_end(&forward, forward.real->name_ ? forward.real->name_ arguments_ : missing(#name_));       \
    }

static ncclResult_t missing(const char *name)
{
    OH_WARN("this NCCL has no nccl%s", name);
    return ncclInvalidUsage;
}

OH_REAL_FORWARDED(DEFINE)
