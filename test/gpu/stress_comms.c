/* SPDX-License-Identifier: MIT */
/*
 * stress_comms.c - communicators made, used and ended many times, or many at once, leave nothing behind
 *
 * One process for each rank and GPU. Each round makes a communicator in another way (by id, non-blocking, from several
 * ids, by split, by shrink), makes some allreduce calls and checks them, and ends it, in an order of its own on each
 * rank. What the process holds is measured when the first rounds are over and at the end: host memory, GPU memory,
 * descriptors, threads, mappings, files of onehop in shared memory. More at the end fails.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "test/common/batch.h"
#include "test/common/options.h"
#include "test/common/resources.h"

#define MAX_LIVE 64
#define MAX_ROUNDS 100000
#define WATCH_SECONDS (24 * 3600) /* scripts have limits of their own */
#define COUNT 1000
#define CALLS 3

/* How the communicator of a round is made. */
enum kind {
    BY_RANK,
    NON_BLOCKING,
    SCALABLE,
    SPLIT,
    SHRINK,
    KINDS
};
static const char *const kind_names[KINDS] = {"rank", "non-blocking", "scalable", "split", "shrink"};

static struct {
    int ranks, rounds, warm, live;
    int seconds; /* no round begins after this time */
    uint64_t seed;
    bool served;       /* every communicator must be served */
    bool by_rank_only; /* all by ncclCommInitRank: no parents, so a round is short */
    bool times;        /* print how long each round's communicator takes */
    int host_kib, gpu_kib, handles;
    int live_gpu_kib; /* what GPU memory may grow by, beyond its bound, with `live` at once; below 0: 512 for each */
} options = {.ranks = 2, .rounds = 50, .seconds = WATCH_SECONDS, .host_kib = 1024, .gpu_kib = 2048, .live_gpu_kib = -1};

struct rank {
    struct cf_worker *worker;
    double end;                   /* when no round begins any more */
    struct cf_source common, own; /* random numbers: the same on all ranks; this rank's */
    int unserved;                 /* communicators that were not served */
};

/* --- making, using, ending --------------------------------------------------------------------------------------- */

static enum kind kind_of(int round)
{
    enum kind kind = options.by_rank_only ? BY_RANK : (enum kind)(round % KINDS);
    return kind == SHRINK && options.ranks < 3 ? BY_RANK : kind;
}

/* The communicator of a round, and its parent, if it has one. */
static void make(struct rank *self, enum kind kind, struct cf_set *parent_p, struct cf_set *set_p)
{
    static const enum cf_maker makers[KINDS] = {
        [NON_BLOCKING] = CF_INIT_NONBLOCKING, [SCALABLE] = CF_INIT_SCALABLE}; /* others: CF_INIT_RANK */
    int same[CF_MAX_RANKS] = {0}, descending[CF_MAX_RANKS];
    bool last[CF_MAX_RANKS] = {false};
    last[options.ranks - 1] = true;
    for (int r = 0; r < options.ranks; r++) {
        descending[r] = -r;
    }
    *parent_p = (struct cf_set){.whole = false};
    cf_set_create(self->worker, makers[kind], kind < SPLIT ? set_p : parent_p);
    if (kind >= SPLIT) {
        cf_barrier(self->worker);
    }
    if (kind == SPLIT) {
        cf_set_split(self->worker, parent_p, same, descending, 0, set_p);
    } else if (kind == SHRINK && !cf_set_shrink(self->worker, parent_p, last, 0, set_p)) {
        cf_die(self->worker, "no function ncclCommShrink");
    }
}

/* Some calls, exact in any order. Returns how many milliseconds they took. */
static double use(struct rank *self, const struct cf_set *set, int stream)
{
    struct cf_batch *batch = cf_batch_new(self->worker, set);
    for (int c = 0; c < CALLS; c++) {
        cf_batch_add(batch, &(struct cf_spec){.type = ncclFloat32, .family = CF_EXACT, .count = COUNT});
    }
    cf_batch_load(batch, stream);
    cf_sync(self->worker);
    double start = cf_now();
    cf_batch_issue(batch, CF_SINGLE, stream);
    cf_sync(self->worker);
    double took = cf_now() - start;
    cf_batch_finish(batch, stream);
    return took * 1e3;
}

