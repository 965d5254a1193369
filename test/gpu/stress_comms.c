/* SPDX-License-Identifier: MIT */
/*
 * stress_comms.c - communicators made, used and ended many times, or many at once, leave nothing behind
 *
 * One process for each rank and GPU. Each round makes a communicator in another way (by id, non-blocking, from several
 * ids, by split, by shrink), makes some allreduce calls and checks them, and ends it, in an order of its own on each
 * rank. What the process holds is measured when the first rounds are over and at the end: host memory, GPU memory,
 * descriptors, threads, mappings, files of onehop in shared memory. More at the end fails.
 *
 * Uses the CUDA driver API and NCCL, both opened at run time and looked up as a linked program would (the global
 * scope), so that it runs on real GPUs and on the simulated node, with and without onehop in front.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <nccl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "onehop/onehop.h"
#include "test/gpu/check.h"
#include "test/common/resources.h"

#define MAX_RANKS 8
#define MAX_LIVE 64
#define MAX_ROUNDS 100000
#define STREAMS 8
#define COUNT 1000
#define CALLS 3

/* X(symbol, parameters): what is used of each library. */
#define CUDA_FUNCTIONS(X)                                                                                              \
    X(cuInit, (unsigned int))                                                                                          \
    X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                               \
    X(cuCtxSetCurrent, (CUcontext))                                                                                    \
    X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                          \
    X(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t))                                                            \
    X(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))                                                                  \
    X(cuMemGetInfo_v2, (size_t *, size_t *))                                                                           \
    X(cuStreamCreate, (CUstream *, unsigned int))                                                                      \
    X(cuStreamSynchronize, (CUstream))
#define NCCL_FUNCTIONS(X)                                                                                              \
    X(ncclGetUniqueId, (ncclUniqueId *))                                                                               \
    X(ncclCommInitRank, (ncclComm_t *, int, ncclUniqueId, int))                                                        \
    X(ncclCommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *))                                  \
    X(ncclCommInitRankScalable, (ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *))                         \
    X(ncclCommSplit, (ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *))                                             \
    X(ncclCommShrink, (ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int))                                     \
    X(ncclCommGetAsyncError, (ncclComm_t, ncclResult_t *))                                                             \
    X(ncclCommFinalize, (ncclComm_t))                                                                                  \
    X(ncclCommDestroy, (ncclComm_t))                                                                                   \
    X(ncclCommAbort, (ncclComm_t))                                                                                     \
    X(ncclAllReduce, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))

static struct {
#define FIELD(symbol_, parameters_) int(*symbol_) parameters_;
    CUDA_FUNCTIONS(FIELD) NCCL_FUNCTIONS(FIELD)
#undef FIELD
} api;

/* Absent without onehop. */
static int (*comm_info)(const void *, onehop_comm_info_t *, size_t);

struct options {
    int ranks, rounds, warm, live;
    double end_ms; /* no round begins after this time; 0: all do */
    const char *nccl;
    unsigned seed;
    bool served;        /* every communicator must be served */
    bool blocking_only; /* no non-blocking ones: times can be compared */
    bool by_rank_only;  /* all by ncclCommInitRank: no parents, so a round is short */
    bool times;         /* print the time of each round's communicator */
    struct resources_bounds bounds;
    long live_gpu_kib; /* what GPU memory may grow by, beyond its bound, with `live` at once; below 0: 512 for each */
};

/* What the processes share. */
struct board {
    _Atomic uint32_t arrived, generation;
    ncclUniqueId id[2];
    int rounds;                   /* that have begun; fewer than asked for when time is over */
    double made_ms[MAX_ROUNDS];   /* rank 0's time for each round's communicator, */
    double called_ms[MAX_ROUNDS]; /* and for the first calls on it, with which onehop sets it up */
};

struct rank {
    const struct options *options;
    struct board *board;
    int rank;
    unsigned shared_seed, own_seed; /* the same on all ranks; this rank's */
    CUdeviceptr send, recv;
    CUstream stream[STREAMS];
    float *data;
    uint64_t served, fallback;
    int unserved; /* communicators that were not served */
};

static char my_name[32]; /* "rank 3, " */

#define CHECK_WHO my_name
#define OK(call_)                                                                                                      \
    do {                                                                                                               \
        int result_ = (call_);                                                                                         \
        CHECK(result_ == 0, "%s gave %d", #call_, result_);                                                            \
    } while (0)

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static void open_libraries(const char *nccl)
{
    CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), "%s", dlerror());
    CHECK(dlopen(nccl, RTLD_NOW | RTLD_GLOBAL), "%s", dlerror());
