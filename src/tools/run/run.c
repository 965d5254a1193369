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
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/shared/options.h"
#include "tools/shared/supervise.h"
#include "tools/shared/stats_summary.h"

#define NET_PLUGIN_NAME_MAX 254     /* NCCL keeps a plugin's name in 255 bytes */
#define NET_PLUGIN_LIST_SINCE 22703 /* the first NCCL that takes a list of plugins */

static const char help[] = "usage: onehop run [--via preload|plugin|audit] [--stats] [--invariant]\n"
                           "                  [--] PROGRAM [ARGS]\n"
                           "\n"
                           "Runs PROGRAM so that onehop serves the collective calls that it can.\n"
                           "\n"
                           "  --via preload  by LD_PRELOAD (this is the default)\n"
                           "  --via plugin   by NCCL_NET_PLUGIN: NCCL itself loads onehop\n"
                           "  --via audit    by LD_PRELOAD and LD_AUDIT\n"
                           "  --stats        say at the end how many calls were served, in all processes,\n"
                           "                 and why others were not; sets ONEHOP_STATS=1 unless it is set\n"
                           "  --invariant    sum in one order at every size; sets ONEHOP_INVARIANT=1\n"
                           "  -h, --help     this text\n"
                           "\n"
                           "Environment: ONEHOP_LIBRARY is the libonehop.so to use.\n"
                           "Exit status: that of PROGRAM; 2 for wrong usage, 126 when PROGRAM cannot be\n"
                           "executed, 127 when it is not found, 1 when a file of onehop is not found.\n"
                           "\n"
                           "Example: onehop run --stats -- torchrun --nproc-per-node=4 train.py\n";

const char *const oh_via_names[OH_VIAS] = {"preload", "plugin", "audit"};

/* Puts value, which has none of the separators in it, between `front` and what stands behind it. */
static void insert(const char *name, const char *front, const char *value, const char *separators, const char *behind)
{
    char *text;
    if (strpbrk(value, separators)) {
        OH_TOOL_FAIL("%s: %s accepts no path with '%c' in it", value, name, *strpbrk(value, separators));
    }
    if (asprintf(&text, "%s%s%.1s%s", front, value, behind && behind[0] ? separators : "", behind ? behind : "") < 0 ||
        setenv(name, text, 1) != 0) {
        OH_TOOL_FAIL("%s: %m", name);
    }
    free(text);
}

/* Whether a path is that of a sanitizer's runtime, which must be in front of all else. */
static bool is_runtime(const char *path, size_t length)
{
    static const char *const parts[] = {"libasan.", "libtsan.", "liblsan.", "libubsan.", "libhwasan.", "libclang_rt."};
    const char *slash = memrchr(path, '/', length), *name = slash ? slash + 1 : path;
    bool found = false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        found = found || strncmp(name, parts[i], strlen(parts[i])) == 0;
    }
    return found;
}

/* The length of LD_PRELOAD up to the end of its last runtime of a sanitizer. */
static size_t length_of_runtimes(const char *preload)
{
    size_t length = 0;
    for (const char *word = preload; *word; word += strspn(word, ": ")) {
        const size_t of_word = strcspn(word, ": ");
        length = is_runtime(word, of_word) ? (size_t)(word - preload) + of_word : length;
        word += of_word;
    }
    return length;
}

static void reach_by_preload(const char *library)
{
    const char *set = getenv("LD_PRELOAD"), *preload = set ? set : "";
    const size_t length = length_of_runtimes(preload);
    char *front = oh_tool_allocate(length + 2);
    sprintf(front, "%.*s%s", (int)length, preload, length > 0 ? ":" : "");
    insert("LD_PRELOAD", front, library, ": ", preload + length + strspn(preload + length, ": "));
    free(front);
    /* A program may bring AddressSanitizer's runtime, which ends a program where it is not first; onehop defines none
     * of the functions that the runtime does. */
    insert("ASAN_OPTIONS", "", "verify_asan_link_order=0", ":", getenv("ASAN_OPTIONS"));
}

static void reach_by_audit(const char *library)
{
    char audit[PATH_MAX];
    oh_tool_find_beside(library, OH_AUDIT, audit);
    insert("LD_AUDIT", "", audit, ":", getenv("LD_AUDIT"));
    reach_by_preload(library);
}

