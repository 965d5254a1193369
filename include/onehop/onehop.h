/* SPDX-License-Identifier: MIT */
/*
 * onehop.h - public C API of libonehop.so
 *
 * A program needs none of this to be served: the library is loaded in front of NCCL and takes the calls it can
 * serve. The functions here let a program (or a tool) ask what happened. Do not link libonehop.so: where it is not
 * loaded, the program is to run all the same. Either look functions up by dlsym(RTLD_DEFAULT, ...), or declare them
 * weak by defining ONEHOP_WEAK before this header is included, and compare with NULL:
 *
 *   #define ONEHOP_WEAK
 *   #include <onehop/onehop.h>
 *   onehop_process_info_t info = {0};
 *   if (onehopProcessInfo && onehopProcessInfo(&info, sizeof info) == 0) ...
 *
 * Thread-safety: every function may be called from any thread; onehopCommInfo not while its communicator is being
 * created or destroyed by another thread.
 */
#ifndef ONEHOP_ONEHOP_H_
#define ONEHOP_ONEHOP_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(ONEHOP_WEAK)
#define ONEHOP_API __attribute__((weak))
#else
#define ONEHOP_API
#endif

#define ONEHOP_VERSION_MAJOR 0
#define ONEHOP_VERSION_MINOR 1
#define ONEHOP_VERSION_PATCH 0
#define ONEHOP_VERSION_CODE (ONEHOP_VERSION_MAJOR * 10000 + ONEHOP_VERSION_MINOR * 100 + ONEHOP_VERSION_PATCH)

/* Kernels that can serve a call; the order is part of the API. */
enum onehop_algorithm {
    ONEHOP_ONESHOT = 0,
    ONEHOP_TWOSHOT = 1,
    ONEHOP_ALGORITHMS = 2
};

/* Why a call went to NCCL; the order is part of the API. Words for each: onehopReasonText. */
enum onehop_reason {
    ONEHOP_REASON_OFF = 0,  /* the communicator is not served; onehop_comm_info_t says why */
    ONEHOP_REASON_OP = 1,   /* an operation that is not served */
    ONEHOP_REASON_TYPE = 2, /* a type that is not served */
    ONEHOP_REASON_SIZE = 3, /* a size that is not served */
    ONEHOP_REASONS = 4
};

/* Lengths of arrays below; what is behind the last algorithm or reason is 0. */
#define ONEHOP_ALGORITHMS_ROOM 16
#define ONEHOP_REASONS_ROOM 8

/*
 * What onehop knows of one communicator. A structure's version is its size: new fields come at the end, the library
 * fills in no more than the caller's size, and a caller that may meet an older library sets the structure to zero
 * first.
 */
typedef struct onehop_comm_info {
    int served;                                   /* 1: eligible calls run on onehop, 0: all calls go to NCCL, as they
                                                   * do before the communicator's first allreduce */
    int rank;                                     /* this process's rank in the communicator */
    int nranks;                                   /* ranks in the communicator */
    char reason[160];                             /* why not served; empty when served */
    uint64_t handed_back;                         /* ncclAllReduce calls passed on to NCCL */
    uint64_t bytes;                               /* message bytes of the calls served */
    uint64_t staging_bytes;                       /* device memory held for this communicator on this rank's GPU */
    double setup_ms;                              /* time that onehop took for presence and set-up */
    uint64_t calls[ONEHOP_ALGORITHMS_ROOM];       /* ncclAllReduce calls launched by onehop, by algorithm */
    uint64_t handed_back_by[ONEHOP_REASONS_ROOM]; /* handed_back, by reason */
    uint64_t handed_back_bytes;                   /* message bytes of the calls handed back */
} onehop_comm_info_t;

/* All communicators of the process, those that have ended included. */
typedef struct onehop_process_info {
    uint64_t communicators;     /* that live, and that onehop knows */
    uint64_t served;            /* of these: eligible calls run on onehop */
    uint64_t ended;             /* communicators that have been destroyed or aborted */
    uint64_t served_calls;      /* ncclAllReduce calls launched by onehop */
    uint64_t bytes;             /* message bytes of these */
    uint64_t handed_back;       /* ncclAllReduce calls passed on to NCCL */
    uint64_t handed_back_bytes; /* message bytes of these */
    uint64_t unknown_calls;     /* ncclAllReduce calls on communicators that onehop does not know */
    uint64_t staging_bytes;     /* device memory held for the communicators that live */
    uint64_t calls[ONEHOP_ALGORITHMS_ROOM];
    uint64_t handed_back_by[ONEHOP_REASONS_ROOM];
} onehop_process_info_t;

/* Returns ONEHOP_VERSION_CODE of the loaded library. */
ONEHOP_API int onehopVersion(void);

/*
 * Fills *info (its first `size` bytes, pass sizeof *info) for an ncclComm_t.
 * Returns 0, or -1 when the communicator is unknown to onehop or an argument is NULL; *info is then untouched.
 */
ONEHOP_API int onehopCommInfo(const void *nccl_comm, onehop_comm_info_t *info, size_t size);

/* The same for all of the process. Returns 0, or -1 when info is NULL. */
ONEHOP_API int onehopProcessInfo(onehop_process_info_t *info, size_t size);

/* A short name of a reason as in the statistics, and words for people; NULL when out of range. Static storage. */
ONEHOP_API const char *onehopReasonName(int reason);
ONEHOP_API const char *onehopReasonText(int reason);

/* The name of an algorithm as used in logs and in ONEHOP_ALGO; NULL when out of range. Static storage. */
ONEHOP_API const char *onehopAlgorithmName(int algorithm);

#ifdef __cplusplus
}
#endif
#endif
