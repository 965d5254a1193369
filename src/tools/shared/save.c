/* SPDX-License-Identifier: MIT */
/*
 * save.c - a file written in one go, and signals meanwhile (save.h)
 */
#include "tools/shared/save.h"

#include <signal.h>
#include <unistd.h>

#include "tools/shared/outfile.h"

static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
#define SIGNALS (sizeof signals / sizeof *signals)

static struct oh_outfile file; /* the handler reads its name */

static void take_along(int signal)
{
    unlink(file.temporary); /* ENOENT, where none is made yet, or it is in its place */
    raise(signal);          /* SA_RESETHAND: ends the process as it would have ended, once this returns */
}

/* signals[], and SIGXFSZ, which is ignored: the write fails instead. */
static void watch(struct sigaction *before)
{
    struct sigaction action = {.sa_handler = take_along, .sa_flags = (int)SA_RESETHAND};
    for (size_t i = 0; i < SIGNALS; i++) {
        sigaction(signals[i], NULL, &before[i]);
        if (before[i].sa_handler == SIG_DFL) { /* who ignores a signal, as under nohup, goes on doing so */
            sigaction(signals[i], &action, NULL);
        }
    }
    action = (struct sigaction){.sa_handler = SIG_IGN};
    sigaction(SIGXFSZ, &action, &before[SIGNALS]);
}

static void unwatch(const struct sigaction *before)
{
    for (size_t i = 0; i < SIGNALS; i++) {
        sigaction(signals[i], &before[i], NULL);
    }
    sigaction(SIGXFSZ, &before[SIGNALS], NULL);
}

bool oh_save_file(const char *name, const char *path, const char *data, size_t size)
{
    struct sigaction before[SIGNALS + 1];
    watch(before);
    bool good = oh_outfile_open(name, path, &file);
    if (good) {
        oh_outfile_write(&file, data, size);
        good = oh_outfile_commit(name, &file);
    }
    unwatch(before);
    return good;
}
