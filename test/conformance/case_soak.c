/* SPDX-License-Identifier: MIT */
/*
 * case_soak.c - random rounds for as long as one likes: calls, graphs, streams, communicators that come and go
 *
 * What a round does is drawn from the seed and the round's number, the same on all ranks; where buffers lie, which
 * stream is taken and who is late is each rank's own. In a round, some batches are made ready, each on a communicator
 * of its own choice, to be called or, as a graph, to be launched; then all are issued; once all ranks have issued
 * theirs, and while the calls are still under way, a communicator may end and another be made; then all results are
 * judged. What may wait for a GPU (memory, communicators, graphs) comes before the first call of any rank or after the
 * last.
 *
 * What the processes hold is measured after a warm-up and at the end, when all communicators but the world have ended.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "test/conformance/cases.h"

#define SLOTS 6 /* communicators at once; the first is the world */
#define GRAPHS 5
#define PARTS 3 /* batches of a round */
#define ITEMS 24
#define LAUNCHES 5
#define WARM_UP 4 /* the fourth part of the time */
#define LATE_MICROSECONDS 2000
#define PATIENCE_POLLS 1000 /* of graphs whose communicator ends */
#define POLL_MICROSECONDS 100

/* Where a communicator comes from; before these, enum cf_maker. */
enum origin {
    SPLIT_REVERSED = CF_MAKERS,
    SPLIT_PARTS,
    SPLIT_ONE_OUT,
    SPLIT_SHARED,
    SHRUNK,
    ORIGINS
};
#define LEAST_ROUNDS (ORIGINS + 5) /* before a measurement */

struct slot {
    struct cf_set set;
    bool used;
    bool called;      /* stock NCCL wants the first call of a communicator not to be captured (CF_APART) */
    bool nonblocking; /* sums only, not captured, not split */
    bool shares;      /* resources with its family: not to be aborted, since NCCL would end the family's threads */
};

struct recorded {
    struct cf_batch *batch; /* NULL: none */
    struct cf_graph graph;
    int slot;
    bool repeats; /* no call in place: it may be launched several times on the same inputs */
    bool busy;    /* in this round */
};

struct part {
    struct cf_batch *batch;
    int slot;
    struct recorded *recorded; /* NULL: calls */
    enum cf_style style;
    int launches, stream;
};

struct soak {
    struct cf_worker *worker;
    struct cf_soaked *soaked;
    struct cf_source common, own;
    struct slot slot[SLOTS];
    struct recorded recorded[GRAPHS];
    struct part part[PARTS];
    int parts;
};

/* --- communicators ------------------------------------------------------------------------------------------------ */

/* A communicator of all ranks that can be split; the world, if need be. */
static struct slot *choose_parent(struct soak *soak)
{
    struct slot *slot = &soak->slot[cf_draw(&soak->common, SLOTS)];
    return slot->used && slot->set.whole && !slot->nonblocking ? slot : &soak->slot[0];
}

static void split(struct soak *soak, enum origin origin, struct slot *slot)
{
    struct slot *parent = origin == SPLIT_SHARED ? &soak->slot[0] : choose_parent(soak);
    int n = soak->worker->nranks, color[CF_MAX_RANKS] = {0}, key[CF_MAX_RANKS];
    for (int r = 0; r < n; r++) {
        color[r] = origin == SPLIT_PARTS ? r % 2 : 0;
        key[r] = origin == SPLIT_SHARED ? r : -r;
    }
    /* NCCL's proxy of a rank without a child that shares would wait, when the parent ends, until the other ranks have
     * ended theirs (2.28.9, src/proxy.cc, ncclProxyService). */
    color[n - 1] = origin == SPLIT_ONE_OUT && !parent->shares ? NCCL_SPLIT_NOCOLOR : color[n - 1];
    /* A split without a configuration has that of its parent. */
    slot->shares = origin == SPLIT_SHARED || parent->shares;
    cf_set_split(soak->worker, &parent->set, color, key, origin == SPLIT_SHARED ? CF_CHILD_SHARES : 0, &slot->set);
}

static void note_communicator(struct soak *soak)
{
    atomic_fetch_add(&soak->soaked->communicators, 1);
    soak->soaked->after_warm_up += soak->soaked->measured;
}

