/* SPDX-License-Identifier: MIT */
/*
 * shared/stats_summary.h - what was served in all processes of a program, added up
 *
 * A file to which each process appends a record for each communicator and rank (comm/stats/record.h). Only
 * communicators that were destroyed, or whose process ended by exit, are in it. Owned by one thread.
 */
#ifndef OH_TOOLS_SHARED_STATS_SUMMARY_H_
#define OH_TOOLS_SHARED_STATS_SUMMARY_H_

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

#include "comm/stats/record.h"

struct oh_stats_summary {
    char path[256];
    uint64_t records;
    uint64_t processes;
    uint64_t unreached; /* processes that NCCL_NET_PLUGIN brought onehop into, and from which no call came */
    struct oh_stats_record total;
    uint64_t invariant;                   /* records of communicators that are asked to be invariant; */
    uint64_t variant;                     /* those of them that are not, */
    char variant_reason[OH_REASON_BYTES]; /* and the first one's reason */
    json_t *reasons; /* why communicators are not served: an object with the calls of each reason */
};

/* Makes the file and sets ONEHOP_STATS_FILE. Ends the command if it cannot be made. */
void oh_stats_summary_open(struct oh_stats_summary *summary_p);

/* Reads what has come together, and removes the file. */
void oh_stats_summary_read(struct oh_stats_summary *summary);

/* Frees the reasons. */
void oh_stats_summary_free(struct oh_stats_summary *summary);

/* "N of M collective calls served ...", and one line for each collective and reason, each after the prefix. */
void oh_stats_summary_print(const struct oh_stats_summary *summary, FILE *stream, const char *prefix);

#endif
