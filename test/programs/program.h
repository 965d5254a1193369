/* SPDX-License-Identifier: MIT */
/*
 * program.h - a random NCCL program: its items, and the parts that make, print and run it
 *
 * Does: A seed gives a list of items, the same in every process. Each rank carries out its part of each item in order,
 *    so that any subset of the items whose dependencies are in it is a valid program, too.
 * Threads: a program is written before any thread starts, and then only read.
 * Owns: nothing; a program is one block of memory.
 */
#ifndef TEST_PROGRAMS_PROGRAM_H_
#define TEST_PROGRAMS_PROGRAM_H_

#include <stdio.h>

#include "test/common/batch.h"
#include "test/common/worker.h"

#define PG_MAX_ITEMS 512
#define PG_MAX_COMMS 6
#define PG_MAX_RANKS 4
#define PG_MAX_SETTINGS 8
#define PG_STREAMS 3
#define PG_ALL (-1) /* as a rank: all ranks */

enum pg_kind {
    PG_COMM,
    PG_PAUSE,
    PG_POLL, /* of ncclCommGetAsyncError */
    PG_CALL,
    PG_GROUP,
    PG_GROUP_END,
    PG_CAPTURE,
    PG_CAPTURE_END,
    PG_REPLAY,
    PG_ESTIMATE,
    PG_REJECTED,       /* a call with a wrong argument */
    PG_REJECTED_GROUP, /* a valid call, a call with a wrong argument, a valid call */
    PG_EMPTY,          /* a call of count 0, which the other ranks do not make */
    PG_CHECK,          /* waits for the streams and compares all buffers */
    PG_END,            /* of a rank: checks, ends all communicators, leaves */
    PG_COMM_END,       /* of a communicator: all its ranks destroy the graphs that hold its calls, and end it */
    PG_SUSPEND,        /* of a communicator, which is resumed at once */
    PG_OP,             /* an op of the program's own, for calls that follow */
    PG_OP_END,
    PG_STREAM,    /* a stream is destroyed, with its work under way, and made anew */
    PG_GRAPH_END, /* a graph is destroyed, whose launches may be under way */
    PG_KINDS
};

enum pg_function {
    PG_ALLREDUCE,
    PG_BROADCAST,
    PG_BCAST,
    PG_REDUCE,
    PG_ALL_GATHER,
    PG_REDUCE_SCATTER,
    PG_ALL_TO_ALL,
    PG_GATHER,
    PG_SCATTER,
    PG_SEND, /* from one rank to another */
    PG_RING, /* each rank sends to the next one, in a group */
    PG_FUNCTIONS
};

enum pg_way {
    PG_DESTROY,
    PG_FINALIZE, /* then destroy */
    PG_ABORT,
    PG_LEAVE, /* the process ends with its communicators */
    PG_WAYS
};

enum pg_mistake {
    PG_BAD_TYPE,
    PG_BAD_OP,
    PG_BAD_ROOT,
    PG_NO_COMM,
    PG_MISTAKES
};

/* How an item is carried out, by bit. */
enum pg_flag {
    PG_IDLE = 1,       /* PG_COMM_END, PG_SUSPEND: once the streams have nothing to do */
    PG_GROUPED = 2,    /* PG_COMM_END: in a group of its own, where it is in none */
    PG_GRAPH_LAST = 4, /* PG_GRAPH_END: behind the executable graph */
    PG_NESTED = 8,     /* PG_ESTIMATE: the calls are in an inner group */
    PG_TWICE = 16,     /* PG_ESTIMATE: of two calls */
    PG_SIMULATED = 32, /* PG_GROUP_END of an inner group: by ncclGroupSimulateEnd, which ends it as ncclGroupEnd does */
};

/* What is equal on all ranks of a call. */
struct pg_spec {
    int comm; /* number of the communicator, also of the items that are no calls and need one */
    enum pg_function function;
    ncclDataType_t type;
    enum cf_op op;
    int op_item; /* PG_OP whose op the call has; -1: the call makes its own, if it needs one */
    size_t count;
    int root, peer; /* PG_SEND: world ranks of sender and receiver; others: root modulo the number of ranks */
};

