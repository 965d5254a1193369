/* SPDX-License-Identifier: MIT */
/*
 * outfile.h - a file that is there whole or not at all
 *
 * The file is written beside its place under another name, and renamed when all of it is on the disk. The target of a
 * symbolic link is replaced, not the link; rights stay as they are. A pipe or a device is written as it is. While a
 * file is open, signals that end a process wait: if one has arrived before the rename, nothing is left, and the signal
 * takes effect. Not thread-safe; one file at a time waits for signals, unless the caller holds them itself.
 */
#ifndef OH_TOOLS_SHARED_OUTFILE_H_
#define OH_TOOLS_SHARED_OUTFILE_H_

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

struct oh_outfile {
    FILE *stream;             /* NULL: not open */
    const char *command;      /* the subcommand, in front of every sentence on stderr */
    const char *path;         /* as it was asked for */
    char target[PATH_MAX];    /* what is replaced */
    char temporary[PATH_MAX]; /* "" where path itself is written */
    sigset_t held, before;    /* signals; the mask before they were held */
};

/* Blocks the signals that end a process and are not ignored. Sets *held_p to them, *before_p to the mask before. */
void oh_signals_hold(sigset_t *held_p, sigset_t *before_p);

/* Ends this process by a signal, as that signal ends a process that does not handle it. */
_Noreturn void oh_signals_end_by(int number);

/* Begins the file; "-" is stdout. Returns false, with one sentence on stderr. */
bool oh_outfile_open(const char *command, const char *path, struct oh_outfile *file);

/* Ends it and puts it in its place. Returns false, as above, and then nothing is left of it. NULL stream: true. */
bool oh_outfile_commit(struct oh_outfile *file);

/* Removes it, if it is open. */
void oh_outfile_drop(struct oh_outfile *file);

#endif
