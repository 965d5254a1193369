/* SPDX-License-Identifier: MIT */
/*
 * run.c - `onehop run`: puts libonehop.so in front of a program and becomes that program
 */
#include "tools/tool.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libonehop.so"

static const char help[] =
    "usage: onehop run [--stats] [--] PROGRAM [ARGUMENTS]\n"
    "\n"
    "Runs PROGRAM with libonehop.so preloaded, so that onehop serves the ncclAllReduce calls that it can, and\n"
    "prints what was served when a communicator ends (unless ONEHOP_STATS=0 is set).\n"
    "\n"
    "  --stats     print it even where ONEHOP_STATS=0 is set\n"
    "  -h, --help  this text\n"
    "\n"
    "Environment: ONEHOP_LIBRARY is the libonehop.so to use. Exit status: that of PROGRAM; 2 for wrong usage, 126 "
    "when\n"
    "PROGRAM cannot be executed, 127 when it is not found, 1 when libonehop.so is not found.\n";

/* The directory of this command, without a final slash; "" when the kernel does not tell. */
static void own_directory(char *directory_p, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", directory_p, size - 1);
    directory_p[length < 0 ? 0 : length] = '\0';
    char *slash = strrchr(directory_p, '/');
    if (slash) {
        *slash = '\0';
    }
}

bool oh_tool_find_library(char *path_p, size_t size)
{
    static const char *const beside[] = {"../lib/" LIBRARY, "../../.libs/" LIBRARY}; /* installed; build tree */
    char directory[PATH_MAX], candidate[2 * PATH_MAX];

    const char *chosen = getenv("ONEHOP_LIBRARY");
    if (chosen && chosen[0]) {
        if (access(chosen, R_OK) != 0) {
            oh_tool_error("ONEHOP_LIBRARY=%s: %s", chosen, strerror(errno));
            return false;
        }
        snprintf(path_p, size, "%s", chosen);
        return true;
    }
    own_directory(directory, sizeof directory);
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        snprintf(candidate, sizeof candidate, "%s/%s", directory, beside[i]);
        char *real = realpath(candidate, NULL);
        if (real) {
            snprintf(path_p, size, "%s", real);
            free(real);
            return true;
        }
    }
    if (access(OH_LIBDIR "/" LIBRARY, R_OK) == 0) {
        snprintf(path_p, size, "%s", OH_LIBDIR "/" LIBRARY);
        return true;
    }
    oh_tool_error(LIBRARY " is neither in %s/../lib nor in " OH_LIBDIR "; ONEHOP_LIBRARY can name it", directory);
    return false;
}

/* Prepends the library to LD_PRELOAD. Returns false when the environment is full or the path cannot be preloaded. */
static bool preload(const char *library)
{
    char value[PATH_MAX + 8192];
    const char *before = getenv("LD_PRELOAD");
    if (strpbrk(library, " :")) {
        oh_tool_error("%s: LD_PRELOAD takes no path with a space or a colon in it", library);
        return false;
    }
    int length = snprintf(value, sizeof value, before && before[0] ? "%s:%s" : "%s", library, before);
    if (length >= (int)sizeof value || setenv("LD_PRELOAD", value, 1) != 0) {
        oh_tool_error("LD_PRELOAD is too long");
        return false;
    }
    return true;
}

int oh_tool_run(int argc, char **argv)
{
    static const struct option options[] = {
        {"stats", no_argument, NULL, 's'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    bool stats = false;
    int option;
    while ((option = getopt_long(argc, argv, "+h", options, NULL)) != -1) {
        switch (option) {
        case 's':
            stats = true;
            break;
        case 'h':
            fputs(help, stdout);
            return OH_EXIT_OK;
        default:
            return OH_EXIT_USAGE;
        }
    }
    if (optind == argc) {
        oh_tool_error("run: which program? See onehop run --help");
        return OH_EXIT_USAGE;
    }

    char library[PATH_MAX];
    if (!oh_tool_find_library(library, sizeof library) || !preload(library)) {
        return OH_EXIT_FAILED;
    }
    setenv("ONEHOP_STATS", "1", stats);
    execvp(argv[optind], argv + optind);
    int error = errno;
    oh_tool_error("%s: %s", argv[optind], strerror(error));
    return error == ENOENT ? OH_EXIT_NOT_FOUND : OH_EXIT_CANNOT_RUN;
}
