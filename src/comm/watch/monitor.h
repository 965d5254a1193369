/* SPDX-License-Identifier: MIT */
/*
 * monitor.h - detection of departed peers and of stalls
 *
 * Does: Polls, every 80 ms and when a peer's process ends, the words that kernels and ranks store in host memory. A
 *    peer has departed when it sends nothing more: its process has ended, it has aborted the communicator, or it has
 *    destroyed it and closed its peers' memory. Then the communicator fails if a call of this rank waits, in a kernel
 *    of onehop or in an eager allreduce that NCCL serves, or if a call is made. A departure alone is no failure:
 *    programs end their ranks in any order and in any way.
 * Threads: one background thread a process. It calls the driver only where a peer has departed while NCCL serves a
 *    call.
 * Owns: the list of watched communicators.
 */
#ifndef OH_COMM_WATCH_MONITOR_H_
#define OH_COMM_WATCH_MONITOR_H_

#include "comm/comm_internal.h"

/* Starts the thread, before a rank votes. False: there is none, so nothing may be served. */
bool oh_monitor_start(void);

/* Watches a communicator from now on; it is in CUTOVER. */
void oh_monitor_add(struct oh_comm *comm);

/*
 * Watches it no more. The monitor does not use the communicator afterwards, once oh_monitor_is_asking returns false.
 * Also for a communicator that is not watched.
 */
void oh_monitor_remove(struct oh_comm *comm);
bool oh_monitor_is_asking(const struct oh_comm *comm);

#endif
