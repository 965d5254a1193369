/* SPDX-License-Identifier: MIT */
/*
 * all_reduce_perf.c - stands in for the program of that name of nccl-tests: same options, same lines, little measuring
 *
 *   all_reduce_perf [-b BYTES] [-e BYTES] [-f FACTOR] [-g GPUS] [-n ITERS] [-G REPLAYS]
 *
 * Floats, sum. One process with GPUS GPUs, or one process of mpirun (variables of Open MPI or MPICH) with one; its
 * ranks meet by a file in TMPDIR. STAND_IN_FAIL=status: ends with it in the middle. STAND_IN_WAIT: waits behind the
 * first row.
 */
#include <cuda.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "id_file.h"
#include "test/common/options.h"

#define GPUS 8
#define CHECK(call_)                                                                                                   \
    do {                                                                                                               \
        if ((call_) != 0) {                                                                                            \
            fprintf(stderr, "%s failed\n", #call_);                                                                    \
            exit(EXIT_FAILURE);                                                                                        \
        }                                                                                                              \
    } while (0)

static int ranks, rank, local;
static struct {
    CUcontext context;
    CUstream stream;
    CUdeviceptr send, recv;
    ncclComm_t comm;
} gpu[GPUS];

static int variable(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void open_all(size_t bytes)
{
    ncclUniqueId id;
    char path[4096]; /* all ranks of this mpirun know it */
    CHECK(cuInit(0));
    snprintf(path, sizeof path, "%s/all_reduce_perf.%d", getenv("TMPDIR"), (int)getppid());
    if (rank == 0) {
        CHECK(ncclGetUniqueId(&id));
    }
    if (ranks > local) {
        CHECK(rank == 0 ? !id_publish(path, &id) : !id_fetch(path, &id));
    }
    for (int i = 0; i < local; i++) {
        CUdevice device;
        CHECK(cuDeviceGet(&device, rank + i));
        CHECK(cuDevicePrimaryCtxRetain(&gpu[i].context, device));
        CHECK(cuCtxSetCurrent(gpu[i].context));
        CHECK(cuStreamCreate(&gpu[i].stream, CU_STREAM_NON_BLOCKING));
        CHECK(cuMemAlloc(&gpu[i].send, bytes));
        CHECK(cuMemAlloc(&gpu[i].recv, bytes));
        CHECK(cuMemsetD32Async(gpu[i].send, 0x3f800000, bytes / 4, gpu[i].stream)); /* ones */
    }
    CHECK(ncclGroupStart());
    for (int i = 0; i < local; i++) {
        CHECK(cuCtxSetCurrent(gpu[i].context));
        CHECK(ncclCommInitRank(&gpu[i].comm, ranks, id, rank + i));
    }
    CHECK(ncclGroupEnd());
}

/* Microseconds of a call. */
static double run(size_t count, int iters)
{
    double start = now_us();
    for (int n = 0; n < iters; n++) {
        CHECK(ncclGroupStart());
        for (int i = 0; i < local; i++) {
            CHECK(cuCtxSetCurrent(gpu[i].context));
            CHECK(ncclAllReduce((void *)gpu[i].send, (void *)gpu[i].recv, count, ncclFloat, ncclSum, gpu[i].comm,
                                (void *)gpu[i].stream));
        }
        CHECK(ncclGroupEnd());
    }
    for (int i = 0; i < local; i++) {
        CHECK(cuStreamSynchronize(gpu[i].stream));
    }
    return (now_us() - start) / iters;
}

static long wrong(size_t count)
{
    long found = 0;
    float *host = malloc(count * sizeof *host);
    for (int i = 0; i < local; i++) {
        CHECK(cuMemcpyDtoHAsync(host, gpu[i].recv, count * sizeof *host, gpu[i].stream));
        CHECK(cuStreamSynchronize(gpu[i].stream));
        for (size_t j = 0; j < count; j++) {
            found += host[j] != (float)ranks;
        }
    }
    free(host);
    return found;
}

/*
 * STAND_IN_FORM: the columns of an old version, of one with times of each iteration, with timestamps, or ranks split
 * into two groups; the time in place is then IN_PLACE_US. Or a program made without MPI.
 */
#define IN_PLACE_US 4711.0
static bool form_is(const char *form)
{
    const char *wanted = getenv("STAND_IN_FORM");
    return wanted && strcmp(wanted, form) == 0;
}

static void print_head(void)
{
    printf("# nccl-tests version 2.17.0 (stand-in) nccl-headers=22809 nccl-library=22809\n#\n# Using devices\n");
    for (int r = 0; r < ranks; r++) {
        char name[128];
        CUdevice device;
        CHECK(cuDeviceGet(&device, r));
        CHECK(cuDeviceGetName(name, sizeof name, device));
        printf("#  Rank %2d Group %2d Pid %6d on        vm device %2d [0000:%02x:00] %s\n", r,
               form_is("split") ? r % 2 : 0, (int)getpid(), r, r, name);
    }
    printf("#\n#%69s%35s\n", "out-of-place", "in-place");
    if (form_is("old")) {
        printf("#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  "
               "error\n");
    } else if (form_is("each")) {
        printf(
            "#       size         count      type   redop    root     time   algbw   busbw #wrong    i_min    i_max    "
            "i_p99    i_cv%%     time   algbw   busbw #wrong    i_min    i_max    i_p99    i_cv%%\n");
    } else {
        printf(
            "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   "
            "busbw #wrong%s\n",
            form_is("stamped") ? "           timestamp" : "");
    }
    printf("#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  "
           "(GB/s)\n");
}

static void print_row(size_t bytes, double us, long bad)
{
    double algbw = (double)bytes / us / 1000, busbw = algbw * 2 * (ranks - 1) / ranks;
    const char *more = form_is("each") ? "     1.00     9.00     8.00     7.00" : "";
    printf("%12zu  %12zu  %8s  %6s", bytes, bytes / 4, "float", "sum");
    if (form_is("old")) {
        printf("  %7.2f %7.2f %7.2f  2e-07  %7.2f %7.2f %7.2f  2e-07\n", us, algbw, busbw, IN_PLACE_US, algbw, busbw);
    } else {
        printf("  %6d  %7.2f %7.2f %7.2f %6ld%s", -1, us, algbw, busbw, bad, more);
        printf("  %7.2f %7.2f %7.2f    N/A%s%s\n", getenv("STAND_IN_FORM") ? IN_PLACE_US : us, algbw, busbw, more,
               form_is("stamped") ? "  2026-11-22 08:00:00" : "");
    }
    fflush(stdout);
}

static bool take_bytes(void *bytes, const char *text)
{
    char *end;
    size_t number = strtoul(text, &end, 10);
    *(size_t *)bytes = *end == 'M' ? number << 20 : *end == 'K' ? number << 10 : number;
    return true;
}

int main(int argc, char **argv)
{
    static const char usage[] =
        "usage: all_reduce_perf [-b BYTES] [-e BYTES] [-f FACTOR] [-g GPUS] [-n ITERS] [-G REPLAYS]\n";
    size_t least = 1024, most = 1024;
    int factor = 2, iters = 3, replays;
    long all_wrong = 0;
    const struct cf_option table[] = {
        CF_TAKES("b", take_bytes, &least),
        CF_TAKES("e", take_bytes, &most),
        CF_INT("f", &factor, 2, 1024),
        CF_INT("g", &local, 1, GPUS),
        CF_INT("n", &iters, 1, 1000000),
        CF_INT("G", &replays, 0, 1000000),
        CF_NO_MORE,
    };
    local = 1;
    if (cf_options_read(argc, argv, usage, table) < argc) {
        cf_options_refuse(usage);
    }
    rank = form_is("alone") ? 0 : variable("OMPI_COMM_WORLD_RANK", variable("PMI_RANK", 0));
    ranks = form_is("alone") ? local : variable("OMPI_COMM_WORLD_SIZE", variable("PMI_SIZE", 1)) * local;
    open_all(most);
    if (rank == 0) {
        print_head();
    }
    for (size_t bytes = least; bytes <= most; bytes *= (size_t)factor) {
        double us = run(bytes / 4, iters);
        long bad = wrong(bytes / 4);
        all_wrong += bad;
        if (rank == 0) {
            print_row(bytes, us, bad);
        }
        if (getenv("STAND_IN_WAIT")) {
            sleep(600);
        }
        if (getenv("STAND_IN_FAIL")) {
            return variable("STAND_IN_FAIL", 1);
        }
    }
    if (rank == 0) {
        printf("# Out of bounds values : %ld %s\n# Avg bus bandwidth    : 1\n#\n", all_wrong,
               all_wrong ? "FAILED" : "OK");
    }
    for (int i = 0; i < local; i++) {
        CHECK(ncclCommDestroy(gpu[i].comm));
    }
    return all_wrong != 0;
}
