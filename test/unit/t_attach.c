/* SPDX-License-Identifier: MIT */
/*
 * t_attach.c - the first calls of a communicator: every call goes the same way on all ranks, whoever waits for whom
 *
 * Ranks are threads, each on a simulated GPU, with a made-up handle for NCCL's communicator, and make their calls with
 * random pauses until one is served; its number must be the same on all. What differs by round: whether the first call
 * waits; communicators that NCCL is still creating when the first calls are tried, with a thread that learns of it at
 * the same time; calls that NCCL rejects on one rank only; work that NCCL was given before; and several communicators,
 * whose first calls the ranks make in different orders.
 */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/launch/launch.h"
#include "test/unit/first_call.h"
#include "test/unit/unit.h"
#include "util/clock.h"

#define RANKS 3
#define LEAST_CTAS 24 /* of a rank in the middle */
#define MORE 50       /* calls after the first that is served */
#define PATIENCE_NS (UINT64_C(20) * 1000 * 1000 * 1000)
#define ROUNDS 15

struct rank {
    struct oh_key key;
    int rank;
    unsigned seed;
    uint64_t deadline_ns;
    bool blocking; /* the first call waits for the other ranks */
    bool unborn;   /* NCCL creates it while calls are tried */
    bool rejects;  /* some calls are rejected, on this rank */
    bool invariant;
    bool absent; /* rank 2 makes no call */
    bool worked; /* NCCL has had work of it before, in no known order */
    int ends_at; /* gives up after that many calls; 0: does not */
    char handle[64];
    ncclComm_t nccl;
    atomic_int *entered; /* ranks that have begun to create it */
    atomic_bool *ahead;  /* rank 0 has made its first call, which the others wait for unless they block in theirs */
    atomic_bool tried;   /* a call, whether it was accepted or not */
    atomic_bool created; /* by NCCL, of which that is a barrier */
    atomic_bool over;
    int first;                /* the first call that was served; 0: none */
    int relapses;             /* calls after it that were not */
    enum oh_comm_state state; /* at the end */
    struct oh_plan_room room; /* of all ranks, where it is served */
    int before;               /* calls tried before NCCL was ready, and rejected by it */
};

static void pause_for(unsigned *seed)
{
    if (rand_r(seed) % 3 == 0) {
        usleep((useconds_t)(rand_r(seed) % 300));
    }
}

static struct oh_comm *enter(struct rank *self)
{
    const struct oh_comm_config config = {
        .blocking = self->blocking, .max_ctas = self->rank == 1 ? LEAST_CTAS : 32, .invariant = self->invariant};
    self->nccl = (ncclComm_t)(void *)self->handle;
    struct oh_comm *comm = oh_creation_begin(&self->key, &config, NULL, &self->nccl, false);
    atomic_fetch_add(self->entered, 1);
    if (self->unborn) {
        return oh_creation_register(comm, self->nccl) ? comm : NULL;
    }
    while (atomic_load(self->entered) < RANKS) { /* NCCL's barrier */
        usleep(50);
    }
    comm = create_comm(comm, self->nccl, (uint32_t)self->rank, RANKS);
    if (self->worked) {
        oh_attach_note_work(comm);
    }
    return comm;
}

/* An event is recorded behind the call that NCCL has got. */
static void order(struct oh_comm *comm)
{
    struct oh_nccl_call nccl_call;
    if (oh_comm_is_ordered(comm)) {
        oh_order_before_nccl(comm, NULL, true, &nccl_call);
        oh_order_after_nccl(comm, &nccl_call, 0);
    }
}

/* One attempt at a call, but for the launch. True: NCCL accepted, or onehop served. */
static bool call(struct rank *self, struct oh_comm *comm, bool *served_p)
{
    struct oh_call what = {.comm = comm, .count = 1000, .type = ncclFloat32};
    if (oh_comm_has_pending_creations(comm) && atomic_load(&self->created)) {
        say_created(comm, self->rank, RANKS);
    }
    if (oh_attach_wants(&what)) {
        oh_attach_begin(comm, NULL);
        oh_attach_wait(comm, oh_now_ns());
    }
    oh_call_route(&what);
    oh_attach_enter_served(&what);
    *served_p = what.route == OH_ROUTE_ONEHOP;
    if (*served_p) {
        return true;
    }
    pause_for(&self->seed); /* NCCL may become ready now */
    bool accepted = !self->unborn || atomic_load(&self->created);
    accepted = accepted && !(self->rejects && (self->before == 0 || rand_r(&self->seed) % 8 == 0));
    atomic_store(&self->tried, true);
    oh_attach_end_call(&what, accepted);
    if (accepted && oh_comm_state(comm) >= OH_COMM_ATTACHING) {
        order(comm);
    }
    return accepted;
}

