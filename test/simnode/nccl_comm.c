/* SPDX-License-Identifier: MIT */
/*
 * nccl_comm.c - communicators of the simulated NCCL: creation, split, end, queries
 *
 * A communicator is used by one thread at a time, as NCCL asks; abort may come from any thread.
 */
#include "nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define SHRINK_ABORT 1   /* NCCL_SHRINK_ABORT */
#define GROW_SINCE 22902 /* the version that has ncclCommGrow */
#define END_POLL_MICROSECONDS 500
#define ABORT_POLLS 20000 /* 10 seconds */

/* As in every NCCL; tools read it from the file. */
#define VERSION_TEXT(major_, minor_, patch_) "NCCL version " #major_ "." #minor_ "." #patch_ "+simnode"
#define EXPANDED(major_, minor_, patch_) VERSION_TEXT(major_, minor_, patch_)
__attribute__((used)) static const char version_text[] = EXPANDED(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);

SIMNCCL_API(ncclResult_t, GetVersion, (int *version))
{
    *version = simnccl_version();
    return ncclSuccess;
}

SIMNCCL_API(const char *, GetErrorString, (ncclResult_t result))
{
    static const char *const text[ncclNumResults] = {
        "no error",         "unhandled cuda error", "system error", "internal error",
        "invalid argument", "invalid usage",        "remote error", "operation in progress",
    };
    return (unsigned)result < ncclNumResults ? text[result] : "unknown result code";
}

SIMNCCL_API(ncclResult_t, GetUniqueId, (ncclUniqueId * id))
{
    uint64_t random;
    const char *address = getenv("NCCL_COMM_ID"); /* as with NCCL, nothing about such an id is random */
    if (address != NULL) {
        random = simnccl_hash(address, strlen(address));
    } else if (getrandom(&random, sizeof random, 0) != sizeof random) {
        return ncclSystemError;
    }
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "simnccl-%016llx", (unsigned long long)random);
    simnode_tell("id", id->internal);
    return ncclSuccess;
}

/* The calling thread's device. Without a context, device 0 and its primary context, as the CUDA runtime would do. */
static ncclResult_t current_device(int *device_p)
{
    CUdevice device;
    CUcontext context;
    SIMNCCL_TRY_CU(cuInit(0));
    if (cuCtxGetDevice(&device) != CUDA_SUCCESS) {
        SIMNCCL_TRY_CU(cuDeviceGet(&device, 0));
        SIMNCCL_TRY_CU(cuDevicePrimaryCtxRetain(&context, device));
        SIMNCCL_TRY_CU(cuCtxSetCurrent(context));
    }
    *device_p = device;
    return ncclSuccess;
}

/* Handles come again, as they do from malloc, but surely: the next communicator gets the one that was freed last. */
static _Atomic(ncclComm_t) spare;

static ncclComm_t handle_new(void)
{
    ncclComm_t comm = atomic_exchange(&spare, NULL);
    comm = comm != NULL ? comm : simnode_new(sizeof *comm);
    memset(comm, 0, sizeof *comm);
    return comm;
}

static void handle_free(ncclComm_t comm)
{
    free(atomic_exchange(&spare, comm));
}

static void comm_free(ncclComm_t comm)
{
    cuDevicePrimaryCtxRelease(comm->core->device);
    simnccl_profiler_finish(comm);
    simnccl_core_release(comm->core);
    simnccl_net_finish(comm);
    handle_free(comm);
}

static int capability_of(CUdevice device)
{
    int major = 0, minor = 0;
    cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    return major * 10 + minor;
}

static ncclResult_t comm_create(const char *name, int nranks, int rank, int device, bool blocking, ncclComm_t *comm_p)
{
    ncclComm_t comm = handle_new();
    comm->blocking = blocking;
    comm->hash = simnccl_hash(name, strlen(name));
    comm->core = simnccl_core_create(name, nranks, rank);
    comm->core->device = device;
    comm->core->capability = capability_of(device);
    if (cuDevicePrimaryCtxRetain(&comm->core->context, device) != CUDA_SUCCESS) {
        simnccl_core_release(comm->core);
        handle_free(comm);
        return ncclUnhandledCudaError;
    }
    *comm_p = comm;
    return ncclSuccess;
}

/* Meets the other ranks, on a network that is chosen before. */
static ncclResult_t join(ncclComm_t comm)
{
    SIMNCCL_TRY(simnccl_net_init(comm));
    simnccl_profiler_init(comm);
    return simnccl_core_join(comm->core);
}

