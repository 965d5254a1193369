/* SPDX-License-Identifier: MIT */
/*
 * sweep.h - a sweep of run-time faults: one fault at one call of the driver, in a job of its own
 *
 * sweep.c makes the list of points, starts a job for each, and judges it. sweep_rank.c is a rank of such a job. They
 * share a board in memory, which outlives ranks that are killed.
 */
#ifndef TEST_E2E_SWEEP_H_
#define TEST_E2E_SWEEP_H_

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SWEEP_MAX_RANKS 3
#define SWEEP_MAX_COMMS 2
#define SWEEP_NAME 64

/* What the ranks call. */
enum sweep_pattern {
    SWEEP_EAGER,   /* two calls on one stream */
    SWEEP_STREAMS, /* a call on each of two streams */
    SWEEP_GRAPH,   /* two calls in a graph, replayed */
    SWEEP_MIXED,   /* replays and eager calls in turns */
    SWEEP_GROUP,   /* two calls on two streams, in a group */
    SWEEP_PARTS,   /* calls in several parts */
    SWEEP_TWO,     /* two communicators, a stream each */
    SWEEP_NCCL,    /* a call that onehop serves, and one that NCCL serves */
    SWEEP_THREADS, /* two calls on one stream, each rank a thread */
    SWEEP_PATTERNS
};

enum sweep_act {
    SWEEP_FAIL, /* the call of the driver fails */
    SWEEP_KILL, /* the process ends at it by SIGKILL */
    SWEEP_STOP, /* ... is stopped by SIGSTOP, and goes on later */
    SWEEP_QUIT, /* ... ends by _exit(0) */
    SWEEP_ACTS
};

struct sweep_point {
    enum sweep_pattern pattern;
    enum sweep_act act;
    bool stops; /* the program ends at the first error; otherwise it takes notice of none */
    char function[SWEEP_NAME];
    unsigned nth;
};

/* What became of a rank. A flag is set at once, since the process may be killed. */
struct sweep_record {
    atomic_bool armed;     /* set-up is over */
    atomic_bool worked;    /* all its calls are behind it, or were given up */
    atomic_bool finished;  /* it has ended its communicators, and everything is back */
    atomic_bool told;      /* a call of NCCL or CUDA has returned an error */
    atomic_bool waited;    /* a stream did not complete, and an asynchronous error said so */
    atomic_bool late;      /* an asynchronous error after all calls had completed with right results */
    atomic_bool silent;    /* a stream completed with wrong data of a call that had returned success */
    atomic_bool untold;    /* a stream did not complete, and no error came */
    atomic_bool forgotten; /* a call returned success on a communicator that had returned an error */
    atomic_bool leaks;     /* memory is not back */
};

struct sweep_board {
    ncclUniqueId id[SWEEP_MAX_COMMS];
    atomic_uint ids, present, ended; /* ranks, of the barriers */
    struct sweep_record rank[SWEEP_MAX_RANKS];
};

int sweep_ranks(enum sweep_pattern pattern);

/* Runs one rank of a job. The victim's faults are in the environment. */
void sweep_rank(const struct sweep_point *point, struct sweep_board *board, int rank);

#endif
