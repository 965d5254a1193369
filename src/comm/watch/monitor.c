/* SPDX-License-Identifier: MIT */
/*
 * monitor.c - detection of departed peers and of stalls
 *
 * Does: Implements the monitor of watch.h. A kernel that has polled for long stores its call and a counter in host
 *    memory, again and again (kernels/wait.cuh), in eager calls and in replays alike. The epoch tells one wait from
 *    the next. Only a counter that has changed since the last check is a wait.
 * Threads: see watch.h. The thread logs, and queries the driver, without the mutex: stderr may be a pipe that nobody
 *    reads, and the driver may block behind a launch until another thread aborts.
 * Owns: the thread.
 */
#include "comm/watch/watch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "util/clock.h"
#include "util/env.h"
#include "util/log.h"
#include "util/process.h"
#include "util/scope.h"
#include "util/bgthread.h"

#define MS UINT64_C(1000000)
#define TICK_NS (80 * MS)        /* between checks */
#define TICK_GONE_NS (20 * MS)   /* the same while a call may wait for a departed peer */
#define GONE_SOON_NS (5000 * MS) /* how long that is */
/*
 * For how long a call must wait after the departure of a peer before the communicator fails. The peer's last words
 * arrive within microseconds, and a wait is detected at the latest a check later; the rest is for loaded machines.
 */
#define GRACE_NS (40 * MS)
#define LAPSE_NS (500 * MS) /* between two checks: the process was stopped. Longer than any tick */
#define LINE 2560
#define APPEND(line_, ...) oh_text_append((line_), LINE, __VA_ARGS__)
#define NEVER UINT64_MAX

static void work(struct oh_bgthread *unused);
static struct oh_bgthread worker = {.mutex = PTHREAD_MUTEX_INITIALIZER, .work = work}; /* may still sleep at exit */
static struct oh_comm *watched; /* the list; this and what follows is guarded by the worker's mutex */
static bool begun;
static uint64_t looked_ns; /* the last check; 0: none */
static bool suspended;     /* the process was stopped between the last two checks */
static uint64_t stall_ns;
static uint64_t timeout_ns;
static uint64_t trap_ns;

/* Lines of one kind have a place in the log: so no number of others hides a failure (util/log.h). */
static struct oh_log_site failures, differences, stalls;
struct message {
    struct oh_log_site *site;
    char line[LINE]; /* empty: there is none */
};

/* --- the ranks ----------------------------------------------------------------------------------- */

static bool process_has_ended(const struct oh_comm *comm, uint32_t rank)
{
    const struct oh_process *process = comm->health.watch.peer[rank];
    return process && process->ended;
}

/* The rank sends nothing more. */
static bool has_departed(const struct oh_comm *comm, uint32_t rank)
{
    return rank != comm->id.rank &&
           (oh_rank_state_get(comm, rank) == OH_RANK_ABORTED || process_has_ended(comm, rank) ||
            atomic_load(&comm->segment.shared->peer_info[rank].peers_closed));
}

/* A wait after that epoch, as the shared memory has it (segment.h). */
static uint64_t wait_after(uint32_t epoch)
{
    return (uint64_t)epoch + 1;
}

/* The rank keeps this rank waiting: it was not seen to wait in the same call. */
static bool is_missing(const struct oh_comm *comm, uint32_t rank)
{
    const struct oh_progress *progress = &comm->segment.shared->progress[rank];
    return rank != comm->id.rank && atomic_load(&progress->waiting_epoch) != wait_after(comm->health.watch.epoch);
}

static uint32_t count_missing(const struct oh_comm *comm)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < comm->id.nranks; r++) {
        count += is_missing(comm, r);
    }
    return count;
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

static const char *name_of(ncclResult_t error)
{
    return error == ncclInvalidUsage    ? "ncclInvalidUsage"
           : error == ncclInternalError ? "ncclInternalError"
                                        : "ncclRemoteError";
}

static void append_rank(const struct oh_comm *comm, uint32_t rank, char *line)
{
    char text[OH_RANK_TEXT];
    oh_rank_text(comm, rank, text);
    APPEND(line, "%s%s", text, process_has_ended(comm, rank) ? ", whose process has ended" : "");
}

static void append_missing(const struct oh_comm *comm, char *line)
{
    const char *between = "";
    for (uint32_t r = 0; r < comm->id.nranks; r++) {
        if (is_missing(comm, r)) {
            APPEND(line, "%s", between);
            append_rank(comm, r, line);
            between = ", ";
        }
    }
    APPEND(line, "%s", *between ? "" : "nobody: all ranks wait in it");
}

