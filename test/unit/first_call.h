/* SPDX-License-Identifier: MIT */
/* first_call.h - a communicator's first call, as the hook of ncclAllReduce makes it, without NCCL */
#ifndef TEST_UNIT_FIRST_CALL_H_
#define TEST_UNIT_FIRST_CALL_H_

#include <unistd.h>

#include "comm/attach/attach.h"
#include "comm/comm_internal.h"
#include "util/clock.h"

/* NCCL has created it, for a rank on the GPU of its number. */
static inline bool say_created(struct oh_comm *comm, int rank, int nranks)
{
    return oh_comm_created(comm, &(struct oh_nccl_rank){rank, nranks, rank});
}

/* Registers what NCCL has created. NULL: it cannot be. */
static inline struct oh_comm *create_comm(struct oh_comm *comm, ncclComm_t nccl, uint32_t rank, int nranks)
{
    if (!oh_creation_register(comm, nccl)) {
        return NULL;
    }
    say_created(comm, (int)rank, nranks);
    return comm;
}

/* True when the first call is served; else waits until the communicator falls back, for a second at most. */
static inline bool make_first_call(struct oh_comm *comm)
{
    oh_attach_begin(comm, NULL);
    oh_attach_wait(comm, oh_now_ns());
    bool served = oh_attach_decide(comm);
    for (int i = 0; !served && !oh_comm_is_settled(comm) && i < 1000; i++) {
        usleep(1000); /* the thread that sets up says so soon */
    }
    return served;
}

#endif
