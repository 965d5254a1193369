/* SPDX-License-Identifier: MIT */
/*
 * staging.h - the device memory of one rank that its peers write into, and this rank's view of theirs
 *
 * One plain cuMemAlloc allocation (never the application's pool), laid out by kernels/abi.h, and a few words of
 * host-mapped memory, in which kernels are told to leave, and tell that they wait. Peers of other processes are mapped
 * through CUDA IPC, peers of this process are reached by their own pointer. Not thread-safe; the communicator that owns
 * it serialises.
 */
#ifndef OH_COMM_STAGING_H_
#define OH_COMM_STAGING_H_

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/segment.h"
#include "gpu/driver.h"
#include "kernels/abi.h"

struct oh_staging {
    const struct oh_driver *driver;
    CUdevice device;
    CUcontext context;
    bool primary_retained; /* context is the device's primary one, and held by us */
    CUdeviceptr base;
    CUstream stream;          /* clears the memory, during the set-up only */
    struct oh_signal *signal; /* host-mapped */
    CUdeviceptr signal_device;
    struct {
        CUdeviceptr base;
        bool ipc;
    } peer[OH_MAX_RANKS]; /* by rank; own rank: base */
};

/* The calling thread's context if it is one of this device (CUDA ordinal), else NULL. */
CUcontext oh_staging_current_context(int cuda_device);

/*
 * Allocates the staging memory of `device` in `context` (NULL: the primary one, as the CUDA runtime would choose) and
 * starts to clear it. Returns ncclSuccess, or ncclUnhandledCudaError (logged at INFO), leaving nothing behind.
 */
ncclResult_t oh_staging_create(const struct oh_driver *driver, CUdevice device, CUcontext context,
                               struct oh_staging *staging_p);

/* Describes it in this rank's slot: IPC handle, pointer, context. */
ncclResult_t oh_staging_describe(const struct oh_staging *staging, struct oh_slot *slot);

/* Sets every epoch word and waits until the memory is as kernels expect it; before any peer may write there. */
ncclResult_t oh_staging_finish(struct oh_staging *staging, uint32_t epoch);

/* Makes a peer's staging reachable; `same_process` chooses how. */
ncclResult_t oh_staging_open_peer(struct oh_staging *staging, uint32_t rank, const struct oh_slot *slot,
                                  bool same_process);

/* Closes the peers' memory. No kernel of this communicator may be running. */
void oh_staging_close_peers(struct oh_staging *staging);

/* Frees all. The peers must have closed their view of it. */
void oh_staging_destroy(struct oh_staging *staging);

#endif
