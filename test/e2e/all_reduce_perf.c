/* SPDX-License-Identifier: MIT */
/*
 * all_reduce_perf.c - stands in for the program of that name of nccl-tests: same options, same lines, little measuring
 *
 *   all_reduce_perf [-b BYTES] [-e BYTES] [-f FACTOR] [-g GPUS] [-n ITERS] [-G REPLAYS]
 *
 * Floats, sum; every call is one of sim_caller.c, whatever the size. One process of mpirun (variables of Open MPI or
 * MPICH), or one that forks a rank for each of GPUS; its ranks meet by a file in TMPDIR. STAND_IN_FAIL=status: ends
 * with it in the middle. STAND_IN_WAIT: waits behind the first row. Under the name of a program that does not reduce,
 * the calls are the same and the rows name no reduction.
 */
#include <cuda.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sim_caller.h"
#include "test/common/options.h"

#define GPUS 8
#define CHECK(call_)                                                                                                   \
    do {                                                                                                               \
        if ((call_) != 0) {                                                                                            \
            fprintf(stderr, "%s failed\n", #call_);                                                                    \
            exit(EXIT_FAILURE);                                                                                        \
        }                                                                                                              \
    } while (0)

static int ranks, rank;

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

static void print_row(size_t bytes, double us, int bad)
{
    double algbw = (double)bytes / us / 1000, busbw = algbw * 2 * (ranks - 1) / ranks;
    const char *more = form_is("each") ? "     1.00     9.00     8.00     7.00" : "";
    printf("%12zu  %12zu  %8s  %6s", bytes, bytes / 4, "float",
           strstr(program_invocation_short_name, "reduce") ? "sum" : "none");
    if (form_is("old")) {
        printf("  %7.2f %7.2f %7.2f  2e-07  %7.2f %7.2f %7.2f  2e-07\n", us, algbw, busbw, IN_PLACE_US, algbw, busbw);
    } else {
        printf("  %6d  %7.2f %7.2f %7.2f %6d%s", -1, us, algbw, busbw, bad, more);
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

static struct {
    size_t least, most;
    int factor, iters, gpus;
} options = {1024, 1024, 2, 3, 1};

/* Returns the exit status of the rank. */
static int run_rank(const char *id_path)
{
    int wrong = 0;
    CHECK(caller_begin(rank, ranks, id_path));
    if (rank == 0) {
        unlink(id_path);
        print_head();
    }
    for (size_t bytes = options.least; bytes <= options.most; bytes *= (size_t)options.factor) {
        double begin = now_us();
        int bad = caller_call(options.iters);
        wrong += bad;
        if (rank == 0) {
            print_row(bytes, (now_us() - begin) / options.iters, bad);
        }
        if (getenv("STAND_IN_WAIT")) {
            sleep(600);
        }
        if (getenv("STAND_IN_FAIL")) {
            return variable("STAND_IN_FAIL", 1);
        }
    }
    if (rank == 0) {
        printf("# Out of bounds values : %d %s\n# Avg bus bandwidth    : 1\n#\n", wrong, wrong ? "FAILED" : "OK");
    }
    CHECK(caller_end());
    return wrong != 0;
}

/* This process is rank 0; the others end with it. */
static void fork_ranks(void)
{
    for (int r = 1; r < options.gpus && rank == 0; r++) {
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            rank = r;
        }
    }
}

int main(int argc, char **argv)
{
    static const char usage[] =
        "usage: all_reduce_perf [-b BYTES] [-e BYTES] [-f FACTOR] [-g GPUS] [-n ITERS] [-G REPLAYS]\n";
    int replays, status;
    char id_path[4096];
    const struct cf_option table[] = {
        CF_TAKES("b", take_bytes, &options.least),
        CF_TAKES("e", take_bytes, &options.most),
        CF_INT("f", &options.factor, 2, 1024),
        CF_INT("g", &options.gpus, 1, GPUS),
        CF_INT("n", &options.iters, 1, 1000000),
        CF_INT("G", &replays, 0, 1000000),
        CF_NO_MORE,
    };
    if (cf_options_read(argc, argv, usage, table) < argc) {
        cf_options_refuse(usage);
    }
    bool alone = form_is("alone");
    int size = alone ? 1 : variable("OMPI_COMM_WORLD_SIZE", variable("PMI_SIZE", 1));
    ranks = size > 1 ? size : options.gpus;
    /* All ranks of this mpirun know the first number. */
    snprintf(id_path, sizeof id_path, "%s/all_reduce_perf.%d", getenv("TMPDIR"),
             (int)(size > 1 ? getppid() : getpid()));
    if (size > 1) {
        rank = variable("OMPI_COMM_WORLD_RANK", variable("PMI_RANK", 0));
    } else {
        fork_ranks();
    }
    int result = run_rank(id_path);
    while (size == 1 && rank == 0 && wait(&status) > 0) {
        result = result == 0 && status != 0 ? 1 : result;
    }
    return result;
}
