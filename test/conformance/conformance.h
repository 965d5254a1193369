/* SPDX-License-Identifier: MIT */
/*
 * conformance.h - a test of NCCL's contract for ncclAllReduce, on any node and with or without onehop
 *
 * The launcher (launch.c) starts jobs: a number of ranks in one of three modes. The processes of a job are this program
 * again; they share a board, a mapped file, and run the table of cases (cases.c) in step. A worker is a thread that
 * drives one member, a rank, or in mode "group" all of them. What is wrong is noted on the board, and the job goes on;
 * what cannot go on (a CUDA error, a case that does not end) makes the launcher end the job's processes and start it
 * again behind that case.
 *
 * A case makes batches (batch.c): calls whose buffers lie in one arena for each member, filled with a pattern before
 * and compared as a whole after, so that every byte that a call may not write is a guard.
 */
#ifndef TEST_CONFORMANCE_CONFORMANCE_H_
#define TEST_CONFORMANCE_CONFORMANCE_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "test/conformance/api.h"
#include "test/conformance/number.h"
#include "test/gpu/resources.h"

#define CF_MAX_CASES 64
#define CF_MAX_IDS 256

/* The streams of a member. */
enum cf_stream {
    CF_STREAMS = 3, /* before these: created ones, which may be captured */
    CF_LEGACY_STREAM = CF_STREAMS,
    CF_PER_THREAD_STREAM,
    CF_ALL_STREAMS
};

#define CF_TEXT 320

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
    int ranks[CF_MAX_RANKS];
    int rank_count; /* 0: all that the node has, and fewer down to 2 */
    bool mode[CF_MODES];
    const char *cases; /* comma-separated, each a case or the beginning of its name; NULL: all */
    const char *types; /* comma-separated names; NULL: all */
    uint64_t seed;
    bool full;
    bool expect_served;
    int patience; /* factor on the time limits */
    int soak;     /* seconds of it instead of the cases; 0: none */
    struct cf_allowance allowance;
    const char *json;
    /* of a child */
    int rank; /* its first, -1: launcher */
    int nranks;
    enum cf_mode child_mode;
    int first_case;
    const char *board;
};

/* What a worker found in a case. */
struct cf_result {
    uint64_t checks; /* elements and answers looked at */
    uint64_t failures;
    uint64_t served, fallbacks; /* calls, by onehop's own count */
    uint64_t hash;              /* of all results that must be the same on all ranks */
    uint64_t milliseconds;
    char failure[CF_TEXT]; /* the first */
    char skipped[CF_TEXT]; /* why it did not run */
};

/* What a worker has done in a soak. */
struct cf_soaked {
    _Atomic uint64_t rounds, calls, communicators, graphs, replays; /* calls: of all members, those of replays too */
    uint64_t after_warm_up;                                         /* communicators */
    bool measured;
    struct resources from, to;
};

struct cf_worker_state {
    _Atomic int at_case; /* -1: before the first */
    _Atomic uint64_t since_ms;
    _Atomic int done; /* all cases */
    struct cf_result result[CF_MAX_CASES];
    struct cf_soaked soaked;
};

/* Shared by the processes of a job. */
struct cf_board {
    _Atomic uint32_t arrived, generation;
    _Atomic uint32_t ids;
    ncclUniqueId id[CF_MAX_IDS];
    uint64_t value[CF_MAX_RANKS]; /* cf_agree */
    int workers;
    uint64_t soak_ms;         /* of this job */
    int onehop, nccl_version; /* as rank 0 found them */
    struct cf_worker_state worker[CF_MAX_RANKS];
};

/* A rank. */
struct cf_member {
    int world_rank;
    CUdevice device;
    CUcontext context;
    CUstream stream[CF_ALL_STREAMS];
};

/* A communicator as the members of one worker have it; comm NULL: that member is not in it. */
struct cf_set {
    ncclComm_t comm[CF_MAX_RANKS];
    int rank[CF_MAX_RANKS];
    int nranks[CF_MAX_RANKS];
    int world[CF_MAX_RANKS][CF_MAX_RANKS]; /* by member: world rank of each rank */
    bool whole;                            /* all ranks of the job are in it */
    bool expected;                         /* onehop should serve it */
};

struct cf_worker {
    const struct cf_options *options;
    struct cf_board *board;
    int index; /* on the board */
    int nranks;
    int members;
    struct cf_member member[CF_MAX_RANKS];
    struct cf_set world;
    struct cf_result *result; /* of the case that runs */
    const char *case_name;
    uint32_t ids;
    uint64_t serial; /* batches so far: chooses their data */
    bool onehop, fp8;
    bool pending; /* a call since cf_calls_begin goes on in the background */
};

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

