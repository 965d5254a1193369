/* SPDX-License-Identifier: MIT */
/*
 * entry.h - what the exported nccl* functions share
 *
 * Does: Each entry point looks up the real library, does onehop's part, and forwards. Nothing is done before the first
 *    communicator is created; in a process forked from one that uses onehop, and with ONEHOP_DISABLE=1, everything is
 *    forwarded. errno is as NCCL left it, or as it was.
 * Threads: any, by NCCL's own rules.
 * Owns: nothing.
 */
#ifndef OH_HOOK_ENTRY_H_
#define OH_HOOK_ENTRY_H_

#include <nccl.h>
#include <stdbool.h>

#include "comm/comm.h"
#include "hook/real.h"

#define EXPORT __attribute__((visibility("default")))

/* nccl.h gives the first two without a prototype, and the others only in newer versions. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclGroupSimulateEnd(struct ncclSimInfo_v22200 *info);
ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int rank, int count, ncclUniqueId *ids,
                                      ncclConfig_t *config);
ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                          ncclConfig_t *config);
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *newcomm, ncclConfig_t *config,
                            int flags);

/* How deep this thread is in NCCL on onehop's behalf: what NCCL calls by its public names then passes straight through
 * (doc/design.md has which). */
extern __thread int oh_inside __attribute__((visibility("hidden")));

/* Calls the real function with NCCL's own calls to public names let through. */
#define REAL(real_, call_)                                                                                             \
    ({                                                                                                                 \
        oh_inside++;                                                                                                   \
        ncclResult_t result_ = (real_)->call_;                                                                         \
        oh_inside--;                                                                                                   \
        result_;                                                                                                       \
    })

/* Gets the real library or returns its error from the entry point. */
#define GET_REAL(real_)                                                                                                \
    const struct oh_real *real_;                                                                                       \
    do {                                                                                                               \
        ncclResult_t got_ = oh_real_get(&real_, __builtin_return_address(0));                                          \
        if (got_ != ncclSuccess) {                                                                                     \
            return got_;                                                                                               \
        }                                                                                                              \
    } while (0)

#define active_comm(comm_) oh_entry_find_comm((comm_), __builtin_return_address(0), false)

#define GET_REAL_OF(comm_, real_)                                                                                      \
    const struct oh_real *real_;                                                                                       \
    do {                                                                                                               \
        ncclResult_t got_ = oh_entry_real_of((comm_), &real_, __builtin_return_address(0));                            \
        if (got_ != ncclSuccess) {                                                                                     \
            return got_;                                                                                               \
        }                                                                                                              \
    } while (0)

/* Returns whether onehop does anything for this call. The first creation of a communicator starts onehop. */
bool oh_entry_is_active(void);

/* Returns whether this process was forked from one that uses onehop. */
bool oh_entry_is_forked(void);

/* Forgets the communicator before NCCL frees it: NCCL may give the same pointer to another thread at once. */
void oh_entry_forget(struct oh_comm *comm);

/* The communicator of a handle; NULL: onehop does not know it. caller: return address. counts: for an allreduce. */
struct oh_comm *oh_entry_find_comm(ncclComm_t comm, const void *caller, bool counts);

/* The NCCL that made a communicator, or the one that the caller means for one that onehop does not know. */
ncclResult_t oh_entry_real_of(const struct oh_comm *comm, const struct oh_real **real_p, const void *caller);

/* Decides and makes the first calls that the outermost group has deferred. What fails is the group's failure. */
void oh_entry_route_deferred(void);

/* NCCL has taken the call for a mistake: it has not happened, and its number is that of the next. */
static inline bool oh_entry_is_rejected(ncclResult_t res)
{
    return res == ncclInvalidArgument || res == ncclInvalidUsage;
}

/* A call on its way to NCCL. */
struct oh_forward {
    const struct oh_real *real;
    struct oh_comm *comm; /* NULL: onehop serves none of its calls, or NCCL puts nothing on the stream */
    struct oh_nccl_call nccl_call;
};

/*
 * Around a call of the real function, on this thread: its communicator's calls on other streams keep their order, in a
 * group too. `works`: NCCL puts something on the stream. The second is called if and only if the first has returned
 * ncclSuccess, and returns the result of the call. caller: the return address.
 */
ncclResult_t oh_forward_begin(ncclComm_t comm, cudaStream_t stream, bool works, const void *caller,
                              struct oh_forward *forward_p);
ncclResult_t oh_forward_end(struct oh_forward *forward, ncclResult_t result);

#endif
