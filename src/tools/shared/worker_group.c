/* SPDX-License-Identifier: MIT */
/*
 * shared/worker_group.c - processes that measure together
 *
 * Does: Forks, watches and ends them.
 * Threads: one in the parent; oh_workers_barrier and oh_workers_fail belong to the members' threads.
 * Owns: the members.
 */
#include "tools/shared/worker_group.h"

#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/driver.h"
#include "gpu/kernels.h"
#include "tools/shared/outfile.h"
#include "tools/shared/tool.h"
#include "topo/topo.h"
#include "util/clock.h"

#define TICK_NS (2L * 1000 * 1000)

void *oh_workers_map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        OH_TOOL_FAIL("no shared memory: %m");
    }
    return memory;
}

/* --- members ---------------------------------------------------------------------------------------------------- */

void oh_workers_fail(struct oh_workers_shared *shared, int rank, const char *format, ...)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&shared->failed, &none, rank + 1)) {
        va_list args;
        va_start(args, format);
        vsnprintf(shared->failure, sizeof shared->failure, format, args);
        va_end(args);
        atomic_store(&shared->failure_written, true);
    }
    _exit(EXIT_FAILURE);
}

void oh_workers_barrier(struct oh_workers_shared *shared, int parties)
{
    unsigned int generation = atomic_load(&shared->generation);
    if (atomic_fetch_add(&shared->arrived, 1) + 1 == (unsigned int)parties) {
        atomic_store(&shared->arrived, 0);
        atomic_store(&shared->generation, generation + 1);
        return;
    }
    for (unsigned int tries = 0; atomic_load(&shared->generation) == generation; tries++) {
        if (atomic_load(&shared->failure_written)) {
            _exit(EXIT_FAILURE);
        }
        if (tries < 10000) {
            sched_yield();
        } else {
            usleep(100); /* a rank is far behind: leave it the CPU */
        }
    }
}

/* In the child, which must not outlive the parent. */
static _Noreturn void be_member(const struct oh_workers *workers, int member, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(EXIT_FAILURE); /* the parent died before the line above */
    }
    exit(workers->work(workers->work_user, member));
}

/* Kills the members that live, and reaps them. */
static void end_all(const struct oh_workers *workers, const pid_t *pid)
{
    for (int member = 0; member < workers->members; member++) {
        if (pid[member] > 0) {
            kill(pid[member], SIGKILL);
        }
    }
    for (int member = 0; member < workers->members; member++) {
        if (pid[member] > 0) {
            waitpid(pid[member], NULL, 0);
        }
    }
}

static void start_all(const struct oh_workers *workers, pid_t *pid)
{
    pid_t parent = getpid();
    fflush(NULL);             /* else a child would write again what is buffered */
    signal(SIGCHLD, SIG_DFL); /* where it is ignored, nothing says that a member has ended */
    for (int member = 0; member < workers->members; member++) {
        pid[member] = fork();
        if (pid[member] == 0) {
            be_member(workers, member, parent);
        }
        if (pid[member] < 0) {
            OH_TOOL_FAIL("cannot fork: %m");
        }
    }
}

static _Noreturn void report_death(const struct oh_workers_shared *shared, int member, int status)
{
    if (atomic_load(&shared->failure_written)) {
        OH_TOOL_FAIL("rank %d: %s", atomic_load(&shared->failed) - 1, shared->failure);
    }
    if (WIFSIGNALED(status)) {
        OH_TOOL_FAIL("process %d of the ranks was killed by signal %d (%s)", member, WTERMSIG(status),
                     strsignal(WTERMSIG(status)));
    }
    OH_TOOL_FAIL("process %d of the ranks ended with status %d", member, WEXITSTATUS(status));
}

/* Reaps members that have ended. Returns how many live. */
static int reap(const struct oh_workers *workers, pid_t *pid)
{
    int status, living = 0;
    for (int member = 0; member < workers->members; member++) {
        if (pid[member] && waitpid(pid[member], &status, WNOHANG) == pid[member]) {
            pid[member] = 0;
            if (status != 0) {
                end_all(workers, pid);
                report_death(workers->shared, member, status);
            }
        }
        living += pid[member] != 0;
    }
    return living;
}

