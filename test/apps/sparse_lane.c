/* SPDX-License-Identifier: MIT */
#include "sparse_lane.h"

#include <string.h>

void *array(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size);
    CHECK(memory != NULL);
    return memory;
}

void *pointer(CUdeviceptr memory)
{
    return (void *)(uintptr_t)memory;
}

struct entries entries_new(size_t room)
{
    return (struct entries){0, array(room, sizeof(int32_t)), array(room, sizeof(float))};
}

void entries_free(struct entries *entries)
{
    free(entries->index);
    free(entries->value);
}

void add_to(float *sum, const struct entries *entries)
{
    for (size_t i = 0; i < entries->count; i++) {
        sum[entries->index[i]] += entries->value[i];
    }
}

void upload(const struct lane *lane, const void *from, size_t words)
{
    CU(cuMemcpyHtoDAsync(lane->out, from, words * 4, lane->stream));
}

void download(const struct lane *lane, void *to_p, CUdeviceptr from, size_t words)
{
    CU(cuMemcpyDtoHAsync(to_p, from, words * 4, lane->stream));
    CU(cuStreamSynchronize(lane->stream));
}

void all_reduce(const struct lane *lane, void *data, size_t count, ncclDataType_t type)
{
    upload(lane, data, count);
    NCCL(ncclAllReduce(pointer(lane->out), pointer(lane->in), count, type, ncclSum, lane->comm,
                       (cudaStream_t)lane->stream));
    download(lane, data, lane->in, count);
}

void all_gather(const struct lane *lane, const void *mine, size_t count, void *all_p)
{
    upload(lane, mine, count);
    NCCL(
        ncclAllGather(pointer(lane->out), pointer(lane->in), count, ncclInt32, lane->comm, (cudaStream_t)lane->stream));
    download(lane, all_p, lane->in, count * (size_t)lane->ranks);
}

void broadcast(const struct lane *lane, void *data, size_t count)
{
    upload(lane, data, count);
    NCCL(ncclBroadcast(pointer(lane->out), pointer(lane->in), count, ncclInt32, 0, lane->comm,
                       (cudaStream_t)lane->stream));
    download(lane, data, lane->in, count);
}

void send_words(const struct lane *lane, size_t at, size_t count, int peer)
{
    NCCL(ncclSend(pointer(lane->out + at * 4), count, ncclInt32, peer, lane->comm, (cudaStream_t)lane->stream));
}

void receive_words(const struct lane *lane, size_t at, size_t count, int peer)
{
    NCCL(ncclRecv(pointer(lane->in + at * 4), count, ncclInt32, peer, lane->comm, (cudaStream_t)lane->stream));
}

void all_to_all(const struct lane *lane, const int32_t *mine, int32_t *theirs_p)
{
    upload(lane, mine, (size_t)lane->ranks);
    NCCL(ncclGroupStart());
    for (int r = 0; r < lane->ranks; r++) {
        send_words(lane, (size_t)r, 1, r);
        receive_words(lane, (size_t)r, 1, r);
    }
    NCCL(ncclGroupEnd());
    download(lane, theirs_p, lane->in, (size_t)lane->ranks);
}

void gather_entries(const struct lane *lane, const struct entries *mine, float *sum_p)
{
    int32_t count = (int32_t)mine->count, counts[RANKS_MAX], most = 1;
    all_gather(lane, &count, 1, counts);
    for (int r = 0; r < lane->ranks; r++) {
        most = counts[r] > most ? counts[r] : most;
    }
    int32_t *padded = array((size_t)most, sizeof *padded), *index = array((size_t)(most * lane->ranks), sizeof *index);
    float *value = array((size_t)(most * lane->ranks), sizeof *value);
    memcpy(padded, mine->index, mine->count * 4);
    all_gather(lane, padded, (size_t)most, index);
    memcpy(padded, mine->value, mine->count * 4);
    all_gather(lane, padded, (size_t)most, value);
    for (int r = 0; r < lane->ranks; r++) {
        add_to(sum_p, &(struct entries){(size_t)counts[r], index + most * r, value + most * r});
    }
    free(padded);
    free(index);
    free(value);
}
