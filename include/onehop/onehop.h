/* SPDX-License-Identifier: MIT */
/**
 * @file onehop.h - public C API of libonehop.so
 *
 * A program needs none of these functions to be served. They return what onehop did with its calls.
 *
 * Do not link libonehop.so: a program has to run where it is not loaded. Look the functions up by
 * dlsym(RTLD_DEFAULT, ...), or define ONEHOP_WEAK before including this header, and compare them with NULL:
 *
 *   #define ONEHOP_WEAK
 *   #include <onehop/onehop.h>
 *   onehop_process_info_t info = {0};
 *   if (onehopProcessInfo && onehopProcessInfo(&info, sizeof info) == 0) ...
 *
 * All functions are thread-safe; onehopCommInfo has one condition.
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

/** Collectives that onehop has kernels for. The order is part of the API. */
enum onehop_collective {
    ONEHOP_ALLREDUCE = 0,     /**< ncclAllReduce */
    ONEHOP_ALLGATHER = 1,     /**< ncclAllGather */
    ONEHOP_REDUCESCATTER = 2, /**< ncclReduceScatter */
    ONEHOP_BROADCAST = 3,     /**< ncclBroadcast and ncclBcast */
    ONEHOP_COLLECTIVE_COUNT = 4
};

/** Algorithms of onehop's kernels. The order is part of the API. */
enum onehop_algorithm {
    ONEHOP_ONESHOT = 0, /**< one hop: each rank sends what the others need of it, and reduces what it receives */
    ONEHOP_TWOSHOT = 1, /**< two hops: each rank reduces one chunk and sends the result to all peers */
    ONEHOP_ALGORITHM_COUNT = 2
};

/** Reasons for fallbacks: calls of a collective above that NCCL served. The order is part of the API. */
enum onehop_fallback {
    ONEHOP_FALLBACK_COMM = 0, /**< the communicator is not served; onehop_comm_info_t has the reason */
    ONEHOP_FALLBACK_OP = 1,   /**< onehop does not serve the operation */
    ONEHOP_FALLBACK_TYPE = 2, /**< onehop does not serve the datatype */
    ONEHOP_FALLBACK_SIZE = 3, /**< onehop does not serve the size */
    ONEHOP_FALLBACK_KIND = 4, /**< onehop serves no size of the collective: ONEHOP_COLLECTIVES, or the tuning table */
    ONEHOP_FALLBACK_COUNT = 5
};

/** Lengths of the arrays below. Elements from the last algorithm or reason on are 0. */
#define ONEHOP_MAX_COLLECTIVES 16
#define ONEHOP_MAX_ALGORITHMS 16
#define ONEHOP_MAX_FALLBACKS 8

/**
 * State and counters of one communicator on this rank.
 *
 * The structure's version is its size: new fields are added at the end. The library fills at most the size that the
 * caller passes. A caller that may meet an older library sets the structure to zero first.
 */
typedef struct onehop_comm_info {
    int served;              /**< 1: onehop serves the communicator's eligible calls; 0: all its calls go to NCCL,
                              * as they do before the first collective */
    int rank;                /**< rank of this process in the communicator */
    int nranks;              /**< ranks of the communicator */
    char reason[160];        /**< why the communicator is not served; empty if it is */
    uint64_t fallback_calls; /**< calls of a collective above that NCCL served */
    uint64_t bytes;          /**< message bytes of the calls that onehop served */
    uint64_t staging_bytes;  /**< device memory held for the communicator on this rank's GPU */
    double attach_ms;        /**< time that onehop took for presence and attach, in milliseconds */
    uint64_t calls_by_algorithm[ONEHOP_MAX_ALGORITHMS];   /**< calls that onehop served */
    uint64_t fallback_by_reason[ONEHOP_MAX_FALLBACKS];    /**< fallback_calls, by enum onehop_fallback */
    uint64_t fallback_bytes;                              /**< message bytes of fallback_calls */
    uint64_t calls_by_collective[ONEHOP_MAX_COLLECTIVES]; /**< calls that onehop served */
} onehop_comm_info_t;

/** Sums over all communicators of the process, including those that have ended. */
typedef struct onehop_process_info {
    uint64_t communicators;                               /**< live communicators that onehop knows */
    uint64_t served_communicators;                        /**< those of them that are served */
    uint64_t ended_communicators;                         /**< communicators that were destroyed or aborted */
    uint64_t served_calls;                                /**< calls that onehop served */
    uint64_t bytes;                                       /**< message bytes of served_calls */
    uint64_t fallback_calls;                              /**< calls of a collective above that NCCL served */
    uint64_t fallback_bytes;                              /**< message bytes of fallback_calls */
    uint64_t unknown_calls;                               /**< such calls on communicators that onehop does not know */
    uint64_t staging_bytes;                               /**< device memory held for the live communicators */
    uint64_t calls_by_algorithm[ONEHOP_MAX_ALGORITHMS];   /**< served_calls, by enum onehop_algorithm */
    uint64_t fallback_by_reason[ONEHOP_MAX_FALLBACKS];    /**< fallback_calls, by enum onehop_fallback */
    uint64_t calls_by_collective[ONEHOP_MAX_COLLECTIVES]; /**< served_calls, by enum onehop_collective */
} onehop_process_info_t;

/**
 * Returns the version of the loaded library, as ONEHOP_VERSION_CODE is for this header.
 */
ONEHOP_API int onehopVersion(void);

/**
 * Gets the state and counters of a communicator.
 *
 * Other threads may use the communicator meanwhile, but must not create or destroy it.
 *
 * @param nccl_comm  an ncclComm_t
 * @param info       is filled up to `size` bytes; unchanged on error
 * @param size       sizeof *info
 * @return 0, or -1 if onehop does not know the communicator or an argument is NULL.
 */
ONEHOP_API int onehopCommInfo(const void *nccl_comm, onehop_comm_info_t *info, size_t size);

/**
 * Gets the sums over all communicators of the process.
 *
 * @param info  is filled up to `size` bytes
 * @param size  sizeof *info
 * @return 0, or -1 if info is NULL.
 */
ONEHOP_API int onehopProcessInfo(onehop_process_info_t *info, size_t size);

/**
 * Returns the name of a reason as in the statistics ("comm", "op", "type", "size"), and a text for people.
 *
 * @param reason  enum onehop_fallback
 * @return a static string, or NULL if reason is out of range.
 */
ONEHOP_API const char *onehopFallbackName(int reason);
ONEHOP_API const char *onehopFallbackText(int reason);

/**
 * Returns the name of an algorithm as in logs and in ONEHOP_ALGO ("oneshot", "twoshot").
 *
 * @param algorithm  enum onehop_algorithm
 * @return a static string, or NULL if algorithm is out of range.
 */
ONEHOP_API const char *onehopAlgorithmName(int algorithm);

/**
 * Returns the name of a collective as in logs and in ONEHOP_COLLECTIVES ("allreduce", "allgather", ...).
 *
 * @param collective  enum onehop_collective
 * @return a static string, or NULL if collective is out of range.
 */
ONEHOP_API const char *onehopCollectiveName(int collective);

/**
 * Returns NCCL's own function, to compare with: onehop serves calls by ncclX and by pncclX. All ranks must make the
 * same calls by it.
 *
 * @param name  an NCCL function that onehop exports, "ncclAllReduce"
 * @return its address, or NULL if NCCL is not loaded or has no such function, or onehop does not export it.
 */
ONEHOP_API void *onehopStockFunction(const char *name);

#ifdef __cplusplus
}
#endif
#endif
