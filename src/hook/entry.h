/* SPDX-License-Identifier: MIT */
/*
 * entry.h - what the exported nccl* functions share, and their state
 *
 * Does: Each entry point gets the real library, does onehop's part and forwards. Before the first communicator is
 *    created, in a forked child, and with ONEHOP_DISABLE=1 it only forwards. errno is as NCCL left it, or as it was.
 * Threads: any, by NCCL's own rules. Each has its own group, as in NCCL.
 * Owns: the queued calls and creations of groups; the creation of the initial communicator, until its handle is known.
 */
#ifndef OH_HOOK_ENTRY_H_
#define OH_HOOK_ENTRY_H_

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/attach/attach.h"
#include "hook/real.h"

#define EXPORT __attribute__((visibility("default")))

/* Depth of this thread in calls that onehop makes to NCCL: NCCL's calls to public names then go straight through. */
extern __thread int oh_inside __attribute__((visibility("hidden")));

/* Calls the real function. */
#define REAL(real_, call_)                                                                                             \
    ({                                                                                                                 \
        oh_inside++;                                                                                                   \
        ncclResult_t result_ = (real_)->call_;                                                                         \
        oh_inside--;                                                                                                   \
        result_;                                                                                                       \
    })

/* Gets the library of a communicator; for NULL, the one that the caller means. An error ends the entry point. */
#define GET_REAL_OF(comm_, real_)                                                                                      \
    const struct oh_real *real_;                                                                                       \
    OH_TRY(oh_entry_real_of((comm_), &real_, __builtin_return_address(0)))
#define GET_REAL(real_) GET_REAL_OF(NULL, real_)

