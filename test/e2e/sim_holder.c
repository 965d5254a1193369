/* SPDX-License-Identifier: MIT */
/*
 * sim_holder.c - a program linked with a library that calls NCCL: one rank, then it waits, if asked to
 *
 *   sim_holder RANK NRANKS ID_FILE [hold]
 *
 * "hold": says "ready" when the rank has done its work, and ends when stdin does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim_caller.h"

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: sim_holder RANK NRANKS ID_FILE [hold]\n");
        return 2;
    }
    if (geteuid() != getuid()) {
        printf("set-user-ID\n");
    }
    int failed = caller_run((int)strtol(argv[1], NULL, 10), (int)strtol(argv[2], NULL, 10), argv[3], 3);
    printf("%s\n", failed ? "failed" : "ready");
    fflush(stdout);
    if (argc > 4 && strcmp(argv[4], "hold") == 0) {
        char unused;
        while (read(STDIN_FILENO, &unused, 1) > 0) {
        }
    }
    return failed;
}
