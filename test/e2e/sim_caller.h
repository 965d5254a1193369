/* SPDX-License-Identifier: MIT */
/*
 * sim_caller.h - a library that calls NCCL, as an extension of an interpreter does; for launchers of every kind
 */
#ifndef TEST_E2E_SIM_CALLER_H_
#define TEST_E2E_SIM_CALLER_H_

/*
 * One rank of a job: makes a communicator with the others (the id goes by a file, which rank 0 makes), sums a small
 * buffer `calls` times, checks it, ends the communicator. GPU: the local one of that number, counted modulo those that
 * are visible. Returns 0, or 1 with a line "FAIL ..." on stdout.
 */
int caller_run(int rank, int nranks, const char *id_file, int calls);

#endif