/* NCCL's kernels take memory at their first call: not when onehop leaves NCCL the first one. */
static void use_nccl(struct cf_worker *worker, const struct cf_set *set)
{
    CUdeviceptr data;
    CF_CU(worker, MemAlloc(&data, COUNT * sizeof(float)));
    CF_NCCL(worker, Reduce((void *)data, (void *)data, COUNT, ncclFloat32, ncclSum, 0, set->comm[0],
                           worker->member[0].stream[0]));
    cf_sync(worker);
    CF_CU(worker, MemFree(data));
}

/* By its calls: another rank may have aborted it since. `late`: it may not be served yet, or never have been. */
static void note_service(struct rank *self, const struct cf_set *set, bool late)
{
    uint64_t served, fallback;
    cf_set_served(self->worker, set, &served, &fallback);
    self->unserved += served == 0 && !late;
}

static void end(struct rank *self, struct cf_set *set)
{
    uint64_t how = cf_draw(&self->own, 4);
    if (set->comm[0] != NULL && how == 0) {
        CF_NCCL(self->worker, CommAbort(set->comm[0])); /* all its calls are done */
        set->comm[0] = NULL;
    } else if (how == 1) {
        cf_set_finalize(self->worker, set);
    }
    cf_set_destroy(self->worker, set);
}

/* The same answer on all ranks: rank 0's. */
static bool goes_on(struct rank *self, int round)
{
    return cf_share(self->worker, round < options.rounds && cf_now() < self->end) != 0;
}

/* Of rank 0: the making of a round's communicator, and the first calls on it, with which onehop sets it up. */
static void print_times(int round, double made_ms, double called_ms)
{
    const char *kind = kind_names[kind_of(round)];
    printf("%s communicator by %s %.2f ms\n", round == 0 ? "first" : "later", kind, made_ms);
    if (round > 0) {
        printf("called communicator by %s %.2f ms\n", kind, called_ms);
    }
    fflush(stdout);
}

static void run_round(struct rank *self, int round)
{
    struct cf_set parent, set;
    enum kind kind = kind_of(round);
    make(self, kind, &parent, &set);
    double called_ms = use(self, &set, round % CF_STREAMS);
    if (round == 0) {
        use_nccl(self->worker, &set);
    }
    if (self->worker->index == 0 && options.times) {
        print_times(round, set.made_ms, called_ms);
    }
    if (set.nranks[0] > 0) {
        note_service(self, &set, kind == NON_BLOCKING);
    }
    bool parent_first = cf_draw(&self->own, 2) == 0;
    end(self, parent_first ? &parent : &set);
    end(self, parent_first ? &set : &parent);
}

