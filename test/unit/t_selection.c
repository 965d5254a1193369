/* SPDX-License-Identifier: MIT */
/*
 * t_selection.c - which communicators ONEHOP_COMMS selects, and which values are none
 *
 * Random texts: test/fuzz/fuzz_env.c.
 */
#include "util/selection.h"

#include <string.h>

#include "test/tap.h"

static const struct {
    const char *text;
    uint32_t nranks;
    const char *name, *host;
    enum oh_selection expected;
} cases[] = {
    {"", 4, "tp", "node1", OH_SELECTION_IN},
    {"size=4", 4, "", "", OH_SELECTION_IN},
    {"size=4", 8, "", "", OH_SELECTION_OUT},
    {"size=2-4,8", 3, "", "", OH_SELECTION_IN},
    {"size=2-4,8", 8, "", "", OH_SELECTION_IN},
    {"size=2-4,8", 5, "", "", OH_SELECTION_OUT},
    {"size=^8", 4, "", "", OH_SELECTION_IN},
    {"size=^8", 8, "", "", OH_SELECTION_OUT},
    {"name=tp*,TENSOR*", 2, "tp:0", "", OH_SELECTION_IN},
    {"name=tp*,TENSOR*", 2, "TENSOR_MODEL_PARALLEL_GROUP", "", OH_SELECTION_IN},
    {"name=tp*,TENSOR*", 2, "dp", "", OH_SELECTION_OUT},
    {"name=tp*", 2, "", "", OH_SELECTION_OUT},
    {"name=^tp*", 2, "", "", OH_SELECTION_IN},
    {"name=", 2, "", "", OH_SELECTION_IN},
    {"name=", 2, "tp", "", OH_SELECTION_OUT},
    {"name=a,", 2, "", "", OH_SELECTION_IN},
    {"name=[a-c]?", 2, "b7", "", OH_SELECTION_IN},
    {"host=node[12]", 2, "", "node2", OH_SELECTION_IN},
    {"host=node[12]", 2, "", "node3", OH_SELECTION_OUT},
    {"size=2;host=^node1", 2, "", "node2", OH_SELECTION_IN},
    {"size=2;host=^node1", 2, "", "node1", OH_SELECTION_OUT},
    {"size=2;host=^node1", 3, "", "node2", OH_SELECTION_OUT},
    {";size=2;;name=x;", 2, "x", "", OH_SELECTION_IN},
    {"size=", 2, "", "", OH_SELECTION_INVALID},
    {"size=^", 2, "", "", OH_SELECTION_INVALID},
    {"size=two", 2, "", "", OH_SELECTION_INVALID},
    {"size=2,", 2, "", "", OH_SELECTION_INVALID},
    {"size=4-2", 2, "", "", OH_SELECTION_INVALID},
    {"size=2-", 2, "", "", OH_SELECTION_INVALID},
    {"size=-2", 2, "", "", OH_SELECTION_INVALID},
    {"size=2 ", 2, "", "", OH_SELECTION_INVALID},
    {"2", 2, "", "", OH_SELECTION_INVALID},
    {"all", 2, "", "", OH_SELECTION_INVALID},
    {"sizes=2", 2, "", "", OH_SELECTION_INVALID},
    {"size=3;nothing", 2, "", "", OH_SELECTION_INVALID},
};

/* A value is one for all communicators or for none: ranks never decide by what one of them cannot read. */
static void test_validity(void)
{
    bool right = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (uint32_t nranks = 1; nranks <= 9; nranks++) {
            const bool is_valid = oh_selection_match(cases[i].text, nranks, "a", "b") != OH_SELECTION_INVALID;
            right &= is_valid == (cases[i].expected != OH_SELECTION_INVALID);
        }
    }
    tap_ok(right, "whether a value is accepted does not depend on the communicator");
}

int main(void)
{
    char lengthy[400] = "name=";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tap_ok(oh_selection_match(cases[i].text, cases[i].nranks, cases[i].name, cases[i].host) == cases[i].expected,
               "'%s', %u ranks, name '%s', host '%s': %d", cases[i].text, cases[i].nranks, cases[i].name, cases[i].host,
               cases[i].expected);
    }
    memset(lengthy + 5, 'x', 300);
    tap_ok(oh_selection_match(lengthy, 2, "x", "") == OH_SELECTION_INVALID, "an item that is too long");
    test_validity();
    return tap_done();
}
