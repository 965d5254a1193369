/* SPDX-License-Identifier: MIT */
/* sim_failure.h - parts of the scenarios in which a rank fails, ends or comes late, and the others wait for it */
#ifndef TEST_E2E_SIM_FAILURE_H_
#define TEST_E2E_SIM_FAILURE_H_

#include "test/e2e/sim_app.h"

#define POLL_MICROSECONDS 2000
#define STUCK_SECONDS 0.3
#define PATIENCE_SECONDS 30 /* everything that is waited for here comes within two, on an idle machine */

bool failure_is_scenario(const char *name);
bool failure_is_victim(const struct app *app);
void failure_sleep(double seconds);

/* New inputs, and a call of all members, replayed from a graph if there is one. */
void failure_start(struct app *app, const struct cf_graph *graph);

/* One call of the first member; with a result that it must have. */
ncclResult_t failure_call_again(struct app *app);
void failure_call_must(struct app *app, ncclResult_t expected);

/* Prints "rank R: WHAT N ms". Tests have limits for it. */
void failure_tell(const struct app *app, const char *what, double seconds);

/* Waits for the asynchronous error; for idle streams ("left after"); for a line on standard error, of any rank. */
void failure_await_error(struct app *app, ncclComm_t comm, ncclResult_t expected);
void failure_await_gpus(struct app *app);
void failure_await_log(struct app *app, const char *text);

/* For a while: no stream completes; the communicator gets no error. */
void failure_check_waiting(struct app *app);
void failure_check_sound(struct app *app, ncclComm_t comm);

/* The ranks tell each other how far they are; waits for so many, or for all but the caller's. */
void failure_say(const struct app *app, _Atomic uint32_t *counter);
void failure_await_count(struct app *app, _Atomic uint32_t *counter, int ranks);
void failure_await_others(struct app *app, _Atomic uint32_t *counter);

void failure_abort_all(struct app *app);

/* The survivors (without: a rank), or all (-1), go on with a new communicator. */
void failure_go_on(struct app *app, int without);

/* How the victim ends in scenarios kill-*. */
void failure_die(const struct app *app) __attribute__((noreturn));

#endif