struct pg_item {
    enum pg_kind kind;
    int rank;  /* PG_ALL, or the world rank that alone carries the item out */
    int begin; /* item that this one needs: its group's or capture's first one, or a rank's end; -1: none */
    int us;    /* PG_PAUSE */
    /* PG_COMM */
    enum cf_maker maker;
    int parent;   /* number of the communicator that is split; -1: none */
    bool shrinks; /* instead of a split: the parent without the ranks that have no colour */
    int flags;    /* enum cf_child; of PG_CAPTURE its mode; of others enum pg_flag */
    int color[PG_MAX_RANKS], key[PG_MAX_RANKS];
    struct pg_spec call;
    bool captured;
    unsigned in_place;        /* world ranks, by bit */
    int stream[PG_MAX_RANKS]; /* by world rank */
    int fork;                 /* PG_CAPTURE: a second stream of it; -1: none */
    enum pg_mistake mistake;
    enum pg_way way;           /* PG_END, PG_COMM_END */
    size_t send, recv, factor; /* offsets in the arena */
};

struct pg_program {
    uint64_t seed;
    struct cf_layout layout;
    char setting[PG_MAX_SETTINGS][48]; /* NAME=VALUE; "" ends the list */
    bool by_plugin;                    /* NCCL_NET_PLUGIN instead of LD_PRELOAD */
    int without;                       /* the process without onehop; -1: none */
    int items;
    struct pg_item item[PG_MAX_ITEMS];
    size_t bytes; /* of the arena */
};

/* A set of items. */
struct pg_mask {
    bool on[PG_MAX_ITEMS];
};

/* Shared by the processes of a job. */
struct pg_board {
    struct cf_board head;
    int most_ranks;
    bool plain; /* only what a real NCCL allows */
    struct pg_mask active;
    _Atomic int at[PG_MAX_RANKS]; /* by world rank: the item that it is in */
};

/* --- generate.c --------------------------------------------------------------------------------------------------- */

/* plain: without what the stand-in allows and NCCL does not. */
void pg_generate(uint64_t seed, int most_ranks, bool plain, struct pg_program *program_p);

/* --- subset.c ----------------------------------------------------------------------------------------------------- */

/* Drops from `kept` what needs an item that is not kept. */
struct pg_mask pg_close(const struct pg_program *program, const struct pg_mask *kept);
bool pg_is_call(const struct pg_item *item);
bool pg_has_memory(const struct pg_item *item); /* in the arena */

/* --- print.c ------------------------------------------------------------------------------------------------------ */

extern const char *const pg_function_names[PG_FUNCTIONS];
void pg_print(const struct pg_program *program, const struct pg_mask *active, FILE *file);
/* "0-4,7" */
void pg_mask_print(const struct pg_mask *mask, FILE *file);
bool pg_mask_parse(const char *text, struct pg_mask *mask_p);

/* --- data.c: the buffers of a rank -------------------------------------------------------------------------------- */

struct pg_data {
    CUdeviceptr work, initial; /* device: the arena, and its first contents for calls that are replayed */
    unsigned char *before, *after;
    bool made[PG_MAX_ITEMS]; /* calls that have been carried out, and not been compared for good */
};

void pg_data_open(struct cf_worker *worker, const struct pg_program *program, struct pg_data *data_p);
/* Loads the inputs of all calls on a communicator that has just been made. */
void pg_data_load(struct cf_worker *worker, const struct pg_program *program, int member, int comm,
                  const struct cf_set *set, struct pg_data *data);
/* Where the buffers of a call are in the arena. */
void pg_data_place(const struct pg_item *item, int world_rank, int rank, size_t *send_p, size_t *recv_p);
/* Copies the first contents of a call's memory on the stream. */
void pg_data_renew(struct cf_worker *worker, const struct pg_item *item, CUstream stream, const struct pg_data *data);
/* Compares the whole arena with what must be in it. set: the member's communicators by number. */
void pg_data_check(struct cf_worker *worker, const struct pg_program *program, int member, const struct cf_set *set,
                   struct pg_data *data);
void pg_data_close(struct cf_worker *worker, struct pg_data *data);
/* What a call reduces; also the factors of a PG_OP. */
struct cf_data pg_numbers(const struct pg_program *program, const struct pg_item *item, int nranks);

/* --- run.c -------------------------------------------------------------------------------------------------------- */

/* In a process of the job: runs the program. Returns the exit status. */
int pg_run_process(struct pg_board *board, int process);

/* --- launch.c ----------------------------------------------------------------------------------------------------- */

struct pg_options {
    char **argv;
    const char *plugin; /* path of libonehop.so; NULL: stock NCCL alone */
    int seconds;        /* limit of a run */
    bool plain;
    int most_ranks;
};

/* Runs the items as a job, its output in `log`. Returns whether it ended as it should; *seconds_p: how long it took. */
bool pg_run(const struct pg_options *options, const struct pg_program *program, const struct pg_mask *active, FILE *log,
            double *seconds_p);

#endif
