/* SPDX-License-Identifier: MIT */
/*
 * decide.h - how a served call is launched: in which parts, on which grid
 *
 * Whether a call is served is oh_call_decide (comm.h), in the same file; which calls of a group share a launch: fuse.h.
 */
#ifndef OH_COMM_LAUNCH_DECIDE_H_
#define OH_COMM_LAUNCH_DECIDE_H_

#include "comm/comm_internal.h"

/*
 * How the parts of a call follow one another. Their grid is the same on all ranks; whether they overlap is this rank's
 * own affair (doc/design.md, "Parts of a call").
 */
struct oh_parts {
    uint64_t words; /* of each, but for the last */
    uint64_t count; /* elements of each */
    struct oh_plan plan;
    bool overlap;     /* each but the last has an early trigger */
    bool sends_early; /* each but the first sends before the part before it has ended */
};

/* serial: kernels of the call cannot overlap where they go. */
struct oh_parts oh_call_parts(const struct oh_call *call, bool serial);

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
