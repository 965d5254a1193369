/* SPDX-License-Identifier: MIT */
/*
 * shared/worker_group.h - processes that measure together, and the watch over them
 *
 * The parent never opens CUDA (a forked child could not use it then): it forks the members, prints and watches. All of
 * them see one shared in a shared mapping. Members die with the parent and leave signals to it; when one of them fails,
 * dies or they stop getting on, the parent says why and ends the rest. So nothing hangs and nothing is left behind. A
 * member may have threads, which meet at the same barrier. The parent's functions belong to one thread.
 */
#ifndef OH_TOOLS_SHARED_WORKER_GROUP_H_
#define OH_TOOLS_SHARED_WORKER_GROUP_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define OH_MAX_WORKERS 64

/* Begins the shared mapping; what the members work on lies behind it. */
struct oh_workers_shared {
    /* Barrier; `generation` also tells the parent that the members get on. */
    atomic_uint arrived;
    atomic_uint generation;

    atomic_int failed; /* 1 + the rank that failed first */
    char failure[400]; /* its reason: complete once failure_written is set */
    atomic_bool failure_written;
};

struct oh_workers {
    const char *name; /* of the subcommand, in front of every sentence */
    struct oh_workers_shared *shared;
    int members;                         /* up to OH_MAX_WORKERS */
    int timeout_s;                       /* no barrier passed for so long: all is ended */
    int (*work)(void *user, int member); /* in the member's process; its exit status */
    void *work_user;
    /* In the parent, every few milliseconds, or NULL; false: end all (it has said why). final: all have ended well. */
    bool (*tick)(void *user, bool final);
    void *tick_user;
};

/* A shared mapping of that many bytes, zeroed. NULL, with the reason on stderr, when there is none. */
void *oh_workers_map(const char *name, size_t bytes);

/*
 * Calls `run` while signals that end a process wait until oh_workers_run or oh_workers_signal takes them, so that files
 * can be removed first. Returns its exit status, or ends the process by the signal that has arrived.
 */
int oh_workers_guard(int (*run)(void *user), void *user);

/* The number of a signal that waits or was taken by oh_workers_run; 0: none. */
int oh_workers_signal(void);

/*
 * Starts the members and waits until all have ended. Returns true when all ended with status 0; else false, with the
 * reason on stderr, and none is left. Signals must be held.
 */
bool oh_workers_run(const struct oh_workers *workers);

struct oh_workers_machine {
    struct oh_workers_shared shared;
    int gpus;        /* that CUDA sees */
    char gpu[96];    /* the name of the first */
    char driver[96]; /* its version */
};

/* Asks the machine in a process of its own. Returns false, with the reason on stderr: no driver, no GPU. */
bool oh_workers_ask_machine(const char *name, struct oh_workers_machine *machine_p);

/* In a member: waits until `parties` callers are here. Ends the process when another has failed. */
void oh_workers_barrier(struct oh_workers_shared *shared, int parties);

/* In a worker: leaves the reason in the shared memory, if it is the first, and ends the process. */
_Noreturn void oh_workers_fail(struct oh_workers_shared *shared, int rank, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
