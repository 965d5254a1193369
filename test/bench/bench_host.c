/* SPDX-License-Identifier: MIT */
/*
 * bench_host.c - what onehop costs the host, on the simulated node, without the GPU's part
 *
 *   LD_PRELOAD="libonehop.so libstubdriver.so" bench_host
 *
 * `make bench` builds and runs it. One process, two ranks, one of which calls. What is handed back is measured with
 * arguments that NCCL refuses at once, so that NCCL's own time is small, and that is subtracted: the same call is made
 * to pncclX. The shortest of several runs counts, since a busy machine only adds.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "onehop/onehop.h"

#define CALLS 200000
#define RUNS 15
#define COUNT 1000

/* nccl.h gives these without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t pncclGroupStart(void);
ncclResult_t pncclGroupEnd(void);

typedef ncclResult_t (*reduce_function)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                        cudaStream_t);

static ncclComm_t comms[2];
static CUstream stream;
static CUdeviceptr buffer;
static reduce_function reduce;
static ncclResult_t (*group_start)(void);
static ncclResult_t (*group_end)(void);
static void *libc;

#define MUST(condition_)                                                                                               \
    do {                                                                                                               \
        if (!(condition_)) {                                                                                           \
            fprintf(stderr, "bench_host: line %d: %s\n", __LINE__, #condition_);                                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static void call_served(void)
{
    void *at = (void *)(uintptr_t)buffer;
    reduce(at, at, COUNT, ncclFloat, ncclSum, comms[0], (cudaStream_t)stream);
}

static void call_refused(void)
{
    void *at = (void *)(uintptr_t)buffer;
    reduce(at, at, COUNT, (ncclDataType_t)99, ncclSum, comms[0], (cudaStream_t)stream);
}

static ncclResult_t (*broadcast)(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);

static void call_other(void)
{
    void *at = (void *)(uintptr_t)buffer;
    broadcast(at, at, COUNT, (ncclDataType_t)99, 0, comms[0], (cudaStream_t)stream);
}

static void call_group(void)
{
    group_start();
    group_end();
}

static void call_dlsym(void)
{
    MUST(dlsym(libc, "printf"));
}

/* What was measured as served must have been. */
static void check_served(void)
{
    int (*ask)(const void *, onehop_comm_info_t *, size_t) =
        (int (*)(const void *, onehop_comm_info_t *, size_t))dlsym(RTLD_DEFAULT, "onehopCommInfo");
    onehop_comm_info_t info;
    uint64_t calls = 0;
    MUST(ask && ask(comms[0], &info, sizeof info) == 0);
    for (int a = 0; a < ONEHOP_ALGORITHMS; a++) {
        calls += info.calls[a];
    }
    MUST(calls == (uint64_t)CALLS * RUNS);
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Nanoseconds a call. */
static double measure(void (*call)(void))
{
    double best = 1e18;
    for (int run = 0; run < RUNS; run++) {
        double start = now_ns();
        for (int i = 0; i < CALLS; i++) {
            call();
        }
        double each = (now_ns() - start) / CALLS;
        best = each < best ? each : best;
    }
    return best;
}

static void print(const char *what, double ns, double aim)
{
    if (aim > 0) {
        printf("%-52s %8.1f ns   (aim: below %.0f)%s\n", what, ns, aim, ns < aim ? "" : "  MISSED");
    } else {
        printf("%-52s %8.1f ns\n", what, ns);
    }
}

int main(void)
{
    CUcontext context;
    void (*stub)(bool, CUcontext) = (void (*)(bool, CUcontext))dlsym(RTLD_DEFAULT, "bench_stub");
    bool onehop = dlsym(RTLD_DEFAULT, "onehopVersion") != NULL;
    MUST(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    MUST(cuCtxSetCurrent(context) == CUDA_SUCCESS && cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    MUST(cuMemAlloc(&buffer, COUNT * sizeof(float)) == CUDA_SUCCESS);
    MUST(ncclCommInitAll(comms, 2, NULL) == ncclSuccess);
    MUST(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    libc = dlopen("libc.so.6", RTLD_NOW);
    printf("SIMULATED node, host time of a call, %s\n", onehop ? "with onehop" : "without onehop");
    print("dlsym", measure(call_dlsym), 0);
    reduce = pncclAllReduce;
    double nccl = measure(call_refused);
    reduce = ncclAllReduce;
    broadcast = pncclBroadcast;
    double nccl_other = measure(call_other);
    broadcast = ncclBroadcast;
    group_start = pncclGroupStart;
    group_end = pncclGroupEnd;
    double nccl_group = measure(call_group);
    group_start = ncclGroupStart;
    group_end = ncclGroupEnd;
    if (onehop) {
        print("handed back: ncclAllReduce, beside NCCL's own time", measure(call_refused) - nccl, 100);
        print("handed back: ncclBroadcast, beside NCCL's own time", measure(call_other) - nccl_other, 100);
        print("handed back: an empty group, beside NCCL's own time", measure(call_group) - nccl_group, 200);
        void *handle = dlopen("libnccl.so.2", RTLD_NOW);
        reduce = (reduce_function)dlsym(handle, "ncclAllReduce");
        print("the same ncclAllReduce, its address from dlsym", measure(call_refused) - nccl, 100);
        reduce = ncclAllReduce;
        MUST(stub);
        stub(true, context);
        print("served: ncclAllReduce, beside the driver's time", measure(call_served), 1500);
        stub(false, NULL);
        check_served();
    }
    fflush(stdout);
    _Exit(0); /* the peers never saw these calls */
}
