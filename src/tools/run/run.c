/* SPDX-License-Identifier: MIT */
/*
 * run.c - `onehop run`
 *
 * Does: Sets the environment so that onehop is loaded into a program, and executes it; with --stats stays its parent.
 * Threads: one.
 * Owns: the file of statistics, with --stats.
 */
#include "tools/shared/tool.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/shared/options.h"
#include "tools/shared/supervise.h"
#include "tools/shared/stats_summary.h"

#define NET_PLUGIN_NAME_MAX 254     /* NCCL keeps a plugin's name in 255 bytes */
#define NET_PLUGIN_LIST_SINCE 22703 /* the first NCCL that takes a list of plugins */

static const char help[] = "usage: onehop run [--via preload|plugin|audit] [--stats] [--] PROGRAM [ARGS]\n"
                           "\n"
                           "Runs PROGRAM so that onehop serves the ncclAllReduce calls that it can.\n"
                           "\n"
                           "  --via preload  by LD_PRELOAD (this is the default)\n"
                           "  --via plugin   by NCCL_NET_PLUGIN: NCCL itself loads onehop\n"
                           "  --via audit    by LD_PRELOAD and LD_AUDIT\n"
                           "  --stats        say at the end how many calls were served, in all processes,\n"
                           "                 and why others were not; sets ONEHOP_STATS=1 unless it is set\n"
                           "  -h, --help     this text\n"
                           "\n"
                           "Environment: ONEHOP_LIBRARY is the libonehop.so to use.\n"
                           "Exit status: that of PROGRAM; 2 for wrong usage, 126 when PROGRAM cannot be\n"
                           "executed, 127 when it is not found, 1 when a file of onehop is not found.\n"
                           "\n"
                           "Example: onehop run --stats -- torchrun --nproc-per-node=4 train.py\n";

const char *const oh_via_names[OH_VIAS] = {"preload", "plugin", "audit"};

/* Puts value in front of what the variable holds. False when it does not fit, or the value has a separator in it. */
static bool prepend(const char *name, const char *value, const char *separators, const char *before)
{
    char *text;
    if (strpbrk(value, separators)) {
        oh_tool_error("run: %s: %s accepts no path with '%c' in it", value, name, *strpbrk(value, separators));
        return false;
    }
    if (asprintf(&text, "%s%.1s%s", value, before && before[0] ? separators : "", before ? before : "") < 0 ||
        setenv(name, text, 1) != 0) {
        oh_tool_error("run: %s: %m", name);
        return false;
    }
    free(text);
    return true;
}

static bool reach_by_preload(const char *library)
{
    return prepend("LD_PRELOAD", library, ": ", getenv("LD_PRELOAD"));
}

static bool reach_by_audit(const char *library)
{
    char audit[PATH_MAX];
    return oh_tool_find_beside(library, OH_AUDIT, audit, sizeof audit) &&
           prepend("LD_AUDIT", audit, ":", getenv("LD_AUDIT")) && reach_by_preload(library);
}

/* A plugin that NCCL would load without being asked to. It stays open until the program is executed. */
static bool is_site_plugin_there(const char *name)
{
    return dlopen(name, RTLD_LAZY | RTLD_LOCAL) != NULL;
}

/*
 * What stands behind our plugin, since the variable replaces what NCCL would load without us: the plugins that it named
 * before, or the site's libnccl-net.so. "none" means no other plugin, and is no member of a list. An older NCCL takes
 * the list for one name. False: the application's plugin and ours cannot both be had.
 */
static bool find_other_net_plugins(const char **others_p)
{
    const char *before = getenv("NCCL_NET_PLUGIN");
    char path[PATH_MAX];
    int version = oh_tool_nccl_version(path);
    *others_p = NULL;
    if (before && before[0]) {
        if (strcasecmp(before, "none") == 0) {
            return true;
        }
        if (version != 0 && version < NET_PLUGIN_LIST_SINCE) {
            oh_tool_error(
                "NCCL_NET_PLUGIN=%s is set, and NCCL %d.%d.%d takes one network plugin only: use --via preload", before,
                version / 10000, version / 100 % 100, version % 100);
            return false;
        }
        *others_p = before;
    } else if (is_site_plugin_there("libnccl-net.so")) {
        if (version >= NET_PLUGIN_LIST_SINCE) {
            *others_p = "libnccl-net.so";
        } else {
            fputs("onehop: libnccl-net.so is left out: an NCCL before 2.27.3 takes one network plugin only\n", stderr);
        }
    }
    return true;
}

/*
 * NCCL tells onehop of the communicators that it creates (src/hook/initial_comm.h) if it takes it for a profiler
 * plugin. It asks the network plugin that it has opened last, which is another one here. A profiler of the program's
 * own comes first.
 */
static bool become_profiler(const char *plugin)
{
    return is_site_plugin_there("libnccl-profiler.so") || setenv("NCCL_PROFILER_PLUGIN", plugin, 0) == 0;
}

static bool reach_by_plugin(const char *library)
{
    char plugin[PATH_MAX];
    const char *others;
    if (!oh_tool_find_beside(library, OH_NET_PLUGIN, plugin, sizeof plugin)) {
        return false;
    }
    if (strlen(plugin) > NET_PLUGIN_NAME_MAX) {
        oh_tool_error("%s: NCCL takes no plugin name of more than %d characters", plugin, NET_PLUGIN_NAME_MAX);
        return false;
    }
    return find_other_net_plugins(&others) && prepend("NCCL_NET_PLUGIN", plugin, ",", others) &&
           (!others || become_profiler(plugin));
}

bool oh_tool_reach(enum oh_via via)
{
    static bool (*const ways[OH_VIAS])(const char *library) = {reach_by_preload, reach_by_plugin, reach_by_audit};
    char library[PATH_MAX];
    const char *problem = oh_tool_find_library(library);
    if (problem) {
        oh_tool_error("%s", problem);
    }
    return !problem && ways[via](library);
}

/* Stays the parent of the program, to say what was served when it has ended. */
static int run_with_stats(char **argv)
{
    struct oh_stats_summary summary;
    if (!oh_stats_summary_open(&summary)) {
        return OH_EXIT_FAILED;
    }
    setenv("ONEHOP_STATS", "1", false);
    int status = oh_supervise(argv);
    oh_stats_summary_read(&summary);
    if (status != OH_SUPERVISE_NOT_STARTED) {
        oh_stats_summary_print(&summary, stderr, "onehop: ");
    }
    oh_stats_summary_free(&summary);
    return oh_supervise_end(status);
}

int oh_tool_run(int argc, char **argv)
{
    bool stats = false;
    int via = OH_VIA_PRELOAD;
    const struct oh_option options[] = {
        {"via", 0, oh_option_word, OH_WORDS(&via, oh_via_names)}, {"stats", 0, NULL, &stats}, {NULL, 0, NULL, NULL}};
    int status, first = oh_options_read(argc, argv, help, options, &status);
    if (first < 0) {
        return status;
    }
    if (first == argc) {
        oh_tool_error("run: no program given; see onehop run --help");
        return OH_EXIT_USAGE;
    }
    if (!oh_tool_reach(via)) {
        return OH_EXIT_FAILED;
    }
    return stats ? run_with_stats(argv + first) : oh_tool_exec(argv + first);
}
