/* SPDX-License-Identifier: MIT */
/*
 * nccl_core.c - what the ranks of the simulated NCCL share
 *
 * Joining is a barrier over all ranks: nobody returns before all have mapped the segment, and its name is removed
 * then, so that nothing is left whatever happens later. Waits sleep on a futex with a short time-out, after which
 * the abort flag of the rank is looked at.
 */
#include "nccl_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAIT_NANOSECONDS 5000000
#define POLL_MICROSECONDS 500

struct simnccl_core *simnccl_core_create(const char *name, int nranks, int rank)
{
    struct simnccl_core *core = simnode_new(sizeof *core);
    snprintf(core->name, sizeof core->name, "%s", name);
    core->references = 1;
    core->nranks = nranks;
    core->rank = rank;
    core->result = ncclInProgress;
    pthread_mutex_init(&core->running, NULL);
    return core;
}

void simnccl_core_retain(struct simnccl_core *core)
{
    atomic_fetch_add(&core->references, 1);
}

void simnccl_core_release(struct simnccl_core *core)
{
    if (atomic_fetch_sub(&core->references, 1) > 1) {
        return;
    }
    if (core->segment != NULL) {
        munmap(core->segment, sizeof *core->segment);
    }
    pthread_mutex_destroy(&core->running);
    free(core);
}

bool simnccl_core_wait(struct simnccl_core *core, uint32_t seen)
{
    struct timespec limit = {.tv_nsec = WAIT_NANOSECONDS};
    sched_yield();
    syscall(SYS_futex, &core->segment->doorbell, FUTEX_WAIT, seen, &limit, NULL, 0);
    return !core->aborted;
}

void simnccl_core_ring(struct simnccl_core *core)
{
    atomic_fetch_add(&core->segment->doorbell, 1);
    syscall(SYS_futex, &core->segment->doorbell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* Rank 0 makes the file, the others wait for it to appear in full size. Returns a descriptor, -1 on failure. */
static int segment_open(struct simnccl_core *core, const char *path)
{
    if (core->rank == 0) {
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd >= 0 && ftruncate(fd, sizeof(struct simnccl_segment)) != 0) {
            close(fd);
            return -1;
        }
        return fd;
    }
    while (!core->aborted) {
        struct stat status;
        int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0 && fstat(fd, &status) == 0 && (size_t)status.st_size == sizeof(struct simnccl_segment)) {
            return fd;
        }
        if (fd >= 0) {
            close(fd);
        } else if (errno != ENOENT) {
            return -1;
        }
        usleep(POLL_MICROSECONDS);
    }
    return -1;
}

/* Counts this rank, and waits until all ranks have been. False: it was aborted. */
static bool count_and_wait(struct simnccl_core *core, _Atomic uint32_t *counted)
{
    bool alive = true;
    atomic_fetch_add(counted, 1);
    simnccl_core_ring(core);
    while (alive) {
        uint32_t seen = atomic_load(&core->segment->doorbell);
        if (atomic_load(counted) == (uint32_t)core->nranks) {
            break;
        }
        alive = simnccl_core_wait(core, seen);
    }
    return alive;
}

ncclResult_t simnccl_core_join(struct simnccl_core *core)
{
    char path[SIMNCCL_NAME_BYTES + 16];
    snprintf(path, sizeof path, "/dev/shm/%s", core->name);
    int fd = segment_open(core, path);
    if (fd < 0) {
        return ncclSystemError;
    }
    struct simnccl_segment *segment =
        mmap(NULL, sizeof(struct simnccl_segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (segment == MAP_FAILED) {
        return ncclSystemError;
    }
    core->segment = segment;

    bool alive = count_and_wait(core, &segment->joined);
    if (core->rank == 0) {
        unlink(path);
    }
    return alive ? ncclSuccess : ncclInternalError;
}

ncclResult_t simnccl_core_connect(struct simnccl_core *core)
{
    if (core->connected || simnode_setting("SIMNODE_NCCL_LAZY") != 1) {
        return ncclSuccess;
    }
    core->connected = true;
    return count_and_wait(core, &core->segment->connected) ? ncclSuccess : ncclInternalError;
}

const void *simnccl_core_piece(const struct simnccl_core *core, enum simnccl_channel_id channel, int rank)
{
    return core->segment->slot[channel][rank].data[core->step[channel] & 1];
}

/* Ranks that disagree on the call would hang in real NCCL. Here they say so. */
static ncclResult_t check_same(struct simnccl_core *core, enum simnccl_channel_id channel, uint32_t what)
{
    for (int r = 0; r < core->nranks; r++) {
        uint32_t theirs = core->segment->slot[channel][r].what[core->step[channel] & 1];
        if (theirs != what) {
            fprintf(stderr, "simnccl: MISMATCH in %s: rank %d is in call %#x, rank %d in call %#x\n", core->name,
                    core->rank, what, r, theirs);
            return ncclInternalError;
        }
    }
    return ncclSuccess;
}

/* Waits until all ranks have entered the exchange. */
static ncclResult_t await_all(struct simnccl_core *core, enum simnccl_channel_id channel, uint32_t step)
{
    struct simnccl_segment *segment = core->segment;
    for (int r = 0; r < core->nranks; r++) {
        for (;;) {
            uint32_t seen = atomic_load(&segment->doorbell);
            if ((int32_t)(atomic_load(&segment->slot[channel][r].step) - step) >= 0) {
                break;
            }
            if (!simnccl_core_wait(core, seen)) {
                return ncclInternalError;
            }
        }
    }
    return ncclSuccess;
}

ncclResult_t simnccl_core_show(struct simnccl_core *core, enum simnccl_channel_id channel, uint32_t what,
                               const void *mine, size_t bytes)
{
    struct simnccl_slot *slot = &core->segment->slot[channel][core->rank];
    uint32_t step = core->step[channel] + 1;
    SIMNCCL_TRY(await_all(core, channel, step - 1)); /* they have read the piece that is overwritten */
    core->step[channel] = step;
    slot->what[step & 1] = what;
    if (bytes > 0) {
        memcpy(slot->data[step & 1], mine, bytes);
    }
    atomic_store(&slot->step, step);
    simnccl_core_ring(core);
    return ncclSuccess;
}

ncclResult_t simnccl_core_exchange(struct simnccl_core *core, enum simnccl_channel_id channel, uint32_t what,
                                   const void *mine, size_t bytes)
{
    SIMNCCL_TRY(simnccl_core_show(core, channel, what, mine, bytes));
    SIMNCCL_TRY(await_all(core, channel, core->step[channel]));
    return check_same(core, channel, what);
}
