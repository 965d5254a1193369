/* SPDX-License-Identifier: MIT */
/*
 * shared/stats_summary.h - what was served in all processes of a program, added up
 *
 * A file to which each process appends a record for each communicator and rank (comm/stats/record.h). Only
 * communicators that were destroyed, or whose process ended by exit, are in it. Owned by one thread.
 */
#ifndef OH_TOOLS_SHARED_STATS_SUMMARY_H_
#define OH_TOOLS_SHARED_STATS_SUMMARY_H_

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "comm/stats/record.h"

#define OH_MAX_SUMMARY_REASONS 8 /* different reasons for a communicator that is not served; more are summed up */

struct oh_stats_summary {
    char path[256];
    uint64_t records;
    uint64_t processes;
    struct oh_stats_record total;
    struct {
        char text[OH_REASON_BYTES];
        uint64_t calls;
        uint64_t ranks; /* of communicators that were not served for that reason */
    } reason[OH_MAX_SUMMARY_REASONS];
    int reasons;
    uint64_t other_calls; /* of reasons that found no place */
    uint64_t unreached;   /* processes that NCCL_NET_PLUGIN brought onehop into, and from which no call came */
};

/* Makes the file and sets ONEHOP_STATS_FILE. False when it cannot be made (said on stderr). */
bool oh_stats_summary_open(struct oh_stats_summary *tally_p);

/* Reads what has come together. */
void oh_stats_summary_read(struct oh_stats_summary *summary);

/* Removes the file. */
void oh_stats_summary_close(struct oh_stats_summary *summary);

/* "N of M ncclAllReduce calls served ..." and one line for each reason, each after the prefix. */
void oh_stats_summary_print(const struct oh_stats_summary *summary, FILE *stream, const char *prefix);

#endif
