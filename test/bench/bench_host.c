/* SPDX-License-Identifier: MIT */
/*
 * bench_host.c - what onehop costs the host, on the simulated node, without the GPU's part
 *
 *   LD_PRELOAD="libonehop.so libstubdriver.so" bench_host
 *
 * `make bench` builds and runs it. One process, two ranks, one of which calls, but for the first call, which sets up.
 * Fallbacks are measured with arguments that NCCL refuses at once, and with messages that are too large, while
 * the simulated NCCL takes calls and does nothing (simnccl_idle) and the driver's functions are stubs: what is left of
 * NCCL's own time is subtracted, by the same call to it (onehopStockFunction). The shortest of many short runs counts,
 * since a busy machine only adds. Exit status 1: an aim is missed.
 */
#include <cuda.h>

#include "test/bench/bench.h"

#define CALLS 10000
#define RUNS 300
#define COUNT 1000
#define TOO_MANY ((size_t)1 << 30) /* elements: more than is ever served */

static struct functions nccl; /* onehopStockFunction */
static const struct functions *use = &program;
static ncclComm_t comms[2], unserved[2];
static ncclComm_t comm; /* of the next calls, and their stream */
static CUstream stream, streams[2];
static CUdeviceptr buffer;
static CUcontext contexts[2];
static void *libc;
static bool missed;

static void call(size_t count, ncclDataType_t type)
{
    void *at = (void *)(uintptr_t)buffer;
    use->reduce(at, at, count, type, ncclSum, comm, (cudaStream_t)stream);
}

static void call_served(void)
{
    call(COUNT, ncclFloat);
}

static void call_large(void)
{
    call(TOO_MANY, ncclFloat);
}

static void call_refused(void)
{
    call(COUNT, (ncclDataType_t)99);
}

static void call_other(void)
{
    void *at = (void *)(uintptr_t)buffer;
    use->reduce_to_root(at, at, COUNT, (ncclDataType_t)99, ncclSum, 0, comm, (cudaStream_t)stream);
}

static void call_group(void)
{
    use->group_start();
    use->group_end();
}

static void call_dlsym(void)
{
    MUST(dlsym(libc, "printf"));
}

/* What was measured as served, or as a fallback, must have been. */
static void check_counts(ncclComm_t of, uint64_t served, uint64_t fallback)
{
    uint64_t fallbacks, calls = count_served(of, &fallbacks);
    if (calls != served || fallbacks != fallback) {
        fprintf(stderr, "bench_host: %llu calls served and %llu fallbacks, not %llu and %llu\n",
                (unsigned long long)calls, (unsigned long long)fallbacks, (unsigned long long)served,
                (unsigned long long)fallback);
        exit(1);
    }
}

/* Nanoseconds a call, in one run. */
static double run(void (*once)(void))
{
    double start = now_ns();
    for (int i = 0; i < CALLS; i++) {
        once();
    }
    return (now_ns() - start) / CALLS;
}

static double measure(void (*once)(void))
{
    double best = 1e18;
    for (int i = 0; i < RUNS; i++) {
        double each = run(once);
        best = each < best ? each : best;
    }
    return best;
}

static void print(const char *what, double ns, double aim)
{
    if (aim > 0) {
        printf("%-66s %8.1f ns   (aim: below %.0f)%s\n", what, ns, aim, ns < aim ? "" : "  MISSED");
        missed |= ns >= aim;
    } else {
        printf("%-66s %8.1f ns\n", what, ns);
    }
}

/* What a call costs more by these functions than by NCCL's own; in turns, since the machine's speed drifts. */
static double beside_nccl_by(const struct functions *functions, void (*once)(void))
{
    double best = 1e18, best_nccl = 1e18;
    for (int i = 0; i < RUNS; i++) {
        use = &nccl;
        double each_nccl = run(once);
        use = functions;
        double each = run(once);
        best = each < best ? each : best;
        best_nccl = each_nccl < best_nccl ? each_nccl : best_nccl;
    }
    use = &program;
    return best - best_nccl;
}

static double beside_nccl(void (*once)(void))
{
    return beside_nccl_by(&program, once);
}

