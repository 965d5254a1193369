/* SPDX-License-Identifier: MIT */
/*
 * sim_item.c - one allreduce of sim_app and its buffers
 *
 * A buffer is [guard, offset bytes, data, guard], all pattern but the data, so that a write anywhere around the data
 * shows, at any alignment. It is allocated once, for the largest case.
 */
#include "sim_app.h"

#include <stdlib.h>
#include <string.h>

#include "test/simnode/nccl_reduce.h"

#define SEND_PATTERN 0xa5
#define RECV_PATTERN 0x5a

size_t app_item_cases(const struct app_options *options)
{
    int in_place = options->in_place_last - options->in_place_first + 1;
    return (size_t)options->counts * (size_t)options->types * (size_t)options->offsets * (size_t)in_place;
}

static size_t item_bytes(const struct app_item *item)
{
    return item->count * simnccl_type_size(item->type);
}

static size_t buffer_bytes(const struct app_item *item, int side)
{
    return 2 * APP_GUARD_BYTES + item->offset[side] + item_bytes(item);
}

void app_item_choose(const struct app_options *options, size_t which, struct app_item *item)
{
    size_t in_place = (size_t)(options->in_place_last - options->in_place_first + 1);
    item->in_place = options->in_place_first + (int)(which % in_place) != 0;
    which /= in_place;
    const int *offset = options->offset[which % (size_t)options->offsets];
    which /= (size_t)options->offsets;
    item->type = options->type[which % (size_t)options->types];
    which /= (size_t)options->types;
    item->count = options->count[which % (size_t)options->counts];
    for (int side = 0; side < 2; side++) {
        item->offset[side] = (size_t)offset[side] * simnccl_type_size(item->type);
    }
}

void app_item_open(const struct app_options *options, struct app_item *item_p)
{
    size_t largest = 1;
    *item_p = (struct app_item){0};
    for (size_t which = 0; which < app_item_cases(options); which++) {
        app_item_choose(options, which, item_p);
        for (int side = 0; side < 2; side++) {
            size_t bytes = buffer_bytes(item_p, side);
            largest = bytes > largest ? bytes : largest;
        }
    }
    APP_CU(cuMemAlloc(&item_p->send, largest));
    APP_CU(cuMemAlloc(&item_p->recv, largest));
}

void app_item_close(struct app_item *item)
{
    APP_CU(cuMemFree(item->send));
    APP_CU(cuMemFree(item->recv));
}

static void *send_data(const struct app_item *item)
{
    return (void *)(uintptr_t)(item->send + APP_GUARD_BYTES + item->offset[0]);
}

static void *recv_data(const struct app_item *item)
{
    return item->in_place ? send_data(item) : (void *)(uintptr_t)(item->recv + APP_GUARD_BYTES + item->offset[1]);
}

/* What a buffer holds before the call; `input` as well where the data goes. Freed by the caller. */
static char *initial(const struct app_options *options, const struct app_member *member, const struct app_item *item,
                     int side)
{
    size_t bytes = buffer_bytes(item, side);
    char *data = malloc(bytes);
    APP_CHECK(data != NULL, "no memory");
    memset(data, side == 0 ? SEND_PATTERN : RECV_PATTERN, bytes);
    if (side == 0) {
        char *input = malloc(item_bytes(item) + 1); /* aligned for the type, which data + offset need not be */
        APP_CHECK(input != NULL, "no memory");
        app_data_fill(options, member->world_rank, item->serial, item->type, item->count, input);
        memcpy(data + APP_GUARD_BYTES + item->offset[0], input, item_bytes(item));
        free(input);
    }
    return data;
}

void app_item_fill(const struct app_options *options, const struct app_member *member, struct app_item *item,
                   uint64_t serial)
{
    item->serial = serial;
    for (int side = 0; side < 2; side++) {
        char *data = initial(options, member, item, side);
        CUdeviceptr buffer = side == 0 ? item->send : item->recv;
        APP_CU(cuMemcpyHtoDAsync(buffer, data, buffer_bytes(item, side), member->stream[0]));
        APP_CU(cuStreamSynchronize(member->stream[0]));
        free(data);
    }
}

ncclResult_t app_item_call(const struct app_item *item, const struct app_comm *comm, CUstream stream)
{
    return ncclAllReduce(send_data(item), recv_data(item), item->count, item->type, comm->op, comm->comm, stream);
}

ncclResult_t app_item_call_part(const struct app_item *item, size_t first, size_t count, const struct app_comm *comm,
                                CUstream stream)
{
    size_t at = first * (item_bytes(item) / item->count);
    return ncclAllReduce((char *)send_data(item) + at, (char *)recv_data(item) + at, count, item->type, comm->op,
                         comm->comm, stream);
}

static char *download(const struct app_member *member, const struct app_item *item, int side)
{
    char *data = malloc(buffer_bytes(item, side));
    APP_CHECK(data != NULL, "no memory");
    APP_CU(cuMemcpyDtoHAsync(data, side == 0 ? item->send : item->recv, buffer_bytes(item, side), member->stream[0]));
    APP_CU(cuStreamSynchronize(member->stream[0]));
    return data;
}

/* Compares a buffer with what it held before, except for `skip` bytes where the result goes. */
static void verify_kept(const struct app_options *options, const struct app_member *member, const struct app_item *item,
                        int side, const char *data, size_t skip)
{
    char *before = initial(options, member, item, side);
    size_t start = APP_GUARD_BYTES + item->offset[side], total = buffer_bytes(item, side);
    if (memcmp(data, before, start) == 0 &&
        memcmp(data + start + skip, before + start + skip, total - start - skip) == 0) {
        free(before);
        return;
    }
    for (size_t i = 0; i < total; i++) {
        if (i == start) {
            i += skip;
        }
        APP_CHECK(data[i] == before[i], "rank %d call %llu count %zu: byte %zd of the %s buffer was written",
                  member->world_rank, (unsigned long long)item->serial, item->count, (ssize_t)i - (ssize_t)start,
                  side == 0 ? "send" : "receive");
    }
}

void app_item_verify(const struct app_options *options, struct app_member *member, const struct app_comm *comm,
                     const struct app_item *item)
{
    int result_side = item->in_place ? 0 : 1;
    for (int side = 0; side < 2; side++) {
        char *data = download(member, item, side);
        verify_kept(options, member, item, side, data, side == result_side ? item_bytes(item) : 0);
        if (side == result_side) {
            char *result = malloc(item_bytes(item) + 1);
            APP_CHECK(result != NULL, "no memory");
            memcpy(result, data + APP_GUARD_BYTES + item->offset[side], item_bytes(item));
            app_data_verify(options, comm, item, result);
            member->hash = app_data_hash(member->hash, result, item_bytes(item));
            free(result);
        }
        free(data);
    }
}

void app_item_verify_untouched(const struct app_options *options, const struct app_member *member,
                               const struct app_item *item)
{
    for (int side = 0; side < 2; side++) {
        char *data = download(member, item, side);
        verify_kept(options, member, item, side, data, 0);
        free(data);
    }
}
