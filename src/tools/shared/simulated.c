/* SPDX-License-Identifier: MIT */
/*
 * simulated.c - begins the command again with the simulated node's libraries in front
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/shared/tool.h"

/* The folder of the stand-ins in the build tree that this command is in. */
static bool find_stand_ins(char *folder_p)
{
    static const char *const places[] = {"../..", "../../.."}; /* libtool may put the command into .libs */
    char own[PATH_MAX], candidate[2 * PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    own[length < 0 ? 0 : length] = '\0';
    char *slash = strrchr(own, '/');
    for (size_t i = 0; slash && i < sizeof places / sizeof *places; i++) {
        *slash = '\0';
        snprintf(candidate, sizeof candidate, "%s/%s/test/simnode/.libs", own, places[i]);
        char *real = realpath(candidate, NULL);
        snprintf(candidate, sizeof candidate, "%s/libcuda.so.1", real ? real : "");
        bool there = real && access(candidate, R_OK) == 0;
        if (there) {
            snprintf(folder_p, PATH_MAX, "%s", real);
        }
        free(real);
        if (there) {
            return true;
        }
    }
    return false;
}

int oh_tool_simulate(const char *name, char **argv)
{
    const char *before = getenv("LD_LIBRARY_PATH");
    char folder[PATH_MAX];
    char *value;
    if (!find_stand_ins(folder)) {
        oh_tool_error(
            "%s: --simulated: no simulated node beside this command; `make simnode` builds it in the build tree", name);
        return OH_EXIT_FAILED;
    }
    size_t length = strlen(folder);
    if (before && strncmp(before, folder, length) == 0 && (before[length] == ':' || before[length] == '\0')) {
        return OH_EXIT_OK; /* begun again already */
    }
    if (asprintf(&value, "%s%s%s", folder, before && before[0] ? ":" : "", before ? before : "") < 0 ||
        setenv("LD_LIBRARY_PATH", value, 1) != 0) {
        oh_tool_error("%s: out of memory", name);
        return OH_EXIT_FAILED;
    }
    execv("/proc/self/exe", argv);
    oh_tool_error("%s: --simulated: %s", name, strerror(errno));
    return OH_EXIT_FAILED;
}
