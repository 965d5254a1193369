/* SPDX-License-Identifier: MIT */
/*
 * launch.c - runs a program as a job of processes, and finds out how the job ends
 *
 * Does: Gives each process its settings and its way of loading onehop, ends a job that takes too long, and looks for
 *    files that are left.
 * Threads: one.
 * Owns: the job and its folder in shared memory, for one run.
 */
#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

#include "test/programs/program.h"

struct launch {
    const struct pg_options *options;
    const struct pg_program *program;
    int log;
    char folder[64];
};

static void prepare(const struct cf_job *job, int process)
{
    const struct launch *launch = job->user;
    const struct pg_program *program = launch->program;
    dup2(launch->log, STDOUT_FILENO);
    dup2(launch->log, STDERR_FILENO);
    setenv("ONEHOP_SHM_DIR", launch->folder, 1);
    for (int i = 0; i < PG_MAX_SETTINGS && program->setting[i][0] != '\0'; i++) {
        putenv((char *)program->setting[i]);
    }
    if (launch->options->plugin != NULL && process != program->without) {
        setenv(program->by_plugin ? "NCCL_NET_PLUGIN" : "LD_PRELOAD", launch->options->plugin, 1);
    }
}

/* Removes the folder. Returns whether nothing was in it. */
static bool remove_folder(const char *path, FILE *log)
{
    char name[512];
    bool empty = true;
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] != '.') {
            snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
            fprintf(log, "left: %s\n", name);
            unlink(name);
            empty = false;
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    rmdir(path);
    return empty;
}

bool pg_run(const struct pg_options *options, const struct pg_program *program, const struct pg_mask *active, FILE *log,
            double *seconds_p)
{
    struct launch launch = {options, program, fileno(log), "/dev/shm/onehop-programs.XXXXXX"};
    struct cf_job job = {.prepare = prepare, .user = &launch, .log = log};
    double start = cf_now();
    if (mkdtemp(launch.folder) == NULL) {
        return false;
    }
    cf_job_open(&job, options->argv, sizeof(struct pg_board));
    struct pg_board *board = (struct pg_board *)job.board;
    board->head.layout = program->layout;
    board->head.seed = program->seed;
    board->head.stops = true;
    board->most_ranks = options->most_ranks;
    board->plain = options->plain;
    board->active = *active;
    cf_job_start(&job);
    bool good = cf_job_wait(&job, options->seconds);
    for (int w = 0; w < cf_workers(&program->layout) && !good; w++) {
        fprintf(log, "rank %d is in item %d\n", w, atomic_load(&board->at[w]));
    }
    cf_job_close(&job);
    good &= remove_folder(launch.folder, log) || !good;
    *seconds_p = cf_now() - start;
    fflush(log);
    return good;
}
