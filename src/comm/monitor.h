/* SPDX-License-Identifier: MIT */
/*
 * monitor.h - the watch over communicators that are served
 *
 * One thread a process, which sleeps until a peer's process ends, and looks around now and then. It touches the words
 * that kernels and ranks leave in host memory, and never calls the driver, so it disturbs no capture and no context.
 *
 * A peer that has gone - its process has ended, or it has aborted the communicator - makes the communicator fail where
 * this rank waits for it in a kernel, or makes another call; one that was killed, at once: this rank may be waiting for
 * it elsewhere, in a call of NCCL's. One that has ended it, or has made its last call and just ends, as programs do in
 * any order, harms nobody.
 */
#ifndef OH_COMM_MONITOR_H_
#define OH_COMM_MONITOR_H_

#include "comm/comm.h"

/* Watches a communicator from now on; it is served, or will be. */
void oh_monitor_add(struct oh_comm *comm);

/* Does so no more: afterwards the monitor does not touch it. For one that is not watched, too. */
void oh_monitor_remove(struct oh_comm *comm);

#endif
