/* SPDX-License-Identifier: MIT */
/*
 * fault.h - calls that fail on request, and a record of the calls made
 *
 * SIMNODE_FAIL=symbol[:n][,symbol[:n]...] makes the n-th call of an exported function fail (every call without n);
 * SIMNODE_KILL=symbol:n kills the process at that call;
 * SIMNODE_TRACE=path appends the name of each function called, one a line. Each stand-in library counts for itself.
 */
#ifndef SIMNODE_FAULT_H_
#define SIMNODE_FAULT_H_

#include <stdbool.h>

/* Notes one call of an exported function; true: it is to fail. Thread-safe; reads the environment once. */
bool simnode_call(const char *function);

#endif
