/* SPDX-License-Identifier: MIT */
/*
 * job.c - starts the processes of a job, watches over them, and is the beginning of each
 *
 * The launcher itself opens neither CUDA nor NCCL: processes are exec'ed, so that LD_PRELOAD can differ between them,
 * with CF_JOB=NUMBER:BOARD in their environment.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "test/common/worker.h"

#define VARIABLE "CF_JOB"
#define POLL_MICROSECONDS 2000
#define LAST_WORDS_MICROSECONDS 100000

double cf_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

uint64_t cf_now_ms(void)
{
    return (uint64_t)(cf_now() * 1e3);
}

int cf_workers(const struct cf_layout *layout)
{
    return layout->threads ? layout->nranks : layout->nranks / layout->local;
}

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(2);
}

static void *open_board(const char *path, size_t bytes)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        fail(path);
    }
    void *board = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (board == MAP_FAILED) {
        fail(path);
    }
    return board;
}

/* --- the launcher ------------------------------------------------------------------------------------------------- */

int cf_count_gpus(void)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int count = 0;
        if (cf_api_open_cuda() != NULL || cu.Init(0) != CUDA_SUCCESS || cu.DeviceGetCount(&count) != CUDA_SUCCESS) {
            count = 0;
        }
        _exit(count);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) {
        return 0;
    }
    return WEXITSTATUS(status);
}

void cf_job_open(struct cf_job *job, char **argv, size_t bytes)
{
    snprintf(job->path, sizeof job->path, "/tmp/onehop-job.XXXXXX");
    job->argv = argv;
    int fd = mkstemp(job->path);
    if (fd < 0) {
        fail("mkstemp");
    }
    close(fd);
    job->board = open_board(job->path, bytes);
}

/* The GPUs of this process alone. */
static void set_visible_devices(const struct cf_layout *layout, int process)
{
    char list[128] = "";
    for (int i = 0; i < layout->local; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%d", i > 0 ? "," : "", process * layout->local + i);
    }
    setenv("CUDA_VISIBLE_DEVICES", list, 1);
}

static void be_process(const struct cf_job *job, int process)
{
    char text[128];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(text, sizeof text, "%d:%s", process, job->path);
    setenv(VARIABLE, text, 1);
    if (job->board->layout.own_gpu) {
        set_visible_devices(&job->board->layout, process);
    }
    if (job->prepare != NULL) {
        job->prepare(job, process);
    }
    execv("/proc/self/exe", job->argv);
    fail("exec");
}

void cf_job_start(struct cf_job *job)
{
    job->processes = job->board->layout.nranks / job->board->layout.local;
    fflush(NULL);
    for (int p = 0; p < job->processes; p++) {
        job->pid[p] = fork();
        if (job->pid[p] == 0) {
            be_process(job, p);
        }
        if (job->pid[p] < 0) {
            fail("fork");
        }
    }
}

bool cf_job_ended(struct cf_job *job, int *process_p, int *status_p)
{
    for (int p = 0; p < job->processes; p++) {
        if (job->pid[p] > 0 && waitpid(job->pid[p], status_p, WNOHANG) == job->pid[p]) {
            job->pid[p] = 0;
            *process_p = p;
            return true;
        }
    }
    return false;
}

/* All at once: one that is left would fail because its peer is gone, and hide why they are killed. */
void cf_job_kill(struct cf_job *job)
{
    for (int p = 0; p < job->processes; p++) {
        if (job->pid[p] > 0) {
            kill(job->pid[p], SIGKILL);
        }
    }
    for (int p = 0; p < job->processes; p++) {
        if (job->pid[p] > 0) {
            waitpid(job->pid[p], NULL, 0);
            job->pid[p] = 0;
        }
    }
}

static bool has_ended_well(const struct cf_job *job, int process, int status)
{
    if (job->ended_well != NULL ? job->ended_well(job, process, status)
                                : WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return true;
    }
    if (WIFSIGNALED(status)) {
        fprintf(job->log, "FAIL process %d ended by signal %d\n", process, WTERMSIG(status));
    }
    return false;
}

