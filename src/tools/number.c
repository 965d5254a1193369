/* SPDX-License-Identifier: MIT */
/*
 * number.c - numbers of the command line
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tool.h"

bool oh_tool_number(const char *command, const char *option, const char *text, bool units, size_t min, size_t max,
                    size_t *number_p)
{
    char *end;
    int shift = 0;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    bool good = end != text && *text >= '0' && *text <= '9' && errno == 0;
    if (good && units && *end) {
        const char *suffixes = "kKmMgG";
        const char *suffix = strchr(suffixes, *end++);
        shift = suffix ? 10 * (1 + (int)(suffix - suffixes) / 2) : 0;
        good = suffix != NULL;
    }
    if (!good || *end || number > max >> shift || number << shift < min) {
        oh_tool_error("%s: --%s %s: a whole number from %zu to %zu%s is needed", command, option, text, min, max,
                      units ? ", K, M or G may follow" : "");
        return false;
    }
    *number_p = (size_t)number << shift;
    return true;
}
