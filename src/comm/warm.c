/* SPDX-License-Identifier: MIT */
#include "comm/warm.h"

#include <signal.h>

#include "comm/segment.h"
#include "gpu/context.h"
#include "gpu/kernels.h"
#include "kernels/abi.h"
#include "topo/topo.h"
#include "util/clock.h"
#include "util/log.h"

static void warm_device(const struct oh_warm *warm)
{
    const struct oh_kernel_set *set;
    struct oh_topo_gpu gpu;
    CUdevice device;
    char reason[OH_REASON_BYTES], version[OH_REASON_BYTES];
    if (warm->driver->ctx_get_device(&device) != CUDA_SUCCESS) {
        return;
    }
    oh_topo_gpu_gather(warm->driver, device, &gpu);
    if (oh_topo_judge_gpu(&gpu, reason, sizeof reason)) {
        oh_topo_row_gather(warm->driver, &gpu);
        oh_topo_driver_version(version, sizeof version);
        oh_kernel_set_get(warm->driver, device, warm->nranks, &set);
    }
}

static void *work(void *argument)
{
    const struct oh_warm *warm = argument;
    struct oh_context_scope scope;
    uint64_t start = oh_now_ns();
    if (oh_context_enter_relaxed(warm->driver, &warm->context, &scope) == CUDA_SUCCESS) {
        warm_device(warm);
        oh_context_leave_relaxed(warm->driver, &scope);
    }
    OH_TRACE("made ready for %u ranks in %.1f ms, while NCCL creates the communicator", warm->nranks,
             (double)(oh_now_ns() - start) / 1e6);
    return NULL;
}

/* May a communicator of that size come to be served here, and is there something to do? */
static bool has_work(struct oh_warm *warm, int nranks)
{
    char reason[OH_REASON_BYTES];
    return nranks >= 2 && nranks <= OH_MAX_RANKS && oh_topo_allowed_by_env(reason, sizeof reason) &&
           oh_driver_get(&warm->driver) == ncclSuccess && oh_context_get_current(warm->driver, &warm->context) &&
           !oh_kernel_set_is_loaded(warm->driver, (uint32_t)nranks);
}

/* The thread takes no signal from the application's. */
void oh_warm_begin(struct oh_warm *warm, int nranks)
{
    sigset_t all, before;
    *warm = (struct oh_warm){.nranks = (uint32_t)nranks};
    if (!has_work(warm, nranks)) {
        return;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    warm->started = pthread_create(&warm->thread, NULL, work, warm) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void oh_warm_end(struct oh_warm *warm)
{
    if (warm->started) {
        pthread_join(warm->thread, NULL);
        warm->started = false;
    }
}
