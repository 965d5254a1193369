/* SPDX-License-Identifier: MIT */
/*
 * failure.h - communicators that have failed, and what ranks tell each other of their calls
 *
 * Inside of src/comm, but for oh_comm_failure and oh_comm_fail. A failure is final: `served` is false, so that the next
 * call takes the way of those that NCCL serves, and is refused there. A failure costs the calls of a sound communicator
 * nothing. The rank that detects a failure logs why; the other ranks read the failure in the segment.
 *
 * Fail-stop: a failure ends no kernel. A kernel that waits goes on waiting, so that its stream never completes with a
 * wrong result; it leaves when the program aborts, revokes, shrinks with the abort flag, or destroys
 * (oh_comm_release_kernels).
 */
#ifndef OH_COMM_WATCH_FAILURE_H_
#define OH_COMM_WATCH_FAILURE_H_

#include "comm/comm_internal.h"

/* Algorithm, type and op of a call in one word; algorithm ONEHOP_ALGORITHM_COUNT: none, it is not known yet. */
static inline uint32_t oh_signature_pack(int algorithm, ncclDataType_t type, enum oh_kernel_op op)
{
    return (uint32_t)algorithm | (uint32_t)type << 8 | (uint32_t)op << 16;
}

/* The same in words, with the number of elements: "sum of 5 x float32, oneshot". Takes any values. */
#define OH_SIGNATURE_TEXT 96
void oh_signature_format(uint32_t signature, uint64_t count, char *text_p);

/* Who a rank is, and how far: "rank 2 (pid 7, 16 calls, the last a sum of 5 x float32, oneshot)". */
#define OH_RANK_TEXT 256
void oh_rank_text(const struct oh_comm *comm, uint32_t rank, char *text_p);

/* How a rank has left. */
enum oh_rank_state oh_rank_state_get(const struct oh_comm *comm, uint32_t rank);

/* Tells the others how this rank has left the communicator. */
void oh_rank_state_publish(struct oh_comm *comm, enum oh_rank_state rank_state);

/* A failure, as the ranks tell each other. */
struct oh_failure {
    ncclResult_t error;     /* ncclSuccess: none */
    uint32_t detected_by;   /* that has noticed it first */
    uint32_t departed_rank; /* the rank that is gone; OH_MAX_RANKS: none is */
};

/* Lets kernels that wait leave without a result: the program has ended the communicator. Thread-safe. */
void oh_comm_release_kernels(struct oh_comm *comm);

/* Makes kernels that wait trap, if they have not been let go. */
void oh_comm_trap_kernels(struct oh_comm *comm);

/* What the first rank that failed has said. */
struct oh_failure oh_segment_failure(const struct oh_comm *comm);

/*
 * Notes that this rank makes `calls` more calls, of which the last has `count` elements; returns its number. Who reads
 * what or count of this call by acquire sees `begun_calls` as it is here: so a reader knows whether all belongs
 * together (oh_read_last_call). Plain stores on x86.
 */
static inline uint64_t oh_progress_add(struct oh_comm *comm, size_t calls, uint32_t signature, uint64_t count)
{
    struct oh_progress *progress = comm->serve.progress;
    comm->serve.launched_calls += calls;
    atomic_store_explicit(&progress->begun_calls, comm->serve.launched_calls, memory_order_relaxed);
    atomic_store_explicit(&progress->signature, signature, memory_order_release);
    atomic_store_explicit(&progress->count, (uint32_t)count, memory_order_release);
    atomic_store_explicit(&progress->calls, comm->serve.launched_calls, memory_order_release);
    return comm->serve.launched_calls;
}

/* A rank's last call. */
struct oh_last_call {
    uint64_t number;
    uint32_t signature;
    uint32_t count;
};

/* False: the rank is just changing it, or ended when it did; the number is the last one that stood. */
bool oh_read_last_call(const struct oh_progress *progress, struct oh_last_call *call_p);

/*
 * ONEHOP_CHECK_CALLS=1: compares the call with those that the other ranks have made under its number. False: they
 * differ; it has been said, and the communicator has failed.
 */
bool oh_check_call(const struct oh_call *call);

#endif
