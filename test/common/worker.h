/* SPDX-License-Identifier: MIT */
/*
 * worker.h - the ranks of a job: processes, workers, members, communicators and graphs
 *
 * A job is started by a launcher (job.c): processes that are this program again. They share a board, a mapped file. A
 * worker is a thread that drives one member, a rank, or all ranks of its process (cf_layout). What is wrong in a worker
 * is noted in its result, and the job goes on; or, in a program that stops at the first failure, it is printed as "FAIL
 * rank R: ...", and the process ends. Names begin with cf_, as those of the conformance test, which these parts are
 * from.
 */
#ifndef TEST_COMMON_WORKER_H_
#define TEST_COMMON_WORKER_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "test/common/api.h"
#include "test/common/number.h"

#define CF_MAX_IDS 512
#define CF_TEXT 320

/* The streams of a member. */
enum cf_stream {
    CF_STREAMS = 8, /* before these: created ones, which may be captured */
    CF_LEGACY_STREAM = CF_STREAMS,
    CF_PER_THREAD_STREAM,
    CF_ALL_STREAMS
};

/* How the ranks of a job are dealt out. */
struct cf_layout {
    int nranks;
    int local;    /* ranks of a process */
    bool threads; /* a thread for each of them; otherwise one thread, with groups */
    bool own_gpu; /* each process sees only its own GPUs */
    int gpus;     /* that the ranks are dealt out to; 0: one for each */
};

/* Shared by the processes of a job; the head of what a program has them share. */
struct cf_board {
    struct cf_layout layout;
    uint64_t seed;
    bool stops;                           /* at the first failure */
    _Atomic uint32_t arrived, generation; /* cf_barrier */
    _Atomic uint32_t ids;
    ncclUniqueId id[CF_MAX_IDS];
    uint64_t value[CF_MAX_RANKS]; /* cf_agree, cf_share */
    _Atomic pid_t pid[CF_MAX_RANKS];
};

/* What a worker found. */
struct cf_result {
    uint64_t checks; /* elements and answers looked at */
    uint64_t failures;
    uint64_t served, fallbacks; /* calls, by onehop's own count */
    uint64_t hash;              /* of all results that must be the same on all ranks */
    uint64_t milliseconds;
    char failure[CF_TEXT]; /* the first */
    char skipped[CF_TEXT]; /* why it did not run */
};

/* A rank. */
struct cf_member {
    int world_rank;
    CUdevice device;
    CUcontext context;
    CUstream stream[CF_ALL_STREAMS];
};

/* A communicator as the members of one worker have it. */
struct cf_set {
    ncclComm_t comm[CF_MAX_RANKS]; /* NULL: the member is not in it, or has ended it */
    int rank[CF_MAX_RANKS];
    int nranks[CF_MAX_RANKS];              /* 0: that member is not in it */
    int world[CF_MAX_RANKS][CF_MAX_RANKS]; /* by member: world rank of each rank */
    bool whole;                            /* all ranks of the job are in it */
    bool expected;                         /* onehop should serve it */
    double made_ms;                        /* how long the call took that made it */
};

struct cf_worker {
    struct cf_board *board;
    int index; /* of the job's workers */
    int nranks;
    int members;
    struct cf_member member[CF_MAX_RANKS];
    struct cf_set world;      /* where a program has one */
    struct cf_result *result; /* at first one of its own */
    uint32_t ids;
    uint64_t serial;      /* batches so far: chooses their data */
    bool full;            /* larger random calls */
    bool expect_served;   /* what onehop should serve must be served */
    bool hashes_compared; /* the program compares the hashes of all workers' results */
    bool onehop, fp8;
    bool simulated; /* this NCCL adds in rank order, as onehop does */
    int nccl_version;
    bool pending;       /* a call since cf_calls_begin goes on in the background */
    bool in_group;      /* of the program: communicators are there when it has ended, and cf_set_complete is called */
    unsigned jitter_us; /* cf_jitter */
    unsigned jitter_seed;
    void *user; /* the program's */
};

double cf_now(void); /* seconds, of a clock that all processes share */
uint64_t cf_now_ms(void);
int cf_workers(const struct cf_layout *layout); /* of a job */

/* --- job.c -------------------------------------------------------------------------------------------------------- */

struct cf_job {
    char **argv;
    char path[64];
    struct cf_board *board;
    int processes;
    pid_t pid[CF_MAX_RANKS];
    /* In a process before it is this program again: for its environment. NULL: nothing. */
    void (*prepare)(const struct cf_job *job, int process);
    /* Has that process ended as it should? NULL: by exit status 0. */
    bool (*ended_well)(const struct cf_job *job, int process, int status);
    const void *user; /* for these */
    FILE *log;        /* of cf_job_wait; NULL: stdout */
};

