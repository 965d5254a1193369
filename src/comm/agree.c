/* SPDX-License-Identifier: MIT */
/*
 * agree.c - from a rank's first call to a decision that all ranks share
 *
 * The steps of a set-up: fill (my slot), open (peers' memory, topology, kernels), vote. A rank that cannot go on
 * refuses, which ends it for all; it never just stays away. See doc/design.md, "Attach".
 */
#include "comm/agree.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/monitor.h"
#include "gpu/room.h"
#include "plan/store.h"
#include "util/clock.h"
#include "util/env.h"
#include "util/log.h"

/* From where on NCCL takes fp8, and the kernels have it (src/enqueue.cc:2557 of 2.28.9). */
#define FP8_COMPUTE_MAJOR 9

/* --- the steps -------------------------------------------------------------------------------------------------- */

void oh_setup_give_up(struct oh_setup *setup, const char *reason)
{
    setup->alive = false;
    snprintf(setup->reason, sizeof setup->reason, "%s", reason);
    oh_segment_refuse(&setup->comm->segment, reason);
}

__attribute__((format(printf, 2, 3))) static void give_up_because(struct oh_setup *setup, const char *format, ...)
{
    char reason[OH_REASON_BYTES];
    va_list args;
    int head = snprintf(reason, sizeof reason, "rank %u: ", setup->comm->rank);
    va_start(args, format);
    vsnprintf(reason + head, sizeof reason - (size_t)head, format, args);
    va_end(args);
    oh_setup_give_up(setup, reason);
}

/* Books the time since the last lap. */
static void end_lap(struct oh_setup *setup, enum oh_setup_lap lap)
{
    uint64_t now = oh_now_ns();
    setup->lap_ns[lap] += now - setup->mark_ns;
    setup->mark_ns = now;
}

/* What is known of this machine, of which rank 0 stands for all. */
static void load_table(struct oh_setup *setup, struct oh_plan_table *table_p)
{
    const struct oh_comm *comm = setup->comm;
    struct oh_tuning_key key = {.nranks = comm->nranks, .nccl = "unknown"};
    char from[OH_STORE_PATH];
    snprintf(key.gpu, sizeof key.gpu, "%s", setup->gpu.name);
    oh_topo_driver_version(key.driver, sizeof key.driver);
    if (comm->nccl_version > 0) {
        oh_tuning_nccl_name(comm->nccl_version, key.nccl);
    }
    oh_store_load(&key, table_p, from);
    OH_INFO("comm %p nranks %u: all ranks use the tuning table of rank 0: %s", (void *)comm->nccl, comm->nranks, from);
}

/* Made in private memory and then copied: what lies in the meeting may change at any time. False: nothing to serve. */
static bool publish_table(struct oh_setup *setup)
{
    const char *names[1 + ONEHOP_ALGORITHM_COUNT] = {"auto"};
    struct oh_meeting *meeting = setup->comm->segment.meeting;
    for (int a = 0; a < ONEHOP_ALGORITHM_COUNT; a++) {
        names[1 + a] = oh_algorithm_name(a);
    }
    int forced = oh_env_choice(OH_ENV_ALGO, names, 1 + ONEHOP_ALGORITHM_COUNT, 0) - 1;
    uint64_t max_bytes = oh_env_number(OH_ENV_MAX_BYTES, true, UINT64_C(1) << 30, UINT64_MAX);

    struct oh_plan_table table;
    load_table(setup, &table);
    oh_plan_table_wish(&table, max_bytes, forced);
    table.fp8 = setup->gpu.compute_major >= FP8_COMPUTE_MAJOR;
    meeting->table = table;
    meeting->init_epoch = (uint32_t)oh_env_number(OH_ENV_INIT_EPOCH, false, UINT32_MAX, 1);
    return oh_plan_table_end(&table) > 0;
}

