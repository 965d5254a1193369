/* SPDX-License-Identifier: MIT */
/*
 * nvtx.h - ranges around served calls, for profilers
 *
 * NVTX is nothing but headers: a profiler that wants ranges brings its own library, named in NVTX_INJECTION64_PATH.
 * Where there is none, oh_nvtx_on stays false, and a call pays for one load. Domain "onehop"; a range's message is
 * "ncclAllReduce" and the algorithm, its payload struct oh_nvtx_payload. Thread-safe.
 */
#ifndef OH_UTIL_NVTX_H_
#define OH_UTIL_NVTX_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct oh_nvtx_payload {
    uint64_t comm;     /* the number that statistics give it */
    uint64_t sequence; /* of the call among the served ones of this communicator, from 0 */
    uint64_t bytes;
    uint64_t algorithm; /* enum onehop_algorithm */
    uint64_t calls;     /* that the launch carries */
};

extern atomic_bool oh_nvtx_active;

static inline bool oh_nvtx_on(void)
{
    return atomic_load_explicit(&oh_nvtx_active, memory_order_acquire); /* pairs with oh_nvtx_start */
}

/* Looks for a profiler, once. `names`: the algorithms', which stay. */
void oh_nvtx_start(const char *(*name)(int algorithm), int count);

/* Opens a range of this thread; closes it. Only where oh_nvtx_on. */
void oh_nvtx_push(const struct oh_nvtx_payload *payload);
void oh_nvtx_pop(void);

#endif
