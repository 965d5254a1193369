/* SPDX-License-Identifier: MIT */
/* sim_peer_failure.h - parts of the scenarios about what must not hang (sim_peer_failure.c, sim_revoke.c) */
#ifndef TEST_E2E_SIM_PEER_FAILURE_H_
#define TEST_E2E_SIM_PEER_FAILURE_H_

#include "sim_app.h"

#include <pthread.h>

#define POLL_MICROSECONDS 2000
#define STUCK_MICROSECONDS 300000
#define PATIENCE_SECONDS 30 /* everything that is waited for here comes within two, on an idle machine */

double failure_now(void); /* seconds, of a clock that all processes share */
bool failure_is_scenario(const struct app_worker *worker, const char *name);
bool failure_is_victim(const struct app_worker *worker);
void failure_only_one_member(const struct app_worker *worker);

/* A call of all ranks, with its result. */
void failure_run_plain(struct app_worker *worker, struct app_item *items);

/* A call of all members; replayed from a graph if there is one. */
void failure_start(struct app_worker *worker, struct app_item *items, const CUgraphExec *exec);

/* One of the first member. */
ncclResult_t failure_call_again(struct app_worker *worker, const struct app_item *items);

/* Prints "rank R: WHAT N ms". Tests have limits for it. */
void failure_tell(const struct app_worker *worker, const char *what, double seconds);

/* Waits for the asynchronous error; for idle streams ("left after"); for a line on standard error, of any rank. */
void failure_await_error(const struct app_worker *worker, ncclComm_t comm, ncclResult_t expected);
void failure_await_gpus(const struct app_worker *worker);
void failure_await_log(const struct app_worker *worker, const char *text);

/* For a while: no stream completes; the communicator gets no error. */
void failure_check_waiting(const struct app_worker *worker);
void failure_check_sound(ncclComm_t comm);

/* The ranks tell each other how far they are; waits for so many, or for all but the caller's. */
void failure_say(const struct app_worker *worker, _Atomic uint32_t *counter);
void failure_await_count(_Atomic uint32_t *counter, int ranks);
void failure_await_others(const struct app_worker *worker, _Atomic uint32_t *counter);

void failure_abort_all(struct app_worker *worker);

/* The survivors, or all, go on with a new communicator. */
void failure_go_on(struct app_worker *worker, struct app_item *items, int without);

/* How the victim ends in scenarios kill-*. */
void failure_die(const struct app_worker *worker) __attribute__((noreturn));

/* A thread that makes a call, or a replay, and waits for its end; in scenarios *-idle it makes none. */
struct failure_user {
    struct app_worker *worker;
    struct app_item *items;
    const CUgraphExec *exec; /* NULL: eager */
    pthread_t thread;
    atomic_bool begun;
    double free; /* when its stream was empty */
};
void failure_begin_use(struct failure_user *user);
void failure_end_use(struct failure_user *user, double aborted); /* tells how long after that its stream was empty */

#endif
