/* SPDX-License-Identifier: MIT */
/*
 * sparse_lane.h - one rank on one communicator: collectives on arrays of the host, and entries of a gradient
 *
 * A lane is used by one thread. Arrays are of 4-byte words, and are copied to the GPU and back.
 */
#ifndef TEST_APPS_SPARSE_LANE_H_
#define TEST_APPS_SPARSE_LANE_H_

#include <cuda.h>
#include <nccl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define RANKS_MAX 8

#define CHECK(condition_)                                                                                              \
    do {                                                                                                               \
        if (!(condition_)) {                                                                                           \
            fprintf(stderr, "%s: line %d: %s\n", __FILE__, __LINE__, #condition_);                                     \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define CU(call_) CHECK((call_) == CUDA_SUCCESS)
#define NCCL(call_) CHECK((call_) == ncclSuccess)

/* nccl.h gives these without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

/* Entries of a gradient, ascending by index: what is not among them is zero. */
struct entries {
    size_t count;
    int32_t *index;
    float *value;
};

struct lane {
    int rank, ranks;
    ncclComm_t comm;
    CUstream stream;
    CUdeviceptr out, in; /* room for an array of each rank */
};

/* Zeroed memory; never NULL. */
void *array(size_t count, size_t size);
struct entries entries_new(size_t room);
void entries_free(struct entries *entries);
void add_to(float *sum, const struct entries *entries);

/* On the lane's stream; the second waits for it. */
void upload(const struct lane *lane, const void *from, size_t words);
void download(const struct lane *lane, void *to_p, CUdeviceptr from, size_t words);

/* Memory of the GPU as NCCL takes it. */
void *pointer(CUdeviceptr memory);

void all_reduce(const struct lane *lane, void *data, size_t count, ncclDataType_t type);
void all_gather(const struct lane *lane, const void *mine, size_t count, void *all_p);
void broadcast(const struct lane *lane, void *data, size_t count);                /* of rank 0 */
void all_to_all(const struct lane *lane, const int32_t *mine, int32_t *theirs_p); /* a word for and from each rank */

/* Words at a place in `out` and `in`; in a group, where there are several. */
void send_words(const struct lane *lane, size_t at, size_t count, int peer);
void receive_words(const struct lane *lane, size_t at, size_t count, int peer);

/* Adds up everyone's entries, of any number. */
void gather_entries(const struct lane *lane, const struct entries *mine, float *sum_p);

#endif
