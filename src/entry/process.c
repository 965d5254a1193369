/* SPDX-License-Identifier: MIT */
/*
 * process.c - the life of the process
 *
 * Does: Starts onehop once, notes a fork, and at exit tells the other ranks and writes the statistics.
 * Threads: any.
 * Owns: nothing.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "entry/entry.h"
#include "util/env.h"
#include "util/scope.h"

static atomic_bool forked;
static bool disabled;
static _Atomic pid_t owner; /* 0: not started */

static void after_fork_in_child(void)
{
    atomic_store_explicit(&forked, true, memory_order_relaxed);
}

bool oh_entry_is_forked(void)
{
    return atomic_load_explicit(&forked, memory_order_relaxed);
}

static void start_once(void)
{
    /* /etc/ld.so.preload reaches set-user-ID programs, too. */
    disabled = oh_env_flag(OH_ENV_DISABLE, false) || getauxval(AT_SECURE);
    pthread_atfork(NULL, NULL, after_fork_in_child);
    atomic_store_explicit(&owner, getpid(), memory_order_relaxed);
}

bool oh_entry_is_active(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (oh_nccl_depth > 0 || oh_entry_is_forked()) {
        return false;
    }
    pthread_once(&once, start_once);
    return !disabled;
}

/* A child of clone or _Fork is no fork for pthread_atfork, and may end by exit, too. */
static bool is_child(void)
{
    const pid_t started = atomic_load_explicit(&owner, memory_order_relaxed);
    return oh_entry_is_forked() || (started != 0 && started != getpid());
}

static void end_hooks(void)
{
    onehop_process_info_t info;
    oh_comms_describe(&info);
    if (info.communicators + info.ended_communicators + info.unknown_calls == 0) {
        oh_hooks_end();
    }
}

/* Destructors of other objects may still make calls, and end communicators. */
static void print_last(void)
{
    OH_BOUND_LOCKS();
    if (!is_child()) {
        oh_comms_print_stats();
    }
}

__attribute__((constructor)) OH_EARLY static void set_last_action(void)
{
    oh_hooks_last_action = print_last;
}

__attribute__((destructor)) static void leave_at_exit(void)
{
    OH_BOUND_LOCKS();
    if (!is_child()) {
        end_hooks();
        if (!oh_hooks_acts_last()) {
            print_last();
        }
        oh_comms_end_process();
    }
}
