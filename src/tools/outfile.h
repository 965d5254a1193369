/* SPDX-License-Identifier: MIT */
/*
 * outfile.h - a file that is there whole or not at all
 *
 * Written beside its place under another name, and renamed when all of it is on its way to the disk. What is no regular
 * file (a pipe, a device) is written as it is. Not thread-safe.
 */
#ifndef OH_TOOLS_OUTFILE_H_
#define OH_TOOLS_OUTFILE_H_

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

struct oh_outfile {
    FILE *stream;             /* NULL: not open */
    const char *path;         /* as it was asked for */
    char temporary[PATH_MAX]; /* "" where path itself is written */
};

/* Begins the file; "-" is stdout. Returns false, with one sentence on stderr that begins with `name`. */
bool oh_outfile_open(const char *name, const char *path, struct oh_outfile *file_p);

/* The name under which it is being written; for those who write it by name. */
const char *oh_outfile_name(const struct oh_outfile *file);

/* Ends it and puts it in its place. Returns false, as above, and then nothing is left of it. NULL stream: true. */
bool oh_outfile_commit(const char *name, struct oh_outfile *file);

/* Takes it away again, if it is open. */
void oh_outfile_drop(struct oh_outfile *file);

#endif
