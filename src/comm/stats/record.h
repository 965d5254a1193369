/* SPDX-License-Identifier: MIT */
/*
 * record.h - what was served, as numbers that leave the process
 *
 * Does: Defines a record of one rank of one communicator. When the communicator ends, the record is written as
 *    ONEHOP_STATS asks, and as a line of JSON to the file that ONEHOP_STATS_FILE names, where `onehop run --stats` and
 *    `onehop doctor` add up those of all processes. Before, `onehop stat` reads it on the live page (live.h).
 * Threads: pure functions; counters are atomic.
 * Owns: nothing.
 */
#ifndef OH_COMM_STATS_RECORD_H_
#define OH_COMM_STATS_RECORD_H_

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "onehop/onehop.h"

#define OH_REASON_BYTES 160 /* as in onehop_comm_info_t */

/* X(identifier, key in the statistics, words for people): why a call fell back to NCCL. */
#define OH_FALLBACK_REASONS(X)                                                                                         \
    X(COMM, "comm", "the communicator is not served")                                                                  \
    X(OP, "op", "an operation that is not served")                                                                     \
    X(TYPE, "type", "a type that is not served")                                                                       \
    X(SIZE, "size", "a size that is not served")

enum oh_fallback {
#define OH_FALLBACK_ENUM(identifier_, key_, words_) OH_FALLBACK_##identifier_,
    OH_FALLBACK_REASONS(OH_FALLBACK_ENUM)
#undef OH_FALLBACK_ENUM
    OH_FALLBACK_COUNT
};

/* X(identifier, key) */
#define OH_STATES(X)                                                                                                   \
    X(IDLE, "idle")           /* no allreduce yet that could be served: nothing is held for it */                      \
    X(ATTACHING, "attaching") /* its calls go to NCCL as yet */                                                        \
    X(SERVED, "served")       /* from now on */                                                                        \
    X(FALLBACK, "fallback")   /* for good, with a reason */                                                            \
    X(FAILED, "failed")       /* its calls return an error */                                                          \
    X(ENDED, "ended")         /* was served; finalized, aborted or revoked since, or a peer has departed */            \
    X(UNREACHED, "unreached") /* of a process: NCCL has made communicators, and no call came to onehop */

enum oh_state {
#define OH_STATE_ENUM(identifier_, key_) OH_STATE_##identifier_,
    OH_STATES(OH_STATE_ENUM)
#undef OH_STATE_ENUM
    OH_STATE_COUNT
};

/* The numbers of a communicator: by name, and in one array, by which they are copied and added up. */
#define OH_COUNTS (ONEHOP_ALGORITHM_COUNT + OH_FALLBACK_COUNT + 2)
#define OH_COUNTS_OF(type_)                                                                                            \
    union {                                                                                                            \
        struct {                                                                                                       \
            type_ calls[ONEHOP_ALGORITHM_COUNT]; /* served */                                                          \
            type_ bytes;                         /* of these */                                                        \
            type_ fallbacks[OH_FALLBACK_COUNT];  /* by reason */                                                       \
            type_ fallback_bytes;                /* of these */                                                        \
        };                                                                                                             \
        type_ counts[OH_COUNTS];                                                                                       \
    }

/*
 * One thread at a time uses a communicator (NCCL's own rule), so counting is a load and a store; anybody may read
 * meanwhile, from another process too.
 */
struct oh_counters {
    OH_COUNTS_OF(atomic_uint_fast64_t);
};
_Static_assert(sizeof(struct oh_counters) == OH_COUNTS * sizeof(atomic_uint_fast64_t), "OH_COUNTS counts all");

static inline void oh_counter_add(atomic_uint_fast64_t *counter, uint64_t more)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + more, memory_order_relaxed);
}

/* One rank of one communicator; without ranks: the calls of a process on communicators that onehop does not know. */
struct oh_stats_record {
    uint64_t pid;
    uint64_t comm; /* the same number on all ranks, another for each communicator */
    uint64_t rank;
    uint64_t nranks;
    uint64_t state; /* enum oh_state */
    OH_COUNTS_OF(uint64_t);
    uint64_t memory; /* of the GPU, bytes */
    uint64_t attach_us;
    char reason[OH_REASON_BYTES]; /* why the communicator is not served; empty when it is */
};

#define OH_STATS_LINE 1536 /* enough for a record in each form, with its newline and final zero */

/* Why calls fall back on a communicator that onehop does not know: its creator is not followed, or off. */
#define OH_STRANGE_REASON "made by a function that onehop does not follow, or while onehop was off or not loaded yet"

/* Why no call comes to onehop in a process that NCCL_NET_PLUGIN has brought it into. It may make none. */
#define OH_UNREACHED_REASON                                                                                            \
    "if the program makes any, they go to NCCL by addresses that dlsym gave before the first communicator"

/* Sums over algorithms, over reasons. */
uint64_t oh_stats_served(const struct oh_stats_record *record);
uint64_t oh_stats_fallbacks(const struct oh_stats_record *record);

/* Adds the counts and the memory of a record to a sum. */
void oh_stats_add(struct oh_stats_record *sum, const struct oh_stats_record *record);

/* Copies the counters into the record. */
void oh_stats_copy(const struct oh_counters *counters, struct oh_stats_record *record_p);

/* Key and words of a reason, key of a state; NULL when out of range. Static storage. */
const char *oh_fallback_name(int back);
const char *oh_fallback_text(int back);
const char *oh_state_key(uint64_t state);

/* Write the record as text, as a JSON object: one line without a newline. Return its length, below OH_STATS_LINE. */
size_t oh_stats_text(const struct oh_stats_record *record, char line_p[OH_STATS_LINE]);
size_t oh_stats_json(const struct oh_stats_record *record, char line_p[OH_STATS_LINE]);

/* Makes bytes from elsewhere one line of printable ASCII that ends within size. */
void oh_stats_clean(char *text, size_t size);

#endif
