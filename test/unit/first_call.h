/* SPDX-License-Identifier: MIT */
/* first_call.h - a communicator's first call, without NCCL and without a launch */
#ifndef TEST_UNIT_FIRST_CALL_H_
#define TEST_UNIT_FIRST_CALL_H_

#include <unistd.h>

#include "comm/attach/attach.h"
#include "comm/call/internal.h"
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
    struct oh_call call = {.comm = comm, .count = 1, .type = ncclFloat32};
    oh_call_route(&call);
    oh_attach_enter_served(&call);
    bool served = oh_comm_state(comm) == OH_COMM_SERVED;
    for (int i = 0; !served && !oh_comm_is_settled(comm) && i < 1000; i++) {
        usleep(1000); /* the set-up ends soon, and the next call falls back */
        oh_call_route(&(struct oh_call){.comm = comm, .count = 1, .type = ncclFloat32});
    }
    return served;
}

#endif
