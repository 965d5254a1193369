/* SPDX-License-Identifier: MIT */
/* comm.c - communicators in every way that NCCL has of making them */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "test/conformance/conformance.h"

#define POLL_MICROSECONDS 100
#define GROW_SINCE 22902 /* the version that has ncclCommGrow */

/* The next unique id of the job, of one that is to grow (NULL: of a new one): its worker with rank 0 makes it, all
 * others wait for it. */
static ncclUniqueId next_id(struct cf_worker *worker, ncclComm_t grows)
{
    struct cf_board *board = worker->board;
    uint32_t which = worker->ids++;
    if (worker->member[0].world_rank == 0) {
        ncclUniqueId *id = &board->id[which % CF_MAX_IDS];
        ncclResult_t result = grows ? nccl.CommGetUniqueId(grows, id) : nccl.GetUniqueId(id);
        if (result != ncclSuccess) {
            cf_die(worker, "asking for a unique id gave %d", (int)result);
        }
        atomic_store(&board->ids, which + 1);
    }
    while (atomic_load(&board->ids) <= which) {
        usleep(POLL_MICROSECONDS);
    }
    return board->id[which % CF_MAX_IDS];
}

/* Ways of making communicators that onehop serves from the first call on; children follow their parent. */
static const bool served_makers[CF_MAKERS] = {
    [CF_INIT_RANK] = true, [CF_INIT_CONFIG] = true, [CF_INIT_SCALABLE] = true, [CF_INIT_ALL] = true};

static void fill_whole(struct cf_worker *worker, struct cf_set *set)
{
    set->whole = true;
    for (int m = 0; m < worker->members; m++) {
        set->nranks[m] = worker->nranks;
        set->rank[m] = worker->member[m].world_rank;
        for (int r = 0; r < worker->nranks; r++) {
            set->world[m][r] = r;
        }
    }
}

static void wait_ready(struct cf_worker *worker, ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (comm != NULL && state == ncclInProgress) {
        CF_NCCL(worker, CommGetAsyncError(comm, &state));
        if (state == ncclInProgress) {
            usleep(POLL_MICROSECONDS);
        }
    }
    if (comm != NULL && state != ncclSuccess) {
        cf_die(worker, "a communicator came to nothing: %d", (int)state);
    }
}

static ncclResult_t init_member(struct cf_worker *worker, enum cf_maker maker, ncclUniqueId id, int m,
                                ncclComm_t *comm_p)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int n = worker->nranks, rank = worker->member[m].world_rank;
    config.blocking = maker != CF_INIT_NONBLOCKING;
    switch (maker) {
    case CF_INIT_RANK:
        return nccl.CommInitRank(comm_p, n, id, rank);
    case CF_INIT_SCALABLE:
        return nccl.CommInitRankScalable(comm_p, n, rank, 1, &id, &config);
    default:
        return nccl.CommInitRankConfig(comm_p, n, id, rank, &config);
    }
}

static void init_all(struct cf_worker *worker, struct cf_set *set)
{
    int devices[CF_MAX_RANKS];
    for (int m = 0; m < worker->members; m++) {
        devices[m] = worker->member[m].device;
    }
    CF_NCCL(worker, CommInitAll(set->comm, worker->members, devices));
}

static bool can_make(const struct cf_worker *worker, enum cf_maker maker)
{
    return maker == CF_INIT_ALL        ? worker->members == worker->nranks
           : maker == CF_INIT_SCALABLE ? nccl.CommInitRankScalable != NULL
                                       : true;
}

bool cf_set_create(struct cf_worker *worker, enum cf_maker maker, struct cf_set *set_p)
{
    if (!can_make(worker, maker)) {
        return false;
    }
    *set_p = (struct cf_set){.whole = false};
    fill_whole(worker, set_p);
    set_p->expected = served_makers[maker];
    if (maker == CF_INIT_ALL) {
        init_all(worker, set_p);
        return true;
    }
    ncclUniqueId id = next_id(worker, NULL);
    cf_calls_begin(worker, false);
    for (int m = 0; cf_use(worker, m); m++) {
        ncclResult_t result = init_member(worker, maker, id, m, &set_p->comm[m]);
        if (!cf_started(worker, result)) {
            cf_die(worker, "creating a communicator gave %d", (int)result);
        }
    }
    cf_calls_end(worker, false, set_p);
    return true;
}

void cf_set_ready(struct cf_worker *worker, const struct cf_set *set)
{
    for (int m = 0; m < worker->members; m++) {
        wait_ready(worker, set->comm[m]);
    }
}

void cf_calls_begin(struct cf_worker *worker, bool grouped)
{
    worker->pending = false;
    if (grouped || worker->members > 1) {
        CF_NCCL(worker, GroupStart());
    }
}

bool cf_started(struct cf_worker *worker, ncclResult_t result)
{
    worker->pending |= result == ncclInProgress;
    return result == ncclSuccess || result == ncclInProgress;
}

void cf_calls_end(struct cf_worker *worker, bool grouped, const struct cf_set *set)
{
    if (grouped || worker->members > 1) {
        worker->pending = false;
        CF_START(worker, GroupEnd());
    }
    if (worker->pending && set != NULL) {
        cf_set_ready(worker, set);
    }
}

