/* SPDX-License-Identifier: MIT */
/*
 * agree.c - from presence to a decision that all ranks share
 *
 * The steps of a set-up: count (is every rank here?), fill (my slot), open (peers' memory, topology), vote. A rank
 * that cannot go on refuses, which ends it for all; it never just stays away. See doc/design.md, "Set-up".
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

static bool is_past(const struct oh_setup *setup)
{
    return oh_now_ns() > setup->deadline_ns;
}

void oh_setup_pass_gate(struct oh_setup *setup)
{
    struct oh_comm *comm = setup->comm;
    const struct oh_meeting *gate = setup->gate.meeting;
    uint32_t present = atomic_load(&gate->present);
    if (present != setup->grown_from) {
        char reason[OH_REASON_BYTES];
        snprintf(reason, sizeof reason, "onehop is present on this host for %u of %u ranks that it grows from", present,
                 setup->grown_from);
        oh_setup_give_up(setup, reason);
    } else if (!atomic_load(&gate->redirected)) {
        oh_setup_give_up(setup, "no rank that it grows from had the unique id");
    } else {
        comm->key = gate->target;
        if (!comm->segment.meeting && oh_segment_visit(&comm->segment, &comm->key) != ncclSuccess) {
            oh_setup_give_up(setup, "this rank has no shared memory to meet the others");
        }
    }
    oh_segment_drop(&setup->gate);
}

/* The new ranks have counted themselves in; those of the parent have been counted at the gate. Always decides. */
static bool count_grown_ranks(struct oh_setup *setup)
{
    const struct oh_comm *comm = setup->comm;
    uint32_t from = atomic_load(&comm->segment.meeting->grown_from);
    uint32_t present = atomic_load(&comm->segment.meeting->present);
    if (from == 0 || from >= comm->nranks || present != comm->nranks - from) {
        char reason[OH_REASON_BYTES];
        snprintf(reason, sizeof reason, "onehop is present on this host for %u of %u new ranks%s", present,
                 comm->nranks - from, from == 0 ? ", and for none that has the unique id" : "");
        oh_setup_give_up(setup, reason);
    }
    return true;
}

