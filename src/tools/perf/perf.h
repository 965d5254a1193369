/* SPDX-License-Identifier: MIT */
/*
 * perf.h - what the parts of `onehop perf` share
 *
 * A group of processes (tools/shared/worker_group.h), one for each GPU or one with a thread for each, measures every
 * row in struct oh_perf_shared. The thread of rank 0 writes the results and increments rows_done; the parent (perf.c)
 * prints what is done and writes the files. A file of --csv is read into the same struct oh_perf_run.
 */
#ifndef OH_TOOLS_PERF_PERF_H_
#define OH_TOOLS_PERF_PERF_H_

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "gpu/driver.h"
#include "onehop/onehop.h"
#include "tools/shared/options.h"
#include "tools/shared/worker_group.h"

#define OH_PERF_RANKS OH_MAX_WORKERS
#define OH_PERF_ROUNDS 1000
#define OH_PERF_ROWS 100000
#define OH_PERF_TYPES 12
/* Bytes behind every result that must stay untouched. */
#define OH_PERF_GUARD 64
/* What results are filled with beforehand: a NaN in every float type. */
#define OH_PERF_POISON 0xff
/* A check may begin this many elements into the pattern, so that a result of an earlier check does not pass. */
#define OH_PERF_SLACK 64
/* Sides that a table can have: those measured here, and those of other programs in files read with --from. */
#define OH_PERF_COLUMNS 8

#define OH_PERF_SIMULATED "SIMULATED: made on simulated GPUs; the times mean nothing"

enum oh_perf_side {
    OH_PERF_STOCK,   /* NCCL by itself */
    OH_PERF_WINDOWS, /* NCCL on buffers of ncclMemAlloc and ncclCommWindowRegister */
    OH_PERF_ONEHOP,
    OH_PERF_SIDES
};
/* What is timed: the sides, and the pattern's kernel by itself. */
#define OH_PERF_BARE OH_PERF_SIDES
#define OH_PERF_TIMES (OH_PERF_SIDES + 1)

enum oh_perf_mode {
    OH_PERF_GRAPH,
    OH_PERF_EAGER,
    OH_PERF_MODES
};

enum oh_perf_op {
    OH_PERF_SUM,
    OH_PERF_PROD,
    OH_PERF_MIN,
    OH_PERF_MAX,
    OH_PERF_AVG,
    OH_PERF_MULSUM, /* ncclRedOpCreatePreMulSum with the scalar 2 */
    OH_PERF_OPS
};

/* How the calls follow one another. */
enum oh_perf_pattern {
    OH_PERF_LAYER, /* each between two kernels of a program, which read its result and write its input */
    OH_PERF_CHAIN, /* in place: each needs what the one before has left */
    OH_PERF_FREE,  /* out of place, through the buffers: none needs another, as in nccl-tests */
    OH_PERF_PATTERNS
};

struct oh_perf_type {
    ncclDataType_t nccl;
    size_t size;
    int exact;     /* every whole number up to this one is exact in the type */
    int mantissa;  /* explicit bits of a float; 0: an integer */
    int exponent;  /* bits of a float's */
    bool negative; /* has numbers below zero */
};

extern const struct oh_perf_type oh_perf_types[OH_PERF_TYPES];
extern const char *const oh_perf_type_names[OH_PERF_TYPES]; /* as nccl-tests has them */
extern const char *const oh_perf_side_names[OH_PERF_SIDES];
extern const char *const oh_perf_mode_names[OH_PERF_MODES];
extern const char *const oh_perf_op_names[OH_PERF_OPS];
extern const char *const oh_perf_pattern_names[OH_PERF_PATTERNS];

