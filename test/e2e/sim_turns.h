/* SPDX-License-Identifier: MIT */
/* sim_turns.h - what the parts of sim_turns share. A check that fails ends the process with a line. */
#ifndef TEST_E2E_SIM_TURNS_H_
#define TEST_E2E_SIM_TURNS_H_

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "test/common/worker.h"

#define SMALL 1000
#define LARGE 100000 /* the test sets ONEHOP_MAX_BYTES below */
#define PAIRS 16     /* of communicators, until the first comes first in a group: their order is that of their names */
#define CASE_IDS (2 * PAIRS)
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

/* A rank, and what is made for it. The first rank of a worker has its device current. */
struct rank {
    int rank;
    const struct turn_case *of;
    struct cf_worker *worker;
    CUstream stream;
    void *ones, *to, *other; /* memory of LARGE floats; the latter two are zeros */
};

/* The ids of the job are there; a worker is handed the first of its ranks. */
struct turn_case {
    const char *name; /* NULL ends a table */
    void (*run)(const struct rank *self);
    struct cf_layout layout;
    bool suspends; /* a communicator, so that onehop does not know it any more */
    bool finalizes;
};
extern const struct turn_case turn_abort_cases[], turn_call_cases[], turn_end_cases[];

#define PROCESSES(count_) .layout = {.nranks = (count_), .local = 1}
#define THREADS(count_) .layout = {.nranks = (count_), .local = (count_), .threads = true}
#define ONE_THREAD(count_) .layout = {.nranks = (count_), .local = (count_)}

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
ncclComm_t turn_make(const struct rank *self, int id, int nranks, int rank, bool blocking);

/* One of an id, of which the worker's first ranks are so many. */
void turn_make_group(const struct rank *self, int local, int id, int nranks, ncclComm_t *comm_p);

/* Calls until onehop serves the communicator, also where it is non-blocking. NULL: none. All workers call it. */
void turn_warm_up(const struct rank *self, ncclComm_t comm);

/* Of a communicator, by all ranks: onehop does not know it any more. */
void turn_suspend_and_resume(ncclComm_t comm);

void turn_start(void *(*run)(void *), void *argument, pthread_t *thread_p);

#endif
