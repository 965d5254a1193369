/* SPDX-License-Identifier: MIT */
/*
 * output.h - files that the user has named for what the library says
 *
 * A name may hold %h (host, up to the first dot), %p (process id) and %% (a per cent sign), so that processes do not
 * share a file. A file is appended to, made with mode 0600, and taken only when it is a regular file of this user with
 * one name: a link that somebody else has laid into a shared folder is not followed. Thread-safe; keeps no memory.
 */
#ifndef OH_UTIL_OUTPUT_H_
#define OH_UTIL_OUTPUT_H_

#include <stddef.h>

#define OH_OUTPUT_PATH 512

/* Puts the name with its signs replaced into path_p (OH_OUTPUT_PATH); cut when it does not fit. */
void oh_output_expand(const char *pattern, char *path_p);

/* Opens the file of that pattern. Returns a descriptor that an exec closes; or -1, with the reason in errno. */
int oh_output_open(const char *pattern);

/* Writes all of it, as far as that goes; lines are to be written whole, so that those of several processes do not mix.
 */
void oh_output_write(int fd, const char *text, size_t length);

#endif
