/* SPDX-License-Identifier: MIT */
/*
 * thunk.h - an entrance to each exported nccl* function for each copy of NCCL
 *
 * Where a caller takes an address from one copy's symbol table, or has one in its own table of addresses, it gets a
 * thunk of that copy in its place. The thunk notes the copy and calls the exported function, so that creators and group
 * calls, which carry no communicator, go to the copy that the caller meant. Constant; thread-safe.
 */
#ifndef OH_HOOK_THUNK_H_
#define OH_HOOK_THUNK_H_

#include <stddef.h>

#include "hook/real.h"

struct oh_thunk {
    const char *name;    /* "ncclAllReduce" */
    size_t offset;       /* of the function in struct oh_real */
    void (*plain)(void); /* the exported function itself */
    void (*entry[OH_REAL_MAX])(void);
};

extern const struct oh_thunk oh_thunks[];
extern const size_t oh_thunk_count;

#endif