/* Ranks with equal call numbers and different calls wait for each other. */
static void append_differences(const struct oh_comm *comm, char *line)
{
    const struct oh_progress *progress = comm->segment.shared->progress;
    struct oh_last_call mine, theirs;
    char text[OH_SIGNATURE_TEXT];
    if (!oh_read_last_call(&progress[comm->id.rank], &mine)) {
        return;
    }
    for (uint32_t r = 0; r < comm->id.nranks; r++) {
        if (oh_read_last_call(&progress[r], &theirs) && theirs.number == mine.number &&
            (theirs.signature != mine.signature || theirs.count != mine.count)) {
            oh_signature_format(theirs.signature, theirs.count, text);
            APPEND(line, "; the calls differ: call %" PRIu64 " is %s on rank %u", mine.number, text, r);
            oh_signature_format(mine.signature, mine.count, text);
            APPEND(line, " and %s on rank %u", text, comm->id.rank);
            return;
        }
    }
}

/* "comm 0x1 rank 0 of 3: waits for 60 s in call 17, a sum of 5 x float32, oneshot, for rank 2 (...)" */
static void describe_wait(const struct oh_comm *comm, uint64_t waited_ns, char *line)
{
    const struct oh_control *control = comm->staging.control;
    char what[OH_SIGNATURE_TEXT];
    oh_signature_format(__atomic_load_n(&control->signature, __ATOMIC_RELAXED),
                        __atomic_load_n(&control->report_count, __ATOMIC_RELAXED), what);
    APPEND(line, "comm %p rank %u of %u: waits for %" PRIu64 " s in call %u, %s, for ", OH_COMM_VALUES(comm),
           waited_ns / (1000 * MS), __atomic_load_n(&control->call_number, __ATOMIC_RELAXED), what);
    append_missing(comm, line);
    append_differences(comm, line);
}

/* --- one communicator --------------------------------------------------------------------------------------------- */

/* For how long a kernel has waited, if it still does. */
static uint64_t check_wait(struct oh_comm *comm, uint64_t now)
{
    const struct oh_control *control = comm->staging.control;
    struct oh_watch *watch = &comm->health.watch;
    uint32_t spins = __atomic_load_n(&control->spins, __ATOMIC_RELAXED);
    uint32_t epoch = __atomic_load_n(&control->epoch, __ATOMIC_RELAXED);
    bool same = watch->since_ns != 0 && epoch == watch->epoch;
    if (spins == 0 || (same && spins == watch->spins)) {
        return 0;
    }
    if (!same || suspended) { /* the kernel may have ended soon after the last check */
        watch->epoch = epoch;
        watch->since_ns = now;
        atomic_store(&comm->serve.progress->waiting_epoch, wait_after(epoch));
    }
    watch->spins = spins;
    return now - watch->since_ns;
}

static void fail_without(struct oh_comm *comm, uint32_t rank, char *line)
{
    if (oh_comm_fail(comm, ncclRemoteError, rank)) {
        APPEND(line, "comm %p rank %u of %u: a call waits, after the departure of ", OH_COMM_VALUES(comm));
        append_rank(comm, rank, line);
        APPEND(line, "%s",
               atomic_load(&comm->health.end) == OH_END_DESTROYED
                   ? ": the communicator is destroyed, its stream waits until the process ends"
                   : ": calls now return ncclRemoteError, the stream waits for ncclCommAbort");
    }
}

/* NCCL serves an eager allreduce that is not complete. */
static bool waits_in_nccl(struct oh_comm *comm)
{
    struct oh_watch *watch = &comm->health.watch;
    watch->asks = watch->answered != atomic_load_explicit(&comm->order.nccl_all_ranks, memory_order_acquire);
    return watch->asks && watch->waits_in_nccl && !suspended; /* else the answer may be old */
}

/*
 * Notes when each departed peer was first seen to have departed. Returns the peer that departed
 * first; OH_MAX_RANKS: none. *newest_ns_p: when the last one departed.
 */
static uint32_t note_departures(struct oh_comm *comm, uint64_t now, uint64_t *newest_ns_p)
{
    uint64_t *departed_ns = comm->health.watch.departed_ns;
    uint32_t first = OH_MAX_RANKS;
    for (uint32_t r = 0; r < comm->id.nranks; r++) {
        if (departed_ns[r] == 0 && has_departed(comm, r)) {
            departed_ns[r] = now;
        }
        if (departed_ns[r] != 0) {
            first = first == OH_MAX_RANKS || departed_ns[r] < departed_ns[first] ? r : first;
            *newest_ns_p = departed_ns[r] > *newest_ns_p ? departed_ns[r] : *newest_ns_p;
        }
    }
    return first;
}

