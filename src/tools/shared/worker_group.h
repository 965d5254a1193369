/* SPDX-License-Identifier: MIT */
/*
 * shared/worker_group.h - processes that measure together, and the watch over them
 *
 * The parent never opens CUDA (a forked child could not use it then): it forks the members, prints and watches. All of
 * them see one shared mapping. Members die with the parent and leave signals to it; when one of them fails,
 * dies or they stop getting on, the parent says why and ends the rest. So nothing hangs and nothing is left behind. A
 * member may have threads, which meet at the same barrier. The parent's functions belong to one thread.
 */
#ifndef OH_TOOLS_SHARED_WORKER_GROUP_H_
#define OH_TOOLS_SHARED_WORKER_GROUP_H_

#include <stdatomic.h>
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
    struct oh_workers_shared *shared;
    int members;                         /* up to OH_MAX_WORKERS */
    int timeout_s;                       /* no barrier passed for so long: all is ended */
    const char *timeout_option;          /* that sets it; NULL: none */
    int (*work)(void *user, int member); /* in the member's process; its exit status */
    void *work_user;
    void (*tick)(void *user); /* in the parent, every few milliseconds and when all have ended well; or NULL */
    void *tick_user;
};

/* A shared mapping of that many bytes, zeroed. Ends the command when there is none. */
void *oh_workers_map(size_t bytes);

/*
 * Starts the members and waits until all have ended with status 0, while signals are held (outfile.h). If one fails, or
 * a signal arrives, ends the rest and the command.
 */
void oh_workers_run(const struct oh_workers *workers);

struct oh_workers_machine {
    struct oh_workers_shared shared;
    int gpus;        /* that CUDA sees */
    char gpu[96];    /* the name of the first */
    char driver[96]; /* its version */
};

/* Asks the machine in a process of its own. Ends the command if it has no driver or no GPU. */
void oh_workers_ask_machine(struct oh_workers_machine *machine_p);

/* In a member: waits until `parties` callers are here. Ends the process when another has failed. */
void oh_workers_barrier(struct oh_workers_shared *shared, int parties);

/* In a member: leaves the reason in the shared memory, if it is the first, and ends the process. */
_Noreturn void oh_workers_fail(struct oh_workers_shared *shared, int rank, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
