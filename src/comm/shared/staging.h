/* SPDX-License-Identifier: MIT */
/*
 * staging.h - the device memory of one rank that its peers write into, and this rank's view of theirs
 *
 * Does: One cuMemAlloc allocation (never the application's pool), laid out by kernels/abi.h, and the control block:
 *    host-mapped words that abort kernels, and that kernels which wait write to. CUDA IPC maps the memory of peers in
 *    other processes; the memory of peers in this process is used by its pointer.
 * Threads: one at a time.
 * Owns: device memory, its IPC handle, the peers' mappings, the control block.
 */
#ifndef OH_COMM_SHARED_STAGING_H_
#define OH_COMM_SHARED_STAGING_H_

#include <stdbool.h>
#include <stdint.h>

#include "comm/shared/segment.h"
#include "gpu/context.h"
#include "gpu/driver.h"
#include "kernels/abi.h"

/* For ONEHOP_VERIFY: results of NCCL's, and sums of magnitudes. */
#define OH_VERIFY_BYTES (32u << 20)

struct oh_staging {
    CUdevice device;
    struct oh_context context; /* handle NULL: nothing is held, and the rest means nothing */
    bool primary_retained;     /* context is the device's primary one, and held by us */
    struct oh_key key;         /* of the communicator, and its rank */
    uint32_t rank;
    CUdeviceptr base;
    size_t bytes;       /* at base */
    CUdeviceptr verify; /* OH_VERIFY_BYTES; 0: none */
    CUstream stream;    /* of the set-up, which clears the memory, and of oh_staging_hold; else NULL */
    /*
     * Anonymous host memory, registered with the driver: readable also after the program has destroyed the context.
     * Shared, so that after a fork this process still writes to the page that the GPU reads.
     */
    struct oh_control *control;
    CUdeviceptr control_device; /* 0: not registered */
    struct {
        CUdeviceptr base;
        bool ipc;
    } peer[OH_MAX_RANKS]; /* by rank; own rank: base */
};

/*
 * Chooses the context: `context`, or (NULL) the device's primary context, as the CUDA runtime does. After
 * success the caller must call oh_staging_destroy. This and the following return the driver's result. A failure of the
 * set-up is logged at INFO.
 */
CUresult oh_staging_bind(CUdevice device, CUcontext context, struct oh_staging *staging_p);

/* Allocates the memory of a rank of a communicator of `nranks` ranks, and starts to clear it. */
CUresult oh_staging_create(struct oh_staging *staging, const struct oh_key *key, uint32_t rank, uint32_t nranks);

/* Allocates the memory for ONEHOP_VERIFY. */
CUresult oh_staging_create_verify(struct oh_staging *staging);

/* Returns the bytes of GPU memory that the staging holds. */
uint64_t oh_staging_bytes(const struct oh_staging *staging);

/*
 * Moves all but the context, which both have then. Before the first is destroyed, oh_staging_share_context makes the
 * second hold the context, too: memory and host registrations are freed before the context.
 */
void oh_staging_move(struct oh_staging *staging, struct oh_staging *to_p);
void oh_staging_share_context(struct oh_staging *staging);

/* Writes IPC handle, pointer and context to this rank's peer info. */
CUresult oh_staging_describe(const struct oh_staging *staging, struct oh_peer_info *info);

/* Sets every epoch word, and waits until the memory is cleared: before any peer may write there. */
CUresult oh_staging_finish(struct oh_staging *staging, uint32_t epoch);

/*
 * Makes kernels of this rank that begin from now on send nothing and wait. Waits 150 ms at most for the GPU's write.
 * CUDA_ERROR_NOT_READY: a busy GPU writes later.
 */
CUresult oh_staging_hold(struct oh_staging *staging);

/* Maps a peer's memory. `same_process`: by its pointer, where it is the memory of that rank of the communicator. */
CUresult oh_staging_open_peer(struct oh_staging *staging, uint32_t rank, const struct oh_peer_info *info,
                              bool same_process);

/*
 * Queries an event of the context, in the relaxed capture mode: in another mode the query invalidates a capture under
 * way elsewhere, and returns an error. Returns the driver's result. Any thread, while no other frees the staging.
 */
CUresult oh_staging_query(const struct oh_staging *staging, CUevent event);

/*
 * Closes the peers' memory, while no kernel of this communicator runs; frees all, after the peers have closed their
 * mappings. Return the driver's result. After a failure the caller retries later.
 */
CUresult oh_staging_close_peers(struct oh_staging *staging);
CUresult oh_staging_destroy(struct oh_staging *staging);

/* Forgets what the driver does not free. The control block stays mapped: a kernel may write to it. */
void oh_staging_abandon(struct oh_staging *staging);

#endif
