/* SPDX-License-Identifier: MIT */
/*
 * state.c - the states of a communicator
 *
 * Does: Changes the state along the transitions that doc/design.md, "States", draws, and counts how deep a thread is in
 *    NCCL.
 * Threads: any.
 * Owns: nothing.
 */
#include "comm/comm_internal.h"

__thread int oh_nccl_depth;

#define FROM(state_) (1u << OH_COMM_##state_)

/* By state: the states that lead there. */
static const unsigned sources[] = {
    [OH_COMM_IDLE] = FROM(CREATING),
    [OH_COMM_ATTACHING] = FROM(IDLE),
    [OH_COMM_CUTOVER] = FROM(ATTACHING),
    [OH_COMM_SERVED] = FROM(CUTOVER),
    [OH_COMM_FAILING] = FROM(CUTOVER) | FROM(SERVED),
    [OH_COMM_FAILED] = FROM(CUTOVER) | FROM(SERVED) | FROM(FAILING),
    [OH_COMM_FALLBACK] = FROM(CREATING) | FROM(IDLE) | FROM(ATTACHING),
    [OH_COMM_ENDED] = FROM(CUTOVER) | FROM(SERVED) | FROM(FAILING) | FROM(FAILED),
};

bool oh_comm_enter(struct oh_comm *comm, enum oh_comm_state state)
{
    unsigned before = atomic_load(&comm->state);
    while (sources[state] & 1u << before) {
        if (atomic_compare_exchange_weak(&comm->state, &before, state)) {
            return true;
        }
    }
    return false;
}
