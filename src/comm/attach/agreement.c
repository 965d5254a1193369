/* SPDX-License-Identifier: MIT */
/*
 * agreement.c - from a rank's first call to a decision that all ranks share
 *
 * Does: Publishes this rank's peer info, opens the peers' memory, prepares kernels, and votes. A rank that cannot go on
 *    votes no, which ends the set-up on all ranks. See doc/design.md, "Attach".
 * Threads: oh_agreement_begin: the thread that uses the communicator; the rest: the background thread.
 * Owns: nothing.
 */
#include "comm/attach/attach.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "comm/watch/watch.h"
#include "gpu/kernels.h"
#include "plan/tuning.h"
#include "util/clock.h"
#include "util/env.h"
#include "util/bgthread.h"
#include "util/log.h"
#include "util/nccl_conf.h"
#include "util/scope.h"

/* From this compute capability on NCCL has fp8 (src/enqueue.cc:2557 of 2.28.9), and so have the kernels. */
#define FP8_COMPUTE_MAJOR 9

static _Atomic uint32_t taken; /* steps of all set-ups of this process */

/* --- the steps -------------------------------------------------------------------------------------------------- */

/* Votes no for a reason of this rank's, and gives up. Returns false. */
__attribute__((format(printf, 2, 3))) static bool decline(struct oh_comm *comm, const char *format, ...)
{
    char reason[OH_REASON_BYTES];
    va_list args;
    int head = snprintf(reason, sizeof reason, "rank %u: ", comm->id.rank);
    va_start(args, format);
    vsnprintf(reason + head, sizeof reason - (size_t)head, format, args);
    va_end(args);
    comm->agreement.alive = false;
    oh_segment_vote_no(&comm->segment, reason);
    return false;
}

/* The table for this machine, from rank 0. */
static void load_table(struct oh_comm *comm, struct oh_plan_table *table_p)
{
    struct oh_tuning_key key = {.nranks = comm->id.nranks, .nccl = "unknown"};
    char from[OH_STORE_PATH];
    snprintf(key.gpu, sizeof key.gpu, "%s", comm->agreement.gpu.name);
    oh_topo_driver_version(key.driver, sizeof key.driver);
    if (comm->id.nccl_version > 0) {
        oh_tuning_nccl_name(comm->id.nccl_version, key.nccl);
    }
    oh_store_load(&key, table_p, from);
    OH_INFO("comm %p nranks %u: all ranks use the tuning table of rank 0: %s", (void *)comm->id.nccl, comm->id.nranks,
            from);
}

uint32_t oh_agreement_collectives(void)
{
    const uint32_t all = (1U << ONEHOP_COLLECTIVE_COUNT) - 1;
    const char *text = oh_env_text(OH_ENV_COLLECTIVES);
    uint32_t collectives = 0;
    while (text && *text && strcmp(text, "all") != 0) {
        const size_t length = strcspn(text, ",");
        const int collective = oh_collective_by_name(text, length);
        if (collective < 0) {
            oh_env_reject(OH_ENV_COLLECTIVES);
            return all;
        }
        collectives |= 1U << collective;
        text += length + (text[length] == ',');
    }
    return collectives ? collectives : all;
}

/* Builds the table in private memory, since peers may write to the shared one. False: nothing to serve. */
static bool publish_table(struct oh_comm *comm)
{
    const char *names[1 + ONEHOP_ALGORITHM_COUNT] = {"auto"};
    struct oh_shared *shared = comm->segment.shared;
    for (int a = 0; a < ONEHOP_ALGORITHM_COUNT; a++) {
        names[1 + a] = oh_algorithm_name(a);
    }
    int forced = oh_env_choice(OH_ENV_ALGO, names, 1 + ONEHOP_ALGORITHM_COUNT, 0) - 1;
    uint64_t max_bytes = oh_env_number(OH_ENV_MAX_BYTES, true, UINT64_C(1) << 30, UINT64_MAX);

    struct oh_plan_table table;
    load_table(comm, &table);
    if (comm->id.config.invariant) { /* no limit but the forced algorithm */
        oh_plan_table_fill(&table);
        max_bytes = UINT64_MAX;
    }
    oh_plan_table_apply_limits(&table, max_bytes, forced);
    oh_plan_table_keep(&table, oh_agreement_collectives());
    table.fp8 = comm->agreement.gpu.compute_major >= FP8_COMPUTE_MAJOR;
    shared->table = table;
    shared->init_epoch = (uint32_t)oh_env_number(OH_ENV_INIT_EPOCH, false, UINT32_MAX, 1);
    return oh_plan_table_end(&table) > 0;
}

