/* SPDX-License-Identifier: MIT */
/* case_comms.c - the life of communicators */
#include <pthread.h>
#include <string.h>

#include "test/conformance/cases.h"

#define MANY 12

static void run_some(struct cf_worker *worker, const struct cf_set *set)
{
    cf_batch_run(cf_some_calls(worker, set, 7), CF_SINGLE);
}

void cf_case_comm_makers(struct cf_worker *worker)
{
    for (int maker = 0; maker < CF_MAKERS; maker++) {
        struct cf_set set;
        if (cf_set_create(worker, (enum cf_maker)maker, &set)) { /* a first call of each kind */
            cf_batch_run(cf_some_calls_from(worker, &set, 1 + maker % ONEHOP_COLLECTIVE_COUNT, 7), CF_SINGLE);
            cf_set_end(worker, &set);
        }
    }
}

static void split_and_run(struct cf_worker *worker, const int *color, const int *key, int flags)
{
    struct cf_set set;
    cf_set_split(worker, &worker->world, color, key, flags, &set);
    run_some(worker, &set);
    run_some(worker, &worker->world); /* parent and child in turn */
    run_some(worker, &set);
    cf_set_end(worker, &set);
}

void cf_case_comm_split(struct cf_worker *worker)
{
    int n = worker->nranks, same[CF_MAX_RANKS] = {0}, parts[CF_MAX_RANKS], one_out[CF_MAX_RANKS] = {0};
    int ascending[CF_MAX_RANKS], descending[CF_MAX_RANKS];
    for (int r = 0; r < n; r++) {
        parts[r] = r % 2;
        ascending[r] = r;
        descending[r] = -r;
    }
    one_out[n - 1] = NCCL_SPLIT_NOCOLOR;
    split_and_run(worker, same, ascending, 0);
    split_and_run(worker, same, descending, 0);
    split_and_run(worker, same, descending, CF_CHILD_SHARES);
    split_and_run(worker, parts, same, 0); /* equal keys: the parent's order */
    split_and_run(worker, one_out, descending, 0);
}

#define POLLERS 3

/* A thread that waits for a split of a non-blocking communicator. */
struct poller {
    pthread_t thread;
    ncclComm_t parent;
    ncclComm_t *child_p;
    ncclResult_t state;
    bool known; /* with onehop: it knows the child as soon as NCCL has told of it */
};

static void *poll_split(void *argument)
{
    struct poller *poller = argument;
    onehop_comm_info_t info;
    do {
        if (nccl.CommGetAsyncError(poller->parent, &poller->state) != ncclSuccess) {
            poller->state = ncclInternalError;
        }
    } while (poller->state == ncclInProgress);
    ncclComm_t child = __atomic_load_n(poller->child_p, __ATOMIC_ACQUIRE);
    poller->known =
        child != NULL && (nccl.onehop_comm_info == NULL || nccl.onehop_comm_info(child, &info, sizeof info) == 0);
    return NULL;
}

static void start_split(struct cf_worker *worker, const struct cf_set *parent, struct cf_set *child_p)
{
    *child_p = *parent;
    cf_calls_begin(worker, false);
    for (int m = 0; cf_use(worker, m); m++) {
        CF_START(worker, CommSplit(parent->comm[m], 0, parent->rank[m], &child_p->comm[m], NULL));
    }
    cf_calls_end(worker, false, NULL);
}

/* Splits of a non-blocking communicator go on in the background; several threads look for their end at once. */
void cf_case_comm_pollers(struct cf_worker *worker)
{
    struct cf_set parent, child;
    struct poller poller[CF_MAX_RANKS][POLLERS];
    cf_set_create(worker, CF_INIT_NONBLOCKING, &parent);
    for (int round = 0; round < (worker->full ? 20 : 3); round++) {
        start_split(worker, &parent, &child);
        for (int i = 0; i < worker->members * POLLERS; i++) {
            struct poller *one = &poller[i / POLLERS][i % POLLERS];
            *one = (struct poller){.parent = parent.comm[i / POLLERS], .child_p = &child.comm[i / POLLERS]};
            if (pthread_create(&one->thread, NULL, poll_split, one) != 0) {
                cf_die(worker, "no thread");
            }
        }
        for (int i = 0; i < worker->members * POLLERS; i++) {
            struct poller *one = &poller[i / POLLERS][i % POLLERS];
            pthread_join(one->thread, NULL);
            cf_check(worker, one->state == ncclSuccess, "the split came to %d", (int)one->state);
            cf_check(worker, one->known, "a thread has heard of the child, and onehop has not");
        }
        cf_set_ready(worker, &child);
        run_some(worker, &child);
        cf_set_end(worker, &child);
    }
    cf_set_destroy(worker, &parent);
}

/* fp8 with every op: taken, or refused where it should be. */
static void run_fp8(struct cf_worker *worker, const struct cf_set *set)
{
    for (int op = 0; op < CF_OPS; op++) {
        for (int k = 0; k < 4; k++) {
            struct cf_spec spec = {.type = k % 2 ? ncclFloat8e5m2 : ncclFloat8e4m3, .op = (enum cf_op)op, .count = 300};
            if (!cf_type_wanted(spec.type)) {
                continue;
            }
            struct cf_batch *batch = cf_batch_new(worker, set);
            spec.kind = k / 2 ? ONEHOP_REDUCESCATTER : ONEHOP_ALLREDUCE;
            cf_batch_add(batch, &spec);
            if (cf_refused(worker, set, &spec)) {
                cf_batch_expect_refusal(batch);
            } else {
                cf_batch_run(batch, CF_SINGLE);
            }
        }
    }
}