/* Returns an error from the entry point if this NCCL has no such function. */
#define NEED_REAL(real_, name_)                                                                                        \
    do {                                                                                                               \
        if (!(real_)->name_) {                                                                                         \
            return oh_entry_is_missing("nccl" #name_);                                                                 \
        }                                                                                                              \
    } while (0)

#define active_comm(comm_) oh_entry_find_comm((comm_), __builtin_return_address(0), false)

/* Warns that this NCCL has no such function. Returns ncclInvalidUsage. */
ncclResult_t oh_entry_is_missing(const char *name);

/* Returns whether onehop does anything in this call. The first one starts onehop. */
bool oh_entry_is_active(void);

/* Returns whether this process was forked from one that uses onehop. */
bool oh_entry_is_forked(void);

/* Forgets the communicator before NCCL frees it: NCCL may return the same pointer to another thread at once. */
void oh_entry_forget(struct oh_comm *comm);

/* Finds the communicator of a handle; NULL: unknown. caller: return address. counts: for an allreduce. */
struct oh_comm *oh_entry_find_comm(ncclComm_t comm, const void *caller, bool counts);

/* For GET_REAL_OF. */
ncclResult_t oh_entry_real_of(const struct oh_comm *comm, const struct oh_real **real_p, const void *caller);

/* NCCL has rejected the call: it has not happened, and the next call gets its number. */
static inline bool oh_entry_is_rejected(ncclResult_t res)
{
    return res == ncclInvalidArgument || res == ncclInvalidUsage;
}

/*
 * comm_config.c. Reads the fields of a configuration that its `size` covers. config NULL: what is inherited; that NULL:
 * NCCL's defaults. NCCL_COMM_BLOCKING, NCCL_MAX_CTAS, NCCL_MAX_NCHANNELS and NCCL_CTA_POLICY override both, as in NCCL
 * (2.30.7, src/init.cc:1725 and 2025-2033). A value that NCCL ignores or rejects counts as none.
 */
struct oh_comm_config oh_config_read(const ncclConfig_t *config, const struct oh_comm_config *inherited);

/*
 * comm_entry.c. Ends creations after NCCL has: with ncclSuccess, registers them by what NCCL says of this rank; with
 * ncclInProgress, registers them, or waits for their handles (oh_creations_poll); else cancels them. Returns their
 * number.
 */
unsigned oh_creations_finish(const struct oh_real *real, struct oh_comm *list, ncclResult_t res);

/* NCCL has returned `state` for a communicator on which oh_comm_is_creating: completes it and its children. */
void oh_creations_poll(struct oh_comm *comm, ncclResult_t state);

/* --- group.c ------------------------------------------------------------------------------------------------------ */

/* Returns the depth of this thread's public groups. */
int oh_group_depth(void);

/* ncclGroupStart has succeeded. */
void oh_group_enter(void);

/*
 * Queues a call. Returns ncclSuccess; ncclInvalidUsage (its stream is captured, or not, unlike those of other calls of
 * the communicator), ncclSystemError (out of memory) or ncclUnhandledCudaError, all logged.
 */
ncclResult_t oh_group_add_call(const struct oh_call *call);

/* Who serves a call of a group. */
enum oh_group_call {
    OH_CALL_SERVED, /* onehop */
    OH_CALL_DEFERRED,
    OH_CALL_NCCL,
    OH_CALL_NCCL_ALLREDUCE
};

/* Notes a stream with a call of a served communicator. Returns as oh_group_add_call does. */
ncclResult_t oh_group_add_stream(struct oh_comm *comm, CUstream stream, enum oh_group_call kind);

/* In a group, notes a call of the communicator that NCCL serves, and that enqueues something. */
void oh_group_note_forwarded(const struct oh_comm *comm);

/*
 * In a group, a call has failed before NCCL got it: nothing of the group will run, and its end returns the first such
 * error. Returns `error`. Outside of groups, and for ncclSuccess, does nothing else.
 */
ncclResult_t oh_group_fail(const struct oh_comm *comm, ncclResult_t error);

/* Queues a list of creations, which the group then owns. */
void oh_group_add_creations(struct oh_comm *list);

/*
 * Queues an allreduce of a communicator that is not settled. Who serves it is decided at the end of the outermost
 * group, when all its communicators can be waited for together: one thread may drive their ranks.
 */
struct oh_deferred {
    struct oh_call call;
    ncclRedOp_t op;
    bool op_ends; /* the program has destroyed it since */
};
ncclResult_t oh_group_defer(const struct oh_call *call, ncclRedOp_t op); /* returns as oh_group_add_call does */

/* Returns the deferred calls, in the order made, to the caller, who frees them. */
struct oh_deferred *oh_group_take_deferred(size_t *count_p);

/* The program destroys an op. Returns true if a deferred call needs it: who takes the calls then destroys it. */
bool oh_group_keeps_op(const struct oh_comm *comm, ncclRedOp_t op);

/*
 * Around the real ncclGroupEnd, or ncclGroupSimulateEnd (`simulate`), which returned `res`: onehop's part of the
 * outermost group, unless NCCL fails. The second returns the first failure. Then every communicator with calls in the
 * group has failed, unless the program caused the failure: other ranks may have launched the group.
 */
void oh_group_begin_end(bool simulate);
ncclResult_t oh_group_end(const struct oh_real *real, ncclResult_t res, bool simulate);

/* Drops the queued calls of a communicator that the program destroys or aborts inside a group. */
void oh_group_forget(const struct oh_comm *comm);

/* --- initial_comm.c ----------------------------------------------------------------------------------------------- */

/*
 * The copy of NCCL at the address `caller` creates a communicator. Publishes this rank's presence if it is the first.
 * Returns the context, not NULL, that NCCL passes to oh_initial_comm_add_end when the communicator ends.
 */
void *oh_initial_comm_add_creation(uint64_t id, int nranks, int rank, const void *caller);
void oh_initial_comm_add_end(const void *context);

/* A creator that passes the hooks begins, or has succeeded. */
void oh_initial_comm_creation_begin(void);
void oh_initial_comm_creation_end(const struct oh_real *real);

/* True until the communicator is registered or given up. Load it (acquire) before a search for a handle. */
extern atomic_bool oh_initial_comm_expected __attribute__((visibility("hidden")));

/*
 * Registers the communicator if an unknown handle, in a call from the address `caller`, is its; returns NULL if not, or
 * if that is unknown. `counts`: for an allreduce, which all ranks count: then an unknown one is given up. Keeps errno.
 */
struct oh_comm *oh_initial_comm_find(ncclComm_t comm, const void *caller, bool counts);

/* A communicator ends, this one or another. */
void oh_initial_comm_forget(const struct oh_comm *comm);

#endif
