/* SPDX-License-Identifier: MIT */
/*
 * sim_mix.c - the collectives of sim_app that onehop leaves alone, in one group with each other
 *
 * Layout of a rank's buffer, in elements: n x ELEMENTS of input, then the results of broadcast (1 x), allgather (n x),
 * reducescatter (1 x), and of a ring of send and receive (1 x).
 */
#include "sim_app.h"

#include <stdlib.h>

#define ELEMENTS 300

enum part {
    PART_BROADCAST,
    PART_GATHER,
    PART_SCATTER,
    PART_RING,
    PARTS
};

static int32_t value(int world_rank, size_t i)
{
    return (int32_t)(world_rank * 100000 + (int)i);
}

/* First element of a result. */
static size_t place(const struct app_comm *comm, enum part part)
{
    size_t n = (size_t)comm->nranks;
    const size_t first[PARTS] = {n, n + 1, 2 * n + 1, 2 * n + 2};
    return first[part] * ELEMENTS;
}

static size_t total(const struct app_comm *comm)
{
    return place(comm, PART_RING) + ELEMENTS;
}

static CUdeviceptr upload(const struct app_member *member, const struct app_comm *comm)
{
    size_t bytes = total(comm) * sizeof(int32_t);
    int32_t *data = calloc(1, bytes);
    CUdeviceptr buffer;
    APP_CHECK(data != NULL, "no memory");
    for (size_t i = 0; i < (size_t)comm->nranks * ELEMENTS; i++) {
        data[i] = value(member->world_rank, i);
    }
    APP_CU(cuMemAlloc(&buffer, bytes));
    APP_CU(cuMemcpyHtoDAsync(buffer, data, bytes, member->stream[0]));
    APP_CU(cuStreamSynchronize(member->stream[0]));
    free(data);
    return buffer;
}

static void call(const struct app_comm *comm, CUdeviceptr buffer, CUstream stream)
{
    int32_t *data = (int32_t *)(uintptr_t)buffer;
    int next = (comm->rank + 1) % comm->nranks, previous = (comm->rank + comm->nranks - 1) % comm->nranks;
    int root = comm->nranks - 1;
    ncclComm_t c = comm->comm;
    APP_NCCL(ncclBroadcast(data, data + place(comm, PART_BROADCAST), ELEMENTS, ncclInt32, root, c, stream));
    APP_NCCL(ncclAllGather(data, data + place(comm, PART_GATHER), ELEMENTS, ncclInt32, c, stream));
    APP_NCCL(ncclReduceScatter(data, data + place(comm, PART_SCATTER), ELEMENTS, ncclInt32, ncclSum, c, stream));
    APP_NCCL(ncclSend(data, ELEMENTS, ncclInt32, next, c, stream));
    APP_NCCL(ncclRecv(data + place(comm, PART_RING), ELEMENTS, ncclInt32, previous, c, stream));
}

static void verify(const struct app_member *member, const struct app_comm *comm, CUdeviceptr buffer)
{
    size_t n = (size_t)comm->nranks, mine = (size_t)comm->rank;
    int32_t *data = malloc(total(comm) * sizeof *data);
    APP_CHECK(data != NULL, "no memory");
    APP_CU(cuMemcpyDtoHAsync(data, buffer, total(comm) * sizeof *data, member->stream[0]));
    APP_CU(cuStreamSynchronize(member->stream[0]));
    for (size_t i = 0; i < ELEMENTS; i++) {
        int32_t sum = 0;
        for (size_t r = 0; r < n; r++) {
            sum += value(comm->world[r], mine * ELEMENTS + i);
            APP_CHECK(data[place(comm, PART_GATHER) + r * ELEMENTS + i] == value(comm->world[r], i), "allgather");
        }
        APP_CHECK(data[place(comm, PART_BROADCAST) + i] == value(comm->world[n - 1], i), "broadcast");
        APP_CHECK(data[place(comm, PART_SCATTER) + i] == sum, "reducescatter");
        APP_CHECK(data[place(comm, PART_RING) + i] == value(comm->world[(mine + n - 1) % n], i), "send and receive");
    }
    free(data);
}

static void run_on(struct app_worker *worker, int c, void (*with)(struct app_worker *, void *), void *argument)
{
    CUdeviceptr buffer[APP_MAX_RANKS];
    for (int m = 0; m < worker->members; m++) {
        struct app_member *member = &worker->member[m];
        if (member->comm[c].comm != NULL) {
            app_member_use(member);
            buffer[m] = upload(member, &member->comm[c]);
        }
    }
    APP_NCCL(ncclGroupStart());
    if (with != NULL) {
        with(worker, argument);
    }
    for (int m = 0; m < worker->members; m++) {
        struct app_member *member = &worker->member[m];
        if (member->comm[c].comm != NULL) {
            app_member_use(member);
            call(&member->comm[c], buffer[m], member->stream[0]);
        }
    }
    APP_NCCL(ncclGroupEnd());
    for (int m = 0; m < worker->members; m++) {
        struct app_member *member = &worker->member[m];
        if (member->comm[c].comm != NULL) {
            app_member_use(member);
            verify(member, &member->comm[c], buffer[m]);
            APP_CU(cuMemFree(buffer[m]));
        }
    }
}

void app_mix_run(struct app_worker *worker)
{
    for (int c = 0; c < worker->options->comms; c++) {
        run_on(worker, c, NULL, NULL);
    }
}

void app_mix_run_with(struct app_worker *worker, void (*with)(struct app_worker *, void *), void *argument)
{
    run_on(worker, 0, with, argument);
}
