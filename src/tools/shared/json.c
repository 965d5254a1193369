/* SPDX-License-Identifier: MIT */
/*
 * json.c - JSON for the tools (json.h)
 */
#include "tools/shared/json.h"

json_t *oh_json_text(const char *text)
{
    return text[0] ? json_string(text) : json_null();
}

bool oh_json_write(FILE *stream, json_t *value, size_t flags)
{
    bool good = json_dumpf(value, stream, flags) == 0 && fputc('\n', stream) != EOF;
    json_decref(value);
    return good;
}
