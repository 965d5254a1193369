/* SPDX-License-Identifier: MIT */
/*
 * data.c - the buffers of a rank, and what must be in them
 *
 * Does: All calls have memory of their own in one arena. Inputs follow from seed, item and rank, and are exact: no
 *    order of ranks changes a result. What no call may write must be as it was, rejected calls' memory included.
 * Threads: those of the worker alone.
 * Owns: the arena on the device, and its images on the host.
 */
#include <stdlib.h>
#include <string.h>

#include "test/programs/program.h"

#define PATTERN 0x5a
#define WHY_BYTES 160

static uint64_t key_of(const struct pg_program *program, int item)
{
    return cf_mix(program->seed + 1000 * (uint64_t)item);
}

struct cf_data pg_numbers(const struct pg_program *program, const struct pg_item *item, int nranks)
{
    const int owner = item->call.op_item;
    return (struct cf_data){.type = &cf_types[item->call.type],
                            .op = item->call.op,
                            .family = CF_EXACT,
                            .key = key_of(program, (int)(item - program->item)),
                            .factor_key = owner >= 0 ? key_of(program, owner) : 0,
                            .nranks = nranks};
}

void pg_data_open(struct cf_worker *worker, const struct pg_program *program, struct pg_data *data_p)
{
    *data_p = (struct pg_data){.before = cf_need(worker, malloc(program->bytes)),
                               .after = cf_need(worker, malloc(program->bytes))};
    memset(data_p->before, PATTERN, program->bytes);
    CF_CU(worker, MemAlloc(&data_p->work, program->bytes));
    CF_CU(worker, MemAlloc(&data_p->initial, program->bytes));
    CF_CU(worker, MemcpyHtoDAsync(data_p->work, data_p->before, program->bytes, worker->member[0].stream[0]));
    CF_CU(worker, StreamSynchronize(worker->member[0].stream[0]));
}

void pg_data_close(struct cf_worker *worker, struct pg_data *data)
{
    CF_CU(worker, MemFree(data->work));
    CF_CU(worker, MemFree(data->initial));
    free(data->before);
    free(data->after);
}

/* Blocks of `count` elements that a rank sends. */
static int sent_blocks(enum pg_function function, int nranks)
{
    return function == PG_REDUCE_SCATTER || function == PG_ALL_TO_ALL || function == PG_SCATTER ? nranks : 1;
}

static int received_blocks(enum pg_function function, int nranks)
{
    return function == PG_ALL_GATHER || function == PG_ALL_TO_ALL || function == PG_GATHER ? nranks : 1;
}

static size_t block_bytes(const struct pg_item *item)
{
    return item->call.count * cf_types[item->call.type].size;
}

void pg_data_place(const struct pg_item *item, int world_rank, int rank, size_t *send_p, size_t *recv_p)
{
    bool in_place = item->in_place >> world_rank & 1;
    size_t shift = (size_t)rank * block_bytes(item);
    *send_p = item->send;
    *recv_p = item->recv;
    if (item->call.function == PG_BCAST || (in_place && item->call.function <= PG_REDUCE)) {
        *send_p = item->recv;
    } else if (in_place && item->call.function == PG_ALL_GATHER) {
        *send_p = item->recv + shift;
    } else if (in_place && item->call.function == PG_REDUCE_SCATTER) {
        *recv_p = item->send + shift;
    }
}

void pg_data_load(struct cf_worker *worker, const struct pg_program *program, int m, int comm, const struct cf_set *set,
                  struct pg_data *data)
{
    int world_rank = worker->member[m].world_rank;
    CUstream stream = worker->member[m].stream[0];
    for (int i = 0; i < program->items; i++) {
        const struct pg_item *item = &program->item[i];
        if (!pg_has_memory(item) || item->call.comm != comm) {
            continue;
        }
        struct cf_data numbers = pg_numbers(program, item, set->nranks[m]);
        size_t send, recv, from = item->send, bytes = item->factor + 16 - from;
        size_t count = item->call.count * (size_t)sent_blocks(item->call.function, set->nranks[m]);
        pg_data_place(item, world_rank, set->rank[m], &send, &recv);
        for (size_t e = 0; e < count; e++) {
            cf_store(numbers.type, data->before + send + e * numbers.type->size, cf_input(&numbers, world_rank, e));
        }
        cf_store(numbers.type, data->before + item->factor, cf_scalar(&numbers, world_rank));
        CF_CU(worker, MemcpyHtoDAsync(data->work + from, data->before + from, bytes, stream));
        CF_CU(worker, MemcpyHtoDAsync(data->initial + from, data->before + from, bytes, stream));
    }
    CF_CU(worker, StreamSynchronize(stream));
}