/* NCCL's call and onehop's are launched one behind the other, so NCCL must not launch its own in the background. */
static uint64_t verify_interval(struct oh_comm *comm)
{
    const uint64_t interval = oh_env_number(OH_ENV_VERIFY, false, 1000000000, 0);
    if (interval == 0) {
        return 0;
    }
    /* A program must poll the state of a non-blocking communicator before its first call (NCCL, user guide). */
    const bool polled = comm->id.config.is_assumed && atomic_load(&comm->attach.polled);
    if (!comm->id.config.blocking || polled) {
        OH_WARN("comm %p rank %u nranks %u: no call is verified: the communicator %s non-blocking",
                OH_COMM_VALUES(comm), polled ? "may be" : "is");
        return 0;
    }
    if (oh_staging_create_verify(&comm->staging) != CUDA_SUCCESS) {
        OH_WARN("comm %p rank %u nranks %u: no call is verified: no %u MiB for it on GPU %s", OH_COMM_VALUES(comm),
                OH_VERIFY_BYTES >> 20, comm->agreement.gpu.bus_id);
        return 0;
    }
    return interval;
}

/* Publishes who this rank is and where its staging is. */
static bool publish(struct oh_comm *comm)
{
    struct oh_peer_info *info = &comm->segment.shared->peer_info[comm->id.rank];
    char reason[OH_REASON_BYTES];

    oh_topo_gpu_gather(comm->staging.device, &comm->agreement.gpu);
    if (!oh_topo_check_gpu(&comm->agreement.gpu, reason, sizeof reason)) {
        return decline(comm, "%s", reason);
    }
    if (oh_staging_create(&comm->staging, &comm->id.key, comm->id.rank, comm->id.nranks) != CUDA_SUCCESS) {
        return decline(comm, "no staging memory on GPU %s", comm->agreement.gpu.bus_id);
    }
    if (oh_staging_describe(&comm->staging, info) != CUDA_SUCCESS) {
        return decline(comm, "CUDA IPC gives no handle on GPU %s", comm->agreement.gpu.bus_id);
    }
    info->invariant = comm->id.config.invariant;
    info->check = oh_env_flag(OH_ENV_CHECK_CALLS, false);
    info->verify = verify_interval(comm);
    snprintf(info->bus_id, sizeof info->bus_id, "%s", comm->agreement.gpu.bus_id);
    if (comm->id.rank == 0 && !publish_table(comm)) {
        return decline(comm, "the settings leave no message to serve");
    }
    comm->staging.peer[comm->id.rank].base = comm->staging.base;
    atomic_store(&info->ready, 1);
    return true;
}

/* For the calls that wait: the set-ups of this process and of other ranks go on. */
static void note_step(struct oh_comm *comm)
{
    atomic_fetch_add(&taken, 1);
    atomic_fetch_add(&comm->segment.shared->steps, 1);
}

/* A peer's bus id is used in queries and in the log. */
static bool is_bus_id(const char *text)
{
    size_t length = strspn(text, "0123456789abcdef:.");
    return length > 0 && text[length] == '\0';
}

/* Checks that NVLink joins the peer, and opens its memory. Returns false if this rank has declined. */
static bool open_peer(struct oh_comm *comm, uint32_t rank)
{
    struct oh_peer_info info = comm->segment.shared->peer_info[rank]; /* read once: the peer may write to it */
    struct oh_topo_pair pair;
    char reason[OH_REASON_BYTES];

    if (!oh_peer_info_is_own(&info) && !oh_peer_info_is_visible(&info)) {
        return decline(comm, "the process of rank %u cannot be seen from here (another PID namespace, or no /proc?)",
                       rank);
    }
    if (info.invariant != comm->id.config.invariant) {
        return decline(comm, "ONEHOP_INVARIANT is %d here and %d on rank %u", comm->id.config.invariant,
                       info.invariant != 0, rank);
    }
    info.bus_id[sizeof info.bus_id - 1] = '\0';
    if (!is_bus_id(info.bus_id)) {
        return decline(comm, "rank %u gives no bus id of a GPU", rank);
    }
    oh_topo_pair_gather(comm->agreement.gpu.bus_id, info.bus_id, &pair);
    if (!oh_topo_check_pair(comm->agreement.gpu.bus_id, info.bus_id, &pair, reason, sizeof reason)) {
        return decline(comm, "%s", reason);
    }
    if (oh_staging_open_peer(&comm->staging, rank, &info, oh_peer_info_is_own(&info)) != CUDA_SUCCESS) {
        return decline(comm, "the memory of rank %u (GPU %s) cannot be opened", rank, info.bus_id);
    }
    return true;
}

