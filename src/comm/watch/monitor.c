/* SPDX-License-Identifier: MIT */
/*
 * monitor.c - see monitor.h
 *
 * How a wait is seen: a kernel that has polled for long writes its call and a running number into host memory
 * (kernels/protocol.cuh), again and again; so eager calls and replays of graphs are alike. The epoch says whether it is
 * still the same wait. Only a fresh sign counts: a wait that is over leaves none.
 *
 * Messages are written, and the driver is asked, without the mutex: stderr may be a pipe that nobody empties, and a
 * call of the driver may wait for one that blocks in a launch until another thread aborts.
 */
#include "comm/watch/monitor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "comm/watch/failure.h"
#include "util/clock.h"
#include "util/env.h"
#include "util/log.h"
#include "util/process.h"
#include "util/bgthread.h"

#define MS UINT64_C(1000000)
#define TICK_NS (80 * MS)      /* between looks, mostly */
#define TICK_GONE_NS (20 * MS) /* while it must be seen whether a departed peer is waited for */
#define EVENT_US 2000
#define GONE_SOON_NS (5000 * MS) /* how long that is */
/*
 * For how long after the departure of a peer a call is seen to wait, before it waits in vain. No rank completes a call
 * before it has sent its part of it; so a call that waits with all peers' words there is one that the departed peer has
 * not completed. The words arrive within microseconds of being sent, and a sign of waiting is at most as old as the
 * last look; the rest is for loaded machines.
 */
#define GRACE_NS (40 * MS)
/* Between two looks of a thread that can run; more, and the process was stopped. Longer than any tick. */
#define LAPSE_NS (500 * MS)
#define LINE 2560
#define NEVER UINT64_MAX

static void work(void);
static void stop_at_exit(void);
static struct oh_bgthread worker = OH_BGTHREAD(work, stop_at_exit);
static struct oh_comm *watched; /* the list; this and what follows is guarded by the worker's mutex */
static int epoll_fd = -1;       /* of epoll, made once */
static bool begun;
static uint64_t looked_ns; /* when the thread has looked last; 0: never */
static bool suspended;     /* the process, between the last two looks: what a kernel did meanwhile is not known */
static uint64_t stall_ns;
static uint64_t timeout_ns;
static uint64_t trap_ns;

/* --- what is known of the ranks ----------------------------------------------------------------------------------- */

static bool process_has_ended(const struct oh_comm *comm, uint32_t rank)
{
    const struct oh_process *process = comm->health.watch.peer[rank];
    return process && process->ended;
}

/* Nothing more comes from it. */
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

/* It keeps this rank waiting: it has not been seen to wait in the same call itself. */
static bool is_missing(const struct oh_comm *comm, uint32_t rank)
{
    const struct oh_progress *progress = &comm->segment.shared->progress[rank];
    return rank != comm->id.rank && atomic_load(&progress->waiting_epoch) != wait_after(comm->health.watch.epoch);
}

static bool is_anyone_missing(const struct oh_comm *comm)
{
    for (uint32_t r = 0; r < comm->id.nranks; r++) {
        if (is_missing(comm, r)) {
            return true;
        }
    }
    return false;
}

/* --- words -------------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void append(char *line, const char *format, ...)
{
    size_t used = strlen(line);
    va_list args;
    va_start(args, format);
    vsnprintf(line + used, LINE - used, format, args);
    va_end(args);
}

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
    append(line, "%s%s", text, process_has_ended(comm, rank) ? ", whose process has ended" : "");
}

static void append_missing(const struct oh_comm *comm, char *line)
{
    const char *between = "";
    for (uint32_t r = 0; r < comm->id.nranks; r++) {
        if (is_missing(comm, r)) {
            append(line, "%s", between);
            append_rank(comm, r, line);
            between = ", ";
        }
    }
    append(line, "%s", *between ? "" : "nobody: all ranks wait in it");
}

/* Where ranks have got equally far, by different calls: that is why they wait. */
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
            append(line, "; the calls differ: call %" PRIu64 " is a %s on rank %u", mine.number, text, r);
            oh_signature_format(mine.signature, mine.count, text);
            append(line, " and a %s on rank %u", text, comm->id.rank);
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
    append(line, "comm %p rank %u of %u: waits for %" PRIu64 " s in call %u, a %s, for ", (void *)comm->id.nccl,
           comm->id.rank, comm->id.nranks, waited_ns / (1000 * MS),
           __atomic_load_n(&control->call_number, __ATOMIC_RELAXED), what);
    append_missing(comm, line);
    append_differences(comm, line);
}

