/* SPDX-License-Identifier: MIT */
/*
 * net_plugin.c - the way in by NCCL_NET_PLUGIN=onehop
 *
 * NCCL opens this object, under the name libnccl-net-onehop.so, inside the creation of the process's first
 * communicator, and asks it for a network. It has none: it puts the hooks in place (patch.h), and says that it has no
 * device. NCCL then goes on with the next plugin of the list, or with its own networks, without a warning, and does not
 * ask again in this process. If no other profiler plugin is given, NCCL asks the same object for one (since 2.28.3
 * version 5, src/plugin/profiler.cc of 2.28.9): so onehop is told of each communicator (initial_comm.h).
 *
 * The hooks are put in place as soon as the object is opened, if NCCL_NET_PLUGIN names it: with NCCL_NET=Socket NCCL
 * does not call init, and a later NCCL may not know any of the versions below. The object is never unloaded (-z
 * nodelete), whatever NCCL does with its handle.
 *
 * Versions: NCCL takes the newest that it knows. 6 is known to 2.19 up to 2.32, 11 since 2.28.3, 12 since 2.30.3. Here
 * they are the same. 7 to 10 are left out on purpose: 2.28.9 calls NULL
 * when a plugin below 11 does not initialize (src/plugin/net.cc:226 there). For the same reason init succeeds, and
 * it is `devices` that says no; and finalize is there for the versions that call it then.
 *
 * Threads: NCCL holds a mutex of its own around all of this, so no communicator may be created in here.
 */
#include <dlfcn.h>
#include <link.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "comm/comm.h"
#include "hook/initial_comm.h"
#include "hook/patch.h"
#include "util/env.h"
#include "util/log.h"

#define EXPORT __attribute__((visibility("default")))
#define NAME "onehop"

/* As much of the tables as NCCL touches of a plugin without devices; the rest is there, and fails. */
struct net_plugin {
    const char *name;
    void (*init)(void);
    ncclResult_t (*devices)(int *count);
    ncclResult_t (*unused[17])(void);
    ncclResult_t (*finalize)(void *context); /* since version 11, at this place */
    ncclResult_t (*more[4])(void);
};

/* What it is given depends on the version, and is not looked at. */
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

#define UNUSED_4 net_unused, net_unused, net_unused, net_unused
#define PLUGIN                                                                                                         \
    {                                                                                                                  \
        NAME, (void (*)(void))net_init, net_devices, {UNUSED_4, UNUSED_4, UNUSED_4, UNUSED_4, net_unused},             \
            net_finalize,                                                                                              \
        {                                                                                                              \
            UNUSED_4                                                                                                   \
        }                                                                                                              \
    }
EXPORT const struct net_plugin ncclNetPlugin_v6 = PLUGIN;
EXPORT const struct net_plugin ncclNetPlugin_v11 = PLUGIN;
EXPORT const struct net_plugin ncclNetPlugin_v12 = PLUGIN;

/* --- a profiler that asks for no event ---------------------------------------------------------------------------- */

struct profiler {
    const char *name;
    ncclResult_t (*init)(void **context_p, uint64_t id, int *events_p, const char *name, int nnodes, int nranks,
                         int rank, void (*log)(void));
    ncclResult_t (*unused[3])(void); /* calls about events */
    ncclResult_t (*finalize)(void *context);
};

static ncclResult_t profiler_init(void **context_p, uint64_t id, int *events_p, const char *name, int nnodes,
                                  int nranks, int rank, void (*log)(void))
{
    (void)name;
    (void)nnodes;
    (void)log;
    *events_p = 0;
    if (!oh_env_flag(OH_ENV_DISABLE, false) && !getauxval(AT_SECURE) && !oh_hooks_preloaded()) {
        *context_p = oh_initial_comm_add_creation(id, nranks, rank, __builtin_return_address(0));
    }
    return ncclSuccess;
}

static ncclResult_t profiler_finalize(void *context)
{
    oh_initial_comm_add_end(context);
    return ncclSuccess;
}

extern const struct profiler ncclProfiler_v5;
EXPORT const struct profiler ncclProfiler_v5 = {
    NAME, profiler_init, {net_unused, net_unused, net_unused}, profiler_finalize};

/* --- opened by NCCL? -------------------------------------------------------------------------------------------- */

static const char *file_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Does one name of the list mean the file that this object was opened as? */
static bool names(const char *name, const char *file)
{
    static const char prefix[] = "libnccl-net-", suffix[] = ".so";
    size_t length = strlen(name);
    if (strcmp(file_of(name), file) == 0) {
        return true;
    }
    return strncmp(file, prefix, sizeof prefix - 1) == 0 && strncmp(file + sizeof prefix - 1, name, length) == 0 &&
           strcmp(file + sizeof prefix - 1 + length, suffix) == 0;
}

static bool is_asked_for(void)
{
    const char *list = secure_getenv("NCCL_NET_PLUGIN");
    struct link_map *own = NULL;
    Dl_info info;
    if (!list || !dladdr1(NAME, &info, (void **)&own, RTLD_DL_LINKMAP) || !own || !own->l_name) {
        return false;
    }
    char *copy = strdup(list), *rest = copy, *name;
    bool found = false;
    while (copy && !found && (name = strsep(&rest, ","))) {
        found = names(name, file_of(own->l_name));
    }
    free(copy);
    return found;
}

__attribute__((constructor)) static void opened(void)
{
    if (is_asked_for() && !oh_hooks_preloaded() && !oh_env_flag(OH_ENV_DISABLE, false)) {
        OH_INFO("loaded by NCCL as a network plugin");
        oh_stats_mark_plugin_loaded();
        oh_hooks_update(OH_HOOKS_WAIT);
    }
}
