/* SPDX-License-Identifier: MIT */
/*
 * perf/thread.h - one thread, and the GPU of its rank
 *
 * thread.c opens it; measure.c and floor.c use it. Any failure ends the process (oh_workers_fail); nothing
 * is freed then, the parent ends the other processes.
 */
#ifndef OH_TOOLS_PERF_THREAD_H_
#define OH_TOOLS_PERF_THREAD_H_

#include "comm/nccl.h"
#include "tools/perf/perf.h"
#include "tools/shared/kernel.h"

struct oh_perf_thread {
    const struct oh_perf_options *options;
    struct oh_perf_shared *shared;
    int rank;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUevent begin;
    CUevent end;
    ncclComm_t comm;
    ncclRedOp_t mulsum;
    CUdeviceptr send[OH_PERF_SIDES]; /* windows have their own, the other sides share theirs */
    CUdeviceptr recv[OH_PERF_SIDES]; /* OH_PERF_GUARD bytes longer */
    void *window[2];                 /* handles of ncclCommWindowRegister */
    CUfunction program;              /* between the calls; NULL: none */

    __typeof__(ncclGetVersion) *get_version;
    __typeof__(ncclGetUniqueId) *get_unique_id;
    __typeof__(ncclGetErrorString) *error_string;
    struct oh_nccl nccl[OH_PERF_SIDES];         /* communicators and operations are made by onehop's, which forwards */
    ncclResult_t (*mem_alloc)(void **, size_t); /* NULL unless needed; nccl.h may be older than these */
    ncclResult_t (*window_register)(ncclComm_t, void *, size_t, void **, int);
    ncclResult_t (*window_deregister)(ncclComm_t, void *);
    __typeof__(onehopVersion) *onehop_version;
    __typeof__(onehopCommInfo) *onehop_info;
    __typeof__(onehopAlgorithmName) *algorithm_name;
    __typeof__(onehopStockFunction) *stock_function;

    int type; /* input and expected hold the values of this and `op`; -1: none */
    enum oh_perf_op op;
    char *input;
    char *expected;
    char *got;
    unsigned int checks;
};

#define OH_PERF_FAIL(thread_, ...) oh_workers_fail(&(thread_)->shared->workers, (thread_)->rank, __VA_ARGS__)

/* Fails the run if a driver call has failed. */
void oh_perf_check(const struct oh_perf_thread *thread, const char *call, CUresult result);
#define OH_PERF_CU(thread_, call_) oh_perf_check((thread_), #call_, oh_driver.call_)

/* Does the same for a call of NCCL. */
void oh_perf_check_nccl(const struct oh_perf_thread *thread, const char *call, ncclResult_t result);

/* For each side that the options have. */
#define OH_PERF_EACH_SIDE(options_, side_)                                                                             \
    for (int side_ = 0; side_ < OH_PERF_SIDES; side_++)                                                                \
        if ((options_)->side[side_])

/* Waits until all ranks are here. */
void oh_perf_barrier(struct oh_perf_thread *thread);

/* What every rank runs, one time after the other or by a graph that has captured all times. */
struct oh_perf_workload {
    /* Enqueues iteration i. NULL: there is no such workload. */
    void (*issue)(struct oh_perf_thread *thread, const struct oh_perf_workload *workload, int i);
    int iterations;
    int aggregate; /* calls in an iteration; a time is that of one call */
    bool program;  /* the thread's runs behind each iteration */
    bool bare;     /* the thread's program alone, without the iterations */
    enum oh_perf_side side;
    size_t bytes; /* of the message that the program's kernel reads and writes */
    /* of an allreduce */
    const struct oh_perf_row *row;
    bool in_place;
    bool moves; /* through the buffers, from call to call */
    /* of a kernel of perf/floor.c */
    const void *floor;
    int kind;
    CUgraphExec graph; /* NULL in eager mode */
};

/*
 * perf/measure.c: times the workloads in turns, each in a block on all ranks at once, all rounds. shared->us[round][i]
 * gets the microseconds of a call of workload[i]. If a workload has a program, the first one's program by itself is
 * timed as OH_PERF_BARE in each round, and is subtracted.
 */
void oh_perf_time(struct oh_perf_thread *thread, enum oh_perf_mode mode,
                  struct oh_perf_workload workload[OH_PERF_TIMES]);
/* The median and the 99th percentile over the rounds of the slowest rank's time of shared->us[][index]. */
void oh_perf_summarise(const struct oh_perf_thread *thread, int index, double *median_p, double *p99_p);
/* A first call, with which onehop sets the communicator up; then onehop reports whether it serves the communicator. */
void oh_perf_call_first(struct oh_perf_thread *thread);
void oh_perf_measure(struct oh_perf_thread *thread, struct oh_perf_row *row);

/* perf/thread.c: finds a kernel of kernels/floor.cu; enqueues that of the pattern. */
struct oh_tool_kernel oh_perf_kernel(const struct oh_perf_thread *thread, const char *name);
void oh_perf_run_program(struct oh_perf_thread *thread, const struct oh_perf_workload *workload);

/* perf/floor.c: measures what the floor is made of, for each mode asked for, into shared->floor. */
void oh_perf_measure_floor(struct oh_perf_thread *thread);

#endif
