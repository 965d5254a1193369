/* SPDX-License-Identifier: MIT */
/*
 * topo_fsync.c - preloaded: fsync is where a signal arrives, or where a full disk shows
 *
 * TOPO_FSYNC=signal: SIGINT comes while the file is complete but not in its place; TOPO_FSYNC=full: no space is left.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) int fsync(int fd)
{
    const char *what = getenv("TOPO_FSYNC");
    (void)fd;
    if (what && strcmp(what, "signal") == 0) {
        raise(SIGINT);
    } else if (what && strcmp(what, "full") == 0) {
        errno = ENOSPC;
        return -1;
    }
    return 0;
}