/* As an application's thread that polls ncclCommGetAsyncError. */
static void *watch(void *user)
{
    struct rank *self = user;
    struct oh_comm *comm = oh_comm_find(self->nccl);
    unsigned seed = self->seed + 7;
    while (atomic_load(self->entered) < RANKS || !atomic_load(&self->tried)) {
        usleep(100);
    }
    usleep((useconds_t)(rand_r(&seed) % 3000));
    atomic_store(&self->created, true);
    while (!atomic_load(&self->over)) {
        say_created(comm, self->rank, RANKS);
        usleep((useconds_t)(rand_r(&seed) % 200));
    }
    oh_comm_release(comm);
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
    while (self->rank > 0 && self->ends_at == 0 && !self->blocking && !self->invariant && !atomic_load(self->ahead)) {
        usleep(50);
    }
    const bool is_absent = self->absent && self->rank == 2;
    while (is_absent && atomic_load(self->entered) < 2 * RANKS - 1) { /* the others are done */
        usleep(100);
    }
    for (int c = 1; !is_absent && (self->ends_at == 0 || c <= self->ends_at) && !is_done(self, c); c++) {
        bool served;
        while (!call(self, comm, &served)) {
            self->before++;
        }
        atomic_store(self->ahead, true);
        self->first = served && self->first == 0 ? c : self->first;
        self->relapses += !served && self->first != 0;
        pause_for(&self->seed);
    }
    atomic_store(&self->over, true);
    atomic_fetch_add(self->entered, 1);
    self->state = oh_comm_state(comm);
    self->room = comm->serve.room;
    if (self->unborn) {
        pthread_join(watchdog, NULL);
    }
    oh_registry_remove(comm);
    oh_comm_retire(comm);
    return NULL;
}

static struct rank rank_of(struct rank how, int rank, unsigned *seed)
{
    how.rank = rank;
    how.seed = (unsigned)rand_r(seed);
    how.deadline_ns = oh_now_ns() + PATIENCE_NS;
    how.rejects = how.rejects && rank == 1;
    return how;
}

static void run_round(struct rank *ranks, unsigned *seed, struct rank how)
{
    atomic_int entered = 0;
    atomic_bool ahead = false;
    how.key = oh_key_random();
    how.entered = &entered;
    how.ahead = &ahead;
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = rank_of(how, r, seed);
    }
    unit_run_threads(run_rank, ranks, sizeof *ranks, RANKS);
}

#define ANY (-1)

static const struct {
    const char *name;
    struct rank how;
    int later, unserved; /* rounds in which the first call served was not the first; in which no call was served */
    int before;          /* calls tried in vain, at least; 0: none */
} cases[] = {
    {"the first call waits: it is served", {.blocking = true}, 0, 0, 0},
    {"it does not: the ranks switch in the middle", {.blocking = false}, ROUNDS, 0, 0},
    {"NCCL had work before: never the first call", {.blocking = true, .worked = true}, ROUNDS, 0, 0},
    {"NCCL still at work", {.unborn = true}, ROUNDS, 0, (ROUNDS * RANKS)},
    {"some calls rejected on one rank", {.rejects = true}, ROUNDS, 0, ROUNDS},
    {"ended before the ranks have agreed", {.ends_at = 1}, 0, ANY, 0},
    {"invariant: served from the first call on", {.invariant = true, .blocking = true}, 0, 0, 0},
    {"invariant: also where NCCL does not wait", {.invariant = true}, 0, 0, 0},
    {"invariant: never behind work", {.invariant = true, .blocking = true, .worked = true, .ends_at = 5}, 0, ROUNDS, 0},
};

static void test_case(unsigned *seed, size_t c)
{
    int later = 0, unserved = 0, splits = 0, before = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct rank ranks[RANKS];
        run_round(ranks, seed, cases[c].how);
        for (int r = 0; r < RANKS; r++) {
            const struct oh_plan_room *room = &ranks[r].room;
            const bool fits = ranks[r].first == 0 || (room->max_blocks == LEAST_CTAS && room->sms > 0);
            splits += ranks[r].first != ranks[0].first || ranks[r].relapses > 0 || !fits;
            before += ranks[r].before;
        }
        later += ranks[0].first > 1;
        unserved += ranks[0].first == 0;
    }
    tap_ok(splits == 0 && later == cases[c].later && (cases[c].unserved == ANY || unserved == cases[c].unserved) &&
               (cases[c].before > 0 ? before >= cases[c].before : before == 0),
           "%s: of %d rounds %d in the middle, %d never, %d not the same on all ranks; %d calls in vain", cases[c].name,
           ROUNDS, later, unserved, splits, before);
}

/* A communicator that is invariant, and a rank that makes no call where NCCL would not wait. */
static void test_absent(unsigned *seed)
{
    struct rank ranks[RANKS];
    const uint64_t start_ns = oh_now_ns();
    run_round(ranks, seed, (struct rank){.invariant = true, .absent = true, .ends_at = 3});
    const double seconds = (double)(oh_now_ns() - start_ns) / 1e9;
    bool right = seconds > 9 && seconds < 15;
    for (int r = 0; r < RANKS - 1; r++) {
        right &= ranks[r].first == 0 && ranks[r].state == OH_COMM_FALLBACK;
    }
    tap_ok(right, "invariant: a rank makes no call: all fall back, after %.1f s", seconds);
}

/* --- several communicators ---------------------------------------------------------------------------------------- */

