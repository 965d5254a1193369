/* SPDX-License-Identifier: MIT */
/* worker.c - what workers find, where they wait for one another, and their members' GPUs */
#include <limits.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "test/common/worker.h"

#define FP8_CAPABILITY 90
#define FINISH_MICROSECONDS 2000

static void note_failure(struct cf_worker *worker, const char *format, va_list arguments)
{
    struct cf_result *result = worker->result;
    if (result->failures++ == 0) {
        vsnprintf(result->failure, sizeof result->failure, format, arguments);
    }
    if (worker->board->stops) {
        printf("FAIL rank %d: %s\n", worker->member[0].world_rank, result->failure); /* in one write */
        fflush(stdout);
        _exit(1); /* other threads may wait for ever */
    }
}

void cf_fail(struct cf_worker *worker, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    note_failure(worker, format, arguments);
    va_end(arguments);
}

void cf_die(struct cf_worker *worker, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    worker->result->failures = 0; /* this one is told */
    note_failure(worker, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s\n", worker->result->failure);
    fflush(stdout); /* where NCCL_DEBUG says why */
    _exit(1);
}

bool cf_check(struct cf_worker *worker, bool good, const char *format, ...)
{
    va_list arguments;
    worker->result->checks++;
    if (!good) {
        va_start(arguments, format);
        note_failure(worker, format, arguments);
        va_end(arguments);
    }
    return good;
}

void cf_skip(struct cf_worker *worker, const char *reason)
{
    snprintf(worker->result->skipped, sizeof worker->result->skipped, "%s", reason);
}

void *cf_need(struct cf_worker *worker, void *memory)
{
    if (memory == NULL) {
        cf_die(worker, "no memory");
    }
    return memory;
}

/* --- GPUs --------------------------------------------------------------------------------------------------------- */

void cf_member_open(struct cf_worker *worker, int m)
{
    struct cf_member *member = &worker->member[m];
    const struct cf_layout *layout = &worker->board->layout;
    int major, minor;
    int gpus = layout->own_gpu ? layout->local : layout->gpus;
    CF_CU(worker, DeviceGet(&member->device, gpus > 0 ? member->world_rank % gpus : member->world_rank));
    CF_CU(worker, DevicePrimaryCtxRetain(&member->context, member->device));
    cf_use(worker, m);
    for (int s = 0; s < CF_STREAMS; s++) {
        CF_CU(worker, StreamCreate(&member->stream[s], CU_STREAM_NON_BLOCKING));
    }
    member->stream[CF_LEGACY_STREAM] = NULL;
    member->stream[CF_PER_THREAD_STREAM] = CU_STREAM_PER_THREAD;
    CF_CU(worker, DeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, member->device));
    CF_CU(worker, DeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, member->device));
    worker->fp8 = major * 10 + minor >= FP8_CAPABILITY;
}

void cf_member_close(struct cf_worker *worker, int m)
{
    cf_use(worker, m);
    for (int s = 0; s < CF_STREAMS; s++) {
        CF_CU(worker, StreamDestroy(worker->member[m].stream[s]));
    }
    CF_CU(worker, DevicePrimaryCtxRelease(worker->member[m].device));
}

bool cf_use(struct cf_worker *worker, int member)
{
    if (member < worker->members) {
        CF_CU(worker, CtxSetCurrent(worker->member[member].context));
    }
    return member < worker->members;
}

void cf_sync(struct cf_worker *worker)
{
    for (int m = 0; cf_use(worker, m); m++) {
        for (int s = 0; s < CF_STREAMS; s++) {
            CF_CU(worker, StreamSynchronize(worker->member[m].stream[s]));
        }
    }
}

bool cf_finishes(struct cf_worker *worker, double seconds)
{
    for (double end = cf_now() + seconds; cf_now() < end; usleep(FINISH_MICROSECONDS)) {
        bool idle = true;
        for (int m = 0; cf_use(worker, m); m++) {
            for (int s = 0; s < CF_STREAMS; s++) {
                idle &= cu.StreamQuery(worker->member[m].stream[s]) == CUDA_SUCCESS;
            }
        }
        if (idle) {
            return true;
        }
    }
    return false;
}

void cf_join(struct cf_worker *worker, int from, int to)
{
    for (int m = 0; cf_use(worker, m); m++) {
        CUevent event;
        CF_CU(worker, EventCreate(&event, CU_EVENT_DISABLE_TIMING));
        CF_CU(worker, EventRecord(event, worker->member[m].stream[from]));
        CF_CU(worker, StreamWaitEvent(worker->member[m].stream[to], event, 0));
        CF_CU(worker, EventDestroy(event));
    }
}

long cf_gpu_kib(struct cf_worker *worker)
{
    size_t used = 0, free_bytes, total;
    for (int m = 0; cf_use(worker, m); m++) {
        CF_CU(worker, MemGetInfo(&free_bytes, &total));
        used += total - free_bytes;
    }
    return (long)(used >> 10);
}

/* --- together ----------------------------------------------------------------------------------------------------- */

void cf_barrier(struct cf_worker *worker)
{
    struct cf_board *board = worker->board;
    uint32_t generation = atomic_load(&board->generation);
    if (atomic_fetch_add(&board->arrived, 1) + 1 == (uint32_t)cf_workers(&board->layout)) {
        atomic_store(&board->arrived, 0);
        atomic_store(&board->generation, generation + 1);
        syscall(SYS_futex, &board->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        return;
    }
    while (atomic_load(&board->generation) == generation) {
        syscall(SYS_futex, &board->generation, FUTEX_WAIT, generation, NULL, NULL, 0);
    }
}

bool cf_agree(struct cf_worker *worker, uint64_t value)
{
    struct cf_board *board = worker->board;
    bool same = true;
    cf_barrier(worker);
    board->value[worker->index] = value;
    cf_barrier(worker);
    for (int w = 0; w < cf_workers(&board->layout); w++) {
        same &= board->value[w] == value;
    }
    cf_barrier(worker);
    return same;
}

uint64_t cf_share(struct cf_worker *worker, uint64_t value)
{
    struct cf_board *board = worker->board;
    cf_barrier(worker);
    if (worker->index == 0) {
        board->value[0] = value;
    }
    cf_barrier(worker);
    value = board->value[0];
    cf_barrier(worker);
    return value;
}

void cf_jitter(struct cf_worker *worker)
{
    if (worker->jitter_us > 0) {
        if (worker->jitter_seed == 0) {
            worker->jitter_seed = (unsigned)worker->board->seed * 31 + (unsigned)worker->member[0].world_rank + 1;
        }
        usleep((useconds_t)((unsigned)rand_r(&worker->jitter_seed) % worker->jitter_us));
    }
}
