/* SPDX-License-Identifier: MIT */
/*
 * argument.c - what the options of several commands have in common
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/shared/tool.h"

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

bool oh_tool_list(const char *command, const char *option, const char *list, const char *(*word)(int i), int words,
                  bool *chosen_p)
{
    char copy[256], all[256] = "";
    char *rest = copy;
    bool everything = strcmp(list, "all") == 0;
    for (int i = 0; i < words; i++) {
        chosen_p[i] = everything;
        strcat(strcat(all, i ? ", " : ""), word(i));
    }
    snprintf(copy, sizeof copy, "%s", list);
    for (const char *name; !everything && (name = strsep(&rest, ",")) != NULL;) {
        int i = 0;
        while (i < words && strcmp(name, word(i)) != 0) {
            i++;
        }
        if (i == words) {
            oh_tool_error("%s: --%s %s: '%s' is none of %s", command, option, list, name, all);
            return false;
        }
        chosen_p[i] = true;
    }
    return true;
}

void oh_tool_refuse_option(char *const *argv, const struct option *options, int code)
{
    const char *known = optopt ? oh_tool_long_name(options, optopt) : NULL;
    const char letter[] = {'-', (char)optopt, '\0'};
    const char *what = known ? known : optopt ? letter : argv[optind - 1];
    const char *dashes = known ? "--" : "";
    if (code == ':') {
        oh_tool_error("%s: option '%s%s' requires an argument; see onehop %s --help", argv[0], dashes, what, argv[0]);
    } else if (known) {
        oh_tool_error("%s: option '--%s' takes no argument; see onehop %s --help", argv[0], what, argv[0]);
    } else {
        oh_tool_error("%s: unrecognized option '%s'; see onehop %s --help", argv[0], what, argv[0]);
    }
}

const char *oh_tool_long_name(const struct option *options, int option)
{
    while (options->name && options->val != option) {
        options++;
    }
    return options->name;
}
