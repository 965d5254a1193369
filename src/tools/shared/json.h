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
static inline json_t *oh_json_text(const char *text)
{
    return text[0] ? json_string(text) : json_null();
}

/* Writes the value as people read it, and a newline, and frees it. Returns false if it cannot be written. */
static inline bool oh_json_write(FILE *stream, json_t *value)
{
    bool good = json_dumpf(value, stream, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) == 0 && fputc('\n', stream) != EOF;
    json_decref(value);
    return good;
}

#endif