void simnccl_be_late(void)
{
    const uint32_t limit = simnode_setting("SIMNODE_NCCL_DELAY_US");
    uint32_t random;
    if (limit > 0 && getrandom(&random, sizeof random, 0) == sizeof random) {
        usleep(random % limit);
    }
}

static void be_late(const struct simnccl_job *job)
{
    if (job->background) {
        simnccl_be_late();
    }
}

static ncclResult_t run_init(struct simnccl_job *job)
{
    struct simnccl_core *core = job->comm->core;
    be_late(job);
    ncclResult_t result = join(job->comm);
    be_late(job);
    core->result = result;
    return result;
}

/* One rank of a new communicator, on `device`; called inside a group. *comm_p is set at once. */
static ncclResult_t add_rank(ncclComm_t *comm_p, int nranks, const char *name, int rank, int device, bool blocking)
{
    struct simnccl_job job = {.run = run_init, .blocking = blocking, .background = !blocking};
    ncclResult_t result = comm_create(name, nranks, rank, device, blocking, &job.comm);
    if (result == ncclSuccess) {
        simnccl_group_add_job(&job);
        *comm_p = job.comm;
    }
    return simnccl_group_fail(result);
}

static ncclResult_t init_rank(ncclComm_t *comm_p, int nranks, const char *name, int rank, bool blocking)
{
    int device;
    if (comm_p == NULL || nranks < 1 || nranks > SIMNCCL_MAX_RANKS || rank < 0 || rank >= nranks) {
        return simnccl_group_fail(ncclInvalidArgument);
    }
    *comm_p = NULL;
    ncclResult_t result = current_device(&device);
    if (result != ncclSuccess) {
        return simnccl_group_fail(result);
    }
    simnccl_group_enter();
    result = add_rank(comm_p, nranks, name, rank, device, blocking);
    ncclResult_t end = simnccl_group_leave();
    if (result == ncclSuccess && end != ncclSuccess && end != ncclInProgress) {
        comm_free(*comm_p);
        *comm_p = NULL;
    }
    return result != ncclSuccess ? result : end;
}

/* The environment overrides the configuration. */
static bool config_blocking(const ncclConfig_t *config, bool inherited)
{
    const char *text = getenv("NCCL_COMM_BLOCKING");
    if (text != NULL && (strcmp(text, "0") == 0 || strcmp(text, "1") == 0)) {
        return text[0] == '1';
    }
    return config == NULL ? inherited : config->blocking != 0; /* left open in a configuration: 1 */
}

SIMNCCL_API(ncclResult_t, CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank))
{
    simnccl_count(SIMNCCL_CommInitRank);
    return init_rank(comm, nranks, id.internal, rank, true);
}

SIMNCCL_API(ncclResult_t, CommInitRankConfig,
            (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config))
{
    return init_rank(comm, nranks, id.internal, rank, config_blocking(config, true));
}

/* A name made from bytes that are the same on all ranks and random: as hard to guess as they are. */
static void make_name(const void *data, size_t bytes, char *name_p)
{
    snprintf(name_p, SIMNCCL_NAME_BYTES, "simnccl-%016llx", (unsigned long long)simnccl_hash(data, bytes));
}

SIMNCCL_API(ncclResult_t, CommInitRankScalable,
            (ncclComm_t * comm, int nranks, int rank, int ids, ncclUniqueId *id, ncclConfig_t *config))
{
    if (id == NULL || ids < 1 || ids > nranks) {
        return simnccl_group_fail(ncclInvalidArgument);
    }
    char name[SIMNCCL_NAME_BYTES];
    make_name(id, (size_t)ids * sizeof *id, name);
    return init_rank(comm, nranks, name, rank, config_blocking(config, true));
}

SIMNCCL_API(ncclResult_t, CommInitAll, (ncclComm_t * comms, int ndev, const int *devices))
{
    ncclUniqueId id;
    if (comms == NULL || ndev < 1 || ndev > SIMNCCL_MAX_RANKS) {
        return simnccl_group_fail(ncclInvalidArgument);
    }
    ncclResult_t result = ncclGetUniqueId(&id); /* by its public name, as NCCL does */
    simnccl_group_enter();
    for (int r = 0; r < ndev && result == ncclSuccess; r++) {
        result = add_rank(&comms[r], ndev, id.internal, r, devices != NULL ? devices[r] : r, true);
    }
    ncclResult_t end = simnccl_group_leave();
    return result != ncclSuccess ? result : end;
}

struct split_wish {
    int color;
    int key;
};

