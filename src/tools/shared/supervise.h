/* SPDX-License-Identifier: MIT */
/*
 * supervise.h - runs a program as a child that nobody can tell from this process
 *
 * The child has this process's stdin, terminal and process group. Signals that are sent to this process go on to it;
 * those of the terminal reach it by themselves. It dies with this process. One program at a time.
 */
#ifndef OH_TOOLS_SHARED_SUPERVISE_H_
#define OH_TOOLS_SHARED_SUPERVISE_H_

#define OH_SUPERVISE_NOT_STARTED (-1)

/*
 * Runs the program to its end. Meanwhile calls `look` with `user` twice a second, unless it is NULL. Returns a wait
 * status, or OH_SUPERVISE_NOT_STARTED (said on stderr; oh_supervise_end then gives the exit status).
 */
int oh_supervise(char **argv, void (*look)(void *user), void *user);

/* The exit status to end with; does not return when the program was ended by a signal: so ends this process. */
int oh_supervise_end(int status);

#endif
