/* SPDX-License-Identifier: MIT */
/*
 * board_reader.h - reads what another process shows of its communicators (comm/board.h)
 *
 * The process may be anything, and may change the board while it is read: sizes come from this build and are compared,
 * not used; the file is read by pread, never mapped, so that it cannot be cut short under the reader; texts are made
 * printable; every loop is bounded. Owned by one thread.
 */
#ifndef OH_TOOLS_BOARD_READER_H_
#define OH_TOOLS_BOARD_READER_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "comm/board.h"

struct oh_board_view {
    pid_t pid;
    char command[64];
    uint64_t ended;              /* communicators that have ended */
    struct oh_stats_record gone; /* what those had counted */
    struct oh_stats_record *row; /* of each that lives */
    size_t rows;
    size_t torn; /* rows that were being changed at every look */
};

enum oh_board_answer {
    OH_BOARD_SEEN,
    OH_BOARD_NONE,      /* the process has no board: no communicator yet, or no onehop */
    OH_BOARD_FORBIDDEN, /* it may not be looked at */
    OH_BOARD_GONE,      /* there is no such process */
    OH_BOARD_OTHER,     /* its library is of another version */
    OH_BOARD_DAMAGED    /* it is none that onehop makes */
};

/* Words for the answers but the first. Static storage. */
const char *oh_board_words(enum oh_board_answer answer);

/* Reads the board of a process. The view is filled in on OH_BOARD_SEEN only, and is then the caller's to free. */
enum oh_board_answer oh_board_read(pid_t pid, struct oh_board_view *view_p);

/* The same of an open file, for a process that sees itself as own_pid. Leaves pid and command alone. */
enum oh_board_answer oh_board_read_file(int fd, pid_t own_pid, struct oh_board_view *view_p);

void oh_board_view_free(struct oh_board_view *view);

#endif