void oh_workers_run(const struct oh_workers *workers)
{
    static const struct timespec pause = {0, TICK_NS};
    pid_t pid[OH_MAX_WORKERS] = {0};
    unsigned int generation = 0;
    uint64_t last = oh_now_ns();
    start_all(workers, pid);
    for (bool living = true; living;) {
        living = reap(workers, pid) > 0;
        int number = living ? oh_signals_wait(pause) : 0;
        unsigned int now = atomic_load(&workers->shared->generation);
        if (number > 0) {
            end_all(workers, pid);
            oh_tool_error("ended by signal %d (%s), and all ranks with it", number, strsignal(number));
            oh_signals_end_by(number);
        }
        if (workers->tick) {
            workers->tick(workers->tick_user);
        }
        if (now != generation) {
            generation = now;
            last = oh_now_ns();
        } else if (living && oh_now_ns() - last > (uint64_t)workers->timeout_s * 1000000000u) {
            end_all(workers, pid);
            const char *option = workers->timeout_option;
            OH_TOOL_FAIL("no progress for %d s%s%s%s; all ranks are ended", workers->timeout_s, option ? " (" : "",
                         option ? option : "", option ? ")" : "");
        }
    }
}

/* --- the machine ------------------------------------------------------------------------------------------------ */

int oh_tool_count_gpus(char *reason_p, size_t size)
{
    const ncclResult_t opened = oh_driver_open();
    int count;
    if (opened != ncclSuccess && !strstr(oh_driver_error(), "CUDA_ERROR_NO_DEVICE")) {
        snprintf(reason_p, size, "no usable CUDA driver: %s", oh_driver_error());
        return 0;
    }
    if (opened != ncclSuccess || oh_driver.device_get_count(&count) != CUDA_SUCCESS || count < 1) {
        snprintf(reason_p, size, "CUDA sees no GPU here");
        return 0;
    }
    return count;
}

bool oh_tool_lacks_kernels(char *text_p, size_t size)
{
    const int count = oh_tool_count_gpus(text_p, size);
    bool lacks = false;
    for (int i = 0; i < count && !lacks; i++) {
        struct oh_topo_gpu gpu;
        oh_topo_gpu_gather(i, &gpu);
        lacks = !oh_tool_is_simulated(gpu.name) && /* the simulated node needs no kernels */
                !oh_architectures_include(oh_architectures, gpu.compute_major, gpu.compute_minor);
        if (lacks) {
            snprintf(text_p, size,
                     "this build has no kernels for %s, of compute capability %d.%d (it has: %s); build onehop where "
                     "the GPUs are, or with NVCC_GENCODE",
                     gpu.name, gpu.compute_major, gpu.compute_minor, oh_architectures[0] ? oh_architectures : "none");
        }
    }
    return lacks;
}

static int ask_machine(void *user, int member)
{
    struct oh_workers_machine *machine = user;
    (void)member;
    machine->gpus = oh_tool_count_gpus(machine->shared.failure, sizeof machine->shared.failure);
    if (machine->gpus > 0 && oh_driver.device_get_name(machine->gpu, sizeof machine->gpu, 0) != CUDA_SUCCESS) {
        snprintf(machine->shared.failure, sizeof machine->shared.failure, "CUDA sees no GPU here");
        machine->gpus = 0;
    }
    oh_topo_driver_version(machine->driver, sizeof machine->driver);
    return EXIT_SUCCESS;
}

void oh_workers_ask_machine(struct oh_workers_machine *machine_p)
{
    struct oh_workers_machine *machine = oh_workers_map(sizeof *machine);
    const struct oh_workers asker = {
        .shared = &machine->shared, .members = 1, .timeout_s = 60, .work = ask_machine, .work_user = machine};
    oh_workers_run(&asker);
    *machine_p = *machine;
    munmap(machine, sizeof *machine);
    if (machine_p->gpus < 1) {
        OH_TOOL_FAIL("%s; run nvidia-smi, or add --simulated", machine_p->shared.failure);
    }
}
