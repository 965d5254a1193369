/* SPDX-License-Identifier: MIT */
/*
 * outfile.h - a file that is there whole or not at all
 *
 * Written beside its place under another name, and renamed when all of it is on the disk. What a symbolic link leads to
 * is replaced, not the link; rights stay as they are. What is no regular file (a pipe, a device) is written as it is.
 * Not thread-safe.
 */
#ifndef OH_TOOLS_SHARED_OUTFILE_H_
#define OH_TOOLS_SHARED_OUTFILE_H_

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

struct oh_outfile {
    FILE *stream;             /* NULL: not open */
    const char *path;         /* as it was asked for */
    char target[PATH_MAX];    /* what is replaced */
    char temporary[PATH_MAX]; /* "" where path itself is written */
    int error;                /* of the first write that failed; 0: none is known */
};

/*
 * Begins the file; "-" is stdout. Returns false, with one sentence on stderr that begins with `name`; then it is not
 * open. file->temporary has its text before a file of that name is made: a signal handler may read it.
 */
bool oh_outfile_open(const char *name, const char *path, struct oh_outfile *file);

/* Writes to it; what fails shows in oh_outfile_commit. */
void oh_outfile_write(struct oh_outfile *file, const void *data, size_t size);

/* The name under which it is being written; for those who write it by name. */
const char *oh_outfile_name(const struct oh_outfile *file);

/* Ends it and puts it in its place. Returns false, as above, and then nothing is left of it. NULL stream: true. */
bool oh_outfile_commit(const char *name, struct oh_outfile *file);

/* Takes it away again, if it is open. */
void oh_outfile_drop(struct oh_outfile *file);

#endif