/* --- one communicator --------------------------------------------------------------------------------------------- */

/* How long a kernel has been seen waiting, if it still does. */
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
    if (!same || suspended) { /* the kernel may have ended soon after the look before */
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
        append(line, "comm %p rank %u of %u: a call waits, after the departure of ", (void *)comm->id.nccl,
               comm->id.rank, comm->id.nranks);
        append_rank(comm, rank, line);
        append(line, ": calls now return ncclRemoteError, the stream waits for ncclCommAbort");
    }
}

/* NCCL serves an allreduce that is not complete, and was made before the peer's departure was known. */
static bool waits_in_nccl(struct oh_comm *comm)
{
    struct oh_watch *watch = &comm->health.watch;
    watch->asks = watch->answered != atomic_load_explicit(&comm->order.nccl_allreduces, memory_order_acquire);
    return watch->asks && watch->waits_in_nccl;
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
    }
    if (oh_comm_is_in_use(comm)) {
        atomic_store(&comm->health.departed_peer, rank);
        oh_comm_enter(comm, OH_COMM_FAILING);
    }
    const bool in_nccl = waits_in_nccl(comm); /* asks from now on, so that the answer is there in time */
    if (now - comm->health.watch.departed_ns[rank] >= GRACE_NS && (waited_ns >= GRACE_NS || in_nccl)) {
        fail_without(comm, rank, line);
        return NEVER;
    }
    return now - newest_ns < GONE_SOON_NS ? TICK_GONE_NS : NEVER;
}

/* Another rank has failed. */
static void check_shared_failure(struct oh_comm *comm, char *line)
{
    struct oh_failure failure = oh_segment_failure(comm);
    if (failure.error != ncclSuccess && oh_comm_fail(comm, failure.error, failure.departed_rank)) {
        append(line, "comm %p rank %u of %u: rank %u has given up", (void *)comm->id.nccl, comm->id.rank,
               comm->id.nranks, failure.detected_by);
        if (failure.departed_rank < OH_MAX_RANKS) {
            append(line, ", without ");
            append_rank(comm, failure.departed_rank, line);
        }
        append(line, ": calls now return %s", name_of(failure.error));
    }
}

static void check_clock(struct oh_comm *comm, uint64_t waited_ns, char *line)
{
    uint64_t wait = wait_after(comm->health.watch.epoch);
    if (timeout_ns > 0 && waited_ns >= timeout_ns) {
        ncclResult_t error = is_anyone_missing(comm) ? ncclRemoteError : ncclInternalError;
        if (oh_comm_fail(comm, error, OH_MAX_RANKS)) {
            describe_wait(comm, waited_ns, line);
            append(line, ": ONEHOP_TIMEOUT_SECONDS is over, calls now return %s", name_of(error));
        }
    } else if (stall_ns > 0 && waited_ns >= stall_ns &&
               /* the ranks that wait share one report */
               atomic_exchange(&comm->segment.shared->reported_epoch, wait) != wait) {
        describe_wait(comm, waited_ns, line);
    }
}