struct oh_perf_options {
    size_t min_bytes;
    size_t max_bytes;
    size_t step_bytes;  /* 0: multiply by step_factor instead */
    size_t step_factor; /* 2 or more */
    int iters;
    int aggregate; /* calls in a group; an iteration is one group */
    int warmup;
    int rounds;
    int ranks; /* 0: all GPUs */
    int timeout_s;
    const char *timeout_option; /* that sets it; NULL: none */
    int pattern;                /* enum oh_perf_pattern */
    int collective;             /* enum onehop_collective */
    int threads;                /* 1: one process with a thread for each GPU; 0: a process for each */
    int nccl_memory;            /* 1: buffers of ncclMemAlloc; 0: of cuMemAlloc */
    int check;
    bool floor;
    bool mode[OH_PERF_MODES]; /* none is asked for by name: oh_perf_settle sets all */
    bool type[OH_PERF_TYPES];
    bool op[OH_PERF_OPS];
    bool side[OH_PERF_SIDES];
    const char *nccl;
    const char *onehop;
    const char *csv; /* a path, "-" stdout, NULL none */
    const char *json;
    const char *from[OH_PERF_COLUMNS];
    int froms;
    bool simulated;
    bool simulated_times;
};

/* The rows of the option tables that perf and tune have in common. */
#define OH_PERF_COMMON_OPTIONS(perf_, most_)                                                                           \
    {"minbytes", 'b', oh_option_size, OH_RANGE(&(perf_)->min_bytes, 1, (most_))},                                      \
        {"maxbytes", 'e', oh_option_size, OH_RANGE(&(perf_)->max_bytes, 1, (most_))},                                  \
        {"datatype", 'd', oh_option_list, OH_WORDS((perf_)->type, oh_perf_type_names)},                                \
        {"graph", 0, NULL, &(perf_)->mode[OH_PERF_GRAPH]}, {"eager", 0, NULL, &(perf_)->mode[OH_PERF_EAGER]},          \
        {"rounds", 0, oh_option_int, OH_RANGE(&(perf_)->rounds, 1, OH_PERF_ROUNDS)},                                   \
        {"nccl", 0, oh_option_path, &(perf_)->nccl}, {"onehop", 0, oh_option_path, &(perf_)->onehop},                  \
    {                                                                                                                  \
        "simulated", 0, NULL, &(perf_)->simulated                                                                      \
    }

struct oh_perf_cell {
    bool there;
    double us;      /* of a call; the slowest rank's, median over the rounds */
    double p99_us;  /* of the same, the 99th percentile */
    uint64_t wrong; /* elements, over all ranks and checks */
};

struct oh_perf_row {
    enum oh_perf_mode mode;
    int type; /* of oh_perf_types */
    enum oh_perf_op op;
    size_t bytes;                              /* of the larger buffer */
    size_t count;                              /* as the call has it */
    struct oh_perf_cell cell[OH_PERF_COLUMNS]; /* by column of the run */
    double floor_us;                           /* 0: not known */
    double program_us;                         /* of the pattern's kernel by itself, subtracted; 0: none */
    char served_by[64];
    size_t group, order; /* of a file: where lines of the row's mode, type and op begin, and its own */
};

/* Texts that describe a run; "": not known. */
enum oh_perf_text {
    OH_PERF_MACHINE,  /* "4 x NAME" */
    OH_PERF_SOFTWARE, /* versions */
    OH_PERF_SETTINGS,
    OH_PERF_PATTERN,
    OH_PERF_COLLECTIVE,
    OH_PERF_VERDICT,
    OH_PERF_FLOORS, /* what the floor is made of */
    OH_PERF_TEXTS
};

struct oh_perf_run {
    bool simulated;
    bool times; /* are shown in the table */
    int ranks;
    int collective;
    int columns;
    char column[OH_PERF_COLUMNS][32]; /* the sides' names */
    char text[OH_PERF_TEXTS][512];
    bool checked;
    bool has_floor, has_program; /* a row has such a time */
    size_t rows;
    struct oh_perf_row *row;
};

struct oh_perf_rank_info {
    pid_t pid;
    char name[96];
    char bus_id[32];
};

/* What the floor is made of; by mode. */
struct oh_perf_floor {
    double empty_us;
    double exchange_us;
    double gb_per_s; /* written by one rank to all others together, while all write */
};

/* What a rank tells the others of its memory for the floor (perf/floor.c). */
struct oh_perf_floor_memory {
    CUipcMemHandle handle;
    CUdeviceptr base;
    CUcontext context;
};

