/* SPDX-License-Identifier: MIT */
/*
 * agree.c - from presence to a decision that all ranks share
 *
 * The phases of oh_births_complete: adopt (a struct oh_comm for the handle), count (is every rank here?), fill (my
 * slot), open (peers' memory, topology), vote, settle. A rank that cannot go on refuses, which ends it for all; it
 * never just stays away. See doc/design.md, "Set-up".
 */
#include "comm/comm.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/topo.h"
#include "util/clock.h"
#include "util/env.h"
#include "util/log.h"

/* From where on NCCL takes fp8, and the kernels have it (src/enqueue.cc:2557 of 2.28.9). */
#define FP8_COMPUTE_MAJOR 9

/* How long a rank waits for the others. They have just left the same barrier inside NCCL. */
#define AGREEMENT_NS (UINT64_C(10) * 1000 * 1000 * 1000)

/* A set-up under way: what completes one birth. */
struct setup {
    struct oh_birth *birth;
    struct oh_comm *comm;
    uint64_t start_ns;
    uint64_t deadline_ns;
    bool alive; /* still a candidate */
    struct oh_topo_gpu gpu;
};

/* --- birth ------------------------------------------------------------------------------------------------------ */

void oh_birth_refuse(struct oh_birth *birth, const char *reason)
{
    if (!birth->refusal[0]) {
        snprintf(birth->refusal, sizeof birth->refusal, "%s", reason);
    }
    oh_segment_refuse(&birth->segment, reason);
}

void oh_birth_begin(struct oh_birth *birth, const struct oh_key *key, bool blocking, ncclComm_t *nccl_p)
{
    uint64_t start = oh_now_ns();
    *birth = (struct oh_birth){.key = *key, .blocking = blocking, .nccl_p = nccl_p};
    oh_comms_reap();
    birth->present = oh_segment_open(&birth->segment, key) == ncclSuccess;
    if (!birth->present) {
        oh_birth_refuse(birth, "this rank has no shared memory to meet the others");
    }
    birth->spent_ns = oh_now_ns() - start;
}

/* Leaves the meeting for good, before anything was made for it. */
static void abandon(struct oh_birth *birth, const char *reason)
{
    oh_birth_refuse(birth, reason);
    oh_segment_unlink(&birth->segment);
    oh_segment_close(&birth->segment);
}

void oh_birth_cancel(struct oh_birth *birth)
{
    abandon(birth, "NCCL did not create the communicator on a rank");
}

/* --- the phases ------------------------------------------------------------------------------------------------- */

static void give_up(struct setup *setup, const char *reason)
{
    setup->alive = false;
    snprintf(setup->comm->reason, sizeof setup->comm->reason, "%s", reason);
    oh_segment_refuse(&setup->comm->segment, reason);
}

__attribute__((format(printf, 2, 3))) static void give_up_because(struct setup *setup, const char *format, ...)
{
    char reason[OH_REASON_BYTES];
    va_list args;
    int head = snprintf(reason, sizeof reason, "rank %u: ", setup->comm->rank);
    va_start(args, format);
    vsnprintf(reason + head, sizeof reason - (size_t)head, format, args);
    va_end(args);
    give_up(setup, reason);
}

/* A struct oh_comm for the handle; from here on the communicator owns the segment. */
static void adopt(struct setup *setup)
{
    struct oh_birth *birth = setup->birth;
    struct oh_comm *comm = calloc(1, sizeof *comm);
    if (!comm) {
        abandon(birth, "a rank is out of memory");
        return;
    }
    comm->nccl = birth->nccl;
    comm->key = birth->key;
    comm->library = birth->library;
    comm->blocking = birth->blocking;
    comm->rank = (uint32_t)birth->rank;
    comm->nranks = (uint32_t)birth->nranks;
    comm->segment = birth->segment;
    struct oh_comm *stale = oh_comm_find(comm->nccl);
    if (stale) { /* destroyed in a way that onehop did not see, and NCCL has given its handle again */
        oh_comm_retire(stale);
    }
    if (oh_registry_add(comm) != ncclSuccess) {
        free(comm);
        abandon(birth, "a rank has more communicators than onehop keeps track of");
        return;
    }
    setup->comm = comm;
    setup->alive = true;
}

