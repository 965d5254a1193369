/* SPDX-License-Identifier: MIT */
/*
 * options.h - the options of a subcommand, from a table
 *
 * Long options only, and -h. Options end at the first word that is none. Not thread-safe (getopt).
 */
#ifndef OH_TOOLS_OPTIONS_H_
#define OH_TOOLS_OPTIONS_H_

#include <stdbool.h>
#include <stddef.h>

/* One option: a flag, which becomes true, or one that takes a text. One of the two pointers is NULL. */
struct oh_option {
    const char *name;
    bool *flag_p;
    const char **text_p; /* points into argv */
};

/*
 * Reads the options. True: go on, the first other word is argv[optind]. False: leave with *status_p, help has been
 * printed or one sentence stands on stderr.
 */
bool oh_options_read(int argc, char **argv, const char *help, const struct oh_option *options, size_t count,
                     int *status_p);

#endif
