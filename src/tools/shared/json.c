/* SPDX-License-Identifier: MIT */
/*
 * json.c - JSON for the tools (json.h)
 */
#include "tools/shared/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* Bytes of the UTF-8 sequence that begins here; 0: none. */
static size_t sequence(const char *at)
{
    for (size_t length = 1; length <= strnlen(at, 4); length++) {
        json_t *character = json_stringn(at, length);
        json_decref(character);
        if (character) {
            return length;
        }
    }
    return 0;
}

json_t *oh_json_text(const char *text)
{
    if (!text) {
        return json_null();
    }
    json_t *value = json_string(text);
    char *clean = value ? NULL : malloc(strlen(text) * strlen(REPLACEMENT) + 1), *to = clean;
    if (!clean) {
        return value;
    }
    while (*text) {
        size_t length = sequence(text), put = length > 0 ? length : strlen(REPLACEMENT);
        memcpy(to, length > 0 ? text : REPLACEMENT, put);
        to += put;
        text += length > 0 ? length : 1;
    }
    value = json_stringn(clean, (size_t)(to - clean));
    free(clean);
    return value;
}

json_t *oh_json_real(double number)
{
    return isfinite(number) ? json_real(number) : json_null();
}

/* A failed step leaves nothing. */
static void keep(json_t **container_p, int failed)
{
    if (failed) {
        json_decref(*container_p);
        *container_p = NULL;
    }
}

void oh_json_set(json_t **object_p, const char *key, json_t *value)
{
    keep(object_p, json_object_set_new(*object_p, key, value));
}

void oh_json_append(json_t **array_p, json_t *value)
{
    keep(array_p, json_array_append_new(*array_p, value));
}

bool oh_json_print(FILE *stream, json_t *value, size_t flags)
{
    bool good = value && json_dumpf(value, stream, flags) == 0;
    json_decref(value);
    return good;
}

bool oh_json_write(FILE *stream, json_t *value)
{
    return oh_json_print(stream, value, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) && fputc('\n', stream) != EOF;
}
