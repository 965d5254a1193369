/* SPDX-License-Identifier: MIT */
/*
 * check.c - calls compared between ranks (ONEHOP_CHECK_CALLS)
 *
 * Does: Writes each call that is executed to the segment, and compares it with those of the other ranks.
 * Threads: the thread that uses the communicator.
 * Owns: nothing; the records lie in the segment.
 */
#include "comm/watch/watch.h"

#include <inttypes.h>

#include "util/log.h"

/* A hash over all calls: it also shows a difference in calls that the records no longer hold. */
static uint64_t extend_hash(uint64_t hash, uint64_t count, uint32_t signature)
{
    hash = (hash ^ count) * UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ hash >> 32 ^ signature) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

static struct oh_check_entry *record_of(const struct oh_comm *comm, uint32_t rank, uint64_t number)
{
    return &comm->segment.shared->record[rank][number % OH_CHECK_ENTRY_COUNT];
}

/* seq_cst: of two ranks that write a record and then read the other's, at least one reads both. */
static void write_record(const struct oh_comm *comm, uint64_t count, uint32_t signature)
{
    struct oh_check_entry *record = record_of(comm, comm->id.rank, comm->serve.checked);
    atomic_store(&record->number, 0);
    atomic_store(&record->count, count);
    atomic_store(&record->signature, signature);
    atomic_store(&record->hash, comm->serve.check_hash);
    atomic_store(&record->number, comm->serve.checked);
}

static bool compare_with(const struct oh_call *call, uint32_t rank, uint32_t signature)
{
    struct oh_comm *comm = call->comm;
    const struct oh_check_entry *record = record_of(comm, rank, comm->serve.checked);
    char mine[OH_SIGNATURE_TEXT], theirs[OH_SIGNATURE_TEXT];
    const bool written = atomic_load(&record->number) == comm->serve.checked;
    const uint64_t count = atomic_load(&record->count), other = atomic_load(&record->signature);
    const bool same = atomic_load(&record->hash) == comm->serve.check_hash;
    if (same || !written || atomic_load(&record->number) != comm->serve.checked) {
        return true; /* or the record is not written yet, or is overwritten */
    }
    if (oh_comm_fail(comm, ncclInvalidUsage, OH_MAX_RANKS)) {
        oh_signature_format(signature, call->count, mine);
        oh_signature_format((uint32_t)other, count, theirs);
        bool earlier = count == call->count && other == signature;
        OH_WARN("comm %p: %s %" PRIu64 " is %s on rank %u and %s on rank %u: calls now return ncclInvalidUsage",
                (void *)comm->id.nccl, earlier ? "calls differ before call" : "call", comm->serve.checked, mine,
                comm->id.rank, theirs, rank);
    }
    return false;
}

ncclResult_t oh_check_call(const struct oh_call *call)
{
    struct oh_comm *comm = call->comm;
    /* The state first: before, the background thread may be writing what serving needs. */
    if (oh_comm_state(comm) != OH_COMM_SERVED || !comm->serve.check || !oh_call_is_counted(call)) {
        return ncclSuccess;
    }
    uint32_t signature = oh_signature_of(call, ONEHOP_ALGORITHM_COUNT);
    comm->serve.checked++;
    comm->serve.check_hash = extend_hash(comm->serve.check_hash, call->count, signature);
    write_record(comm, call->count, signature);
    for (uint32_t r = 0; r < comm->id.nranks; r++) {
        if (r != comm->id.rank && !compare_with(call, r, signature)) {
            return ncclInvalidUsage;
        }
    }
    return ncclSuccess;
}