/* After a failure: a kernel that waits for too long is to end the context. Returns how soon to look again. */
static uint64_t check_failed(struct oh_comm *comm, uint64_t now, char *line)
{
    struct oh_watch *watch = &comm->health.watch;
    watch->failed_ns = watch->failed_ns ? watch->failed_ns : now;
    if (trap_ns == 0 || watch->trapped) {
        return NEVER;
    }
    if (check_wait(comm, now) > 0 && now - watch->failed_ns >= trap_ns) {
        watch->trapped = true;
        oh_comm_trap_kernels(comm);
        append(line, "comm %p rank %u of %u: ONEHOP_TRAP_AFTER is over: the kernel that waits ends in a trap",
               (void *)comm->id.nccl, comm->id.rank, comm->id.nranks);
    }
    return TICK_NS;
}

/* The program has destroyed the communicator: a kernel that waits in vain may leave. */
static uint64_t check_destroyed(struct oh_comm *comm, uint64_t waited_ns, uint64_t now)
{
    uint64_t newest_ns = 0;
    const uint32_t rank = note_departures(comm, now, &newest_ns);
    const bool departed = rank < OH_MAX_RANKS && now - comm->health.watch.departed_ns[rank] >= GRACE_NS;
    if ((departed || oh_segment_failure(comm).error != ncclSuccess) && waited_ns >= GRACE_NS) {
        oh_comm_release_kernels(comm);
        return NEVER;
    }
    return TICK_NS;
}

/* Returns how soon to look again. In line: what to say, if anything. */
static uint64_t check_comm(struct oh_comm *comm, uint64_t now, char *line)
{
    if (oh_rank_state_get(comm, comm->id.rank) == OH_RANK_ABORTED) {
        return NEVER; /* nothing of this rank waits any more */
    }
    if (atomic_load(&comm->health.failure) != ncclSuccess) {
        return check_failed(comm, now, line);
    }
    uint64_t waited_ns = check_wait(comm, now);
    if (atomic_load(&comm->health.destroyed)) {
        return check_destroyed(comm, waited_ns, now);
    }
    uint64_t tick = check_departures(comm, waited_ns, now, line);
    if (line[0] == '\0') {
        check_shared_failure(comm, line);
    }
    if (line[0] == '\0' && waited_ns > 0) {
        check_clock(comm, waited_ns, line);
    }
    return tick;
}

/*
 * Asks the driver whether NCCL's calls are complete, of one communicator that check_departures wants to know it of. The
 * mutex is not held meanwhile; the communicator is not freed (oh_monitor_is_asking).
 */
static void ask_driver(void)
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
    unsigned calls = atomic_load_explicit(&comm->order.nccl_allreduces, memory_order_acquire); /* before the event */
    pthread_mutex_unlock(&worker.mutex);
    const CUresult result = oh_staging_query(&comm->staging, comm->order.event[OH_EVENT_NCCL]);
    pthread_mutex_lock(&worker.mutex);
    comm->health.watch.waits_in_nccl = result == CUDA_ERROR_NOT_READY;
    if (result == CUDA_SUCCESS) { /* no need to ask again until there is another call */
        comm->health.watch.answered = calls;
    }
    atomic_store_explicit(&comm->health.watch.asking, false,
                          memory_order_release); /* pairs with oh_monitor_is_asking */
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

static uint64_t usual_tick(void)
{
    uint64_t tick = TICK_NS;
    const uint64_t limits[] = {stall_ns, timeout_ns, trap_ns};
    for (int i = 0; i < 3; i++) {
        tick = limits[i] > 0 && limits[i] / 8 < tick ? limits[i] / 8 : tick;
    }
    return tick;
}

/* Everything, until there is something to say. */
static uint64_t check_all(char *line)
{
    uint64_t now = oh_now_ns(), tick = usual_tick();
    suspended = looked_ns != 0 && now - looked_ns > LAPSE_NS;
    looked_ns = now;
    oh_processes_poll(epoll_fd);
    for (struct oh_comm *comm = watched; comm && line[0] == '\0'; comm = comm->health.watch.next) {
        uint64_t soon = check_comm(comm, now, line);
        tick = soon < tick ? soon : tick;
    }
    return tick;
}

