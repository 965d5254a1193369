/* SPDX-License-Identifier: MIT */
/*
 * tool.h - what the parts of the `onehop` command share
 *
 * One process, one subcommand; nothing here is thread-safe. Each subcommand takes its own argv (argv[0] is its name)
 * and returns the exit status.
 */
#ifndef OH_TOOLS_TOOL_H_
#define OH_TOOLS_TOOL_H_

#include <stdbool.h>
#include <stddef.h>

enum {
    OH_EXIT_OK = 0,
    OH_EXIT_FAILED = 1,       /* it did not go as asked, or the answer is no */
    OH_EXIT_USAGE = 2,        /* a bad option or argument */
    OH_EXIT_CANNOT_RUN = 126, /* run: the program exists and cannot be executed */
    OH_EXIT_NOT_FOUND = 127   /* run: there is no such program */
};

int oh_tool_run(int argc, char **argv);
int oh_tool_perf(int argc, char **argv);
int oh_tool_topo(int argc, char **argv);

/* Writes "onehop: text" and a newline to stderr. */
void oh_tool_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/*
 * Finds libonehop.so: ONEHOP_LIBRARY, else beside this command (installed, or in the build tree), else in the libdir
 * of configure. Returns false, with the places named on stderr, when there is none that can be read.
 */
bool oh_tool_find_library(char *path_p, size_t size);

/* True when a GPU's name says that it is a stand-in; every table then says so. */
bool oh_tool_is_simulated(const char *gpu_name);

#endif
