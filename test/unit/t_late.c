/* SPDX-License-Identifier: MIT */
/*
 * t_late.c - communicators that are set up while their calls go on: every call goes the same way on all ranks
 *
 * Ranks are threads, each on a simulated GPU, with a made-up handle for NCCL's communicator. Each asks oh_call_plan for
 * each of its calls, with random pauses, until it is served; the number of the first call served must be the same.
 * Three ways in: communicators first met at a call, with no barrier before; communicators that NCCL is still creating
 * when the first calls are tried, and a watchdog thread that learns of it at the same time; and calls that NCCL rejects
 * on one rank only.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm.h"
#include "test/tap.h"
#include "test/unit/topologies.h"
#include "util/clock.h"

#define RANKS 3
#define MORE 50 /* calls after the first that is served */
#define PATIENCE_NS (UINT64_C(20) * 1000 * 1000 * 1000)
#define ROUNDS 15

struct rank {
    struct oh_key key;
    int rank;
    unsigned seed;
    uint64_t deadline_ns;
    bool unborn;  /* NCCL creates it while calls are tried */
    bool rejects; /* some calls are rejected, on this rank */
    int ends_at;  /* gives up after that many calls; 0: does not */
    char handle[64];
    ncclComm_t nccl;
    atomic_int *entered; /* ranks that have begun to create it */
    atomic_bool created; /* by NCCL, of which that is a barrier */
    atomic_bool over;
    int first;    /* the first call that was served; 0: none */
    int relapses; /* calls after it that were not */
    int before;   /* calls tried before NCCL was ready, and rejected by it */
};

static void pause_at_random(struct rank *self)
{
    if (rand_r(&self->seed) % 3 == 0) {
        usleep((useconds_t)(rand_r(&self->seed) % 300));
    }
}

static struct oh_comm *enter(struct rank *self)
{
    struct oh_birth birth;
    self->nccl = (ncclComm_t)(void *)self->handle;
    oh_birth_begin(&birth, &self->key, false, &self->nccl);
    birth.rank = self->rank;
    birth.nranks = RANKS;
    birth.cuda_device = self->rank;
    atomic_fetch_add(self->entered, 1);
    if (self->unborn) {
        oh_births_await(&birth, 1);
    } else {
        birth.nccl = self->nccl;
        birth.unbarred = true;
        oh_births_late(&birth, 1);
    }
    return oh_comm_find(self->nccl);
}

/* One attempt at a call, as the hook of ncclAllReduce does it. True: NCCL accepted, or onehop served. */
static bool call(struct rank *self, struct oh_comm *comm, bool *served_p)
{
    struct oh_call what = {.comm = comm, .count = 1000, .type = ncclFloat32};
    bool unsettled = !oh_comm_is_settled(comm), uncounted = false;
    if (unsettled && oh_comm_is_awaited(comm)) {
        if (atomic_load(&self->created)) {
            oh_comm_created(comm, self->rank, RANKS, self->rank);
        }
        uncounted = oh_comm_pass_unborn(comm);
    }
    *served_p = !uncounted && oh_call_plan(&what, ncclSum);
    if (*served_p) {
        return true;
    }
    pause_at_random(self); /* NCCL may become ready now */
    bool accepted = !self->unborn || atomic_load(&self->created);
    accepted = accepted && !(self->rejects && rand_r(&self->seed) % 8 == 0);
    if (unsettled) {
        oh_comm_note_result(comm, !uncounted, accepted ? ncclSuccess : ncclInvalidArgument);
    }
    return accepted;
}

/* As an application's thread that polls ncclCommGetAsyncError. */
static void *watch(void *user)
{
    struct rank *self = user;
    struct oh_comm *comm = oh_comm_find(self->nccl);
    unsigned seed = self->seed + 7;
    usleep((useconds_t)(rand_r(&seed) % 3000));
    while (atomic_load(self->entered) < RANKS) {
        usleep(100);
    }
    atomic_store(&self->created, true);
    while (!atomic_load(&self->over)) {
        oh_comm_created(comm, self->rank, RANKS, self->rank);
        usleep((useconds_t)(rand_r(&seed) % 200));
    }
    return NULL;
}

static bool is_done(const struct rank *self, int call)
{
    return self->first != 0 ? call == self->first + MORE : oh_now_ns() > self->deadline_ns;
}