#define LOOK_UP(symbol_, parameters_)                                                                                  \
    *(void **)&api.symbol_ = dlsym(RTLD_DEFAULT, #symbol_);                                                            \
    CHECK(api.symbol_, "no %s", #symbol_);
    CUDA_FUNCTIONS(LOOK_UP)
    NCCL_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    *(void **)&comm_info = dlsym(RTLD_DEFAULT, "onehopCommInfo");
}

static void barrier(struct rank *self)
{
    struct board *board = self->board;
    uint32_t generation = atomic_load(&board->generation);
    if (atomic_fetch_add(&board->arrived, 1) + 1 == (uint32_t)self->options->ranks) {
        atomic_store(&board->arrived, 0);
        atomic_store(&board->generation, generation + 1);
    }
    while (atomic_load(&board->generation) == generation) {
        usleep(20);
    }
}

/* --- what the process holds ------------------------------------------------------------------------------------- */

static long gpu_kib(void *unused)
{
    size_t free_bytes, total;
    (void)unused;
    OK(api.cuMemGetInfo_v2(&free_bytes, &total));
    return (long)((total - free_bytes) >> 10);
}

/* Rank by rank, when what is freed in the background has had time to be. */
static void compare(struct rank *self, const struct resources *from)
{
    char text[256];
    struct resources to = resources_settle(&self->options->bounds, from, gpu_kib, NULL);
    resources_describe(from, &to, text, sizeof text);
    printf("rank %d: %s\n", self->rank, text);
    fflush(stdout);
    CHECK(!resources_have_grown(&self->options->bounds, from, &to), "it has grown");
}

/* --- making, using, ending --------------------------------------------------------------------------------------- */

/* The same answer on all ranks: rank 0's. */
static bool goes_on(struct rank *self, int round)
{
    const struct options *options = self->options;
    barrier(self);
    if (self->rank == 0 && round < options->rounds && (options->end_ms == 0 || now_ms() < options->end_ms)) {
        self->board->rounds = round + 1;
    }
    barrier(self);
    return self->board->rounds > round;
}

static void share_ids(struct rank *self)
{
    barrier(self);
    if (self->rank == 0) {
        OK(api.ncclGetUniqueId(&self->board->id[0]));
        OK(api.ncclGetUniqueId(&self->board->id[1]));
    }
    barrier(self);
}

static void wait_until_ready(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    OK(api.ncclCommGetAsyncError(comm, &state));
    while (state == ncclInProgress) {
        usleep(100);
        OK(api.ncclCommGetAsyncError(comm, &state));
    }
    OK(state);
}

enum kind {
    BY_RANK,
    NON_BLOCKING,
    SCALABLE,
    SPLIT,
    SHRINK,
    KINDS
};

/* A parent for kinds that need one; NULL for the others. */
static ncclComm_t make_parent(struct rank *self, enum kind kind)
{
    ncclComm_t parent = NULL;
    if (kind >= SPLIT) {
        OK(api.ncclCommInitRank(&parent, self->options->ranks, self->board->id[1], self->rank));
    }
    return parent;
}

/* The communicator of a round; NULL on a rank that a shrink leaves out. */
static ncclComm_t make(struct rank *self, enum kind kind, ncclComm_t parent)
{
    int ranks = self->options->ranks, last = ranks - 1, result;
    ncclUniqueId *id = self->board->id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    switch (kind) {
    case NON_BLOCKING:
        config.blocking = 0;
        result = api.ncclCommInitRankConfig(&comm, ranks, id[0], self->rank, &config);
        CHECK(result == ncclSuccess || result == ncclInProgress, "ncclCommInitRankConfig gave %d", result);
        wait_until_ready(comm);
        break;
    case SCALABLE:
        OK(api.ncclCommInitRankScalable(&comm, ranks, self->rank, ranks > 1 ? 2 : 1, id, &config));
        break;
    case SPLIT: /* in the opposite order */
        OK(api.ncclCommSplit(parent, 7, ranks - self->rank, &comm, NULL));
        break;
    case SHRINK:
        if (self->rank != last) {
            OK(api.ncclCommShrink(parent, &last, 1, &comm, NULL, NCCL_SHRINK_DEFAULT));
        }
        break;
    default:
        OK(api.ncclCommInitRank(&comm, ranks, id[0], self->rank));
    }
    return comm;
}

/* Input and sum are small integers, exact in fp32 in any order. */
static void use(struct rank *self, ncclComm_t comm, int ranks, CUstream stream)
{
    int salt = rand_r(&self->shared_seed) % 1000;
    for (int i = 0; i < COUNT; i++) {
        self->data[i] = (float)(salt + i % 97);
    }
    OK(api.cuMemcpyHtoD_v2(self->send, self->data, COUNT * sizeof *self->data));
    for (int c = 0; c < CALLS; c++) {
        ncclResult_t result = api.ncclAllReduce((void *)(uintptr_t)self->send, (void *)(uintptr_t)self->recv, COUNT,
                                                ncclFloat, ncclSum, comm, (cudaStream_t)stream);
        CHECK(result == ncclSuccess || result == ncclInProgress, "ncclAllReduce gave %d", result);
        wait_until_ready(comm); /* NCCL launches calls of a non-blocking communicator in the background */
    }
    OK(api.cuStreamSynchronize(stream));
    OK(api.cuMemcpyDtoH_v2(self->data, self->recv, COUNT * sizeof *self->data));
    for (int i = 0; i < COUNT; i++) {
        float expected = (float)(ranks * (salt + i % 97));
        CHECK(self->data[i] == expected, "element %d is %g, expected %g", i, self->data[i], expected);
    }
}

/* By its calls: another rank may have aborted it since. `late`: it may not be served yet, or never have been. */
static void note_service(struct rank *self, ncclComm_t comm, bool late)
{
    onehop_comm_info_t info;
    uint64_t served = 0;
    if (!comm_info || comm_info(comm, &info, sizeof info) != 0) {
        self->unserved++;
        return;
    }
    for (int a = 0; a < ONEHOP_ALGORITHM_COUNT; a++) {
        served += info.calls_by_algorithm[a];
    }
    self->served += served;
    self->fallback += info.fallback_calls;
    self->unserved += served == 0 && !late;
}

static void end(struct rank *self, ncclComm_t comm)
{
    int how = rand_r(&self->own_seed) % 4;
    if (comm == NULL) {
        return;
    }
    if (how == 0) {
        OK(api.ncclCommAbort(comm)); /* all its calls are done */
        return;
    }
    if (how == 1) {
        ncclResult_t result = api.ncclCommFinalize(comm);
        CHECK(result == ncclSuccess || result == ncclInProgress, "ncclCommFinalize gave %d", result);
        wait_until_ready(comm);
    }
    OK(api.ncclCommDestroy(comm));
}

static enum kind kind_of(const struct options *options, int round)
{
    enum kind kind = options->by_rank_only ? BY_RANK : round % KINDS;
    bool fits = (kind != SHRINK || options->ranks > 2) && (kind != NON_BLOCKING || !options->blocking_only);
    return fits ? kind : BY_RANK;
}

static void run_round(struct rank *self, int round)
{
    enum kind kind = kind_of(self->options, round);
    int ranks = self->options->ranks - (kind == SHRINK);
    share_ids(self);
    ncclComm_t parent = make_parent(self, kind), comm;
    if (parent) {
        barrier(self);
    }
    double start = now_ms();
    comm = make(self, kind, parent);
    if (self->rank == 0) {
        self->board->made_ms[round] = now_ms() - start;
    }
    if (comm) {
        start = now_ms();
        use(self, comm, ranks, self->stream[round % STREAMS]);
        if (self->rank == 0) {
            self->board->called_ms[round] = now_ms() - start;
        }
        note_service(self, comm, kind == NON_BLOCKING);
    } else {
        rand_r(&self->shared_seed); /* as in use() */
    }
    bool parent_first = rand_r(&self->own_seed) % 2 == 0;
    end(self, parent_first ? parent : comm);
    end(self, parent_first ? comm : parent);
}

/* One call on each communicator, on several streams, without waiting. */
static void call_all(struct rank *self, const ncclComm_t *comms, int live)
{
    for (int i = 0; i < live; i++) {
        OK(api.ncclAllReduce((void *)(uintptr_t)self->send, (void *)(uintptr_t)(self->recv + (size_t)i * COUNT * 4),
                             COUNT, ncclFloat, ncclSum, comms[i], (cudaStream_t)self->stream[i % STREAMS]));
    }
    for (int s = 0; s < STREAMS; s++) {
        OK(api.cuStreamSynchronize(self->stream[s]));
    }
}

/* How far it is, for whoever finds it at a stand. */
static void tell_live(const struct rank *self, const char *what, double start)
{
    if (self->rank == 0) {
        printf("%d communicators %s after %.1f s\n", self->options->live, what, (now_ms() - start) / 1e3);
        fflush(stdout);
    }
}

/*
 * As many at once as asked; all are used, twice one by one and once together, and ended in a random order, each rank
 * its own. Stock NCCL (2.28.3, 2 x H200) did not come to an end so, for which there may be two reasons, and is spared
 * both: ranks that connect (in the first call of a communicator that it serves) beside kernels of others; and ends in
 * another order on each rank, since a thread of its ends when all ranks that are connected to it have (src/proxy.cc).
 */
static void run_live(struct rank *self)
{
    ncclComm_t comms[MAX_LIVE];
    int live = self->options->live;
    unsigned *order = comm_info ? &self->own_seed : &self->shared_seed;
    double start = now_ms();
    for (int i = 0; i < live; i++) {
        share_ids(self);
        OK(api.ncclCommInitRank(&comms[i], self->options->ranks, self->board->id[0], self->rank));
        use(self, comms[i], self->options->ranks, self->stream[i % STREAMS]);
    }
    tell_live(self, "made", start);
    call_all(self, comms, live);
    for (int i = 0; i < live; i++) {
        use(self, comms[i], self->options->ranks, self->stream[i % STREAMS]);
        note_service(self, comms[i], false);
    }
    tell_live(self, "used", start);
    for (int left = live; left > 0; left--) {
        int at = rand_r(order) % left;
        end(self, comms[at]);
        comms[at] = comms[left - 1];
    }
    tell_live(self, "ended", start);
}

/* --- processes --------------------------------------------------------------------------------------------------- */

static void open_rank(struct rank *self)
{
    CUcontext context;
    open_libraries(self->options->nccl);
    OK(api.cuInit(0));
    OK(api.cuDevicePrimaryCtxRetain(&context, self->rank));
    OK(api.cuCtxSetCurrent(context));
    OK(api.cuMemAlloc_v2(&self->send, COUNT * sizeof *self->data));
    OK(api.cuMemAlloc_v2(&self->recv, MAX_LIVE * COUNT * sizeof *self->data));
    for (int s = 0; s < STREAMS; s++) {
        OK(api.cuStreamCreate(&self->stream[s], CU_STREAM_NON_BLOCKING));
    }
    self->data = calloc(COUNT, sizeof *self->data);
    CHECK(self->data, "no memory");
}

static int run_rank(const struct options *options, struct board *board, int rank)
{
    struct rank self = {.options = options,
                        .board = board,
                        .rank = rank,
                        .shared_seed = options->seed,
                        .own_seed = options->seed * 31 + (unsigned)rank};
    struct resources before = {0};
    snprintf(my_name, sizeof my_name, "rank %d, ", rank);
    open_rank(&self);
    for (int round = 0; goes_on(&self, round); round++) {
        run_round(&self, round);
        if (round + 1 == options->warm) {
            barrier(&self);
            usleep(200000); /* what was freed last is, by now */
            before = resources_measure(gpu_kib, NULL);
            barrier(&self);
        }
    }
    barrier(&self);
    CHECK(board->rounds == options->rounds || board->rounds > options->warm, "only %d rounds, of which %d warm up",
          board->rounds, options->warm);
    if (options->warm < board->rounds) {
        compare(&self, &before);
    }
    if (options->live > 0) {
        before = resources_measure(gpu_kib, NULL);
        run_live(&self);
        barrier(&self);
        struct options looser = *options; /* tables and pools that grew for so many at once stay */
        looser.bounds.host_kib += 64L * options->live;
        looser.bounds.gpu_kib += options->live_gpu_kib >= 0 ? options->live_gpu_kib : 512L * options->live;
        self.options = &looser;
        compare(&self, &before);
    }
    printf("rank %d: calls served %llu, fallbacks %llu, communicators not served %d\n", rank,
           (unsigned long long)self.served, (unsigned long long)self.fallback, self.unserved);
    fflush(stdout);
    CHECK(!options->served || (self.unserved == 0 && self.served > 0), "not all communicators were served");
    barrier(&self);
    return 0;
}

static int compare_doubles(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void print_times(const struct options *options, const struct board *board)
{
    static const char *const names[KINDS] = {"rank", "non-blocking", "scalable", "split", "shrink"};
    for (int kind = 0; kind < KINDS; kind++) {
        double *times = calloc((size_t)board->rounds + 1, sizeof *times);
        int count = 0;
        for (int round = 0; times && round < board->rounds; round++) {
            if (round > 0 && kind_of(options, round) == (enum kind)kind) {
                times[count++] = board->made_ms[round];
            }
        }
        if (count > 0) {
            qsort(times, (size_t)count, sizeof *times, compare_doubles);
            printf("made by %-12s %6d times, median %.2f ms, longest %.2f ms\n", names[kind], count, times[count / 2],
                   times[count - 1]);
        }
        free(times);
    }
    printf("rounds made: %d\nfirst communicator %.2f ms\n", board->rounds, board->made_ms[0]);
    for (int round = 1; options->times && round < board->rounds; round++) {
        printf("later communicator %.2f ms\n", board->made_ms[round]);
        printf("called communicator %.2f ms\n", board->called_ms[round]);
    }
}

static const char usage[] =
    "usage: stress_comms [--ranks N] [--rounds N] [--warm N] [--live N] [--nccl PATH] [--seed N]\n"
    "                    [--served] [--blocking] [--by-rank] [--times] [--seconds N]\n"
    "                    [--host-kib N] [--gpu-kib N] [--live-gpu-kib N] [--handles N]\n";

static void parse(int argc, char **argv, struct options *options)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        bool flag = true;
        if (strcmp(name, "--served") == 0) {
            options->served = true;
        } else if (strcmp(name, "--blocking") == 0) {
            options->blocking_only = true;
        } else if (strcmp(name, "--by-rank") == 0) {
            options->by_rank_only = true;
        } else if (strcmp(name, "--times") == 0) {
            options->times = true;
        } else {
            flag = false;
        }
        if (flag) {
            continue;
        }
        i++;
        if (strcmp(name, "--ranks") == 0) {
            options->ranks = atoi(value);
        } else if (strcmp(name, "--rounds") == 0) {
            options->rounds = atoi(value);
        } else if (strcmp(name, "--seconds") == 0) {
            options->end_ms = now_ms() + atof(value) * 1e3;
        } else if (strcmp(name, "--warm") == 0) {
            options->warm = atoi(value);
        } else if (strcmp(name, "--live") == 0) {
            options->live = atoi(value);
        } else if (strcmp(name, "--nccl") == 0) {
            options->nccl = value;
        } else if (strcmp(name, "--seed") == 0) {
            options->seed = (unsigned)atoi(value);
        } else if (strcmp(name, "--host-kib") == 0) {
            options->bounds.host_kib = atol(value);
        } else if (strcmp(name, "--gpu-kib") == 0) {
            options->bounds.gpu_kib = atol(value);
        } else if (strcmp(name, "--live-gpu-kib") == 0) { /* that as many at once may leave beyond --gpu-kib */
            options->live_gpu_kib = atol(value);
        } else if (strcmp(name, "--handles") == 0) {
            options->bounds.handles = atol(value);
        } else {
            fputs(usage, stderr);
            exit(2);
        }
    }
    if (options->ranks < 2 || options->ranks > MAX_RANKS || options->rounds < 1 || options->rounds > MAX_ROUNDS ||
        options->live < 0 || options->live > MAX_LIVE) {
        fputs(usage, stderr);
        exit(2);
    }
    options->warm = options->warm > 0 ? options->warm : options->rounds / 10 > 20 ? options->rounds / 10 : 20;
}