/*
 * What stands behind our plugin, since the variable replaces what NCCL would load without us: the plugins that it named
 * before, or the site's libnccl-net.so, which NCCL loads without being asked to; NULL: nothing. "none" means no other
 * plugin, and is no member of a list. An older NCCL takes the list for one name, so it cannot have the application's
 * plugin and ours.
 */
static const char *find_other_net_plugins(void)
{
    const char *before = getenv("NCCL_NET_PLUGIN");
    char path[PATH_MAX];
    int version = oh_tool_nccl_version(path);
    if (before && before[0]) {
        bool none = strcasecmp(before, "none") == 0;
        if (!none && version != 0 && version < NET_PLUGIN_LIST_SINCE) {
            OH_TOOL_FAIL(
                "NCCL_NET_PLUGIN=%s is set, and NCCL %d.%d.%d takes one network plugin only: use --via preload", before,
                version / 10000, version / 100 % 100, version % 100);
        }
        return none ? NULL : before;
    }
    if (!dlopen("libnccl-net.so", RTLD_LAZY | RTLD_LOCAL)) {
        return NULL;
    }
    if (version < NET_PLUGIN_LIST_SINCE) {
        oh_tool_error("libnccl-net.so is left out: an NCCL before 2.27.3 takes one network plugin only");
        return NULL;
    }
    return "libnccl-net.so";
}

static void reach_by_plugin(const char *library)
{
    char plugin[PATH_MAX];
    oh_tool_find_beside(library, OH_NET_PLUGIN, plugin);
    if (strlen(plugin) > NET_PLUGIN_NAME_MAX) {
        OH_TOOL_FAIL("%s: NCCL takes no plugin name of more than %d characters", plugin, NET_PLUGIN_NAME_MAX);
    }
    const char *others = find_other_net_plugins();
    insert("NCCL_NET_PLUGIN", "", plugin, ",", others);
    /*
     * NCCL tells onehop of the communicators that it creates (src/comm/attach/initial.c) if it takes it for a profiler
     * plugin. It asks the network plugin that it has opened last, which is another one here. A profiler of the
     * program's own comes first.
     */
    if (others && !dlopen("libnccl-profiler.so", RTLD_LAZY | RTLD_LOCAL)) {
        setenv("NCCL_PROFILER_PLUGIN", plugin, 0);
    }
}

void oh_tool_reach(enum oh_via via)
{
    static void (*const ways[OH_VIAS])(const char *library) = {reach_by_preload, reach_by_plugin, reach_by_audit};
    char library[PATH_MAX];
    const char *problem = oh_tool_find_library(library);
    if (problem) {
        OH_TOOL_FAIL("%s", problem);
    }
    ways[via](library);
}

/* Stays the parent of the program, to say what was served when it has ended. */
static int run_with_stats(char **argv)
{
    struct oh_stats_summary summary;
    oh_stats_summary_open(&summary);
    setenv("ONEHOP_STATS", "1", false);
    int status = oh_supervise(argv, NULL, NULL);
    oh_stats_summary_read(&summary);
    if (status != OH_SUPERVISE_NOT_STARTED) {
        oh_stats_summary_print(&summary, stderr, "onehop: ");
    }
    oh_stats_summary_free(&summary);
    return oh_supervise_end(status);
}

int oh_tool_run(int argc, char **argv)
{
    bool stats = false, invariant = false;
    int via = OH_VIA_PRELOAD;
    const struct oh_option options[] = {{"via", 0, oh_option_word, OH_WORDS(&via, oh_via_names)},
                                        {"stats", 0, NULL, &stats},
                                        {"invariant", 0, NULL, &invariant},
                                        {NULL, 0, NULL, NULL}};
    int first = oh_options_read(argc, argv, help, options);
    if (first == argc) {
        OH_TOOL_REFUSE("no program given; see onehop run --help");
    }
    oh_tool_reach((enum oh_via)via);
    if (invariant) {
        setenv("ONEHOP_INVARIANT", "1", true);
    }
    return stats ? run_with_stats(argv + first) : oh_tool_exec(argv + first);
}
