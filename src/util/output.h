/* SPDX-License-Identifier: MIT */
/*
 * output.h - files that the user names
 *
 * Does: Opens a file of a pattern, and writes to it. %h (host, up to the first dot), %p (process id) and %% are
 *    expanded, so that processes have files of their own. A file is a regular one of this user with one name, created
 *    with mode 0600; no link that someone else has put into a shared folder is followed.
 * Threads: any; never blocks.
 * Owns: nothing.
 */
#ifndef OH_UTIL_OUTPUT_H_
#define OH_UTIL_OUTPUT_H_

#include <stdbool.h>
#include <stddef.h>

#define OH_OUTPUT_PATH 512

/* Expands `pattern` into path_p (OH_OUTPUT_PATH bytes), and cuts it there. */
void oh_output_expand(const char *pattern, char *path_p);

/* Opens the file of `pattern`, close-on-exec. create: O_CREAT, or 0. Returns the descriptor, or -1 and errno. */
int oh_output_open(const char *pattern, int create);

/*
 * Writes as much as can be written. Callers write whole lines, so that those of several processes do not mix. Returns
 * false, with errno set, if not all could be written.
 */
bool oh_output_write(int fd, const char *text, size_t length);

#endif
