/* SPDX-License-Identifier: MIT */
/*
 * sim_caller.h - a library that calls NCCL, as an extension of an interpreter does; for launchers of every kind
 */
#ifndef TEST_E2E_SIM_CALLER_H_
#define TEST_E2E_SIM_CALLER_H_

/*
 * Makes a communicator with the other ranks (the id goes by a file, which rank 0 makes), on the GPU of the rank's
 * number, counted modulo those that are visible. One communicator a process. These return 0, or 1 with a line
 * "FAIL ..." on stdout.
 */
int caller_begin(int rank, int nranks, const char *id_file);

/* Sums a small buffer so many times, and checks it. */
int caller_call(int calls);

/* Ends the communicator. */
int caller_end(void);

/* All three. */
int caller_run(int rank, int nranks, const char *id_file, int calls);

/* Has the library's destructor, which runs behind onehop's at exit(), call the function. */
void caller_keep(void (*function)(void));

#endif
