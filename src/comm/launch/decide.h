/* SPDX-License-Identifier: MIT */
/*
 * decide.h - in which parts a served call is launched, on which grid, and with which other calls
 *
 * Does: decide.c also has oh_call_decide and oh_comm_count_fallback of comm.h.
 * Threads: pure functions of calls and table.
 * Owns: nothing.
 */
#ifndef OH_COMM_LAUNCH_DECIDE_H_
#define OH_COMM_LAUNCH_DECIDE_H_

#include "comm/comm_internal.h"

/* Returns the elements of each part of the call, but for the last, which may have fewer: one kernel each. */
uint64_t oh_call_part_count(const struct oh_call *call);

/*
 * Kernel fusion: a launch and a hop cost the same for any size, so consecutive calls of a group with the same datatype
 * and op share one launch, as long as the table serves a message as large as all of them. Count, datatype and op decide
 * alone: they are the same on all ranks, which pointers and streams are not.
 *
 * Returns how many of the first calls share a launch: 1 (an ordinary launch) to OH_LIST_CALLS. count > 0; all calls of
 * one communicator.
 */
size_t oh_fuse_count(const struct oh_plan_table *table, const struct oh_call *calls, size_t count);

/* Fills in calls, words and items of the list for the first `count` calls, as oh_fuse_count has returned, and the plan.
 */
void oh_fuse_list(const struct oh_plan_table *table, const struct oh_call *calls, size_t count,
                  struct oh_kernel_list_args *list_p, struct oh_plan *plan_p);

#endif