#define COMMS 2
#define ORDERS (ROUNDS / 2) /* rounds */

struct crossing {
    struct rank rank[COMMS]; /* the same one, of each communicator */
    int served;              /* communicators */
    uint64_t longest_ns;
};

/* Its first calls in an order of its own; NCCL, which is not there, would have everything connected. */
static void *cross(void *user)
{
    struct crossing *self = user;
    struct oh_comm *comms[COMMS];
    unsigned *seed = &self->rank[0].seed;
    atomic_int *last_entered = self->rank[COMMS - 1].entered;
    for (int c = 0; c < COMMS; c++) {
        comms[c] = enter(&self->rank[c]);
    }
    int at = rand_r(seed) % COMMS, step = rand_r(seed) % 2 ? 1 : COMMS - 1;
    for (int settled = 0; settled < COMMS && oh_now_ns() < self->rank[0].deadline_ns;) {
        self->served = settled = 0;
        for (int i = 0; i < COMMS; i++, at = (at + step) % COMMS) {
            bool served;
            uint64_t start = oh_now_ns();
            call(&self->rank[at], comms[at], &served);
            uint64_t took = oh_now_ns() - start;
            self->longest_ns = took > self->longest_ns ? took : self->longest_ns;
            self->served += oh_comm_state(comms[at]) == OH_COMM_SERVED;
            settled += oh_comm_is_settled(comms[at]);
        }
        pause_for(seed);
    }
    atomic_fetch_add(last_entered, 1);
    while (atomic_load(last_entered) < 2 * RANKS) {
        usleep(50);
    }
    for (int c = 0; c < COMMS; c++) {
        oh_registry_remove(comms[c]);
        oh_comm_retire(comms[c]);
    }
    return NULL;
}

static void test_crossing(unsigned *seed)
{
    int served = 0;
    uint64_t longest = 0;
    setenv("NCCL_RUNTIME_CONNECT", "0", 1); /* so that stock NCCL would not wait, and could not deadlock */
    for (int i = 0; i < ORDERS; i++) {
        struct crossing ranks[RANKS] = {0};
        atomic_int entered[COMMS] = {0};
        for (int c = 0; c < COMMS; c++) {
            const struct rank how = {.key = oh_key_random(), .blocking = true, .entered = &entered[c]};
            for (int r = 0; r < RANKS; r++) {
                ranks[r].rank[c] = rank_of(how, r, seed);
            }
        }
        unit_run_threads(cross, ranks, sizeof *ranks, RANKS);
        for (int r = 0; r < RANKS; r++) {
            served += ranks[r].served;
            longest = ranks[r].longest_ns > longest ? ranks[r].longest_ns : longest;
        }
    }
    unsetenv("NCCL_RUNTIME_CONNECT");
    tap_note("the longest call took %.0f ms", (double)longest / 1e6);
    tap_ok(served == ORDERS * RANKS * COMMS, "first calls in different orders: all %d communicators are served",
           served);
}

/* Whether a poll of NCCL's state counts as one before the first call. */
static bool counts_poll(bool is_used)
{
    static char handles[RANKS];
    const struct oh_comm_config config = OH_COMM_CONFIG_DEFAULT;
    const struct oh_key key = oh_key_random();
    struct oh_comm *comms[RANKS];
    ncclComm_t nccl[RANKS];
    for (int r = 0; r < RANKS; r++) {
        nccl[r] = (ncclComm_t)(void *)&handles[r];
        comms[r] = oh_creation_begin(&key, &config, NULL, &nccl[r], false);
    }
    for (int r = 0; r < RANKS; r++) {
        create_comm(comms[r], nccl[r], (uint32_t)r, RANKS);
    }
    const struct oh_call send = {.comm = comms[0], .kind = OH_CALL_SEND, .count = 1, .type = ncclInt8};
    if (is_used) {
        oh_attach_note_call(&send);
    }
    oh_attach_note_poll(comms[0]);
    const bool counts = atomic_load(&comms[0]->attach.polled);
    for (int r = 0; r < RANKS; r++) {
        oh_registry_remove(comms[r]);
        oh_comm_retire(comms[r]);
    }
    return counts;
}

int main(int argc, char **argv)
{
    unsigned seed = unit_seed(argc, argv);
    const char *folder = unit_folder();
    setenv("ONEHOP_DEBUG", "WARN", 1);

    tap_ok(counts_poll(false) && !counts_poll(true),
           "a poll counts before the first call, whatever that is, and not later");
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        test_case(&seed, c);
    }
    test_absent(&seed);
    test_crossing(&seed);

    /* A process that ends while NCCL is still creating a communicator. */
    atomic_int entered = 0;
    struct rank alone = {.key = oh_key_random(), .unborn = true, .entered = &entered};
    enter(&alone);
    tap_ok(rmdir(folder) != 0, "a segment is open");
    oh_comms_end_process();
    for (int i = 0; i < 100 && rmdir(folder) != 0; i++) { /* what goes on in the background ends soon */
        usleep(20000);
    }
    tap_ok(access(folder, F_OK) != 0, "nothing is left in %s", folder);
    return tap_done();
}
