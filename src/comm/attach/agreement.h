/* SPDX-License-Identifier: MIT */
/*
 * agreement.h - a set-up under way: from a rank's first call to a decision that all ranks share
 *
 * Does: Advances by steps that do not wait, so that one thread advances several set-ups.
 * Threads: the thread that uses the communicator begins a set-up; then it belongs to the background thread (attach.c).
 * Owns: nothing.
 */
#ifndef OH_COMM_ATTACH_AGREEMENT_H_
#define OH_COMM_ATTACH_AGREEMENT_H_

#include "comm/comm_internal.h"

/*
 * Begins a set-up, in the thread that makes the first call, on `stream`: context and events, so that calls that NCCL
 * serves are ordered from now on. A failure makes it decline.
 */
void oh_agreement_begin(struct oh_comm *comm, CUstream stream);

/* Takes the steps that do not wait; true: all ranks have decided. Sets *moved_p if it has taken a step. */
bool oh_agreement_advance(struct oh_comm *comm, bool *moved_p);

/* Ends a set-up after the decision: the communicator falls back, unless all ranks have voted yes. */
void oh_agreement_end(struct oh_comm *comm);

/* Votes no: all ranks fall back with this reason, unless they have agreed before. */
void oh_agreement_decline(struct oh_comm *comm, const char *reason);

/* A rank has voted no: takes over its reason. With the mutex of the communicator's attach held. */
void oh_attach_settle_off(struct oh_comm *comm);

#endif