/* Opens the peers whose info is ready. True when all are open. */
static bool open_peers(struct oh_comm *comm)
{
    bool all_open = true;
    for (uint32_t r = 0; r < comm->id.nranks && comm->agreement.alive; r++) {
        if (oh_segment_decision(&comm->segment) == OH_DECISION_OFF) {
            return false; /* nothing may be opened then */
        }
        if (!comm->staging.peer[r].base && atomic_load(&comm->segment.shared->peer_info[r].ready) &&
            open_peer(comm, r)) {
            note_step(comm);
        }
        all_open &= comm->staging.peer[r].base != 0;
    }
    return all_open;
}

/* Publishes how large grids may be here; attach.c takes the least of all ranks. */
static bool publish_room(struct oh_comm *comm, struct oh_plan_room room)
{
    struct oh_plan_table table = comm->serve.table;
    room.max_blocks = comm->id.config.max_ctas;
    if (!oh_plan_table_fit(&table, &room, comm->id.config.invariant)) {
        return decline(comm, "too few SMs for the kernels on GPU %s: %u, with %u threads each",
                       comm->agreement.gpu.bus_id, room.sms, oh_plan_room_threads(&room));
    }
    comm->segment.shared->peer_info[comm->id.rank].room = room;
    return true;
}

static CUresult load_kernels(struct oh_comm *comm, struct oh_plan_room *room_p)
{
    const struct oh_staging *staging = &comm->staging;
    OH_CONTEXT_RELAXED(&staging->context);
    OH_TRY(oh_kernel_set_get(staging->device, comm->id.nranks, &comm->serve.kernels));
    OH_TRY(comm->verify.interval > 0 ? oh_kernels_get_verify(&comm->verify.kernels) : CUDA_SUCCESS);
    return oh_room_query(staging->device, &staging->context, comm->serve.kernels, &comm->serve.table, room_p);
}

/* Loads the kernels, whose room becomes *room_p. Returns false if this rank has declined. */
static bool prepare_kernels(struct oh_comm *comm, struct oh_plan_room *room_p)
{
    const struct oh_topo_gpu *gpu = &comm->agreement.gpu;
    if (load_kernels(comm, room_p) == CUDA_SUCCESS) {
        return true;
    }
    if (comm->serve.kernels) {
        return decline(comm, "the occupancy of the kernels is unknown on GPU %s", gpu->bus_id);
    }
    if (oh_architectures_include(oh_architectures, gpu->compute_major, gpu->compute_minor)) {
        return decline(comm, "the kernels cannot be made ready on GPU %s", gpu->bus_id);
    }
    return decline(comm, "this build has no kernels for GPU %s, of compute capability %d.%d (it has: %s)", gpu->bus_id,
                   gpu->compute_major, gpu->compute_minor, oh_architectures[0] ? oh_architectures : "none");
}

/* All ranks verify the same calls, or none. */
static void prepare_verify(struct oh_comm *comm)
{
    const struct oh_peer_info *info = comm->segment.shared->peer_info;
    const uint64_t interval = info[0].verify;
    for (uint32_t r = 1; r < comm->id.nranks; r++) {
        if (info[r].verify != interval) {
            OH_WARN("comm %p rank %u nranks %u: no call is verified: rank 0 wants one in %" PRIu64
                    ", rank %u one in %" PRIu64 " (0: none)",
                    OH_COMM_VALUES(comm), interval, r, info[r].verify);
            return;
        }
    }
    comm->verify.is_fatal = oh_env_flag(OH_ENV_VERIFY_FATAL, false);
    comm->verify.interval = interval;
}

