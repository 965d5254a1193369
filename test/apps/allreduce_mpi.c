/* SPDX-License-Identifier: MIT */
/*
 * allreduce_mpi.c - NCCL under MPI, as small as it gets: one process a GPU, ncclAllReduce in a loop, checked
 *
 *   mpicc -I/usr/local/cuda/include -o allreduce_mpi test/apps/allreduce_mpi.c -lnccl -lcuda
 *   mpirun -n 4 ./allreduce_mpi [elements [rounds]]
 *   mpirun -n 4 -x LD_PRELOAD=libonehop.so ./allreduce_mpi
 *
 * It knows nothing of onehop. In round i rank r sends r + i + 1 in every element; the sum is known to everyone.
 */
#include <cuda.h>
#include <mpi.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition_)                                                                                              \
    do {                                                                                                               \
        if (!(condition_)) {                                                                                           \
            fprintf(stderr, "allreduce_mpi: line %d: %s\n", __LINE__, #condition_);                                    \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                              \
        }                                                                                                              \
    } while (0)

/* The ranks of this host number its GPUs. */
static CUstream open_gpu(void)
{
    MPI_Comm host;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    int local;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &local);
    MPI_Comm_free(&host);
    CHECK(cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, local) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return stream;
}

/* The number of elements that are not the sum over the ranks. */
static size_t run_round(ncclComm_t comm, CUstream stream, CUdeviceptr device, float *host, size_t count, float mine,
                        float sum)
{
    size_t wrong = 0;
    void *buffer = (void *)(uintptr_t)device;
    for (size_t i = 0; i < count; i++) {
        host[i] = mine;
    }
    CHECK(cuMemcpyHtoDAsync(device, host, count * sizeof *host, stream) == CUDA_SUCCESS);
    CHECK(ncclAllReduce(buffer, buffer, count, ncclFloat, ncclSum, comm, (cudaStream_t)stream) == ncclSuccess);
    CHECK(cuMemcpyDtoHAsync(host, device, count * sizeof *host, stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    for (size_t i = 0; i < count; i++) {
        wrong += host[i] != sum;
    }
    return wrong;
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    size_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 10000;
    int rounds = argc > 2 ? atoi(argv[2]) : 100;

    CUstream stream = open_gpu();
    ncclUniqueId id;
    ncclComm_t comm;
    if (rank == 0) {
        CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    }
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    CHECK(ncclCommInitRank(&comm, ranks, id, rank) == ncclSuccess);

    CUdeviceptr device;
    float *host = malloc(count * sizeof *host);
    CHECK(host != NULL && cuMemAlloc(&device, count * sizeof *host) == CUDA_SUCCESS);
    unsigned long long wrong = 0, all;
    for (int i = 0; i < rounds; i++) {
        float sum = (float)(ranks * (ranks + 1) / 2 + ranks * i);
        wrong += run_round(comm, stream, device, host, count, (float)(rank + i + 1), sum);
    }
    MPI_Reduce(&wrong, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("%d ranks, %d sums of %zu elements: %llu wrong\n", ranks, rounds, count, all);
    }
    ncclCommDestroy(comm);
    cuMemFree(device);
    free(host);
    MPI_Finalize();
    return wrong > 0;
}
