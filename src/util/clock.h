/* SPDX-License-Identifier: MIT */
/*
 * clock.h - time for deadlines and durations
 *
 * Does: Reads the monotonic clock, and sleeps.
 * Threads: any.
 * Owns: nothing.
 */
#ifndef OH_UTIL_CLOCK_H_
#define OH_UTIL_CLOCK_H_

#include <stdint.h>
#include <time.h>

/* Monotonic time in nanoseconds. */
static inline uint64_t oh_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline void oh_sleep_ns(uint64_t ns)
{
    const struct timespec time = {(time_t)(ns / UINT64_C(1000000000)), (long)(ns % UINT64_C(1000000000))};
    nanosleep(&time, NULL);
}

#endif