/* The child's name, the same on all ranks of a colour. */
static void child_name(const char *parent, uint32_t split, int color, char *name_p)
{
    char text[SIMNCCL_NAME_BYTES + 32];
    int length = snprintf(text, sizeof text, "%s/%u/%d", parent, split, color);
    make_name(text, (size_t)length, name_p);
}

/* Where this rank stands among those of its colour, by key, then by parent rank. */
static void child_place(const struct simnccl_core *parent, const struct split_wish *mine, int *rank_p, int *nranks_p)
{
    int rank = 0, nranks = 0;
    for (int r = 0; r < parent->nranks; r++) {
        const struct split_wish *wish = simnccl_core_piece(parent, SIMNCCL_HOST, r);
        if (wish->color == mine->color) {
            nranks++;
            rank += wish->key < mine->key || (wish->key == mine->key && r < parent->rank);
        }
    }
    *rank_p = rank;
    *nranks_p = nranks;
}

/* Joins the child's ranks, if there is a child, and tells the parent how it went. */
static ncclResult_t finish_child(struct simnccl_job *job, ncclResult_t result, ncclComm_t child)
{
    if (result == ncclSuccess && child != NULL) {
        result = join(child);
        be_late(job);
        child->core->result = result;
        if (result != ncclSuccess) {
            comm_free(child);
            child = NULL;
        }
    }
    *job->comm_p = child;
    job->parent->result = result;
    simnccl_core_release(job->parent);
    return result;
}

static ncclResult_t run_split(struct simnccl_job *job)
{
    struct simnccl_core *parent = job->parent;
    struct split_wish wish = {job->color, job->key};
    char name[SIMNCCL_NAME_BYTES];
    int rank, nranks;
    uint32_t split = ++parent->splits;
    ncclComm_t child = NULL;
    ncclResult_t result = simnccl_core_exchange(parent, SIMNCCL_HOST, split, &wish, sizeof wish);
    if (result == ncclSuccess && wish.color != NCCL_SPLIT_NOCOLOR) {
        child_name(parent->name, split, wish.color, name);
        child_place(parent, &wish, &rank, &nranks);
        result = comm_create(name, nranks, rank, parent->device, job->blocking, &child);
    }
    return finish_child(job, result, child);
}

/* A job that holds its parent. Whether it goes on in the background, the state of a communicator tells. */
static ncclResult_t run_on_parent(struct simnccl_job *job)
{
    simnccl_core_retain(job->parent);
    simnccl_group_enter();
    simnccl_group_add_job(job);
    ncclResult_t result = simnccl_group_leave();
    return result == ncclInProgress ? ncclSuccess : result;
}

/*
 * A call on a parent that makes a child: in the background where the parent is non-blocking, or now, or with the group.
 * As with NCCL (2.28.9, src/init.cc, ncclCommSplit), that it goes on in the background only the parent's state tells.
 */
static ncclResult_t make_child(struct simnccl_job *job, ncclComm_t parent)
{
    *job->comm_p = NULL;
    parent->core->result = job->background ? ncclInProgress : ncclSuccess;
    return run_on_parent(job);
}

SIMNCCL_API(ncclResult_t, CommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config))
{
    if (comm == NULL || newcomm == NULL || comm->core->result != ncclSuccess || color < NCCL_SPLIT_NOCOLOR) {
        return simnccl_group_fail(ncclInvalidArgument);
    }
    struct simnccl_job job = {
        .run = run_split,
        .comm_p = newcomm,
        .parent = comm->core,
        .color = color,
        .key = key,
        .blocking = config_blocking(config, comm->blocking),
        .background = !comm->blocking,
    };
    return make_child(&job, comm);
}

/*
 * Waits until nothing of the communicator runs any more, and for graphs that hold it, be it aborted or not: NCCL
 * (2.28.3, src/init.cc, commDestroySync) polls until localPersistentRefs is 0.
 */
static void drain(struct simnccl_core *core)
{
    for (unsigned polls = 0; core->pending > 0 || core->result == ncclInProgress; polls++) {
        if (core->aborted && polls > ABORT_POLLS) {
            break;
        }
        usleep(END_POLL_MICROSECONDS);
    }
    while (core->graphs > 0) {
        usleep(END_POLL_MICROSECONDS);
    }
}

static void interrupt(struct simnccl_core *core)
{
    simnccl_core_retain(core); /* another thread may abort while this one revokes */
    core->aborted = true;
    if (core->segment != NULL) {
        simnccl_core_ring(core);
    }
    drain(core);
    simnccl_core_release(core);
}

