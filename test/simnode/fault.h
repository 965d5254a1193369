/* SPDX-License-Identifier: MIT */
/*
 * fault.h - what tests ask of every simulated library: settings, calls that fail, records of calls, secrets, leftovers
 *
 * By variables of the environment: README.md has those of calls that fail or are traced, whose calls each simulated
 * library counts for itself.
 */
#ifndef TEST_SIMNODE_FAULT_H_
#define TEST_SIMNODE_FAULT_H_

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The number that a variable of the environment has; 0: it is not set. */
uint32_t simnode_setting(const char *variable);

/* Notes one call of an exported function, from the code at `caller`; true: it is to fail. Thread-safe. */
bool simnode_call(const char *function, const void *caller);

/*
 * Records what a simulated library has handed out that nobody else shall learn: unique ids, IPC handles.
 * SIMNODE_SECRETS=path appends "KIND TEXT", a line for each. Thread-safe.
 */
void simnode_tell(const char *kind, const char *text);

/* Opens the file of this process for lines "name value": SIMNODE_REPORT=prefix, <prefix>.<pid>; NULL: there is none. */
FILE *simnode_report_open(void);

#endif
