/* SPDX-License-Identifier: MIT */
/*
 * fault.h - what tests ask of every simulated library: settings, calls that fail, records of calls, secrets, leftovers
 *
 * README.md has the variables of the environment. Each library counts calls for itself.
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

/* Records what nobody else shall learn of what a library has handed out: SIMNODE_SECRETS. Thread-safe. */
void simnode_tell(const char *kind, const char *text);

/* Opens the file for lines "name value" of this process: SIMNODE_REPORT. NULL: there is none. */
FILE *simnode_report_open(void);

#endif
