/* SPDX-License-Identifier: MIT */
/*
 * output.h - output files that the user names
 *
 * Does: Expands %h (host, up to the first dot), %p (process id) and %% in a name, so that processes have files of their
 *    own. Appends to a regular file of this user with one name, which it creates with mode 0600; follows no link that
 *    someone else has put into a shared folder.
 * Threads: any.
 * Owns: nothing.
 */
#ifndef OH_UTIL_OUTPUT_H_
#define OH_UTIL_OUTPUT_H_

#include <stddef.h>

#define OH_OUTPUT_PATH 512

/* Expands `pattern` into path_p (OH_OUTPUT_PATH bytes), and cuts it there. */
void oh_output_expand(const char *pattern, char *path_p);

/* Opens the file of `pattern`, close-on-exec. Returns the descriptor, or -1 and errno. */
int oh_output_open(const char *pattern);

/* Writes as much as can be written. Callers write whole lines, so that those of several processes do not mix. */
void oh_output_write(int fd, const char *text, size_t length);

#endif