/* My slot: who I am and where my staging memory is. */
static void fill(struct oh_setup *setup)
{
    struct oh_comm *comm = setup->comm;
    struct oh_slot *slot = &comm->segment.meeting->slot[comm->rank];
    const struct oh_driver *driver = comm->staging.driver;
    char reason[OH_REASON_BYTES];

    oh_topo_gpu_gather(driver, comm->staging.device, &setup->gpu);
    if (!oh_topo_judge_gpu(&setup->gpu, reason, sizeof reason)) {
        give_up_because(setup, "%s", reason);
        return;
    }
    end_lap(setup, OH_LAP_GPU);
    if (oh_staging_create(&comm->staging) != ncclSuccess) {
        give_up_because(setup, "no staging memory on GPU %s", setup->gpu.bus_id);
        return;
    }
    if (oh_staging_describe(&comm->staging, slot) != ncclSuccess) {
        give_up_because(setup, "CUDA IPC gives no handle on GPU %s", setup->gpu.bus_id);
        return;
    }
    slot->check = oh_env_flag(OH_ENV_CHECK, false);
    snprintf(slot->bus_id, sizeof slot->bus_id, "%s", setup->gpu.bus_id);
    if (comm->rank == 0 && !publish_table(setup)) {
        give_up_because(setup, "the settings leave no message to serve");
        return;
    }
    comm->staging.peer[comm->rank].base = comm->staging.base;
    setup->opened = 1U << comm->rank;
    atomic_store(&slot->filled, 1);
    end_lap(setup, OH_LAP_MEMORY);
}

/* What a peer gives as its bus id goes into questions and into the log. */
static bool is_bus_id(const char *text)
{
    size_t length = strspn(text, "0123456789abcdef:.");
    return length > 0 && text[length] == '\0';
}

/* One peer: is the way there NVLink, and does it open? */
static void open_peer(struct oh_setup *setup, uint32_t rank)
{
    struct oh_comm *comm = setup->comm;
    struct oh_slot slot = comm->segment.meeting->slot[rank]; /* a copy that no one can change under us */
    const struct oh_driver *driver = comm->staging.driver;
    struct oh_topo_pair pair;
    char reason[OH_REASON_BYTES];

    if (!oh_slot_is_mine(&slot) && !oh_slot_can_be_seen(&slot)) {
        give_up_because(setup, "the process of rank %u cannot be seen from here (another PID namespace, or no /proc?)",
                        rank);
        return;
    }
    slot.bus_id[sizeof slot.bus_id - 1] = '\0';
    if (!is_bus_id(slot.bus_id)) {
        give_up_because(setup, "rank %u gives no bus id of a GPU", rank);
        return;
    }
    oh_topo_pair_gather(driver, setup->gpu.bus_id, slot.bus_id, &pair);
    if (!oh_topo_judge_pair(setup->gpu.bus_id, slot.bus_id, &pair, reason, sizeof reason)) {
        give_up_because(setup, "%s", reason);
        return;
    }
    end_lap(setup, OH_LAP_LINKS);
    if (oh_staging_open_peer(&comm->staging, rank, &slot, oh_slot_is_mine(&slot)) != ncclSuccess) {
        give_up_because(setup, "the memory of rank %u (GPU %s) cannot be opened", rank, slot.bus_id);
        return;
    }
    setup->opened |= 1U << rank;
    end_lap(setup, OH_LAP_OPEN);
}

/* Opens those whose slots are filled. True when all are open. */
static bool open_peers(struct oh_setup *setup)
{
    struct oh_comm *comm = setup->comm;
    end_lap(setup, OH_LAP_PEERS);
    for (uint32_t r = 0; r < comm->nranks && setup->alive; r++) {
        if (oh_segment_decision(&comm->segment) == OH_DECISION_OFF) {
            return false; /* then nothing may be opened */
        }
        if (!(setup->opened & 1U << r) && oh_segment_filled(&comm->segment, r)) {
            open_peer(setup, r);
        }
    }
    return setup->opened == (1U << comm->nranks) - 1;
}

/* Says how large grids may be here. The least of all ranks counts (attach.c). */
static bool publish_room(struct oh_setup *setup)
{
    struct oh_comm *comm = setup->comm;
    const struct oh_staging *staging = &comm->staging;
    struct oh_plan_table table = comm->table;
    struct oh_context_scope scope;
    struct oh_plan_room room = {0};
    if (oh_context_enter_relaxed(staging->driver, &staging->context, &scope) != CUDA_SUCCESS) {
        give_up_because(setup, "the context of GPU %s cannot be made current", setup->gpu.bus_id);
        return false;
    }
    ncclResult_t res =
        oh_room_query(staging->driver, staging->device, &staging->context, comm->kernels, &comm->table, &room);
    oh_context_leave_relaxed(staging->driver, &scope);
    room.max_blocks = comm->config.max_ctas;
    if (res != ncclSuccess) {
        give_up_because(setup, "the occupancy of the kernels is unknown on GPU %s", setup->gpu.bus_id);
    } else if (!oh_plan_table_fit(&table, &room)) {
        give_up_because(setup, "too few SMs for the kernels on GPU %s: %u, with %u threads each", setup->gpu.bus_id,
                        room.sms, room.sm_threads);
    } else {
        comm->segment.meeting->slot[comm->rank].room = room;
        comm->segment.meeting->slot[comm->rank].programmatic = comm->kernels->programmatic;
    }
    return setup->alive;
}

