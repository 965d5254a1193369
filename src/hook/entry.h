/* SPDX-License-Identifier: MIT */
/*
 * entry.h - what the exported functions of entry.c and others.c share
 */
#ifndef OH_HOOK_ENTRY_H_
#define OH_HOOK_ENTRY_H_

#include <nccl.h>
#include <stdbool.h>

#include "comm/comm.h"
#include "hook/real.h"

/* How deep this thread is in NCCL on onehop's behalf: what NCCL calls by its public names then passes straight through.
 */
extern __thread int oh_inside __attribute__((visibility("hidden")));

/* A call on its way to NCCL. */
struct oh_forward {
    const struct oh_real *real;
    struct oh_comm *comm; /* NULL: onehop serves none of its calls, or NCCL puts nothing on the stream */
    struct oh_nccl_call nccl_call;
};

/*
 * Around a call of the real function, on this thread: its communicator's calls on other streams keep their order, in a
 * group too. `works`: NCCL puts something on the stream. The second is called if and only if the first has returned
 * ncclSuccess, and returns the result of the call. caller: the return address.
 */
ncclResult_t oh_forward_begin(ncclComm_t comm, cudaStream_t stream, bool works, const void *caller,
                              struct oh_forward *forward_p);
ncclResult_t oh_forward_end(struct oh_forward *forward, ncclResult_t result);

#endif
