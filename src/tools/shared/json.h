/* SPDX-License-Identifier: MIT */
/*
 * json.h - JSON for the tools: what jansson leaves to its callers
 *
 * Does: builds values from any text and number, passes "out of memory" on, and writes a whole value to a stream.
 * Threads: any; no state of its own.
 * Owns: nothing; values have jansson's reference counts.
 */
#ifndef OH_TOOLS_SHARED_JSON_H_
#define OH_TOOLS_SHARED_JSON_H_

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* Makes a string of any bytes: each byte that is not UTF-8 becomes U+FFFD. NULL makes null. */
json_t *oh_json_text(const char *text);

/* Makes a number; a number that is not finite makes null. */
json_t *oh_json_real(double number);

/*
 * Sets a member, appends an element, and takes over the value. If the value or the container is NULL or memory is
 * short, frees the container and sets it to NULL, so that oh_json_write() of the whole fails.
 */
void oh_json_set(json_t **object_p, const char *key, json_t *value);
void oh_json_append(json_t **array_p, json_t *value);

/* Writes the value with jansson's flags and frees it. Returns false if it is NULL or cannot be written. */
bool oh_json_print(FILE *stream, json_t *value, size_t flags);

/* Writes the value with indents and a newline, and frees it. Returns false if it is NULL or cannot be written. */
bool oh_json_write(FILE *stream, json_t *value);

#endif
