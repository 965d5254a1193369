/* SPDX-License-Identifier: MIT */
/*
 * main.c - the `onehop` command: chooses the subcommand, and what all of them need
 */
#include "config.h"

#include "tools/shared/tool.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    int failure; /* the exit status where it fails */
    const char *purpose;
} subcommands[] = {
    {"run", oh_tool_run, OH_EXIT_FAILED, "run a program with its collective calls served by onehop"},
    {"perf", oh_tool_perf, OH_EXIT_FAILED, "measure stock NCCL and onehop side by side on these GPUs"},
    {"tune", oh_tool_tune, OH_EXIT_FAILED, "find the fastest algorithms of this machine, to be used from then on"},
    {"topo", oh_tool_topo, OH_EXIT_USAGE, "show how the GPUs are joined, and whether onehop serves them"},
    {"doctor", oh_tool_doctor, OH_EXIT_USAGE, "say whether onehop is in effect, here or in a program, and if not, why"},
    {"stat", oh_tool_stat, OH_EXIT_FAILED, "show what onehop has served in processes that run"},
    {NULL, NULL, 0, NULL},
};

static void usage(FILE *stream)
{
    fprintf(stream, "usage: onehop COMMAND [ARGUMENTS]\n\n");
    for (size_t i = 0; subcommands[i].name; i++) {
        fprintf(stream, "  %-8s%s\n", subcommands[i].name, subcommands[i].purpose);
    }
    fprintf(stream, "\n`onehop COMMAND --help` shows its options; `onehop --version` the version.\n");
}

/* No file shall get the number of a standard stream that is closed. It stays of no use, and closed for a program. */
static void occupy_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0) {
            open("/dev/null", (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
        }
    }
}

int main(int argc, char **argv)
{
    occupy_standard_streams();
    oh_tool_ignore_write_signals();
    json_set_alloc_funcs(oh_tool_allocate, free);
    if (argc < 2) {
        usage(stderr);
        return OH_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        usage(stdout);
        oh_tool_finish_stdout();
        return OH_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        puts("onehop " PACKAGE_VERSION);
        oh_tool_finish_stdout();
        return OH_EXIT_OK;
    }
    for (size_t i = 0; subcommands[i].name; i++) {
        if (strcmp(argv[1], subcommands[i].name) == 0) {
            oh_tool_begin(subcommands[i].name, subcommands[i].failure);
            return subcommands[i].run(argc - 1, argv + 1);
        }
    }
    const char *nearest = oh_tool_nearest(argv[1], subcommands, sizeof *subcommands);
    OH_TOOL_REFUSE("%s: unknown command%s%s%s; see onehop --help", argv[1], nearest ? " (did you mean " : "",
                   nearest ? nearest : "", nearest ? "?)" : "");
}
