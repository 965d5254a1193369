/* SPDX-License-Identifier: MIT */
/*
 * stats.h - what was served, as numbers that can leave the process
 *
 * When a communicator ends, one line of statistics goes to stderr (ONEHOP_STATS=1) and one record to the file that
 * ONEHOP_STATS_FILE names, where `onehop run --stats` and `onehop doctor` add up those of all processes. The plugin
 * writes records and the tools read them: both ends are here. Thread-safe.
 */
#ifndef OH_COMM_STATS_H_
#define OH_COMM_STATS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/segment.h"

/* X(identifier, key in the statistics, words for people): why a call was handed back to NCCL. */
#define OH_BACK_REASONS(X)                                                                                             \
    X(OFF, "off", "the communicator is not served")                                                                    \
    X(OP, "op", "an operation that is not served")                                                                     \
    X(TYPE, "type", "a type that is not served")                                                                       \
    X(SIZE, "size", "a size that is not served")

enum oh_back {
#define OH_BACK_ENUM(identifier_, key_, words_) OH_BACK_##identifier_,
    OH_BACK_REASONS(OH_BACK_ENUM)
#undef OH_BACK_ENUM
    OH_BACKS
};

/* One rank of one communicator; without ranks: the calls of a process on communicators that onehop does not know. */
struct oh_stats_record {
    int pid;
    unsigned rank;
    unsigned nranks;
    uint64_t served;
    uint64_t bytes; /* of the calls served */
    uint64_t back[OH_BACKS];
    char reason[OH_REASON_BYTES]; /* why the communicator is not served; empty when it is */
};

#define OH_STATS_LINE 512 /* enough for a record, with its newline and final zero */

/* Why calls are handed back on a communicator that onehop does not know: its creator is not followed, or off. */
#define OH_STRANGE_REASON "made by a function that onehop does not follow, or while onehop was off or not loaded yet"

/* Counts such a call. */
void oh_stats_count_strange(void);

/* Words for people; NULL when out of range. Static storage. */
const char *oh_back_words(int back);

/* Writes a record as one line with a newline; returns its length, less than OH_STATS_LINE. */
size_t oh_stats_format(const struct oh_stats_record *record, char line_p[OH_STATS_LINE]);

/* Reads such a line (with or without its newline). False when it is none; *record_p is then untouched. */
bool oh_stats_parse(const char *line, struct oh_stats_record *record_p);

#endif