/* How far it is, for whoever finds it at a stand. */
static void tell_live(const struct rank *self, const char *what, double start)
{
    if (self->worker->index == 0) {
        printf("%d communicators %s after %.1f s\n", options.live, what, cf_now() - start);
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
    struct cf_worker *worker = self->worker;
    struct cf_set *set = cf_need(worker, calloc(MAX_LIVE, sizeof *set));
    struct cf_batch *batch[MAX_LIVE];
    struct cf_source *order = worker->onehop ? &self->own : &self->common;
    double start = cf_now();
    for (int i = 0; i < options.live; i++) {
        cf_set_create(worker, CF_INIT_RANK, &set[i]);
        use(self, &set[i], i % CF_STREAMS);
    }
    tell_live(self, "made", start);
    for (int i = 0; i < options.live; i++) {
        batch[i] = cf_batch_new(worker, &set[i]);
        cf_batch_add(batch[i], &(struct cf_spec){.type = ncclFloat32, .family = CF_EXACT, .count = COUNT});
        cf_batch_load(batch[i], i % CF_STREAMS);
    }
    for (int i = 0; i < options.live; i++) {
        cf_batch_issue(batch[i], CF_SINGLE, i % CF_STREAMS);
    }
    for (int i = 0; i < options.live; i++) {
        cf_batch_finish(batch[i], i % CF_STREAMS);
        use(self, &set[i], i % CF_STREAMS);
        note_service(self, &set[i], false);
    }
    tell_live(self, "used", start);
    for (int left = options.live; left > 0; left--) {
        uint64_t at = cf_draw(order, (uint64_t)left);
        end(self, &set[at]);
        set[at] = set[left - 1];
    }
    free(set);
    tell_live(self, "ended", start);
}

/* --- what the process holds --------------------------------------------------------------------------------------- */

/* Rank by rank, when what is freed in the background has had time to be. */
static void compare(struct rank *self, const struct resources *from, const struct resources_bounds *bounds)
{
    char text[CF_TEXT];
    cf_barrier(self->worker);
    const struct resources to = resources_compare(self->worker, bounds, from);
    resources_describe(from, &to, text, sizeof text);
    printf("rank %d: %s\n", self->worker->index, text);
    fflush(stdout);
}

static struct resources measure(struct rank *self)
{
    cf_barrier(self->worker);
    usleep(200000); /* what was freed last is, by now */
    struct resources now = resources_measure(self->worker);
    cf_barrier(self->worker);
    return now;
}

static void run_rank(struct cf_worker *worker)
{
    struct rank self = {.worker = worker, .end = cf_now() + options.seconds};
    struct resources before = {0};
    int rounds = 0;
    struct resources_bounds bounds = {options.host_kib, options.gpu_kib, options.handles};
    self.common = cf_common_source(worker, 0);
    self.own = cf_own_source(worker, 0);
    while (goes_on(&self, rounds)) {
        run_round(&self, rounds++);
        if (rounds == options.warm) {
            before = measure(&self);
        }
    }
    if (worker->index == 0) {
        printf("rounds made: %d\n", rounds);
    }
    cf_check(worker, rounds == options.rounds || rounds > options.warm, "only %d rounds, of which %d warm up", rounds,
             options.warm);
    if (options.warm < rounds) {
        compare(&self, &before, &bounds);
    }
    if (options.live > 0) {
        before = measure(&self);
        run_live(&self);
        bounds.host_kib += 64L * options.live; /* tables and pools that grew for so many at once stay */
        bounds.gpu_kib += options.live_gpu_kib >= 0 ? options.live_gpu_kib : 512L * options.live;
        compare(&self, &before, &bounds);
    }
    printf("rank %d: calls served %llu, fallbacks %llu, communicators not served %d\n", worker->index,
           (unsigned long long)worker->result->served, (unsigned long long)worker->result->fallbacks, self.unserved);
    fflush(stdout);
    cf_check(worker, !options.served || (self.unserved == 0 && worker->result->served > 0),
             "not all communicators were served");
    cf_barrier(worker);
}

/* --- the launcher ------------------------------------------------------------------------------------------------- */

static void parse(int argc, char **argv)
{
    static const char usage[] = "usage: stress_comms [--ranks N] [--rounds N] [--warm N] [--seconds N] [--live N]\n"
                                "  [--seed N] [--served] [--by-rank] [--times]\n"
                                "  [--host-kib N] [--gpu-kib N] [--live-gpu-kib N] [--handles N]\n";
    const struct cf_option table[] = {
        CF_INT("ranks", &options.ranks, 2, CF_MAX_RANKS),
        CF_INT("rounds", &options.rounds, 1, MAX_ROUNDS),
        CF_INT("warm", &options.warm, 1, MAX_ROUNDS),
        CF_INT("seconds", &options.seconds, 1, WATCH_SECONDS),
        CF_INT("live", &options.live, 0, MAX_LIVE),
        CF_NUMBER("seed", &options.seed),
        CF_FLAG("served", &options.served),
        CF_FLAG("by-rank", &options.by_rank_only),
        CF_FLAG("times", &options.times),
        CF_INT("host-kib", &options.host_kib, 0, INT32_MAX),
        CF_INT("gpu-kib", &options.gpu_kib, 0, INT32_MAX),
        CF_INT("live-gpu-kib", &options.live_gpu_kib, 0, INT32_MAX),
        CF_INT("handles", &options.handles, 0, INT32_MAX),
        CF_NO_MORE,
    };
    options.seed = (uint64_t)time(NULL);
    if (cf_options_read(argc, argv, usage, table) < argc) {
        cf_options_refuse(usage);
    }
    if (options.warm == 0) {
        options.warm = options.rounds / 10 > 20 ? options.rounds / 10 : 20;
    }
}

int main(int argc, char **argv)
{
    struct cf_job job = {.argv = argv};
    struct cf_board *board;
    int process;
    parse(argc, argv);
    if (cf_job_join(sizeof *board, &board, &process)) {
        return cf_job_run(board, process, run_rank, NULL);
    }
    printf("%d ranks, %d rounds, %d at once, seed %llu\n", options.ranks, options.rounds, options.live,
           (unsigned long long)options.seed);
    cf_job_open(&job, argv, sizeof *board);
    job.board->layout = (struct cf_layout){.nranks = options.ranks, .local = 1};
    job.board->seed = options.seed;
    job.board->stops = true;
    cf_job_start(&job);
    bool good = cf_job_wait(&job, WATCH_SECONDS);
    cf_job_close(&job);
    printf("%s\n", good ? "ok" : "FAIL");
    return good ? 0 : 1;
}