/* Fails the communicator if a call waits for a departed peer. Returns the time until the next check. */
static uint64_t check_departures(struct oh_comm *comm, uint64_t waited_ns, uint64_t now, char *line)
{
    uint64_t newest_ns = 0;
    const uint32_t rank = note_departures(comm, now, &newest_ns);
    if (rank == OH_MAX_RANKS) {
        return NEVER;
    } else if (oh_comm_is_in_use(comm)) {
        atomic_store(&comm->health.departed_peer, rank);
        oh_comm_enter(comm, OH_COMM_FAILING);
    }
    const bool in_nccl = waits_in_nccl(comm); /* queries from now on, so that the answer is there in time */
    if (now - comm->health.watch.departed_ns[rank] >= GRACE_NS && (waited_ns >= GRACE_NS || in_nccl)) {
        fail_without(comm, rank, line);
        return NEVER;
    }
    return now - newest_ns < GONE_SOON_NS ? TICK_GONE_NS : NEVER;
}

/* Another rank has failed. */
static void check_shared_failure(struct oh_comm *comm, char *line)
{
    struct oh_failure failure = oh_failure_read(comm);
    if (failure.error != ncclSuccess && oh_comm_fail(comm, failure.error, failure.departed_rank)) {
        APPEND(line, "comm %p rank %u of %u: rank %u failed the communicator", OH_COMM_VALUES(comm),
               failure.detected_by);
        if (failure.departed_rank < OH_MAX_RANKS) {
            APPEND(line, ", without ");
            append_rank(comm, failure.departed_rank, line);
        }
        APPEND(line, ": calls now return %s", name_of(failure.error));
    }
}

static void check_clock(struct oh_comm *comm, uint64_t waited_ns, struct message *message)
{
    char *const line = message->line;
    uint64_t wait = wait_after(comm->health.watch.epoch);
    if (timeout_ns > 0 && waited_ns >= timeout_ns) {
        ncclResult_t error = count_missing(comm) > 0 ? ncclRemoteError : ncclInternalError;
        if (oh_comm_fail(comm, error, OH_MAX_RANKS)) {
            describe_wait(comm, waited_ns, line);
            APPEND(line, ": ONEHOP_TIMEOUT_SECONDS is over, calls now return %s", name_of(error));
        }
    } else if (stall_ns > 0 && waited_ns >= stall_ns &&
               /* the ranks that wait share one report */
               atomic_exchange(&comm->segment.shared->reported_epoch, wait) != wait) {
        message->site = &stalls;
        describe_wait(comm, waited_ns, line);
    }
}

/* After a failure, ONEHOP_TRAP_AFTER has a kernel that waits end the context. */
static void check_failed(struct oh_comm *comm, uint64_t now, char *line)
{
    struct oh_watch *watch = &comm->health.watch;
    watch->failed_ns = watch->failed_ns ? watch->failed_ns : now;
    if (trap_ns > 0 && check_wait(comm, now) > 0 && now - watch->failed_ns >= trap_ns && oh_kernels_trap(comm)) {
        APPEND(line, "comm %p rank %u of %u: ONEHOP_TRAP_AFTER is over: the kernel that waits ends in a trap",
               OH_COMM_VALUES(comm));
    }
}

/* Writes a message, if there is one. Returns the time until the next check. */
static uint64_t check_comm(struct oh_comm *comm, uint64_t now, struct message *message)
{
    char *const line = message->line;
    message->site = &failures;
    if (oh_comm_is_aborted(comm)) {
        return NEVER; /* no kernel of this rank waits */
    }
    if (oh_comm_error(comm) != ncclSuccess) {
        check_failed(comm, now, line);
        return NEVER;
    }
    const uint64_t waited_ns = check_wait(comm, now);
    const uint64_t tick = check_departures(comm, waited_ns, now, line);
    if (line[0] == '\0') {
        check_shared_failure(comm, line);
    }
    if (line[0] == '\0' && oh_difference_report(comm, line, LINE)) {
        message->site = &differences;
    }
    if (line[0] == '\0' && waited_ns > 0) {
        check_clock(comm, waited_ns, message);
    }
    return tick;
}

/*
 * Queries whether NCCL's calls are complete, of one communicator for which check_departures has asked for it. Without
 * the mutex; oh_monitor_is_asking keeps the communicator from being freed.
 */
