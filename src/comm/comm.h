/* SPDX-License-Identifier: MIT */
/*
 * comm.h - communicators, from their creation to their end
 *
 * Does: The application's ncclComm_t stays what NCCL made; onehop keeps a struct oh_comm beside it, found by the
 *    handle. comm/call.h has the calls that programs make on them. src/comm knows NCCL by its table of functions
 *    (comm/nccl.h), and nothing of how calls reach it (src/interpose, src/entry).
 * Threads: communicators are independent. One communicator is used by one thread at a time, which is NCCL's own rule;
 *    functions that any thread may call say so.
 * Owns: the communicators, from oh_creation_begin on.
 */
#ifndef OH_COMM_COMM_H_
#define OH_COMM_COMM_H_

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/nccl.h"
#include "comm/shared/key.h"
#include "onehop/onehop.h"

struct oh_comm;

#define OH_COMM_NAME 64

/* What the program asks of a communicator when it creates it (src/entry/config.c). */
struct oh_comm_config {
    bool blocking;
    bool is_assumed;         /* blocking is NCCL's default: the program's configuration is unknown */
    uint32_t max_ctas;       /* blocks of all its kernels that run at a time: so it occupies at most so many SMs */
    bool zero_cta;           /* CTAPolicy: NCCL is to use no SM */
    bool launch_order;       /* launchOrderImplicit: NCCL orders the calls of all communicators */
    bool invariant;          /* ONEHOP_INVARIANT: onehop executes every allreduce, or none */
    char name[OH_COMM_NAME]; /* commName, cut; empty: none */
};
#define OH_COMM_CONFIG_DEFAULT                                                                                         \
    {                                                                                                                  \
        .blocking = true, .max_ctas = UINT32_MAX                                                                       \
    }

struct oh_comm_identity {
    ncclComm_t nccl;
    struct oh_key key;
    const struct oh_nccl *library; /* the NCCL that made it */
    int nccl_version;              /* of `library` (ncclGetVersion); 0: unknown */
    struct oh_comm_config config;  /* inherited by splits */
    uint64_t child_count;          /* calls of ncclCommSplit and ncclCommGrow on it: equally many on every rank */
    struct oh_shrinks *shrinks;    /* calls of ncclCommShrink on it, a list */
    uint32_t rank;                 /* this and nranks are 0 until NCCL has created the communicator */
    uint32_t nranks;
    /* This to next are for the creation. parent: of a split, or of one that grows out of it; in use. */
    struct oh_comm *parent;
    bool is_grow;
    ncclComm_t *nccl_p;   /* where NCCL writes the handle */
    struct oh_comm *next; /* list of creations */
};

/*
 * Returns the communicator of a handle; NULL: onehop does not know it. The caller uses it up to oh_comm_release:
 * another thread may abort it meanwhile, and it is not freed under this one. Lock-free; any thread.
 */
struct oh_comm *oh_comm_find(ncclComm_t nccl);

/* One more use, by a caller that has one. Any thread. */
void oh_comm_retain(struct oh_comm *comm);
void oh_comm_release(struct oh_comm *comm);

/* A variable for a communicator that the caller uses up to the end of the block; NULL: none. */
static inline void oh_comm_leave_scope(struct oh_comm *const *comm)
{
    if (*comm) {
        oh_comm_release(*comm);
    }
}
#define OH_COMM_SCOPE(name_) struct oh_comm *name_ __attribute__((cleanup(oh_comm_leave_scope))) = NULL

/* Returns whether the handle of a communicator that the caller uses still means it. Any thread. */
bool oh_comm_is_registered(const struct oh_comm *comm);

