/* SPDX-License-Identifier: MIT */
/*
 * others.h - one call each of all functions but ncclAllReduce, with their buffers and what must come out
 *
 * A member's buffer holds its input, a block for each rank, and then as much for the result of each call.
 */
#ifndef TEST_COMMON_OTHERS_H_
#define TEST_COMMON_OTHERS_H_

#include "test/common/worker.h"

#define CF_OTHER_BYTES 4096 /* of a block */

/* Each once; the root is the last rank, and a rank sends to the next one. */
enum cf_other {
    CF_BROADCAST = 1,
    CF_BCAST = 2,
    CF_REDUCE = 4,
    CF_REDUCE_SCATTER = 8,
    CF_ALL_GATHER = 16,
    CF_SEND = 32,
    CF_RECEIVE = 64,
    CF_ALL_TO_ALL = 128,
    CF_GATHER = 256,
    CF_SCATTER = 512,
    CF_ALL_OTHERS = 1023
};

struct cf_others {
    struct cf_worker *worker;
    const struct cf_set *set;
    uint64_t serial; /* of the inputs */
    CUdeviceptr device[CF_MAX_RANKS];
    int32_t *host[CF_MAX_RANKS];
};

void cf_others_open(struct cf_worker *worker, const struct cf_set *set, struct cf_others *others_p);
void cf_others_close(struct cf_others *others);
/* New inputs, and a pattern in the results. */
void cf_others_load(struct cf_others *others, int stream);
/* Makes these calls, of enum cf_other, on all members; between GroupStart and GroupEnd. */
void cf_others_issue(const struct cf_others *others, unsigned calls, int stream);
/* These calls must have been made since the load, and no other. */
void cf_others_judge(struct cf_others *others, unsigned calls, int stream);
/* The addresses of a member's first block, and of the first block of a result. */
void *cf_others_input(const struct cf_others *others, int member);
void *cf_others_result(const struct cf_others *others, enum cf_other call, int member);

#endif
