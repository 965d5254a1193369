/* SPDX-License-Identifier: MIT */
/*
 * graph_mixing.h - the parts of graph_mixing.c: lanes and their graphs (graph_scenarios.c has what is done with them,
 * graph_chains.c another kind of graph), and what graphs must look like (graph_structure.c)
 *
 * A rank is a worker with one member, and stops at the first failure.
 */
#ifndef TEST_GPU_GRAPH_MIXING_H_
#define TEST_GPU_GRAPH_MIXING_H_

#include "test/common/batch.h"

#define COUNT 3001
#define CALLS 3 /* in a graph, one after the other */
#define RING 16 /* rounds of a lane between looks at the results */
#define LANES 3

struct mixing_options {
    int ranks; /* 0: all GPUs */
    bool threads;
    int rounds;
    int delay_us;
    uint64_t seed;
    int floats; /* of a buffer of the scenario chains, whose calls have half as many at most */
    bool structure;
    int timeout;                 /* seconds until everything ends */
    const char *const *scenario; /* to run; NULL: all */
    int scenarios;
};
extern struct mixing_options options; /* the same in all processes */

/* One way in which calls are made: a stream with buffers of its own. */
struct lane {
    int stream;                 /* of the member */
    CUdeviceptr in, out[CALLS]; /* each call reduces what the one before has left */
    float *upload, *download;   /* RING rounds each, pinned */
    uint32_t input[RING];       /* which input a round has had */
    int filled;
    CUgraphExec exec; /* NULL: eager */
};

struct rank {
    struct cf_worker *worker;
    struct cf_set set; /* the communicator */
    struct lane lane[LANES];
    struct cf_source common, own; /* random numbers: the same on all ranks, and this rank's own */
};

CUstream stream_of(const struct rank *rank, int stream);

/* An allreduce of floats. */
void reduce(const struct rank *rank, CUdeviceptr from, CUdeviceptr to, size_t count, int stream);

/* In a process of several ranks other threads make calls that a global capture would forbid. */
CUstreamCaptureMode usual_mode(void);
void begin_capture(const struct rank *rank, int stream, CUstreamCaptureMode mode);
CUgraph end_capture(const struct rank *rank, int stream);

/* Another lane may be in a global capture, during which instantiating is allowed in relaxed mode only. Destroys the
 * graph. */
CUgraphExec instantiate(const struct rank *rank, CUgraph graph);

/* --- graph_structure.c -------------------------------------------------------------------------------------------- */

/* A kernel triggers the next kernel of its communicator, and nothing else can be launched by that; `expected` early. */
void check_early(struct cf_worker *worker, CUgraph graph, int expected);

/* One wait, one record as a leaf behind the last kernel, and kernels that follow one another programmatically. */
void check_structure(struct cf_worker *worker, CUgraph graph, int kernels);

/* --- graph_chains.c ----------------------------------------------------------------------------------------------- */

/*
 * Calls that follow one another, of which some depend on the one before; between two ranks, large ones go in parts that
 * send early.
 */
void chains(struct rank *rank);

/* --- graph_foreign.c ---------------------------------------------------------------------------------------------- */

/* Kernels of the program that are launched programmatically behind calls, and do not wait. */
void foreign_kernels(struct rank *rank);

/* --- graph_scenarios.c -------------------------------------------------------------------------------------------- */

void open_lanes(struct rank *rank);
void close_lanes(struct rank *rank);

/* Each begins and ends with a communicator and without graphs. */
struct scenario {
    const char *name;
    void (*run)(struct rank *rank);
};
extern const struct scenario scenarios[]; /* the last has no name */

#endif
