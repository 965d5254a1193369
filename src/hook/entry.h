/* SPDX-License-Identifier: MIT */
/*
 * entry.h - what the exported nccl* functions share
 *
 * Does: Each entry point gets the real library, does onehop's part and forwards. Before the first communicator is
 *    created, in a forked child, and with ONEHOP_DISABLE=1 it only forwards. errno is as NCCL left it, or as it was.
 * Threads: any, by NCCL's own rules.
 * Owns: nothing.
 */
#ifndef OH_HOOK_ENTRY_H_
#define OH_HOOK_ENTRY_H_

#include <nccl.h>
#include <stdbool.h>

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

#endif
