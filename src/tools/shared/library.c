/* SPDX-License-Identifier: MIT */
/*
 * library.c - libonehop.so, what is installed beside it, NCCL, and the simulated node
 *
 * Does: Finds them, and executes the command again with the simulated node in front of CUDA, NVML and NCCL.
 * Threads: one.
 * Owns: NCCL's library, until the process ends.
 */
#include "tools/shared/tool.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The directory of this command, without a final slash; "" when the kernel does not tell. Uses the buffer. */
static const char *own_directory(char buffer[PATH_MAX])
{
    return realpath("/proc/self/exe", buffer) ? dirname(buffer) : "";
}

/* Sets path_p when the file is there; else errno says why not. */
static bool take(const char *candidate, char path_p[PATH_MAX])
{
    char real[PATH_MAX];
    bool found = realpath(candidate, real) && access(real, R_OK) == 0;
    if (found) {
        memcpy(path_p, real, sizeof real);
    }
    return found;
}

const char *oh_tool_find_library(char path_p[PATH_MAX])
{
    static char why[2 * PATH_MAX];
    char buffer[PATH_MAX], candidate[2 * PATH_MAX];
    const char *chosen = getenv("ONEHOP_LIBRARY"), *directory = own_directory(buffer);
    if (chosen && chosen[0]) {
        bool found = take(chosen, path_p);
        snprintf(why, sizeof why, "ONEHOP_LIBRARY=%s: %m", chosen);
        return found ? NULL : why;
    }
    /* Installed; all in one folder; the build tree, with and without libtool's script before the command. */
    const char *const beside[] = {OH_RELATIVE_LIBDIR, "../lib", ".", "../../.libs", "../../../.libs"};
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        snprintf(candidate, sizeof candidate, "%s/%s/" OH_LIBRARY, directory, beside[i]);
        if (take(candidate, path_p)) {
            return NULL;
        }
    }
    snprintf(why, sizeof why,
             OH_LIBRARY " is neither in %s/" OH_RELATIVE_LIBDIR " nor in " OH_LIBDIR "; ONEHOP_LIBRARY can name it",
             directory);
    return take(OH_LIBDIR "/" OH_LIBRARY, path_p) ? NULL : why;
}

int oh_tool_nccl_version(char path_p[PATH_MAX])
{
    int version = 0;
    struct link_map *map;
    void *library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
    int (*get)(int *) = library ? (int (*)(int *))dlsym(library, "ncclGetVersion") : NULL;
    path_p[0] = '\0';
    if (library && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) {
        snprintf(path_p, PATH_MAX, "%s", map->l_name);
    }
    return get && get(&version) == 0 ? version : 0;
}

void oh_tool_find_beside(const char *library, const char *name, char path_p[PATH_MAX])
{
    const char *directory = dirname(strdupa(library));
    if (snprintf(path_p, PATH_MAX, "%s/%s", directory, name) >= PATH_MAX || access(path_p, R_OK) != 0) {
        OH_TOOL_FAIL("this installation has no %s (not in %s)", name, directory);
    }
}

void oh_tool_simulate(char **argv)
{
    static const char *const places[] = {"../..", "../../.."}; /* libtool may put the command into .libs */
    char buffer[PATH_MAX], candidate[2 * PATH_MAX], folder[PATH_MAX] = "", *value;
    const char *before = getenv("LD_LIBRARY_PATH"), *directory = own_directory(buffer);
    for (size_t i = 0; i < sizeof places / sizeof *places && !folder[0]; i++) {
        snprintf(candidate, sizeof candidate, "%s/%s/test/simnode/.libs/libcuda.so.1", directory, places[i]);
        take(candidate, folder);
    }
    if (!folder[0]) {
        OH_TOOL_FAIL("--simulated: the simulated node is missing; `make simnode` builds it in the build tree");
    }
    dirname(folder);
    size_t length = strlen(folder);
    if (before && strncmp(before, folder, length) == 0 && (before[length] == ':' || before[length] == '\0')) {
        return; /* begun again already */
    }
    if (asprintf(&value, "%s%s%s", folder, before && before[0] ? ":" : "", before ? before : "") >= 0 &&
        setenv("LD_LIBRARY_PATH", value, 1) == 0) {
        oh_tool_restore_write_signals();   /* the command begun again finds them as this one did */
        execv("/proc/self/exe", argv - 1); /* the whole command line: the subcommand's begins at its second word */
    }
    OH_TOOL_FAIL("--simulated: %m");
}
