/* SPDX-License-Identifier: MIT */
/*
 * sim_live.c - a program linked with a library that calls NCCL: one rank, which can be looked at while it lives
 *
 *   sim_live RANK NRANKS ID_FILE [hold | live]
 *
 * Does the work of a rank, three calls, and says "ready"; live: makes the communicator only. Then, if asked to hold or
 * live, it reads commands from stdin, one a line, answering each with a line: `call N` (so many allreduces), `end` (of
 * the communicator), `fork` (a child that waits for the end; its pid), `info` (what onehop tells of the process,
 * through functions that are NULL without it). Ends when stdin does.
 */
#define ONEHOP_WEAK
#include "onehop/onehop.h"

#include <inttypes.h>
#include <stdbool.h>
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
        strcmp(onehopFallbackName(ONEHOP_FALLBACK_SIZE), "size") != 0 || onehopFallbackText(ONEHOP_FALLBACK_COUNT) ||
        strcmp(onehopCollectiveName(ONEHOP_BROADCAST), "broadcast") != 0 ||
        onehopCollectiveName(ONEHOP_COLLECTIVE_COUNT) || !onehopStockFunction("ncclBcast") ||
        onehopStockFunction("ncclCommCount") || onehopStockFunction(NULL)) {
        printf("failed\n");
        return;
    }
    printf("communicators %" PRIu64 " served %" PRIu64 " ended %" PRIu64 " calls %" PRIu64 " bytes %" PRIu64
           " back %" PRIu64 " size %" PRIu64 " allreduce %" PRIu64 " staging %" PRIu64 "\n",
           info.communicators, info.served_communicators, info.ended_communicators, info.served_calls, info.bytes,
           info.fallback_calls, info.fallback_by_reason[ONEHOP_FALLBACK_SIZE],
           info.calls_by_collective[ONEHOP_ALLREDUCE], info.staging_bytes);
}

static void answer(int failed)
{
    printf("%s\n", failed ? "failed" : "done");
}

static void answer_commands(void)
{
    char line[64];
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
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: sim_live RANK NRANKS ID_FILE [hold | live]\n");
        return 2;
    }
    if (geteuid() != getuid()) {
        printf("set-user-ID\n");
    }
    int rank = (int)strtol(argv[1], NULL, 10), nranks = (int)strtol(argv[2], NULL, 10);
    bool lives = argc > 4 && strcmp(argv[4], "live") == 0;
    int failed = lives ? caller_begin(rank, nranks, argv[3]) : caller_run(rank, nranks, argv[3], 3);
    printf("%s\n", failed ? "failed" : "ready");
    fflush(stdout);
    if (argc > 4) {
        answer_commands();
    }
    return failed;
}