/* Fills in the arguments that are the same in every call. */
static void fill_arguments(struct oh_comm *comm)
{
    const struct oh_staging *staging = &comm->staging;
    struct oh_kernel_args *args = &comm->serve.args;
    for (uint32_t j = 0; j < comm->id.nranks; j++) {
        args->staging[j] = (char *)(uintptr_t)staging->peer[(comm->id.rank + j) % comm->id.nranks].base;
    }
    args->control = (struct oh_control *)(uintptr_t)staging->control_device;
    args->abort_flag = &args->control->abort_flag;
    args->rank = comm->id.rank;
    args->trigger = oh_env_flag(OH_ENV_TRIGGER, false) ? OH_TRIGGER_LATE : OH_TRIGGER_NONE;
    args->nranks = comm->id.nranks;
}

/* Takes rank 0's table, and what all ranks have published. Returns false if this rank has declined. */
static bool take_settings(struct oh_comm *comm)
{
    const struct oh_shared *shared = comm->segment.shared;
    comm->serve.table = shared->table;
    for (uint32_t r = 0; r < comm->id.nranks; r++) { /* all have published their peer info: the same for all */
        comm->serve.check |= shared->peer_info[r].check != 0;
    }
    prepare_verify(comm);
    if (!oh_plan_table_valid(&comm->serve.table, comm->id.nranks)) {
        return decline(comm, "rank 0's tuning table is not valid");
    }
    if (comm->serve.table.fp8 && comm->agreement.gpu.compute_major < FP8_COMPUTE_MAJOR) {
        return decline(comm, "GPU %s is of another generation than that of rank 0", comm->agreement.gpu.bus_id);
    }
    return true;
}

/* What is needed to serve, once the peers' memory is open: table, kernels, epoch. */
static bool prepare(struct oh_comm *comm)
{
    struct oh_plan_room room = {0};
    if (!take_settings(comm)) {
        return false;
    }
    if (!oh_monitor_start()) {
        return decline(comm, "%s", oh_bgthread_refusal());
    }
    if (!prepare_kernels(comm, &room) || !publish_room(comm, room)) {
        return false;
    }
    comm->serve.early_blocks = oh_env_flag(OH_ENV_LAUNCH_ORDER, true) ? oh_edge_early_blocks(room.sms) : 0;
    if (oh_staging_finish(&comm->staging, comm->segment.shared->init_epoch) != CUDA_SUCCESS) {
        return decline(comm, "the staging memory cannot be cleared on GPU %s", comm->agreement.gpu.bus_id);
    }
    fill_arguments(comm);
    OH_LOCK(&comm->attach.mutex);
    comm->attach.ms += (double)(oh_now_ns() - comm->agreement.start_ns) / 1e6;
    return true;
}

/*
 * Waits until an event of onehop's is after NCCL's work, then votes yes. The mutex publishes what is prepared to the
 * thread that uses the communicator; the atomic words in the segment do so as well, which a race detector cannot see.
 */
static bool vote(struct oh_comm *comm)
{
    if (comm->attach.unordered && !atomic_load(&comm->attach.ordered)) {
        return false;
    }
    atomic_store(&comm->segment.shared->peer_info[comm->id.rank].withheld, OH_WITHHELD_NOT);
    pthread_mutex_lock(&comm->attach.mutex);
    comm->attach.voted = true;
    pthread_mutex_unlock(&comm->attach.mutex);
    oh_segment_vote_yes(&comm->segment, comm->id.nranks);
    return true;
}

/*
 * The steps of a set-up, in order. Each returns true when it is done; false: it waits for other ranks, or for NCCL. A
 * step that fails declines, which ends the set-up.
 */
static bool (*const steps[])(struct oh_comm *) = {publish, open_peers, prepare, vote};
#define STEP_COUNT (sizeof steps / sizeof *steps)

static bool is_decided(const struct oh_comm *comm)
{
    return !comm->agreement.alive || oh_comm_is_settled(comm) ||
           oh_segment_decision(&comm->segment) != OH_DECISION_PENDING;
}

uint32_t oh_agreement_steps(const struct oh_comm *comm)
{
    return atomic_load(&taken) + atomic_load(&comm->segment.shared->steps);
}

