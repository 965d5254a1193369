/* SPDX-License-Identifier: MIT */
/*
 * graph_foreign.c - a kernel of the program that is launched programmatically behind a call, and does not wait
 *
 * NCCL's kernels never trigger the launch of the kernel behind them, so such a kernel reads the call's result although
 * it does not execute griddepcontrol.wait. The same must hold behind onehop. Ranks are late at random, so a kernel that
 * started while a call polls would read the old data. Needs compute capability 9.0; the simulated node has no PTX.
 */
#include "test/gpu/graph_mixing.h"

#include <stdio.h>
#include <unistd.h>

#define FLOATS 3001u
#define BYTES (FLOATS * sizeof(float))
#define SIDE 2
#define MOST_LATE_US 2000

/* Copies words. No griddepcontrol.wait. */
static const char copy_ptx[] = ".version 7.8\n.target sm_90\n.address_size 64\n"
                               ".visible .entry copy(.param .u64 from, .param .u64 to, .param .u32 count)\n"
                               "{ .reg .pred done; .reg .u32 i, n, step, v; .reg .u64 f, t, o, a, b;\n"
                               "ld.param.u64 f, [from]; ld.param.u64 t, [to]; ld.param.u32 n, [count];\n"
                               "mov.u32 i, %tid.x; mov.u32 step, %ntid.x;\n"
                               "again: setp.ge.u32 done, i, n; @done bra end;\n"
                               "mul.wide.u32 o, i, 4; add.u64 a, f, o; add.u64 b, t, o;\n"
                               "ld.volatile.global.u32 v, [a]; st.global.u32 [b], v;\n"
                               "add.u32 i, i, step; bra again;\n"
                               "end: ret; }\n";

struct foreign {
    struct rank *rank;
    CUfunction copy;
    CUdeviceptr in, sum, twice,
        seen;    /* what a call reads; its result; the result of a second call; the copy of `sum` */
    float *host; /* pinned: the input, then what has come back */
};

/* Where the copy is launched. */
enum way {
    BEHIND_CALL,      /* on the stream of the call, between two calls */
    FORK_BEFORE_CALL, /* on another stream that waits for the first call, before the second call is made */
    FORK_AFTER_CALL,  /* the same, after the second call is made */
    WAYS
};

static void launch_copy(const struct foreign *foreign, int stream)
{
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value.programmaticStreamSerializationAllowed = 1};
    const CUlaunchConfig config = {.gridDimX = 1,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 256,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .hStream = stream_of(foreign->rank, stream),
                                   .attrs = &attribute,
                                   .numAttrs = 1};
    CUdeviceptr from = foreign->sum, to = foreign->seen;
    unsigned count = FLOATS;
    void *parameters[] = {&from, &to, &count};
    CF_CU(foreign->rank->worker, LaunchKernelEx(&config, foreign->copy, parameters, NULL));
}

static void make_calls(const struct foreign *foreign, enum way way)
{
    struct cf_worker *worker = foreign->rank->worker;
    CUevent event;
    CF_CU(worker, EventCreate(&event, CU_EVENT_DISABLE_TIMING));
    reduce(foreign->rank, foreign->in, foreign->sum, FLOATS, 0);
    CF_CU(worker, EventRecord(event, stream_of(foreign->rank, 0)));
    for (int step = 0; step < 2; step++) {
        if ((step == 0) == (way != FORK_AFTER_CALL)) {
            if (way != BEHIND_CALL) {
                CF_CU(worker, StreamWaitEvent(stream_of(foreign->rank, SIDE), event, 0));
            }
            launch_copy(foreign, way == BEHIND_CALL ? 0 : SIDE);
        } else {
            reduce(foreign->rank, foreign->sum, foreign->twice, FLOATS, 0);
        }
    }
    if (way != BEHIND_CALL) {
        cf_join(worker, SIDE, 0);
    }
    CF_CU(worker, EventDestroy(event));
}

static void expect(const struct foreign *foreign, CUdeviceptr memory, float expected, const char *what)
{
    struct cf_worker *worker = foreign->rank->worker;
    CF_CU(worker, MemcpyDtoHAsync(foreign->host, memory, BYTES, stream_of(foreign->rank, 0)));
    CF_CU(worker, StreamSynchronize(stream_of(foreign->rank, 0)));
    for (size_t i = 0; i < FLOATS; i++) {
        cf_check(worker, foreign->host[i] == expected, "%s: element %zu is %g, expected %g", what, i,
                 (double)foreign->host[i], (double)expected);
    }
}

/* exec NULL: eager */
static void run_once(const struct foreign *foreign, enum way way, CUgraphExec exec, int round)
{
    static const char *const names[WAYS] = {"behind a call", "beside a later call", "beside an earlier call"};
    struct cf_worker *worker = foreign->rank->worker;
    const CUstream stream = stream_of(foreign->rank, 0);
    const float value = (float)(1 + round % 100), sum = value * (float)(worker->nranks * (worker->nranks + 1) / 2);
    for (size_t i = 0; i < FLOATS; i++) {
        foreign->host[i] = value * (float)(worker->index + 1);
    }
    CF_CU(worker, MemcpyHtoDAsync(foreign->in, foreign->host, BYTES, stream));
    CF_CU(worker, MemsetD8Async(foreign->sum, 0xff, BYTES, stream));
    CF_CU(worker, MemsetD8Async(foreign->seen, 0xff, BYTES, stream));
    CF_CU(worker, StreamSynchronize(stream));
    usleep((useconds_t)cf_draw(&foreign->rank->own, MOST_LATE_US));
    if (exec) {
        CF_CU(worker, GraphLaunch(exec, stream));
    } else {
        make_calls(foreign, way);
    }
    expect(foreign, foreign->seen, sum, names[way]);
    expect(foreign, foreign->twice, sum * (float)worker->nranks, "the second call");
}

static void run_way(const struct foreign *foreign, enum way way)
{
    for (int round = 0; round < 1 + options.rounds / 40; round++) {
        run_once(foreign, way, NULL, round);
    }
    begin_capture(foreign->rank, 0, usual_mode());
    make_calls(foreign, way);
    CUgraphExec exec = instantiate(foreign->rank, end_capture(foreign->rank, 0));
    for (int round = 0; round < 1 + options.rounds / 40; round++) {
        run_once(foreign, way, exec, round);
    }
    CF_CU(foreign->rank->worker, GraphExecDestroy(exec));
}

void foreign_kernels(struct rank *rank)
{
    struct cf_worker *worker = rank->worker;
    struct foreign foreign = {.rank = rank};
    CUmodule module;
    if (!cu.ModuleLoadData || cu.ModuleLoadData(&module, copy_ptx) != CUDA_SUCCESS) {
        return; /* the simulated node, or a GPU before compute capability 9.0 */
    }
    CF_CU(worker, ModuleGetFunction(&foreign.copy, module, "copy"));
    CF_CU(worker, MemAlloc(&foreign.in, 4 * BYTES));
    foreign.sum = foreign.in + BYTES;
    foreign.twice = foreign.sum + BYTES;
    foreign.seen = foreign.twice + BYTES;
    CF_CU(worker, MemHostAlloc((void **)&foreign.host, BYTES, 0));
    launch_copy(&foreign, 0); /* loads the code */
    CF_CU(worker, StreamSynchronize(stream_of(rank, 0)));
    for (int way = 0; way < WAYS; way++) {
        run_way(&foreign, (enum way)way);
    }
    cf_barrier(worker);
    CF_CU(worker, MemFreeHost(foreign.host));
    CF_CU(worker, MemFree(foreign.in));
    CF_CU(worker, ModuleUnload(module));
}