static void query_nccl(void)
{
    struct oh_comm *comm = watched;
    while (comm && !comm->health.watch.asks) {
        comm = comm->health.watch.next;
    }
    if (!comm) {
        return;
    }
    comm->health.watch.asks = false;
    atomic_store(&comm->health.watch.asking, true);
    unsigned calls = atomic_load_explicit(&comm->order.nccl_all_ranks, memory_order_acquire); /* before the event */
    pthread_mutex_unlock(&worker.mutex);
    const CUresult result = oh_staging_query(&comm->staging, comm->order.event[OH_EVENT_NCCL_ALL_RANKS]);
    pthread_mutex_lock(&worker.mutex);
    comm->health.watch.waits_in_nccl = result == CUDA_ERROR_NOT_READY;
    if (result == CUDA_SUCCESS) { /* until there is another call */
        comm->health.watch.answered = calls;
    }
    /* release: the last use of `comm`. Pairs with the acquire load in oh_monitor_is_asking(), before it is freed. */
    atomic_store_explicit(&comm->health.watch.asking, false, memory_order_release);
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

static uint64_t usual_tick(void)
{
    const uint64_t limits[] = {stall_ns, timeout_ns, trap_ns};
    uint64_t tick = TICK_NS;
    for (int i = 0; i < 3; i++) {
        tick = limits[i] > 0 && limits[i] / 8 < tick ? limits[i] / 8 : tick;
    }
    return tick;
}

/* Checks all communicators up to the first message. */
static uint64_t check_all(struct message *message)
{
    uint64_t now = oh_now_ns(), tick = usual_tick();
    suspended = looked_ns != 0 && now - looked_ns > LAPSE_NS;
    looked_ns = now;
    oh_processes_poll();
    for (struct oh_comm *comm = watched; comm && message->line[0] == '\0'; comm = comm->health.watch.next) {
        uint64_t soon = check_comm(comm, now, message);
        tick = soon < tick ? soon : tick;
    }
    return tick;
}

static void work(struct oh_bgthread *unused)
{
    (void)unused;
    while (!worker.stopping) {
        struct message message = {.site = NULL};
        uint64_t tick = check_all(&message);
        if (message.line[0] != '\0') {
            pthread_mutex_unlock(&worker.mutex);
            OH_WARN_AT(message.site, "%s", message.line);
            pthread_mutex_lock(&worker.mutex);
        } else if (watched) {
            query_nccl();
            oh_processes_wait(&worker.mutex, (int)(tick / MS));
        } else {
            oh_bgthread_sleep(&worker, NEVER / 4);
        }
    }
}

/* --- the list ---------------------------------------------------------------------------------------------------- */

bool oh_monitor_start(void)
{
    OH_LOCK(&worker.mutex);
    if (!begun) {
        stall_ns = oh_env_number(OH_ENV_STALL_SECONDS, false, 86400, 60) * 1000 * MS;
        timeout_ns = oh_env_number(OH_ENV_TIMEOUT_SECONDS, false, 86400, 0) * 1000 * MS;
        trap_ns = oh_env_number(OH_ENV_TRAP_AFTER, false, 86400, 0) * 1000 * MS;
        begun = true;
    }
    return oh_bgthread_start(&worker);
}

void oh_monitor_add(struct oh_comm *comm)
{
    int unseen = 0;
    pthread_mutex_lock(&worker.mutex);
    for (uint32_t r = 0; r < comm->id.nranks; r++) {
        const struct oh_peer_info info = comm->segment.shared->peer_info[r];
        struct oh_process **peer = &comm->health.watch.peer[r];
        if (!oh_peer_info_is_own(&info)) {
            *peer = oh_process_watch(info.pid, info.start_time);
            unseen += !*peer;
        }
    }
    comm->health.watch.next = watched;
    watched = comm;
    oh_bgthread_start(&worker); /* it runs: oh_monitor_start */
    pthread_mutex_unlock(&worker.mutex);
    if (unseen > 0) {
        OH_WARN("comm %p rank %u of %u: no memory to watch %d processes: their end is not detected",
                OH_COMM_VALUES(comm), unseen);
    }
}

void oh_monitor_remove(struct oh_comm *comm)
{
    struct oh_watch *watch = &comm->health.watch;
    struct oh_comm **link = &watched;
    OH_LOCK(&worker.mutex);
    while (*link && *link != comm) {
        link = &(*link)->health.watch.next;
    }
    if (!*link) {
        return;
    }
    *link = watch->next;
    for (uint32_t r = 0; r < comm->id.nranks; r++) {
        if (watch->peer[r]) {
            oh_process_unwatch(watch->peer[r]);
            watch->peer[r] = NULL;
        }
    }
}

bool oh_monitor_is_asking(const struct oh_comm *comm)
{
    return atomic_load_explicit(&comm->health.watch.asking, memory_order_acquire); /* pairs with query_nccl() */
}
