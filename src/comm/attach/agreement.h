/* SPDX-License-Identifier: MIT */
/*
 * agreement.h - a set-up under way: from a rank's first call to a decision that all ranks share
 *
 * Does: Advances by steps that do not wait, so that one thread advances several set-ups.
 * Threads: the thread that uses the communicator begins a set-up; then it belongs to the background thread (attach.c).
 * Owns: itself, until oh_agreement_end.
 */
#ifndef OH_COMM_ATTACH_AGREEMENT_H_
#define OH_COMM_ATTACH_AGREEMENT_H_

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm_internal.h"
#include "topo/topo.h"

struct oh_agreement {
    struct oh_comm *comm;
    struct oh_agreement *next; /* list of its thread */
    unsigned step;             /* number of the steps taken (agreement.c) */
    bool alive;                /* has not given up */
    uint32_t opened;           /* ranks whose memory is open, by bit */
    struct oh_topo_gpu gpu;
    char reason[OH_REASON_BYTES]; /* why it has declined */
    uint64_t start_ns;
    uint64_t spent_ns; /* up to the vote */
};

/*
 * Begins a set-up, in the thread that makes the first call, on `stream`: context and events, so that calls that NCCL
 * serves are ordered from now on. A failure makes it decline. NULL: no memory; all ranks fall back.
 */
struct oh_agreement *oh_agreement_begin(struct oh_comm *comm, CUstream stream);

/* Takes the steps that do not wait; true: all ranks have decided. Sets *moved_p if it has taken a step. */
bool oh_agreement_advance(struct oh_agreement *agreement, bool *moved_p);

/* Ends a set-up after the decision: the communicator falls back, unless all ranks have voted yes. Frees it. */
void oh_agreement_end(struct oh_agreement *agreement);

/* Votes no: all ranks fall back with this reason, unless they have agreed before. */
void oh_agreement_decline(struct oh_agreement *agreement, const char *reason);

#endif
