/* SPDX-License-Identifier: MIT */
/*
 * live.h - what a process shows of its communicators while they live
 *
 * Does: Keeps an anonymous file in memory (memfd, mode 0600) for the process, from the first communicator on: a head,
 *    and an entry for each communicator. `onehop stat` finds it among the open files of the process (/proc/N/fd), which
 *    the kernel shows to the same user and to root only. The counters of a communicator are in its entry, so that
 *    showing them costs a call nothing. Without a file, or with more communicators than entries, they are in struct
 *    oh_comm, and nothing is shown.
 * Threads: any. The facts of an entry change under a mutex, between two increments of `sequence`, which is odd
 *    meanwhile: a reader that finds the same even number before and after has one state of them. A reader is another
 *    process, and checks what it reads (tools/shared/live_reader.h).
 * Owns: the page, for the life of the process.
 */
#ifndef OH_COMM_STATS_LIVE_H_
#define OH_COMM_STATS_LIVE_H_

#include <stdatomic.h>
#include <stdint.h>

#include "comm/stats/record.h"

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
    _Atomic uint32_t ended;          /* communicators that have ended */
    struct oh_counters ended_totals; /* what those had counted */
};

struct oh_live {
    struct oh_live_head head;
    struct oh_live_entry entry[OH_MAX_LIVE_ENTRIES];
};

/* A communicator's part: its entry, and its counters where it has none. */
struct oh_live_ref {
    struct oh_live_entry *entry; /* NULL: none */
    struct oh_counters counters; /* see oh_live_counters */
};

/* Gives the communicator with that number an entry, if one is free. Thread-safe, as the following. */
void oh_live_add(struct oh_live_ref *ref, uint64_t comm);

/* Publishes the facts of `record`. */
void oh_live_update(struct oh_live_ref *ref, const struct oh_stats_record *record);

/* Frees the entry; its counters move to `ref`. Called by the thread that uses the communicator, or at its end. */
void oh_live_remove(struct oh_live_ref *ref);

/* Where the communicator's calls are counted now. */
static inline struct oh_counters *oh_live_counters(struct oh_live_ref *ref)
{
    struct oh_live_entry *entry = ref->entry; /* read once: another thread may free it */
    return entry ? &entry->counters : &ref->counters;
}

/* Returns the number of communicators that have ended, and sets what they had counted: also where there is no page. */
uint64_t oh_live_ended_totals(struct oh_stats_record *sum_p);

#endif
