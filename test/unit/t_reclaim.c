/* SPDX-License-Identifier: MIT */
/*
 * t_reclaim.c - a communicator is not freed under a thread that uses it, nor found while its end is reported; reasons
 * stay
 *
 * The mapping of its segment shows whether it is freed.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "test/unit/first_call.h"
#include "test/unit/unit.h"
#include "util/scope.h"

#define PASSES 20 /* of the background thread, at most 100 ms each */
#define USES 1000000
#define MOST_MS 5000

static const char *folder;

static int count_mappings(void)
{
    return unit_count_lines("/proc/self/maps", folder);
}

/* As a thread that notes for a communicator of another thread that NCCL has launched its call (nccl.c). */
static void *use(void *comm)
{
    for (int i = 0; i < USES; i++) {
        oh_comm_retain(comm);
        oh_comm_release(comm);
    }
    return NULL;
}

static void test_use(void)
{
    static char handle[64];
    pthread_t other;
    ncclComm_t nccl = (ncclComm_t)(void *)handle;
    const struct oh_key key = oh_key_random();
    struct oh_comm *comm = oh_creation_begin(&key, &(struct oh_comm_config)OH_COMM_CONFIG_DEFAULT, NULL, &nccl, false);
    tap_ok(comm && count_mappings() == 1, "a communicator has a segment");
    unit_need(oh_creation_register(comm, nccl) ? comm : NULL);
    tap_ok(pthread_create(&other, NULL, use, comm) == 0, "another thread uses it, too");
    use(comm);
    pthread_join(other, NULL);
    tap_ok(oh_comm_find(nccl) == comm, "who finds it uses it");
    oh_comm_retain(comm); /* as in a group */
    tap_ok(oh_registry_remove(comm) && !oh_registry_remove(comm), "one thread ends it");
    tap_ok(!oh_comm_find(nccl), "then it is not found");
    oh_comm_release(comm); /* the use of the thread that has registered it */
    oh_comm_free(comm);
    for (int i = 0; i < 3; i++) {
        oh_comms_reclaim();
        usleep(100000);
    }
    tap_ok(count_mappings() == 1, "it stays while it is used");
    oh_comm_release(comm);
    oh_comms_reclaim();
    usleep(100000);
    tap_ok(count_mappings() == 1, "... up to the last use");
    oh_comm_release(comm);
    for (int i = 0; i < PASSES && count_mappings() > 0; i++) {
        oh_comms_reclaim();
        usleep(100000);
    }
    tap_ok(count_mappings() == 0, "then it is freed");
}

/* --- messages that wait: stderr is a pipe that is full -------------------------------------------------------------
 */

static int before = -1, reader = -1;

static void block_messages(void)
{
    static const char text[4096];
    int ends[2];
    before = dup(STDERR_FILENO);
    if (before < 0 || pipe(ends) != 0) {
        printf("Bail out! no pipe\n");
        exit(1);
    }
    reader = ends[0];
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    for (size_t size = sizeof text; size > 0; size /= 2) {
        while (write(ends[1], text, size) > 0) {
        }
    }
    fcntl(ends[1], F_SETFL, 0);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
}

/* Reads until the thread has written its message, and has ended. */
static void pass_messages(pthread_t thread)
{
    char text[4096];
    fcntl(reader, F_SETFL, O_NONBLOCK);
    while (pthread_tryjoin_np(thread, NULL) != 0) {
        if (read(reader, text, sizeof text) <= 0) {
            usleep(1000);
        }
    }
    dup2(before, STDERR_FILENO);
    close(before);
    close(reader);
}

static struct oh_comm *make_comm(const struct oh_key *key, ncclComm_t nccl)
{
    const struct oh_comm_config config = OH_COMM_CONFIG_DEFAULT;
    return unit_need(create_comm(oh_creation_begin(key, &config, NULL, NULL, false), nccl, 0, 2));
}

static void *forget(void *comm)
{
    oh_comm_forget(comm);
    return NULL;
}

static bool is_found(ncclComm_t nccl)
{
    struct oh_comm *comm = oh_comm_find(nccl);
    if (comm) {
        oh_comm_release(comm);
    }
    return comm != NULL;
}

static void test_report(void)
{
    static char handle[64];
    const ncclComm_t nccl = (ncclComm_t)(void *)handle;
    const struct oh_key key = oh_key_random();
    struct oh_comm *comm = make_comm(&key, nccl);
    pthread_t other;
    block_messages();
    pthread_create(&other, NULL, forget, comm);
    for (int i = 0; i < MOST_MS && is_found(nccl); i++) {
        usleep(1000);
    }
    tap_ok(!is_found(nccl), "a communicator that ends is not found while its statistics are written");
    pass_messages(other);
}

static void *end_agreement(void *comm)
{
    oh_agreement_end(comm);
    return NULL;
}

static bool has_declined(struct oh_comm *comm)
{
    OH_LOCK(&comm->attach.mutex);
    return oh_comm_has_declined(comm);
}

/* Its ranks fall back, which is logged, and it is aborted. */
static void test_reason(void)
{
    static char handle[64];
    const struct oh_key key = oh_key_random();
    struct oh_segment peer = {.shared = NULL};
    pthread_t other;
    if (oh_segment_open(&peer, &key) != ncclSuccess) {
        tap_ok(false, "a segment");
        return;
    }
    struct oh_comm *comm = make_comm(&key, (ncclComm_t)(void *)handle);
    oh_comm_enter(comm, OH_COMM_ATTACHING);
    oh_segment_vote_no(&peer, "a test");
    block_messages();
    pthread_create(&other, NULL, end_agreement, comm);
    for (int i = 0; i < MOST_MS && !has_declined(comm); i++) {
        usleep(1000);
    }
    oh_comm_abort(comm);
    tap_ok(strcmp(comm->attach.reason, "a test") == 0, "a reason to fall back stays while it is logged: %s",
           comm->attach.reason);
    pass_messages(other);
    oh_comm_forget(comm);
    oh_segment_discard(&peer);
}

static void *warn(void *comm)
{
    const struct oh_call call = {.comm = comm, .count = 1, .type = ncclFloat32, .fallback = OH_FALLBACK_COMM};
    oh_call_note_executed(&call);
    return NULL;
}

static atomic_bool has_aborted;

static void *abort_comm(void *comm)
{
    oh_comm_abort(comm);
    atomic_store(&has_aborted, true);
    return NULL;
}

/* NCCL executes an allreduce of a communicator that is to be invariant, which is logged; another thread aborts it. */
static void test_warning(void)
{
    static char handle[64];
    const struct oh_key key = oh_key_random();
    struct oh_comm *comm = make_comm(&key, (ncclComm_t)(void *)handle);
    pthread_t warning, aborting;
    comm->id.config.invariant = true;
    block_messages();
    pthread_create(&warning, NULL, warn, comm);
    usleep(200000); /* the thread waits for the pipe */
    pthread_create(&aborting, NULL, abort_comm, comm);
    for (int i = 0; i < MOST_MS && !atomic_load(&has_aborted); i++) {
        usleep(1000);
    }
    tap_ok(atomic_load(&has_aborted), "an abort waits for no warning that is being written");
    pass_messages(warning);
    pthread_join(aborting, NULL);
    oh_comm_forget(comm);
}

int main(void)
{
    setenv("ONEHOP_DEBUG", "INFO", 1);
    setenv("ONEHOP_STATS", "1", 1);
    folder = unit_folder();
    test_use();
    test_report();
    test_reason();
    test_warning();
    rmdir(folder);
    return tap_done();
}
