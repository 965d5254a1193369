/* SPDX-License-Identifier: MIT */
/*
 * thunk.c - an entry of each hooked function for each real library
 *
 * Does: Defines the functions from the lists in real.h.
 * Threads: any; sets oh_real_of_thunk (real.h), which is thread-local, for the time of a call.
 * Owns: nothing.
 */
#include <stddef.h>

#include "hook/real.h"

/* Restores the outer copy: a call may come from within another copy's. */
#define THUNK(slot_, name_, parameters_, arguments_)                                                                   \
    static ncclResult_t name_##_##slot_ parameters_                                                                    \
    {                                                                                                                  \
        const struct oh_real *outer = oh_real_of_thunk;                                                                \
        oh_real_of_thunk = oh_real_at(slot_);                                                                          \
        ncclResult_t res = nccl##name_ arguments_;                                                                     \
        oh_real_of_thunk = outer;                                                                                      \
        return res;                                                                                                    \
    }

#define THUNKS(name_, types_, ...) THUNKS_(name_, OH_PARAMETERS(types_), OH_ARGUMENTS(types_))
#define PLAIN_THUNKS(name_, types_) THUNKS_(name_, types_, ())
#define THUNKS_(name_, parameters_, arguments_)                                                                        \
    THUNK(0, name_, parameters_, arguments_)                                                                           \
    THUNK(1, name_, parameters_, arguments_)                                                                           \
    THUNK(2, name_, parameters_, arguments_)                                                                           \
    THUNK(3, name_, parameters_, arguments_)

OH_REAL_REQUIRED(THUNKS)
OH_REAL_PLAIN(PLAIN_THUNKS)
OH_REAL_OPTIONAL(THUNKS)
OH_REAL_FORWARDED(THUNKS)

#define PLAIN(function_) (void (*)(void)) function_
#define ROW(name_, types_, ...)                                                                                        \
    {"nccl" #name_,                                                                                                    \
     offsetof(struct oh_real, name_),                                                                                  \
     PLAIN(nccl##name_),                                                                                               \
     {PLAIN(name_##_0), PLAIN(name_##_1), PLAIN(name_##_2), PLAIN(name_##_3)}},

const struct oh_thunk oh_thunks[] = {OH_REAL_REQUIRED(ROW) OH_REAL_PLAIN(ROW) OH_REAL_OPTIONAL(ROW)
                                         OH_REAL_FORWARDED(ROW)};
const size_t oh_thunk_count = sizeof oh_thunks / sizeof *oh_thunks;

_Static_assert(OH_REAL_MAX == 4, "THUNKS_ and ROW list the copies");
