/* SPDX-License-Identifier: MIT */
/*
 * secret.h - a record of what the simulated libraries have handed out that nobody else shall learn: unique ids, IPC
 * handles
 *
 * SIMNODE_SECRETS=path appends "KIND TEXT", a line for each.
 */
#ifndef TEST_SIMNODE_SECRET_H_
#define TEST_SIMNODE_SECRET_H_

/* Thread-safe. */
void simnode_tell(const char *kind, const char *text);

#endif
