/* SPDX-License-Identifier: MIT */
/*
 * sim_app.h - an ordinary NCCL program, made to be run on the simulated node
 *
 * It uses the CUDA driver API and NCCL and knows nothing of onehop: what it gets by preload is what any program gets.
 * Started without --rank it is a launcher that starts itself once per process of the job, each with its own
 * environment. A process drives one rank or several. Every result is compared, bit for bit, with a sum taken in rank
 * order in fp32, and with a sum in float64; so equal bits on all ranks follow, and are compared as hashes as well.
 *
 * Errors end the process with a line "FAIL ..." and status 1.
 */
#ifndef TEST_E2E_SIM_APP_H_
#define TEST_E2E_SIM_APP_H_

#include <cuda.h>
#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define APP_MAX_RANKS 16
#define APP_MAX_COMMS 64
#define APP_MAX_STREAMS 4
#define APP_MAX_LIST 64
#define APP_MAX_IDS 512
#define APP_GUARD_BYTES 64
#define APP_PREMUL_SCALE 2.0f

/* How communicators come into being. */
enum app_make {
    APP_MAKE_RANK,        /* ncclCommInitRank */
    APP_MAKE_CONFIG,      /* ncclCommInitRankConfig */
    APP_MAKE_NONBLOCKING, /* the same, blocking = 0 */
    APP_MAKE_SCALABLE,    /* ncclCommInitRankScalable, with several ids */
    APP_MAKE_ALL,         /* ncclCommInitAll */
    APP_MAKE_SPLIT,       /* ncclCommSplit of a parent that is used for nothing else */
    APP_MAKE_FAMILY,      /* the parent and a child of it, used in turn */
    APP_MAKE_SHRINK,      /* ncclCommShrink of a parent, without the ranks of negative colour */
    APP_MAKE_GROW,        /* ncclCommGrow of a parent of the ranks of negative colour, which come first */
    APP_MAKES
};

struct app_options {
    int nranks;
    int local;         /* ranks per process */
    bool threads;      /* several ranks of a process: one thread each, otherwise one thread with groups */
    bool own_gpu;      /* each process sees only its own GPUs */
    int timeout;       /* seconds until the launcher ends everything */
    int rank;          /* first rank of this process, -1: launcher */
    const char *board; /* file that the processes of the job share */
    enum app_make make;
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
    bool mix;    /* other collectives after each batch */
    const char *op;
    const char *scenario;
    int rounds;
    bool linger;
    int descriptors; /* left to the process while it makes communicators; -1: as many as ever */
    int victim;      /* the rank that something happens to; in scenarios kill, kill-* it ends by SIGKILL */
    const char *log; /* file that standard error goes to: some scenarios wait for a line there */
    uint64_t seed;
    size_t count[APP_MAX_LIST];
    int counts;
    ncclDataType_t type[ncclNumTypes];
    int types;
    int offset[APP_MAX_LIST][2]; /* elements, of send and receive buffer */
    int offsets;
    int in_place_first, in_place_last;
    int color[APP_MAX_RANKS], key[APP_MAX_RANKS];
    const char *rank_env[APP_MAX_LIST]; /* "R:NAME=VALUE" */
    int rank_envs;
};

/* What the processes of a job share. */
struct app_board {
    _Atomic uint32_t ids; /* published so far */
    ncclUniqueId id[APP_MAX_IDS];
    _Atomic uint64_t hash[APP_MAX_RANKS];
    _Atomic uint32_t hashed[APP_MAX_RANKS];
    _Atomic int32_t pid[APP_MAX_RANKS];
    _Atomic uint32_t called; /* ranks that have made the call that the victim does not make */
    _Atomic uint32_t done;   /* ranks that are through with what they do without the victim */
    _Atomic double killed;   /* when the victim ended, on the monotonic clock; 0: it has not */
};

/* A communicator as one rank has it. */
struct app_comm {
    ncclComm_t comm;
    int nranks;
    int rank;
    int world[APP_MAX_RANKS]; /* world rank of each rank of it */
    ncclRedOp_t op;
};