/* Who is with member m, in the order of keys, then of parent ranks. */
static void place_child(struct cf_worker *worker, const struct cf_set *parent, const int *color, const int *key, int m,
                        struct cf_set *set)
{
    int mine = parent->rank[m], count = 0;
    for (int at = 0; at < parent->nranks[m]; at++) {
        for (int r = 0; r < parent->nranks[m]; r++) { /* the rank that has `at` others before it */
            int before = 0;
            for (int s = 0; s < parent->nranks[m]; s++) {
                before += color[s] == color[r] && (key[s] < key[r] || (key[s] == key[r] && s < r));
            }
            if (color[r] == color[mine] && before == at) {
                set->rank[m] = r == mine ? at : set->rank[m];
                set->world[m][at] = parent->world[m][r];
                count++;
            }
        }
    }
    int nranks, rank;
    set->nranks[m] = count;
    CF_NCCL(worker, CommCount(set->comm[m], &nranks));
    CF_NCCL(worker, CommUserRank(set->comm[m], &rank));
    cf_check(worker, nranks == count && rank == set->rank[m], "split: rank %d of %d, expected %d of %d", rank, nranks,
             set->rank[m], count);
}

void cf_set_split(struct cf_worker *worker, const struct cf_set *parent, const int *color, const int *key, bool share,
                  struct cf_set *set_p)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.splitShare = share;
    *set_p = (struct cf_set){.whole = true, .expected = parent->expected};
    cf_calls_begin(worker, false);
    for (int m = 0; cf_use(worker, m); m++) {
        int r = parent->rank[m];
        set_p->comm[m] = (ncclComm_t)(void *)worker; /* no colour: NULL must come */
        CF_NCCL(worker, CommSplit(parent->comm[m], color[r], key[r], &set_p->comm[m], share ? &config : NULL));
    }
    cf_calls_end(worker, false, set_p);
    for (int r = 1; r < parent->nranks[0]; r++) {
        set_p->whole &= color[r] == color[0];
    }
    for (int m = 0; m < worker->members; m++) {
        bool out = color[parent->rank[m]] == NCCL_SPLIT_NOCOLOR;
        cf_check(worker, (set_p->comm[m] == NULL) == out, "split: communicator %p, colour %d", (void *)set_p->comm[m],
                 color[parent->rank[m]]);
        if (!out) {
            place_child(worker, parent, color, key, m, set_p);
        }
    }
}

bool cf_set_shrink(struct cf_worker *worker, const struct cf_set *parent, int excluded, struct cf_set *set_p)
{
    if (nccl.CommShrink == NULL) {
        return false;
    }
    *set_p = (struct cf_set){.expected = parent->expected};
    cf_calls_begin(worker, false);
    for (int m = 0; cf_use(worker, m); m++) {
        int at = 0;
        set_p->nranks[m] = parent->nranks[m] - 1;
        for (int r = 0; r < parent->nranks[m]; r++) {
            set_p->rank[m] = r == parent->rank[m] ? at : set_p->rank[m];
            if (r != excluded) {
                set_p->world[m][at++] = parent->world[m][r];
            }
        }
        if (parent->rank[m] != excluded) {
            CF_NCCL(worker, CommShrink(parent->comm[m], &excluded, 1, &set_p->comm[m], NULL, NCCL_SHRINK_DEFAULT));
        }
    }
    cf_calls_end(worker, false, set_p);
    return true;
}

bool cf_set_grow(struct cf_worker *worker, const struct cf_set *parent, struct cf_set *set_p)
{
    int version;
    CF_NCCL(worker, GetVersion(&version));
    if (nccl.CommGrow == NULL || nccl.CommGetUniqueId == NULL || version < GROW_SINCE) {
        return false;
    }
    *set_p = (struct cf_set){.expected = parent->expected};
    fill_whole(worker, set_p);
    ncclUniqueId id = next_id(worker, parent->comm[0]);
    cf_calls_begin(worker, false);
    for (int m = 0; cf_use(worker, m); m++) {
        int rank = worker->member[m].world_rank;
        bool is_new = parent->comm[m] == NULL, knows = is_new || rank == 0;
        CF_NCCL(worker, CommGrow(parent->comm[m], worker->nranks, knows ? &id : NULL, is_new ? rank : -1,
                                 &set_p->comm[m], NULL));
    }
    cf_calls_end(worker, false, set_p);
    return true;
}

void cf_set_destroy(struct cf_worker *worker, struct cf_set *set)
{
    for (int m = 0; cf_use(worker, m); m++) {
        if (set->comm[m] != NULL) {
            ncclResult_t result = nccl.CommDestroy(set->comm[m]);
            /* A non-blocking one may go on ending in the background. */
            cf_check(worker, result == ncclSuccess || result == ncclInProgress, "ncclCommDestroy gave %d", (int)result);
            set->comm[m] = NULL;
        }
    }
}

void cf_set_end(struct cf_worker *worker, struct cf_set *set)
{
    cf_barrier(worker);
    cf_set_destroy(worker, set);
}
