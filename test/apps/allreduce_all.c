/* SPDX-License-Identifier: MIT */
/*
 * allreduce_all.c - NCCL in one process with all GPUs: ncclCommInitAll, and a group for each round, checked
 *
 *   cc -I/usr/local/cuda/include -o allreduce_all test/apps/allreduce_all.c -lnccl -lcuda
 *   ./allreduce_all [elements [rounds]]
 *
 * It knows nothing of onehop. In round i GPU g sends the integer g * i + element; integers, so that every sum is exact.
 */
#include <cuda.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

#define GPUS_MAX 64

#define CHECK(condition_)                                                                                              \
    do {                                                                                                               \
        if (!(condition_)) {                                                                                           \
            fprintf(stderr, "allreduce_all: line %d: %s\n", __LINE__, #condition_);                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* nccl.h gives these without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

struct gpu {
    CUcontext context;
    CUstream stream;
    CUdeviceptr send, recv;
    ncclComm_t comm;
};

static void open_gpu(struct gpu *gpu, int ordinal, size_t bytes)
{
    CUdevice device;
    CHECK(cuDeviceGet(&device, ordinal) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRetain(&gpu->context, device) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(gpu->context) == CUDA_SUCCESS);
    CHECK(cuStreamCreate(&gpu->stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&gpu->send, bytes) == CUDA_SUCCESS && cuMemAlloc(&gpu->recv, bytes) == CUDA_SUCCESS);
}

static void reduce(struct gpu *gpu, int *host, int gpus, size_t count, int round)
{
    CHECK(ncclGroupStart() == ncclSuccess);
    for (int g = 0; g < gpus; g++) {
        int *data = host + (size_t)g * count;
        for (size_t i = 0; i < count; i++) {
            data[i] = g * round + (int)i;
        }
        CHECK(cuCtxSetCurrent(gpu[g].context) == CUDA_SUCCESS);
        CHECK(cuMemcpyHtoDAsync(gpu[g].send, data, count * sizeof(int), gpu[g].stream) == CUDA_SUCCESS);
        CHECK(ncclAllReduce((void *)(uintptr_t)gpu[g].send, (void *)(uintptr_t)gpu[g].recv, count, ncclInt, ncclSum,
                            gpu[g].comm, (cudaStream_t)gpu[g].stream) == ncclSuccess);
    }
    CHECK(ncclGroupEnd() == ncclSuccess);
}

static size_t count_wrong(struct gpu *gpu, int *host, int gpus, size_t count, int round)
{
    size_t wrong = 0;
    for (int g = 0; g < gpus; g++) {
        int *data = host + (size_t)g * count;
        CHECK(cuCtxSetCurrent(gpu[g].context) == CUDA_SUCCESS);
        CHECK(cuMemcpyDtoHAsync(data, gpu[g].recv, count * sizeof(int), gpu[g].stream) == CUDA_SUCCESS);
        CHECK(cuStreamSynchronize(gpu[g].stream) == CUDA_SUCCESS);
        for (size_t i = 0; i < count; i++) {
            wrong += data[i] != gpus * (gpus - 1) / 2 * round + gpus * (int)i;
        }
    }
    return wrong;
}

int main(int argc, char **argv)
{
    static struct gpu gpu[GPUS_MAX];
    static ncclComm_t comms[GPUS_MAX];
    size_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 10000, wrong = 0;
    int rounds = argc > 2 ? atoi(argv[2]) : 100, gpus;
    CHECK(cuInit(0) == CUDA_SUCCESS && cuDeviceGetCount(&gpus) == CUDA_SUCCESS && gpus > 0 && gpus <= GPUS_MAX);
    CHECK(ncclCommInitAll(comms, gpus, NULL) == ncclSuccess);
    int *host = calloc((size_t)gpus * count, sizeof *host);
    CHECK(host != NULL);
    for (int g = 0; g < gpus; g++) {
        gpu[g].comm = comms[g];
        open_gpu(&gpu[g], g, count * sizeof(int));
    }
    for (int round = 1; round <= rounds; round++) {
        reduce(gpu, host, gpus, count, round);
        wrong += count_wrong(gpu, host, gpus, count, round);
    }
    printf("%d GPUs, %d sums of %zu elements: %zu wrong\n", gpus, rounds, count, wrong);
    for (int g = 0; g < gpus; g++) {
        ncclCommDestroy(gpu[g].comm);
    }
    free(host);
    return wrong > 0;
}
