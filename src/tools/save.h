/* SPDX-License-Identifier: MIT */
/*
 * save.h - files that are there whole or not at all
 */
#ifndef OH_TOOLS_SAVE_H_
#define OH_TOOLS_SAVE_H_

#include <stdbool.h>
#include <stddef.h>

/*
 * Writes a file: a temporary one in its folder, which takes its place when it is complete and on the disk. A signal
 * that ends the process takes the temporary file along. What exists and is no regular file (a device, a pipe) is
 * written to directly. Returns false, with one sentence on stderr, when it cannot be done; then what was there is as it
 * was. One at a time.
 */
bool oh_save_file(const char *path, const char *data, size_t size);

#endif
