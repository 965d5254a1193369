/* SPDX-License-Identifier: MIT */
/*
 * agree.h - a set-up under way: from a rank's first call to a decision that all ranks share
 *
 * A set-up advances by steps that do not wait, so that one thread can take on several at once. It is begun by the
 * thread that uses the communicator and then belongs to the thread in the background (attach.c), which frees it.
 */
#ifndef OH_COMM_AGREE_H_
#define OH_COMM_AGREE_H_

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "topo/topo.h"

/* What a set-up spends its time on, for the log. X(identifier, name). */
#define OH_SETUP_LAPS(X)                                                                                               \
    X(GPU, "gpu")                                                                                                      \
    X(MEMORY, "memory")                                                                                                \
    X(PEERS, "waiting for peers")                                                                                      \
    X(LINKS, "links")                                                                                                  \
    X(OPEN, "opening")                                                                                                 \
    X(KERNELS, "kernels")                                                                                              \
    X(CLEAR, "clearing")                                                                                               \
    X(VOTES, "votes")

enum oh_setup_lap {
#define OH_SETUP_LAP(identifier_, name_) OH_LAP_##identifier_,
    OH_SETUP_LAPS(OH_SETUP_LAP)
#undef OH_SETUP_LAP
    OH_LAPS
};

enum oh_setup_step {
    OH_STEP_FILL, /* my slot */
    OH_STEP_OPEN, /* the peers' memory; then the kernels */
    OH_STEP_VOTE, /* once NCCL's work is in order */
    OH_STEP_VOTED
};

struct oh_setup {
    struct oh_comm *comm;
    struct oh_setup *next; /* list of its thread */
    enum oh_setup_step step;
    bool alive;      /* has not given up */
    uint32_t opened; /* ranks whose memory is open, by bit */
    struct oh_topo_gpu gpu;
    char reason[OH_REASON_BYTES]; /* why it has given up */
    uint64_t mark_ns;             /* end of the last lap */
    uint64_t lap_ns[OH_LAPS];
};

/*
 * Begins a set-up, in the thread whose call on `stream` asks for it: context and events, so that from now on calls that
 * NCCL serves can be ordered. What goes wrong makes it give up. NULL: no memory; all ranks fall back.
 */
struct oh_setup *oh_setup_begin(struct oh_comm *comm, CUstream stream);

/* Takes the next steps as far as they go without waiting; true when it is decided. *moved_p is set if any was taken. */
bool oh_setup_advance(struct oh_setup *setup, bool *moved_p);

/* Ends one that is decided: the communicator falls back, unless all have voted yes. Frees it. */
void oh_setup_end(struct oh_setup *setup);

/* Gives up: all ranks will fall back with this reason, unless they have agreed already. */
void oh_setup_give_up(struct oh_setup *setup, const char *reason);

#endif
