/* SPDX-License-Identifier: MIT */
/*
 * options.c - getopt_long, driven by a table (options.h)
 */
#include "tools/options.h"

#include <getopt.h>
#include <stdio.h>

#include "tools/tool.h"

#define MOST_OPTIONS 16
#define FIRST_VALUE 256 /* beyond every character */

bool oh_options_read(int argc, char **argv, const char *help, const struct oh_option *options, size_t count,
                     int *status_p)
{
    struct option table[MOST_OPTIONS + 2] = {{"help", no_argument, NULL, 'h'}};
    for (size_t i = 0; i < count && i < MOST_OPTIONS; i++) {
        int argument = options[i].text_p ? required_argument : no_argument;
        table[i + 1] = (struct option){options[i].name, argument, NULL, FIRST_VALUE + (int)i};
    }
    int option;
    while ((option = getopt_long(argc, argv, "+h", table, NULL)) != -1) {
        if (option == 'h') {
            fputs(help, stdout);
            *status_p = OH_EXIT_OK;
            return false;
        }
        if (option < FIRST_VALUE) { /* getopt has said what is wrong */
            *status_p = OH_EXIT_USAGE;
            return false;
        }
        const struct oh_option *found = &options[option - FIRST_VALUE];
        if (found->text_p) {
            *found->text_p = optarg;
        } else {
            *found->flag_p = true;
        }
    }
    return true;
}
