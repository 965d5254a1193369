/* SPDX-License-Identifier: MIT */
/* end.h - the program ends a communicator: it is finalized, destroyed, aborted, or the process ends */
#ifndef OH_COMM_ATTACH_END_H_
#define OH_COMM_ATTACH_END_H_

#include "comm/comm.h"

/* Lets kernels of this communicator that wait leave, and passes later calls to NCCL. Any thread. */
void oh_comm_abort(struct oh_comm *comm);

/*
 * Waits until the calls of a served communicator have left the GPU; ends early when it fails or is aborted. Keeps no
 * lock.
 */
void oh_comm_drain(const struct oh_comm *comm);

/* Hands later calls to NCCL (the communicator is being finalized). */
void oh_comm_suspend(struct oh_comm *comm);

/* Forgets the communicator: its pointer may be reused at once. Its memory goes when no one uses it any more. */
void oh_comm_retire(struct oh_comm *comm);

/* The process ends, and says so; communicators that are not settled yet fall back, and leave no file behind. */
void oh_comms_end_process(void);

#endif
