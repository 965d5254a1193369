/* SPDX-License-Identifier: MIT */
/*
 * late_end.c - a rank that uses and ends communicators while its process exits
 *
 *   late_end RANK NRANKS FOLDER MADE CALLS WHERE
 *
 * WHERE the last part runs: at "exit" (atexit), in the "program"'s destructor or in a "library"'s. The last part: makes
 * a communicator, unless it was MADE "before", three allreduces if CALLS is "late" or "both", and ends the
 * communicator. Before, in main: a communicator, and three allreduces if CALLS is "early" or "both". MADE "never":
 * nothing is ended.
 */
#include <cuda.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "id_file.h"
#include "late_end.h"

#define COUNT 1000

static int rank, nranks;
static const char *folder, *made, *calls, *where;
static ncclComm_t comm;
static CUdeviceptr buffer;

#define MUST(condition_)                                                                                               \
    do {                                                                                                               \
        if (!(condition_)) {                                                                                           \
            fprintf(stderr, "late_end: rank %d: line %d: %s\n", rank, __LINE__, #condition_);                          \
            _Exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static void make(void)
{
    static int serial;
    char path[4096];
    ncclUniqueId id;
    snprintf(path, sizeof path, "%s/id.%d", folder, serial++);
    MUST(rank > 0 || (ncclGetUniqueId(&id) == ncclSuccess && id_publish(path, &id)));
    MUST(id_fetch(path, &id) && ncclCommInitRank(&comm, nranks, id, rank) == ncclSuccess);
}

static void use(const char *when)
{
    float host[COUNT];
    for (int call = 0; call < 3 && (strcmp(calls, when) == 0 || strcmp(calls, "both") == 0); call++) {
        for (int i = 0; i < COUNT; i++) {
            host[i] = (float)(i + rank);
        }
        MUST(cuMemcpyHtoD(buffer, host, sizeof host) == CUDA_SUCCESS && cuCtxSynchronize() == CUDA_SUCCESS);
        void *at = (void *)(uintptr_t)buffer;
        MUST(ncclAllReduce(at, at, COUNT, ncclFloat, ncclSum, comm, NULL) == ncclSuccess);
        MUST(cuStreamSynchronize(NULL) == CUDA_SUCCESS && cuMemcpyDtoH(host, buffer, sizeof host) == CUDA_SUCCESS);
        for (int i = 0; i < COUNT; i++) {
            MUST(host[i] == (float)(nranks * i + nranks * (nranks - 1) / 2));
        }
    }
}

static void last_part(void)
{
    if (strcmp(made, "anew") == 0) {
        MUST(ncclCommDestroy(comm) == ncclSuccess);
        make();
    }
    use("late");
    MUST(strcmp(made, "never") == 0 || ncclCommDestroy(comm) == ncclSuccess);
}

__attribute__((destructor)) static void end(void)
{
    if (where && strcmp(where, "program") == 0) {
        last_part();
    }
}

int main(int argc, char **argv)
{
    CUcontext context;
    MUST(argc == 7);
    rank = atoi(argv[1]);
    nranks = atoi(argv[2]);
    folder = argv[3];
    made = argv[4];
    calls = argv[5];
    MUST(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, rank) == CUDA_SUCCESS &&
         cuCtxSetCurrent(context) == CUDA_SUCCESS && cuMemAlloc(&buffer, COUNT * sizeof(float)) == CUDA_SUCCESS);
    make();
    use("early");
    where = argv[6];
    if (strcmp(where, "library") == 0) {
        late_end_keep(last_part);
    } else if (strcmp(where, "exit") == 0) {
        MUST(atexit(last_part) == 0);
    }
    return 0;
}
