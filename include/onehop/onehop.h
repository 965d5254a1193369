/* SPDX-License-Identifier: MIT */
/*
 * onehop.h - public C API of libonehop.so
 *
 * A program needs none of this to be served: the library is loaded in front of NCCL and takes the calls it can
 * serve. The functions here let a program (or a tool) ask what happened. Look them up with dlsym if the library
 * may be absent.
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

#define ONEHOP_VERSION_MAJOR 0
#define ONEHOP_VERSION_MINOR 1
#define ONEHOP_VERSION_PATCH 0
#define ONEHOP_VERSION_CODE (ONEHOP_VERSION_MAJOR * 10000 + ONEHOP_VERSION_MINOR * 100 + ONEHOP_VERSION_PATCH)

/* Kernels that can serve a call; the order is part of the API. */
enum onehop_algorithm {
    ONEHOP_ONESHOT_LL = 0,
    ONEHOP_TWOSHOT_LL = 1,
    ONEHOP_TWOSHOT_PUSH = 2,
    ONEHOP_ONESHOT_MARKER = 3,
    ONEHOP_TWOSHOT_MARKER = 4,
    ONEHOP_ALGORITHMS = 5
};

/* What onehop knows of one communicator. Filled up to the size the caller passes, so it may grow at the end. */
typedef struct onehop_comm_info {
    int served;                        /* 1: eligible calls run on onehop, 0: all calls go to NCCL */
    int rank;                          /* this process's rank in the communicator */
    int nranks;                        /* ranks in the communicator */
    char reason[160];                  /* why not served; empty when served */
    uint64_t handed_back;              /* ncclAllReduce calls passed on to NCCL */
    uint64_t bytes;                    /* message bytes of the calls served */
    uint64_t staging_bytes;            /* device memory held for this communicator on this rank's GPU */
    double setup_ms;                   /* time that onehop added to the communicator's creation */
    uint64_t calls[ONEHOP_ALGORITHMS]; /* ncclAllReduce calls launched by onehop, by algorithm; may grow */
} onehop_comm_info_t;

/* Returns ONEHOP_VERSION_CODE of the loaded library. */
int onehopVersion(void);

/*
 * Fills *info (its first `size` bytes, pass sizeof *info) for an ncclComm_t.
 * Returns 0, or -1 when the communicator is unknown to onehop or an argument is NULL; *info is then untouched.
 */
int onehopCommInfo(const void *nccl_comm, onehop_comm_info_t *info, size_t size);

/* The name of an algorithm as used in logs and in ONEHOP_ALGO; NULL when out of range. Static storage. */
const char *onehopAlgorithmName(int algorithm);

#ifdef __cplusplus
}
#endif
#endif
