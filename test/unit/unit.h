/* SPDX-License-Identifier: MIT */
/* unit.h - what several programs of this folder have: a seed, memory, and a folder for segments */
#ifndef TEST_UNIT_UNIT_H_
#define TEST_UNIT_UNIT_H_

#include <stdlib.h>
#include <time.h>

#include "test/tap.h"

/* The first argument, or the time. */
static inline unsigned unit_seed(int argc, char **argv)
{
    const unsigned seed = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 0) : (unsigned)time(NULL);
    tap_note("seed %u", seed);
    return seed;
}

/* Memory, or the end of the program. */
static inline void *unit_need(void *memory)
{
    if (!memory) {
        printf("Bail out! no memory\n");
        exit(1);
    }
    return memory;
}

/* A new folder in which communicators of this process meet. Skips the program where there is none. */
static inline const char *unit_folder(void)
{
    static char folder[] = "/dev/shm/onehop-test.XXXXXX";
    if (!mkdtemp(folder)) {
        tap_skip_all("no folder can be made in /dev/shm");
    }
    setenv("ONEHOP_SHM_DIR", folder, 1);
    return folder;
}

#endif