/*
 * Where there is one rank, ops with a factor have a kernel of their own, and NCCL before 2.29.7 leaves the last
 * elements as they were in all of these messages but the third and fourth (test/common/batch.c, computed).
 */
static void run_factors(struct cf_worker *worker, const struct cf_set *set)
{
    static const enum cf_op ops[] = {CF_AVG, CF_PREMUL_HOST, CF_PREMUL_DEVICE};
    static const size_t bytes[] = {19200, 80000, 80000, 80000, 512000};
    static const unsigned more[] = {1, 3, 5, 0, 31}; /* elements; blocks: 2, 5, 5, 5, 32 */
    for (int t = 0; t < (int)ncclNumTypes; t++) {
        struct cf_batch *batch = cf_batch_new(worker, set);
        for (size_t i = 0; i < sizeof ops / sizeof *ops * (sizeof bytes / sizeof *bytes); i++) {
            struct cf_spec spec = {.type = (ncclDataType_t)t, .op = ops[i % 3], .in_place = i % 2};
            spec.kind = i % 4 == 3 ? ONEHOP_REDUCESCATTER : ONEHOP_ALLREDUCE;
            spec.count = bytes[i / 3] / cf_types[t].size + more[i / 3];
            if (!cf_refused(worker, set, &spec) && cf_type_wanted(spec.type)) {
                cf_batch_add(batch, &spec);
            }
        }
        cf_batch_run(batch, CF_SINGLE);
    }
}

void cf_case_comm_alone(struct cf_worker *worker)
{
    int color[CF_MAX_RANKS], key[CF_MAX_RANKS] = {0};
    struct cf_set set;
    for (int r = 0; r < worker->nranks; r++) {
        color[r] = r;
    }
    split_and_run(worker, color, key, 0);
    cf_set_split(worker, &worker->world, color, key, 0, &set);
    run_fp8(worker, &set);
    run_factors(worker, &set);
    cf_set_end(worker, &set);
}

void cf_case_comm_shrink(struct cf_worker *worker)
{
    const bool excluded[CF_MAX_RANKS] = {[1] = true};
    struct cf_set set;
    if (worker->nranks < 3) {
        cf_skip(worker, "two ranks do not shrink");
        return;
    }
    if (!cf_set_shrink(worker, &worker->world, excluded, 0, &set)) {
        cf_skip(worker, "this NCCL has no ncclCommShrink");
        return;
    }
    run_some(worker, &set);
    run_some(worker, &worker->world);
    cf_set_end(worker, &set);
}

void cf_case_comm_grow(struct cf_worker *worker)
{
    int n = worker->nranks, color[CF_MAX_RANKS] = {0}, key[CF_MAX_RANKS] = {0};
    struct cf_set fewer, set;
    color[n - 1] = NCCL_SPLIT_NOCOLOR;
    cf_set_split(worker, &worker->world, color, key, 0, &fewer);
    if (cf_set_grow(worker, &fewer, NULL, 0, &set)) {
        run_some(worker, &set);
        run_some(worker, &worker->world);
        cf_set_end(worker, &set);
    } else {
        cf_skip(worker, "this NCCL has no ncclCommGrow");
    }
    cf_set_destroy(worker, &fewer);
}

/* Ranks end them in different orders: it is no collective call. */
void cf_case_comm_many(struct cf_worker *worker)
{
    struct cf_set set[MANY];
    int sets = worker->full ? MANY : 4;
    for (int s = 0; s < sets; s++) {
        cf_set_create(worker, s % 2 ? CF_INIT_CONFIG : CF_INIT_RANK, &set[s]);
    }
    for (int round = 0; round < 2; round++) {
        for (int s = 0; s < sets; s++) {
            run_some(worker, &set[s]);
        }
    }
    for (int s = 0; s < sets; s++) {
        int which = worker->index % 2 == 0 ? s : sets - 1 - s;
        cf_set_destroy(worker, &set[(which + worker->index / 2) % sets]);
    }
}

/* Finalize flushes: calls made before it come to their end. */
void cf_case_comm_finalize(struct cf_worker *worker)
{
    struct cf_set set;
    cf_set_create(worker, CF_INIT_RANK, &set);
    struct cf_batch *batch = cf_batch_new(worker, &set);
    for (int i = 0; i < 20; i++) {
        cf_batch_add(batch, &(struct cf_spec){.kind = (enum onehop_collective)(i % ONEHOP_COLLECTIVE_COUNT),
                                              .type = ncclFloat32,
                                              .family = CF_EXACT,
                                              .count = 3000});
    }
    cf_batch_load(batch, 0);
    cf_batch_issue(batch, CF_SINGLE, 0);
    cf_set_finalize(worker, &set);
    cf_batch_finish(batch, 0);
    cf_set_destroy(worker, &set);
}
