/* SPDX-License-Identifier: MIT */
/*
 * nccl_plugin.c - how the simulated NCCL loads network plugins, and a profiler
 *
 * As NCCL does it, once a process and before a communicator meets its other ranks (src/plugin/net.cc of 2.28.9): the
 * names of NCCL_NET_PLUGIN, or libnccl-net.so; each opened RTLD_LOCAL, as given or as libnccl-net-NAME.so; the newest
 * ncclNetPlugin_vN that this version knows; NCCL_NET chooses by name. A plugin that declines is left out from then on,
 * and the built-in networks are taken. Nothing is ever sent through a plugin. SIMNODE_NCCL_VERSION (a number such as
 * 22809) chooses the version whose ways are followed:
 *
 *   names by comma   since 2.27.3
 *   newest N         7 in 2.19, 8 since 2.20.3, 9 since 2.24.3, 10 since 2.26.2, 11 since 2.28.3, 12 since 2.30.3,
 *                    13 from SIMNODE_NCCL_VERSION=29900 on, which also knows none below 13: a version yet to come
 *   2.28, 2.29       forget the name of a plugin that the last communicator on it closes: libnccl-net.so is tried next
 *   2.28.x           calls finalize after an init that failed; for N below 11 that is a call of NULL, and here abort()
 *
 * A profiler (src/plugin/profiler.cc of 2.28.9; version 5 since 2.28.3) is looked for in NCCL_PROFILER_PLUGIN, else in
 * the network plugin that was opened last. It is told of each communicator before the ranks meet, and of its end.
 *
 * With NCCL_DEBUG=INFO says what it found; a WARN is printed always.
 */
#include "nccl_internal.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PLUGINS_MAX 14
#define NAME_BYTES 255
#define OLDEST_ABI 6
#define FUTURE 29900
#define USUAL "libnccl-net.so"

/* The order of functions is that of every version up to 12; older ones end earlier. */
struct net {
    const char *name;
    void (*init)(void); /* its parameters depend on the version */
    ncclResult_t (*devices)(int *number);
    ncclResult_t (*others[17])(void);
    ncclResult_t (*finalize)(void *context);
};

struct plugin {
    char name[NAME_BYTES + 1];
    void *handle;
    const struct net *net;
    int abi;
    int users; /* communicators */
    bool enabled, disabled;
};

