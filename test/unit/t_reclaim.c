/* SPDX-License-Identifier: MIT */
/*
 * t_reclaim.c - a communicator is not freed under a thread that uses it, and not found while its end is reported
 *
 * The mapping of its segment shows whether it is freed.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "test/unit/first_call.h"
#include "test/unit/unit.h"

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
    pthread_t other;
    ncclComm_t nccl = NULL;
    const struct oh_key key = oh_key_random();
    struct oh_comm *comm = oh_creation_begin(&key, &(struct oh_comm_config)OH_COMM_CONFIG_DEFAULT, NULL, &nccl, false);
    tap_ok(comm && count_mappings() == 1, "a communicator has a segment");
    tap_ok(pthread_create(&other, NULL, use, comm) == 0, "another thread uses it, too");
    use(comm);
    pthread_join(other, NULL);
    oh_comm_retain(comm);
    oh_comm_retain(comm); /* as in a group */
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

static void *forget(void *comm)
{
    oh_comm_forget(comm);
    return NULL;
}

/* Fills a pipe, so that the next write to it waits. */
static void fill(int end)
{
    static const char text[4096];
    fcntl(end, F_SETFL, O_NONBLOCK);
    for (size_t size = sizeof text; size > 0; size /= 2) {
        while (write(end, text, size) > 0) {
        }
    }
    fcntl(end, F_SETFL, 0);
}

/* Statistics go to a pipe that nobody reads yet. */
static void test_report(void)
{
    static char handle[64];
    const ncclComm_t nccl = (ncclComm_t)(void *)handle;
    const struct oh_key key = oh_key_random();
    struct oh_comm *comm = oh_creation_begin(&key, &(struct oh_comm_config)OH_COMM_CONFIG_DEFAULT, NULL, NULL, false);
    const int before = dup(STDERR_FILENO);
    char text[4096];
    int ends[2];
    pthread_t other;
    if (before < 0 || pipe(ends) != 0 || !create_comm(comm, nccl, 0, 2)) {
        tap_ok(false, "a communicator, and a pipe");
        return;
    }
    fill(ends[1]);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    pthread_create(&other, NULL, forget, comm);
    for (int i = 0; i < MOST_MS && oh_comm_find(nccl); i++) {
        usleep(1000);
    }
    tap_ok(!oh_comm_find(nccl), "a communicator that ends is not found while its statistics are written");
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    while (pthread_tryjoin_np(other, NULL) != 0) {
        if (read(ends[0], text, sizeof text) <= 0) {
            usleep(1000);
        }
    }
    dup2(before, STDERR_FILENO);
    close(ends[0]);
    close(before);
}

int main(void)
{
    setenv("ONEHOP_DEBUG", "WARN", 1);
    setenv("ONEHOP_STATS", "1", 1);
    folder = unit_folder();
    test_use();
    test_report();
    rmdir(folder);
    return tap_done();
}
