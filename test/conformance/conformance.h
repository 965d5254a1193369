/* SPDX-License-Identifier: MIT */
/*
 * conformance.h - a test of NCCL's contract for the collectives that onehop serves, on any node, with or without it
 *
 * The launcher (launch.c) starts jobs: a number of ranks in one of three modes. The processes of a job (main.c) run the
 * table of cases (cases.h) in step. What is wrong is noted on the board, and the job goes on; what cannot go on (a CUDA
 * error, a case that does not end) makes the launcher end the job's processes and start it again behind that case.
 */
#ifndef TEST_CONFORMANCE_CONFORMANCE_H_
#define TEST_CONFORMANCE_CONFORMANCE_H_

#include "test/common/batch.h"
#include "test/common/options.h"
#include "test/common/resources.h"

#define CF_MAX_CASES 80

enum cf_mode {
    CF_PROCESSES, /* a process for each rank */
    CF_THREADS,   /* one process, a thread for each rank */
    CF_GROUP,     /* one thread, all ranks, with groups */
    CF_MODES
};

extern const char *const cf_mode_names[CF_MODES];

/* Growth that is no fault of a soak: what NCCL itself keeps. */
struct cf_allowance {
    long host_kib, host_kib_each; /* and for each communicator */
    long gpu_kib;                 /* of each GPU */
    long handles;
};

struct cf_options {
    struct cf_ranks ranks; /* none: all that the node has, and fewer down to 2 */
    bool mode[CF_MODES];
    const char *cases; /* comma-separated, each a case or the beginning of its name; NULL: all */
    const char *types; /* comma-separated names; NULL: all */
    uint64_t seed;
    bool full;
    bool expect_served;
    int patience; /* factor on the time limits */
    int soak;     /* seconds of it instead of the cases; 0: none */
    struct cf_allowance allowance;
    bool list;
};

extern struct cf_options cf_options; /* the same in all processes, but for the seed, which is on the board */

/* What a worker has done in a soak. */
struct cf_soaked {
    _Atomic uint64_t rounds, calls, communicators, graphs, replays; /* calls: of all members, those of replays too */
    uint64_t after_warm_up;                                         /* communicators */
    bool measured;
    struct resources from, to;
};

struct cf_state {
    _Atomic int at_case; /* -1: before the first */
    _Atomic uint64_t since_ms;
    _Atomic int done; /* all cases */
    struct cf_result result[CF_MAX_CASES];
    struct cf_soaked soaked;
};

/* What the processes of a job share. */
struct cf_case_board {
    struct cf_board board;
    enum cf_mode mode;
    int first_case;
    uint64_t soak_ms;         /* of this job */
    int onehop, nccl_version; /* as rank 0 found them */
    struct cf_state worker[CF_MAX_RANKS];
};

static inline struct cf_case_board *cf_case_board(const struct cf_worker *worker)
{
    return (struct cf_case_board *)worker->board;
}

static inline struct cf_state *cf_state(const struct cf_worker *worker)
{
    return &cf_case_board(worker)->worker[worker->index];
}

enum cf_when {
    CF_ALWAYS,
    CF_ONEHOP, /* stock NCCL promises nothing here */
    CF_APART,  /* a communicator's first call is captured: stock NCCL fails where ranks are threads of one process */
    CF_SOAK    /* for as long as one likes, and alone */
};

struct cf_case {
    const char *name;
    void (*run)(struct cf_worker *worker);
    enum cf_when when;
    const char *what;
};

extern const struct cf_case cf_cases[];
extern const int cf_case_count;

bool cf_wanted(int which); /* is the case to be run? */
bool cf_type_wanted(ncclDataType_t type);
int cf_launch(char **argv); /* launch.c */

#endif
