/* SPDX-License-Identifier: MIT */
/* comm.c - communicators in every way that NCCL has of making them */
#include <unistd.h>

#include "test/common/worker.h"

#define POLL_MICROSECONDS 100
#define GROW_SINCE 22902 /* the version that has ncclCommGrow */
#define SCALABLE_IDS 3   /* at most; not more than ranks */

ncclUniqueId cf_next_id(struct cf_worker *worker, int leader, ncclComm_t grows)
{
    struct cf_board *board = worker->board;
    uint32_t which = worker->ids++;
    if (worker->member[0].world_rank == leader) {
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

/* --- calls of all members ----------------------------------------------------------------------------------------- */

static void wait_ready(struct cf_worker *worker, ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (comm != NULL && state == ncclInProgress) {
        CF_NCCL(worker, CommGetAsyncError(comm, &state));
        if (state == ncclInProgress) {
            usleep(POLL_MICROSECONDS);
            cf_jitter(worker);
        }
    }
    if (comm != NULL && state != ncclSuccess) {
        cf_die(worker, "a communicator came to nothing: %d", (int)state);
    }
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

/* --- who is in a communicator ------------------------------------------------------------------------------------- */

/* A rank of the job is rank `rank` of member m's communicator. */
static void add_rank(struct cf_worker *worker, struct cf_set *set, int m, int rank, int world_rank)
{
    set->nranks[m]++;
    set->world[m][rank] = world_rank;
    set->rank[m] = world_rank == worker->member[m].world_rank ? rank : set->rank[m];
}

void cf_set_fill(struct cf_worker *worker, int without, struct cf_set *set)
{
    set->whole = without < 0;
    for (int m = 0; m < worker->members; m++) {
        set->nranks[m] = 0;
        for (int r = 0; r < worker->nranks; r++) {
            if (r != without) {
                add_rank(worker, set, m, set->nranks[m], r);
            }
        }
    }
}

/* Compares with what the library says; a member that is not in the set has no communicator. */
static void check_set(struct cf_worker *worker, const struct cf_set *set)
{
    for (int m = 0; m < worker->members; m++) {
        int nranks, rank, device;
        cf_check(worker, (set->comm[m] != NULL) == (set->nranks[m] > 0), "member %d has communicator %p of %d ranks", m,
                 (void *)set->comm[m], set->nranks[m]);
        if (set->comm[m] == NULL) {
            continue;
        }
        CF_NCCL(worker, CommCount(set->comm[m], &nranks));
        CF_NCCL(worker, CommUserRank(set->comm[m], &rank));
        CF_NCCL(worker, CommCuDevice(set->comm[m], &device));
        cf_check(worker, nranks == set->nranks[m] && rank == set->rank[m] && device == worker->member[m].device,
                 "the communicator says rank %d of %d on device %d, expected %d of %d on %d", rank, nranks, device,
                 set->rank[m], set->nranks[m], worker->member[m].device);
    }
}

void cf_set_complete(struct cf_worker *worker, const struct cf_set *set)
{
    cf_set_ready(worker, set);
    check_set(worker, set);
}

/* The simulated NCCL says of a group of non-blocking calls, and of no other, that it goes on in the background. */
static void check_pending(struct cf_worker *worker, bool nonblocking)
{
    if (worker->simulated && worker->members > 1) {
        cf_check(worker, worker->pending == nonblocking, "ncclGroupEnd: in progress: %d", worker->pending);
    }
}

/* --- new ones ----------------------------------------------------------------------------------------------------- */

/* Ways of making communicators that onehop serves from the first call on; children follow their parent. */
static const bool served_makers[CF_MAKERS] = {
    [CF_INIT_RANK] = true, [CF_INIT_CONFIG] = true, [CF_INIT_SCALABLE] = true, [CF_INIT_ALL] = true};

static int count_ids(enum cf_maker maker, int ranks)
{
    return maker != CF_INIT_SCALABLE ? 1 : ranks < SCALABLE_IDS ? ranks : SCALABLE_IDS;
}

static ncclResult_t init_member(enum cf_maker maker, ncclUniqueId *id, int ranks, int rank, ncclComm_t *comm_p)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = maker != CF_INIT_NONBLOCKING;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    config.commName = "test-config"; /* for ONEHOP_COMMS */
#endif
    switch (maker) {
    case CF_INIT_RANK:
        return nccl.CommInitRank(comm_p, ranks, *id, rank);
    case CF_INIT_SCALABLE:
        return nccl.CommInitRankScalable(comm_p, ranks, rank, count_ids(maker, ranks), id, &config);
    default:
        return nccl.CommInitRankConfig(comm_p, ranks, *id, rank, &config);
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

void cf_set_create_first(struct cf_worker *worker, enum cf_maker maker, int ranks, struct cf_set *set_p)
{
    ncclUniqueId id[SCALABLE_IDS];
    *set_p = (struct cf_set){.whole = ranks == worker->nranks, .expected = served_makers[maker]};
    for (int i = 0; i < count_ids(maker, ranks); i++) {
        id[i] = cf_next_id(worker, 0, NULL);
    }
    double start = cf_now();
    cf_calls_begin(worker, false);
    for (int m = 0; cf_use(worker, m); m++) {
        int rank = worker->member[m].world_rank;
        for (int r = 0; r < ranks && rank < ranks; r++) {
            add_rank(worker, set_p, m, r, r);
        }
        ncclResult_t result = rank < ranks ? init_member(maker, id, ranks, rank, &set_p->comm[m]) : ncclSuccess;
        if (!cf_started(worker, result)) {
            cf_die(worker, "creating a communicator gave %d", (int)result);
        }
    }
    cf_calls_end(worker, false, worker->in_group ? NULL : set_p);
    set_p->made_ms = (cf_now() - start) * 1e3;
    check_pending(worker, maker == CF_INIT_NONBLOCKING);
    if (!worker->in_group) {
        check_set(worker, set_p);
    }
}

bool cf_set_create(struct cf_worker *worker, enum cf_maker maker, struct cf_set *set_p)
{
    if (maker == CF_INIT_ALL && worker->members == worker->nranks) {
        *set_p = (struct cf_set){.expected = true};
        cf_set_fill(worker, -1, set_p);
        init_all(worker, set_p);
        if (!worker->in_group) {
            check_set(worker, set_p);
        }
        return true;
    }
    if (maker == CF_INIT_ALL || (maker == CF_INIT_SCALABLE && nccl.CommInitRankScalable == NULL)) {
        return false;
    }
    cf_set_create_first(worker, maker, worker->nranks, set_p);
    return true;
}

/* --- children ----------------------------------------------------------------------------------------------------- */

/* What a child is given; NULL: nothing of its own. */
static ncclConfig_t *configure(int flags, ncclConfig_t *config)
{
    *config = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
    config->blocking = !(flags & CF_CHILD_NONBLOCKING);
    config->splitShare = flags & CF_CHILD_SHARES ? 1 : 0;
    return flags != 0 ? config : NULL;
}

/* Children are there when their parents have nothing to do any more. Then they go on by themselves. */
static void end_children(struct cf_worker *worker, const struct cf_set *parent, int flags, double start,
                         struct cf_set *set)
{
    cf_calls_end(worker, false, NULL);
    if (worker->in_group) {
        return;
    }
    cf_set_ready(worker, parent);
    check_pending(worker, flags & CF_CHILD_NONBLOCKING);
    cf_set_ready(worker, set);
    set->made_ms = (cf_now() - start) * 1e3;
    check_set(worker, set);
}

/* The rank of a parent's rank among those of its colour: by key, and those of one key in their order. */
static int split_rank(const int *color, const int *key, int nranks, int rank)
{
    int before = 0;
    for (int r = 0; r < nranks; r++) {
        before += color[r] == color[rank] && (key[r] < key[rank] || (key[r] == key[rank] && r < rank));
    }
    return before;
}

void cf_set_split(struct cf_worker *worker, const struct cf_set *parent, const int *color, const int *key, int flags,
                  struct cf_set *set_p)
{
    ncclConfig_t config;
    *set_p = (struct cf_set){.whole = parent->whole, .expected = parent->expected};
    double start = cf_now();
    /* A call that NCCL rejects does not count, as on the other ranks; a group would fail. */
    if (cf_use(worker, 0) && parent->rank[0] == 0 && !worker->in_group) {
        cf_check(worker, nccl.CommSplit(parent->comm[0], color[0], key[0], NULL, NULL) == ncclInvalidArgument,
                 "a split without a place for the result was not rejected");
    }
    cf_calls_begin(worker, false);
    for (int m = 0; cf_use(worker, m); m++) {
        int mine = parent->rank[m];
        set_p->comm[m] = (ncclComm_t)(void *)worker; /* no colour: NULL must come */
        CF_START(worker,
                 CommSplit(parent->comm[m], color[mine], key[mine], &set_p->comm[m], configure(flags, &config)));
        for (int r = 0; r < parent->nranks[m] && color[mine] != NCCL_SPLIT_NOCOLOR; r++) {
            if (color[r] == color[mine]) {
                add_rank(worker, set_p, m, split_rank(color, key, parent->nranks[m], r), parent->world[m][r]);
            }
        }
        set_p->whole &= set_p->nranks[m] == parent->nranks[m];
    }
    end_children(worker, parent, flags, start, set_p);
}

bool cf_set_shrink(struct cf_worker *worker, const struct cf_set *parent, const bool *excluded, int flags,
                   struct cf_set *set_p)
{
    ncclConfig_t config;
    int without[CF_MAX_RANKS], count = 0;
    if (nccl.CommShrink == NULL) {
        return false;
    }
    for (int r = worker->nranks; r-- > 0;) { /* in any order */
        if (excluded[r]) {
            without[count++] = r;
        }
    }
    *set_p = (struct cf_set){.expected = parent->expected};
    double start = cf_now();
    cf_calls_begin(worker, false);
    for (int m = 0; cf_use(worker, m); m++) {
        if (excluded[parent->rank[m]]) {
            continue;
        }
        for (int r = 0; r < parent->nranks[m]; r++) {
            if (!excluded[r]) {
                add_rank(worker, set_p, m, set_p->nranks[m], parent->world[m][r]);
            }
        }
        CF_START(worker, CommShrink(parent->comm[m], without, count, &set_p->comm[m], configure(flags, &config),
                                    NCCL_SHRINK_DEFAULT));
    }
    end_children(worker, parent, flags, start, set_p);
    return true;
}

bool cf_set_grow(struct cf_worker *worker, const struct cf_set *parent, const bool *knows, int flags,
                 struct cf_set *set_p)
{
    ncclConfig_t config;
    if (nccl.CommGrow == NULL || nccl.CommGetUniqueId == NULL || worker->nccl_version < GROW_SINCE) {
        return false;
    }
    *set_p = (struct cf_set){.expected = parent->expected};
    cf_set_fill(worker, -1, set_p);
    ncclUniqueId id = cf_next_id(worker, 0, parent->comm[0]);
    double start = cf_now();
    cf_calls_begin(worker, false);
    for (int m = 0; cf_use(worker, m); m++) {
        int rank = worker->member[m].world_rank;
        bool is_new = parent->comm[m] == NULL, gives = is_new || (knows != NULL ? knows[rank] : rank == 0);
        CF_START(worker, CommGrow(parent->comm[m], worker->nranks, gives ? &id : NULL, is_new ? rank : -1,
                                  &set_p->comm[m], configure(flags, &config)));
    }
    end_children(worker, parent, flags, start, set_p);
    return true;
}

/* --- their ends --------------------------------------------------------------------------------------------------- */

void cf_set_finalize(struct cf_worker *worker, struct cf_set *set)
{
    cf_calls_begin(worker, false);
    for (int m = 0; cf_use(worker, m); m++) {
        if (set->comm[m] != NULL) {
            CF_START(worker, CommFinalize(set->comm[m]));
        }
    }
    cf_calls_end(worker, false, set);
    cf_set_ready(worker, set);
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

void cf_set_served(const struct cf_worker *worker, const struct cf_set *set, uint64_t *served_p, uint64_t *back_p)
{
    *served_p = *back_p = 0;
    for (int m = 0; m < worker->members; m++) {
        onehop_comm_info_t info = {.served = 0};
        if (!worker->onehop || set->comm[m] == NULL || nccl.onehop_comm_info(set->comm[m], &info, sizeof info) != 0) {
            continue;
        }
        *back_p += info.fallback_calls;
        for (int a = 0; a < ONEHOP_ALGORITHM_COUNT; a++) {
            *served_p += info.calls_by_algorithm[a];
        }
    }
}