/* Until a process ends, or so long. */
static void rest(uint64_t ns)
{
    struct epoll_event event;
    if (epoll_fd < 0) {
        oh_bgthread_sleep(&worker, ns);
        return;
    }
    pthread_mutex_unlock(&worker.mutex);
    int events = epoll_wait(epoll_fd, &event, 1, (int)(ns / MS));
    bool broken = events < 0 && errno != EINTR;
    if (events > 0) { /* what has ended may be so still: not more often than this */
        usleep(EVENT_US);
    }
    pthread_mutex_lock(&worker.mutex);
    if (broken) { /* the application has closed it */
        epoll_fd = -1;
    }
}

static void work(void)
{
    while (!worker.stopping) {
        char line[LINE] = "";
        uint64_t tick = check_all(line);
        if (line[0] != '\0') {
            pthread_mutex_unlock(&worker.mutex);
            OH_WARN("%s", line);
            pthread_mutex_lock(&worker.mutex);
        } else if (watched) {
            ask_driver();
            rest(tick);
        } else {
            oh_bgthread_sleep(&worker, NEVER / 4);
        }
    }
}

/* It may sleep on, but touches nothing any more. */
static void stop_at_exit(void)
{
    oh_bgthread_stop(&worker, 0);
}

/* --- who is watched ----------------------------------------------------------------------------------------------- */

static void begin(void)
{
    stall_ns = oh_env_number(OH_ENV_STALL_SECONDS, false, 86400, 60) * 1000 * MS;
    timeout_ns = oh_env_number(OH_ENV_TIMEOUT_SECONDS, false, 86400, 0) * 1000 * MS;
    trap_ns = oh_env_number(OH_ENV_TRAP_AFTER, false, 86400, 0) * 1000 * MS;
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    begun = true;
}

/* False: there is no memory for it. */
static bool watch_peer(struct oh_comm *comm, uint32_t rank)
{
    const struct oh_peer_info info = comm->segment.shared->peer_info[rank];
    struct oh_process **peer = &comm->health.watch.peer[rank];
    if (oh_peer_info_is_own(&info)) {
        return true;
    }
    *peer = oh_process_watch(info.pid, info.start_time, epoll_fd);
    return *peer != NULL;
}

bool oh_monitor_start(void)
{
    pthread_mutex_lock(&worker.mutex);
    if (!begun) {
        begin();
    }
    bool works = oh_bgthread_start(&worker);
    pthread_mutex_unlock(&worker.mutex);
    return works;
}

void oh_monitor_add(struct oh_comm *comm)
{
    int unseen = 0;
    pthread_mutex_lock(&worker.mutex);
    for (uint32_t r = 0; r < comm->id.nranks; r++) {
        unseen += !watch_peer(comm, r);
    }
    comm->health.watch.next = watched;
    comm->health.watch.watched = true;
    watched = comm;
    oh_bgthread_start(&worker); /* it runs: oh_monitor_start */
    pthread_mutex_unlock(&worker.mutex);
    if (unseen > 0) {
        OH_WARN("comm %p rank %u of %u: no memory to watch %d processes: their end is not detected",
                (void *)comm->id.nccl, comm->id.rank, comm->id.nranks, unseen);
    }
}

void oh_monitor_remove(struct oh_comm *comm)
{
    pthread_mutex_lock(&worker.mutex);
    if (comm->health.watch.watched) {
        struct oh_comm **link = &watched;
        while (*link != comm) {
            link = &(*link)->health.watch.next;
        }
        *link = comm->health.watch.next;
        comm->health.watch.watched = false;
        for (uint32_t r = 0; r < comm->id.nranks; r++) {
            if (comm->health.watch.peer[r]) {
                oh_process_unwatch(comm->health.watch.peer[r], epoll_fd);
                comm->health.watch.peer[r] = NULL;
            }
        }
    }
    pthread_mutex_unlock(&worker.mutex);
}

bool oh_monitor_is_asking(const struct oh_comm *comm)
{
    return atomic_load_explicit(&comm->health.watch.asking,
                                memory_order_acquire); /* pairs with the store in ask_driver */
}
