/* SPDX-License-Identifier: MIT */
/*
 * json.c - the few lines of JSON that the tools need
 */
#include "tools/shared/json.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

/* Bytes of the UTF-8 sequence that begins here; 0 when it is none (cut, too long a form, a surrogate, too large). */
static size_t sequence(const unsigned char *at)
{
    if (at[0] < 0x80) {
        return 1;
    }
    size_t length = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return 0; /* the final zero ends here too */
        }
    }
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) || (at[0] == 0xf0 && at[1] < 0x90) ||
        (at[0] == 0xf4 && at[1] > 0x8f)) {
        return 0;
    }
    return length;
}

void oh_json_quote(FILE *stream, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    fputc('"', stream);
    while (*at) {
        size_t length = sequence(at);
        if (length == 0) {
            fputs("\\ufffd", stream);
            length = 1;
        } else if (*at == '"' || *at == '\\') {
            fprintf(stream, "\\%c", *at);
        } else if (*at < 0x20 || *at == 0x7f) {
            fprintf(stream, "\\u%04x", *at);
        } else {
            fwrite(at, 1, length, stream);
        }
        at += length;
    }
    fputc('"', stream);
}

/* What stands before a value. */
static void begin(struct oh_json *json, const char *key)
{
    if (json->filled) {
        fputc(',', json->stream);
    }
    if (json->depth > 0) {
        fprintf(json->stream, "\n%*s", 2 * json->depth, "");
    }
    if (key) {
        oh_json_quote(json->stream, key);
        fputs(": ", json->stream);
    }
    json->filled = true;
}

void oh_json_open(struct oh_json *json, const char *key, char bracket)
{
    begin(json, key);
    fputc(bracket, json->stream);
    json->depth++;
    json->filled = false;
}

void oh_json_close(struct oh_json *json, char bracket)
{
    json->depth--;
    if (json->filled) {
        fprintf(json->stream, "\n%*s", 2 * json->depth, "");
    }
    fputc(bracket, json->stream);
    if (json->depth == 0) {
        fputc('\n', json->stream);
    }
    json->filled = true;
}

void oh_json_text(struct oh_json *json, const char *key, const char *text)
{
    begin(json, key);
    if (text) {
        oh_json_quote(json->stream, text);
    } else {
        fputs("null", json->stream);
    }
}

void oh_json_number(struct oh_json *json, const char *key, int64_t number)
{
    begin(json, key);
    fprintf(json->stream, "%" PRId64, number);
}

void oh_json_real(struct oh_json *json, const char *key, double number)
{
    begin(json, key);
    if (isfinite(number)) {
        fprintf(json->stream, "%.6g", number);
    } else {
        fputs("null", json->stream); /* JSON has no word for it */
    }
}

void oh_json_flag(struct oh_json *json, const char *key, bool flag)
{
    begin(json, key);
    fputs(flag ? "true" : "false", json->stream);
}

void oh_json_null(struct oh_json *json, const char *key)
{
    begin(json, key);
    fputs("null", json->stream);
}