struct oh_perf_shared {
    struct oh_workers_shared workers;
    const struct oh_perf_options *options; /* in memory that every process has */
    ncclUniqueId id;
    struct oh_perf_rank_info rank[OH_PERF_RANKS];
    struct oh_perf_floor_memory window[OH_PERF_RANKS];
    int nccl_version;
    int onehop_version;
    onehop_comm_info_t info; /* of rank 0 */
    struct oh_perf_floor floor[OH_PERF_MODES];
    atomic_bool ready; /* all of the above is there */

    double us[OH_PERF_ROUNDS][OH_PERF_TIMES][OH_PERF_RANKS]; /* of the row being measured */
    uint64_t wrong[OH_PERF_SIDES][OH_PERF_RANKS];

    atomic_size_t rows_done;
    size_t rows;
    struct oh_perf_row row[];
};

/* perf/options.c */

/* What is measured by default; the library is not chosen yet. */
struct oh_perf_options oh_perf_defaults(const char *types);

/* Reads the options of perf. */
void oh_perf_parse(int argc, char **argv, struct oh_perf_options *options);

/* perf/perf.c */

/*
 * Lists the rows that the options ask for, by mode, type, op and size. Writes them to `rows` unless it is NULL; returns
 * their number. Ends the command if there are none, or too many.
 */
size_t oh_perf_list_rows(const struct oh_perf_options *options, struct oh_perf_row *rows);

/* Puts the common options into force after they were read: the mode, --simulated, the path of onehop. argv is the
 * subcommand's. */
void oh_perf_settle(char **argv, struct oh_perf_options *options);

/*
 * perf/thread.c: runs the processes of shared->options that measure shared->row, and calls `tick` meanwhile
 * (oh_workers_run).
 */
void oh_perf_run(struct oh_perf_shared *shared, void (*tick)(void *), void *user);

/* perf/data.c: the inputs, and what must come out. */

/*
 * Fills `count` elements: `input` with this rank's values, `expected` with the result over all ranks. Values are small
 * whole numbers, different by rank and element, whose result is exact in the type whatever the order; an average over
 * a number of ranks that is no power of two is not, and is compared within the roundings that NCCL makes.
 */
void oh_perf_fill(const struct oh_perf_type *type, enum oh_perf_op op, int ranks, int rank, size_t count, void *input,
                  void *expected);

/* Fills `count` elements with the values of `rank` from element `first` on, which a sum has. */
void oh_perf_fill_moved(const struct oh_perf_type *type, int ranks, int rank, size_t first, size_t count, void *values);

/* The scalar of OH_PERF_MULSUM, one element. */
void oh_perf_scalar(const struct oh_perf_type *type, void *scalar_p);

/* Elements of `got` that are not as expected, plus guard bytes behind them that are no longer poison. */
uint64_t oh_perf_wrong(const struct oh_perf_type *type, enum oh_perf_op op, int ranks, const void *got,
                       const void *expected, size_t count);

/* perf/table.c: what people read. `stream` may be stdout or a file. */
void oh_perf_print_head(FILE *stream, const struct oh_perf_run *run);
/* Row `index`; a title before the first row of each mode, the average after its last. */
void oh_perf_print_row(FILE *stream, const struct oh_perf_run *run, size_t index);
/* The last line. */
void oh_perf_print_foot(FILE *stream, const struct oh_perf_run *run);

/* All elements that were wrong. */
uint64_t oh_perf_all_wrong(const struct oh_perf_run *run);
/* GB/s on the bus, as nccl-tests define it. */
double oh_perf_busbw(const struct oh_perf_run *run, const struct oh_perf_row *row, double us);
/* The column of that name, or -1. */
int oh_perf_column(const struct oh_perf_run *run, const char *name);

/* perf/record.c: what programs read, and reading it again. */
void oh_perf_write_csv(FILE *stream, const struct oh_perf_run *run);
void oh_perf_write_json(FILE *stream, const struct oh_perf_run *run);
/* Adds a recorded run to *run. Returns NULL, or what is wrong with the file, in static storage. */
const char *oh_perf_read_csv(const char *path, struct oh_perf_run *run);

#endif
