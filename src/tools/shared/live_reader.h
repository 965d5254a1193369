/* SPDX-License-Identifier: MIT */
/*
 * live_reader.h - reads what another process shows of its communicators (comm/stats/record.h)
 *
 * The process may be anything, and may change the page while it is read: sizes come from this build and are compared,
 * not used; the file is read by pread, never mapped, so that it cannot be cut short under the reader; texts are made
 * printable; every loop is bounded. Owned by one thread.
 */
#ifndef OH_TOOLS_SHARED_LIVE_READER_H_
#define OH_TOOLS_SHARED_LIVE_READER_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "comm/stats/record.h"

struct oh_live_view {
    pid_t pid;
    char command[64];
    uint64_t ended;                      /* communicators that have ended */
    struct oh_stats_record ended_totals; /* what those had counted */
    struct oh_stats_record *entry;       /* of each that lives */
    size_t entries;
    size_t torn; /* entries that were being changed at every look */
};

enum oh_live_answer {
    OH_LIVE_SEEN,
    OH_LIVE_NONE,      /* the process has no page: no communicator yet, or no onehop */
    OH_LIVE_FORBIDDEN, /* it may not be looked at */
    OH_LIVE_GONE,      /* there is no such process */
    OH_LIVE_OTHER,     /* its library is of another version */
    OH_LIVE_DAMAGED    /* it is none that onehop makes */
};

/* Words for the answers but the first. Static storage. */
const char *oh_live_words(enum oh_live_answer answer);

/* Reads the name of a process, as printable ASCII; empty: there is none. */
void oh_live_read_command(pid_t pid, char *command_p, size_t size);

/* Reads the page of a process. The view is filled in on OH_LIVE_SEEN only, and is then the caller's to free. */
enum oh_live_answer oh_live_read(pid_t pid, struct oh_live_view *view_p);

/* The same of an open file, for a process that sees itself as own_pid. Leaves pid and command alone. */
enum oh_live_answer oh_live_read_file(int fd, pid_t own_pid, struct oh_live_view *view_p);

void oh_live_view_free(struct oh_live_view *view);

#endif
