/* SPDX-License-Identifier: MIT */
/*
 * sim_app.h - an ordinary NCCL program, made to be run on the simulated node, that can be told what to do
 *
 * It is linked with CUDA and NCCL and knows nothing of onehop: what it gets by preload is what any program gets.
 * Started as a launcher it starts itself once for each process of the job, each with its own environment. It makes the
 * calls that its options say (sim_calls.c), or runs a scenario: something odd that happens to the program
 * (sim_scenario.c). All results and the memory around them are checked (test/common/batch.h); results of all ranks must
 * be equal.
 *
 * The first error ends the job, with a line "FAIL ..." and status 1.
 */
#ifndef TEST_E2E_SIM_APP_H_
#define TEST_E2E_SIM_APP_H_

#include "test/common/batch.h"

#define APP_MAX_COMMS 64
#define APP_MAX_LIST 64

/* How communicators come into being; before these, enum cf_maker. */
enum app_make {
    APP_MAKE_SPLIT = CF_MAKERS, /* ncclCommSplit of a parent that is used for nothing else */
    APP_MAKE_FAMILY,            /* the parent and a child of it, used in turn */
    APP_MAKE_SHRINK,            /* ncclCommShrink of a parent, without the ranks of negative colour */
    APP_MAKE_GROW,              /* ncclCommGrow of a parent of the first ranks, without those of negative colour */
    APP_MAKES
};

struct app_options {
    struct cf_layout layout;
    int timeout; /* seconds until the launcher ends everything */
    int make;    /* enum app_make */
    int comms;
    int streams;
    int group;        /* calls per group, 0: no group of the program's own */
    bool nested;      /* groups inside the group */
    bool scramble;    /* odd ranks make a group's calls in the reverse order of communicators */
    int batch;        /* calls before the program waits for its streams */
    bool nonblocking; /* a parent and its children are made without waiting */
    int jitter;       /* microseconds; ranks wait up to as long before each call and poll, each its own time */
    int pause;        /* milliseconds, after the first calls and after a capture */
    int iterations;
    int replays; /* of each batch as a graph, 0: eager only */
    const char *scenario;
    int rounds;
    bool linger;
    int descriptors; /* left to the process while it makes communicators; -1: as many as ever */
    int victim;      /* the rank that something happens to; in scenarios kill, kill-* it ends by SIGKILL */
    const char *log; /* file that standard error goes to: some scenarios wait for a line there */
    uint64_t seed;
    size_t count[APP_MAX_LIST];
    int counts;
    enum onehop_collective kind[APP_MAX_LIST];
    int kinds;
    int root; /* of broadcasts; -1: another one from case to case */
    ncclDataType_t type[APP_MAX_LIST];
    int types;
    int offset[APP_MAX_LIST][2]; /* elements, of send and receive buffer */
    int offsets;
    bool in_place; /* calls in place, too */
    int color[CF_MAX_RANKS], key[CF_MAX_RANKS];
    const char *rank_env[APP_MAX_LIST]; /* "R:NAME=VALUE" */
    int rank_envs;
};

extern struct app_options app_options; /* the same in all processes */

/* What the processes of a job share. */
struct app_board {
    struct cf_board board;
    struct cf_result result[CF_MAX_RANKS]; /* by worker */
    _Atomic uint32_t called;               /* ranks that have made the call that the victim does not make */
    _Atomic uint32_t done;                 /* ranks that are through with what they do without the victim */
    _Atomic double killed;                 /* when the victim ended, by cf_now; 0: it has not */
};

/* What a worker's program holds. */
struct app {
    struct cf_worker *worker;
    struct app_board *board;
    struct cf_set parent, set[APP_MAX_COMMS];
    struct cf_batch *call;  /* of scenarios: a call of the first of --counts on the first communicator */
    struct cf_batch *other; /* of the second of --counts and --collectives, or another of the first */
};

void app_comm_make(struct app *app);
void app_comm_end(struct app *app);

/* sim_options.c: the command line; the cases that --collectives, --counts, --types, --offsets and --in-place make. */
void app_options_read(int argc, char **argv);
size_t app_case_count(void);
struct cf_spec app_case(size_t which);

/* sim_calls.c */
void app_calls_run(struct app *app);

/* sim_scenario.c: the table of scenarios, and their common parts. */
void app_scenario_run(struct app *app);
bool app_has_scenario(void);            /* is --scenario one? */
void app_load(struct cf_batch *batch);  /* new inputs */
void app_call(struct cf_batch *batch);  /* in a group, on the first stream */
void app_check(struct cf_batch *batch); /* waits for it before */
void app_run(struct cf_batch *batch);   /* the first three of these */
void app_capture(struct cf_batch *batch, struct cf_graph *graph_p);

/* sim_fault.c: one call of the driver that fails, or ends or stops its process. */
void app_fault(struct app *app);
/* sim_end.c: the end of processes. */
void app_end_exit(struct app *app);
void app_end_exec(struct app *app);
void app_end_fork(struct app *app);
void app_end_fork_busy(struct app *app);
/* sim_peer_failure.c: ranks that are killed, stopped, absent or wrong. */
void app_guard_kill(struct app *app);
void app_guard_leave(struct app *app);
void app_guard_stop(struct app *app);
void app_guard_absent(struct app *app);
void app_guard_mismatch(struct app *app);
void app_guard_differ(struct app *app);
void app_guard_exit(struct app *app);
void app_guard_destroy(struct app *app);
void app_guard_reset(struct app *app);
/* sim_abort.c: communicators that are aborted, revoked, or shrunk with the abort flag. */
void app_guard_abort(struct app *app);
void app_guard_revoke(struct app *app);
void app_guard_shrink(struct app *app);
void app_guard_unborn(struct app *app);

#endif
