/* SPDX-License-Identifier: MIT */
/*
 * sim_live.c - a program linked with a library that calls NCCL: one rank, which can be looked at while it lives
 *
 *   sim_live RANK NRANKS ID_FILE [hold | live]
 *   sim_live RANK NRANKS FOLDER exit MADE CALLS WHERE
 *
 * Does the work of a rank, three calls, and says "ready"; live: makes the communicator only. Then, if asked to hold or
 * live, it reads commands from stdin, one a line, answering each with a line: `call N` (so many allreduces), `end` (of
 * the communicator), `fork` (a child that waits for the end; its pid), `info` (what onehop tells of the process,
 * through functions that are NULL without it). Ends when stdin does.
 *
 * exit: uses and ends communicators while its process exits. WHERE the last part runs: at "exit" (atexit), in the
 * "program"'s destructor or in a "library"'s. The last part: three allreduces if CALLS is "late" or "both", and the end
 * of the communicator, which was made "before"; MADE "anew": of another one, made there; "never": nothing is ended.
 * Before, in main: a communicator, and three allreduces if CALLS is "early" or "both".
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

static int run_exit(void)
{
    begin_in_folder();
    call_if("early");
    if (strcmp(ending.where, "library") == 0) {
        caller_keep(run_last_part);
    }
    return strcmp(ending.where, "exit") == 0 ? atexit(run_last_part) : 0;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: sim_live RANK NRANKS ID_FILE [hold | live | exit MADE CALLS WHERE]\n");
        return 2;
    }
    if (geteuid() != getuid()) {
        printf("set-user-ID\n");
    }
    int rank = (int)strtol(argv[1], NULL, 10), nranks = (int)strtol(argv[2], NULL, 10);
    if (argc > 7) {
        ending = (__typeof__(ending)){rank, nranks, argv[3], argv[5], argv[6], argv[7]};
        return run_exit();
    }
    bool lives = argc > 4 && strcmp(argv[4], "live") == 0;
    int failed = lives ? caller_begin(rank, nranks, argv[3]) : caller_run(rank, nranks, argv[3], 3);
    printf("%s\n", failed ? "failed" : "ready");
    fflush(stdout);
    if (argc > 4) {
        answer_commands();
    }
    return failed;
}
