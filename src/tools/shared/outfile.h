/* SPDX-License-Identifier: MIT */
/*
 * outfile.h - a file that is there whole or not at all
 *
 * The file is written beside its place under another name, and renamed when all of it is on the disk. The target of a
 * symbolic link is replaced, not the link; rights stay as they are. A pipe or a device is written as it is. While a
 * file is open, signals that end a process are held: if one has arrived before the rename, nothing is left, and the
 * signal takes effect. Nothing is left, either, if the command ends by exit. Not thread-safe.
 */
#ifndef OH_TOOLS_SHARED_OUTFILE_H_
#define OH_TOOLS_SHARED_OUTFILE_H_

#include <limits.h>
#include <stdio.h>
#include <time.h>

struct oh_outfile {
    FILE *stream;             /* NULL: not open */
    const char *path;         /* as it was asked for */
    char target[PATH_MAX];    /* what is replaced */
    char temporary[PATH_MAX]; /* "" where path itself is written */
    struct oh_outfile *next;  /* that is open */
};

/* Begins the file; "-" is stdout, and so is a file that stdout goes to. Ends the command if the file cannot be made, or
 * is open already. */
void oh_outfile_open(const char *path, struct oh_outfile *file);

/* Ends it and puts it in its place, if it is open. Ends the command if that fails, and then nothing is left of it. */
void oh_outfile_commit(struct oh_outfile *file);

/* Removes it, if it is open. */
void oh_outfile_drop(struct oh_outfile *file);

/*
 * Holds the signals that end a process and are not ignored: they wait. Each call needs one of oh_signals_release();
 * with the last of these, a signal that has arrived takes effect.
 */
void oh_signals_hold(void);
void oh_signals_release(void);

/* Waits for a signal that is held. Returns its number, or 0 if none arrives in that time. */
int oh_signals_wait(struct timespec time);

/* Drops open files and ends this process by a signal, as that signal ends a process that does not handle it. */
_Noreturn void oh_signals_end_by(int number);

#endif