/* The number of GPUs, looked at in a process of its own: a launcher opens no CUDA. */
int cf_count_gpus(void);

/* In the launcher: makes the board, which is zero, of so many bytes. */
void cf_job_open(struct cf_job *job, char **argv, size_t bytes);
void cf_job_start(struct cf_job *job);
/* A process that has ended, and how; false: none since the last call. */
bool cf_job_ended(struct cf_job *job, int *process_p, int *status_p);
void cf_job_kill(struct cf_job *job);
/* Waits for all processes. The first that fails, or the time limit, ends the others; false then, and the log tells. */
bool cf_job_wait(struct cf_job *job, int seconds);
void cf_job_close(struct cf_job *job);

/* In a process that a launcher has started: the board, and the number of the process. False: this is no such process */
bool cf_job_join(size_t bytes, struct cf_board **board_p, int *process_p);

/*
 * Opens the libraries, and runs the workers of this process, each a thread, with their members opened. `user` is for
 * all of them. Returns the exit status of the process.
 */
int cf_job_run(struct cf_board *board, int process, void (*run)(struct cf_worker *worker), void *user);
/* The same where the libraries that the program needs are open, and the driver is initialized. */
int cf_run_workers(struct cf_board *board, int process, void (*run)(struct cf_worker *worker), void *user);

/* --- worker.c ----------------------------------------------------------------------------------------------------- */