/* One rank of the job. */
struct app_member {
    int world_rank;
    int device;
    CUcontext context;
    CUstream stream[APP_MAX_STREAMS];
    ncclComm_t parent;
    struct app_comm comm[APP_MAX_COMMS];
    int comms;
    uint64_t hash;
};

/* One allreduce with its buffers. */
struct app_item {
    size_t count;
    ncclDataType_t type;
    bool in_place;
    size_t offset[2]; /* bytes before send and receive data, guards not included */
    CUdeviceptr send; /* allocations */
    CUdeviceptr recv;
    size_t send_bytes; /* of the allocations */
    size_t recv_bytes;
    uint64_t serial; /* of the call: chooses the input data */
};

/* The ranks that one thread drives. */
struct app_worker {
    const struct app_options *options;
    struct app_board *board;
    int members;
    struct app_member member[APP_MAX_RANKS];
    uint64_t serial; /* calls so far, the same on all ranks */
    uint32_t ids;    /* unique ids used so far */
};

/* Ends the process: "FAIL file:line: ..." */
void app_fail(const char *file, int line, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));

#define APP_CHECK(condition_, ...)                                                                                     \
    do {                                                                                                               \
        if (!(condition_)) {                                                                                           \
            app_fail(__FILE__, __LINE__, __VA_ARGS__);                                                                 \
        }                                                                                                              \
    } while (0)
