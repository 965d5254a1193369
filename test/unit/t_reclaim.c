/* SPDX-License-Identifier: MIT */
/*
 * t_reclaim.c - a communicator is not freed under a thread that uses it
 *
 * The mapping of its segment shows whether it is freed.
 */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/attach/attach.h"
#include "test/unit/unit.h"

#define PASSES 20 /* of the background thread, at most 100 ms each */
#define USES 1000000

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

int main(void)
{
    setenv("ONEHOP_DEBUG", "WARN", 1);
    folder = unit_folder();
    test_use();
    rmdir(folder);
    return tap_done();
}
