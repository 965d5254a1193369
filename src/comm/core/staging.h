/* SPDX-License-Identifier: MIT */
/*
 * staging.h - the device memory of one rank that its peers write into, and this rank's view of theirs
 *
 * One plain cuMemAlloc allocation (never the application's pool), laid out by kernels/abi.h, and a few words of
 * host-mapped memory, in which kernels are told to leave, and tell that they wait. Peers of other processes are mapped
 * through CUDA IPC, peers of this process are reached by their own pointer. Not thread-safe; the communicator that owns
 * it serialises.
 */
#ifndef OH_COMM_CORE_STAGING_H_
#define OH_COMM_CORE_STAGING_H_

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/core/segment.h"
#include "gpu/context.h"
#include "gpu/driver.h"
#include "kernels/abi.h"

struct oh_staging {
    const struct oh_driver *driver; /* NULL: nothing is held, and the rest means nothing */
    CUdevice device;
    struct oh_context context;
    bool primary_retained; /* context is the device's primary one, and held by us */
    CUdeviceptr base;
    CUstream stream; /* of the set-up, which clears the memory, and of oh_staging_hold; else NULL */
    /*
     * Host memory of our own, registered with the driver: readable also after the program has destroyed the context.
     * Shared, so that a fork does not part this process from the page that the GPU reads.
     */
    struct oh_control *control;
    CUdeviceptr control_device; /* 0: not registered */
    struct {
        CUdeviceptr base;
        bool ipc;
    } peer[OH_MAX_RANKS]; /* by rank; own rank: base */
};

/*
 * Says where the memory will be: in `context`, or (NULL) in the primary one of the device, as the CUDA runtime would
 * choose. Returns ncclSuccess, after which *staging_p is to be given to oh_staging_destroy, or ncclUnhandledCudaError
 * (logged at INFO).
 */
ncclResult_t oh_staging_bind(const struct oh_driver *driver, CUdevice device, CUcontext context,
                             struct oh_staging *staging_p);

/*
 * Allocates the staging memory and starts to clear it. Returns ncclSuccess, or ncclUnhandledCudaError or
 * ncclSystemError (logged at INFO).
 */
ncclResult_t oh_staging_create(struct oh_staging *staging);

/*
 * Moves all that was made since oh_staging_bind; both then mean the same context. oh_staging_share_context is called
 * for the second before the first is destroyed, so that each holds the context: memory and host registrations go before
 * it.
 */
void oh_staging_move(struct oh_staging *staging, struct oh_staging *to_p);
void oh_staging_share_context(struct oh_staging *staging);

/* Describes it in this rank's slot: IPC handle, pointer, context. */
ncclResult_t oh_staging_describe(const struct oh_staging *staging, struct oh_peer_info *info);

/* Sets every epoch word and waits until the memory is as kernels expect it; before any peer may write there. */
ncclResult_t oh_staging_finish(struct oh_staging *staging, uint32_t epoch);

/*
 * Makes kernels of this rank that begin from now on send nothing and wait. Waits 10 ms at most for the GPU to write so:
 * if it is too full, it writes later. Returns the driver's result.
 */
CUresult oh_staging_hold(struct oh_staging *staging);

/* Makes a peer's staging reachable; `same_process` chooses how. */
ncclResult_t oh_staging_open_peer(struct oh_staging *staging, uint32_t rank, const struct oh_peer_info *info,
                                  bool same_process);

/*
 * Queries an event of the context, in the relaxed capture mode: in another mode the query invalidates a capture under
 * way elsewhere, and returns an error. Returns the driver's result. Any thread, while no other frees the staging.
 */
CUresult oh_staging_query(const struct oh_staging *staging, CUevent event);

/*
 * Closes the peers' memory. No kernel of this communicator may be running. Returns false if the driver has failed, and
 * may not fail if asked again.
 */
bool oh_staging_close_peers(struct oh_staging *staging);

/*
 * Frees all. The peers must have closed their view of it. Returns false if the driver has failed in a step, and may not
 * fail if asked again: then what is freed is not freed twice.
 */
bool oh_staging_destroy(struct oh_staging *staging);

/* Forgets what the driver does not free; the control block stays mapped, since a kernel may write to it. */
void oh_staging_abandon(struct oh_staging *staging);

#endif
