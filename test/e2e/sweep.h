/* SPDX-License-Identifier: MIT */
/*
 * sweep.h - a sweep of run-time faults: one fault at one call of the driver, in a job of its own
 *
 * sweep.c makes the list of points, starts a job for each, and judges it. sweep_rank.c is a rank of such a job. The
 * board outlives ranks that are killed.
 */
#ifndef TEST_E2E_SWEEP_H_
#define TEST_E2E_SWEEP_H_

#include "test/common/batch.h"

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
enum sweep_flag {
    SWEEP_FINISHED = 1,   /* it has ended its communicators, and everything is back */
    SWEEP_TOLD = 2,       /* a call of NCCL or CUDA has returned an error */
    SWEEP_WAITED = 4,     /* a stream did not complete, and an asynchronous error said so */
    SWEEP_LATE = 8,       /* an asynchronous error after all calls had completed with right results */
    SWEEP_SILENT = 16,    /* a stream completed with wrong data of a call that had returned success */
    SWEEP_UNTOLD = 32,    /* a stream did not complete, and no error came */
    SWEEP_FORGOTTEN = 64, /* a call returned success on a communicator that had returned an error */
    SWEEP_LEAKS = 128     /* memory is not back */
};

struct sweep_board {
    struct cf_board board;
    struct sweep_point point;
    _Atomic unsigned flags[CF_MAX_RANKS]; /* of a rank: enum sweep_flag */
};

/* Runs a worker of a job, which is one rank. The victim's faults are in the environment. */
void sweep_rank(struct cf_worker *worker);

#endif
