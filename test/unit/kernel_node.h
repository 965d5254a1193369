/* SPDX-License-Identifier: MIT */
/*
 * kernel_node.h - ranks that are threads of this process, with a staging memory each, and calls that they run
 *
 * kernel_node.c runs kernels as the plugin would launch them; kernel_reference.c makes their inputs and says what must
 * come out. One node at a time. For t_kernels.c.
 */
#ifndef TEST_UNIT_KERNEL_NODE_H_
#define TEST_UNIT_KERNEL_NODE_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/abi.h"
#include "test/common/number.h"

#define GUARD 64 /* bytes before and after a message that nobody writes */

/* The first two are those of allreduce. */
enum algorithm {
    ONESHOT,
    TWOSHOT,
    REDUCESCATTER,
    ALLGATHER,
    BROADCAST,
    ALGORITHMS
};
extern const char *const algorithm_names[ALGORITHMS];

#define REPORTED_CALL 17 /* what kernels tell of a call; it means nothing to them */
#define REPORTED_SIGNATURE 0x20301

struct call {
    enum algorithm algorithm;
    ncclDataType_t type;
    enum oh_kernel_op op;
    enum cf_family family; /* of the inputs; 0: one that suits the type, at random */
    bool any;              /* by the kernel for any op, where there is one for this op alone */
    unsigned items;        /* of a list: one-shot by the kernel for any op; they share the message out */
    uint64_t count;        /* of a part, where each rank has one */
    unsigned root;         /* of a broadcast; of a list: of its first call */
    unsigned blocks;
    size_t send_offset[OH_MAX_RANKS], recv_offset[OH_MAX_RANKS]; /* elements */
    bool in_place;
    bool scalar_in_memory;
    bool concurrent; /* the blocks run at the same time, and beside what the next kernel does before it waits for this
                      * one; else one after the other */
    bool early_trigger, late_trigger;
    bool half[OH_MAX_RANKS]; /* on these ranks the grid is half as large, if blocks run at the same time */
    struct cf_data data;     /* this and the following are set by prepare_call */
    char *send[OH_MAX_RANKS], *recv[OH_MAX_RANKS], *input[OH_MAX_RANKS]; /* input: a copy of what was sent */
};

struct node {
    unsigned ranks;
    char *staging[OH_MAX_RANKS];
    struct oh_control control;
    atomic_uint triggers; /* blocks that have let the next kernel begin */
};

extern struct node node;
extern int watch_seconds; /* without the end of a call: then the ranks are let go. 0: for ever */

/* --- kernel_node.c ---------------------------------------------------------------------------------------------- */

bool is_float(ncclDataType_t type);

void start_node(unsigned ranks, uint32_t epoch);
void stop_node(void);

/* Between kernels: whether all epoch words of a rank are equal, and all words empty, but those that the last kernel
 * with two hops has left. */
bool is_emptied(unsigned rank);

/* Where a rank's buffers are, and how long. */
char *sendbuff(const struct call *call, unsigned rank);
char *recvbuff(const struct call *call, unsigned rank);
size_t send_bytes(const struct call *call);
size_t recv_bytes(const struct call *call);

/* A call of a list: elements of each part from `first` on. Buffers with a part for each rank begin at ranks x first. */
struct span {
    uint64_t first, count;
};
unsigned span_count(const struct call *call); /* 1: no list */
struct span span_of(const struct call *call, unsigned item);
unsigned root_of(const struct call *call, unsigned item);

struct rank_job {
    const struct call *calls;
    int count;
    unsigned rank;
};

void *run_rank(void *user); /* a struct rank_job; a thread's function */

/* On all ranks, each at its own pace. */
void run_calls(const struct call *calls, int count);

/* --- kernel_reference.c ----------------------------------------------------------------------------------------- */

/* Buffers and random inputs of a call on all ranks, and their end. */
void prepare_call(struct call *call, unsigned *seed);
void release_call(struct call *call);

/* Runs calls on a node of their own, and checks every one. False: a note says what is wrong. */
bool run_and_check(unsigned ranks, uint32_t epoch, struct call *calls, int count, unsigned *seed);

#endif
