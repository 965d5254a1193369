/* SPDX-License-Identifier: MIT */
/* unit.h - what several programs of this folder have: a seed, memory, a folder for segments, threads, children */
#ifndef TEST_UNIT_UNIT_H_
#define TEST_UNIT_UNIT_H_

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

#define UNIT_THREADS 16

/* Runs a function on each of some elements, in a thread of its own, and waits for all. */
static inline void unit_run_threads(void *(*run)(void *element), void *elements, size_t size, unsigned count)
{
    pthread_t thread[UNIT_THREADS];
    for (unsigned i = 0; i < count; i++) {
        if (i == UNIT_THREADS || pthread_create(&thread[i], NULL, run, (char *)elements + i * size) != 0) {
            printf("Bail out! no thread\n");
            exit(1);
        }
    }
    for (unsigned i = 0; i < count; i++) {
        pthread_join(thread[i], NULL);
    }
}

/* Lines of a file that have the text. */
static inline int unit_count_lines(const char *path, const char *text)
{
    char line[4096];
    int count = 0;
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        count += strstr(line, text) != NULL;
    }
    if (file) {
        fclose(file);
    }
    return count;
}

/* Runs a part of a test in a child, which ends without the process's own end. Returns its wait status; -1: no child. */
static inline int unit_child(int (*run)(void))
{
    int status = -1;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        _exit(run());
    }
    return waitpid(child, &status, 0) == child ? status : -1;
}

/* A child that does nothing until it is killed. */
static inline pid_t unit_idle_child(void)
{
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        for (;;) {
            pause();
        }
    }
    return child;
}

/* Its end, for which its parent has not waited. */
static inline void unit_kill(pid_t child)
{
    siginfo_t info;
    kill(child, SIGKILL);
    waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT);
}

#endif