static void measure_refused(void)
{
    print("fallback: ncclAllReduce, refused arguments", beside_nccl(call_refused), 100);
    print("forwarded: ncclReduce, refused arguments", beside_nccl(call_other), 100);
    print("fallback: an empty group", beside_nccl(call_group), 200);
}

/* The same from an address that dlsym gives. */
static void measure_dlsym(void)
{
    struct functions found = program;
    found.reduce = (__typeof__(found.reduce))dlsym(dlopen("libnccl.so.2", RTLD_NOW), "ncclAllReduce");
    print("fallback: the same, its address from dlsym", beside_nccl_by(&found, call_large), 100);
}

/* The first call of both ranks, with the driver's own functions, before NCCL has work of the communicator. */
static void set_up(void)
{
    MUST(ncclGroupStart() == ncclSuccess);
    for (int r = 0; r < 2; r++) {
        CUdeviceptr at;
        CUstream on;
        MUST(cuCtxSetCurrent(contexts[r]) == CUDA_SUCCESS && cuMemAlloc(&at, sizeof(float)) == CUDA_SUCCESS);
        MUST(cuStreamCreate(&on, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
        MUST(ncclAllReduce((void *)(uintptr_t)at, (void *)(uintptr_t)at, 1, ncclFloat, ncclSum, comms[r],
                           (cudaStream_t)on) == ncclSuccess);
    }
    MUST(ncclGroupEnd() == ncclSuccess && cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS);
    check_counts(comms[0], 1, 0);
}

/* Served calls come in between, and streams. The order matters: what a communicator has seen decides what it costs. */
static void measure_fallbacks(void)
{
    print("fallback: a message that is too large", beside_nccl(call_large), 100);
    measure_dlsym();
    call_served();
    print("fallback: the same, after a served call", beside_nccl(call_large), 100);
    stream = streams[1];
    print("fallback: the same, after a served call on another stream", beside_nccl(call_large), 100);
    stream = streams[0];
    print("fallback: the same, on the first stream again", beside_nccl(call_large), 100);
    comm = unserved[0];
    print("fallback: a communicator that is not served", beside_nccl(call_large), 100);
    comm = comms[0];
}

static void make_comms(void)
{
    MUST(ncclCommInitAll(comms, 2, NULL) == ncclSuccess);
    setenv("ONEHOP_MAX_BYTES", "0", 1);
    MUST(ncclCommInitAll(unserved, 2, NULL) == ncclSuccess);
    unsetenv("ONEHOP_MAX_BYTES");
    MUST(cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS);
    comm = comms[0];
}

int main(void)
{
    void (*stub)(bool, CUcontext) = (void (*)(bool, CUcontext))dlsym(RTLD_DEFAULT, "bench_stub");
    void (*idle)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "simnccl_idle");
    bool onehop = find_stock(&nccl);
    uint64_t calls = (uint64_t)CALLS * RUNS;
    MUST(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&contexts[0], 0) == CUDA_SUCCESS);
    MUST(cuDevicePrimaryCtxRetain(&contexts[1], 1) == CUDA_SUCCESS && cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS);
    MUST(cuStreamCreate(&streams[0], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    MUST(cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    MUST(cuMemAlloc(&buffer, COUNT * sizeof(float)) == CUDA_SUCCESS);
    make_comms();
    stream = streams[0];
    libc = dlopen("libc.so.6", RTLD_NOW);
    printf("SIMULATED node, host time of a call, %s\n",
           onehop ? "with onehop, beside NCCL's and the driver's" : "without");
    print("dlsym", measure(call_dlsym), 0);
    if (onehop) {
        MUST(stub && idle);
        set_up();
        idle(1);
        stub(true, contexts[0]);
        measure_refused();
        measure_fallbacks();
        check_counts(comms[0], 2, 5 * calls); /* NCCL rejects those with refused arguments */
        check_counts(unserved[0], 0, calls);
        print("served: ncclAllReduce", measure(call_served), 1500);
        check_counts(comms[0], calls + 2, 5 * calls);
    }
    fflush(stdout);
    _Exit(missed); /* the peers never saw these calls */
}
