/* SPDX-License-Identifier: MIT */
/*
 * t_monitor.c - a wait does not count for the time in which the process was stopped; a failure is logged behind any
 * number of other lines, and whole
 *
 * The checks are those of src/comm/watch/monitor.c itself, at times that this test sets.
 */
#include "comm/watch/monitor.c"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "test/unit/unit.h"

#define TIMEOUT_NS (5000 * MS)

static struct oh_shared shared;
static struct oh_control control;

static struct oh_comm *make_comm(void)
{
    struct oh_comm *comm = unit_need(calloc(1, sizeof *comm));
    comm->id.nranks = 2;
    comm->segment.shared = &shared;
    comm->staging.control = &control;
    comm->serve.progress = &shared.progress[0];
    pthread_mutex_init(&comm->attach.mutex, NULL);
    atomic_store(&comm->state, OH_COMM_SERVED);
    return comm;
}

/* A kernel has waited for twice the timeout, and goes on. The last check was `ago_ns` ago. */
static ncclResult_t check_after(uint64_t ago_ns, uint32_t nranks, struct message *message_p)
{
    struct oh_comm *comm = make_comm();
    struct message message = {.site = NULL};
    comm->id.nranks = nranks;
    control.spins = 1;
    control.epoch = 5;
    watched = comm;
    check_all(&message);
    comm->health.watch.since_ns = oh_now_ns() - 2 * TIMEOUT_NS;
    control.spins = 2;
    looked_ns = oh_now_ns() - ago_ns;
    check_all(&message);
    watched = NULL;
    const ncclResult_t error = oh_comm_error(comm);
    free(comm);
    *message_p = message;
    return error;
}

/* --- the log ------------------------------------------------------------------------------------------------------ */

#define DIFFERENCES (2 * OH_LOG_CAUSES)
#define MOST_NS (5000 * MS)

static void *monitor(void *unused)
{
    (void)unused;
    OH_LOCK(&worker.mutex);
    work(NULL);
    return NULL;
}

static bool comes(const atomic_uint *number, unsigned wanted)
{
    const uint64_t start_ns = oh_now_ns();
    while (atomic_load(number) != wanted && oh_now_ns() - start_ns < MOST_NS) {
        oh_sleep_ns(MS);
    }
    return atomic_load(number) == wanted;
}

/* All other ranks are missing, and have exited behind calls that take many words. */
static void test_many_ranks(void)
{
    char path[] = "/tmp/onehop-test.XXXXXX";
    const int fd = mkstemp(path);
    struct message message;
    memset(&shared, 0, sizeof shared);
    for (int r = 1; r < OH_MAX_RANKS; r++) {
        shared.progress[r].calls = shared.progress[r].begun_calls = 1000000000;
        shared.progress[r].signature =
            OH_CALL_REDUCE_SCATTER << 24 | OH_OP_SCALED_SUM << 16 | OH_TYPE_BF16 << 8 | ONEHOP_ONESHOT;
        shared.progress[r].count = UINT32_MAX;
        shared.progress[r].rank_state = OH_RANK_EXITED;
        shared.peer_info[r].pid = 4194303;
    }
    check_after(TICK_NS, OH_MAX_RANKS, &message);
    setenv("ONEHOP_DEBUG_FILE", path, 1);
    OH_WARN_AT(message.site, "%s", message.line);
    tap_ok(unit_count_lines(path, "ONEHOP_TIMEOUT_SECONDS is over, calls now return ncclRemoteError\n"),
           "the end of a line of %zu characters is logged", strlen(message.line));
    close(fd);
    unlink(path);
}

/* Results differ again and again, and then another rank fails the communicator. */
static void test_failure_behind_differences(void)
{
    char path[] = "/tmp/onehop-test.XXXXXX";
    const int fd = mkstemp(path);
    struct oh_comm *comm = make_comm();
    pthread_t thread;
    unsigned reported = 0;
    setenv("ONEHOP_DEBUG_FILE", path, 1);
    comm->verify.interval = 1;
    comm->attach.cutover_call = 1;
    watched = comm;
    pthread_create(&thread, NULL, monitor, NULL);
    for (uint32_t calls = 1; calls <= DIFFERENCES; calls++) {
        __atomic_store_n(&control.difference.calls, calls, __ATOMIC_RELEASE);
        reported += comes(&comm->verify.reported, calls);
    }
    atomic_store(&shared.failed, (uint32_t)ncclInternalError << 16 | OH_MAX_RANKS << 8 | 1);
    while (oh_comm_error(comm) == ncclSuccess) {
        oh_sleep_ns(MS);
    }
    pthread_mutex_lock(&worker.mutex); /* it is logged without */
    worker.stopping = true;
    pthread_mutex_unlock(&worker.mutex);
    pthread_join(thread, NULL);
    tap_ok(reported == DIFFERENCES && unit_count_lines(path, "so far: 1"), "results that differ are logged");
    tap_ok(unit_count_lines(path, "rank 1 failed the communicator: calls now return ncclInternalError"),
           "so is a failure behind %d of them", DIFFERENCES);
    watched = NULL;
    close(fd);
    unlink(path);
    free(comm);
}

int main(void)
{
    struct message message;
    timeout_ns = TIMEOUT_NS;
    tap_ok(check_after(TICK_NS, 2, &message) == ncclRemoteError, "a call that waits for longer than the timeout fails");
    memset(&shared, 0, sizeof shared);
    tap_ok(check_after(2 * LAPSE_NS, 2, &message) == ncclSuccess, "not if the process was stopped between two checks");
    test_many_ranks();
    memset(&shared, 0, sizeof shared);
    memset(&control, 0, sizeof control);
    test_failure_behind_differences();
    return tap_done();
}
