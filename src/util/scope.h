/* SPDX-License-Identifier: MIT */
/*
 * scope.h - leaving a block or a function
 *
 * Does: OH_KEEP_ERRNO() saves errno, and the end of the enclosing block restores it: a program may rely on what its
 *    NCCL does to errno, so onehop's own work must not change it. OH_LOCK() holds a mutex up to the end of the block.
 *    OH_BOUND_LOCKS() bounds its wait at the end of the process. OH_TRY() returns an error from the function.
 * Threads: any.
 * Owns: nothing.
 */
#ifndef OH_UTIL_SCOPE_H_
#define OH_UTIL_SCOPE_H_

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

static inline void oh_errno_restore(const int *saved)
{
    errno = *saved;
}

#define OH_KEEP_ERRNO() int saved_errno_ __attribute__((cleanup(oh_errno_restore), unused)) = errno

/* Until when OH_LOCK() waits in this thread, on the monotonic clock; 0: as long as it takes. */
extern __thread uint64_t oh_lock_until_ns __attribute__((visibility("hidden")));

/* Sets that time for an action at the end of the process. Returns what it was. */
uint64_t oh_locks_bound(void);

/* Locks the mutex within that time. Returns false if the time is over. */
bool oh_lock_bounded(pthread_mutex_t *mutex);

static inline pthread_mutex_t *oh_lock(pthread_mutex_t *mutex)
{
    if (oh_lock_until_ns != 0) {
        return oh_lock_bounded(mutex) ? mutex : NULL;
    }
    pthread_mutex_lock(mutex);
    return mutex;
}

static inline void oh_unlock(pthread_mutex_t *const *mutex)
{
    if (*mutex) {
        pthread_mutex_unlock(*mutex);
    }
}

static inline void oh_locks_restore(const uint64_t *before_ns)
{
    oh_lock_until_ns = *before_ns;
}

#define OH_LOCK(mutex_) pthread_mutex_t *const locked_ __attribute__((cleanup(oh_unlock), unused)) = oh_lock(mutex_)

/*
 * Up to the end of the block: exit() may have been called by a signal's handler, and the thread that it interrupted
 * holds a mutex; or the thread that holds one has ended. What needs a mutex that is not free in time is left out.
 */
#define OH_BOUND_LOCKS() uint64_t bound_ __attribute__((cleanup(oh_locks_restore), unused)) = oh_locks_bound()

/* Behind OH_LOCK(), of what may be called at the end of the process: whether the mutex is held. */
#define OH_IS_LOCKED() (locked_ != NULL)

/* Returns the result from the function, if it is an error: any but CUDA_SUCCESS or ncclSuccess, which are both 0. */
#define OH_TRY(result_)                                                                                                \
    do {                                                                                                               \
        const __typeof__(result_) tried_ = (result_);                                                                  \
        if (tried_ != 0) {                                                                                             \
            return tried_;                                                                                             \
        }                                                                                                              \
    } while (0)

#endif