/* True when the ranks are counted. All ranks see the same number, after a barrier; without one they may still come. */
static bool count_ranks(struct oh_setup *setup)
{
    struct oh_comm *comm = setup->comm;
    if (setup->grows) {
        return count_grown_ranks(setup);
    }
    uint32_t present = atomic_load(&comm->segment.meeting->present);
    if (present == comm->nranks) {
        return true;
    }
    if (setup->unbarred && present < comm->nranks && !is_past(setup)) {
        return false;
    }
    char reason[OH_REASON_BYTES];
    snprintf(reason, sizeof reason, "onehop is present on this host for %u of %u ranks", present, comm->nranks);
    oh_setup_give_up(setup, reason);
    return true;
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
    const char *names[1 + ONEHOP_ALGORITHMS] = {"auto"};
    struct oh_meeting *meeting = setup->comm->segment.meeting;
    for (int a = 0; a < ONEHOP_ALGORITHMS; a++) {
        names[1 + a] = oh_algorithm_name(a);
    }
    int forced = oh_env_choice(OH_ENV_ALGO, names, 1 + ONEHOP_ALGORITHMS, 0) - 1;
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
    const struct oh_driver *driver;
    CUdevice device;
    char reason[OH_REASON_BYTES];

    oh_slot_identify(slot); /* first of all: should this process end here, the others need not wait for it */
    if (!oh_topo_allowed_by_env(reason, sizeof reason)) {
        give_up_because(setup, "%s", reason);
        return;
    }
    if (oh_driver_get(&driver) != ncclSuccess) {
        give_up_because(setup, "%s", oh_driver_error());
        return;
    }
    if (driver->device_get(&device, setup->cuda_device) != CUDA_SUCCESS) {
        give_up_because(setup, "CUDA device %d cannot be found", setup->cuda_device);
        return;
    }
    oh_topo_gpu_gather(driver, device, &setup->gpu);
    if (!oh_topo_judge_gpu(&setup->gpu, reason, sizeof reason)) {
        give_up_because(setup, "%s", reason);
        return;
    }
    end_lap(setup, OH_LAP_GPU);
    if (oh_staging_create(driver, device, setup->context, &comm->staging) != ncclSuccess) {
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

/* Says how large grids may be here. The least of all ranks counts (oh_late_switch_on). */
static bool publish_room(struct oh_setup *setup)
{
    struct oh_comm *comm = setup->comm;
    const struct oh_staging *staging = &comm->staging;
    struct oh_plan_table table = comm->table;
    struct oh_context_scope scope;
    struct oh_plan_room room;
    if (oh_context_enter_relaxed(staging->driver, &staging->context, &scope) != CUDA_SUCCESS) {
        give_up_because(setup, "the context of GPU %s cannot be made current", setup->gpu.bus_id);
        return false;
    }
    ncclResult_t res =
        oh_room_query(staging->driver, staging->device, &staging->context, comm->kernels, &comm->table, &room);
    oh_context_leave_relaxed(staging->driver, &scope);
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

/* Takes the step that is due. False: it has to wait for others. */
static bool take_step(struct oh_setup *setup)
{
    switch (setup->step) {
    case OH_STEP_COUNT:
        if (!count_ranks(setup)) {
            return false;
        }
        setup->step = OH_STEP_FILL;
        end_lap(setup, OH_LAP_PRESENCE);
        return true;
    case OH_STEP_FILL:
        fill(setup);
        setup->step = OH_STEP_OPEN;
        return true;
    case OH_STEP_OPEN:
        if (!open_peers(setup)) {
            return false;
        }
        prepare(setup);
        if (setup->alive) {
            /*
             * What has been made ready is seen by a thread that takes the mutex after the vote has had its effect. The
             * words in shared memory order the two already; but only for who knows that all mappings are one memory.
             */
            pthread_mutex_lock(&setup->comm->late.mutex);
            pthread_mutex_unlock(&setup->comm->late.mutex);
            oh_segment_accept(&setup->comm->segment, setup->comm->nranks);
        }
        setup->step = OH_STEP_VOTED;
        return true;
    default:
        return false;
    }
}

static bool is_decided(const struct oh_setup *setup)
{
    return !setup->alive || oh_segment_decision(&setup->comm->segment) != OH_DECISION_PENDING;
}

bool oh_setup_advance(struct oh_setup *setup, bool *moved_p)
{
    while (!is_decided(setup)) {
        if (take_step(setup)) {
            *moved_p = true;
        } else if (is_past(setup)) {
            oh_segment_refuse(&setup->comm->segment, "a rank did not answer in time");
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

/* True when the communicator is, or will be, served. */
static bool put_decision(struct oh_setup *setup)
{
    struct oh_comm *comm = setup->comm;
    bool on = setup->alive && oh_segment_decision(&comm->segment) == OH_DECISION_ON;
    if (!on && !setup->reason[0]) {
        oh_segment_reason(&comm->segment, setup->reason);
    }
    pthread_mutex_lock(&comm->late.mutex);
    for (int i = 0; i < OH_LAPS; i++) {
        comm->setup_ms += (double)setup->lap_ns[i] / 1e6;
    }
    if (comm->late.first != 0) {
        /* The application's thread has seen it first; it may have made calls, and even ended the communicator. */
    } else if (oh_comm_is_settled(comm)) { /* cancelled meanwhile */
        on = false;
        snprintf(setup->reason, sizeof setup->reason, "%s", comm->reason);
    } else if (on) {
        oh_late_switch_on(comm);
    } else {
        memcpy(comm->reason, setup->reason, sizeof comm->reason);
        atomic_store(&comm->settled, true);
    }
    oh_board_show(comm);
    pthread_mutex_unlock(&comm->late.mutex);
    return on;
}

void oh_setup_settle(struct oh_setup *setup)
{
    struct oh_comm *comm = setup->comm;
    end_lap(setup, OH_LAP_VOTES);
    if (setup->unbarred || setup->grows) { /* all ranks have found it by now */
        oh_segment_unlink(&comm->segment);
    }
    bool on = put_decision(setup);
    trace_laps(setup);
    if (on) {
        oh_monitor_add(comm);
        OH_INFO("comm %p rank %u nranks %u: served by onehop up to %" PRIu64 " bytes from call %" PRIu64
                " on, %u MiB of GPU memory, set up in %.1f ms%s",
                (void *)comm->nccl, comm->rank, comm->nranks, oh_plan_table_end(&comm->table), comm->late.first,
                OH_STAGING_BYTES >> 20, comm->setup_ms, setup->background ? ", in the background" : "");
    } else {
        OH_INFO("comm %p rank %u nranks %u: handed back to NCCL: %s", (void *)comm->nccl, comm->rank, comm->nranks,
                setup->reason);
        oh_comm_strip(comm);
    }
    free(setup);
}
