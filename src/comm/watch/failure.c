/* SPDX-License-Identifier: MIT */
/*
 * failure.c - rank states and failures
 *
 * Does: Publishes how far a rank is, and makes a communicator fail on all ranks.
 * Threads: the thread that uses the communicator; oh_comm_fail and the release functions: any.
 * Owns: nothing; the words lie in the segment and in struct oh_comm.
 */
#include "comm/watch/watch.h"

#include <inttypes.h>
#include <stdio.h>

#include "util/log.h"
#include "util/scope.h"

/* --- words -------------------------------------------------------------------------------------------------------- */

static const char *op_name(uint32_t op)
{
    static const char *const names[OH_OPS] = {
        [OH_OP_SUM] = "sum", [OH_OP_PROD] = "prod", [OH_OP_MIN] = "min",
        [OH_OP_MAX] = "max", [OH_OP_AVG] = "avg",   [OH_OP_SCALED_SUM] = "scaled sum",
    };
    return op < OH_OPS ? names[op] : "?";
}

static const char *type_name(uint32_t type)
{
    static const char *const names[OH_NCCL_TYPES] = {"int8",    "uint8",   "int32",   "uint32",   "int64",   "uint64",
                                                     "float16", "float32", "float64", "bfloat16", "fp8e4m3", "fp8e5m2"};
    return type < OH_NCCL_TYPES ? names[type] : "?";
}

/* "a sum", "a reduce-scatter, sum", "a broadcast from 0" */
static void format_kind(uint32_t signature, char *text_p, size_t size)
{
    const char *op = op_name(signature >> 16 & 0xff);
    switch (signature >> 24 & 0xf) {
    case OH_CALL_ALLREDUCE:
        snprintf(text_p, size, "a %s", op);
        break;
    case OH_CALL_ALL_GATHER:
        snprintf(text_p, size, "an all-gather");
        break;
    case OH_CALL_REDUCE_SCATTER:
        snprintf(text_p, size, "a reduce-scatter, %s", op);
        break;
    case OH_CALL_BROADCAST:
        snprintf(text_p, size, "a broadcast from %u", signature >> 28);
        break;
    default:
        snprintf(text_p, size, "?");
    }
}

void oh_signature_format(uint32_t signature, uint64_t count, char *text_p)
{
    char kind[40];
    uint32_t algorithm = signature & 0xff;
    bool known = algorithm < ONEHOP_ALGORITHM_COUNT;
    format_kind(signature, kind, sizeof kind);
    snprintf(text_p, OH_SIGNATURE_TEXT, "%s of %" PRIu64 " x %s%s%s", kind, count, type_name(signature >> 8 & 0xff),
             known ? ", " : "", known ? oh_algorithm_name((int)algorithm) : "");
}

/* acquire: pairs with the release stores in oh_progress_add(). With equal numbers the fields are of one call. */
bool oh_read_last_call(const struct oh_progress *progress, struct oh_last_call *call_p)
{
    call_p->number = atomic_load_explicit(&progress->calls, memory_order_acquire);
    call_p->signature = atomic_load_explicit(&progress->signature, memory_order_acquire);
    call_p->count = atomic_load_explicit(&progress->count, memory_order_acquire);
    return atomic_load_explicit(&progress->begun_calls, memory_order_relaxed) == call_p->number;
}

void oh_rank_text(const struct oh_comm *comm, uint32_t rank, char *text_p)
{
    static const char *const states[] = {"", "; it has ended the communicator", "; it has aborted the communicator",
                                         "; it has called exit()"};
    struct oh_last_call last;
    char signature[OH_SIGNATURE_TEXT];
    bool known = oh_read_last_call(&comm->segment.shared->progress[rank], &last) && last.number > 0;
    oh_signature_format(last.signature, last.count, signature);
    snprintf(text_p, OH_RANK_TEXT, "rank %u (pid %d, %" PRIu64 " calls%s%s%s)", rank,
             (int)comm->segment.shared->peer_info[rank].pid, last.number, known ? ", the last " : "",
             known ? signature : "", states[oh_rank_state_get(comm, rank)]);
}

/* --- rank states and failures ------------------------------------------------------------------------------------- */

enum oh_rank_state oh_rank_state_get(const struct oh_comm *comm, uint32_t rank)
{
    uint32_t rank_state = atomic_load(&comm->segment.shared->progress[rank].rank_state);
    return rank_state <= OH_RANK_EXITED ? (enum oh_rank_state)rank_state : OH_RANK_ACTIVE;
}

