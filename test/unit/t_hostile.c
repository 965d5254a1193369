/* SPDX-License-Identifier: MIT */
/*
 * t_hostile.c - set-ups whose shared memory changes under them: bits flip, slots are exchanged, all becomes garbage
 *
 * Two ranks set up communicator after communicator, in one process and in two, while somebody writes into the segment
 * at random moments. Whatever that does to the agreement, nothing may crash (AddressSanitizer: nor read or write beyond
 * bounds), every set-up must end, and a rank that serves must have memory of the right size of each peer. Without the
 * writer every communicator is served. No call is made: ranks that have been led apart would wait for each other.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/launch/launch.h"
#include "comm/watch/watch.h"
#include "gpu/context.h"
#include "comm/attach/attach.h"
#include "test/unit/first_call.h"
#include "test/unit/unit.h"
#include "util/clock.h"

#define RANKS 2
#define LANES 4 /* rounds at the same time: most of a bad one is waiting */
#define SECOND UINT64_C(1000000000)
#define DEFAULT_SECONDS 3        /* during which rounds begin */
#define LIMIT_NS (60 * SECOND)   /* far above the patience of a set-up, of 10 seconds, on a busy machine */
#define QUIET_ONE_IN 6           /* rounds without a writer */
#define WRITER_MICROSECONDS 1000 /* the longest pause between two writes, up to 128 times that */

/* A series of rounds. */
struct lane {
    pthread_barrier_t barrier; /* as NCCL's, and between rounds */
    unsigned seed;
    bool over;
};

/* In memory that both processes share. */
static struct {
    struct lane lane[LANES];
    uint64_t end_ns;
    atomic_uint rounds, quiet, quiet_served, noisy_served, broken, slow;
} * all;

struct rank {
    struct lane *lane;
    uint32_t rank;
    char handle[64];
};

/* --- the writer --------------------------------------------------------------------------------------------------- */

struct writer {
    unsigned char *memory;
    unsigned seed;
    atomic_bool stop;
    pthread_t thread;
};

static void write_byte(unsigned char *at, unsigned char value)
{
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
}

static void write_something(struct writer *writer)
{
    const size_t size = sizeof(struct oh_shared), slots = offsetof(struct oh_shared, peer_info);
    unsigned char *memory = writer->memory;
    unsigned kind = (unsigned)rand_r(&writer->seed) % 100;
    size_t at = (size_t)rand_r(&writer->seed) % size;
    if (kind < 40) { /* mostly where the ranks' own words are */
        at = slots + (size_t)rand_r(&writer->seed) % (RANKS * sizeof(struct oh_peer_info));
    }
    if (kind < 60) {
        write_byte(memory + at, (unsigned char)(memory[at] ^ 1U << rand_r(&writer->seed) % 8));
    } else if (kind < 85) {
        for (size_t i = at & ~(size_t)7; i < size && i < (at & ~(size_t)7) + 8; i++) {
            write_byte(memory + i, kind < 70 ? 0xff : (unsigned char)rand_r(&writer->seed));
        }
    } else if (kind < 97) { /* one rank's slot in the place of the other's */
        for (size_t i = 0; i < sizeof(struct oh_peer_info); i++) {
            write_byte(memory + slots + i, memory[slots + sizeof(struct oh_peer_info) + i]);
        }
    } else {
        for (size_t i = 0; i < size; i++) {
            write_byte(memory + i, (unsigned char)rand_r(&writer->seed));
        }
    }
}

static void *keep_writing(void *user)
{
    struct writer *writer = user;
    unsigned pause = WRITER_MICROSECONDS << (unsigned)rand_r(&writer->seed) % 8;
    while (!atomic_load(&writer->stop)) {
        for (unsigned left = (unsigned)rand_r(&writer->seed) % pause; left > 0 && !atomic_load(&writer->stop);) {
            unsigned part = left < WRITER_MICROSECONDS ? left : WRITER_MICROSECONDS;
            usleep(part);
            left -= part;
        }
        write_something(writer);
    }
    return NULL;
}

/* A mapping of its own, made while the file has its name. False: there is none. */
static bool start_writer(struct writer *writer, const char *path, unsigned seed)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *memory =
        fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct oh_shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) {
        close(fd);
    }
    *writer = (struct writer){.memory = memory, .seed = seed};
    return memory != MAP_FAILED && pthread_create(&writer->thread, NULL, keep_writing, writer) == 0;
}

static void stop_writer(struct writer *writer)
{
    atomic_store(&writer->stop, true);
    pthread_join(writer->thread, NULL);
    munmap(writer->memory, sizeof(struct oh_shared));
}

/* --- the ranks ---------------------------------------------------------------------------------------------------- */

/* What a rank serves with: a table within bounds, and memory of the right size behind every pointer. */
static bool is_sound(struct oh_comm *comm)
{
    struct oh_context_scope scope;
    bool sound = oh_plan_table_valid(&comm->serve.table, RANKS) && oh_plan_table_end(&comm->serve.table) > 0;
    if (oh_context_enter(&comm->staging.context, &scope) != CUDA_SUCCESS) {
        return false;
    }
    for (int r = 0; r < RANKS && sound; r++) {
        CUdeviceptr start = 0, at = (CUdeviceptr)(uintptr_t)comm->serve.args.staging[r];
        size_t bytes = 0;
        sound =
            cuMemGetAddressRange(&start, &bytes, at) == CUDA_SUCCESS && start == at && bytes >= OH_STAGING_BYTES(RANKS);
    }
    oh_context_leave(&scope);
    return sound;
}

