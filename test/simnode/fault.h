/* SPDX-License-Identifier: MIT */
/*
 * fault.h - calls that fail on request, and a record of the calls made
 *
 * SIMNODE_FAIL=symbol[:n][,symbol[:n]...] makes the n-th call of an exported function fail (every call without n);
 * SIMNODE_KILL, written likewise, ends the process there by SIGKILL.
 * SIMNODE_TRACE=path appends the name of each function called, one a line. SIMNODE_CALLER=name: only calls count that
 * come from a loaded object whose file has this name. Each stand-in library counts for itself.
 */
#ifndef SIMNODE_FAULT_H_
#define SIMNODE_FAULT_H_

#include <stdbool.h>

/* Notes one call of an exported function, from the code at `caller`; true: it is to fail. Thread-safe. */
bool simnode_call(const char *function, const void *caller);

#endif