/* What is needed to serve, once the peers' memory is there: table, kernels, epoch. */
static void prepare(struct oh_setup *setup)
{
    struct oh_comm *comm = setup->comm;
    const struct oh_meeting *meeting = comm->segment.meeting;

    comm->table = meeting->table;
    for (uint32_t r = 0; r < comm->nranks; r++) { /* all have filled their slots: the same for all */
        comm->check |= meeting->slot[r].check != 0;
    }
    if (!oh_plan_table_valid(&comm->table, comm->nranks)) {
        give_up_because(setup, "rank 0's tuning table is not valid");
        return;
    }
    if (comm->table.fp8 && setup->gpu.compute_major < FP8_COMPUTE_MAJOR) {
        give_up_because(setup, "GPU %s is of another generation than that of rank 0", setup->gpu.bus_id);
        return;
    }
    if (!oh_monitor_start()) {
        give_up_because(setup, "no thread to monitor the other ranks");
        return;
    }
    if (oh_comm_prepare_launch(comm) != ncclSuccess) {
        give_up_because(setup, "the kernels cannot be made ready on GPU %s", setup->gpu.bus_id);
        return;
    }
    if (!publish_room(setup)) {
        return;
    }
    end_lap(setup, OH_LAP_KERNELS);
    if (oh_staging_finish(&comm->staging, meeting->init_epoch) != ncclSuccess) {
        give_up_because(setup, "the staging memory cannot be cleared on GPU %s", setup->gpu.bus_id);
        return;
    }
    end_lap(setup, OH_LAP_CLEAR);
}

/*
 * What has been made ready is seen by a thread that takes the mutex after the vote has had its effect. The words in
 * shared memory order the two already; but only for who knows that all mappings are one memory.
 */
static void vote(struct oh_setup *setup)
{
    struct oh_comm *comm = setup->comm;
    pthread_mutex_lock(&comm->attach.mutex);
    for (int i = 0; i < OH_LAPS; i++) {
        comm->attach_ms += (double)setup->lap_ns[i] / 1e6;
    }
    comm->attach.voted = true;
    pthread_mutex_unlock(&comm->attach.mutex);
    oh_segment_accept(&comm->segment, comm->nranks);
}

/* Takes the step that is due. False: it has to wait for others. */
static bool take_step(struct oh_setup *setup)
{
    struct oh_comm *comm = setup->comm;
    switch (setup->step) {
    case OH_STEP_FILL:
        fill(setup);
        setup->step = OH_STEP_OPEN;
        return true;
    case OH_STEP_OPEN:
        if (!open_peers(setup)) {
            return false;
        }
        prepare(setup);
        setup->step = OH_STEP_VOTE;
        return true;
    case OH_STEP_VOTE:
        if (comm->attach.unordered && !atomic_load(&comm->attach.ordered)) {
            return false;
        }
        atomic_store(&comm->segment.meeting->slot[comm->rank].withheld, OH_WITHHELD_NOT);
        vote(setup);
        setup->step = OH_STEP_VOTED;
        return true;
    default:
        return false;
    }
}

static bool is_decided(const struct oh_setup *setup)
{
    const struct oh_comm *comm = setup->comm;
    return !setup->alive || oh_comm_is_settled(comm) || oh_segment_decision(&comm->segment) != OH_DECISION_PENDING;
}

bool oh_setup_advance(struct oh_setup *setup, bool *moved_p)
{
    while (!is_decided(setup)) {
        if (take_step(setup)) {
            *moved_p = true;
        } else if (oh_segment_has_dead_rank(&setup->comm->segment, setup->comm->rank, setup->comm->nranks)) {
            oh_segment_refuse(&setup->comm->segment, "a rank's process has ended");
        } else {
            return false;
        }
    }
    return true;
}