/* From a parent made for it: what was shrunk once counts its children differently on the rank that was left out. */
static bool shrink(struct soak *soak, struct slot *slot)
{
    struct cf_worker *worker = soak->worker;
    struct cf_set parent;
    bool excluded[CF_MAX_RANKS] = {false};
    excluded[cf_draw(&soak->common, (uint64_t)worker->nranks)] = true;
    if (worker->nranks < 3 || nccl.CommShrink == NULL) {
        return false;
    }
    cf_set_create(worker, CF_INIT_RANK, &parent);
    note_communicator(soak);
    cf_set_shrink(worker, &parent, excluded, 0, &slot->set);
    cf_set_destroy(worker, &parent);
    return true;
}

static void make(struct soak *soak, enum origin origin, struct slot *slot)
{
    struct cf_worker *worker = soak->worker;
    bool made = true;
    *slot = (struct slot){.used = true, .nonblocking = origin == (enum origin)CF_INIT_NONBLOCKING};
    if (origin < (enum origin)CF_MAKERS) {
        made = cf_set_create(worker, (enum cf_maker)origin, &slot->set);
    } else if (origin == SHRUNK) {
        made = shrink(soak, slot);
    } else {
        split(soak, origin, slot);
    }
    if (!made) {
        cf_set_create(worker, CF_INIT_RANK, &slot->set);
    }
    note_communicator(soak);
}

static void forget_graph(struct recorded *recorded)
{
    cf_graph_destroy(recorded->batch->worker, &recorded->graph);
    cf_batch_free(recorded->batch);
    recorded->batch = NULL;
}

static void forget_graphs_of(struct soak *soak, int slot)
{
    for (int g = 0; g < GRAPHS; g++) {
        if (soak->recorded[g].batch != NULL && soak->recorded[g].slot == slot) {
            forget_graph(&soak->recorded[g]);
        }
    }
}

static void end_communicator(struct cf_worker *worker, struct slot *slot, uint64_t how)
{
    if (how == 0) {
        cf_set_finalize(worker, &slot->set);
    } else if (how == 1 && worker->members == 1 && slot->set.comm[0] != NULL && !slot->shares) {
        CF_IS(worker, ncclSuccess, CommAbort(slot->set.comm[0])); /* all its calls are done */
        slot->set.comm[0] = NULL;
    }
    cf_set_destroy(worker, &slot->set);
}

struct late_end {
    struct soak *soak;
    int slot;
    atomic_bool ended; /* the communicator */
};

static void *forget_late(void *argument)
{
    struct late_end *late = argument;
    for (int poll = 0; poll < PATIENCE_POLLS && !atomic_load(&late->ended); poll++) {
        usleep(POLL_MICROSECONDS);
    }
    forget_graphs_of(late->soak, late->slot);
    return NULL;
}

/*
 * Graphs of it end before it, or after. NCCL finalizes, destroys and aborts no communicator as long as graphs hold
 * calls of its own (2.28.3, src/init.cc, commDestroySync), so that another thread ends them after a while; where they
 * hold calls of onehop alone, the communicator is gone first.
 */
static void end(struct soak *soak, int which)
{
    struct cf_worker *worker = soak->worker;
    struct slot *slot = &soak->slot[which];
    struct late_end late = {.soak = soak, .slot = which};
    pthread_t thread;
    bool graphs_first = cf_draw(&soak->common, 2);
    uint64_t how = cf_draw(&soak->common, 4);
    if (graphs_first) {
        forget_graphs_of(soak, which);
    }
    if (pthread_create(&thread, NULL, forget_late, &late) != 0) {
        cf_die(worker, "no thread");
    }
    end_communicator(worker, slot, how);
    atomic_store(&late.ended, true);
    pthread_join(thread, NULL);
    slot->used = false;
}

static bool is_busy(const struct soak *soak, int slot)
{
    bool busy = false;
    for (int p = 0; p < soak->parts; p++) {
        busy |= soak->part[p].slot == slot;
    }
    return busy;
}

/* In the first rounds, one from each origin. */
static void come_and_go(struct soak *soak, uint64_t round)
{
    int which = 1 + (int)cf_draw(&soak->common, SLOTS - 1);
    enum origin origin = round < ORIGINS ? (enum origin)round : (enum origin)cf_draw(&soak->common, ORIGINS);
    bool comes = round < ORIGINS || cf_draw(&soak->common, 3) > 0;
    if (round >= ORIGINS && cf_draw(&soak->common, 2)) {
        return;
    }
    while (is_busy(soak, which)) {
        which = which % (SLOTS - 1) + 1;
    }
    if (soak->slot[which].used) {
        end(soak, which);
    }
    if (comes) {
        make(soak, origin, &soak->slot[which]);
    }
}

/* --- parts of a round --------------------------------------------------------------------------------------------- */