static void *run_rank(void *user)
{
    struct rank *self = user;
    pthread_t watchdog;
    usleep((useconds_t)(rand_r(&self->seed) % 4000));
    struct oh_comm *comm = enter(self);
    if (self->unborn) {
        pthread_create(&watchdog, NULL, watch, self);
    }
    for (int c = 1; (self->ends_at == 0 || c <= self->ends_at) && !is_done(self, c); c++) {
        bool served;
        while (!call(self, comm, &served)) {
            self->before++;
        }
        self->first = served && self->first == 0 ? c : self->first;
        self->relapses += !served && self->first != 0;
        pause_at_random(self);
    }
    atomic_store(&self->over, true);
    if (self->unborn) {
        pthread_join(watchdog, NULL);
    }
    oh_comm_retire(comm);
    return NULL;
}

static void run_round(struct rank *ranks, unsigned *seed, struct rank how)
{
    pthread_t thread[RANKS];
    struct oh_key key = oh_key_random();
    atomic_int entered = 0;
    for (int r = 0; r < RANKS; r++) {
        memset(&ranks[r], 0, sizeof ranks[r]);
        ranks[r].key = key;
        ranks[r].rank = r;
        ranks[r].entered = &entered;
        ranks[r].seed = (unsigned)rand_r(seed);
        ranks[r].deadline_ns = oh_now_ns() + PATIENCE_NS;
        ranks[r].unborn = how.unborn;
        ranks[r].rejects = how.rejects && r == 1;
        ranks[r].ends_at = how.ends_at;
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_create(&thread[r], NULL, run_rank, &ranks[r]);
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(thread[r], NULL);
    }
}

/* Rounds in which the switch fell after the first call; -1: it was not the same call on all ranks. */
static int run_rounds(unsigned *seed, struct rank how, int *before_p)
{
    int late = 0, splits = 0;
    *before_p = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct rank ranks[RANKS];
        run_round(ranks, seed, how);
        for (int r = 0; r < RANKS; r++) {
            splits += ranks[r].first != ranks[0].first || ranks[r].relapses > 0;
            *before_p += ranks[r].before;
        }
        late += ranks[0].first > 1;
    }
    return splits ? -1 : late;
}

int main(int argc, char **argv)
{
    unsigned seed = argc > 1 ? (unsigned)atoi(argv[1]) : (unsigned)time(NULL);
    int before, late;
    char meetings[] = "/dev/shm/onehop-test.XXXXXX";
    tap_note("seed %u", seed);
    setenv("ONEHOP_DEBUG", "WARN", 1);
    use_topologies();
    if (!mkdtemp(meetings)) {
        tap_skip_all("no shared memory");
    }
    setenv("ONEHOP_SHM_DIR", meetings, 1);

    late = run_rounds(&seed, (struct rank){.ends_at = 0}, &before);
    tap_ok(late > ROUNDS / 2, "first met at a call: the same way on all ranks, %d of %d switched in the middle", late,
           ROUNDS);
    late = run_rounds(&seed, (struct rank){.unborn = true}, &before);
    tap_ok(late > ROUNDS / 2 && before > 0, "NCCL still at work: %d of %d in the middle, %d calls came too early", late,
           ROUNDS, before);
    late = run_rounds(&seed, (struct rank){.rejects = true}, &before);
    tap_ok(late > ROUNDS / 2 && before > 0, "some calls rejected on one rank: %d of %d in the middle, %d rejected",
           late, ROUNDS, before);
    late = run_rounds(&seed, (struct rank){.ends_at = 3}, &before);
    tap_ok(late == 0, "ended long before the ranks have agreed");

    /* A process that ends while NCCL is still creating a communicator. */
    atomic_int entered = 0;
    struct rank alone = {.key = oh_key_random(), .unborn = true, .entered = &entered};
    enter(&alone);
    tap_ok(rmdir(meetings) != 0, "a meeting is open");
    oh_comms_abandon();
    for (int i = 0; i < 100 && rmdir(meetings) != 0; i++) { /* what goes on in the background ends soon */
        usleep(20000);
    }
    tap_ok(access(meetings, F_OK) != 0, "nothing is left in %s", meetings);
    return tap_done();
}