/* Notes a failure; the first one's text is kept. */
void cf_fail(struct cf_worker *worker, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Notes it and ends the process. */
void cf_die(struct cf_worker *worker, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
void cf_skip(struct cf_worker *worker, const char *reason);
/* Counts a check; notes a failure unless `good`. */
bool cf_check(struct cf_worker *worker, bool good, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Memory, or the end. */
void *cf_need(struct cf_worker *worker, void *memory);
void cf_member_open(struct cf_worker *worker, int member);
void cf_member_close(struct cf_worker *worker, int member);
/* Makes a member's context current. False: the worker has no such member. */
bool cf_use(struct cf_worker *worker, int member);
void cf_sync(struct cf_worker *worker); /* all created streams of all members */
/* Have all of a worker's created streams nothing to do, within that time? */
bool cf_finishes(struct cf_worker *worker, double seconds);
/* Makes stream `to` of each member wait for what is on its stream `from` now; both may be in a capture. */
void cf_join(struct cf_worker *worker, int from, int to);
void cf_barrier(struct cf_worker *worker); /* all workers of the job */
/* Gives all workers of the job the first one's value. */
uint64_t cf_share(struct cf_worker *worker, uint64_t value);
/* True when all workers of the job call it with the same value. */
bool cf_agree(struct cf_worker *worker, uint64_t value);
/* Memory in use on the GPUs of a worker, in KiB. */
long cf_gpu_kib(struct cf_worker *worker);
/* Waits for up to jitter_us, each worker as long as it likes. */
void cf_jitter(struct cf_worker *worker);

#define CF_CU(worker_, call_)                                                                                          \
    do {                                                                                                               \
        CUresult result_ = cu.call_;                                                                                   \
        if (result_ != CUDA_SUCCESS) {                                                                                 \
            const char *name_ = "?";                                                                                   \
            cu.GetErrorName(result_, &name_);                                                                          \
            cf_die((worker_), "%s:%d: cu%s gave %s", __FILE__, __LINE__, #call_, name_);                               \
        }                                                                                                              \
    } while (0)
/* A call of NCCL without whose success nothing can go on; good_: a condition on result_. */
#define CF_NCCL_MUST(worker_, good_, call_)                                                                            \
    do {                                                                                                               \
        ncclResult_t result_ = nccl.call_;                                                                             \
        if (!(good_)) {                                                                                                \
            cf_die((worker_), "%s:%d: nccl%s gave %d", __FILE__, __LINE__, #call_, (int)result_);                      \
        }                                                                                                              \
    } while (0)
#define CF_NCCL(worker_, call_) CF_NCCL_MUST(worker_, result_ == ncclSuccess, call_)
/* The same between cf_calls_begin and cf_calls_end. */
#define CF_START(worker_, call_) CF_NCCL_MUST(worker_, cf_started((worker_), result_), call_)
/* A call of NCCL whose result is the check. */
#define CF_IS(worker_, expected_, call_)                                                                               \
    do {                                                                                                               \
        ncclResult_t result_ = nccl.call_;                                                                             \
        cf_check((worker_), result_ == (expected_), "%s:%d: nccl%s gave %d, expected %d", __FILE__, __LINE__, #call_,  \
                 (int)result_, (int)(expected_));                                                                      \
    } while (0)

/* --- comm.c: how communicators are made --------------------------------------------------------------------------- */

enum cf_maker {
    CF_INIT_RANK,
    CF_INIT_CONFIG,
    CF_INIT_NONBLOCKING,
    CF_INIT_SCALABLE, /* with several ids */
    CF_INIT_ALL,
    CF_MAKERS
};
/* For children of a communicator. */
enum cf_child {
    CF_CHILD_NONBLOCKING = 1,
    CF_CHILD_SHARES = 2 /* resources with its parent */
};
/* The next unique id of the job, of a communicator that is to grow (NULL: of a new one), from the worker whose first
 * rank is `leader` to all. */
ncclUniqueId cf_next_id(struct cf_worker *worker, int leader, ncclComm_t grows);
/* False when this library, or this layout, cannot. */
bool cf_set_create(struct cf_worker *worker, enum cf_maker maker, struct cf_set *set_p);
/* Of the first ranks of the job only. */
void cf_set_create_first(struct cf_worker *worker, enum cf_maker maker, int ranks, struct cf_set *set_p);
/* Says who is in a communicator that has been made without the rank `without`, -1: of all ranks. */
void cf_set_fill(struct cf_worker *worker, int without, struct cf_set *set);
/* ncclCommSplit: color and key by rank of the parent; flags: enum cf_child. */
void cf_set_split(struct cf_worker *worker, const struct cf_set *parent, const int *color, const int *key, int flags,
                  struct cf_set *set_p);
/* ncclCommShrink without some ranks of the parent. False: this library has none. */
bool cf_set_shrink(struct cf_worker *worker, const struct cf_set *parent, const bool *excluded, int flags,
                   struct cf_set *set_p);
/*
 * ncclCommGrow to all ranks of the job, of a set that has the first of them. Those with `knows` (NULL: rank 0 alone)
 * give the id, which is rank 0's. False: this library has none.
 */
bool cf_set_grow(struct cf_worker *worker, const struct cf_set *parent, const bool *knows, int flags,
                 struct cf_set *set_p);
/* Behind the end of the group that communicators were made in: waits for them, and compares them with the library's. */
void cf_set_complete(struct cf_worker *worker, const struct cf_set *set);
void cf_set_finalize(struct cf_worker *worker, struct cf_set *set);
void cf_set_destroy(struct cf_worker *worker, struct cf_set *set);
/* The same once all workers have come here. */
void cf_set_end(struct cf_worker *worker, struct cf_set *set);
/* Waits until non-blocking calls on the communicators are done. */
void cf_set_ready(struct cf_worker *worker, const struct cf_set *set);
/* Calls of all members: in a group where there are several of them, or where asked for. */
void cf_calls_begin(struct cf_worker *worker, bool grouped);
/* Has the call succeeded, or does it go on in the background? */
bool cf_started(struct cf_worker *worker, ncclResult_t result);
/* Ends the group, if there is one, and waits for what goes on in the background, unless `set` is NULL. */
void cf_calls_end(struct cf_worker *worker, bool grouped, const struct cf_set *set);
/* Calls on the set that onehop has served, and fallbacks, over the worker's members. */
void cf_set_served(const struct cf_worker *worker, const struct cf_set *set, uint64_t *served_p, uint64_t *back_p);

/* --- graph.c: graphs, one for each member ------------------------------------------------------------------------- */

struct cf_graph {
    int stream; /* the captured one */
    CUstreamCaptureMode mode;
    CUgraph graph[CF_MAX_RANKS];
    CUgraphExec exec[CF_MAX_RANKS];
};
/* On a created stream of each member. All workers call both, unless the mode is the relaxed one. */
void cf_capture_begin(struct cf_worker *worker, int stream, CUstreamCaptureMode mode, struct cf_graph *graph_p);
void cf_capture_end(struct cf_worker *worker, struct cf_graph *graph);
/* All workers call it, or cf_barrier. */
void cf_graph_instantiate(struct cf_worker *worker, struct cf_graph *graph);
void cf_graph_launch(struct cf_worker *worker, const struct cf_graph *graph, int stream);
void cf_graph_destroy(struct cf_worker *worker, const struct cf_graph *graph);

#endif