bool cf_job_wait(struct cf_job *job, int seconds)
{
    double limit = cf_now() + seconds;
    bool good = true, late = false;
    job->log = job->log != NULL ? job->log : stdout;
    for (int left = job->processes; left > 0 && good && !late;) {
        int process, status;
        if (cf_job_ended(job, &process, &status)) {
            good = has_ended_well(job, process, status);
            left--;
        } else {
            usleep(POLL_MICROSECONDS);
            late = cf_now() > limit;
        }
    }
    if (late) {
        fprintf(job->log, "FAIL not finished after %d seconds\n", seconds);
    } else if (!good) {
        usleep(LAST_WORDS_MICROSECONDS); /* the others may have something to say */
    }
    cf_job_kill(job);
    return good && !late;
}

void cf_job_close(struct cf_job *job)
{
    unlink(job->path);
}

/* --- a process ---------------------------------------------------------------------------------------------------- */

bool cf_job_join(size_t bytes, struct cf_board **board_p, int *process_p)
{
    const char *text = getenv(VARIABLE), *path = text != NULL ? strchr(text, ':') : NULL;
    if (path == NULL) {
        return false;
    }
    *process_p = atoi(text);
    *board_p = open_board(path + 1, bytes);
    unsetenv(VARIABLE); /* a program that this one starts is no part of the job */
    return true;
}

struct thread {
    struct cf_worker worker;
    void (*run)(struct cf_worker *worker);
    struct cf_result result; /* until the program has another place for it */
    pthread_t thread;
};

static void *run_worker(void *argument)
{
    struct thread *thread = argument;
    struct cf_worker *worker = &thread->worker;
    for (int m = 0; m < worker->members; m++) {
        cf_member_open(worker, m);
        atomic_store(&worker->board->pid[worker->member[m].world_rank], getpid());
    }
    thread->run(worker);
    for (int m = 0; m < worker->members; m++) {
        cf_member_close(worker, m);
    }
    return NULL;
}

static void prepare_worker(struct thread *thread, struct cf_board *board, int first, int members, void *user)
{
    struct cf_worker *worker = &thread->worker;
    worker->board = board;
    worker->nranks = board->layout.nranks;
    worker->members = members;
    worker->index = first / members;
    worker->result = &thread->result;
    worker->onehop = nccl.onehop_version != NULL && nccl.onehop_comm_info != NULL;
    worker->simulated = dlsym(RTLD_DEFAULT, "simnccl_calls") != NULL;
    worker->user = user;
    if (nccl.GetVersion != NULL) {
        nccl.GetVersion(&worker->nccl_version);
    }
    for (int m = 0; m < members; m++) {
        worker->member[m].world_rank = first + m;
    }
}

int cf_run_workers(struct cf_board *board, int process, void (*run)(struct cf_worker *worker), void *user)
{
    const struct cf_layout *layout = &board->layout;
    int workers = layout->threads ? layout->local : 1, members = layout->local / workers;
    struct thread *thread = calloc((size_t)workers, sizeof *thread);
    if (thread == NULL) {
        return 2;
    }
    for (int w = 0; w < workers; w++) {
        prepare_worker(&thread[w], board, process * layout->local + w * members, members, user);
        thread[w].run = run;
    }
    for (int w = 1; w < workers; w++) {
        if (pthread_create(&thread[w].thread, NULL, run_worker, &thread[w]) != 0) {
            return 2;
        }
    }
    run_worker(&thread[0]);
    for (int w = 1; w < workers; w++) {
        pthread_join(thread[w].thread, NULL);
    }
    free(thread);
    return 0;
}

int cf_job_run(struct cf_board *board, int process, void (*run)(struct cf_worker *worker), void *user)
{
    const char *lack = cf_api_open();
    if (lack != NULL || cu.Init(0) != CUDA_SUCCESS) {
        fprintf(stderr, "%s\n", lack != NULL ? lack : "cuInit failed");
        return 2;
    }
    return cf_run_workers(board, process, run, user);
}
