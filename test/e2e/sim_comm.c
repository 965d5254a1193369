/* SPDX-License-Identifier: MIT */
/* sim_comm.c - GPUs and communicators of sim_app's ranks, made in every way that NCCL offers. */
#include "sim_app.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POLL_MICROSECONDS 500
#define SCALABLE_IDS 3 /* at most; not more than ranks */

void app_member_use(const struct app_member *member)
{
    APP_CU(cuCtxSetCurrent(member->context));
}

CUgraphExec app_member_instantiate(CUgraph graph)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUgraphExec exec;
    APP_CU(cuThreadExchangeStreamCaptureMode(&mode));
    APP_CU(cuGraphInstantiate(&exec, graph, 0));
    APP_CU(cuThreadExchangeStreamCaptureMode(&mode));
    return exec;
}

void app_member_open(struct app_worker *worker, struct app_member *member)
{
    const struct app_options *options = worker->options;
    CUdevice device;
    member->device = options->own_gpu ? member->world_rank % options->local : member->world_rank;
    APP_CU(cuInit(0));
    APP_CU(cuDeviceGet(&device, member->device));
    APP_CU(cuDevicePrimaryCtxRetain(&member->context, device));
    app_member_use(member);
    for (int s = 0; s < options->streams; s++) {
        APP_CU(cuStreamCreate(&member->stream[s], CU_STREAM_NON_BLOCKING));
    }
    member->hash = 0xcbf29ce484222325u;
}

void app_member_close(struct app_worker *worker, struct app_member *member)
{
    app_member_use(member);
    for (int s = 0; s < worker->options->streams; s++) {
        APP_CU(cuStreamDestroy(member->stream[s]));
    }
    APP_CU(cuDevicePrimaryCtxRelease(member->device));
}

void app_member_sync(const struct app_worker *worker, const struct app_member *member)
{
    app_member_use(member);
    for (int s = 0; s < worker->options->streams; s++) {
        APP_CU(cuStreamSynchronize(member->stream[s]));
    }
}

/* The next unique id of the job, from the worker whose first rank is `leader` to all. */
static ncclUniqueId next_id(struct app_worker *worker, int leader)
{
    uint32_t index = worker->ids++;
    APP_CHECK(index < APP_MAX_IDS, "too many communicators");
    if (worker->member[0].world_rank == leader) {
        APP_NCCL(ncclGetUniqueId(&worker->board->id[index]));
        atomic_store(&worker->board->ids, index + 1);
    }
    while (atomic_load(&worker->board->ids) <= index) {
        usleep(POLL_MICROSECONDS);
    }
    return worker->board->id[index];
}

void app_jitter(const struct app_worker *worker)
{
    static _Thread_local unsigned seed;
    if (worker->options->jitter > 0) {
        seed = seed != 0 ? seed : (unsigned)worker->options->seed * 31 + (unsigned)worker->member[0].world_rank + 1;
        usleep((useconds_t)(rand_r(&seed) % worker->options->jitter));
    }
}

void app_comm_ready(const struct app_worker *worker, ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        usleep(POLL_MICROSECONDS);
        app_jitter(worker);
        APP_NCCL(ncclCommGetAsyncError(comm, &state));
    }
    APP_NCCL_IS(state, ncclSuccess);
}

/* nccl.h of 2.28 does not have it; weak: nor need the library. */
__attribute__((weak)) ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank,
                                                ncclComm_t *newcomm, ncclConfig_t *config);

static int scalable_ids(int nranks)
{
    return nranks < SCALABLE_IDS ? nranks : SCALABLE_IDS;
}

static bool is_nonblocking(const struct app_options *options)
{
    return options->make == APP_MAKE_NONBLOCKING || options->nonblocking;
}

static ncclResult_t init_rank(const struct app_options *options, const struct app_member *member, int nranks,
                              ncclUniqueId *id, ncclComm_t *comm)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = !is_nonblocking(options);
    if (options->make == APP_MAKE_SCALABLE) {
        return ncclCommInitRankScalable(comm, nranks, member->world_rank, scalable_ids(nranks), id, &config);
    }
    return options->make == APP_MAKE_CONFIG || !config.blocking
               ? ncclCommInitRankConfig(comm, nranks, *id, member->world_rank, &config)
               : ncclCommInitRank(comm, nranks, *id, member->world_rank);
}

/* The ranks that come later, if any, are the last. */
static int parent_ranks(const struct app_options *options)
{
    int nranks = options->nranks;
    while (options->make == APP_MAKE_GROW && nranks > 0 && options->color[nranks - 1] < 0) {
        nranks--;
    }
    return nranks;
}

