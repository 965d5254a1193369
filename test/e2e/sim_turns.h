/* SPDX-License-Identifier: MIT */
/* sim_turns.h - what the parts of sim_turns share. A check that fails ends the process with a line. */
#ifndef TEST_E2E_SIM_TURNS_H_
#define TEST_E2E_SIM_TURNS_H_

#include <cuda.h>
#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#define SMALL 1000
#define LARGE 100000 /* the test sets ONEHOP_MAX_BYTES below */
#define PAIRS 16     /* of communicators, until the first comes first in a group: their order is that of their names */
#define FIRST_CALLS 20
#define LATE_US 300000
#define TELL_US 300000   /* by then a failure is told */
#define MOST_US 20000000 /* of a call that ends */

#define MUST(good_)                                                                                                    \
    do {                                                                                                               \
        if (!(good_)) {                                                                                                \
            printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #good_);                                                    \
            fflush(stdout);                                                                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

/* Not every nccl.h has these. */
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *comm_p,
                          ncclConfig_t *config);

/* A rank, and what is made for it. The first rank of an actor has its device current. */
struct rank {
    int rank;
    const struct turn_case *of;
    CUcontext context;
    CUstream stream;
    void *ones, *to, *other; /* memory of LARGE floats; the latter two are zeros */
};

struct turn_case {
    const char *name; /* NULL ends a table */
    void (*run)(const struct rank *self);
    int actors;    /* processes or threads */
    int local;     /* ranks of an actor, of which it is handed the first; 0: one */
    bool forks;    /* processes */
    bool suspends; /* a communicator, so that onehop does not know it any more */
    bool finalizes;
};
extern const struct turn_case turn_abort_cases[], turn_call_cases[], turn_end_cases[];

/* What all actors share. */
struct turn_board {
    pthread_barrier_t barrier;
    ncclUniqueId id[2 * PAIRS];
};
extern struct turn_board *turn_board;

/* Waits for all actors. */
void turn_meet(void);

/* Makes the rank's device current. */
void turn_use(const struct rank *self);

/* Memory of LARGE floats of that value. */
void *turn_filled(const struct rank *self, float value);
bool turn_is_filled(const void *memory, size_t count, float value);

/* Zeros in the rank's `to` and `other`. */
void turn_clear(const struct rank *self);

/* ncclAllReduce, on the rank's stream. */
ncclResult_t turn_sum(const struct rank *self, ncclComm_t comm, const void *from, void *to, size_t count);

bool turn_ends_within(const struct rank *self, int us);

/* Does the stream end, and has the memory that value then? */
bool turn_gives(const struct rank *self, const void *memory, size_t count, float value);

ncclResult_t turn_state_of(ncclComm_t comm);
void turn_await(ncclComm_t comm, ncclResult_t result);

/* Ends a group with calls of these communicators, blocking or not. */
void turn_end_group(ncclComm_t one, ncclComm_t two);

/* A communicator of an id. */
ncclComm_t turn_make(int id, int nranks, int rank, bool blocking);

/* One of an id, of which the actor's first ranks are so many. */
void turn_make_group(const struct rank *self, int local, int id, int nranks, ncclComm_t *comm_p);

/* Calls until onehop serves the communicator, also where it is non-blocking. NULL: none. All actors call it. */
void turn_warm_up(const struct rank *self, ncclComm_t comm);

/* Of a communicator, by all ranks: onehop does not know it any more. */
void turn_suspend_and_resume(ncclComm_t comm);

void turn_start(void *(*run)(void *), void *argument, pthread_t *thread_p);

#endif
