/* SPDX-License-Identifier: MIT */
/*
 * save.h - files that are there whole or not at all
 */
#ifndef OH_TOOLS_SHARED_SAVE_H_
#define OH_TOOLS_SHARED_SAVE_H_

#include <stdbool.h>
#include <stddef.h>

/*
 * Writes a whole file as outfile.h says. A signal that ends the process takes what is half-written along. Returns
 * false, with one sentence on stderr that begins with `name`, when it cannot be done; then what was there is as it was.
 * One at a time.
 */
bool oh_save_file(const char *name, const char *path, const char *data, size_t size);

#endif