/* Is every rank of the communicator on this host, with onehop? All ranks see the same number. */
static void count_ranks(struct setup *setup)
{
    const struct oh_birth *birth = setup->birth;
    struct oh_comm *comm = setup->comm;
    uint32_t present = birth->present ? atomic_load(&comm->segment.meeting->present) : 0;

    oh_segment_unlink(&comm->segment);
    if (birth->refusal[0]) {
        give_up_because(setup, "%s", birth->refusal);
    } else if (comm->nranks < 2 || comm->nranks > OH_MAX_RANKS) {
        give_up(setup, comm->nranks < 2 ? "a single rank" : "more than 8 ranks");
    } else if (present != comm->nranks) {
        char reason[OH_REASON_BYTES];
        snprintf(reason, sizeof reason, "onehop is present on this host for %u of %u ranks", present, comm->nranks);
        give_up(setup, reason);
    }
}

static void publish_table(struct setup *setup)
{
    const char *names[1 + ONEHOP_ALGORITHMS] = {"auto"};
    struct oh_meeting *meeting = setup->comm->segment.meeting;
    for (int a = 0; a < ONEHOP_ALGORITHMS; a++) {
        names[1 + a] = oh_algorithm_name(a);
    }
    int forced = oh_env_choice(OH_ENV_ALGO, names, 1 + ONEHOP_ALGORITHMS, 0) - 1;
    uint64_t max_bytes = oh_env_number(OH_ENV_MAX_BYTES, true, UINT64_C(1) << 30, UINT64_MAX);

    oh_plan_table_default(setup->comm->nranks, max_bytes, forced, &meeting->table);
    meeting->table.fp8 = setup->gpu.compute_major >= FP8_COMPUTE_MAJOR;
    meeting->init_epoch = (uint32_t)oh_env_number(OH_ENV_INIT_EPOCH, false, OH_EPOCH_MASK, 1);
}

/* My slot: who I am and where my staging memory is. */
static void fill(struct setup *setup)
{
    struct oh_comm *comm = setup->comm;
    struct oh_slot *slot = &comm->segment.meeting->slot[comm->rank];
    const struct oh_driver *driver;
    CUdevice device;
    char reason[OH_REASON_BYTES];

    if (!oh_topo_allowed_by_env(reason, sizeof reason)) {
        give_up_because(setup, "%s", reason);
        return;
    }
    if (oh_driver_get(&driver) != ncclSuccess) {
        give_up_because(setup, "%s", oh_driver_error());
        return;
    }
    if (driver->device_get(&device, setup->birth->cuda_device) != CUDA_SUCCESS) {
        give_up_because(setup, "CUDA device %d cannot be found", setup->birth->cuda_device);
        return;
    }
    oh_topo_gpu_gather(driver, device, &setup->gpu);
    if (!oh_topo_judge_gpu(&setup->gpu, reason, sizeof reason)) {
        give_up_because(setup, "%s", reason);
        return;
    }
    if (oh_staging_create(driver, device, &comm->staging) != ncclSuccess) {
        give_up_because(setup, "no staging memory on GPU %s", setup->gpu.bus_id);
        return;
    }
    if (oh_staging_describe(&comm->staging, slot) != ncclSuccess) {
        give_up_because(setup, "CUDA IPC gives no handle on GPU %s", setup->gpu.bus_id);
        return;
    }
    oh_slot_identify(slot);
    snprintf(slot->bus_id, sizeof slot->bus_id, "%s", setup->gpu.bus_id);
    if (comm->rank == 0) {
        publish_table(setup);
        if (oh_plan_table_end(&comm->segment.meeting->table) == 0) {
            give_up_because(setup, "the settings leave no message to serve");
            return;
        }
    }
    atomic_store(&slot->filled, 1);
}

/* One peer: is the way there NVLink, and does it open? False: has given up. */
static bool open_peer(struct setup *setup, uint32_t rank)
{
    struct oh_comm *comm = setup->comm;
    struct oh_slot slot = comm->segment.meeting->slot[rank]; /* a copy that no one can change under us */
    const struct oh_driver *driver = comm->staging.driver;
    struct oh_topo_pair pair;
    char reason[OH_REASON_BYTES];

    slot.bus_id[sizeof slot.bus_id - 1] = '\0';
    oh_topo_pair_gather(driver, setup->gpu.bus_id, slot.bus_id, &pair);
    if (!oh_topo_judge_pair(setup->gpu.bus_id, slot.bus_id, &pair, reason, sizeof reason)) {
        give_up_because(setup, "%s", reason);
        return false;
    }
    if (oh_staging_open_peer(&comm->staging, rank, &slot, oh_slot_is_mine(&slot)) != ncclSuccess) {
        give_up_because(setup, "the memory of rank %u (GPU %s) cannot be opened", rank, slot.bus_id);
        return false;
    }
    return true;
}