/* A communicator over the whole job, for every member; *which gives the place of the handle. */
static void make_world(struct app_worker *worker, ncclComm_t *(*which)(struct app_member *, int), int index)
{
    const struct app_options *options = worker->options;
    ncclUniqueId id[SCALABLE_IDS];
    int ids = options->make == APP_MAKE_SCALABLE ? scalable_ids(options->nranks) : 1;
    bool grouped = worker->members > 1, waits = is_nonblocking(options);
    for (int i = 0; i < ids; i++) {
        id[i] = next_id(worker, 0);
    }
    if (grouped) {
        APP_NCCL(ncclGroupStart());
    }
    for (int m = 0; m < worker->members; m++) {
        struct app_member *member = &worker->member[m];
        app_member_use(member);
        if (options->make == APP_MAKE_GROW && options->color[member->world_rank] < 0) {
            continue; /* comes later */
        }
        ncclResult_t result = init_rank(options, member, parent_ranks(options), id, which(member, index));
        APP_CHECK(result == ncclSuccess || (waits && result == ncclInProgress), "init gave %d", (int)result);
        APP_CHECK(*which(member, index) != NULL, "no communicator after the call");
    }
    if (grouped) {
        APP_NCCL_IS(ncclGroupEnd(), waits ? ncclInProgress : ncclSuccess);
    }
    for (int m = 0; m < worker->members && waits; m++) {
        if (*which(&worker->member[m], index) != NULL) {
            app_comm_ready(worker, *which(&worker->member[m], index));
        }
    }
}

static ncclComm_t *place_parent(struct app_member *member, int index)
{
    (void)index;
    return &member->parent;
}

static ncclComm_t *place_comm(struct app_member *member, int index)
{
    return &member->comm[index].comm;
}

static void make_all(struct app_worker *worker, int index)
{
    ncclComm_t comms[APP_MAX_RANKS];
    APP_NCCL(ncclCommInitAll(comms, worker->members, NULL));
    for (int m = 0; m < worker->members; m++) {
        worker->member[m].comm[index].comm = comms[m];
    }
}

static ncclResult_t shrink(const struct app_options *options, const struct app_member *member, ncclComm_t *comm,
                           ncclConfig_t *config)
{
    int excluded[APP_MAX_RANKS], count = 0;
    for (int r = options->nranks; r-- > 0;) { /* in any order */
        if (options->color[r] < 0) {
            excluded[count++] = r;
        }
    }
    return ncclCommShrink(member->parent, excluded, count, comm, config, NCCL_SHRINK_DEFAULT);
}

static ncclResult_t make_child(const struct app_worker *worker, const struct app_member *member, ncclUniqueId *id,
                               ncclComm_t *comm)
{
    const struct app_options *options = worker->options;
    int me = member->world_rank;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = !options->nonblocking;
    config.splitShare = options->seed % 3 == 0;
    switch (options->make) {
    case APP_MAKE_SHRINK:
        return options->color[me] < 0 ? ncclSuccess : shrink(options, member, comm, &config);
    case APP_MAKE_GROW:
        if (member->parent == NULL) {
            return ncclCommGrow(NULL, options->nranks, id, me, comm, &config);
        }
        return ncclCommGrow(member->parent, options->nranks, options->key[me] > 0 ? id : NULL, -1, comm, &config);
    default:
        return ncclCommSplit(member->parent, options->color[me], options->key[me], comm, &config);
    }
}

/* Who is in the child: a rank without colour is not, but comes in when it grows. */
static bool has_child(const struct app_options *options, const struct app_member *member)
{
    return options->make == APP_MAKE_GROW || options->color[member->world_rank] >= 0;
}

static void make_children(struct app_worker *worker, int index)
{
    const struct app_options *options = worker->options;
    bool grouped = worker->members > 1, waits = options->nonblocking;
    ncclUniqueId id = options->make == APP_MAKE_GROW ? next_id(worker, 0) : (ncclUniqueId){0};
    if (grouped) {
        APP_NCCL(ncclGroupStart());
    }
    for (int m = 0; m < worker->members; m++) {
        struct app_member *member = &worker->member[m];
        app_member_use(member);
        ncclResult_t result = make_child(worker, member, &id, &member->comm[index].comm);
        APP_CHECK(result == ncclSuccess || (waits && result == ncclInProgress), "child gave %d", (int)result);
    }
    if (grouped) {
        APP_NCCL_IS(ncclGroupEnd(), waits ? ncclInProgress : ncclSuccess);
    }
    for (int m = 0; m < worker->members; m++) {
        struct app_member *member = &worker->member[m];
        if (waits && member->parent != NULL) {
            app_comm_ready(worker, member->parent);
        }
        APP_CHECK((member->comm[index].comm != NULL) == has_child(options, member), "a communicator or none");
        if (waits && member->comm[index].comm != NULL) {
            app_comm_ready(worker, member->comm[index].comm);
        }
    }
}

/* True when the child's rank order puts a before b. */
static bool before(const struct app_options *options, int a, int b)
{
    return options->key[a] < options->key[b] || (options->key[a] == options->key[b] && a < b);
}