/* The identity, which lives as long as the communicator: its first member. */
static inline struct oh_comm_identity *oh_comm_id(const struct oh_comm *comm)
{
    return (struct oh_comm_identity *)(uintptr_t)comm;
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

/*
 * Counts this rank in under the key, before NCCL creates the communicator. An error becomes the reason to decline. Sets
 * config, parent, nccl_p and is_grow of the identity. Makes no call of the driver. Returns NULL without memory: this
 * rank is not counted, so all ranks fall back.
 * is_grow: the communicator grows out of `parent`. The new ranks (parent NULL) and those of the parent that have the
 * unique id know the key. The parent's other ranks (key NULL) read it from the parent segment after NCCL's barrier.
 */
struct oh_comm *oh_creation_begin(const struct oh_key *key, const struct oh_comm_config *config, struct oh_comm *parent,
                                  ncclComm_t *nccl_p, bool is_grow);

/*
 * Returns the number of this rank's calls of ncclCommShrink that exclude the same ranks, for the caller to change: the
 * same number on every rank that stays. Those that are excluded make no such call. Returns NULL without memory.
 */
uint64_t *oh_comm_shrinks(struct oh_comm *comm, const int *excluded, int count);

/* Adds a creation at the end of a list. */
void oh_creations_append(struct oh_comm **list, struct oh_comm *comm);

/*
 * After NCCL's creator, a function of `library`, has returned `res`: completes the creations of the list now, or at the
 * end of the group, or when NCCL has finished in the background. Returns `res`.
 */
ncclResult_t oh_creations_end(const struct oh_nccl *library, struct oh_comm *list, ncclResult_t res);

/* --- the initial communicator: NCCL creates it when it opens onehop as a network plugin (attach/initial.c) -------- */

/*
 * A copy of NCCL creates a communicator. Publishes this rank's presence if it is the first. Returns the context, not
 * NULL, that NCCL passes to oh_initial_comm_add_end when the communicator ends. That function returns the communicator
 * if the program ends it by an address from before the hooks: the caller passes it to oh_comm_forget, since NCCL may
 * reuse its handle, and uses it until then.
 */
void *oh_initial_comm_add_creation(const struct oh_nccl *nccl, uint64_t id, int nranks, int rank,
                                   const struct oh_comm_config *config);
struct oh_comm *oh_initial_comm_add_end(const void *context);

/* A creator that passes the hooks begins. */
void oh_initial_comm_creation_begin(void);

/* True until the communicator is registered or given up. Load it (acquire) before a search for a handle. */
extern atomic_bool oh_initial_comm_expected __attribute__((visibility("hidden")));

/*
 * Registers the communicator if an unknown handle, in a call of `nccl`, is its; returns NULL if not, or if that is
 * unknown. The caller uses it, as after oh_comm_find. is_counted: all ranks count the call: then an unknown
 * communicator is given up. Keeps errno.
 */
struct oh_comm *oh_initial_comm_find(const struct oh_nccl *nccl, ncclComm_t comm, bool is_counted);

/* --- state and ops ------------------------------------------------------------------------------------------------ */

/* ncclCommGetAsyncError of `nccl`: *error_p becomes the state for the program. Returns NCCL's result. Any thread. */
ncclResult_t oh_comm_get_async_error(struct oh_comm *comm, const struct oh_nccl *nccl, ncclResult_t *error_p);

/*
 * Remembers an op that NCCL has made on the communicator; scalar and on_device as for oh_op_scaled. Returns
 * ncclSuccess, ncclInvalidArgument, or ncclSystemError (no memory), each logged.
 */
ncclResult_t oh_comm_op_add(struct oh_comm *comm, ncclRedOp_t handle, ncclDataType_t type, const void *scalar,
                            bool on_device);

/* --- the end (call/end.c) ----------------------------------------------------------------------------------------- */

/*
 * Before NCCL finalizes the communicator: has a blocking communicator wait until its kernels have ended, at once or at
 * the end of the group, as NCCL does for its own. oh_comm_destroy does so for each communicator that is not finalized.
 * Returns ncclInternalError if another thread has aborted it meanwhile: NCCL must not see it any more.
 */
ncclResult_t oh_comm_await(struct oh_comm *comm);

/*
 * After NCCL has finalized the communicator with the result `res`. If NCCL has rejected the call, the communicator
 * stays as it is: its calls go on, as those of the other ranks. Returns ncclSuccess, or the failure of a communicator
 * with kernels that wait: the caller returns it to the program.
 */
ncclResult_t oh_comm_finalize(struct oh_comm *comm, ncclResult_t res);

/*
 * Before NCCL destroys the communicator. Returns as oh_comm_finalize does, and lets kernels that wait leave if the
 * program is told. If nobody can be told, they go on waiting. Forgets the communicator.
 * *is_there_p false: another thread has aborted it meanwhile, and NCCL must not see it any more; returns
 * ncclInternalError.
 */
ncclResult_t oh_comm_destroy(struct oh_comm *comm, bool *is_there_p);

/*
 * NCCL has suspended the communicator, on all ranks: calls are NCCL's from now on. Forgets it, which frees its memory.
 * With kernels that run or graphs that can be replayed it is kept until it is destroyed: its failures are still told.
 * Returns what oh_comm_finalize does, or ncclInternalError if another thread has aborted it meanwhile.
 */
ncclResult_t oh_comm_suspend(struct oh_comm *comm);

/* Lets kernels that wait leave without a result, and passes later calls to NCCL. Any thread. */
void oh_comm_abort(struct oh_comm *comm);

/* Returns whether the program has not ended the communicator on this rank, nor called exit(). Any thread. */
bool oh_comm_is_in_use(const struct oh_comm *comm);

/* NCCL has revoked the communicator, and refuses calls itself from now on: an earlier failure counts no more. */
void oh_comm_revoked(struct oh_comm *comm);

/*
 * Forgets the communicator before NCCL frees it: NCCL may return the same handle to another thread at once. Ends the
 * caller's use.
 */
void oh_comm_forget(struct oh_comm *comm);

/* Has the memory of retired communicators freed in the background. Waits 50 ms at most, and mostly far less. */
void oh_comms_reclaim(void);

/* At exit(): publishes that; communicators that are not settled fall back, and leave no file behind. */
void oh_comms_end_process(void);

/* --- statistics --------------------------------------------------------------------------------------------------- */

/* Fill the public descriptions, of a communicator and of all of the process. */
void oh_comm_describe(struct oh_comm *comm, onehop_comm_info_t *info_p);
void oh_comms_describe(onehop_process_info_t *info_p);

/*
 * Reports results that differ from NCCL's and are not reported (ONEHOP_VERIFY), and prints the statistics of every
 * registered communicator, where ONEHOP_STATS and ONEHOP_STATS_FILE say.
 */
void oh_comms_print_stats(void);

/* Counts a call on a communicator that onehop does not know, and that NCCL has accepted. */
void oh_stats_count_unknown(void);

/* True: NCCL has loaded this library as a plugin: there is a communicator. False: the program has made or ended one. */
void oh_stats_expect_calls(bool expects);

#endif
