/* SPDX-License-Identifier: MIT */
/* bench.h - what the benches share: NCCL's functions with onehop and without it, counts of calls, and the clock */
#ifndef TEST_BENCH_BENCH_H_
#define TEST_BENCH_BENCH_H_

#include <dlfcn.h>
#include <errno.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "onehop/onehop.h"

/* nccl.h gives these without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

#define MUST(condition_)                                                                                               \
    do {                                                                                                               \
        if (!(condition_)) {                                                                                           \
            fprintf(stderr, "%s: line %d: %s\n", program_invocation_short_name, __LINE__, #condition_);                \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

struct functions {
    __typeof__(ncclAllReduce) *reduce;
    __typeof__(ncclReduce) *reduce_to_root; /* which has no kernels of onehop */
    __typeof__(ncclGroupStart) *group_start;
    __typeof__(ncclGroupEnd) *group_end;
};

/* Those that a program calls. */
static const struct functions program = {ncclAllReduce, ncclReduce, ncclGroupStart, ncclGroupEnd};

/* Those of NCCL that onehop stands in front of. False: there is no onehop. */
static inline bool find_stock(struct functions *functions_p)
{
    void *(*stock)(const char *) = (void *(*)(const char *))dlsym(RTLD_DEFAULT, "onehopStockFunction");
    if (!stock) {
        return false;
    }
    *functions_p = (struct functions){
        (__typeof__(ncclAllReduce) *)stock("ncclAllReduce"), (__typeof__(ncclReduce) *)stock("ncclReduce"),
        (__typeof__(ncclGroupStart) *)stock("ncclGroupStart"), (__typeof__(ncclGroupEnd) *)stock("ncclGroupEnd")};
    MUST(functions_p->reduce && functions_p->reduce_to_root && functions_p->group_start && functions_p->group_end);
    return true;
}

/* How many calls on a communicator onehop has served, and how many it has not. */
static inline uint64_t count_served(ncclComm_t comm, uint64_t *fallbacks_p)
{
    int (*ask)(const void *, onehop_comm_info_t *, size_t) =
        (int (*)(const void *, onehop_comm_info_t *, size_t))dlsym(RTLD_DEFAULT, "onehopCommInfo");
    onehop_comm_info_t info;
    uint64_t served = 0;
    MUST(ask && ask(comm, &info, sizeof info) == 0);
    for (int a = 0; a < ONEHOP_ALGORITHM_COUNT; a++) {
        served += info.calls_by_algorithm[a];
    }
    *fallbacks_p = info.fallback_calls;
    return served;
}

static inline double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

#endif