struct profiler {
    const char *name;
    ncclResult_t (*init)(void **context_p, uint64_t id, int *events_p, const char *name, int nnodes, int nranks,
                         int rank, void *log);
    ncclResult_t (*events[3])(void);
    ncclResult_t (*finalize)(void *context);
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char newest_name[NAME_BYTES + 32]; /* of the network plugin opened last, as it was opened; empty: it is closed */
static struct plugin plugins[PLUGINS_MAX];
static int plugin_count = -1; /* not loaded yet */

__attribute__((format(printf, 2, 3))) static void say(bool warn, const char *format, ...)
{
    const char *level = getenv("NCCL_DEBUG");
    va_list arguments;
    if (!warn && (level == NULL || strcasecmp(level, "INFO") != 0)) {
        return;
    }
    flockfile(stderr);
    fprintf(stderr, "NCCL %s ", warn ? "WARN" : "INFO");
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    funlockfile(stderr);
}

int simnccl_version(void)
{
    const char *wish = getenv("SIMNODE_NCCL_VERSION");
    return wish != NULL ? atoi(wish) : NCCL_VERSION_CODE;
}

static int newest_abi(void)
{
    static const struct {
        int since, abi;
    } history[] = {{FUTURE, 13}, {23003, 12}, {22803, 11}, {22602, 10}, {22403, 9}, {22003, 8}};
    for (size_t i = 0; i < sizeof history / sizeof *history; i++) {
        if (simnccl_version() >= history[i].since) {
            return history[i].abi;
        }
    }
    return 7;
}

/* Of test/e2e/syscall_fault.c, if that is there. */
__attribute__((weak)) void simnode_loaded(void);

static void *open_plugin(const char *name)
{
    char path[NAME_BYTES + 32];
    size_t length = strlen(name);
    snprintf(path, sizeof path, "%.*s", NAME_BYTES, name);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    bool file = strchr(name, '/') != NULL ||
                (strncmp(name, "lib", 3) == 0 && length > 3 && strcmp(name + length - 3, ".so") == 0);
    if (handle == NULL && !file) {
        snprintf(path, sizeof path, "libnccl-net-%.*s.so", NAME_BYTES, name);
        handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    if (handle != NULL) {
        snprintf(newest_name, sizeof newest_name, "%s", path);
    }
    if (handle != NULL && simnode_loaded) {
        simnode_loaded();
    }
    return handle;
}

static void load_plugin(struct plugin *plugin)
{
    char symbol[32];
    const char *name = plugin->name[0] != '\0' ? plugin->name : USUAL;
    void *handle = open_plugin(name);
    int oldest = simnccl_version() >= FUTURE ? newest_abi() : OLDEST_ABI;
    plugin->disabled = true;
    if (handle == NULL) {
        say(false, "NET/Plugin: could not find %s", name);
        return;
    }
    for (plugin->abi = newest_abi(); plugin->abi >= oldest && plugin->disabled; plugin->abi--) {
        snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", plugin->abi);
        plugin->net = dlsym(handle, symbol);
        if (plugin->net != NULL) {
            say(false, "NET/Plugin: loaded %s (v%d)", name, plugin->abi);
            plugin->handle = handle;
            plugin->disabled = false;
            return;
        }
    }
    say(false, "External network plugin %s is unsupported", name);
    newest_name[0] = '\0';
    dlclose(handle);
}

static void list_plugins(void)
{
    const char *list = getenv("NCCL_NET_PLUGIN");
    char copy[4096], *rest = copy, *name;
    snprintf(copy, sizeof copy, "%s", list != NULL ? list : USUAL);
    plugin_count = 0;
    if (strcasecmp(copy, "none") == 0) {
        return;
    }
    while (plugin_count < PLUGINS_MAX && (name = strsep(&rest, simnccl_version() >= 22703 ? "," : "")) != NULL) {
        if (name[0] != '\0' && strlen(name) <= NAME_BYTES) {
            snprintf(plugins[plugin_count++].name, NAME_BYTES + 1, "%s", name);
        }
    }
}

static ncclResult_t call_init(const struct plugin *plugin, ncclComm_t comm)
{
    int traffic_class = -1;
    if (plugin->abi >= 11) {
        return ((ncclResult_t(*)(void **, uint64_t, int *, void *, void *))plugin->net->init)(
            &comm->net_context, comm->hash, &traffic_class, NULL, NULL);
    }
    return ((ncclResult_t(*)(void *, void *))plugin->net->init)(NULL, NULL);
}

static void init_plugin(struct plugin *plugin, ncclComm_t comm)
{
    int devices = 0;
    if (call_init(plugin, comm) == ncclSuccess &&
        (plugin->enabled || (plugin->net->devices(&devices) == ncclSuccess && devices > 0))) {
        plugin->enabled = true;
        return;
    }
    say(false, "Failed to initialize NET plugin %s", plugin->net->name);
    plugin->disabled = true;
    if (simnccl_version() >= 22800 && simnccl_version() < 22900) {
        if (plugin->abi < 11) {
            say(true, "this version calls NULL for a plugin v%d whose init has failed", plugin->abi);
            abort();
        }
        plugin->net->finalize(comm->net_context);
    }
}

ncclResult_t simnccl_net_init(ncclComm_t comm)
{
    const char *wish = getenv("NCCL_NET");
    const char *taken = NULL;
    pthread_mutex_lock(&mutex);
    if (plugin_count < 0) {
        list_plugins();
    }
    for (int i = 0; i < plugin_count && taken == NULL; i++) {
        struct plugin *plugin = &plugins[i];
        if (plugin->net == NULL && !plugin->disabled) {
            load_plugin(plugin);
        }
        if (!plugin->disabled && (wish == NULL || strcasecmp(wish, plugin->net->name) == 0)) {
            init_plugin(plugin, comm);
        }
        if (plugin->enabled) {
            taken = plugin->net->name;
            plugin->users++;
            comm->net = i + 1;
        }
    }
    pthread_mutex_unlock(&mutex);
    if (taken == NULL && (wish == NULL || strcasecmp(wish, "IB") == 0 || strcasecmp(wish, "Socket") == 0)) {
        taken = "Socket";
    }
    if (taken == NULL) {
        say(true, "Failed to initialize any NET plugin");
        return ncclInvalidUsage;
    }
    say(false, "Using network %s", taken);
    return ncclSuccess;
}

void simnccl_net_finish(ncclComm_t comm)
{
    if (comm->net == 0) {
        return;
    }
    struct plugin *plugin = &plugins[comm->net - 1];
    pthread_mutex_lock(&mutex);
    if (--plugin->users == 0) {
        dlclose(plugin->handle);
        plugin->net = NULL;
        plugin->enabled = false;
        if (simnccl_version() >= 22800 && simnccl_version() < 23003) {
            plugin->name[0] = '\0';
        }
    }
    pthread_mutex_unlock(&mutex);
}

/* --- a profiler --------------------------------------------------------------------------------------------------- */

static void *profiler_handle;
static const struct profiler *profiler; /* NULL: none, or not looked for yet; these are guarded by the mutex */
static int profiler_users;
static bool profiler_missing;

static void load_profiler(void)
{
    const char *wish = getenv("NCCL_PROFILER_PLUGIN");
    const char *name = wish != NULL ? wish : newest_name;
    bool known = simnccl_version() >= 22803 && simnccl_version() < FUTURE;
    bool none = wish != NULL && strcasecmp(wish, "none") == 0;
    profiler_handle = known && !none && name[0] != '\0' ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : NULL;
    profiler = profiler_handle != NULL ? dlsym(profiler_handle, "ncclProfiler_v5") : NULL;
    profiler_missing = profiler == NULL;
}

void simnccl_profiler_init(ncclComm_t comm)
{
    int events = 0;
    pthread_mutex_lock(&mutex);
    if (profiler == NULL && !profiler_missing) {
        load_profiler();
    }
    const struct profiler *found = profiler;
    profiler_users += found != NULL;
    comm->profiled = found != NULL;
    pthread_mutex_unlock(&mutex);
    if (found != NULL) {
        found->init(&comm->profiler_context, comm->hash, &events, "", 1, comm->core->nranks, comm->core->rank, NULL);
    }
}

void simnccl_profiler_finish(ncclComm_t comm)
{
    if (!comm->profiled) {
        return;
    }
    if (comm->profiler_context != NULL) {
        profiler->finalize(comm->profiler_context);
    }
    pthread_mutex_lock(&mutex);
    if (--profiler_users == 0) {
        dlclose(profiler_handle);
        profiler = NULL;
    }
    pthread_mutex_unlock(&mutex);
}

/* NCCL hashes the unique id, too, in another way. */
uint64_t simnccl_hash(const void *data, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    }
    return hash;
}
