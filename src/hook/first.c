/* SPDX-License-Identifier: MIT */
/*
 * first.c - see first.h
 *
 * A handle is a struct ncclComm, which begins and ends with a magic number (2.30.7: src/include/comm.h:799-801 asserts
 * both). If memory from the handle on begins with that number and holds none up to the context, then the context lies
 * in this very structure. Behind the context comes the hash, before the end of the structure; one more magic number may
 * stand just before it (the field `magic`). A handle whose memory was used by the first communicator, and freed, and
 * used again, has another hash. Memory is read through the kernel, so that a wrong guess ends in an error and not in a
 * fault. In an NCCL that is laid out differently no handle is found, and the communicator goes to NCCL.
 */
#include "hook/first.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "hook/real.h"
#include "util/log.h"

#define MAGIC UINT64_C(0x0280028002800280)
#define SPAN_MAX (UINT64_C(16) << 20) /* a handle is smaller */
#define STRANGERS 8

atomic_bool oh_first_awaited;
_Atomic(struct oh_comm *) oh_first_comm;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the rest */
static struct oh_birth birth;
static uintptr_t context_at;
static uint64_t wanted_hash;
static uintptr_t hash_at; /* in the handle; set before oh_first_comm */
static pid_t owner;
static ncclComm_t strangers[STRANGERS]; /* handles that are not it, so that their calls are not held up again */
static unsigned stranger_count;

void oh_first_begin(const void *context, uint64_t hash)
{
    static atomic_flag begun;
    ncclUniqueId name = {"onehop: first communicator"}; /* keys are made of ids; no id of NCCL's begins so */
    if (!context || atomic_flag_test_and_set(&begun)) {
        return;
    }
    memcpy(name.internal + sizeof name - sizeof hash, &hash, sizeof hash);
    struct oh_key key = oh_key_of_id(&name);
    pthread_mutex_lock(&mutex);
    oh_birth_begin(&birth, &key, true, NULL);
    context_at = (uintptr_t)context;
    wanted_hash = hash;
    owner = getpid();
    pthread_mutex_unlock(&mutex);
    atomic_store_explicit(&oh_first_awaited, true, memory_order_release);
}

/* --- is this the handle? ---------------------------------------------------------------------------------------- */

/* Memory in the order of its words, read a part at a time. */
struct reader {
    int file;
    uintptr_t next, end;
    uint64_t part[512];
    size_t count, used;
};

static bool read_word(struct reader *reader, uint64_t *word_p)
{
    if (reader->used == reader->count) {
        size_t left = (reader->end - reader->next) / sizeof *reader->part;
        size_t count = left < 512 ? left : 512;
        ssize_t got = count ? pread(reader->file, reader->part, count * sizeof *reader->part, (off_t)reader->next) : 0;
        if (got < (ssize_t)sizeof *reader->part) {
            return false;
        }
        reader->count = (size_t)got / sizeof *reader->part;
        reader->next += reader->count * sizeof *reader->part;
        reader->used = 0;
    }
    *word_p = reader->part[reader->used++];
    return true;
}

/* From the handle to the context, and on to the hash, whose address is given back; 0: not there. */
static uintptr_t hash_in(struct reader *reader, uintptr_t handle)
{
    uint64_t word;
    uintptr_t at = handle;
    if (!read_word(reader, &word) || word != MAGIC) {
        return 0;
    }
    for (at += sizeof word; at < context_at; at += sizeof word) {
        if (!read_word(reader, &word) || word == MAGIC) {
            return 0;
        }
    }
    for (bool last = false; read_word(reader, &word); at += sizeof word) {
        if (word == wanted_hash) {
            return at;
        }
        if (last) {
            return 0;
        }
        last = word == MAGIC; /* the end, or the field before the hash */
    }
    return 0;
}

static bool is_first(ncclComm_t comm)
{
    uintptr_t handle = (uintptr_t)comm;
    if (handle % sizeof(uint64_t) || handle >= context_at || context_at - handle > SPAN_MAX) {
        return false;
    }
    struct reader reader = {
        .file = open("/proc/self/mem", O_RDONLY | O_CLOEXEC), .next = handle, .end = context_at + SPAN_MAX};
    hash_at = reader.file >= 0 ? hash_in(&reader, handle) : 0;
    if (reader.file >= 0) {
        close(reader.file);
    }
    return hash_at != 0;
}

static bool is_stranger(ncclComm_t comm)
{
    for (unsigned i = 0; i < stranger_count && i < STRANGERS; i++) {
        if (strangers[i] == comm) {
            return true;
        }
    }
    return false;
}

/* --- adoption --------------------------------------------------------------------------------------------------- */

/* NCCL has created it, and says who it is. Not asked before it is ready: NCCL would warn. */
static bool identify(const struct oh_real *real, ncclComm_t comm)
{
    ncclResult_t state;
    bool known = real->CommGetAsyncError(comm, &state) == ncclSuccess && state == ncclSuccess &&
                 real->CommCount(comm, &birth.nranks) == ncclSuccess &&
                 real->CommUserRank(comm, &birth.rank) == ncclSuccess &&
                 real->CommCuDevice(comm, &birth.cuda_device) == ncclSuccess;
    real->GetVersion(&birth.nccl_version);
    birth.library = real;
    birth.nccl = comm;
    return known;
}

static struct oh_comm *adopt(ncclComm_t comm, const void *caller)
{
    const struct oh_real *real;
    if (!is_first(comm)) {
        strangers[stranger_count++ % STRANGERS] = comm;
        return NULL;
    }
    if (oh_real_get(&real, caller) != ncclSuccess || !identify(real, comm)) {
        return NULL;
    }
    OH_INFO("comm %p rank %d nranks %d: created before the hooks were in place, found again", (void *)comm, birth.rank,
            birth.nranks);
    oh_births_late(&birth, 1);
    struct oh_comm *found = oh_comm_find(comm);
    atomic_store_explicit(&oh_first_comm, found, memory_order_release);
    atomic_store_explicit(&oh_first_awaited, false, memory_order_release); /* whoever sees it sees the registration */
    return found;
}

struct oh_comm *oh_first_find(ncclComm_t comm, const void *caller)
{
    int saved = errno;
    pthread_mutex_lock(&mutex);
    struct oh_comm *found = oh_comm_find(comm); /* by a thread that asks for errors, as PyTorch's does */
    if (!found && atomic_load_explicit(&oh_first_awaited, memory_order_relaxed) && comm && owner == getpid() &&
        !is_stranger(comm)) {
        found = adopt(comm, caller);
    }
    pthread_mutex_unlock(&mutex);
    errno = saved;
    return found;
}

bool oh_first_has_gone(void)
{
    return *(const volatile uint64_t *)hash_at != wanted_hash;
}

void oh_first_forget(const struct oh_comm *comm)
{
    if (atomic_load_explicit(&oh_first_comm, memory_order_acquire) == comm) {
        atomic_store_explicit(&oh_first_comm, NULL, memory_order_relaxed);
    }
}

/* Nobody came with it: leaves nothing behind. */
__attribute__((destructor)) static void give_up_at_exit(void)
{
    if (atomic_exchange(&oh_first_awaited, false) && owner == getpid()) {
        oh_birth_cancel(&birth);
    }
}
