/* SPDX-License-Identifier: MIT */
/*
 * fuse.h - which calls of a group go out together, as one launch
 *
 * Calls cost a launch and a hop each, whatever they carry, and NCCL makes one kernel of a group. Calls of one
 * communicator in one group that follow one another, with the same datatype and op, go out as a list, one launch, as
 * long as the table serves a message as large as all of them. What is fused depends on count, datatype and op of the
 * calls alone, which are the same on all ranks; never on pointers or streams. Pure functions without state.
 */
#ifndef OH_COMM_LAUNCH_FUSE_H_
#define OH_COMM_LAUNCH_FUSE_H_

#include "comm/comm.h"

/*
 * How many of the first calls go out as one launch: from 1 to OH_LIST_CALLS (1: an ordinary launch), for a list of at
 * least two calls with the same datatype and op, of whose size together a message would be served. count > 0. All calls
 * of one communicator.
 */
size_t oh_fuse_count(const struct oh_plan_table *table, const struct oh_call *calls, size_t count);

/* Fills in calls, words and items of a list for the first `count` calls, which oh_fuse_count gave, and its plan. */
void oh_fuse_list(const struct oh_plan_table *table, const struct oh_call *calls, size_t count,
                  struct oh_kernel_list_args *list_p, struct oh_plan *plan_p);

#endif
