/* SPDX-License-Identifier: MIT */
/*
 * library.c - finds libonehop.so and what is installed beside it
 */
#include "tools/shared/tool.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The directory of this command, without a final slash; "" when the kernel does not tell. */
static void own_directory(char *directory_p, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", directory_p, size - 1);
    directory_p[length < 0 ? 0 : length] = '\0';
    char *slash = strrchr(directory_p, '/');
    if (slash) {
        *slash = '\0';
    }
}

/* The libdir of configure as seen from its bindir ("../lib", "../lib/x86_64-linux-gnu"): it moves with the tree. */
static void relative_libdir(char *path_p, size_t size)
{
    static const char bindir[] = OH_BINDIR, libdir[] = OH_LIBDIR;
    size_t common = 0, used = 0;
    for (size_t i = 0; bindir[i] && bindir[i] == libdir[i]; i++) {
        common = bindir[i] == '/' ? i + 1 : common;
    }
    path_p[0] = '\0';
    for (const char *at = bindir + common; at && *at && used + 4 < size; at = strchr(at, '/')) {
        at += *at == '/';
        used += (size_t)snprintf(path_p + used, size - used, "../");
    }
    snprintf(path_p + used, size - used, "%s", libdir + common);
}

/* Sets path_p when the file is there. */
static bool take(const char *candidate, char *path_p, size_t size)
{
    char *real = realpath(candidate, NULL);
    bool fits = real && access(real, R_OK) == 0 && strlen(real) < size;
    if (fits) {
        snprintf(path_p, size, "%s", real);
    }
    free(real);
    return fits;
}

bool oh_tool_locate_library(char *path_p, size_t size, char *why_p, size_t why_size)
{
    char relative[PATH_MAX], directory[PATH_MAX], candidate[3 * PATH_MAX];
    const char *chosen = getenv("ONEHOP_LIBRARY");
    if (chosen && chosen[0]) {
        if (take(chosen, path_p, size)) {
            return true;
        }
        snprintf(why_p, why_size, "ONEHOP_LIBRARY=%s: %s", chosen, strerror(errno));
        return false;
    }
    relative_libdir(relative, sizeof relative);
    /* Installed; all in one folder; the build tree, with and without libtool's script before the command. */
    const char *const beside[] = {relative, "../lib", ".", "../../.libs", "../../../.libs"};
    own_directory(directory, sizeof directory);
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        snprintf(candidate, sizeof candidate, "%s/%s/" OH_LIBRARY, directory, beside[i]);
        if (take(candidate, path_p, size)) {
            return true;
        }
    }
    if (take(OH_LIBDIR "/" OH_LIBRARY, path_p, size)) {
        return true;
    }
    snprintf(why_p, why_size, OH_LIBRARY " is neither in %s/%s nor in " OH_LIBDIR "; ONEHOP_LIBRARY can name it",
             directory, relative);
    return false;
}

bool oh_tool_find_library(char *path_p, size_t size)
{
    char why[3 * PATH_MAX];
    if (oh_tool_locate_library(path_p, size, why, sizeof why)) {
        return true;
    }
    oh_tool_error("%s", why);
    return false;
}

bool oh_tool_find_beside(const char *library, const char *name, char *path_p, size_t size)
{
    const char *slash = strrchr(library, '/');
    int length = slash ? (int)(slash - library) : 0;
    if (snprintf(path_p, size, "%.*s/%s", length, library, name) >= (int)size || access(path_p, R_OK) != 0) {
        oh_tool_error("this installation has no %s (not in %.*s)", name, length, library);
        return false;
    }
    return true;
}