/* replayed: with new inputs each time, also factors, but those in host memory are read when the call is made. */
static struct cf_batch *random_batch(struct soak *soak, int which, bool replayed, bool in_place)
{
    struct slot *slot = &soak->slot[which];
    struct cf_batch *batch = cf_batch_new(soak->worker, &slot->set);
    int items = 1 + (int)cf_draw(&soak->common, ITEMS);
    for (int i = 0; i < items; i++) {
        struct cf_spec spec = cf_random_spec(soak->worker, &slot->set, &soak->common, &soak->own, slot->nonblocking);
        spec.in_place &= in_place;
        spec.note = slot->nonblocking ? "non-blocking" : slot->shares ? "shared" : NULL;
        spec.op = replayed && spec.op == CF_PREMUL_HOST ? CF_PREMUL_DEVICE : spec.op;
        cf_batch_add(batch, &spec);
    }
    return batch;
}

static enum cf_style random_style(struct soak *soak)
{
    static const enum cf_style styles[] = {CF_SINGLE, CF_SINGLE, CF_GROUPED, CF_NESTED};
    return styles[cf_draw(&soak->common, sizeof styles / sizeof *styles)];
}

/* Graphs are captured from, and launched on, streams other than the default ones, which cannot capture. */
static int own_created_stream(struct soak *soak)
{
    return (int)cf_draw(&soak->own, CF_STREAMS);
}

static struct recorded *record(struct soak *soak, int which, struct recorded *recorded)
{
    if (recorded->batch != NULL) {
        forget_graph(recorded);
    }
    *recorded = (struct recorded){.slot = which, .repeats = cf_draw(&soak->common, 2)};
    recorded->batch = random_batch(soak, which, true, !recorded->repeats);
    int stream = own_created_stream(soak);
    cf_batch_load(recorded->batch, stream);
    cf_capture_begin(soak->worker, stream, CU_STREAM_CAPTURE_MODE_RELAXED, &recorded->graph);
    cf_batch_issue(recorded->batch, random_style(soak), stream);
    cf_capture_end(soak->worker, &recorded->graph);
    cf_graph_instantiate(soak->worker, &recorded->graph);
    cf_batch_count(recorded->batch);
    recorded->batch->counted = true;
    atomic_fetch_add(&soak->soaked->graphs, 1);
    return recorded;
}

/* One that stands, or a new one; NULL: the communicator is not to be captured, or there is no room. */
static struct recorded *choose_graph(struct soak *soak, int which)
{
    struct recorded *recorded = &soak->recorded[cf_draw(&soak->common, GRAPHS)];
    bool again = cf_draw(&soak->common, 4) > 0;
    if (recorded->busy || soak->slot[which].nonblocking || !soak->slot[which].called) {
        return NULL;
    }
    return recorded->batch != NULL && again ? recorded : record(soak, which, recorded);
}

static void prepare(struct soak *soak, struct part *part)
{
    int which = (int)cf_draw(&soak->common, SLOTS);
    bool calls = cf_draw(&soak->common, 5) < 3;
    which = soak->slot[which].used ? which : 0;
    *part = (struct part){.slot = which, .launches = 1, .style = random_style(soak)};
    part->recorded = calls ? NULL : choose_graph(soak, which);
    if (part->recorded != NULL) {
        part->recorded->busy = true;
        part->slot = part->recorded->slot;
        part->launches += part->recorded->repeats ? (int)cf_draw(&soak->common, LAUNCHES) : 0;
        part->batch = part->recorded->batch;
        part->stream = own_created_stream(soak);
    } else {
        part->batch = random_batch(soak, which, false, true);
        /* What NCCL launches from a thread of its own would go to that thread's per-thread stream (2.28.3,
         * src/group.cc, ncclGroupEndInternal): the copy of the result would not wait for it. */
        part->stream = (int)cf_draw(&soak->own, soak->slot[which].nonblocking ? CF_PER_THREAD_STREAM : CF_ALL_STREAMS);
    }
    cf_batch_load(part->batch, part->stream);
}

static void note_calls(struct soak *soak, const struct part *part)
{
    uint64_t calls = 0;
    for (int m = 0; m < soak->worker->members; m++) {
        for (int i = 0; i < part->batch->items && part->batch->set->comm[m] != NULL; i++) {
            calls += part->batch->item[i].spec.count > 0;
        }
    }
    atomic_fetch_add(&soak->soaked->calls, calls * (uint64_t)part->launches);
    atomic_fetch_add(&soak->soaked->replays, part->recorded != NULL ? (uint64_t)part->launches : 0);
}

