/* SPDX-License-Identifier: MIT */
/*
 * sim_caller.c - one rank, from the id to the end of the communicator
 *
 * Bound to NCCL by the dynamic linker, and opened by its users as they like.
 */
#include "sim_caller.h"

#include <cuda.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

#include "id_file.h"

#define ELEMENTS 1000

#define EXPORT __attribute__((visibility("default")))

#define CHECK(good_)                                                                                                   \
    do {                                                                                                               \
        if (!(good_)) {                                                                                                \
            printf("FAIL rank %d: %s\n", rank, #good_);                                                                \
            fflush(stdout);                                                                                            \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static int sum(int rank, int nranks, ncclComm_t comm, CUstream stream)
{
    CUdeviceptr memory;
    float input[ELEMENTS], output[ELEMENTS];
    CHECK(cuMemAlloc(&memory, sizeof input) == CUDA_SUCCESS);
    for (int i = 0; i < ELEMENTS; i++) {
        input[i] = (float)(rank + i);
    }
    CHECK(cuMemcpyHtoDAsync(memory, input, sizeof input, stream) == CUDA_SUCCESS);
    CHECK(ncclAllReduce((void *)memory, (void *)memory, ELEMENTS, ncclFloat32, ncclSum, comm, (cudaStream_t)stream) ==
          ncclSuccess);
    CHECK(cuMemcpyDtoHAsync(output, memory, sizeof output, stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    for (int i = 0; i < ELEMENTS; i++) {
        float expected = (float)(nranks * i + nranks * (nranks - 1) / 2);
        CHECK(output[i] == expected);
    }
    CHECK(cuMemFree(memory) == CUDA_SUCCESS);
    return 0;
}

/* The one communicator of this process. */
static struct {
    int rank;
    int nranks;
    ncclComm_t comm;
    CUstream stream;
} job;

EXPORT int caller_begin(int rank, int nranks, const char *id_file)
{
    ncclUniqueId id;
    CUdevice device;
    CUcontext context;
    int gpus = 0;
    CHECK(cuInit(0) == CUDA_SUCCESS && cuDeviceGetCount(&gpus) == CUDA_SUCCESS && gpus > 0);
    CHECK(cuDeviceGet(&device, rank % gpus) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS);
    CHECK(cuStreamCreate(&job.stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
    if (rank == 0) {
        CHECK(ncclGetUniqueId(&id) == ncclSuccess && id_publish(id_file, &id));
    } else {
        CHECK(id_fetch(id_file, &id));
    }
    CHECK(ncclCommInitRank(&job.comm, nranks, id, rank) == ncclSuccess);
    job.rank = rank;
    job.nranks = nranks;
    return 0;
}

EXPORT int caller_call(int calls)
{
    for (int i = 0; i < calls; i++) {
        if (sum(job.rank, job.nranks, job.comm, job.stream) != 0) {
            return 1;
        }
    }
    return 0;
}

EXPORT int caller_end(void)
{
    int rank = job.rank;
    CHECK(ncclCommDestroy(job.comm) == ncclSuccess);
    CHECK(cuStreamDestroy(job.stream) == CUDA_SUCCESS);
    return 0;
}

EXPORT int caller_run(int rank, int nranks, const char *id_file, int calls)
{
    return caller_begin(rank, nranks, id_file) || caller_call(calls) || caller_end();
}

static void (*action)(void);

EXPORT void caller_keep(void (*function)(void))
{
    action = function;
}

__attribute__((destructor)) static void end(void)
{
    if (action) {
        action();
    }
}
