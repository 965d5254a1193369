/* SPDX-License-Identifier: MIT */
/*
 * record.h - what was served, as numbers that leave the process
 *
 * Does: Defines a record of one rank of one communicator. When the communicator ends, the record is written as
 *    ONEHOP_STATS asks, and as a line of JSON to the file that ONEHOP_STATS_FILE names, where `onehop run --stats` and
 *    `onehop doctor` add up those of all processes. Before, `onehop stat` reads it on the live page.
 * Threads: pure functions; counters are atomic.
 * Owns: the live page, for the life of the process.
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
    X(SIZE, "size", "a size that is not served")                                                                       \
    X(KIND, "kind", "a collective that is not served")

enum oh_fallback {
#define OH_FALLBACK_ENUM(identifier_, key_, words_) OH_FALLBACK_##identifier_,
    OH_FALLBACK_REASONS(OH_FALLBACK_ENUM)
#undef OH_FALLBACK_ENUM
    OH_FALLBACK_COUNT,
    OH_FALLBACK_NONE = OH_FALLBACK_COUNT /* onehop executes the call */
};

/* X(identifier, key) */
#define OH_STATES(X)                                                                                                   \
    X(IDLE, "idle")           /* no call yet that could be served: nothing is held for it */                           \
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
#define OH_COUNTS (ONEHOP_ALGORITHM_COUNT + ONEHOP_COLLECTIVE_COUNT + OH_FALLBACK_COUNT + 4)
#define OH_COUNTS_OF(type_)                                                                                            \
    union {                                                                                                            \
        struct {                                                                                                       \
            type_ calls[ONEHOP_ALGORITHM_COUNT];        /* served */                                                   \
            type_ collectives[ONEHOP_COLLECTIVE_COUNT]; /* the same calls */                                           \
            type_ bytes;                                /* of these */                                                 \
            type_ fallbacks[OH_FALLBACK_COUNT];         /* by reason */                                                \
            type_ fallback_bytes;                       /* of these */                                                 \
            type_ nccl_allreduces;                      /* of these, with elements: sums in an order of NCCL's */      \
            type_ verified;                             /* served calls that NCCL has made, too (ONEHOP_VERIFY) */     \
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
    uint64_t differing;           /* results of verified calls that differ from NCCL's */
    uint64_t invariant;           /* 1: the user asks for it (ONEHOP_INVARIANT) */
    char reason[OH_REASON_BYTES]; /* why the communicator is not served; empty when it is */
};

#define OH_STATS_LINE 1536 /* enough for a record in each form, with its newline and final zero */

/* Why NCCL executes calls of a communicator: of one that onehop attaches to. */
#define OH_PENDING_REASON "its ranks have not agreed yet"

/* Why calls fall back on a communicator that onehop does not know, or has forgotten. */
#define OH_STRANGE_REASON                                                                                              \
    "suspended, or made by a function that onehop does not follow, or while onehop was off or not loaded yet"

/* Why no call comes to onehop in a process that NCCL_NET_PLUGIN has brought it into. It may make none. */
#define OH_UNREACHED_REASON                                                                                            \
    "if the program makes any, they go to NCCL by addresses that dlsym gave before the first communicator"

/* Sums over algorithms, over reasons. */
uint64_t oh_stats_served(const struct oh_stats_record *record);
uint64_t oh_stats_fallbacks(const struct oh_stats_record *record);

/*
 * Returns "yes": the user asks for an invariant communicator, and NCCL has summed nothing on it, but with a single
 * rank; "no": NCCL has, or has executed calls of communicators that onehop does not know; "off": the user does not ask.
 */
const char *oh_stats_invariant(const struct oh_stats_record *record);

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

/* --- live.c: what a process shows of its communicators while they live -------------------------------------------- */

/*
 * An anonymous file in memory (memfd, mode 0600) of the process, from the first communicator on: a head, and an entry
 * for each communicator. `onehop stat` finds it among the open files of the process (/proc/N/fd), which the kernel
 * shows to the same user and to root only. The counters of a communicator are in its entry, so that showing them costs
 * a call nothing. Without a file, or with more communicators than entries, they are in struct oh_comm, and nothing is
 * shown. The facts of an entry change under a mutex, between two increments of `sequence`, which is odd meanwhile: a
 * reader that finds the same even number before and after has one state of them. A reader is another process, and
 * checks what it reads (tools/shared/live_reader.h).
 */

#define OH_LIVE_NAME "onehop-stats" /* of the memfd: "/memfd:onehop-stats (deleted)" in /proc/N/fd */
#define OH_LIVE_MAGIC "onehop\nC"   /* 8 bytes, no final zero */
#define OH_MAX_LIVE_ENTRIES 512     /* 256 KiB; more communicators are not shown */

struct oh_live_entry {
    _Alignas(64) _Atomic uint32_t sequence; /* odd: the facts are being changed */
    _Atomic uint32_t used;
    struct oh_stats_record facts;             /* all but the counters, which are below, and the pid */
    _Alignas(64) struct oh_counters counters; /* away from what other communicators' threads write */
};

struct oh_live_head {
    char magic[8];
    uint32_t version; /* ONEHOP_VERSION_CODE of the library */
    uint32_t entry_bytes;
    uint32_t entries;
    int32_t pid;                     /* as the process itself sees it */
    _Atomic uint32_t top;            /* entries from here on have never been used */
    _Atomic uint32_t sequence;       /* odd: counters are moving from an entry to ended_totals */
    _Atomic uint32_t ended;          /* communicators that have ended */
    struct oh_counters ended_totals; /* what those had counted */
};

struct oh_live {
    struct oh_live_head head;
    struct oh_live_entry entry[OH_MAX_LIVE_ENTRIES];
};

/* A communicator's part: its entry, and its counters where it has none. */
struct oh_live_ref {
    _Atomic(struct oh_live_entry *) entry; /* NULL: none, or no longer */
    struct oh_live_entry *taken;           /* the same up to oh_live_free */
    struct oh_counters counters;           /* see oh_live_counters */
    atomic_bool printed;                   /* the statistics of the communicator are */
};

/* Gives the communicator with that number an entry, if one is free. Thread-safe, as the following. */
void oh_live_add(struct oh_live_ref *ref, uint64_t comm);

/* Publishes the facts of `record`. */
void oh_live_update(struct oh_live_ref *ref, const struct oh_stats_record *record);

/*
 * Shows the communicator no more; its counters move to `ref`. The entry is no other communicator's before oh_live_free:
 * the thread that uses the communicator may be in a call, which counts there.
 */
void oh_live_remove(struct oh_live_ref *ref);

/* Nobody uses the communicator any more: the entry is free for another one. */
void oh_live_free(struct oh_live_ref *ref);

/* Where the communicator's calls are counted now. */
static inline struct oh_counters *oh_live_counters(struct oh_live_ref *ref)
{
    /* relaxed: only the thread that uses the communicator counts, and the page stays mapped */
    struct oh_live_entry *entry = atomic_load_explicit(&ref->entry, memory_order_relaxed);
    return entry ? &entry->counters : &ref->counters;
}

/* Returns the number of communicators that have ended, and sets what they had counted: also where there is no page. */
uint64_t oh_live_ended_totals(struct oh_stats_record *sum_p);

#endif