#define APP_CU(call_)                                                                                                  \
    do {                                                                                                               \
        CUresult cu_ = (call_);                                                                                        \
        APP_CHECK(cu_ == CUDA_SUCCESS, "%s gave CUDA error %d", #call_, (int)cu_);                                     \
    } while (0)
#define APP_NCCL(call_) APP_NCCL_IS(call_, ncclSuccess)
#define APP_NCCL_IS(call_, expected_)                                                                                  \
    do {                                                                                                               \
        ncclResult_t nccl_ = (call_);                                                                                  \
        APP_CHECK(nccl_ == (expected_), "%s gave %d, expected %d", #call_, (int)nccl_, (int)(expected_));              \
    } while (0)

/* sim_options.c */
void app_options_parse(int argc, char **argv, struct app_options *options_p);

/* sim_launch.c: starts and watches the processes; returns the exit status. */
int app_launch(const struct app_options *options, int argc, char **argv);
struct app_board *app_board_open(const char *path);

/* sim_data.c */
/* Puts the input of `world_rank` for call `serial` into data; values that suit the type and the number of ranks. */
void app_data_fill(const struct app_options *options, int world_rank, uint64_t serial, ncclDataType_t type,
                   size_t count, void *data);
ncclRedOp_t app_data_op(const struct app_options *options); /* ncclSum for "premul" */
/* Compares a result with the reference; ends the process when it differs. */
void app_data_verify(const struct app_options *options, const struct app_comm *comm, const struct app_item *item,
                     const void *result);
uint64_t app_data_hash(uint64_t hash, const void *data, size_t bytes);

/* sim_comm.c: makes and ends the communicators of a worker's members. */
void app_comm_make(struct app_worker *worker);
void app_comm_end(struct app_worker *worker);
/* The first communicator of the only member anew, for all ranks of the job or for all but one (-1: none). */
void app_comm_renew(struct app_worker *worker, int without);
/* The same, of all ranks, without waiting for NCCL; skip: this rank does not take part after all. */
void app_comm_begin(struct app_worker *worker, bool skip);
/* Fills in who is in the first communicator of the only member, when it has lost a rank. */
void app_comm_place(struct app_worker *worker, int without);
/* Waits until a non-blocking call on the communicator is done. */
void app_comm_ready(const struct app_worker *worker, ncclComm_t comm);
/* --jitter: waits for a random time. */
void app_jitter(const struct app_worker *worker);
/* Makes the calling thread's context that of the member. */
void app_member_use(const struct app_member *member);
/* Makes a graph ready to run, also while other members' streams are being captured. */
CUgraphExec app_member_instantiate(CUgraph graph);
void app_member_open(struct app_worker *worker, struct app_member *member);
void app_member_close(struct app_worker *worker, struct app_member *member);
void app_member_sync(const struct app_worker *worker, const struct app_member *member);

/* sim_item.c: one call and its buffers, guarded on both sides. `which` counts the cases that the options make. */
size_t app_item_cases(const struct app_options *options);
void app_item_open(const struct app_options *options, struct app_item *item_p);
void app_item_close(struct app_item *item);
void app_item_choose(const struct app_options *options, size_t which, struct app_item *item);
/* Uploads the input of the call numbered `serial`; the result buffer gets a pattern. */
void app_item_fill(const struct app_options *options, const struct app_member *member, struct app_item *item,
                   uint64_t serial);
ncclResult_t app_item_call(const struct app_item *item, const struct app_comm *comm, CUstream stream);
/* A part of it: `count` elements from `first` on. */
ncclResult_t app_item_call_part(const struct app_item *item, size_t first, size_t count, const struct app_comm *comm,
                                CUstream stream);
void app_item_verify(const struct app_options *options, struct app_member *member, const struct app_comm *comm,
                     const struct app_item *item);
/* The call must not have been started. */
void app_item_verify_untouched(const struct app_options *options, const struct app_member *member,
                               const struct app_item *item);

/* sim_batch.c: all cases of the options, eager and as graphs. */
void app_batch_run_all(struct app_worker *worker);

/* sim_mix.c: broadcast, allgather, reducescatter, send and receive on every communicator, checked. */
void app_mix_run(struct app_worker *worker);

/* The same on the first communicator, with the calls that `with` makes in one group with them. */
void app_mix_run_with(struct app_worker *worker, void (*with)(struct app_worker *, void *), void *argument);

/* sim_scenario.c: one item for each member of the worker. */
void app_scenario_run(struct app_worker *worker);
void app_scenario_call(struct app_worker *worker, const struct app_item *items); /* in a group */
void app_scenario_capture(struct app_worker *worker, const struct app_item *items, CUgraphExec *exec);
void app_scenario_replay(struct app_worker *worker, const CUgraphExec *exec);
bool app_scenario_finishes(const struct app_worker *worker, unsigned microseconds);
void app_scenario_fill(struct app_worker *worker, struct app_item *items);
void app_scenario_verify(struct app_worker *worker, const struct app_item *items);
void app_scenario_verify_untouched(struct app_worker *worker, const struct app_item *items);

/* sim_end.c: scenarios about the end of processes. */
void app_end_exit(struct app_worker *worker, struct app_item *items);
void app_end_exec(struct app_worker *worker, struct app_item *items);
void app_end_fork(struct app_worker *worker, struct app_item *items);
void app_end_fork_busy(struct app_worker *worker, struct app_item *items);
/* sim_peer_failure.c: scenarios about ranks that are killed, stopped, absent or wrong, and communicators that are
 * aborted. */
void app_guard_kill(struct app_worker *worker, struct app_item *items);
void app_guard_abort(struct app_worker *worker, struct app_item *items);
void app_guard_abort_first(struct app_worker *worker, struct app_item *items);
void app_guard_leave(struct app_worker *worker, struct app_item *items);
void app_guard_stop(struct app_worker *worker, struct app_item *items);
void app_guard_absent(struct app_worker *worker, struct app_item *items);
void app_guard_mismatch(struct app_worker *worker, struct app_item *items);
void app_guard_differ(struct app_worker *worker, struct app_item *items);
void app_guard_exit(struct app_worker *worker, struct app_item *items);
void app_guard_destroy(struct app_worker *worker, struct app_item *items);
void app_guard_reset(struct app_worker *worker, struct app_item *items);
/* sim_revoke.c: communicators that are revoked, shrunk with the abort flag, or aborted while they are made. */
void app_guard_revoke(struct app_worker *worker, struct app_item *items);
void app_guard_shrink(struct app_worker *worker, struct app_item *items);
void app_guard_unborn(struct app_worker *worker, struct app_item *items);

/* sim_group.c: scenarios about groups. */
void app_group_slices(struct app_worker *worker, struct app_item *items);
void app_group_together(struct app_worker *worker, struct app_item *items);
void app_group_captured(struct app_worker *worker, struct app_item *items);

#endif
