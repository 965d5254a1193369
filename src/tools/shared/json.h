/* SPDX-License-Identifier: MIT */
/*
 * json.h - JSON for the tools, by jansson
 *
 * Does: writes a whole value to a stream. Texts in it are printable ASCII already, and memory does not run out
 *    (main.c), so that jansson makes every value that it is asked for.
 * Threads: any; no state of its own.
 * Owns: nothing; values have jansson's reference counts.
 */
#ifndef OH_TOOLS_SHARED_JSON_H_
#define OH_TOOLS_SHARED_JSON_H_

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* Makes a string; an empty text makes null. */
json_t *oh_json_text(const char *text);

/* Writes the value with jansson's flags and a newline, and frees it. Returns false if it cannot be written. */
bool oh_json_write(FILE *stream, json_t *value, size_t flags);

/* Flags for a page that people may read: indents, and reals of six digits. */
#define OH_JSON_PAGE (JSON_INDENT(2) | JSON_REAL_PRECISION(6))

#endif
