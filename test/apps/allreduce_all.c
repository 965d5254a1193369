/* SPDX-License-Identifier: MIT */
/*
 * allreduce_all.c - NCCL in one process with all GPUs: ncclCommInitAll, and a group for each round, checked
 *
 *   cc -I/usr/local/cuda/include -o allreduce_all test/apps/allreduce_all.c -lnccl -lcuda
 *   ./allreduce_all [elements [rounds]]
 *
 * It knows nothing of onehop. In round i GPU g sends the integer g * i + element; integers, so that every sum is exact.
 * The group of a round has the allreduce on one stream, and on another an exchange as schemes of sparse gradients make
 * it (Li and Hoefler, Ok-Topk, PPoPP 2022): each GPU sends every other one the region of the elements that is that
 * one's; regions differ in length. NCCL joins the streams of a group: the allreduce waits for the copies on the second
 * stream, and what is on that waits for it.
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
    CUstream stream, exchange;
    CUdeviceptr send, recv;
    CUdeviceptr regions; /* of the others, each as long as the longest may be */
    ncclComm_t comm;
};

/* An element of the GPU's memory, as NCCL takes it. */
static void *element(CUdeviceptr memory, size_t i)
{
    return (void *)(uintptr_t)(memory + i * sizeof(int));
}

static void open_gpu(struct gpu *gpu, int ordinal, int gpus, size_t bytes)
{
    CUdevice device;
    CHECK(cuDeviceGet(&device, ordinal) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRetain(&gpu->context, device) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(gpu->context) == CUDA_SUCCESS);
    CHECK(cuStreamCreate(&gpu->stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(cuStreamCreate(&gpu->exchange, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&gpu->send, bytes) == CUDA_SUCCESS && cuMemAlloc(&gpu->recv, bytes) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&gpu->regions, (size_t)gpus * bytes) == CUDA_SUCCESS);
}

/* Where the region of a GPU begins, and that of the one before it ends. */
static size_t edge(int gpus, size_t count, int region)
{
    return count * (size_t)(region * (region + 1)) / (size_t)(gpus * (gpus + 1));
}

static void exchange(const struct gpu *gpu, int g, int gpus, size_t count)
{
    size_t mine = edge(gpus, count, g + 1) - edge(gpus, count, g);
    for (int peer = 0; peer < gpus; peer++) {
        size_t first = edge(gpus, count, peer), theirs = edge(gpus, count, peer + 1) - first;
        if (peer != g) {
            CHECK(ncclSend(element(gpu->send, first), theirs, ncclInt, peer, gpu->comm, (cudaStream_t)gpu->exchange) ==
                  ncclSuccess);
            CHECK(ncclRecv(element(gpu->regions, (size_t)peer * count), mine, ncclInt, peer, gpu->comm,
                           (cudaStream_t)gpu->exchange) == ncclSuccess);
        }
    }
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
        CHECK(cuMemcpyHtoDAsync(gpu[g].send, data, count * sizeof(int), gpu[g].exchange) == CUDA_SUCCESS);
        CHECK(ncclAllReduce(element(gpu[g].send, 0), element(gpu[g].recv, 0), count, ncclInt, ncclSum, gpu[g].comm,
                            (cudaStream_t)gpu[g].stream) == ncclSuccess);
        exchange(&gpu[g], g, gpus, count);
    }
    CHECK(ncclGroupEnd() == ncclSuccess);
}

static size_t count_wrong_regions(const struct gpu *gpu, int *data, int g, int gpus, size_t count, int round)
{
    size_t first = edge(gpus, count, g), length = edge(gpus, count, g + 1) - first, wrong = 0;
    for (int peer = 0; peer < gpus; peer++) {
        CUdeviceptr region = gpu->regions + (size_t)peer * count * sizeof(int);
        CHECK(cuMemcpyDtoHAsync(data, region, length * sizeof(int), gpu->exchange) == CUDA_SUCCESS);
        CHECK(cuStreamSynchronize(gpu->exchange) == CUDA_SUCCESS);
        for (size_t i = 0; i < length && peer != g; i++) {
            wrong += data[i] != peer * round + (int)(first + i);
        }
    }
    return wrong;
}

static size_t count_wrong(struct gpu *gpu, int *host, int gpus, size_t count, int round)
{
    size_t wrong = 0;
    for (int g = 0; g < gpus; g++) {
        int *data = host + (size_t)g * count;
        CHECK(cuCtxSetCurrent(gpu[g].context) == CUDA_SUCCESS);
        wrong += count_wrong_regions(&gpu[g], data, g, gpus, count, round);
        CHECK(cuMemcpyDtoHAsync(data, gpu[g].recv, count * sizeof(int), gpu[g].exchange) == CUDA_SUCCESS);
        CHECK(cuStreamSynchronize(gpu[g].exchange) == CUDA_SUCCESS);
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
        open_gpu(&gpu[g], g, gpus, count * sizeof(int));
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
