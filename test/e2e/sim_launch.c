/* SPDX-License-Identifier: MIT */
/*
 * sim_launch.c - sim_app as a launcher: one process of itself per --local ranks, each with its own environment
 *
 * The processes are exec'ed, so that LD_PRELOAD can differ between them. The first failure, or the time limit, ends
 * them all. At the end the hashes of the results of all ranks must be equal.
 */
#include "sim_app.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define POLL_MICROSECONDS 5000

struct app_board *app_board_open(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    APP_CHECK(fd >= 0 && ftruncate(fd, sizeof(struct app_board)) == 0, "%s: %s", path, strerror(errno));
    struct app_board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    APP_CHECK(board != MAP_FAILED, "%s: %s", path, strerror(errno));
    close(fd);
    return board;
}

/* Applies the --rank-env settings meant for the ranks first .. first + local - 1. */
static void set_environment(const struct app_options *options, int first)
{
    for (int i = 0; i < options->rank_envs; i++) {
        char text[4096], *name;
        int rank = (int)strtol(options->rank_env[i], &name, 10);
        if (rank < first || rank >= first + options->local || *name != ':') {
            continue;
        }
        snprintf(text, sizeof text, "%s", name + 1);
        char *value = strchr(text, '=');
        if (value == NULL) {
            unsetenv(text);
        } else {
            *value = '\0';
            setenv(text, value + 1, 1);
        }
    }
}

static void set_visible_devices(const struct app_options *options, int first)
{
    char list[128] = "";
    for (int i = 0; i < options->local; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%d", i > 0 ? "," : "", first + i);
    }
    setenv("CUDA_VISIBLE_DEVICES", list, 1);
}

static pid_t start_process(const struct app_options *options, int first, const char *board, int argc, char **argv)
{
    pid_t pid = fork();
    APP_CHECK(pid >= 0, "fork: %s", strerror(errno));
    if (pid > 0) {
        return pid;
    }
    char rank[16], **arguments = calloc((size_t)argc + 5, sizeof *arguments);
    APP_CHECK(arguments != NULL, "no memory");
    memcpy(arguments, argv, (size_t)argc * sizeof *arguments);
    snprintf(rank, sizeof rank, "%d", first);
    arguments[argc] = "--rank";
    arguments[argc + 1] = rank;
    arguments[argc + 2] = "--id-file";
    arguments[argc + 3] = (char *)board;
    if (options->own_gpu) {
        set_visible_devices(options, first);
    }
    set_environment(options, first);
    execv("/proc/self/exe", arguments);
    app_fail(__FILE__, __LINE__, "exec: %s", strerror(errno));
}

static bool ended_well(const struct app_options *options, int first, int status)
{
    bool kills = options->scenario != NULL && strncmp(options->scenario, "kill", 4) == 0;
    if (kills && options->victim >= first && options->victim < first + options->local) {
        int wanted = strcmp(options->scenario, "kill-fault") == 0 ? SIGSEGV : SIGKILL;
        return WIFSIGNALED(status) && WTERMSIG(status) == wanted;
    }
    if (WIFSIGNALED(status)) {
        printf("FAIL rank %d ended by signal %d\n", first, WTERMSIG(status));
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Waits for all; the first that fails, or the clock, ends the others. */
static bool watch(const struct app_options *options, pid_t *pids, int processes)
{
    double limit = seconds() + options->timeout;
    bool good = true, late = false;
    for (int left = processes; left > 0;) {
        if (!late && seconds() > limit) {
            printf("FAIL not finished after %d seconds\n", options->timeout);
            good = false;
            late = true;
        }
        for (int p = 0; p < processes; p++) {
            int status;
            if (pids[p] > 0 && waitpid(pids[p], &status, WNOHANG) == pids[p]) {
                good &= ended_well(options, p * options->local, status);
                pids[p] = 0;
                left--;
            } else if (pids[p] > 0 && !good) {
                kill(pids[p], SIGKILL);
            }
        }
        usleep(POLL_MICROSECONDS);
    }
    return good;
}

static bool hashes_agree(const struct app_options *options, const struct app_board *board)
{
    int first = -1;
    for (int r = 0; r < options->nranks; r++) {
        if (!board->hashed[r]) {
            continue;
        }
        if (first >= 0 && board->hash[r] != board->hash[first]) {
            printf("FAIL results of ranks %d and %d differ\n", first, r);
            return false;
        }
        first = r;
    }
    return true;
}

int app_launch(const struct app_options *options, int argc, char **argv)
{
    char path[] = "/tmp/sim_app.XXXXXX";
    pid_t pids[APP_MAX_RANKS];
    int fd = mkstemp(path), processes = options->nranks / options->local;
    APP_CHECK(fd >= 0, "mkstemp: %s", strerror(errno));
    close(fd);
    struct app_board *board = app_board_open(path);
    fflush(stdout);
    for (int p = 0; p < processes; p++) {
        pids[p] = start_process(options, p * options->local, path, argc, argv);
    }
    bool good = watch(options, pids, processes) && hashes_agree(options, board);
    unlink(path);
    printf("%s %d ranks, seed %llu\n", good ? "ok" : "FAIL", options->nranks, (unsigned long long)options->seed);
    return good ? 0 : 1;
}
