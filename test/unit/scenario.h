/* SPDX-License-Identifier: MIT */
/*
 * scenario.h - what the tests of the simulated driver and NVML share: scenarios, checks, first steps with a device
 *
 * Each scenario is one test point and runs in a process of its own, so with libraries that nobody has used and with
 * its own environment. Within a scenario, CHECK notes what went wrong and goes on. One thread at a time.
 */
#ifndef TEST_UNIT_SCENARIO_H_
#define TEST_UNIT_SCENARIO_H_

#include <cuda.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct scenario {
    void (*run)(void);
    const char *name;
};

/* Checks of this process that failed. */
extern int failures;

#define CHECK(condition_) check((condition_), __FILE__, __LINE__, #condition_)
#define OK(call_) CHECK((call_) == CUDA_SUCCESS)
#define FAILS(call_, error_) CHECK((call_) == (error_))
void check(bool condition, const char *file, int line, const char *text);

/* Runs all scenarios, one test point each. Returns the exit status of the program. */
int run_scenarios(const struct scenario *scenarios, size_t number);

/* Runs part of a test in a child process; true: all its checks held. */
bool run_child(void (*part)(void));

/* cuInit and the context of one device. */
CUcontext start(int device);

CUdeviceptr allocate(size_t bytes);
void *pointer(CUdeviceptr address);

/* A host function: waits until the flag is set, so that a test can look at a stream that is busy. */
void CUDA_CB wait_flag(void *flag);

/* A host function: adds one. */
void CUDA_CB count(void *counter);

/* Waits until a counter has come to what it must be. */
void wait_until(atomic_int *value, int expected);

#endif
