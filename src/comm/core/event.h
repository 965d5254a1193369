/* SPDX-License-Identifier: MIT */
/* event.h - asks the driver whether a communicator's eager work has ended */
#ifndef OH_COMM_CORE_EVENT_H_
#define OH_COMM_CORE_EVENT_H_

#include "comm/comm.h"

/*
 * CUDA_ERROR_NOT_READY while the newest eager allreduce that NCCL serves is not complete, or a later call of NCCL's on
 * the communicator is not; CUDA_SUCCESS when they are. The monitor asks, so that no other thread ends the communicator
 * meanwhile.
 */
CUresult oh_event_query_nccl(const struct oh_comm *comm);

/*
 * CUDA_ERROR_NOT_READY while kernels of this rank that calls have launched run; CUDA_SUCCESS when they have ended.
 * (Replays of graphs count until the graph is gone.) In the relaxed capture mode: in another mode the question itself
 * would break a capture under way elsewhere, and be answered with an error.
 */
CUresult oh_event_query_launches(const struct oh_comm *comm);

#endif
