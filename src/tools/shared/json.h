/* SPDX-License-Identifier: MIT */
/*
 * json.h - writes JSON, value by value
 *
 * The caller opens and closes objects and arrays in order; commas, line breaks and escapes come by themselves. Strings
 * may hold any bytes: what is not UTF-8 becomes U+FFFD. In an array, and for the outermost value, the key is NULL.
 */
#ifndef OH_TOOLS_SHARED_JSON_H_
#define OH_TOOLS_SHARED_JSON_H_

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct oh_json {
    FILE *stream;
    int depth;
    bool filled; /* the object or array that is open has a value already */
};

/* Writes a text in quotes, for those who lay out their own line. */
void oh_json_quote(FILE *stream, const char *text);

void oh_json_open(struct oh_json *json, const char *key, char bracket);
void oh_json_close(struct oh_json *json, char bracket);
void oh_json_text(struct oh_json *json, const char *key, const char *text); /* NULL: null */
void oh_json_number(struct oh_json *json, const char *key, int64_t number);
void oh_json_real(struct oh_json *json, const char *key, double number); /* six digits; not finite: null */
void oh_json_flag(struct oh_json *json, const char *key, bool flag);
void oh_json_null(struct oh_json *json, const char *key);

#endif