static void open_peers(struct setup *setup)
{
    struct oh_comm *comm = setup->comm;
    for (uint32_t r = 0; r < comm->nranks; r++) {
        if (r == comm->rank) {
            comm->staging.peer[r].base = comm->staging.base;
            continue;
        }
        if (!oh_segment_wait_slot(&comm->segment, r, setup->deadline_ns)) {
            setup->alive = false; /* off already, or settle() says that time is up */
            return;
        }
        if (!open_peer(setup, r)) {
            return;
        }
    }
}

/* What is needed to serve, once the peers' memory is there: table, kernels, epoch. */
static void prepare(struct setup *setup)
{
    struct oh_comm *comm = setup->comm;
    const struct oh_meeting *meeting = comm->segment.meeting;

    comm->table = meeting->table;
    if (!oh_plan_table_valid(&comm->table, comm->nranks)) {
        give_up_because(setup, "rank 0's tuning table is not valid");
        return;
    }
    if (comm->table.fp8 && setup->gpu.compute_major < FP8_COMPUTE_MAJOR) {
        give_up_because(setup, "GPU %s is of another generation than that of rank 0", setup->gpu.bus_id);
        return;
    }
    if (oh_staging_set_epoch(&comm->staging, meeting->init_epoch & OH_EPOCH_MASK) != ncclSuccess ||
        oh_comm_prepare_launch(comm) != ncclSuccess) {
        give_up_because(setup, "the kernels cannot be made ready on GPU %s", setup->gpu.bus_id);
    }
}

static void open_and_vote(struct setup *setup)
{
    open_peers(setup);
    if (setup->alive) {
        prepare(setup);
    }
    if (setup->alive) {
        oh_segment_accept(&setup->comm->segment, setup->comm->nranks);
    }
}

static void settle(struct setup *setup)
{
    struct oh_comm *comm = setup->comm;
    bool on = !comm->reason[0] && oh_segment_wait_decision(&comm->segment, setup->deadline_ns, comm->reason);

    comm->setup_ms = (double)(setup->birth->spent_ns + oh_now_ns() - setup->start_ns) / 1e6;
    if (on) {
        atomic_store(&comm->served, true);
        OH_INFO("comm %p rank %u nranks %u: served by onehop up to %" PRIu64 " bytes, %u MiB of GPU memory, set up in "
                "%.1f ms",
                (void *)comm->nccl, comm->rank, comm->nranks, oh_plan_table_end(&comm->table), OH_STAGING_BYTES >> 20,
                comm->setup_ms);
    } else {
        OH_INFO("comm %p rank %u nranks %u: handed back to NCCL: %s", (void *)comm->nccl, comm->rank, comm->nranks,
                comm->reason);
        oh_comm_strip(comm);
    }
}

static void run_phases(struct setup *setups, size_t count)
{
    static void (*const phases[])(struct setup *) = {count_ranks, fill, open_and_vote};
    for (size_t p = 0; p < sizeof phases / sizeof *phases; p++) {
        for (size_t i = 0; i < count; i++) {
            if (setups[i].alive) {
                phases[p](&setups[i]);
            }
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (setups[i].comm) {
            settle(&setups[i]);
        }
    }
}

static void decline(struct oh_birth *birth)
{
    static const char reason[] = "a rank created it as a non-blocking communicator";
    struct setup setup = {.birth = birth, .start_ns = oh_now_ns()};
    birth->nccl = *birth->nccl_p;
    if (!birth->nccl) {
        OH_INFO("a communicator is handed back to NCCL: %s", reason);
        abandon(birth, reason);
        return;
    }
    adopt(&setup);
    if (setup.comm) {
        oh_segment_unlink(&setup.comm->segment);
        give_up(&setup, reason);
        settle(&setup);
    }
}

void oh_births_decline(struct oh_birth *births, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        decline(&births[i]);
    }
}

void oh_births_complete(struct oh_birth *births, size_t count)
{
    struct setup *setups = calloc(count, sizeof *setups);
    for (size_t i = 0; i < count; i++) {
        if (!setups || !births[i].nccl) {
            oh_birth_cancel(&births[i]);
            continue;
        }
        setups[i].birth = &births[i];
        setups[i].start_ns = oh_now_ns();
        setups[i].deadline_ns = setups[i].start_ns + AGREEMENT_NS;
        adopt(&setups[i]);
    }
    if (setups) {
        run_phases(setups, count);
    }
    free(setups);
}