/* main.c */
uint64_t cf_now_ms(void);
bool cf_named(const char *list, const char *name, bool prefix);
bool cf_wanted(const struct cf_options *options, int which);  /* is the case to be run? */
int cf_launch(const struct cf_options *options, char **argv); /* launch.c */
int cf_child(const struct cf_options *options);               /* worker.c */
struct cf_board *cf_board_open(const char *path);

/* worker.c */
/* Notes a failure of the running case; the first one's text is kept. */
void cf_fail(struct cf_worker *worker, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Notes it and ends the process. */
void cf_die(struct cf_worker *worker, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
void cf_skip(struct cf_worker *worker, const char *reason);
/* Counts a check; notes a failure unless `good`. */
bool cf_check(struct cf_worker *worker, bool good, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Makes a member's context current. False: the worker has no such member. */
bool cf_use(struct cf_worker *worker, int member);
void cf_sync(struct cf_worker *worker);    /* all created streams of all members */
void cf_barrier(struct cf_worker *worker); /* all workers of the job */
/* Gives all workers of the job the first one's value. */
uint64_t cf_share(struct cf_worker *worker, uint64_t value);
/* A case that goes on for long is in time: its limit begins anew. */
void cf_alive(struct cf_worker *worker);
/* True when all workers of the job call it with the same value. */
bool cf_agree(struct cf_worker *worker, uint64_t value);

#define CF_CU(worker_, call_)                                                                                          \
    do {                                                                                                               \
        CUresult result_ = cu.call_;                                                                                   \
        if (result_ != CUDA_SUCCESS) {                                                                                 \
            const char *name_ = "?";                                                                                   \
            cu.GetErrorName(result_, &name_);                                                                          \
            cf_die((worker_), "%s:%d: cu%s gave %s", __FILE__, __LINE__, #call_, name_);                               \
        }                                                                                                              \
    } while (0)
/* A call of NCCL without whose success the case cannot go on. */
#define CF_NCCL(worker_, call_)                                                                                        \
    do {                                                                                                               \
        ncclResult_t result_ = nccl.call_;                                                                             \
        if (result_ != ncclSuccess) {                                                                                  \
            cf_die((worker_), "%s:%d: nccl%s gave %d", __FILE__, __LINE__, #call_, (int)result_);                      \
        }                                                                                                              \
    } while (0)
/* The same between cf_calls_begin and cf_calls_end. */
#define CF_START(worker_, call_)                                                                                       \
    do {                                                                                                               \
        ncclResult_t result_ = nccl.call_;                                                                             \
        if (!cf_started((worker_), result_)) {                                                                         \
            cf_die((worker_), "%s:%d: nccl%s gave %d", __FILE__, __LINE__, #call_, (int)result_);                      \
        }                                                                                                              \
    } while (0)
/* A call of NCCL whose result is the check. */
#define CF_IS(worker_, expected_, call_)                                                                               \
    do {                                                                                                               \
        ncclResult_t result_ = nccl.call_;                                                                             \
        cf_check((worker_), result_ == (expected_), "nccl%s gave %d, expected %d", #call_, (int)result_,               \
                 (int)(expected_));                                                                                    \
    } while (0)

/* comm.c: how communicators are made. All return false when this library, or this mode, cannot. */
enum cf_maker {
    CF_INIT_RANK,
    CF_INIT_CONFIG,
    CF_INIT_NONBLOCKING,
    CF_INIT_SCALABLE,
    CF_INIT_ALL,
    CF_MAKERS
};
bool cf_set_create(struct cf_worker *worker, enum cf_maker maker, struct cf_set *set_p);
/* ncclCommSplit of the world: color and key by world rank; share: splitShare. */
void cf_set_split(struct cf_worker *worker, const struct cf_set *parent, const int *color, const int *key, bool share,
                  struct cf_set *set_p);
/* ncclCommShrink without one rank. */
bool cf_set_shrink(struct cf_worker *worker, const struct cf_set *parent, int excluded, struct cf_set *set_p);
/* ncclCommGrow to the world, of a set that has its first ranks. */
bool cf_set_grow(struct cf_worker *worker, const struct cf_set *parent, struct cf_set *set_p);
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

/* graph.c: graphs, one for each member. */
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

/* batch.c */
struct cf_spec {
    ncclDataType_t type;
    enum cf_op op;
    enum cf_family family;
    size_t count;
    bool in_place;
    unsigned send_shift, recv_shift; /* bytes behind a multiple of 16 */
    uint64_t key;                    /* data; 0: by the batch's serial and the item's number */
};

struct cf_item {
    struct cf_spec spec;
    size_t send, recv, scalar; /* offsets in the arena */
};

struct cf_batch {
    struct cf_worker *worker;
    const struct cf_set *set;
    uint64_t serial;
    int items, room;
    struct cf_item *item;
    size_t bytes; /* of an arena */
    CUdeviceptr arena[CF_MAX_RANKS];
    unsigned char *before[CF_MAX_RANKS], *after[CF_MAX_RANKS];
    uint64_t served_before, back_before;
    bool opened; /* the arenas have their size */
    bool served; /* onehop made all calls of it, as they were issued */
    bool counted;
    bool replayed; /* judged after a replay of a graph: no call was made */
};

enum cf_style {
    CF_SINGLE,  /* each call by itself */
    CF_GROUPED, /* all in one group */
    CF_NESTED   /* groups within the group */
};

struct cf_batch *cf_batch_new(struct cf_worker *worker, const struct cf_set *set);
void cf_batch_add(struct cf_batch *batch, const struct cf_spec *spec);
/* Fills the arenas with new data and sends them to the devices; opens the batch, with room for all its items. */
void cf_batch_load(struct cf_batch *batch, int stream);
/* Makes the calls, on each member's stream of that number. */
void cf_batch_issue(struct cf_batch *batch, enum cf_style style, int stream);
/* One item on all members: between GroupStart and GroupEnd where there are several, or where asked for. */
void cf_batch_issue_one(struct cf_batch *batch, int item, bool grouped, int stream);
/* One call of one member, as it is. */
ncclResult_t cf_batch_call(struct cf_batch *batch, int item, int member, CUstream stream);
/* Brings the arenas back, waits, and judges everything. launched: false: not a byte may have changed. */
void cf_batch_judge(struct cf_batch *batch, int stream, bool launched);
/*
 * Counts what onehop has served since the load or mark. Judging a batch that was launched does it, unless it is
 * `counted`: for captures, and where other calls of the communicator come between.
 */
void cf_batch_mark(struct cf_batch *batch);
void cf_batch_count(struct cf_batch *batch);
void cf_batch_free(struct cf_batch *batch);
/* The three above. */
void cf_batch_try(struct cf_batch *batch, enum cf_style style, int stream);
/* The same on the members' first streams, and free. */
void cf_batch_run(struct cf_batch *batch, enum cf_style style);
/* Judges a batch that was launched, and frees it. */
void cf_batch_finish(struct cf_batch *batch, int stream);
/* Where an item's result lies after cf_batch_judge. */
const unsigned char *cf_batch_result(const struct cf_batch *batch, int item, int member);
/* Makes stream `to` of each member wait for what is on its stream `from` now; both may be in a capture. */
void cf_join(struct cf_worker *worker, int from, int to);
/* Served calls and fallbacks on this set, over its members. */
void cf_served(const struct cf_set *set, const struct cf_worker *worker, uint64_t *served_p, uint64_t *back_p);
bool cf_type_wanted(const struct cf_worker *worker, ncclDataType_t type);
/* NCCL gives ncclInvalidArgument for such a call on one of the worker's communicators of this set. */
bool cf_refused(const struct cf_worker *worker, const struct cf_set *set, ncclDataType_t type, enum cf_op op);
/*
 * How many elements of such a call on member m's communicator NCCL computes: all, but for a flaw where there is one
 * rank. The others stay as they were.
 */
size_t cf_computed(const struct cf_worker *worker, const struct cf_set *set, int m, const struct cf_spec *spec);
/* Makes each call of a batch of refused ones: refused, and nothing written. Frees the batch. */
void cf_batch_expect_refusal(struct cf_batch *batch);

/* draw.c: random calls. What is drawn from a common source is the same on all ranks. */
struct cf_source {
    uint64_t state;
};
struct cf_source cf_common_source(const struct cf_worker *worker, uint64_t about);
struct cf_source cf_own_source(const struct cf_worker *worker, uint64_t about);
uint64_t cf_draw(struct cf_source *source, uint64_t below);
/*
 * A call that is not refused on this set. plain: sums of 16- and 32-bit floats. Only the place of the buffers comes
 * from the rank's own source.
 */
struct cf_spec cf_random_spec(struct cf_worker *worker, const struct cf_set *set, struct cf_source *common,
                              struct cf_source *own, bool plain);
/* A stream of the rank's own choice: also a default one. */
int cf_own_stream(struct cf_source *own);

#endif
