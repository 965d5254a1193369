/* SPDX-License-Identifier: MIT */
/*
 * decide.h - how a served call is launched: in which parts, on which grid
 *
 * Whether a call is served is oh_call_decide (comm.h), in the same file; which calls of a group share a launch: fuse.h.
 */
#ifndef OH_COMM_LAUNCH_DECIDE_H_
#define OH_COMM_LAUNCH_DECIDE_H_

#include "comm/comm.h"

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

#endif
