/* SPDX-License-Identifier: MIT */
/*
 * monitor.h - the watch over communicators that are served
 *
 * One thread a process, which sleeps until a peer's process ends, and looks around every 80 ms. It reads the words
 * that kernels and ranks leave in host memory. It calls the driver only where a peer has departed while NCCL serves a
 * call, so it disturbs no capture and no context.
 *
 * A peer has departed when nothing more comes from it: its process has ended, in whatever way, or it has aborted the
 * communicator, or has destroyed it and closed its peers' memory. A departed peer makes the communicator fail where a
 * call of this rank waits, in a kernel of onehop or in an eager allreduce that NCCL serves, or is made afterwards.
 * Nothing else does: programs end their ranks in any order and in any way.
 */
#ifndef OH_COMM_WATCH_MONITOR_H_
#define OH_COMM_WATCH_MONITOR_H_

#include "comm/comm_internal.h"

/* Starts the thread, before a rank votes. Returns false if there is none: nothing may be served then. */
bool oh_monitor_start(void);

/* Watches a communicator from now on; it is served, or will be. */
void oh_monitor_add(struct oh_comm *comm);

/*
 * Does so no more: afterwards the monitor does not touch it, once oh_monitor_is_asking is false. For one that is not
 * watched, too.
 */
void oh_monitor_remove(struct oh_comm *comm);
bool oh_monitor_is_asking(const struct oh_comm *comm);

#endif