static void end(ncclComm_t comm)
{
    struct simnccl_core *core = comm->core;
    if (core->last_event != NULL) {
        cuEventDestroy(core->last_event);
    }
    if (core->last_captured_event != NULL) {
        cuEventDestroy(core->last_captured_event);
    }
    comm_free(comm);
}

/* How often the ranks that stay have shrunk to the same ranks: as with NCCL, other ranks have no part in the name. */
static uint32_t count_shrink(struct simnccl_core *parent, uint32_t excluded)
{
    int i = 0;
    while (i < SIMNCCL_MAX_SHRINKS - 1 && parent->shrink[i].count > 0 && parent->shrink[i].excluded != excluded) {
        i++;
    }
    parent->shrink[i].excluded = excluded;
    return ++parent->shrink[i].count;
}

/* Only those that stay take part: the parent's exchange would wait for the others. */
static ncclResult_t run_shrink(struct simnccl_job *job)
{
    struct simnccl_core *parent = job->parent;
    char text[SIMNCCL_NAME_BYTES + 32], name[SIMNCCL_NAME_BYTES];
    int rank = 0, nranks = 0;
    ncclComm_t child = NULL;
    for (int r = 0; r < parent->nranks; r++) {
        bool stays = !(job->excluded & 1U << r);
        nranks += stays;
        rank += stays && r < parent->rank;
    }
    int length =
        snprintf(text, sizeof text, "%s-%u/%x", parent->name, count_shrink(parent, job->excluded), job->excluded);
    make_name(text, (size_t)length, name);
    ncclResult_t result = comm_create(name, nranks, rank, parent->device, job->blocking, &child);
    return finish_child(job, result, child);
}

SIMNCCL_API(ncclResult_t, CommShrink,
            (ncclComm_t comm, int *excluded, int count, ncclComm_t *newcomm, ncclConfig_t *config, int flags))
{
    if (comm == NULL || excluded == NULL || newcomm == NULL || count < 1 || count >= comm->core->nranks) {
        return simnccl_group_fail(ncclInvalidArgument);
    }
    struct simnccl_job job = {.run = run_shrink,
                              .comm_p = newcomm,
                              .parent = comm->core,
                              .blocking = config_blocking(config, comm->blocking),
                              .background = !comm->blocking};
    for (int i = 0; i < count; i++) {
        if (excluded[i] < 0 || excluded[i] >= comm->core->nranks || excluded[i] == comm->core->rank) {
            return simnccl_group_fail(ncclInvalidArgument);
        }
        job.excluded |= 1U << excluded[i];
    }
    if (flags & SHRINK_ABORT) {
        interrupt(comm->core);
        comm->core->aborted = false;
    }
    return make_child(&job, comm);
}

/* The ranks of the parent learn the id from the one that has it; the new ones have it. */
static ncclResult_t run_grow(struct simnccl_job *job)
{
    struct simnccl_core *parent = job->parent;
    struct simnccl_core *core = job->comm->core;
    ncclUniqueId id = job->id;
    ncclResult_t result = simnccl_core_exchange(parent, SIMNCCL_HOST, (uint32_t)core->nranks, &id, sizeof id);
    for (int r = 0; r < parent->nranks && id.internal[0] == '\0'; r++) {
        id = *(const ncclUniqueId *)simnccl_core_piece(parent, SIMNCCL_HOST, r);
    }
    if (result == ncclSuccess) {
        snprintf(core->name, sizeof core->name, "%.*s", SIMNCCL_NAME_BYTES - 1, id.internal);
        job->comm->hash = simnccl_hash(core->name, strlen(core->name));
        be_late(job);
        result = join(job->comm);
    }
    be_late(job);
    core->result = result;
    simnccl_core_release(parent);
    return result;
}

/* For a rank of the parent. The handle is there at once, as with NCCL, and its state tells when it is good. */
static ncclResult_t grow(struct simnccl_job *job, ncclComm_t parent, int nranks, ncclComm_t *newcomm)
{
    ncclResult_t result = comm_create("", nranks, parent->core->rank, parent->core->device, job->blocking, &job->comm);
    if (result != ncclSuccess) {
        return simnccl_group_fail(result);
    }
    *newcomm = job->comm;
    return run_on_parent(job);
}

static bool has_grow(void)
{
    int version;
    return ncclGetVersion(&version) == ncclSuccess && version >= GROW_SINCE;
}

/* nccl.h of 2.28 does not have these two. */
SIMNCCL_EXPORT ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id);
SIMNCCL_EXPORT ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank,
                                         ncclComm_t *newcomm, ncclConfig_t *config);

