/* SPDX-License-Identifier: MIT */
/*
 * scope.c - locks at the end of the process
 *
 * Does: Waits for a mutex for a bounded time.
 * Threads: any.
 * Owns: nothing.
 */
#include "util/scope.h"

#include "util/clock.h"

#define PAUSE_NS (UINT64_C(100) * 1000)
#define PATIENCE_NS (UINT64_C(100) * 1000 * 1000)

__thread uint64_t oh_lock_until_ns;

uint64_t oh_locks_bound(void)
{
    const uint64_t before_ns = oh_lock_until_ns;
    oh_lock_until_ns = oh_now_ns() + PATIENCE_NS;
    return before_ns;
}

bool oh_lock_bounded(pthread_mutex_t *mutex)
{
    while (pthread_mutex_trylock(mutex) != 0) {
        if (oh_now_ns() >= oh_lock_until_ns) {
            return false;
        }
        oh_sleep_ns(PAUSE_NS);
    }
    return true;
}
