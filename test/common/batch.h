/* SPDX-License-Identifier: MIT */
/*
 * batch.h - calls of a communicator that onehop may serve, with their buffers, inputs and what must come out
 *
 * The buffers of a batch lie in one arena for each member, filled with a pattern before and compared as a whole after,
 * so that every byte that a call may not write is a guard.
 */
#ifndef TEST_COMMON_BATCH_H_
#define TEST_COMMON_BATCH_H_

#include "test/common/worker.h"

#define CF_PERIOD 4093 /* elements after which the inputs of a call repeat */

struct cf_spec {
    enum onehop_collective kind;
    ncclDataType_t type;
    enum cf_op op; /* CF_SUM where the kind does not reduce */
    enum cf_family family;
    size_t count;  /* as NCCL's function has it */
    int root;      /* of a broadcast; taken modulo the number of ranks */
    bool in_place; /* by NCCL's rule: a rank's part is where it is in the buffer that has all parts */
    unsigned send_shift,
        recv_shift;   /* bytes behind a multiple of 16; of a call in place the first, of its whole buffer */
    uint64_t key;     /* data; 0: by the batch's serial and the item's number */
    const char *note; /* for whoever reads of a failure; NULL: nothing */
};

extern const char *const cf_kind_names[ONEHOP_COLLECTIVE_COUNT];

/* Elements of the larger buffer of a call on so many ranks. */
size_t cf_whole_count(const struct cf_spec *spec, int nranks);

struct cf_item {
    struct cf_spec spec;
    size_t send, recv, scalar; /* offsets in the arena; of a call in place both are that of its whole buffer */
};

struct cf_batch {
    struct cf_worker *worker;
    const struct cf_set *set;
    uint64_t serial;
    int items, room;
    struct cf_item *item;
    size_t bytes; /* of an arena */
    CUdeviceptr arena[CF_MAX_RANKS];
    unsigned char *before[CF_MAX_RANKS], *after[CF_MAX_RANKS];
    uint64_t served_before, back_before;
    bool opened; /* the arenas have their size */
    bool served; /* onehop made all calls of it, as they were issued */
    bool counted;
    ncclRedOp_t op[CF_MAX_RANKS]; /* of the program's own, 0: none */
    bool keeps_op;                /* one for all calls of a PreMulSum: these have the same key and type */
    bool replayed;                /* judged after a replay of a graph: no call was made */
};

enum cf_style {
    CF_SINGLE,  /* each call by itself */
    CF_GROUPED, /* all in one group */
    CF_NESTED   /* groups within the group */
};

struct cf_batch *cf_batch_new(struct cf_worker *worker, const struct cf_set *set);
void cf_batch_add(struct cf_batch *batch, const struct cf_spec *spec);
/* Allocates the arenas, with room for all items that there are. All workers of the job call it. */
void cf_batch_open(struct cf_batch *batch);
/* Fills the arenas with new data and sends them to the devices; opens the batch before, if that has not been done. */
void cf_batch_load(struct cf_batch *batch, int stream);
/* Makes the calls, on each member's stream of that number. */
void cf_batch_issue(struct cf_batch *batch, enum cf_style style, int stream);
/* One item on all members: between GroupStart and GroupEnd where there are several, or where asked for. */
void cf_batch_issue_one(struct cf_batch *batch, int item, bool grouped, int stream);
/* One call of one member, as it is. */
ncclResult_t cf_batch_call(struct cf_batch *batch, int item, int member, CUstream stream);
/* The addresses of a member's buffers. */
void *cf_batch_send(const struct cf_batch *batch, int item, int member);
void *cf_batch_recv(const struct cf_batch *batch, int item, int member);
/* Brings the arenas back, waits, and judges everything. launched: false: not a byte may have changed. */
void cf_batch_judge(struct cf_batch *batch, int stream, bool launched);
/*
 * Counts what onehop has served since the load or mark. Judging a batch that was launched does it, unless it is
 * `counted`: for captures, and where other calls of the communicator come between.
 */
void cf_batch_count(struct cf_batch *batch);
void cf_batch_mark(struct cf_batch *batch);
void cf_batch_free(struct cf_batch *batch);
/* Load, issue and judge; `run` frees the batch as well. */
void cf_batch_try(struct cf_batch *batch, enum cf_style style, int stream);
void cf_batch_run(struct cf_batch *batch, enum cf_style style);
/* Judges a batch that was launched, and frees it. */
void cf_batch_finish(struct cf_batch *batch, int stream);
/* Where an item's result lies after cf_batch_judge. */
const unsigned char *cf_batch_result(const struct cf_batch *batch, int item, int member);
/* NCCL gives ncclInvalidArgument for such a call on one of the worker's communicators of this set. */
bool cf_refused(const struct cf_worker *worker, const struct cf_set *set, const struct cf_spec *spec);
/* Makes each call of a batch of refused ones: refused, and nothing written. Frees the batch. */
void cf_batch_expect_refusal(struct cf_batch *batch);

/* draw.c: random calls. What is drawn from a common source is the same on all ranks. */
struct cf_source {
    uint64_t state;
};
struct cf_source cf_common_source(const struct cf_worker *worker, uint64_t about);
struct cf_source cf_own_source(const struct cf_worker *worker, uint64_t about);
uint64_t cf_draw(struct cf_source *source, uint64_t below);
/*
 * A call that is not refused on this set; every second one is an allreduce. plain: sums, and 16- and 32-bit floats.
 * Only the place of the buffers comes from the rank's own source.
 */
struct cf_spec cf_random_spec(struct cf_worker *worker, const struct cf_set *set, struct cf_source *common,
                              struct cf_source *own, bool plain);

#endif
