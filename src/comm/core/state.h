/* SPDX-License-Identifier: MIT */
/*
 * state.h - the state of a communicator on this rank
 *
 * A state is one atomic word. state.c lists the transitions; every change is a compare-and-swap that checks the list,
 * so that two threads never make two changes out of one state. Transitions of the attach are made with attach.mutex
 * held; those to FAILING and FAILED by any thread, without it.
 */
#ifndef OH_COMM_CORE_STATE_H_
#define OH_COMM_CORE_STATE_H_

#include "comm/comm.h"

/*
 * Enters the state if a transition leads there from the present one. Returns true if this call has changed the state.
 * Thread-safe. Release: what the caller stored before is visible to a thread whose oh_comm_state returns `state`.
 */
bool oh_comm_enter(struct oh_comm *comm, enum oh_comm_state state);

#endif
