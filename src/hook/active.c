/* SPDX-License-Identifier: MIT */
/*
 * active.c - whether onehop is active in this call, and on which communicator
 *
 * Does: Starts onehop once, notes a fork, finds the communicator of a handle and the NCCL that made it.
 * Threads: any.
 * Owns: oh_inside, thread-local.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/auxv.h>

#include "comm/attach/attach.h"
#include "hook/entry.h"
#include "util/env.h"
#include "util/scope.h"
#include "util/log.h"

__thread int oh_inside;
static atomic_bool forked;

static void after_fork_in_child(void)
{
    atomic_store_explicit(&forked, true, memory_order_relaxed);
}

bool oh_entry_is_forked(void)
{
    return atomic_load_explicit(&forked, memory_order_relaxed);
}

static bool disabled;

static void start_once(void)
{
    /* /etc/ld.so.preload reaches set-user-ID programs, too. */
    disabled = oh_env_flag(OH_ENV_DISABLE, false) || getauxval(AT_SECURE);
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

bool oh_entry_is_active(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (oh_inside > 0 || oh_entry_is_forked()) {
        return false;
    }
    pthread_once(&once, start_once);
    return !disabled;
}

void oh_entry_forget(struct oh_comm *comm)
{
    OH_KEEP_ERRNO();
    oh_initial_comm_forget(comm);
    oh_group_forget(comm);
    oh_comm_retire(comm);
}

struct oh_comm *oh_entry_find_comm(ncclComm_t comm, const void *caller, bool counts)
{
    if (oh_inside > 0 || oh_entry_is_forked()) {
        return NULL;
    }
    /* acquire, before the search: pairs with the release store in adopt(). Else it could miss a registration. */
    bool awaited = atomic_load_explicit(&oh_initial_comm_expected, memory_order_acquire);
    struct oh_comm *ours = oh_comm_find(comm);
    if (!ours && awaited && oh_entry_is_active()) {
        oh_inside++;
        ours = oh_initial_comm_find(comm, caller, counts);
        oh_inside--;
    }
    return ours;
}

ncclResult_t oh_entry_is_missing(const char *name)
{
    OH_WARN("this NCCL has no %s", name);
    return ncclInvalidUsage;
}

ncclResult_t oh_entry_real_of(const struct oh_comm *comm, const struct oh_real **real_p, const void *caller)
{
    if (comm) {
        *real_p = oh_comm_id(comm)->library;
        return ncclSuccess;
    }
    return oh_real_get(real_p, caller);
}