void pg_data_renew(struct cf_worker *worker, const struct pg_item *item, CUstream stream, const struct pg_data *data)
{
    CF_CU(worker,
          MemcpyDtoDAsync(data->work + item->send, data->initial + item->send, item->factor + 16 - item->send, stream));
}

/* Does a call write this rank's buffer? */
static bool receives(const struct pg_item *item, int world_rank, int rank, int nranks)
{
    if (item->call.function == PG_SEND) {
        return world_rank == item->call.peer;
    }
    return (item->call.function != PG_REDUCE && item->call.function != PG_GATHER) || rank == item->call.root % nranks;
}

/* The rank whose input a block of the result is a copy of, and the element where it begins there. */
static int source_of(const struct pg_item *item, const struct cf_set *set, int m, int block, size_t *first_p)
{
    int n = set->nranks[m], rank = set->rank[m];
    bool own_part = item->call.function == PG_ALL_TO_ALL || item->call.function == PG_SCATTER;
    *first_p = own_part ? (size_t)rank * item->call.count : 0;
    switch (item->call.function) {
    case PG_ALL_GATHER:
    case PG_ALL_TO_ALL:
    case PG_GATHER:
        return set->world[m][block];
    case PG_SEND:
        return item->call.root;
    case PG_RING:
        return set->world[m][(rank + n - 1) % n];
    default:
        return set->world[m][item->call.root % n];
    }
}

/* Element e of a block of the result. */
static bool is_right(const struct cf_data *numbers, const struct pg_item *item, const struct cf_set *set, int m,
                     int block, size_t e, uint64_t got, char *why)
{
    bool scatters = item->call.function == PG_REDUCE_SCATTER;
    size_t first = scatters ? (size_t)set->rank[m] * item->call.count : 0;
    if (scatters || item->call.function == PG_ALLREDUCE || item->call.function == PG_REDUCE) {
        return cf_judge(numbers, set->world[m], first + e, got, false, why, WHY_BYTES);
    }
    int from = source_of(item, set, m, block, &first);
    uint64_t wanted = cf_input(numbers, from, first + e);
    snprintf(why, WHY_BYTES, "%#llx, expected %#llx", (unsigned long long)got, (unsigned long long)wanted);
    return got == wanted;
}

static void compare(struct cf_worker *worker, const struct pg_program *program, int i, int m, const struct cf_set *set,
                    struct pg_data *data)
{
    const struct pg_item *item = &program->item[i];
    struct cf_data numbers = pg_numbers(program, item, set->nranks[m]);
    size_t size = numbers.type->size, send, recv;
    int world_rank = worker->member[m].world_rank, blocks = received_blocks(item->call.function, set->nranks[m]);
    char why[WHY_BYTES];
    pg_data_place(item, world_rank, set->rank[m], &send, &recv);
    bool writes = receives(item, world_rank, set->rank[m], set->nranks[m]);
    for (int b = 0; b < blocks && writes; b++) {
        for (size_t e = 0; e < item->call.count; e++) {
            size_t place = (size_t)b * item->call.count + e;
            uint64_t got = cf_load(numbers.type, data->after + recv + place * size);
            if (!is_right(&numbers, item, set, m, b, e, got, why)) {
                cf_fail(worker, "rank %d: item %d, %s: element %zu is wrong: %s", world_rank, i,
                        pg_function_names[item->call.function], place, why);
            }
        }
    }
    if (writes || item->call.function == PG_REDUCE) {
        memcpy(data->before + recv, data->after + recv, (size_t)blocks * block_bytes(item));
    }
    if (item->call.function == PG_REDUCE_SCATTER &&
        recv != item->recv) { /* NCCL does not say what becomes of the rest */
        memcpy(data->before + send, data->after + send, (size_t)set->nranks[m] * block_bytes(item));
    }
}

/* The call whose memory ends behind a byte of the arena. */
static int item_at(const struct pg_program *program, size_t at)
{
    int i = 0;
    while (i + 1 < program->items && (!pg_has_memory(&program->item[i]) || program->item[i].factor + 16 < at)) {
        i++;
    }
    return i;
}

void pg_data_check(struct cf_worker *worker, const struct pg_program *program, int m, const struct cf_set *set,
                   struct pg_data *data)
{
    CUstream stream = worker->member[m].stream[0];
    CF_CU(worker, MemcpyDtoHAsync(data->after, data->work, program->bytes, stream));
    CF_CU(worker, StreamSynchronize(stream));
    for (int i = 0; i < program->items; i++) {
        if (data->made[i]) {
            compare(worker, program, i, m, &set[program->item[i].call.comm], data);
            data->made[i] = program->item[i].captured;
        }
    }
    size_t at = 0;
    while (at < program->bytes && data->before[at] == data->after[at]) {
        at++;
    }
    cf_check(worker, at == program->bytes, "rank %d: byte %zu of the arena was written, near item %d",
             worker->member[m].world_rank, at, item_at(program, at));
}
