/* SPDX-License-Identifier: MIT */
/*
 * initial.c - the communicator that NCCL creates when it opens onehop as a network plugin
 *
 * Does: Recognises its handle: its creator was called before the hooks were in place. NCCL calls a profiler plugin
 *    (ncclProfiler_v5; src/plugin/profiler.cc of 2.28.9) for every communicator, before the last barrier of its
 *    creation, with an id that is equal on all ranks, and when it ends. So onehop counts communicators, and those whose
 *    creator passed the hooks. If there is one more, the first, an unknown handle with its rank and number of ranks is
 *    its. What stays unknown goes to NCCL: with another profiler plugin, or if several communicators passed no hook.
 * Threads: any; `mutex` guards what decides, atomics are for what each call reads.
 * Owns: the creation; the communicator is in the registry.
 */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "comm/attach/attach.h"
#include "util/log.h"
#include "util/scope.h"

atomic_bool oh_initial_comm_expected;

static atomic_uint begun;                       /* creations that pass the hooks */
static atomic_uint done;                        /* those of `library` that have succeeded */
static _Atomic(const struct oh_nccl *) library; /* the copy of NCCL that creates the first communicator */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the rest */
static unsigned created;                                  /* communicators of `library` */
static char first_context, other_context;
static struct oh_comm *initial; /* expected, then registered until it ends; else NULL */
static int first_nranks, first_rank;
static bool asked; /* for an unknown handle, maybe its */
static pid_t owner;

void oh_initial_comm_creation_begin(void)
{
    atomic_fetch_add(&begun, 1);
}

void oh_initial_comm_creation_end(const struct oh_nccl *nccl)
{
    atomic_fetch_add(&done, nccl == atomic_load(&library));
}

/* With the mutex held. The program's configuration is unknown: `config` has NCCL's defaults. */
static void await(uint64_t id, int nranks, int rank, const struct oh_comm_config *config)
{
    ncclUniqueId name = {"onehop: first communicator"}; /* no id of NCCL's begins so */
    memcpy(name.internal + sizeof name - sizeof id, &id, sizeof id);
    const struct oh_key key = oh_key_of_ids(&name, 1);
    initial = oh_creation_begin(&key, config, NULL, NULL, false);
    first_nranks = nranks;
    first_rank = rank;
    owner = getpid();
    /* release: pairs with the acquire load in oh_handle_find(). */
    atomic_store_explicit(&oh_initial_comm_expected, initial != NULL, memory_order_release);
}

void *oh_initial_comm_add_creation(const struct oh_nccl *nccl, uint64_t id, int nranks, int rank,
                                   const struct oh_comm_config *config)
{
    OH_LOCK(&mutex);
    if (created == 0) {
        atomic_store(&library, nccl);
    }
    created += nccl == atomic_load(&library);
    bool is_first = created == 1 && !owner && nccl == atomic_load(&library) && atomic_load(&begun) == 0;
    if (is_first) {
        await(id, nranks, rank, config);
    }
    return is_first ? &first_context : &other_context;
}

/* With the mutex held: the communicator falls back on all ranks. */
static void give_up(void)
{
    if (atomic_exchange(&oh_initial_comm_expected, false) && owner == getpid()) {
        oh_creation_cancel(initial);
        initial = NULL;
    }
}

struct oh_comm *oh_initial_comm_add_end(const void *context)
{
    if (context != &first_context) {
        return NULL;
    }
    OH_KEEP_ERRNO();
    OH_LOCK(&mutex);
    give_up();
    if (!initial || owner != getpid()) {
        return NULL;
    }
    oh_comm_retain(initial); /* registered: who ends it waits for the mutex first (oh_initial_comm_forget) */
    return initial;
}

/*
 * Returns whether only one communicator was created past the hooks, and this is it. A creation that passed the hooks
 * counts in `created` before it counts in `done`, so one that is under way makes the answer false.
 */
static bool is_first(const struct oh_nccl *nccl, ncclComm_t comm, int *cuda_device_p)
{
    ncclResult_t state;
    int nranks, rank;
    return created - atomic_load(&done) == 1 && nccl->CommGetAsyncError(comm, &state) == ncclSuccess &&
           state == ncclSuccess && nccl->CommCount(comm, &nranks) == ncclSuccess &&
           nccl->CommUserRank(comm, &rank) == ncclSuccess && nranks == first_nranks && rank == first_rank &&
           nccl->CommCuDevice(comm, cuda_device_p) == ncclSuccess;
}

static struct oh_comm *adopt(ncclComm_t nccl, int cuda_device)
{
    struct oh_comm *found = initial;
    found->id.library = atomic_load(&library);
    found->id.library->GetVersion(&found->id.nccl_version);
    OH_INFO("comm %p rank %d nranks %d: created before the hooks were in place, found again", (void *)nccl, first_rank,
            first_nranks);
    if (oh_creation_register(found, nccl)) {
        oh_attach_note_work(found); /* NCCL may have been given work that passed no hook */
        atomic_store(&found->attach.polled, asked);
        oh_comm_created(found, &(struct oh_nccl_rank){first_rank, first_nranks, cuda_device});
    } else {
        found = NULL;
    }
    initial = found;
    /* release: publishes the registration. Pairs with the acquire load in oh_handle_find(). */
    atomic_store_explicit(&oh_initial_comm_expected, false, memory_order_release);
    return found;
}

struct oh_comm *oh_initial_comm_find(const struct oh_nccl *nccl, ncclComm_t comm, bool is_counted)
{
    OH_KEEP_ERRNO();
    int cuda_device;
    OH_LOCK(&mutex);
    struct oh_comm *found = oh_comm_find(comm); /* another thread may have been faster, as PyTorch's watchdog */
    const bool expected = atomic_load_explicit(&oh_initial_comm_expected, memory_order_relaxed);
    if (!found && expected && comm && owner == getpid() && nccl == atomic_load(&library)) {
        oh_nccl_depth++;
        if (is_first(nccl, comm, &cuda_device)) {
            found = adopt(comm, cuda_device);
        } else if (is_counted) {
            give_up();
        } else {
            asked = true;
        }
        oh_nccl_depth--;
    }
    return found;
}

void oh_initial_comm_forget(const struct oh_comm *comm)
{
    OH_LOCK(&mutex);
    initial = initial == comm ? NULL : initial;
}

void oh_initial_comm_end_process(void)
{
    OH_LOCK(&mutex);
    if (OH_IS_LOCKED()) {
        give_up();
    }
}
