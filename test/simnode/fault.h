/* SPDX-License-Identifier: MIT */
/*
 * fault.h - what tests ask of every simulated library: calls that fail, and records of calls, secrets and leftovers
 *
 * By the variables SIMNODE_FAIL, _KILL, _STOP, _TRACE, _CALLER and _FROM, _SECRETS, and _REPORT (README.md). Each
 * library counts calls for itself.
 */
#ifndef TEST_SIMNODE_FAULT_H_
#define TEST_SIMNODE_FAULT_H_

#include <stdbool.h>
#include <stdio.h>

/* Notes one call of an exported function, from the code at `caller`; true: it is to fail. Thread-safe. */
bool simnode_call(const char *function, const void *caller);

/*
 * Records what a simulated library has handed out that nobody else shall learn: unique ids, IPC handles.
 * SIMNODE_SECRETS=path appends "KIND TEXT", a line for each. Thread-safe.
 */
void simnode_tell(const char *kind, const char *text);

/* Opens the file of SIMNODE_REPORT for lines "name value"; NULL: there is none. */
FILE *simnode_report(void);

#endif
