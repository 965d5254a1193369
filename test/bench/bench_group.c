/* SPDX-License-Identifier: MIT */
/*
 * bench_group.c - a group of one allreduce for each GPU, by one thread, as llama.cpp and CuPy make it
 *
 *   LD_LIBRARY_PATH=NCCL:CUDA LD_PRELOAD=libonehop.so bench_group [GPUS [MILLISECONDS]]
 *
 * Needs GPUs, and the folders of the real libraries: those of the simulated node would be found else. Runs of groups by
 * stock NCCL (onehopStockFunction) and by onehop, in turns, each on communicators of its own, for about so many
 * milliseconds a size; prints the medians in microseconds a group, from the first call to idle streams. Two calls that
 * do not depend on each other follow on a stream; results are not looked at.
 */
#include <cuda.h>

#include "test/bench/bench.h"

#define MAX_GPUS 8
#define GROUPS 200
#define MAX_RUNS 200
#define MAX_BYTES ((size_t)1 << 20)

struct library {
    struct functions call;
    ncclComm_t comm[MAX_GPUS];
    double us[MAX_RUNS];
};

static struct library stock, onehop;
static int gpus;
static CUcontext contexts[MAX_GPUS];
static CUstream streams[MAX_GPUS];
static CUdeviceptr buffers[MAX_GPUS];

/* Microseconds a group. */
static double run(const struct library *by, size_t bytes)
{
    const double start = now_ns();
    for (int i = 0; i < GROUPS; i++) {
        MUST(by->call.group_start() == ncclSuccess);
        for (int r = 0; r < gpus; r++) {
            void *at = (void *)(uintptr_t)buffers[r];
            MUST(by->call.reduce(at, at, bytes / sizeof(float), ncclFloat, ncclSum, by->comm[r],
                                 (cudaStream_t)streams[r]) == ncclSuccess);
        }
        MUST(by->call.group_end() == ncclSuccess);
    }
    for (int r = 0; r < gpus; r++) {
        MUST(cuStreamSynchronize(streams[r]) == CUDA_SUCCESS);
    }
    return (now_ns() - start) / GROUPS / 1e3;
}

/* What was measured as onehop's must have been served. */
static void check_served(void)
{
    uint64_t fallbacks, served = count_served(onehop.comm[0], &fallbacks);
    MUST(served > fallbacks);
}

static int compare(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(double *us, int count)
{
    qsort(us, (size_t)count, sizeof *us, compare);
    return us[count / 2];
}

static void measure(size_t bytes, double milliseconds)
{
    run(&stock, bytes);
    run(&onehop, bytes);
    int runs = 0;
    for (const double end = now_ns() + milliseconds * 1e6; runs < MAX_RUNS && (runs < 3 || now_ns() < end); runs++) {
        stock.us[runs] = run(&stock, bytes);
        onehop.us[runs] = run(&onehop, bytes);
    }
    const double by_stock = median(stock.us, runs), by_onehop = median(onehop.us, runs);
    printf("%9zu  %8.2f  %8.2f  %5.2f\n", bytes, by_stock, by_onehop, by_onehop / by_stock);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    MUST(find_stock(&stock.call) && cuInit(0) == CUDA_SUCCESS && cuDeviceGetCount(&gpus) == CUDA_SUCCESS);
    gpus = argc > 1 && atoi(argv[1]) < gpus ? atoi(argv[1]) : gpus;
    MUST(gpus >= 2 && gpus <= MAX_GPUS);
    onehop.call = program;
    for (int r = 0; r < gpus; r++) {
        MUST(cuDevicePrimaryCtxRetain(&contexts[r], r) == CUDA_SUCCESS && cuCtxSetCurrent(contexts[r]) == CUDA_SUCCESS);
        MUST(cuStreamCreate(&streams[r], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
        MUST(cuMemAlloc(&buffers[r], MAX_BYTES) == CUDA_SUCCESS);
    }
    MUST(ncclCommInitAll(stock.comm, gpus, NULL) == ncclSuccess &&
         ncclCommInitAll(onehop.comm, gpus, NULL) == ncclSuccess);
    printf("    bytes     NCCL    onehop  onehop/NCCL   (us a group of %d)\n", gpus);
    for (size_t bytes = 1024; bytes <= MAX_BYTES; bytes *= 4) {
        measure(bytes, argc > 2 ? atof(argv[2]) : 500);
    }
    check_served();
    for (int r = 0; r < gpus; r++) {
        MUST(ncclCommDestroy(onehop.comm[r]) == ncclSuccess && ncclCommDestroy(stock.comm[r]) == ncclSuccess);
    }
    return 0;
}
