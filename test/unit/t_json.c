/* SPDX-License-Identifier: MIT */
/*
 * t_json.c - strings of any bytes, numbers, and running out of memory in the tools' JSON
 */
#include "tools/shared/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "test/tap.h"

static void expect(json_t *value, const char *wanted, const char *what)
{
    char *text;
    size_t length;
    FILE *stream = open_memstream(&text, &length);
    bool good = oh_json_write(stream, value);
    fclose(stream);
    if (!tap_ok(good && strcmp(text, wanted) == 0, "%s", what)) {
        tap_note("got %s", text);
    }
    free(text);
}

static void test_string(const char *value, const char *wanted, const char *what)
{
    char whole[256];
    json_t *array = json_array();
    snprintf(whole, sizeof whole, "[\n  \"%s\"\n]\n", wanted);
    oh_json_append(&array, oh_json_text(value));
    expect(array, whole, what);
}

static void *no_memory(size_t size)
{
    (void)size;
    return NULL;
}

static void test_no_memory(void)
{
    json_t *inner = json_array(), *outer = json_object();
    oh_json_append(&inner, json_integer(1));
    json_set_alloc_funcs(no_memory, free);
    oh_json_append(&inner, json_integer(2));
    json_set_alloc_funcs(malloc, free);
    oh_json_append(&inner, json_integer(3));
    tap_ok(!inner, "without memory an array becomes NULL, and stays NULL");
    oh_json_set(&outer, "inner", inner);
    oh_json_set(&outer, "more", json_true());
    tap_ok(!outer && !oh_json_write(stdout, outer), "and nothing that contains it is written");
}

int main(void)
{
    json_t *list = json_array(), *object = json_object();
    oh_json_append(&list, json_integer(-5));
    oh_json_append(&list, oh_json_real(0.1 + 0.2));
    oh_json_append(&list, oh_json_real(INFINITY));
    oh_json_append(&list, oh_json_real(NAN));
    oh_json_set(&object, "list", list);
    oh_json_set(&object, "text", oh_json_text(NULL));
    oh_json_set(&object, "empty", json_array());
    expect(object,
           "{\n  \"list\": [\n    -5,\n    0.3,\n    null,\n    null\n  ],\n  \"text\": null,\n  \"empty\": []\n}\n",
           "members in order, six digits, null for what is not finite");

    test_string("a \"quoted\" back\\slash", "a \\\"quoted\\\" back\\\\slash", "quotes and backslashes");
    test_string("line\nbell\a", "line\\nbell\\u0007", "control characters");
    test_string("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80",
                "UTF-8");
#define BAD "\xef\xbf\xbd"
    test_string("\xff\xfe \xc3\xbc", BAD BAD " \xc3\xbc", "bytes that are none");
    test_string("cut \xe2\x82", "cut " BAD BAD, "a sequence that is cut short");
    test_string("\xc0\xaf \xe0\x80\x80", BAD BAD " " BAD BAD BAD, "forms that are too long");
    test_string("\xed\xa0\x80", BAD BAD BAD, "a surrogate");
    test_no_memory();
    return tap_done();
}