SIMNCCL_API(ncclResult_t, CommGetUniqueId, (ncclComm_t comm, ncclUniqueId *id))
{
    return comm == NULL || !has_grow() ? ncclInvalidArgument : ncclGetUniqueId(id);
}

SIMNCCL_API(ncclResult_t, CommGrow,
            (ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm, ncclConfig_t *config))
{
    if (newcomm == NULL || !has_grow() || nranks > SIMNCCL_MAX_RANKS || (comm == NULL && id == NULL) ||
        (comm != NULL && (rank != -1 || nranks <= comm->core->nranks))) {
        return simnccl_group_fail(ncclInvalidArgument);
    }
    if (comm == NULL) {
        ncclResult_t result = init_rank(newcomm, nranks, id->internal, rank, config_blocking(config, true));
        return result == ncclInProgress ? ncclSuccess : result;
    }
    bool blocking = config_blocking(config, comm->blocking);
    struct simnccl_job job = {.run = run_grow, .parent = comm->core, .blocking = blocking, .background = !blocking};
    if (id != NULL) {
        job.id = *id;
    }
    return grow(&job, comm, nranks, newcomm);
}

/* As with NCCL (2.28.9, src/init.cc, ncclCommEnsureReady), a call that goes on in the background must be polled first.
 */
static ncclResult_t finish(ncclComm_t comm)
{
    if (comm == NULL) {
        return ncclSuccess;
    }
    if (comm->core->result == ncclInProgress && !comm->core->aborted) {
        return simnccl_group_fail(ncclInvalidArgument);
    }
    drain(comm->core);
    return ncclSuccess;
}

SIMNCCL_API(ncclResult_t, CommFinalize, (ncclComm_t comm))
{
    return finish(comm);
}

SIMNCCL_API(ncclResult_t, CommDestroy, (ncclComm_t comm))
{
    simnccl_count(SIMNCCL_CommDestroy);
    ncclResult_t result = finish(comm);
    if (comm != NULL && result == ncclSuccess) {
        end(comm);
    }
    return result;
}

SIMNCCL_API(ncclResult_t, CommAbort, (ncclComm_t comm))
{
    if (comm != NULL) {
        interrupt(comm->core);
        end(comm);
    }
    return ncclSuccess;
}

SIMNCCL_API(ncclResult_t, CommRevoke, (ncclComm_t comm, int flags))
{
    if (flags != NCCL_REVOKE_DEFAULT) {
        return ncclInvalidArgument;
    }
    if (comm != NULL) {
        comm->core->revoked = true;
        interrupt(comm->core);
    }
    return ncclSuccess;
}

/* As 2.29.7 has them, unlike nccl.h here. */
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t ncclCommResume(ncclComm_t comm);
SIMNCCL_API(ncclResult_t, CommSuspend, (ncclComm_t comm, int flags))
{
    (void)flags;
    comm->core->suspended = true;
    return ncclSuccess;
}

SIMNCCL_API(ncclResult_t, CommResume, (ncclComm_t comm))
{
    comm->core->suspended = false;
    return ncclSuccess;
}

SIMNCCL_API(ncclResult_t, CommGetAsyncError, (ncclComm_t comm, ncclResult_t *error))
{
    const uint32_t late = simnode_setting("SIMNODE_NCCL_ANSWER_US");
    *error = (ncclResult_t)comm->core->result;
    if (late > 0 && !simnccl_group_is_open()) { /* NCCL's own calls ask, too */
        usleep(late);
    }
    return ncclSuccess;
}

/* A query of a communicator that is ready. */
static ncclResult_t answer(const struct ncclComm *comm, int *value_p, const int *value)
{
    if (comm == NULL || value_p == NULL || comm->core->result == ncclInProgress) {
        return ncclInvalidArgument;
    }
    *value_p = *value;
    return ncclSuccess;
}

#define QUERY(name_, field_)                                                                                           \
    SIMNCCL_API(ncclResult_t, name_, (const ncclComm_t comm, int *value))                                              \
    {                                                                                                                  \
        return answer(comm, value, comm != NULL ? &comm->core->field_ : NULL);                                         \
    }
QUERY(CommCount, nranks)
QUERY(CommUserRank, rank)
QUERY(CommCuDevice, device)

SIMNCCL_API(ncclResult_t, MemAlloc, (void **memory, size_t size))
{
    CUdeviceptr address;
    SIMNCCL_TRY_CU(cuMemAlloc(&address, size));
    *memory = (void *)(uintptr_t)address;
    return ncclSuccess;
}
