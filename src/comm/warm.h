/* SPDX-License-Identifier: MIT */
/*
 * warm.h - what a set-up will need of the process, made ready while NCCL creates the communicator
 *
 * Loading the kernels and asking NVML take tens of milliseconds once in a process; NCCL's creation takes far longer and
 * leaves the processors idle. A thread does the former during the latter. It lives between the two calls only, and so
 * is over when the application may end its context, fork or exit. What it makes is kept where the set-up looks for it
 * (gpu/kernels.c, topo/gather.c); when it fails nothing is lost.
 */
#ifndef OH_COMM_WARM_H_
#define OH_COMM_WARM_H_

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu/context.h"
#include "gpu/driver.h"

struct oh_warm {
    bool started;
    pthread_t thread;
    const struct oh_driver *driver;
    struct oh_context context; /* the calling thread's */
    uint32_t nranks;
};

/*
 * Starts the thread, if a communicator of nranks made in the current context may be served and finds something not
 * ready. No context is made. Between the two calls *warm belongs to the thread. Cannot fail.
 */
void oh_warm_begin(struct oh_warm *warm, int nranks);

/* Waits for it. */
void oh_warm_end(struct oh_warm *warm);

#endif
