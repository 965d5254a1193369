/* SPDX-License-Identifier: MIT */
/*
 * t_failure.c - what ranks leave for each other in the shared memory: their last call, and a word at their end
 *
 * What becomes of it, with processes that are killed, exit and abort: test/e2e/t_peer_failure.sh.
 */
#include <pthread.h>
#include <stdlib.h>

#include "comm/watch/failure.h"
#include "test/tap.h"
#include "util/clock.h"

#define LONG_NS (UINT64_C(200) * 1000 * 1000)
#define ENOUGH 10000 /* reads of a whole call */

static atomic_bool over;

/* A rank that has a segment, and has not reached its cutover. */
static struct oh_comm *make_rank(struct oh_shared *shared)
{
    struct oh_comm *comm = calloc(1, sizeof *comm);
    if (!comm) {
        exit(1);
    }
    comm->rank = 1;
    comm->nranks = 2;
    comm->segment.shared = shared;
    pthread_mutex_init(&comm->attach.mutex, NULL);
    atomic_store(&comm->created, true);
    return comm;
}

/* --- the last call ------------------------------------------------------------------------------------------------ */

static uint32_t signature_of(uint64_t number)
{
    return (uint32_t)(number * 2654435761u);
}

static uint32_t count_of(uint64_t number)
{
    return (uint32_t)~number;
}

static void *make_calls(void *user)
{
    struct oh_comm *comm = user;
    while (!atomic_load(&over)) {
        uint64_t number = comm->launched_calls + 1;
        oh_progress_add(comm, 1, signature_of(number), count_of(number));
    }
    return NULL;
}

static void test_last_call(void)
{
    static struct oh_shared shared;
    struct oh_comm *comm = make_rank(&shared);
    struct oh_last_call call;
    pthread_t writer;
    uint64_t begin_ns = oh_now_ns(), whole = 0, changing = 0, mixed = 0;
    comm->progress = &shared.progress[1];
    pthread_create(&writer, NULL, make_calls, comm);
    while (whole < ENOUGH || oh_now_ns() - begin_ns < LONG_NS) {
        if (!oh_read_last_call(comm->progress, &call)) {
            changing++;
        } else if (call.number > 0) {
            whole++;
            mixed += call.signature != signature_of(call.number) || call.count != count_of(call.number);
        }
    }
    atomic_store(&over, true);
    pthread_join(writer, NULL);
    tap_ok(mixed == 0, "a rank's last call is read whole, or not at all: %llu times, %llu while it changed",
           (unsigned long long)whole, (unsigned long long)changing);
    free(comm);
}

/* --- the word at the end ------------------------------------------------------------------------------------------ */

static void test_farewell(void)
{
    static struct oh_shared shared;
    struct oh_comm *comm = make_rank(&shared);
    oh_rank_state_publish(comm, OH_RANK_EXITED);
    tap_ok(oh_rank_state_get(comm, 1) == OH_RANK_EXITED, "a rank that ends before it has switched says so");
    oh_rank_state_publish(comm, OH_RANK_ENDED);
    tap_ok(oh_rank_state_get(comm, 1) == OH_RANK_EXITED, "what it has said first counts");
    oh_rank_state_publish(comm, OH_RANK_ABORTED);
    tap_ok(oh_rank_state_get(comm, 1) == OH_RANK_ABORTED, "unless it has aborted");
    free(comm);
}

static void test_nobody_to_tell(void)
{
    static struct oh_shared shared;
    struct oh_comm *comm = make_rank(&shared);
    atomic_store(&comm->created, false); /* NCCL is still creating it */
    comm->rank = 0;
    oh_rank_state_publish(comm, OH_RANK_EXITED);
    tap_ok(oh_rank_state_get(comm, 0) == OH_RANK_ACTIVE, "while it is not known which rank this is, none is named");
    atomic_store(&comm->created, true);
    comm->segment.shared = NULL;
    oh_rank_state_publish(comm, OH_RANK_EXITED); /* must not crash */
    tap_ok(true, "where there is no shared, nothing is said");
    free(comm);
}

int main(void)
{
    test_last_call();
    test_farewell();
    test_nobody_to_tell();
    return tap_done();
}