/* Who is in the communicator and in which order, by the rules of NCCL; compared with what the library says. */
static void describe(const struct app_options *options, const struct app_member *member, bool split,
                     struct app_comm *comm)
{
    int me = member->world_rank, nranks = 0, rank, device;
    for (int r = 0; r < options->nranks; r++) {
        if (split && options->color[r] != options->color[me]) {
            continue;
        }
        int place = nranks++;
        for (; split && place > 0 && before(options, r, comm->world[place - 1]); place--) {
            comm->world[place] = comm->world[place - 1];
        }
        comm->world[place] = r;
    }
    comm->nranks = nranks;
    for (int r = 0; r < nranks; r++) {
        comm->rank = comm->world[r] == me ? r : comm->rank;
    }
    APP_NCCL(ncclCommCount(comm->comm, &nranks));
    APP_NCCL(ncclCommUserRank(comm->comm, &rank));
    APP_NCCL(ncclCommCuDevice(comm->comm, &device));
    APP_CHECK(nranks == comm->nranks && rank == comm->rank && device == member->device,
              "communicator says rank %d of %d on device %d, expected %d of %d on %d", rank, nranks, device, comm->rank,
              comm->nranks, member->device);
}

static void make_op(const struct app_options *options, struct app_comm *comm)
{
    float scale = APP_PREMUL_SCALE;
    comm->op = app_data_op(options);
    if (strcmp(options->op, "premul") == 0) {
        APP_NCCL(ncclRedOpCreatePreMulSum(&comm->op, &scale, ncclFloat32, ncclScalarHostImmediate, comm->comm));
    }
}

void app_comm_make(struct app_worker *worker)
{
    const struct app_options *options = worker->options;
    bool splits = options->make >= APP_MAKE_SPLIT;
    if (splits) {
        make_world(worker, place_parent, 0);
    }
    for (int c = 0; c < options->comms; c++) {
        bool is_parent = options->make == APP_MAKE_FAMILY && c == 0;
        if (is_parent) {
            for (int m = 0; m < worker->members; m++) {
                worker->member[m].comm[0].comm = worker->member[m].parent;
            }
        } else if (splits) {
            make_children(worker, c);
        } else if (options->make == APP_MAKE_ALL) {
            make_all(worker, c);
        } else {
            make_world(worker, place_comm, c);
        }
        for (int m = 0; m < worker->members; m++) {
            struct app_member *member = &worker->member[m];
            if (member->comm[c].comm != NULL) {
                describe(options, member, splits && !is_parent && options->make != APP_MAKE_GROW, &member->comm[c]);
                make_op(options, &member->comm[c]);
            }
        }
    }
}

void app_comm_place(struct app_worker *worker, int without)
{
    const struct app_options *options = worker->options;
    const struct app_member *member = &worker->member[0];
    struct app_comm *comm = &worker->member[0].comm[0];
    comm->nranks = 0;
    for (int r = 0; r < options->nranks; r++) {
        comm->rank = r == member->world_rank ? comm->nranks : comm->rank;
        if (r != without) {
            comm->world[comm->nranks++] = r;
        }
    }
    comm->op = app_data_op(options);
}

void app_comm_renew(struct app_worker *worker, int without)
{
    struct app_comm *comm = &worker->member[0].comm[0];
    ncclUniqueId id = next_id(worker, without == 0 ? 1 : 0);
    app_comm_place(worker, without);
    app_member_use(&worker->member[0]);
    APP_NCCL(ncclCommInitRank(&comm->comm, comm->nranks, id, comm->rank));
}

void app_comm_begin(struct app_worker *worker, bool skip)
{
    struct app_comm *comm = &worker->member[0].comm[0];
    ncclUniqueId id = next_id(worker, worker->options->victim == 0 ? 1 : 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    app_comm_place(worker, -1);
    app_member_use(&worker->member[0]);
    if (!skip) {
        ncclResult_t result = ncclCommInitRankConfig(&comm->comm, comm->nranks, id, comm->rank, &config);
        APP_CHECK(result == ncclSuccess || result == ncclInProgress, "init gave %d", (int)result);
    }
}

static void end_comm(const struct app_options *options, struct app_comm *comm)
{
    if (comm->op >= ncclNumOps) {
        APP_NCCL(ncclRedOpDestroy(comm->op, comm->comm));
    }
    if (options->seed % 2 == 0) {
        APP_NCCL(ncclCommFinalize(comm->comm));
    }
    APP_NCCL(ncclCommDestroy(comm->comm));
}

void app_comm_end(struct app_worker *worker)
{
    for (int m = 0; m < worker->members; m++) {
        struct app_member *member = &worker->member[m];
        app_member_use(member);
        for (int c = worker->options->comms - 1; c >= 0; c--) {
            if (member->comm[c].comm != NULL && member->comm[c].comm != member->parent) {
                end_comm(worker->options, &member->comm[c]);
            }
            member->comm[c].comm = NULL;
        }
        if (member->parent != NULL) {
            APP_NCCL(ncclCommDestroy(member->parent));
            member->parent = NULL;
        }
    }
}
