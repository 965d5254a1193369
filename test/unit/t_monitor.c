/* SPDX-License-Identifier: MIT */
/*
 * t_monitor.c - a wait does not count for the time in which the process was stopped
 *
 * The checks are those of src/comm/watch/monitor.c itself, at times that this test sets.
 */
#include "comm/watch/monitor.c"

#include <stdlib.h>

#include "test/tap.h"

#define TIMEOUT_NS (5000 * MS)

static struct oh_shared shared;
static struct oh_control control;

static struct oh_comm *make_comm(void)
{
    struct oh_comm *comm = calloc(1, sizeof *comm);
    if (!comm) {
        exit(1);
    }
    comm->id.nranks = 2;
    comm->segment.shared = &shared;
    comm->staging.control = &control;
    comm->serve.progress = &shared.progress[0];
    pthread_mutex_init(&comm->attach.mutex, NULL);
    atomic_store(&comm->state, OH_COMM_SERVED);
    return comm;
}

/* A kernel has waited for twice the timeout, and goes on. The last check was `ago_ns` ago. */
static ncclResult_t check_after(uint64_t ago_ns)
{
    struct oh_comm *comm = make_comm();
    char line[LINE] = "";
    control.spins = 1;
    control.epoch = 5;
    watched = comm;
    check_all(line);
    comm->health.watch.since_ns = oh_now_ns() - 2 * TIMEOUT_NS;
    control.spins = 2;
    looked_ns = oh_now_ns() - ago_ns;
    check_all(line);
    watched = NULL;
    const ncclResult_t error = oh_comm_error(comm);
    free(comm);
    return error;
}

int main(void)
{
    timeout_ns = TIMEOUT_NS;
    tap_ok(check_after(TICK_NS) == ncclRemoteError, "a call that waits for longer than the timeout fails");
    memset(&shared, 0, sizeof shared);
    tap_ok(check_after(2 * LAPSE_NS) == ncclSuccess, "not if the process was stopped between two checks");
    return tap_done();
}