/* --- the end of a set-up ---------------------------------------------------------------------------------------- */

static void trace_laps(const struct oh_setup *setup)
{
    static const char *const names[OH_LAPS] = {
#define OH_SETUP_LAP(identifier_, name_) name_,
        OH_SETUP_LAPS(OH_SETUP_LAP)
#undef OH_SETUP_LAP
    };
    char text[32 * OH_LAPS] = "";
    if (oh_log_level() < OH_LOG_TRACE) {
        return;
    }
    for (int i = 0, used = 0; i < OH_LAPS; i++) {
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%s %.2f", i > 0 ? ", " : "", names[i],
                         (double)setup->lap_ns[i] / 1e6);
    }
    OH_TRACE("comm %p rank %u: set-up in ms: %s", (void *)setup->comm->nccl, setup->comm->rank, text);
}

/* --- begin and end ------------------------------------------------------------------------------------------------ */

static void bind(struct oh_setup *setup, CUstream stream)
{
    struct oh_comm *comm = setup->comm;
    const struct oh_driver *driver;
    CUdevice device;
    char reason[OH_REASON_BYTES];
    if (!oh_topo_allowed_by_env(reason, sizeof reason)) {
        give_up_because(setup, "%s", reason);
    } else if (oh_driver_get(&driver) != ncclSuccess) {
        give_up_because(setup, "%s", oh_driver_error());
    } else if (driver->device_get(&device, comm->attach.cuda_device) != CUDA_SUCCESS) {
        give_up_because(setup, "CUDA device %d cannot be found", comm->attach.cuda_device);
    } else if (oh_staging_bind(driver, device, oh_context_of_call(driver, device, stream), &comm->staging) !=
               ncclSuccess) {
        give_up_because(setup, "CUDA device %d has no context", comm->attach.cuda_device);
    } else if (oh_comm_prepare_order(comm) != ncclSuccess) {
        give_up_because(setup, "CUDA device %d has no events", comm->attach.cuda_device);
    }
}

struct oh_setup *oh_setup_begin(struct oh_comm *comm, CUstream stream)
{
    struct oh_setup *setup = calloc(1, sizeof *setup);
    if (!setup) {
        oh_segment_refuse(&comm->segment, "a rank is out of memory");
        return NULL;
    }
    setup->comm = comm;
    setup->alive = true;
    setup->mark_ns = oh_now_ns();
    struct oh_slot *slot = &comm->segment.meeting->slot[comm->rank];
    atomic_store(&slot->withheld, comm->attach.unordered ? OH_WITHHELD_CALL : OH_WITHHELD_NOT);
    bind(setup, stream);
    atomic_store(&slot->begun, 1); /* after `withheld`: who sees it sees that */
    end_lap(setup, OH_LAP_GPU);
    return setup;
}

/* What the ranks have decided takes effect, if it is no; yes does at the next call. Returns which of the two it is. */
static bool settle(struct oh_setup *setup)
{
    struct oh_comm *comm = setup->comm;
    pthread_mutex_lock(&comm->attach.mutex);
    bool on = comm->attach.first != 0 || (comm->attach.voted && oh_segment_decision(&comm->segment) == OH_DECISION_ON);
    if (!on && !setup->reason[0]) {
        oh_segment_reason(&comm->segment, setup->reason);
    }
    if (!on && !oh_comm_is_settled(comm)) {
        memcpy(comm->reason, setup->reason, sizeof comm->reason);
        atomic_store(&comm->settled, true);
        oh_live_update(comm);
    }
    pthread_mutex_unlock(&comm->attach.mutex);
    return on;
}

void oh_setup_end(struct oh_setup *setup)
{
    struct oh_comm *comm = setup->comm;
    end_lap(setup, OH_LAP_VOTES);
    trace_laps(setup);
    oh_segment_unlink(&comm->segment); /* if it still has a name: all ranks have found it by now */
    if (!settle(setup)) {
        OH_INFO("comm %p rank %u nranks %u: falls back to NCCL: %s", (void *)comm->nccl, comm->rank, comm->nranks,
                setup->reason);
        oh_comm_strip(comm);
    }
    free(setup);
}
