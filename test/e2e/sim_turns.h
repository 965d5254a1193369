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

extern bool turn_suspends; /* a communicator, so that onehop does not know it any more */
extern pthread_barrier_t turn_barrier;
extern ncclUniqueId turn_ids[2 * PAIRS];

/* A rank: its device is current, and has a stream. */
struct rank {
    int rank;
    CUstream stream;
};

struct rank turn_begin(int rank);

/* Memory of LARGE floats of that value. */
void *turn_filled(const struct rank *self, float value);
bool turn_is_filled(const void *memory, size_t count, float value);

/* ncclAllReduce, on the rank's stream. */
ncclResult_t turn_sum(const struct rank *self, ncclComm_t comm, const void *from, void *to, size_t count);

ncclResult_t turn_state_of(ncclComm_t comm);
void turn_await(ncclComm_t comm, ncclResult_t result);
bool turn_ends_within(const struct rank *self, int us);

/* A communicator of an id. */
ncclComm_t turn_make(int id, int nranks, int rank, bool blocking);

/* Calls until onehop serves the communicator, also where it is non-blocking. */
void turn_warm_up(const struct rank *self, ncclComm_t comm);

/* Of a communicator, by all ranks: onehop does not know it any more. NULL: nothing. */
void turn_suspend_and_resume(ncclComm_t comm);

/* Cases of which the ranks are threads; the last has no name. */
struct turn_case {
    const char *name;
    int count; /* of ranks */
    void *(*run)(void *rank);
};
extern const struct turn_case turn_thread_cases[];

#endif
