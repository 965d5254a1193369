/* SPDX-License-Identifier: MIT */
/*
 * scenario.c - see scenario.h
 */
#include "test/unit/scenario.h"

#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/tap.h"
#include "test/unit/topologies.h"

/* A scenario that takes longer hangs; on a busy machine one may take many seconds. */
#define SCENARIO_SECONDS 120

int failures;

void check(bool condition, const char *file, int line, const char *text)
{
    if (!condition) {
        failures++;
        tap_note("%s:%d: not so: %s", file, line, text);
    }
}

bool run_child(void (*part)(void))
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        failures = 0;
        alarm(SCENARIO_SECONDS);
        part();
        exit(failures ? 1 : 0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

CUcontext start(int device)
{
    CUcontext ctx = NULL;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, device));
    OK(cuCtxSetCurrent(ctx));
    return ctx;
}

CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr address = 0;
    OK(cuMemAlloc(&address, bytes));
    return address;
}

void *pointer(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

void CUDA_CB wait_flag(void *flag)
{
    while (!atomic_load((atomic_int *)flag)) {
        usleep(100);
    }
}

void CUDA_CB count(void *counter)
{
    atomic_fetch_add((atomic_int *)counter, 1);
}

void wait_until(atomic_int *value, int expected)
{
    for (int i = 0; i < 30000 && *value != expected; i++) {
        usleep(1000);
    }
    CHECK(*value == expected);
}

int run_scenarios(const struct scenario *scenarios, size_t number)
{
    use_topologies();
    unsetenv("CUDA_VISIBLE_DEVICES");
    for (size_t i = 0; i < number; i++) {
        tap_ok(run_child(scenarios[i].run), "%s", scenarios[i].name);
    }
    return tap_done();
}
