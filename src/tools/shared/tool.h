/* SPDX-License-Identifier: MIT */
/*
 * tool.h - what the parts of the `onehop` command share
 *
 * One process, one subcommand; nothing here is thread-safe. Each subcommand takes its own argv (argv[0] is its name)
 * and returns the exit status.
 */
#ifndef OH_TOOLS_SHARED_TOOL_H_
#define OH_TOOLS_SHARED_TOOL_H_

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "util/log.h"

enum {
    OH_EXIT_OK = 0,
    OH_EXIT_FAILED = 1,       /* it did not go as asked, or the answer is no */
    OH_EXIT_USAGE = 2,        /* a bad option, a help that cannot be shown; doctor: cannot tell; topo: cannot be done */
    OH_EXIT_CANNOT_RUN = 126, /* run: the program exists and cannot be executed */
    OH_EXIT_NOT_FOUND = 127   /* run: there is no such program */
};

int oh_tool_run(int argc, char **argv);
int oh_tool_perf(int argc, char **argv);
int oh_tool_topo(int argc, char **argv);
int oh_tool_doctor(int argc, char **argv);
int oh_tool_stat(int argc, char **argv);
int oh_tool_tune(int argc, char **argv);

/* The name nearest to a word, or NULL if none is near. Rows begin with their name; a row without a name ends them. */
const char *oh_tool_nearest(const char *word, const void *rows, size_t row_size);

/* Begins a subcommand: its name stands in front of every sentence on stderr, `failure` is the exit status if it fails.
 */
void oh_tool_begin(const char *name, int failure);

/* Writes "onehop: NAME: text" and a newline to stderr; %m works as in syslog. */
void oh_tool_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Does the same, and ends the command: because it has failed, or because it was used wrongly. */
#define OH_TOOL_FAIL(...) (oh_tool_error(__VA_ARGS__), exit(oh_tool_failure))
#define OH_TOOL_REFUSE(...) (oh_tool_error(__VA_ARGS__), exit(OH_EXIT_USAGE))
extern int oh_tool_failure; /* the exit status where the subcommand fails */

/* Writes text as it stands within the quotes of JSON, of dot or of OpenMetrics. */
void oh_tool_put_escaped(const char *text, FILE *stream);

/*
 * JSON. Texts in it are printable ASCII already, and memory does not run out (main.c), so that jansson makes every
 * value that it is asked for.
 */

/* Makes a string; an empty text makes null. */
static inline json_t *oh_json_text(const char *text)
{
    return text[0] ? json_string(text) : json_null();
}

/* Writes the value as people read it, and a newline, and frees it. */
static inline void oh_json_write(FILE *stream, json_t *value)
{
    json_dumpf(value, stream, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    fputc('\n', stream);
    json_decref(value);
}

/* Allocates zeroed memory. Ends the command if there is none: it does not return NULL. */
void *oh_tool_allocate(size_t size);

/* Makes room for `count` elements in an array that grows. Ends the command if there is no memory. */
void *oh_tool_resize(void *array, size_t count, size_t size);

/* Replaces the line of progress on stderr, if that is a terminal. A sentence on stderr clears it, too. */
void oh_tool_show_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void oh_tool_clear_progress(void);

/* Makes a pipe that nobody reads, and a file that may not grow (ulimit -f), an error of the write. oh_tool_exec undoes
 * it. */
void oh_tool_ignore_write_signals(void);
void oh_tool_restore_write_signals(void);

/* Ends stdout. Ends the command with OH_EXIT_USAGE, with the reason on stderr, unless all of it has arrived. */
void oh_tool_finish_stdout(void);

/* The names under which the plugin is installed. */
#define OH_LIBRARY "libonehop.so"
#define OH_NET_PLUGIN "libnccl-net-onehop.so" /* the same object, under the name that NCCL's loader looks for */
#define OH_AUDIT "libonehop-audit.so"

/*
 * Finds libonehop.so: ONEHOP_LIBRARY, else beside this command (installed, or in the build tree), else in the libdir
 * of configure. The path is absolute. Returns NULL; or, if there is none that can be read, one sentence that names the
 * places, in static storage.
 */
const char *oh_tool_find_library(char path_p[PATH_MAX]);

/* The path of a file in the folder of libonehop.so. Ends the command when it is not there. */
void oh_tool_find_beside(const char *library, const char *name, char path_p[PATH_MAX]);

/* How the plugin comes into a program; the names are values of --via. */
enum oh_via {
    OH_VIA_PRELOAD,
    OH_VIA_PLUGIN,
    OH_VIA_AUDIT,
    OH_VIAS
};
extern const char *const oh_via_names[OH_VIAS];

/* Sets this process's environment so that programs started from it are reached that way. Ends the command if it cannot
 * be done. */
void oh_tool_reach(enum oh_via via);

/* The NCCL that a program gets which asks for it by its usual name. Returns its version, 0 if it does not report one;
 * path_p is empty if there is none, as where a Python package brings it. */
int oh_tool_nccl_version(char path_p[PATH_MAX]);

/* Replaces this process by the program. Returns only on failure, with the exit status, and has said why. */
int oh_tool_exec(char **argv);

/* Opens the driver. Returns the number of GPUs that CUDA sees; 0: none, with the reason. A driver that is there and has
 * no GPU to show is not called unusable. */
int oh_tool_count_gpus(char *reason_p, size_t size);

/* The verdict of `onehop topo` on the GPUs of this machine, and its reason. Returns their number. */
int oh_tool_assess_gpus(bool *served_p, char *text_p, size_t size);

/* Returns true, with one sentence, if this build has no kernels for a GPU here: it loads, and all calls fall back. */
bool oh_tool_lacks_kernels(char *text_p, size_t size);

/*
 * Begins the whole command again with the simulated node of the build tree in front of CUDA, NVML and NCCL; argv is the
 * subcommand's. Returns when that is so already. Ends the command when it cannot be done.
 */
void oh_tool_simulate(char **argv);

/* True when a GPU's name begins with SIMULATED; every table then says so. */
bool oh_tool_is_simulated(const char *gpu_name);

#endif
