/* SPDX-License-Identifier: MIT */
/*
 * agree.h - a set-up under way: from presence to a decision that all ranks share
 *
 * A set-up advances by steps that do not wait, so one thread can take several on at once, and so can a thread in the
 * background. It belongs to one thread at a time and ends with oh_setup_settle.
 */
#ifndef OH_COMM_AGREE_H_
#define OH_COMM_AGREE_H_

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "topo/topo.h"

/* What a set-up spends its time on, for the log. X(identifier, name). */
#define OH_SETUP_LAPS(X)                                                                                               \
    X(PRESENCE, "presence")                                                                                            \
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
    OH_STEP_COUNT, /* is every rank here? */
    OH_STEP_FILL,  /* my slot */
    OH_STEP_OPEN,  /* the peers' memory; then the kernels, and my vote */
    OH_STEP_VOTED
};

struct oh_setup {
    struct oh_comm *comm;
    struct oh_setup *next; /* list of its thread */
    enum oh_setup_step step;
    bool alive;    /* has not given up */
    bool unbarred; /* ranks may still come */
    bool grows;    /* by ncclCommGrow; the next two as in struct oh_birth */
    uint32_t grown_from;
    struct oh_segment gate;
    bool background;
    int cuda_device;
    CUcontext context; /* where the memory goes; NULL: the device's primary context */
    uint32_t opened;   /* ranks whose memory is open, by bit */
    struct oh_topo_gpu gpu;
    char reason[OH_REASON_BYTES]; /* why it has given up */
    uint64_t deadline_ns;
    uint64_t mark_ns; /* end of the last lap */
    uint64_t lap_ns[OH_LAPS];
};

/*
 * A rank of the parent, after NCCL's barrier: are all the parent's ranks here, and where do they go? All of them see
 * the same. One that knows where refuses there, if not all are here; so the new ranks need not know.
 */
void oh_setup_pass_gate(struct oh_setup *setup);

/* Takes the next steps as far as they go without waiting; true when it is decided. *moved_p is set if any was taken. */
bool oh_setup_advance(struct oh_setup *setup, bool *moved_p);

/* Puts the decision into the communicator, says so in the log, and frees the set-up. */
void oh_setup_settle(struct oh_setup *setup);

/* Frees one that was never started; the communicator has been cancelled. */
void oh_setup_drop(struct oh_setup *setup);

/* Gives up: all ranks will hand back with this reason, unless they have agreed already. */
void oh_setup_give_up(struct oh_setup *setup, const char *reason);

/* Has the set-up done in the background; the caller's no more (late.c). */
void oh_setup_enqueue(struct oh_setup *setup);

#endif
