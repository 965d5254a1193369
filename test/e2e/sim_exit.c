/* SPDX-License-Identifier: MIT */
/*
 * sim_exit.c - a rank of a program that uses and ends communicators while its process exits
 *
 *   sim_exit RANK NRANKS FOLDER MADE CALLS WHERE
 *
 * In main: a communicator, and three allreduces if CALLS is "early" or "both". WHERE the last part runs: at "exit"
 * (atexit), in the "program"'s destructor or in a "library"'s. The last part: three allreduces if CALLS is "late" or
 * "both", and the end of the communicator, which was made "before"; MADE "anew": of another one, made there; "never":
 * nothing is ended.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim_caller.h"

static struct {
    int rank, nranks;
    const char *folder, *made, *calls, *where;
} ending;

static void must(int failed)
{
    if (failed) {
        _exit(1);
    }
}

static void begin_in_folder(void)
{
    static int serial;
    char path[4096];
    snprintf(path, sizeof path, "%s/id.%d", ending.folder, serial++);
    must(caller_begin(ending.rank, ending.nranks, path));
}

static void call_if(const char *when)
{
    if (strcmp(ending.calls, when) == 0 || strcmp(ending.calls, "both") == 0) {
        must(caller_call(3));
    }
}

static void run_last_part(void)
{
    if (strcmp(ending.made, "anew") == 0) {
        must(caller_end());
        begin_in_folder();
    }
    call_if("late");
    if (strcmp(ending.made, "never") != 0) {
        must(caller_end());
    }
}

__attribute__((destructor)) static void end(void)
{
    if (ending.where && strcmp(ending.where, "program") == 0) {
        run_last_part();
    }
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: sim_exit RANK NRANKS FOLDER MADE CALLS WHERE\n");
        return 2;
    }
    int rank = (int)strtol(argv[1], NULL, 10), nranks = (int)strtol(argv[2], NULL, 10);
    ending = (__typeof__(ending)){rank, nranks, argv[3], argv[4], argv[5], argv[6]};
    begin_in_folder();
    call_if("early");
    if (strcmp(ending.where, "library") == 0) {
        caller_keep(run_last_part);
    }
    return strcmp(ending.where, "exit") == 0 ? atexit(run_last_part) : 0;
}
