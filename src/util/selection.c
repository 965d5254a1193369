/* SPDX-License-Identifier: MIT */
/*
 * selection.c - reads ONEHOP_COMMS
 *
 * Does: See selection.h.
 * Threads: pure functions.
 * Owns: nothing.
 */
#include "util/selection.h"

#include <fnmatch.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ITEM_BYTES 128

static enum oh_selection selection_of(bool is_in)
{
    return is_in ? OH_SELECTION_IN : OH_SELECTION_OUT;
}

/* "N" or "N-M". */
static enum oh_selection match_size(const char *item, uint32_t nranks)
{
    char *end;
    if (item[0] < '0' || item[0] > '9') {
        return OH_SELECTION_INVALID;
    }
    const unsigned long low = strtoul(item, &end, 10);
    unsigned long high = low;
    if (*end == '-' && end[1] >= '0' && end[1] <= '9') {
        high = strtoul(end + 1, &end, 10);
    }
    return *end != '\0' || high < low ? OH_SELECTION_INVALID : selection_of(low <= nranks && nranks <= high);
}

/* A list, up to a semicolon. subject: the name or the host; NULL: the size. */
static enum oh_selection match_list(const char *list, uint32_t nranks, const char *subject)
{
    const bool is_inverse = list[0] == '^';
    const char *at = list + is_inverse;
    bool found = false;
    for (bool more = true; more; at++) {
        char item[ITEM_BYTES];
        const size_t size = strcspn(at, ",;");
        if (size >= sizeof item) {
            return OH_SELECTION_INVALID;
        }
        snprintf(item, sizeof item, "%.*s", (int)size, at);
        const enum oh_selection match =
            subject ? selection_of(fnmatch(item, subject, 0) == 0) : match_size(item, nranks);
        if (match == OH_SELECTION_INVALID) {
            return match;
        }
        found |= match == OH_SELECTION_IN;
        at += size;
        more = *at == ',';
    }
    return selection_of(found != is_inverse);
}

static enum oh_selection match_condition(const char *condition, uint32_t nranks, const char *name, const char *host)
{
    const struct {
        const char *key, *subject;
    } keys[] = {{"size=", NULL}, {"name=", name}, {"host=", host}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const size_t key = strlen(keys[i].key);
        if (strncmp(condition, keys[i].key, key) == 0) {
            return match_list(condition + key, nranks, keys[i].subject);
        }
    }
    return OH_SELECTION_INVALID;
}

enum oh_selection oh_selection_match(const char *text, uint32_t nranks, const char *name, const char *host)
{
    bool is_in = true;
    for (size_t length; *text; text += length + (text[length] == ';')) {
        length = strcspn(text, ";");
        const enum oh_selection match = length > 0 ? match_condition(text, nranks, name, host) : OH_SELECTION_IN;
        if (match == OH_SELECTION_INVALID) {
            return match;
        }
        is_in &= match == OH_SELECTION_IN;
    }
    return selection_of(is_in);
}
