/* SPDX-License-Identifier: MIT */
/*
 * t_failure.c - what ranks leave for each other in the shared memory: their last call, and a word at their end
 *
 * What becomes of it, with processes that are killed, exit and abort: test/e2e/t_peer_failure.sh.
 */
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/attach/attach.h"
#include "comm/launch/launch.h"
#include "comm/watch/watch.h"
#include "test/unit/unit.h"
#include "util/clock.h"

#define LONG_NS (UINT64_C(200) * 1000 * 1000)
#define ENOUGH 10000 /* reads of a whole call */

static atomic_bool over;

/* A rank that has a segment, and has not reached its cutover; one at a time. */
static struct oh_comm *make_rank(void)
{
    static struct oh_shared shared;
    static struct oh_comm comm;
    memset(&shared, 0, sizeof shared);
    memset(&comm, 0, sizeof comm);
    comm.id.rank = 1;
    comm.id.nranks = 2;
    comm.segment.shared = &shared;
    pthread_mutex_init(&comm.attach.mutex, NULL);
    atomic_store(&comm.state, OH_COMM_ATTACHING);
    return &comm;
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
        uint64_t number = comm->serve.launched_calls + 1;
        oh_progress_add(comm, 1, signature_of(number), count_of(number));
    }
    return NULL;
}

