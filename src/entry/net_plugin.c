/* SPDX-License-Identifier: MIT */
/*
 * net_plugin.c - the way in by NCCL_NET_PLUGIN=onehop
 *
 * Does: NCCL opens this object as libnccl-net-onehop.so while it creates the process's first communicator. onehop puts
 *    the hooks in place and reports no device, so NCCL uses its next network, without a warning. It is opened as a
 *    profiler plugin, too, unless NCCL has another (since 2.28.3, src/plugin/profiler.cc of 2.28.9), and so learns of
 *    each communicator (initial.c). The constructor puts the hooks in place already: with NCCL_NET=Socket NCCL
 *    calls no init, and a later NCCL may know none of the versions below. NCCL takes the newest version that it knows:
 *    6 in 2.19 to 2.32, 11 since 2.28.3, 12 since 2.30.3. 2.28.9 calls NULL when a plugin of version 7 to 10 does not
 *    initialize (src/plugin/net.cc:226). So these are left out, init succeeds, and finalize is there for the versions
 *    that call it.
 * Threads: NCCL holds a mutex of its own, so no communicator may be created in here.
 * Owns: nothing. The object is never unloaded (-z nodelete).
 */
#include <nccl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "comm/comm.h"
#include "entry/entry.h"
#include "interpose/loader.h"
#include "util/env.h"
#include "util/log.h"

#define NAME "onehop"

/* NCCL calls no unused function of a plugin without devices. */
struct net_plugin {
    const char *name;
    void (*init)(void);
    ncclResult_t (*devices)(int *count);
    ncclResult_t (*unused[17])(void);
    ncclResult_t (*finalize)(void *context); /* since version 11, at this place */
    ncclResult_t (*more[4])(void);
};

/* Its parameters depend on the version. */
static ncclResult_t net_init(void)
{
    oh_hooks_update(OH_HOOKS_WAIT);
    return ncclSuccess;
}

static ncclResult_t net_devices(int *count)
{
    *count = 0;
    return ncclSuccess;
}

static ncclResult_t net_finalize(void *context)
{
    (void)context;
    return ncclSuccess;
}

static ncclResult_t net_unused(void)
{
    return ncclInternalError;
}

extern const struct net_plugin ncclNetPlugin_v6, ncclNetPlugin_v11, ncclNetPlugin_v12;

#define PLUGIN                                                                                                         \
    {                                                                                                                  \
        .name = NAME, .init = (void (*)(void))net_init, .devices = net_devices, .unused = {[0 ... 16] = net_unused},   \
        .finalize = net_finalize, .more = {[0 ... 3] = net_unused},                                                    \
    }
OH_EXPORT const struct net_plugin ncclNetPlugin_v6 = PLUGIN;
OH_EXPORT const struct net_plugin ncclNetPlugin_v11 = PLUGIN;
OH_EXPORT const struct net_plugin ncclNetPlugin_v12 = PLUGIN;

/* A profiler that asks for no event. */
struct profiler {
    const char *name;
    ncclResult_t (*init)(void **context_p, uint64_t id, int *events_p, const char *name, int nnodes, int nranks,
                         int rank, void (*log)(void));
    ncclResult_t (*unused[3])(void); /* calls about events */
    ncclResult_t (*finalize)(void *context);
};

/* Returns the context of a communicator that the copy of NCCL at the address `caller` creates. */
static void *add_creation(uint64_t id, const char *name, int nranks, int rank, const void *caller)
{
    static char unknown;
    const struct oh_nccl *nccl;
    struct oh_comm_config assumed = OH_COMM_CONFIG_DEFAULT; /* the program's, but for the name */
    assumed.is_assumed = true;
    struct oh_comm_config config = oh_config_read(NULL, &assumed);
    snprintf(config.name, sizeof config.name, "%s", name ? name : "");
    return oh_real_get(caller, &nccl) == ncclSuccess
               ? oh_initial_comm_add_creation(nccl->own, id, nranks, rank, &config)
               : &unknown;
}

static ncclResult_t profiler_init(void **context_p, uint64_t id, int *events_p, const char *name, int nnodes,
                                  int nranks, int rank, void (*log)(void))
{
    (void)nnodes, (void)log;
    *events_p = 0;
    if (!oh_env_flag(OH_ENV_DISABLE, false) && !getauxval(AT_SECURE) && !oh_onehop_is_preloaded()) {
        *context_p = add_creation(id, name, nranks, rank, OH_CALLER());
    }
    return ncclSuccess;
}

static ncclResult_t profiler_finalize(void *context)
{
    struct oh_comm *unseen = oh_initial_comm_add_end(context);
    if (unseen) {
        oh_comm_forget(unseen);
    }
    return ncclSuccess;
}

extern const struct profiler ncclProfiler_v5;
OH_EXPORT const struct profiler ncclProfiler_v5 = {
    NAME, profiler_init, {net_unused, net_unused, net_unused}, profiler_finalize};

/* NCCL_NET_PLUGIN is a list of names, libraries or paths. */
static bool is_asked_for(void)
{
    const char *list = secure_getenv("NCCL_NET_PLUGIN");
    return list && strstr(list, NAME);
}

__attribute__((constructor)) static void opened(void)
{
    if (!oh_hooks_start_seen() && is_asked_for() && !oh_onehop_is_preloaded() && !oh_env_flag(OH_ENV_DISABLE, false)) {
        oh_hooks_update(OH_HOOKS_WAIT);
        if (oh_real_count() > 0) { /* else another program has opened the library */
            OH_INFO("loaded by NCCL as a network plugin");
            oh_stats_expect_calls(true);
        }
    }
}
