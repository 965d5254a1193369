/* SPDX-License-Identifier: MIT */
/*
 * agreement.h - a set-up under way: from a rank's first call to a decision that all ranks share
 *
 * A set-up advances by steps that do not wait, so that one thread can take on several at once. It is begun by the
 * thread that uses the communicator and then belongs to the thread in the background (attach.c), which frees it.
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
    char reason[OH_REASON_BYTES]; /* why it has given up */
    uint64_t start_ns;
};

/*
 * Begins a set-up, in the thread whose call on `stream` asks for it: context and events, so that from now on calls that
 * NCCL serves can be ordered. What goes wrong makes it give up. NULL: no memory; all ranks fall back.
 */
struct oh_agreement *oh_agreement_begin(struct oh_comm *comm, CUstream stream);

/* Takes the next steps as far as they go without waiting; true when it is decided. *moved_p is set if any was taken. */
bool oh_agreement_advance(struct oh_agreement *agreement, bool *moved_p);

/* Ends one that is decided: the communicator falls back, unless all have voted yes. Frees it. */
void oh_agreement_end(struct oh_agreement *agreement);

/* Gives up: all ranks will fall back with this reason, unless they have agreed already. */
void oh_agreement_decline(struct oh_agreement *agreement, const char *reason);

#endif
