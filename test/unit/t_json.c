/* SPDX-License-Identifier: MIT */
/*
 * t_json.c - the JSON writer: commas and nesting, and strings of any bytes
 */
#include "tools/shared/json.h"

#include <stdlib.h>
#include <string.h>

#include "test/tap.h"

static char *text;
static size_t length;

static struct oh_json begin(void)
{
    return (struct oh_json){.stream = open_memstream(&text, &length)};
}

static void expect(struct oh_json *json, const char *wanted, const char *what)
{
    fclose(json->stream);
    if (!tap_ok(strcmp(text, wanted) == 0, "%s", what)) {
        tap_note("got %s", text);
    }
    free(text);
}

static void test_string(const char *value, const char *wanted, const char *what)
{
    char whole[256];
    struct oh_json json = begin();
    snprintf(whole, sizeof whole, "\"%s\"", wanted);
    oh_json_text(&json, NULL, value);
    expect(&json, whole, what);
}

int main(void)
{
    struct oh_json json = begin();
    oh_json_open(&json, NULL, '{');
    oh_json_open(&json, "empty", '[');
    oh_json_close(&json, ']');
    oh_json_open(&json, "list", '[');
    oh_json_number(&json, NULL, -5);
    oh_json_open(&json, NULL, '{');
    oh_json_flag(&json, "yes", true);
    oh_json_null(&json, "none");
    oh_json_close(&json, '}');
    oh_json_close(&json, ']');
    oh_json_text(&json, "text", NULL);
    oh_json_close(&json, '}');
    expect(
        &json,
        "{\n  \"empty\": [],\n  \"list\": [\n    -5,\n    {\n      \"yes\": true,\n      \"none\": null\n    }\n  ],\n"
        "  \"text\": null\n}\n",
        "objects, arrays and commas");

    test_string("a \"quoted\" back\\slash", "a \\\"quoted\\\" back\\\\slash", "quotes and backslashes");
    test_string("line\nbell\a\x7f", "line\\u000abell\\u0007\\u007f", "control characters");
    test_string("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80",
                "UTF-8");
    test_string("\xff\xfe", "\\ufffd\\ufffd", "bytes that are none");
    test_string("cut \xe2\x82", "cut \\ufffd\\ufffd", "a sequence that is cut short");
    test_string("\xc0\xaf \xe0\x80\x80", "\\ufffd\\ufffd \\ufffd\\ufffd\\ufffd", "forms that are too long");
    test_string("\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd", "a surrogate");
    return tap_done();
}
