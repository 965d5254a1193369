/* SPDX-License-Identifier: MIT */
/*
 * sim_static.c - a program that has an NCCL of its own linked into it; "hold" as first argument: ends when stdin does
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char version[] = "NCCL version 2.27.3+static";

/* Not inlined, not folded: the symbol must be there. */
int ncclAllReduce(const void *input, void *output, size_t count);
__attribute__((noinline, used)) int ncclAllReduce(const void *input, void *output, size_t count)
{
    __asm__ volatile("" : : "r"(input), "r"(output) : "memory");
    memmove(output, input, count);
    return 0;
}

int main(int argc, char **argv)
{
    char buffer[8] = "";
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY); /* what makes it a GPU program */
    ncclAllReduce("result", buffer, sizeof "result");
    printf("%s: %s%s\n", version, buffer, driver ? "" : " (no CUDA driver)");
    fflush(stdout);
    if (argc > 1 && strcmp(argv[1], "hold") == 0) {
        char unused;
        while (read(STDIN_FILENO, &unused, 1) > 0) {
        }
    }
    return strcmp(buffer, "result") != 0;
}
