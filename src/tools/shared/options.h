/* SPDX-License-Identifier: MIT */
/*
 * options.h - the options of a subcommand, as a table
 *
 * Options end at the first operand, so that those of a program behind it stay its own. --help is in every table by
 * itself. What is wrong is said on stderr.
 */
#ifndef OH_TOOLS_SHARED_OPTIONS_H_
#define OH_TOOLS_SHARED_OPTIONS_H_

#include <stdbool.h>

/*
 * One row. `take` reads the option's argument into *value, and returns false (having said why) when it is none; it may
 * be one of those below. Without `take` the option has no argument: *value is a bool and becomes true.
 */
struct oh_option {
    const char *name; /* without its dashes; NULL ends the table */
    char letter;      /* 0: none */
    bool (*take)(const char *name, const char *text, void *value);
    void *value;
};

/* The text itself; value: const char *. */
bool oh_option_text(const char *name, const char *text, void *value);

/* A way into a program; value: enum oh_via. */
bool oh_option_via(const char *name, const char *text, void *value);

/* A process id; value: pid_t. */
bool oh_option_pid(const char *name, const char *text, void *value);

/*
 * Reads the options. Returns the index of the first operand (argc: there is none), or -1 when the subcommand is to end
 * with *status_p: --help was given, and `help` printed; or an option is wrong.
 */
int oh_options_read(int argc, char **argv, const char *help, const struct oh_option *options, int *status_p);

#endif