/* Waits for all; one that fails ends the others, which would wait for it. */
static bool watch(pid_t *pids, int count)
{
    bool good = true;
    for (int left = count; left > 0; left--) {
        int status;
        pid_t pid = wait(&status);
        for (int i = 0; i < count; i++) {
            pids[i] = pids[i] == pid ? 0 : pids[i];
        }
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            good = false;
            for (int i = 0; i < count; i++) {
                if (pids[i] > 0) {
                    kill(pids[i], SIGKILL);
                }
            }
        }
    }
    return good;
}

int main(int argc, char **argv)
{
    struct options options = {.ranks = 2,
                              .rounds = 50,
                              .nccl = "libnccl.so.2",
                              .seed = (unsigned)time(NULL),
                              .bounds = {.host_kib = 1024, .gpu_kib = 2048},
                              .live_gpu_kib = -1};
    pid_t pids[MAX_RANKS];
    parse(argc, argv, &options);
    printf("%d ranks, %d rounds, %d at once, seed %u\n", options.ranks, options.rounds, options.live, options.seed);
    fflush(stdout);
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED, "no shared memory");
    for (int r = 0; r < options.ranks; r++) {
        pids[r] = fork();
        CHECK(pids[r] >= 0, "fork failed");
        if (pids[r] == 0) {
            exit(run_rank(&options, board, r));
        }
    }
    bool good = watch(pids, options.ranks);
    if (good) {
        print_times(&options, board);
    }
    printf("%s\n", good ? "ok" : "FAIL");
    return good ? 0 : 1;
}
