/* SPDX-License-Identifier: MIT */
/*
 * sim_mix.c - the collectives of sim_app that onehop leaves alone, in one group with each other
 *
 * Layout of a rank's buffer, in blocks of ELEMENTS: n of input, then the results of the calls below.
 */
#include "sim_app.h"

#include <stdlib.h>

#define ELEMENTS 300

/* X(part, blocks of its result in units of ranks and of one, does the rank get it, what block b of it is). */
#define PARTS_(X)                                                                                                      \
    X(BROADCAST, 0, 1, true, value(comm->world[root], i))                                                              \
    X(BCAST, 0, 1, true, value(comm->world[root], i))                                                                  \
    X(REDUCE, 0, 1, comm->rank == root, sum(comm, i))                                                                  \
    X(REDUCE_SCATTER, 0, 1, true, sum(comm, mine *ELEMENTS + i))                                                       \
    X(ALL_GATHER, 1, 0, true, value(comm->world[b], i))                                                                \
    X(RING, 0, 1, true, value(comm->world[(mine + n - 1) % n], i))                                                     \
    X(ALL_TO_ALL, 1, 0, true, value(comm->world[b], mine *ELEMENTS + i))                                               \
    X(GATHER, 1, 0, comm->rank == root, value(comm->world[b], i))                                                      \
    X(SCATTER, 0, 1, true, value(comm->world[root], mine *ELEMENTS + i))

enum part {
#define PART_ENUMERATOR(part_, ...) PART_##part_,
    PARTS_(PART_ENUMERATOR)
#undef PART_ENUMERATOR
    PARTS
};

static int32_t value(int world_rank, size_t i)
{
    return (int32_t)(world_rank * 100000 + (int)i);
}

static int32_t sum(const struct app_comm *comm, size_t i)
{
    int32_t all = 0;
    for (int r = 0; r < comm->nranks; r++) {
        all += value(comm->world[r], i);
    }
    return all;
}

static size_t blocks(const struct app_comm *comm, enum part part)
{
    static const struct {
        size_t ranks, one;
    } size[PARTS] = {
#define PART_SIZE(part_, ranks_, one_, ...) {ranks_, one_},
        PARTS_(PART_SIZE)
#undef PART_SIZE
    };
    return size[part].ranks * (size_t)comm->nranks + size[part].one;
}

/* First element of a result; of PARTS, the end. */
static size_t place(const struct app_comm *comm, enum part part)
{
    size_t first = (size_t)comm->nranks;
    for (enum part before = 0; before < part; before++) {
        first += blocks(comm, before);
    }
    return first * ELEMENTS;
}

static CUdeviceptr upload(const struct app_member *member, const struct app_comm *comm)
{
    size_t bytes = place(comm, PARTS) * sizeof(int32_t);
    int32_t *data = calloc(1, bytes);
    CUdeviceptr buffer;
    APP_CHECK(data != NULL, "no memory");
    for (size_t i = 0; i < (size_t)comm->nranks * ELEMENTS; i++) {
        data[i] = value(member->world_rank, i);
    }
    for (size_t i = 0; i < ELEMENTS; i++) { /* in place */
        data[place(comm, PART_BCAST) + i] = value(member->world_rank, i);
    }
    APP_CU(cuMemAlloc(&buffer, bytes));
    APP_CU(cuMemcpyHtoDAsync(buffer, data, bytes, member->stream[0]));
    APP_CU(cuStreamSynchronize(member->stream[0]));
    free(data);
    return buffer;
}

static void call(const struct app_comm *comm, CUdeviceptr buffer, CUstream stream)
{
    int32_t *data = (int32_t *)(uintptr_t)buffer, *out[PARTS];
    int next = (comm->rank + 1) % comm->nranks, previous = (comm->rank + comm->nranks - 1) % comm->nranks;
    int root = comm->nranks - 1;
    ncclComm_t c = comm->comm;
    for (enum part part = 0; part < PARTS; part++) {
        out[part] = data + place(comm, part);
    }
    APP_NCCL(ncclBroadcast(data, out[PART_BROADCAST], ELEMENTS, ncclInt32, root, c, stream));
    APP_NCCL(ncclBcast(out[PART_BCAST], ELEMENTS, ncclInt32, root, c, stream));
    APP_NCCL(ncclReduce(data, out[PART_REDUCE], ELEMENTS, ncclInt32, ncclSum, root, c, stream));
    APP_NCCL(ncclReduceScatter(data, out[PART_REDUCE_SCATTER], ELEMENTS, ncclInt32, ncclSum, c, stream));
    APP_NCCL(ncclAllGather(data, out[PART_ALL_GATHER], ELEMENTS, ncclInt32, c, stream));
    APP_NCCL(ncclSend(data, ELEMENTS, ncclInt32, next, c, stream));
    APP_NCCL(ncclRecv(out[PART_RING], ELEMENTS, ncclInt32, previous, c, stream));
    APP_NCCL(ncclAlltoAll(data, out[PART_ALL_TO_ALL], ELEMENTS, ncclInt32, c, stream));
    APP_NCCL(ncclGather(data, out[PART_GATHER], ELEMENTS, ncclInt32, root, c, stream));
    APP_NCCL(ncclScatter(data, out[PART_SCATTER], ELEMENTS, ncclInt32, root, c, stream));
}

/* What element i of block b of a result is; false: the rank does not get it. */
static bool expected(const struct app_comm *comm, enum part part, size_t b, size_t i, int32_t *value_p)
{
    size_t n = (size_t)comm->nranks, mine = (size_t)comm->rank;
    int root = comm->nranks - 1;
    switch (part) {
#define PART_CASE(part_, ranks_, one_, gets_, value_)                                                                  \
    case PART_##part_:                                                                                                 \
        *value_p = value_;                                                                                             \
        return gets_;
        PARTS_(PART_CASE)
#undef PART_CASE
    default:
        return false;
    }
}

static void verify(const struct app_member *member, const struct app_comm *comm, CUdeviceptr buffer)
{
    static const char *const names[PARTS] = {
#define PART_NAME(part_, ...) #part_,
        PARTS_(PART_NAME)
#undef PART_NAME
    };
    size_t bytes = place(comm, PARTS) * sizeof(int32_t);
    int32_t *data = malloc(bytes);
    APP_CHECK(data != NULL, "no memory");
    APP_CU(cuMemcpyDtoHAsync(data, buffer, bytes, member->stream[0]));
    APP_CU(cuStreamSynchronize(member->stream[0]));
    for (enum part part = 0; part < PARTS; part++) {
        const int32_t *got = data + place(comm, part);
        for (size_t i = 0; i < blocks(comm, part) * ELEMENTS; i++) {
            int32_t right;
            APP_CHECK(!expected(comm, part, i / ELEMENTS, i % ELEMENTS, &right) || got[i] == right, "%s element %zu",
                      names[part], i);
        }
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
