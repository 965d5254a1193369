/* SPDX-License-Identifier: MIT */
/*
 * sim_close.c - a program that opens NCCL, uses it on two GPUs, and closes it again, several times
 *
 *   sim_close [keep]     "keep": its communicators are not destroyed before
 *
 * Prints "round N: right" for each, then a line with what became of the library.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 2
#define ROUNDS 3
#define COUNT 1000

#define CHECK(condition_)                                                                                              \
    do {                                                                                                               \
        if (!(condition_)) {                                                                                           \
            printf("FAIL line %d: %s\n", __LINE__, #condition_);                                                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static void *find(void *library, const char *name)
{
    void *address = dlsym(library, name);
    CHECK(address != NULL);
    return address;
}

#define FIND(library_, function_) __typeof__(&function_) function_##_p = find(library_, #function_)

static CUcontext context[RANKS];
static CUdeviceptr buffer[RANKS];

static void fill(void)
{
    float ones[COUNT];
    for (int i = 0; i < COUNT; i++) {
        ones[i] = (float)(i % 7);
    }
    for (int r = 0; r < RANKS; r++) {
        CHECK(cuCtxSetCurrent(context[r]) == CUDA_SUCCESS);
        CHECK(cuMemcpyHtoDAsync(buffer[r], ones, sizeof ones, NULL) == CUDA_SUCCESS);
        CHECK(cuStreamSynchronize(NULL) == CUDA_SUCCESS);
    }
}

static void verify(void)
{
    float sums[COUNT];
    for (int r = 0; r < RANKS; r++) {
        CHECK(cuCtxSetCurrent(context[r]) == CUDA_SUCCESS);
        CHECK(cuMemcpyDtoHAsync(sums, buffer[r], sizeof sums, NULL) == CUDA_SUCCESS);
        CHECK(cuStreamSynchronize(NULL) == CUDA_SUCCESS);
        for (int i = 0; i < COUNT; i++) {
            CHECK(sums[i] == (float)(RANKS * (i % 7)));
        }
    }
}

static void use_nccl(bool keeps)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    ncclComm_t comms[RANKS];
    CHECK(library != NULL);
    FIND(library, ncclCommInitAll);
    FIND(library, ncclAllReduce);
    FIND(library, ncclCommDestroy);
    ncclResult_t (*group_start)(void) = (ncclResult_t(*)(void))find(library, "ncclGroupStart");
    ncclResult_t (*group_end)(void) = (ncclResult_t(*)(void))find(library, "ncclGroupEnd");
    CHECK(ncclCommInitAll_p(comms, RANKS, NULL) == ncclSuccess);
    fill();
    CHECK(group_start() == ncclSuccess);
    for (int r = 0; r < RANKS; r++) {
        void *data = (void *)(uintptr_t)buffer[r];
        CHECK(cuCtxSetCurrent(context[r]) == CUDA_SUCCESS);
        CHECK(ncclAllReduce_p(data, data, COUNT, ncclFloat, ncclSum, comms[r], NULL) == ncclSuccess);
    }
    CHECK(group_end() == ncclSuccess);
    verify();
    for (int r = 0; r < RANKS && !keeps; r++) {
        CHECK(cuCtxSetCurrent(context[r]) == CUDA_SUCCESS);
        CHECK(ncclCommDestroy_p(comms[r]) == ncclSuccess);
    }
    CHECK(dlclose(library) == 0);
}

int main(int argc, char **argv)
{
    bool keeps = argc > 1 && strcmp(argv[1], "keep") == 0;
    CHECK(cuInit(0) == CUDA_SUCCESS);
    for (int r = 0; r < RANKS; r++) {
        CHECK(cuDevicePrimaryCtxRetain(&context[r], r) == CUDA_SUCCESS && cuCtxSetCurrent(context[r]) == CUDA_SUCCESS);
        CHECK(cuMemAlloc(&buffer[r], COUNT * sizeof(float)) == CUDA_SUCCESS);
    }
    for (int round = 1; round <= ROUNDS; round++) {
        use_nccl(keeps);
        printf("round %d: right\n", round);
    }
    printf("the library %s\n", dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD) ? "stays" : "is gone");
    return 0;
}
