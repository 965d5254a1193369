/* SPDX-License-Identifier: MIT */
/*
 * perf.h - what the parts of `onehop perf` share
 *
 * One process per GPU, forked before any CUDA or NCCL call; the parent only prints and watches, and never opens CUDA.
 * All of them see one struct oh_perf_shared, an anonymous shared mapping. Each worker (perf_worker.c) measures every
 * row; worker 0 writes the results and counts rows_done up, the parent (perf.c) prints what is done. The first worker
 * that fails leaves the reason in the mapping; the parent ends the others.
 */
#ifndef OH_TOOLS_PERF_H_
#define OH_TOOLS_PERF_H_

#include <limits.h>
#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "onehop/onehop.h"

#define OH_PERF_RANKS 64
#define OH_PERF_ROUNDS 99
#define OH_PERF_TYPES 3
/* Bytes behind every result that must stay untouched. */
#define OH_PERF_GUARD 64
/* What results are filled with beforehand: a NaN in every type. */
#define OH_PERF_POISON 0xff
/* A check may begin this many elements into the pattern, so that a result of an earlier check does not pass. */
#define OH_PERF_SLACK 64

enum oh_perf_side {
    OH_PERF_STOCK,
    OH_PERF_ONEHOP,
    OH_PERF_SIDES
};

enum oh_perf_mode {
    OH_PERF_GRAPH,
    OH_PERF_EAGER,
    OH_PERF_MODES
};

struct oh_perf_type {
    const char *name;
    ncclDataType_t nccl;
    size_t size;
    int exact; /* every whole number up to this one is exact in the type */
};

extern const struct oh_perf_type oh_perf_types[OH_PERF_TYPES];

struct oh_perf_options {
    size_t min_bytes;
    size_t max_bytes;
    size_t step_bytes;  /* 0: multiply by step_factor instead */
    size_t step_factor; /* 2 or more */
    int iters;
    int warmup;
    int rounds;
    int ranks; /* 0: all GPUs */
    int timeout_s;
    bool in_place;
    bool mode[OH_PERF_MODES];
    bool type[OH_PERF_TYPES];
    const char *nccl;
    char onehop[PATH_MAX];
};

struct oh_perf_row {
    enum oh_perf_mode mode;
    const struct oh_perf_type *type;
    size_t count;
    double us[OH_PERF_SIDES];
    uint64_t wrong[OH_PERF_SIDES]; /* elements, over all ranks and checks */
    char served_by[32];
};

struct oh_perf_rank {
    pid_t pid;
    char name[96];
    char bus_id[32];
};

struct oh_perf_shared {
    /* Barrier of the workers; `generation` also tells the parent that they get on. */
    atomic_uint arrived;
    atomic_uint generation;

    atomic_int failed; /* 1 + the rank that failed first */
    char failure[400]; /* its reason: complete once failure_written is set */
    atomic_bool failure_written;

    int gpus; /* by the process that counts them */
    ncclUniqueId id;
    struct oh_perf_rank rank[OH_PERF_RANKS];
    int nccl_version;
    int onehop_version;
    onehop_comm_info_t info; /* of rank 0 */
    atomic_bool ready;       /* all of the above is there */

    double us[OH_PERF_ROUNDS][OH_PERF_SIDES][OH_PERF_RANKS]; /* of the row being measured */
    uint64_t wrong[OH_PERF_SIDES][OH_PERF_RANKS];

    atomic_size_t rows_done;
    size_t rows;
    struct oh_perf_row row[];
};

/* perf_worker.c: the life of one worker, in its own process. Returns the exit status. */
int oh_perf_work(const struct oh_perf_options *options, struct oh_perf_shared *shared, int rank);

/* Leaves the reason in the mapping, if it is the first, and ends the process with status 1. */
_Noreturn void oh_perf_fail(struct oh_perf_shared *shared, int rank, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* perf_data.c: the inputs, and what must come out. */

/*
 * Fills `count` elements: `input` with this rank's values, `expected` with the sum over all ranks. Values are small
 * whole numbers, different by rank and element, whose sum is exact in the type whatever the order.
 */
void oh_perf_fill(const struct oh_perf_type *type, int ranks, int rank, size_t count, void *input, void *expected);

/* Elements of `got` that differ from `expected`, plus guard bytes behind them that are no longer poison. */
uint64_t oh_perf_wrong(const struct oh_perf_type *type, const void *got, const void *expected, size_t count);

/* perf_table.c: what is printed on stdout. */
void oh_perf_print_head(const struct oh_perf_options *options, const struct oh_perf_shared *shared);
/* Row `index`; a title before the first row of each mode, the average after its last. */
void oh_perf_print_row(const struct oh_perf_options *options, const struct oh_perf_shared *shared, size_t index);
/* The last line. Returns true when no element was wrong. */
bool oh_perf_print_foot(const struct oh_perf_shared *shared);

/* Name of a mode, as --mode takes it. */
const char *oh_perf_mode_name(enum oh_perf_mode mode);

#endif