/* One communicator, from its creation to its end. */
static void live_once(struct rank *self, bool quiet, struct oh_key key, unsigned seed)
{
    struct writer writer;
    ncclComm_t nccl = (ncclComm_t)(void *)self->handle;
    struct oh_comm *comm = oh_creation_begin(&key, &(struct oh_comm_config)OH_COMM_CONFIG_DEFAULT, NULL, &nccl, false);
    bool writes = !quiet && start_writer(&writer, comm->segment.path, seed);
    pthread_barrier_wait(&self->lane->barrier);
    uint64_t start = oh_now_ns();
    comm = create_comm(comm, nccl, self->rank, RANKS);
    bool served = comm && !oh_comm_is_settled(comm) && make_first_call(comm);
    if (oh_now_ns() - start > LIMIT_NS) {
        atomic_fetch_add(&all->slow, 1);
    }
    for (size_t count = 1; served && count < (1U << 24); count *= 7) {
        struct oh_call call = {.comm = comm, .count = count, .type = ncclFloat32};
        if (oh_call_decide(&call) == OH_FALLBACK_NONE) {
            atomic_fetch_add(quiet ? &all->quiet_served : &all->noisy_served, count == 1);
            atomic_fetch_add(&all->broken, !is_sound(comm));
        }
    }
    pthread_barrier_wait(&self->lane->barrier); /* a call after a peer's end is refused */
    if (quiet && comm && comm->attach.reason[0]) {
        tap_note("without a writer, rank %u: %s", self->rank, comm->attach.reason);
    }
    if (comm) {
        oh_registry_remove(comm);
        oh_comm_retire(comm);
    }
    if (writes) {
        stop_writer(&writer);
    }
    oh_comms_reclaim();
}

static void *live(void *user)
{
    struct rank *self = user;
    struct lane *lane = self->lane;
    unsigned seed = lane->seed;
    for (;;) {
        if (self->rank == 0) {
            lane->over = oh_now_ns() > all->end_ns;
        }
        pthread_barrier_wait(&lane->barrier);
        if (lane->over) {
            return NULL;
        }
        struct oh_key key = {{(uint64_t)(uint32_t)rand_r(&seed) << 32 | (uint32_t)rand_r(&seed), all->end_ns}};
        bool quiet = rand_r(&seed) % QUIET_ONE_IN == 0;
        live_once(self, quiet, key, (unsigned)rand_r(&seed) + self->rank);
        if (self->rank == 0) {
            atomic_fetch_add(&all->rounds, 1);
            atomic_fetch_add(&all->quiet, quiet);
        }
    }
}

/* The ranks from `first` on, one a thread, of all lanes. */
static void run_ranks(uint32_t first, uint32_t count)
{
    static struct rank ranks[LANES * RANKS];
    for (uint32_t i = 0; i < LANES * count; i++) {
        ranks[i] = (struct rank){.lane = &all->lane[i / count], .rank = first + i % count};
    }
    unit_run_threads(live, ranks, sizeof *ranks, LANES * count);
}

/* In children, so that a crash is one failed point. The ranks are dealt out to them. */
static void test_processes(int processes, unsigned seed, unsigned seconds)
{
    int status = 0;
    pid_t pid[RANKS];
    pthread_barrierattr_t shared;
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    all->end_ns = oh_now_ns() + seconds * SECOND;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    for (int l = 0; l < LANES; l++) {
        pthread_barrier_init(&all->lane[l].barrier, &shared, RANKS);
        all->lane[l].seed = seed + (unsigned)l * 1000003;
    }
    fflush(stdout);
    for (int p = 0; p < processes; p++) {
        pid[p] = fork();
        if (pid[p] == 0) {
            alarm(180); /* a rank that has crashed leaves the others at a barrier */
            run_ranks((uint32_t)(p * RANKS / processes), (uint32_t)(RANKS / processes));
            exit(0);
        }
    }
    for (int p = 0; p < processes; p++) {
        int of_child = -1;
        waitpid(pid[p], &of_child, 0);
        status |= of_child;
    }
    tap_ok(status == 0, "%d process%s: no crash (status %x)", processes, processes > 1 ? "es" : "", (unsigned)status);
    tap_ok(all->rounds > 0 && all->slow == 0, "%u set-ups, all of which ended", all->rounds);
    tap_ok(all->broken == 0, "%u times a rank was going to serve all the same, with sound pointers", all->noisy_served);
    tap_ok(all->quiet_served == RANKS * all->quiet, "%u of them without a writer: served", all->quiet);
    munmap(all, sizeof *all);
}

int main(int argc, char **argv)
{
    unsigned seed = unit_seed(argc, argv);
    const char *seconds = getenv("OH_HOSTILE_SECONDS");
#ifdef __SANITIZE_THREAD__
    tap_skip_all("the races are what is tested");
#endif
    const char *folder = unit_folder();
    setenv("ONEHOP_DEBUG", "NONE", 0);
    test_processes(1, seed, seconds ? (unsigned)atoi(seconds) : DEFAULT_SECONDS);
    test_processes(2, seed + 1, seconds ? (unsigned)atoi(seconds) : DEFAULT_SECONDS);
    tap_ok(rmdir(folder) == 0, "nothing is left in shared memory");
    return tap_done();
}
