/* SPDX-License-Identifier: MIT */
/*
 * t_cutover.c - whatever the ranks do and when, all of them switch at the same call
 *
 * Ranks are threads on one segment. Each makes its calls with random pauses; some call comes to nothing and is made
 * again; at a random moment one or several of them, or a thread beside them, close the switch. Every call must have
 * gone the same way on all ranks. That each part of the switch is needed: test/model/cutover.pml.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/shared/segment.h"
#include "test/unit/unit.h"

#define ROUNDS 4000
#define CALLS 24

struct rank {
    struct oh_shared *shared;
    pthread_barrier_t *start;
    uint32_t rank, nranks;
    unsigned seed;
    int closes_at;      /* before this call; none: CALLS + 1 */
    bool outside;       /* makes no calls, closes only */
    bool served[CALLS]; /* by call */
    uint64_t first;     /* as this rank computed it; 0: it has not */
    unsigned retracted;
};

/* A pause of no time, a time slice, or some microseconds. */
static void pause_at_random(unsigned *seed)
{
    int choice = rand_r(seed) % 8;
    if (choice == 0) {
        usleep((useconds_t)(rand_r(seed) % 50));
    } else if (choice < 4) {
        sched_yield();
    }
}

/* As count_call in attach.c does it. */
static bool goes_new_way(struct rank *self, uint64_t number)
{
    if (self->first == 0) {
        if (oh_cutover_announce(&self->shared->cutover, self->rank, number)) {
            return false;
        }
        self->first = oh_cutover_close(&self->shared->cutover, self->nranks);
    }
    return number >= self->first;
}

static void *make_calls(void *user)
{
    struct rank *self = user;
    pthread_barrier_wait(self->start);
    for (int call = 1; call <= CALLS; call++) {
        pause_at_random(&self->seed);
        if (call == self->closes_at && self->first == 0) {
            self->first = oh_cutover_close(&self->shared->cutover, self->nranks);
        }
        if (self->outside) {
            continue;
        }
        bool new_way = goes_new_way(self, (uint64_t)call);
        if (!new_way && rand_r(&self->seed) % 16 == 0) {
            pause_at_random(&self->seed);
            oh_cutover_retract(&self->shared->cutover, self->rank, (uint64_t)call);
            self->retracted++;
            new_way = goes_new_way(self, (uint64_t)call);
        }
        self->served[call - 1] = new_way;
    }
    return NULL;
}

/* The number of calls that went different ways on different ranks. */
static int count_splits(const struct rank *ranks, uint32_t n)
{
    int splits = 0;
    for (int call = 0; call < CALLS; call++) {
        bool differs = false;
        for (uint32_t r = 1; r < n; r++) {
            differs |= ranks[r].served[call] != ranks[0].served[call];
        }
        splits += differs;
    }
    return splits;
}

struct totals {
    int rounds, split, early, late, retracted;
};

static void run_round(unsigned *seed, struct totals *totals)
{
    uint32_t n = 2 + (uint32_t)rand_r(seed) % 4, threads = n + 1;
    struct rank ranks[OH_MAX_RANKS + 1] = {0};
    static struct oh_shared shared;
    pthread_barrier_t start;
    memset(&shared, 0, sizeof shared);
    pthread_barrier_init(&start, NULL, threads);
    for (uint32_t r = 0; r < threads; r++) {
        bool closes = r == n || rand_r(seed) % 4 == 0;
        ranks[r] = (struct rank){.shared = &shared,
                                 .start = &start,
                                 .rank = r,
                                 .nranks = n,
                                 .seed = (unsigned)rand_r(seed),
                                 .outside = r == n,
                                 .closes_at = closes ? 1 + rand_r(seed) % CALLS : CALLS + 1};
    }
    unit_run_threads(make_calls, ranks, sizeof *ranks, threads);
    for (uint32_t r = 0; r < threads; r++) {
        totals->retracted += (int)ranks[r].retracted;
    }
    pthread_barrier_destroy(&start);
    totals->rounds++;
    totals->split += count_splits(ranks, n) > 0;
    totals->early += ranks[0].served[0];
    totals->late += !ranks[0].served[CALLS - 1];
}

static void test_random_rounds(unsigned seed)
{
    struct totals totals = {0};
    while (totals.rounds < ROUNDS) {
        run_round(&seed, &totals);
    }
    tap_ok(totals.split == 0, "%d rounds: every call went the same way on all ranks (%d splits)", totals.rounds,
           totals.split);
    tap_ok(totals.early < ROUNDS / 2 && totals.late < ROUNDS / 2 && totals.retracted > ROUNDS,
           "in the middle mostly: %d switched at the first call, %d not at all; %d calls came to nothing", totals.early,
           totals.late, totals.retracted);
}

static void test_numbers(void)
{
    struct oh_cutover sw = {0};
    tap_ok(oh_cutover_announce(&sw, 0, 1) && oh_cutover_announce(&sw, 0, 2) && oh_cutover_announce(&sw, 1, 1),
           "notes three calls");
    tap_ok(oh_cutover_close(&sw, 3) == 3, "the first call is the one after the last that was noted by any rank");
    tap_ok(!oh_cutover_announce(&sw, 1, 2) && !oh_cutover_announce(&sw, 2, 1), "nothing is noted any more");
    oh_cutover_retract(&sw, 0, 2);
    tap_ok(oh_cutover_close(&sw, 3) == 3, "closed again, and after a call that came to nothing: the same");
    memset(&sw, 0, sizeof sw);
    tap_ok(oh_cutover_close(&sw, 2) == 1, "no call was made: the first call is the first");
    memset(&sw, 0, sizeof sw);
    oh_cutover_announce(&sw, 0, 1);
    oh_cutover_retract(&sw, 0, 1);
    tap_ok(oh_cutover_announce(&sw, 0, 1) && oh_cutover_close(&sw, 2) == 2,
           "a call that came to nothing is noted again");
}

int main(int argc, char **argv)
{
    unsigned seed = unit_seed(argc, argv);
    test_numbers();
    test_random_rounds(seed);
    return tap_done();
}