/*
 * Also before this rank's cutover: the other ranks may have passed theirs. NULL: there is no segment, so no rank waits
 * for this one; or NCCL still creates the communicator. With the mutex held.
 */
static struct oh_progress *own_progress(const struct oh_comm *comm)
{
    bool known = comm->id.nranks > 0 && comm->id.nranks <= OH_MAX_RANKS;
    return known && comm->segment.shared ? &comm->segment.shared->progress[comm->id.rank] : NULL;
}

void oh_rank_state_publish(struct oh_comm *comm, enum oh_rank_state rank_state)
{
    uint32_t none = OH_RANK_ACTIVE;
    OH_LOCK(&comm->attach.mutex);
    struct oh_progress *progress = OH_IS_LOCKED() ? own_progress(comm) : NULL;
    if (!progress) {
        return; /* no rank reads it */
    }
    if (rank_state == OH_RANK_ABORTED) {
        atomic_store(&progress->rank_state, rank_state);
    } else {
        atomic_compare_exchange_strong(&progress->rank_state, &none, rank_state);
    }
}

bool oh_comm_is_in_use(const struct oh_comm *comm)
{
    return atomic_load(&comm->health.end) == OH_END_NONE;
}

bool oh_comm_fail(struct oh_comm *comm, ncclResult_t error, uint32_t departed_rank)
{
    int none = ncclSuccess;
    uint32_t nobody = 0, word = (uint32_t)error << 16 | departed_rank << 8 | comm->id.rank;
    if (!atomic_compare_exchange_strong(&comm->health.failure, &none, error)) {
        return false;
    }
    oh_comm_enter(comm, OH_COMM_FAILED);
    OH_LOCK(&comm->attach.mutex);
    oh_comm_publish_facts(comm);
    if (comm->segment.shared) {
        atomic_compare_exchange_strong(&comm->segment.shared->failed, &nobody, word);
    }
    return true;
}

static void hold_graphs(struct oh_comm *comm)
{
    if (comm->health.held || atomic_load_explicit(&comm->order.graphs, memory_order_relaxed) == 0) {
        return;
    }
    CUresult result = oh_staging_hold(&comm->staging);
    comm->health.held = result == CUDA_SUCCESS; /* else the next call that is refused tries again */
    if (result != CUDA_SUCCESS) {
        OH_WARN("comm %p rank %u of %u: %s while its graphs are stopped: a replay can give a wrong result",
                OH_COMM_VALUES(comm), oh_driver_error_name(result));
    }
}

void oh_kernels_abort(struct oh_comm *comm)
{
    /* release: pairs with the load in oh_abort_check(), kernels/wait.cuh */
    __atomic_store_n(&comm->staging.control->abort_flag, OH_ABORT_LEAVE, __ATOMIC_RELEASE);
}

bool oh_kernels_trap(struct oh_comm *comm)
{
    uint32_t none = OH_ABORT_NONE;
    /* release: as in oh_kernels_abort() */
    return __atomic_compare_exchange_n(&comm->staging.control->abort_flag, &none, OH_ABORT_TRAP, false,
                                       __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

struct oh_failure oh_failure_read(const struct oh_comm *comm)
{
    uint32_t word = atomic_load(&comm->segment.shared->failed), error = word >> 16, departed_rank = word >> 8 & 0xff;
    bool known = error == ncclSuccess || error == ncclInvalidUsage || error == ncclInternalError;
    return (struct oh_failure){
        .error = known ? (ncclResult_t)error : ncclRemoteError,
        .detected_by = word & 0xff,
        .departed_rank = departed_rank < comm->id.nranks ? departed_rank : OH_MAX_RANKS,
    };
}

/* A call is made after a peer has departed. */
static void fail_without_departed(struct oh_comm *comm)
{
    const uint32_t rank = atomic_load(&comm->health.departed_peer);
    char text[OH_RANK_TEXT];
    if (oh_comm_fail(comm, ncclRemoteError, rank)) {
        oh_rank_text(comm, rank, text);
        OH_WARN("comm %p rank %u of %u: a call after the departure of %s: calls now return ncclRemoteError",
                OH_COMM_VALUES(comm), text);
    }
}

ncclResult_t oh_comm_refuse_call(struct oh_comm *comm, bool needs_departed)
{
    if (needs_departed) {
        fail_without_departed(comm);
    }
    const ncclResult_t failure = oh_comm_error(comm);
    if (failure != ncclSuccess) {
        hold_graphs(comm);
    }
    return failure;
}

void oh_comm_revoked(struct oh_comm *comm)
{
    atomic_store(&comm->health.failure, ncclSuccess);
}