/* A rank that the communicator grows from has no segment of the communicator to vote in. */
static void relay_refusal(struct oh_comm *comm)
{
    const struct oh_segment *of_parent = &comm->attach.parent_segment;
    char reason[OH_REASON_BYTES];
    if (of_parent->shared && oh_segment_decision(of_parent) == OH_DECISION_OFF) {
        oh_segment_reason(of_parent, reason);
        oh_segment_vote_no(&comm->segment, reason);
    }
}

enum oh_step oh_agreement_advance(struct oh_comm *comm)
{
    enum oh_step result = OH_STEP_WAITS;
    relay_refusal(comm);
    while (!is_decided(comm)) {
        if (comm->agreement.step < STEP_COUNT && steps[comm->agreement.step](comm)) {
            comm->agreement.step++;
            note_step(comm);
            result = OH_STEP_MOVED;
        } else if (oh_segment_has_dead_rank(&comm->segment, comm->id.rank, comm->id.nranks)) {
            oh_segment_vote_no(&comm->segment, "a rank's process has ended");
        } else if (comm->agreement.alive) {
            return result;
        }
    }
    return OH_STEP_DONE;
}

/* --- begin and end ------------------------------------------------------------------------------------------------ */

/* NCCL's own switch for the same thing. */
static bool nccl_mixes_graphs(void)
{
    const char *text = oh_nccl_variable("NCCL_GRAPH_MIXING_SUPPORT");
    return !text || strcmp(text, "0") != 0;
}

/* Creates the events, which reclaim.c destroys, also when this fails half-way. */
static CUresult prepare_order(struct oh_comm *comm)
{
    OH_CONTEXT_RELAXED(&comm->staging.context);
    for (int e = 0; e < OH_EVENTS; e++) {
        OH_CU_TRY(event_create(&comm->order.event[e], CU_EVENT_DISABLE_TIMING));
    }
    comm->order.graph_mixing = oh_env_flag(OH_ENV_GRAPH_MIXING, nccl_mixes_graphs());
    return CUDA_SUCCESS;
}

static void bind(struct oh_comm *comm, CUstream stream)
{
    CUdevice device;
    char reason[OH_REASON_BYTES];
    if (!oh_topo_allowed_by_env(reason, sizeof reason)) {
        decline(comm, "%s", reason);
    } else if (comm->id.config.invariant && comm->attach.unordered) {
        decline(comm, "invariant, and NCCL had calls of the communicator before onehop followed it");
    } else if (oh_driver_open() != ncclSuccess) {
        decline(comm, "%s", oh_driver_error());
    } else if (oh_driver.device_get(&device, comm->attach.cuda_device) != CUDA_SUCCESS) {
        decline(comm, "CUDA device %d cannot be found", comm->attach.cuda_device);
    } else if (oh_staging_bind(device, oh_context_of_call(device, stream), &comm->staging) != CUDA_SUCCESS) {
        decline(comm, "CUDA device %d has no context", comm->attach.cuda_device);
    } else if (prepare_order(comm) != CUDA_SUCCESS) {
        decline(comm, "CUDA device %d has no events", comm->attach.cuda_device);
    }
}

void oh_agreement_begin(struct oh_comm *comm, CUstream stream)
{
    struct oh_peer_info *info = &comm->segment.shared->peer_info[comm->id.rank];
    comm->agreement.alive = true;
    comm->agreement.start_ns = oh_now_ns();
    atomic_store(&info->withheld, comm->attach.unordered ? OH_WITHHELD_CALL : OH_WITHHELD_NOT);
    bind(comm, stream);
    atomic_store(&info->begun, 1); /* after `withheld`, which a reader of `begun` reads next */
}

/* Either decision takes effect at a call of the program. */
void oh_agreement_end(struct oh_comm *comm)
{
    struct oh_attach *attach = &comm->attach;
    oh_segment_unlink(&comm->segment); /* all ranks have opened it by now */
    oh_segment_discard(&attach->parent_segment);
    pthread_mutex_lock(&attach->mutex);
    const bool on =
        oh_comm_has_agreed(comm) || (attach->voted && oh_segment_decision(&comm->segment) == OH_DECISION_ON);
    if (!on && !oh_comm_is_settled(comm)) {
        oh_segment_reason(&comm->segment, attach->reason);
    }
    attach->voted = on; /* no call may serve from what is given up now */
    oh_comm_publish_facts(comm);
    pthread_mutex_unlock(&attach->mutex);
    if (!on) {
        oh_comm_detach(comm);
    }
}
