/* SPDX-License-Identifier: MIT */
/*
 * scope.h - leaving a block or a function
 *
 * Does: OH_KEEP_ERRNO() saves errno, and the end of the enclosing block restores it: a program may rely on what its
 *    NCCL does to errno, so onehop's own work must not change it. OH_LOCK() holds a mutex up to the end of the block.
 *    OH_TRY() returns an error from the function.
 * Threads: any.
 * Owns: nothing.
 */
#ifndef OH_UTIL_SCOPE_H_
#define OH_UTIL_SCOPE_H_

#include <errno.h>
#include <pthread.h>

static inline void oh_errno_restore(const int *saved)
{
    errno = *saved;
}

#define OH_KEEP_ERRNO() int saved_errno_ __attribute__((cleanup(oh_errno_restore), unused)) = errno

static inline pthread_mutex_t *oh_lock(pthread_mutex_t *mutex)
{
    pthread_mutex_lock(mutex);
    return mutex;
}

static inline void oh_unlock(pthread_mutex_t *const *mutex)
{
    pthread_mutex_unlock(*mutex);
}

#define OH_LOCK(mutex_) pthread_mutex_t *const locked_ __attribute__((cleanup(oh_unlock), unused)) = oh_lock(mutex_)

/* Returns the result from the function, if it is an error: any but CUDA_SUCCESS or ncclSuccess, which are both 0. */
#define OH_TRY(result_)                                                                                                \
    do {                                                                                                               \
        const __typeof__(result_) tried_ = (result_);                                                                  \
        if (tried_ != 0) {                                                                                             \
            return tried_;                                                                                             \
        }                                                                                                              \
    } while (0)

#endif
