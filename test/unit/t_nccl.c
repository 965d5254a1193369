/* SPDX-License-Identifier: MIT */
/* t_nccl.c - a group of calls that NCCL launches in the background: one of its communicators tells that of all */
#include <unistd.h>

#include "comm/launch/launch.h"
#include "test/unit/first_call.h"
#include "test/unit/unit.h"

#define COMMS 200

static const char *folder;

static struct oh_comm *make_comm(int number)
{
    static char handles[COMMS][64];
    const struct oh_key key = oh_key_random();
    const struct oh_comm_config config = OH_COMM_CONFIG_DEFAULT;
    return unit_need(
        create_comm(oh_creation_begin(&key, &config, NULL, NULL, false), (ncclComm_t)(void *)handles[number], 0, 2));
}

static int count_launching(struct oh_comm *const *comms)
{
    int count = 0;
    for (int i = 0; i < COMMS; i++) {
        count += oh_comm_is_launching(comms[i]);
    }
    return count;
}

int main(void)
{
    struct oh_comm *comms[COMMS];
    const unsigned launch = oh_order_new_launch(true), other = oh_order_new_launch(true);
    folder = unit_folder();
    tap_ok(oh_driver_open() == ncclSuccess, "a driver");
    for (int i = 0; i < COMMS; i++) {
        comms[i] = make_comm(i);
        oh_order_after_nccl(comms[i], &(struct oh_nccl_call){.result = CUDA_SUCCESS}, i == 1 ? other : launch);
    }
    tap_ok(count_launching(comms) == COMMS, "NCCL launches a group with %d communicators, and another one", COMMS - 1);
    oh_order_nccl_launched(comms[0], oh_order_launch(comms[0]));
    tap_ok(count_launching(comms) == 1, "%d communicators wait when one of the group is polled",
           count_launching(comms));
    tap_ok(oh_comm_is_launching(comms[1]), "... the one of the other group");
    for (int i = 0; i < COMMS; i++) {
        oh_registry_remove(comms[i]);
        oh_comm_retire(comms[i]);
    }
    rmdir(folder);
    return tap_done();
}
