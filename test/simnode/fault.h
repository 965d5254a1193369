/* SPDX-License-Identifier: MIT */
/*
 * fault.h - calls that fail on request, and records of the calls made and of secrets
 *
 * SIMNODE_FAIL=symbol[:n][,symbol[:n]...] makes the n-th call of an exported function fail (every call without n).
 * Written likewise: SIMNODE_KILL ends the process there by SIGKILL, SIMNODE_STOP stops it by SIGSTOP, SIMNODE_QUIT ends
 * it by _exit(0), SIMNODE_EXIT by exit(0), as a signal's handler does that interrupts the caller there.
 * SIMNODE_TRACE=path appends the name of each function called, one a line. SIMNODE_CALLER=name: only calls count that
 * come from a loaded object whose file has this name. SIMNODE_FROM=symbol: only calls count that come after the first
 * call of that function, by any caller. Each simulated library counts for itself.
 */
#ifndef TEST_SIMNODE_FAULT_H_
#define TEST_SIMNODE_FAULT_H_

#include <stdbool.h>

/* Notes one call of an exported function, from the code at `caller`; true: it is to fail. Thread-safe. */
bool simnode_call(const char *function, const void *caller);

/*
 * Records what a simulated library has handed out that nobody else shall learn: unique ids, IPC handles.
 * SIMNODE_SECRETS=path appends "KIND TEXT", a line for each. Thread-safe.
 */
void simnode_tell(const char *kind, const char *text);

#endif