static void issue(struct soak *soak, struct part *part)
{
    if (cf_draw(&soak->own, 8) == 0) {
        usleep((useconds_t)cf_draw(&soak->own, LATE_MICROSECONDS));
    }
    for (int i = 0; i < part->launches && part->recorded != NULL; i++) {
        cf_graph_launch(soak->worker, &part->recorded->graph, part->stream);
    }
    if (part->recorded == NULL) {
        cf_batch_mark(part->batch); /* another part may be of the same communicator */
        cf_batch_issue(part->batch, part->style, part->stream);
        cf_batch_count(part->batch);
        part->batch->counted = true;
        soak->slot[part->slot].called = true;
    }
    note_calls(soak, part);
}

static void finish(struct part *part)
{
    cf_batch_judge(part->batch, part->stream, true);
    if (part->recorded == NULL) {
        cf_batch_free(part->batch);
    } else {
        part->recorded->busy = false;
    }
}

static void run_round(struct soak *soak, uint64_t round)
{
    soak->common = cf_common_source(soak->worker, 1000 + round);
    soak->own = cf_own_source(soak->worker, 1000 + round);
    soak->parts = 1 + (int)cf_draw(&soak->common, PARTS);
    for (int p = 0; p < soak->parts; p++) {
        prepare(soak, &soak->part[p]);
    }
    cf_barrier(soak->worker);
    for (int p = 0; p < soak->parts; p++) {
        issue(soak, &soak->part[p]);
    }
    cf_barrier(soak->worker);
    come_and_go(soak, round);
    for (int p = 0; p < soak->parts; p++) {
        finish(&soak->part[p]);
    }
    atomic_fetch_add(&soak->soaked->rounds, 1);
}

/* --- growth ------------------------------------------------------------------------------------------------------- */

/* All communicators but the world end, and all graphs. */
static void rest(struct soak *soak)
{
    soak->parts = 0;
    forget_graphs_of(soak, 0);
    for (int s = 1; s < SLOTS; s++) {
        if (soak->slot[s].used) {
            end(soak, s);
        }
    }
    cf_sync(soak->worker);
    cf_barrier(soak->worker);
}

/* The streams of each GPU that are made when they are first used; a driver may give them threads. */
static void touch_default_streams(struct cf_worker *worker)
{
    for (int m = 0; cf_use(worker, m); m++) {
        CF_CU(worker, StreamSynchronize(NULL));
        CF_CU(worker, StreamSynchronize(CU_STREAM_PER_THREAD));
    }
}

static void measure(struct soak *soak)
{
    rest(soak);
    touch_default_streams(soak->worker);
    usleep(200000); /* what was freed last is, by now */
    soak->soaked->from = resources_measure(soak->worker);
    soak->soaked->measured = true;
    cf_barrier(soak->worker);
}

static void compare(struct soak *soak)
{
    const struct cf_allowance *allowance = &cf_options.allowance;
    struct cf_soaked *soaked = soak->soaked;
    struct resources_bounds bounds = {.host_kib =
                                          allowance->host_kib + allowance->host_kib_each * (long)soaked->after_warm_up,
                                      .gpu_kib = allowance->gpu_kib * (long)soak->worker->members,
                                      .handles = allowance->handles};
    rest(soak);
    soaked->to = resources_compare(soak->worker, &bounds, &soaked->from);
    cf_barrier(soak->worker);
}

void cf_case_soak(struct cf_worker *worker)
{
    struct soak *soak = calloc(1, sizeof *soak);
    uint64_t start_ms = cf_now_ms(), limit_ms = cf_case_board(worker)->soak_ms, measured_at = 0;
    if (soak == NULL) {
        cf_die(worker, "no memory");
    }
    soak->worker = worker;
    worker->hashes_compared = false; /* every result is looked at: a failure names the call */
    soak->soaked = &cf_state(worker)->soaked;
    soak->slot[0] = (struct slot){.set = worker->world, .used = true};
    for (uint64_t round = 0;; round++) {
        atomic_store(&cf_state(worker)->since_ms, cf_now_ms()); /* in time: the limit of the case begins anew */
        uint64_t now_ms = cf_share(worker, cf_now_ms() - start_ms);
        bool measured = soak->soaked->measured;
        if (!measured && round >= LEAST_ROUNDS && now_ms * WARM_UP >= limit_ms) {
            measure(soak);
            measured_at = round;
        } else if (measured && round >= measured_at + LEAST_ROUNDS && now_ms >= limit_ms) {
            break;
        }
        run_round(soak, round);
    }
    compare(soak);
    free(soak);
}