static void test_last_call(void)
{
    struct oh_comm *comm = make_rank();
    struct oh_last_call call;
    pthread_t writer;
    uint64_t begin_ns = oh_now_ns(), whole = 0, changing = 0, mixed = 0;
    comm->serve.progress = &comm->segment.shared->progress[1];
    pthread_create(&writer, NULL, make_calls, comm);
    while (whole < ENOUGH || oh_now_ns() - begin_ns < LONG_NS) {
        if (!oh_read_last_call(comm->serve.progress, &call)) {
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
}

/* --- the word at the end ------------------------------------------------------------------------------------------ */

static void test_farewell(void)
{
    struct oh_comm *comm = make_rank();
    oh_rank_state_publish(comm, OH_RANK_EXITED);
    tap_ok(oh_rank_state_get(comm, 1) == OH_RANK_EXITED, "a rank that ends before it has switched says so");
    oh_rank_state_publish(comm, OH_RANK_ENDED);
    tap_ok(oh_rank_state_get(comm, 1) == OH_RANK_EXITED, "what it has said first counts");
    oh_rank_state_publish(comm, OH_RANK_ABORTED);
    tap_ok(oh_rank_state_get(comm, 1) == OH_RANK_ABORTED, "unless it has aborted");
}

static void test_nobody_to_tell(void)
{
    struct oh_comm *comm = make_rank();
    comm->id.rank = comm->id.nranks = 0; /* NCCL is still creating it */
    oh_rank_state_publish(comm, OH_RANK_EXITED);
    tap_ok(oh_rank_state_get(comm, 0) == OH_RANK_ACTIVE, "while it is not known which rank this is, none is named");
    comm->id.nranks = 2;
    comm->segment.shared = NULL;
    oh_rank_state_publish(comm, OH_RANK_EXITED); /* must not crash */
    tap_ok(true, "where there is no shared, nothing is said");
}

#define MAPPINGS 500

/* A communicator that is aborted, and falls back, again and again: its segment is unmapped, with the mutex held. */
static void *fall_back(void *user)
{
    struct oh_comm *comm = user;
    for (int i = 0; i < MAPPINGS; i++) {
        void *memory = mmap(NULL, sizeof(struct oh_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            exit(1);
        }
        pthread_mutex_lock(&comm->attach.mutex);
        comm->segment.shared = memory;
        atomic_store(&comm->state, OH_COMM_ATTACHING);
        pthread_mutex_unlock(&comm->attach.mutex);
        sched_yield();
        pthread_mutex_lock(&comm->attach.mutex);
        atomic_store(&comm->state, OH_COMM_FALLBACK);
        oh_segment_discard(&comm->segment);
        pthread_mutex_unlock(&comm->attach.mutex);
    }
    atomic_store(&over, true);
    return NULL;
}

/* NCCL rejects a call. */
static void reject_call(struct oh_comm *comm)
{
    struct oh_call call = {.comm = comm, .kind = OH_CALL_ALLREDUCE, .count = 1, .number = 1};
    comm->attach.calls = 1;
    oh_attach_end_call(&call, false);
}

/* Any thread may abort or revoke while the communicator falls back, and NCCL may reject a call of it. */
static void test_use_of_unmapped(void)
{
    struct oh_comm *comm = make_rank();
    unsigned long published = 0;
    pthread_t other;
    comm->segment.shared = NULL;
    atomic_store(&over, false);
    pthread_create(&other, NULL, fall_back, comm);
    while (!atomic_load(&over)) {
        published++;
        oh_rank_state_publish(comm, OH_RANK_ABORTED); /* must not crash */
        reject_call(comm);                            /* nor this */
    }
    pthread_join(other, NULL);
    tap_ok(oh_comm_is_in_use(comm),
           "a rank state is published, and a call rejected, while the segment is unmapped: %lu times", published);
}

/* A failure before the cutover: the other ranks read it after theirs, which this rank must not prevent. */
static void test_early_failure(void)
{
    struct oh_comm *comm = make_rank();
    bool first = oh_comm_fail(comm, ncclSystemError, OH_MAX_RANKS);
    tap_ok(first && oh_comm_state(comm) == OH_COMM_ATTACHING && oh_comm_error(comm) == ncclSystemError &&
               oh_failure_read(comm).error != ncclSuccess && !oh_comm_fail(comm, ncclSystemError, OH_MAX_RANKS),
           "a failure while the ranks agree: calls are refused, and the set-up goes on");
}

static CUresult name_error(CUresult result, const char **name_p)
{
    (void)result;
    *name_p = "an error";
    return CUDA_SUCCESS;
}

/* NCCL gets a call on a capture that the program has invalidated, and returns the program's error. */
static void test_invalid_capture(void)
{
    struct oh_comm *comm = make_rank();
    oh_driver.get_error_name = name_error;
    ncclResult_t res = oh_order_fail(comm, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "a test");
    tap_ok(res == ncclSuccess && oh_segment_decision(&comm->segment) == OH_DECISION_PENDING,
           "a capture that was invalid before ends no set-up");
    res = oh_order_fail(comm, CUDA_ERROR_UNKNOWN, "a test");
    tap_ok(res == ncclSuccess && oh_segment_decision(&comm->segment) == OH_DECISION_OFF,
           "another error of the driver does, for all ranks");
}

/* --- states ------------------------------------------------------------------------------------------------------- */

#define RACES 2000

struct race {
    struct oh_comm *comm;
    enum oh_comm_state state;
    pthread_barrier_t *barrier;
    unsigned won;
};

static void *enter_state(void *user)
{
    struct race *self = user;
    for (int i = 0; i < RACES; i++) {
        pthread_barrier_wait(self->barrier);
        self->won += oh_comm_enter(self->comm, self->state);
        pthread_barrier_wait(self->barrier);
    }
    return NULL;
}

/* The call at which the communicator is served, beside the end of the communicator: the end is final in each order. */
static void test_state_race(void)
{
    struct oh_comm *comm = make_rank();
    pthread_barrier_t barrier;
    pthread_t thread[2];
    unsigned lost = 0;
    struct race race[] = {{comm, OH_COMM_SERVED, &barrier, 0}, {comm, OH_COMM_ENDED, &barrier, 0}};
    pthread_barrier_init(&barrier, NULL, 3);
    pthread_create(&thread[0], NULL, enter_state, &race[0]);
    pthread_create(&thread[1], NULL, enter_state, &race[1]);
    for (int i = 0; i < RACES; i++) {
        atomic_store(&comm->state, OH_COMM_CUTOVER);
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        lost += oh_comm_state(comm) != OH_COMM_ENDED;
    }
    pthread_join(thread[0], NULL);
    pthread_join(thread[1], NULL);
    tap_ok(lost == 0 && race[1].won == RACES, "served and ended at once: ended, %u of %d times after served",
           race[0].won, RACES);
}

static void test_final_states(void)
{
    static const enum oh_comm_state final[] = {OH_COMM_FALLBACK, OH_COMM_ENDED};
    struct oh_comm *comm = make_rank();
    bool left = false;
    for (size_t i = 0; i < 2; i++) {
        atomic_store(&comm->state, final[i]);
        for (int state = OH_COMM_CREATING; state <= OH_COMM_ENDED; state++) {
            left |= oh_comm_enter(comm, (enum oh_comm_state)state);
        }
    }
    tap_ok(!left, "no transition leaves FALLBACK or ENDED");
    atomic_store(&comm->state, OH_COMM_FAILED);
    tap_ok(!oh_comm_enter(comm, OH_COMM_SERVED) && !oh_comm_enter(comm, OH_COMM_FALLBACK) &&
               oh_comm_enter(comm, OH_COMM_ENDED),
           "from FAILED a transition leads to ENDED alone");
}

int main(void)
{
    test_early_failure();
    test_invalid_capture();
    test_state_race();
    test_final_states();
    test_last_call();
    test_farewell();
    test_nobody_to_tell();
    test_use_of_unmapped();
    return tap_done();
}
