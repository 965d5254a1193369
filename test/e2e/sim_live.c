/* SPDX-License-Identifier: MIT */
/*
 * sim_live.c - a rank that does as it is told, to be looked at while it lives
 *
 *   sim_live RANK NRANKS ID_FILE
 *
 * Makes a communicator, says "done", and then reads commands from stdin, one a line, answering each with a line: `call
 * N` (so many allreduces), `end` (of the communicator), `fork` (a child that waits for the end; its pid), `info` (what
 * onehop tells of the process, through functions that are NULL without it). Ends when stdin does.
 */
#define ONEHOP_WEAK
#include "onehop/onehop.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim_caller.h"

/* The child holds the other end of a pipe, so that it goes with this process. */
static void fork_child(void)
{
    int ends[2];
    char unused;
    if (pipe(ends) != 0) {
        printf("failed\n");
        return;
    }
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        while (read(ends[0], &unused, 1) > 0) {
        }
        _exit(0);
    }
    close(ends[0]);
    printf("%d\n", (int)child);
}

static void tell(void)
{
    onehop_process_info_t info = {0};
    if (!onehopProcessInfo) {
        printf("no onehop here\n");
        return;
    }
    if (onehopProcessInfo(&info, sizeof info) != 0 || onehopProcessInfo(NULL, 0) == 0 ||
        strcmp(onehopFallbackName(ONEHOP_FALLBACK_SIZE), "size") != 0 || onehopFallbackText(ONEHOP_FALLBACK_COUNT)) {
        printf("failed\n");
        return;
    }
    printf("communicators %" PRIu64 " served %" PRIu64 " ended %" PRIu64 " calls %" PRIu64 " bytes %" PRIu64
           " back %" PRIu64 " size %" PRIu64 " staging %" PRIu64 "\n",
           info.communicators, info.served_communicators, info.ended_communicators, info.served_calls, info.bytes,
           info.fallback_calls, info.fallback_by_reason[ONEHOP_FALLBACK_SIZE], info.staging_bytes);
}

static void answer(int failed)
{
    printf("%s\n", failed ? "failed" : "done");
}

int main(int argc, char **argv)
{
    char line[64];
    if (argc != 4) {
        fprintf(stderr, "usage: sim_live RANK NRANKS ID_FILE\n");
        return 2;
    }
    answer(caller_begin((int)strtol(argv[1], NULL, 10), (int)strtol(argv[2], NULL, 10), argv[3]));
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "call ", 5) == 0) {
            answer(caller_call((int)strtol(line + 5, NULL, 10)));
        } else if (strcmp(line, "end\n") == 0) {
            answer(caller_end());
        } else if (strcmp(line, "fork\n") == 0) {
            fork_child();
        } else if (strcmp(line, "info\n") == 0) {
            tell();
        } else {
            printf("unknown\n");
        }
        fflush(stdout);
    }
    return 0;
}
