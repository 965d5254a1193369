/* SPDX-License-Identifier: MIT */
/*
 * nvtx.h - NVTX ranges around served calls, for profilers
 *
 * Does: Opens and closes ranges in the domain "onehop", if a profiler is there: NVTX's headers load the library that
 *    NVTX_INJECTION64_PATH names. A range's message is as "ncclAllReduce oneshot"; its payload is below.
 * Threads: any.
 * Owns: the domain.
 */
#ifndef OH_UTIL_NVTX_H_
#define OH_UTIL_NVTX_H_

#include "config.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct oh_nvtx_payload {
    uint64_t comm;     /* the number that statistics give it */
    uint64_t sequence; /* of the call among the served ones of this communicator, from 0 */
    uint64_t bytes;
    uint64_t algorithm;  /* enum onehop_algorithm */
    uint64_t calls;      /* that the launch carries */
    uint64_t collective; /* enum onehop_collective */
};

#ifdef HAVE_NVTX
extern atomic_bool oh_nvtx_active;

static inline bool oh_nvtx_on(void)
{
    /* acquire: pairs with the release store in oh_nvtx_start(). */
    return atomic_load_explicit(&oh_nvtx_active, memory_order_acquire);
}

/* Looks for a profiler, the first time. messages: `count` of them, which live on; NULL: none. */
void oh_nvtx_start(const char *const *messages, int count);

/* Opens a range of this thread with a message, by its index, or closes it. Only if oh_nvtx_on(). */
void oh_nvtx_push(int message, const struct oh_nvtx_payload *payload);
void oh_nvtx_pop(void);
#else
#define oh_nvtx_on() false
#define oh_nvtx_start(messages_, count_) ((void)(messages_))
#define oh_nvtx_push(message_, payload_) ((void)(payload_))
#define oh_nvtx_pop() ((void)0)
#endif

#endif
