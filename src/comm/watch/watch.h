/* SPDX-License-Identifier: MIT */
/*
 * watch.h - failures of a communicator, how they are detected, and calls as the other ranks read them
 *
 * Does: failure.c publishes rank states and last calls in the segment, and makes a communicator fail on all ranks. The
 *    rank that detects a failure logs it; the others read it in the segment. A failed communicator is not SERVED, so
 *    the next call goes the way of calls that NCCL serves, where it is refused; the calls of a sound communicator pay
 *    nothing. Fail-stop: a failure ends no kernel. A kernel that waits goes on, so that its stream never completes with
 *    a wrong result, until the program aborts, revokes, shrinks with the abort flag, or destroys
 *    (oh_kernels_abort).
 *    check.c compares the calls of the ranks, difference.c reports results that differ from NCCL's.
 *    monitor.c polls, every 80 ms and when a peer's process ends, the words that kernels and ranks store in host
 *    memory. A peer has departed when it sends nothing more: its process has ended, it has aborted the communicator, or
 *    it has destroyed it and closed its peers' memory. Then the communicator fails if a call of this rank waits, in a
 *    kernel of onehop or in an eager allreduce that NCCL serves, or if a call that needs the peer is made. A departure
 *    alone is no failure: programs end their ranks in any order and in any way.
 * Threads: the thread that uses the communicator, unless a function says any. The monitor is one background thread a
 *    process. It calls the driver only where a peer has departed while NCCL serves a call.
 * Owns: the list of monitored communicators.
 */
#ifndef OH_COMM_WATCH_WATCH_H_
#define OH_COMM_WATCH_WATCH_H_

#include "comm/comm_internal.h"

/* --- failure.c ---------------------------------------------------------------------------------------------------- */

/* Algorithm, type, op, kind and root of a call in one word; algorithm ONEHOP_ALGORITHM_COUNT: not chosen yet. */
static inline uint32_t oh_signature_of(const struct oh_call *call, int algorithm)
{
    return (uint32_t)algorithm | (uint32_t)call->type << 8 | (uint32_t)call->op.kind << 16 |
           (uint32_t)call->kind << 24 | (uint32_t)(call->root & 0xf) << 28;
}

/* The elements of a call, for people. */
static inline uint32_t oh_report_count(uint64_t count)
{
    return count < UINT32_MAX ? (uint32_t)count : UINT32_MAX;
}

/* Writes "a sum of 5 x float32, oneshot", or "a broadcast from 0 of ...", of what it is given; from any values. */
#define OH_SIGNATURE_TEXT 96
void oh_signature_format(uint32_t signature, uint64_t count, char *text_p);

/* Writes "rank 2 (pid 7, 16 calls, the last a sum of 5 x float32, oneshot)". */
#define OH_RANK_TEXT 256
void oh_rank_text(const struct oh_comm *comm, uint32_t rank, char *text_p);

/* The state that a rank has published. Any thread. */
enum oh_rank_state oh_rank_state_get(const struct oh_comm *comm, uint32_t rank);

/* Publishes how this rank has left the communicator. Any thread. */
void oh_rank_state_publish(struct oh_comm *comm, enum oh_rank_state rank_state);

/* The first failure, as the segment has it. */
struct oh_failure {
    ncclResult_t error; /* ncclSuccess: none */
    uint32_t detected_by;
    uint32_t departed_rank; /* OH_MAX_RANKS: none */
};
struct oh_failure oh_failure_read(const struct oh_comm *comm);

/*
 * Makes the communicator fail with an NCCL error code on this rank, and, through the segment, on all others: with
 * ncclRemoteError there, if the error is one of this rank's driver. departed_rank: the rank whose departure is the
 * reason; OH_MAX_RANKS: none. Returns false if the communicator had failed before. Any thread.
 */
bool oh_comm_fail(struct oh_comm *comm, ncclResult_t error, uint32_t departed_rank);

/*
 * Returns the error with which the caller must refuse its call; ncclSuccess: none. needs_departed: the call needs a
 * peer that has departed, so the communicator fails. After an error no replay of this rank's graphs sends anything:
 * another rank may have launched the kernel of the call that is refused here, and the replay's kernel would take its
 * number. Called by the thread that uses the communicator, which retains it.
 */
ncclResult_t oh_comm_refuse_call(struct oh_comm *comm, bool needs_departed);

/* Makes kernels that wait return without a result: the program has ended the communicator. Any thread. */
void oh_kernels_abort(struct oh_comm *comm);

/* Makes kernels that wait trap. Returns false if they were released, or made to trap, before. Any thread. */
bool oh_kernels_trap(struct oh_comm *comm);

/*
 * Publishes that this rank makes `calls` more calls, of which the last has `count` elements; returns its number.
 * release: a reader that loads `signature` or `count` of this call also loads this `begun_calls`. Pairs with the
 * acquire loads in oh_read_last_call(), which could else mix two calls. Plain stores on x86.
 */
static inline uint64_t oh_progress_add(struct oh_comm *comm, size_t calls, uint32_t signature, uint64_t count)
{
    struct oh_progress *progress = comm->serve.progress;
    comm->serve.launched_calls += calls;
    atomic_store_explicit(&progress->begun_calls, comm->serve.launched_calls, memory_order_relaxed);
    atomic_store_explicit(&progress->signature, signature, memory_order_release);
    atomic_store_explicit(&progress->count, oh_report_count(count), memory_order_release);
    atomic_store_explicit(&progress->calls, comm->serve.launched_calls, memory_order_release);
    return comm->serve.launched_calls;
}

/* A rank's last call. */
struct oh_last_call {
    uint64_t number;
    uint32_t signature;
    uint32_t count;
};

/* False: the rank is changing it, or ended meanwhile; then the number alone is valid. */
bool oh_read_last_call(const struct oh_progress *progress, struct oh_last_call *call_p);

/* --- check.c ------------------------------------------------------------------------------------------------------ */

/*
 * ONEHOP_CHECK_CALLS=1: compares a call that is executed with the calls of the other ranks that have its number.
 * Returns ncclSuccess, or ncclInvalidUsage (logged): the calls differ, and the communicator has failed.
 */
ncclResult_t oh_check_call(const struct oh_call *call);

/* --- difference.c ------------------------------------------------------------------------------------------------- */

/*
 * ONEHOP_VERIFY: returns true if there is a result that differs from NCCL's and is not reported, and writes a sentence
 * on the last one. With ONEHOP_VERIFY_FATAL the communicator has failed then. Any thread.
 */
#define OH_DIFFERENCE_TEXT 512
bool oh_difference_report(struct oh_comm *comm, char *line_p, size_t size);

/* The same, and logs the sentence (WARN). Returns ncclInternalError if any result has failed the communicator. */
ncclResult_t oh_difference_log(struct oh_comm *comm);

/* --- monitor.c ---------------------------------------------------------------------------------------------------- */

/* Starts the thread, before a rank votes. False: there is none, so nothing may be served. */
bool oh_monitor_start(void);

/* Watches a communicator from now on; it is in CUTOVER. */
void oh_monitor_add(struct oh_comm *comm);

/*
 * Watches it no more. The monitor does not use the communicator afterwards, once oh_monitor_is_asking returns false.
 * Also for a communicator that is not watched.
 */
void oh_monitor_remove(struct oh_comm *comm);
bool oh_monitor_is_asking(const struct oh_comm *comm);

#endif
