/* SPDX-License-Identifier: MIT */
/*
 * options.c - options of a subcommand
 *
 * Does: Parses them by getopt_long from a table, which also makes the help.
 * Threads: one.
 * Owns: nothing.
 */
#include "tools/shared/options.h"

#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "tools/shared/tool.h"

#define OPTIONS_MAX 40
#define FIRST_CODE 256 /* what getopt_long returns for row 0: no letter has this value */

bool oh_option_text(const char *name, const char *text, void *value)
{
    (void)name;
    *(const char **)value = text;
    return true;
}

bool oh_option_via(const char *name, const char *text, void *value)
{
    (void)name;
    return oh_tool_parse_via(text, value);
}

bool oh_option_pid(const char *name, const char *text, void *value)
{
    char *end;
    long pid = strtol(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || pid < 1 || pid > INT_MAX) {
        oh_tool_error("--%s %s: not a process id", name, text);
        return false;
    }
    *(pid_t *)value = (pid_t)pid;
    return true;
}

/* The same table in the form of getopt_long, and the letters of it. "+": ends at the first operand; ":": says nothing.
 */
static void translate(const struct oh_option *options, struct option *long_p, char *letters_p)
{
    int row = 0;
    *letters_p++ = '+';
    *letters_p++ = ':';
    *letters_p++ = 'h';
    for (; row < OPTIONS_MAX && options[row].name; row++) {
        int argument = options[row].take ? required_argument : no_argument;
        long_p[row] = (struct option){options[row].name, argument, NULL, FIRST_CODE + row};
        if (options[row].letter) {
            *letters_p++ = options[row].letter;
            *letters_p = ':';
            letters_p += argument == required_argument;
        }
    }
    *letters_p = '\0';
    long_p[row] = (struct option){"help", no_argument, NULL, 'h'};
    long_p[row + 1] = (struct option){NULL, 0, NULL, 0};
}

static const struct oh_option *row_of(const struct oh_option *options, int code)
{
    if (code >= FIRST_CODE) {
        return &options[code - FIRST_CODE];
    }
    while (options->letter != code) {
        options++;
    }
    return options;
}

int oh_options_read(int argc, char **argv, const char *help, const struct oh_option *options, int *status_p)
{
    struct option long_options[OPTIONS_MAX + 2];
    char letters[2 * OPTIONS_MAX + 4];
    int code;
    translate(options, long_options, letters);
    *status_p = OH_EXIT_USAGE;
    while ((code = getopt_long(argc, argv, letters, long_options, NULL)) != -1) {
        if (code == '?' || code == ':') {
            oh_tool_refuse_option(argv, long_options, code);
            return -1;
        }
        if (code == 'h') {
            fputs(help, stdout);
            *status_p = oh_tool_finish_stdout();
            return -1;
        }
        const struct oh_option *option = row_of(options, code);
        if (!option->take) {
            *(bool *)option->value = true;
        } else if (!option->take(option->name, optarg, option->value)) {
            return -1;
        }
    }
    *status_p = OH_EXIT_OK;
    return optind;
}
