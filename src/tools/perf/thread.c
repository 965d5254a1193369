/* SPDX-License-Identifier: MIT */
/*
 * perf/thread.c - opens devices, libraries, communicators and buffers of a thread, and closes them
 *
 * All sides run on one communicator and one stream for each rank: stock and windows are pncclAllReduce of the real
 * library, onehop is ncclAllReduce of libonehop.so.
 */
#include "tools/perf/thread.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WINDOW_SYMMETRIC 0x01 /* NCCL_WIN_COLL_SYMMETRIC */

bool oh_perf_rank_activate(struct oh_perf_thread *thread, const struct oh_perf_rank *member)
{
    if (thread->ranks > 1) {
        OH_PERF_CU(thread, ctx_set_current(member->context));
    }
    return true;
}

void oh_perf_thread_barrier(struct oh_perf_thread *thread)
{
    oh_workers_barrier(&thread->shared->workers, thread->parties);
}

bool oh_perf_thread_is_main(const struct oh_perf_thread *thread)
{
    return thread->member[0].rank == 0;
}

void oh_perf_thread_group_start(struct oh_perf_thread *thread, enum oh_perf_side side)
{
    OH_PERF_NCCL(thread, "ncclGroupStart", api[side].group_start());
}

void oh_perf_thread_group_end(struct oh_perf_thread *thread, enum oh_perf_side side)
{
    OH_PERF_NCCL(thread, "ncclGroupEnd", api[side].group_end());
}

/* --- opening ---------------------------------------------------------------------------------------------------- */

static void open_device(struct oh_perf_thread *thread, struct oh_perf_rank *member)
{
    struct oh_perf_rank_info *self = &thread->shared->rank[member->rank];
    OH_PERF_CU(thread, device_get(&member->device, member->rank));
    OH_PERF_CU(thread, device_get_name(self->name, sizeof self->name, member->device));
    OH_PERF_CU(thread, device_get_pci_bus_id(self->bus_id, sizeof self->bus_id, member->device));
    OH_PERF_CU(thread, primary_ctx_retain(&member->context, member->device));
    OH_PERF_CU(thread, ctx_set_current(member->context));
    OH_PERF_CU(thread, stream_create(&member->stream, CU_STREAM_NON_BLOCKING));
    OH_PERF_CU(thread, event_create(&member->begin, CU_EVENT_DEFAULT));
    OH_PERF_CU(thread, event_create(&member->end, CU_EVENT_DEFAULT));
    self->pid = getpid();
}

static void open_devices(struct oh_perf_thread *thread)
{
    if (oh_driver_get(&thread->driver) != ncclSuccess) {
        OH_PERF_FAIL(thread, "no usable CUDA driver: %s", oh_driver_error());
    }
    for (int i = 0; i < thread->ranks; i++) {
        open_device(thread, &thread->member[i]);
    }
}

static void *open_library(struct oh_perf_thread *thread, const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        OH_PERF_FAIL(thread, "cannot load %s", dlerror());
    }
    return library;
}

/* Sets a function pointer of the thread to what `library` exports under that name. */
static bool find(void *library, const char *name, void *pointer_p)
{
    void *address = dlsym(library, name);
    memcpy(pointer_p, &address, sizeof address);
    return address != NULL;
}

static void look_up(struct oh_perf_thread *thread, void *library, const char *name, void *pointer_p)
{
    if (!find(library, name, pointer_p)) {
        OH_PERF_FAIL(thread, "%s", dlerror());
    }
}

/* Ends it all where NCCL is too old for what `option` asks for. */
static void refuse_nccl(struct oh_perf_thread *thread, const char *option, const char *needed, const char *lacking)
{
    int version = 0;
    thread->get_version(&version);
    OH_PERF_FAIL(thread, "%s needs NCCL %s or later; %s is %d.%d.%d and has no %s", option, needed,
                 thread->options->nccl, version / 10000, version / 100 % 100, version % 100, lacking);
}

static void open_memory_api(struct oh_perf_thread *thread, void *nccl)
{
    const struct oh_perf_options *options = thread->options;
    bool memory = find(nccl, "ncclMemAlloc", &thread->mem_alloc) && find(nccl, "ncclMemFree", &thread->mem_free);
    bool windows = find(nccl, "ncclCommWindowRegister", &thread->window_register) &&
                   find(nccl, "ncclCommWindowDeregister", &thread->window_deregister);
    if (options->side[OH_PERF_WINDOWS] && !(memory && windows)) {
        refuse_nccl(thread, "--compare windows", "2.27", "windows");
    }
    if (options->memory == OH_PERF_NCCL_MEMORY && !memory) {
        refuse_nccl(thread, "--memory nccl", "2.19", "ncclMemAlloc");
    }
}

static void open_libraries(struct oh_perf_thread *thread)
{
    const struct oh_perf_options *options = thread->options;
    struct oh_perf_api *stock = &thread->api[OH_PERF_STOCK], *ours = &thread->api[OH_PERF_ONEHOP];
    void *nccl = open_library(thread, options->nccl);
    look_up(thread, nccl, "ncclGetVersion", &thread->get_version);
    look_up(thread, nccl, "ncclGetUniqueId", &thread->get_unique_id);
    look_up(thread, nccl, "ncclGetErrorString", &thread->error_string);
    look_up(thread, nccl, "pncclAllReduce", &stock->all_reduce);
    look_up(thread, nccl, "pncclGroupStart", &stock->group_start);
    look_up(thread, nccl, "pncclGroupEnd", &stock->group_end);
    thread->api[OH_PERF_WINDOWS] = *stock;
    open_memory_api(thread, nccl);

    void *onehop = open_library(thread, options->onehop);
    look_up(thread, onehop, "ncclCommInitRank", &thread->comm_init_rank);
    look_up(thread, onehop, "ncclCommDestroy", &thread->comm_destroy);
    look_up(thread, onehop, "ncclRedOpCreatePreMulSum", &thread->op_create);
    look_up(thread, onehop, "ncclRedOpDestroy", &thread->op_destroy);
    look_up(thread, onehop, "ncclAllReduce", &ours->all_reduce);
    look_up(thread, onehop, "ncclGroupStart", &ours->group_start);
    look_up(thread, onehop, "ncclGroupEnd", &ours->group_end);
    look_up(thread, onehop, "onehopVersion", &thread->onehop_version);
    look_up(thread, onehop, "onehopCommInfo", &thread->onehop_info);
    look_up(thread, onehop, "onehopAlgorithmName", &thread->algorithm_name);
}

static void open_communicators(struct oh_perf_thread *thread)
{
    struct oh_perf_shared *shared = thread->shared;
    if (oh_perf_thread_is_main(thread)) {
        OH_PERF_NCCL(thread, "ncclGetUniqueId", get_unique_id(&shared->id));
    }
    oh_perf_thread_barrier(thread);
    if (thread->ranks > 1) {
        oh_perf_thread_group_start(thread, OH_PERF_ONEHOP);
    }
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_NCCL(thread, "ncclCommInitRank",
                     comm_init_rank(&member->comm, thread->options->ranks, shared->id, member->rank));
    }
    if (thread->ranks > 1) {
        oh_perf_thread_group_end(thread, OH_PERF_ONEHOP);
    }
    if (oh_perf_thread_is_main(thread)) {
        OH_PERF_NCCL(thread, "ncclGetVersion", get_version(&shared->nccl_version));
        shared->onehop_version = thread->onehop_version();
    }
    oh_perf_thread_barrier(thread);
}

static void *allocate(struct oh_perf_thread *thread, size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory) {
        OH_PERF_FAIL(thread, "no %zu bytes of host memory: %s", bytes, strerror(errno));
    }
    return memory;
}

static CUdeviceptr new_buffer(struct oh_perf_thread *thread, enum oh_perf_memory memory, size_t bytes)
{
    CUdeviceptr address = 0;
    void *buffer = NULL;
    if (memory == OH_PERF_CUDA_MEMORY) {
        OH_PERF_CU(thread, mem_alloc(&address, bytes));
        return address;
    }
    OH_PERF_NCCL(thread, "ncclMemAlloc", mem_alloc(&buffer, bytes));
    return (CUdeviceptr)(uintptr_t)buffer;
}

static void free_buffer(struct oh_perf_thread *thread, enum oh_perf_memory memory, CUdeviceptr buffer)
{
    if (memory == OH_PERF_CUDA_MEMORY) {
        OH_PERF_CU(thread, mem_free(buffer));
    } else {
        OH_PERF_NCCL(thread, "ncclMemFree", mem_free((void *)(uintptr_t)buffer));
    }
}

/* Two buffers of memory that NCCL may map on all ranks, registered on all ranks together. */
static void open_windows(struct oh_perf_thread *thread)
{
    size_t bytes = thread->options->max_bytes + OH_PERF_GUARD;
    OH_PERF_EACH_RANK(thread, member)
    {
        member->send[OH_PERF_WINDOWS] = new_buffer(thread, OH_PERF_NCCL_MEMORY, bytes);
        member->recv[OH_PERF_WINDOWS] = new_buffer(thread, OH_PERF_NCCL_MEMORY, bytes);
    }
    oh_perf_thread_group_start(thread, OH_PERF_STOCK);
    OH_PERF_EACH_RANK(thread, member)
    {
        const CUdeviceptr memory[2] = {member->send[OH_PERF_WINDOWS], member->recv[OH_PERF_WINDOWS]};
        for (int i = 0; i < 2; i++) {
            OH_PERF_NCCL(thread, "ncclCommWindowRegister",
                         window_register(member->comm, (void *)(uintptr_t)memory[i], bytes, &member->window[i],
                                         WINDOW_SYMMETRIC));
        }
    }
    oh_perf_thread_group_end(thread, OH_PERF_STOCK);
    OH_PERF_EACH_RANK(thread, member)
    {
        if (!member->window[0] || !member->window[1]) {
            OH_PERF_FAIL(thread, "NCCL makes no windows here: they need P2P between all GPUs and CUDA's virtual memory "
                                 "(NCCL_CUMEM_ENABLE, NCCL_WIN_ENABLE)");
        }
    }
}

#ifndef __clang__ /* gcc 12's -fanalyzer loses sight of what ranks hold; close_all frees it */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif
static void open_buffers(struct oh_perf_thread *thread)
{
    enum oh_perf_memory memory = thread->options->memory;
    size_t bytes = thread->options->max_bytes;
    size_t slack = OH_PERF_SLACK * sizeof(uint64_t);
    OH_PERF_EACH_RANK(thread, member)
    {
        member->send[OH_PERF_STOCK] = new_buffer(thread, memory, bytes);
        member->recv[OH_PERF_STOCK] = new_buffer(thread, memory, bytes + OH_PERF_GUARD);
        member->send[OH_PERF_ONEHOP] = member->send[OH_PERF_STOCK];
        member->recv[OH_PERF_ONEHOP] = member->recv[OH_PERF_STOCK];
        member->input = allocate(thread, bytes + slack);
    }
    if (thread->options->side[OH_PERF_WINDOWS]) {
        open_windows(thread);
    }
    thread->expected = allocate(thread, bytes + slack);
    thread->got = allocate(thread, bytes + OH_PERF_GUARD);
}
#ifndef __clang__
#pragma GCC diagnostic pop
#endif

/* A first call, with which onehop sets the communicator up; then it says whether it serves it. */
static void call_first(struct oh_perf_thread *thread)
{
    struct oh_perf_shared *shared = thread->shared;
    if (thread->ranks > 1) {
        oh_perf_thread_group_start(thread, OH_PERF_ONEHOP);
    }
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_NCCL(thread, "ncclAllReduce",
                     api[OH_PERF_ONEHOP].all_reduce((const void *)(uintptr_t)member->send[OH_PERF_ONEHOP],
                                                    (void *)(uintptr_t)member->recv[OH_PERF_ONEHOP], 1, ncclInt8,
                                                    ncclSum, member->comm, (cudaStream_t)member->stream));
    }
    if (thread->ranks > 1) {
        oh_perf_thread_group_end(thread, OH_PERF_ONEHOP);
    }
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_CU(thread, stream_synchronize(member->stream));
    }
    if (oh_perf_thread_is_main(thread) &&
        thread->onehop_info(thread->member[0].comm, &shared->info, sizeof shared->info) != 0) {
        snprintf(shared->info.reason, sizeof shared->info.reason, "the communicator is unknown to onehop");
    }
}

/* --- closing ---------------------------------------------------------------------------------------------------- */

static void close_windows(struct oh_perf_thread *thread)
{
    for (int i = 0; i < 2; i++) {
        oh_perf_thread_group_start(thread, OH_PERF_STOCK);
        OH_PERF_EACH_RANK(thread, member)
        {
            OH_PERF_NCCL(thread, "ncclCommWindowDeregister", window_deregister(member->comm, member->window[i]));
        }
        oh_perf_thread_group_end(thread, OH_PERF_STOCK);
    }
    OH_PERF_EACH_RANK(thread, member)
    {
        free_buffer(thread, OH_PERF_NCCL_MEMORY, member->send[OH_PERF_WINDOWS]);
        free_buffer(thread, OH_PERF_NCCL_MEMORY, member->recv[OH_PERF_WINDOWS]);
    }
}

static void close_all(struct oh_perf_thread *thread)
{
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_CU(thread, stream_synchronize(member->stream));
    }
    if (thread->options->side[OH_PERF_WINDOWS]) {
        close_windows(thread);
    }
    OH_PERF_EACH_RANK(thread, member)
    {
        OH_PERF_NCCL(thread, "ncclCommDestroy", comm_destroy(member->comm));
    }
    OH_PERF_EACH_RANK(thread, member)
    {
        free_buffer(thread, thread->options->memory, member->send[OH_PERF_STOCK]);
        free_buffer(thread, thread->options->memory, member->recv[OH_PERF_STOCK]);
        OH_PERF_CU(thread, event_destroy(member->begin));
        OH_PERF_CU(thread, event_destroy(member->end));
        OH_PERF_CU(thread, stream_destroy(member->stream));
        OH_PERF_CU(thread, primary_ctx_release(member->device));
        free(member->input);
    }
    free(thread->expected);
    free(thread->got);
}

/* --- life ------------------------------------------------------------------------------------------------------- */

static void work(struct oh_perf_thread *thread)
{
    struct oh_perf_shared *shared = thread->shared;
    open_devices(thread);
    open_libraries(thread);
    open_communicators(thread);
    open_buffers(thread);
    oh_perf_open_program(thread);
    call_first(thread);
    if (thread->options->floor) {
        oh_perf_measure_floor(thread);
    }
    oh_perf_thread_barrier(thread);
    if (oh_perf_thread_is_main(thread)) {
        atomic_store(&shared->ready, true);
    }
    for (size_t i = 0; i < shared->rows; i++) {
        oh_perf_measure(thread, &shared->task[i]);
    }
    oh_perf_thread_barrier(thread);
    close_all(thread);
}

static struct oh_perf_thread *new_crew(const struct oh_perf_job *workload, int first_rank, int ranks)
{
    struct oh_perf_thread *thread = calloc(1, sizeof *thread);
    if (thread) {
        thread->options = workload->options;
        thread->shared = workload->shared;
        thread->ranks = ranks;
        thread->parties = workload->options->ranks / ranks;
        for (int i = 0; i < ranks; i++) {
            thread->member[i].rank = first_rank + i;
        }
        return thread;
    }
    oh_workers_fail(&workload->shared->workers, first_rank, "out of memory");
}

static void *run_crew(void *thread)
{
    work(thread);
    free(thread);
    return NULL;
}

/* One process, a thread for each rank. */
static void run_threads(const struct oh_perf_job *workload)
{
    pthread_t thread[OH_PERF_RANKS];
    for (int rank = 0; rank < workload->options->ranks; rank++) {
        int error = pthread_create(&thread[rank], NULL, run_crew, new_crew(workload, rank, 1));
        if (error) {
            oh_workers_fail(&workload->shared->workers, rank, "no thread: %s", strerror(error));
        }
    }
    for (int rank = 0; rank < workload->options->ranks; rank++) {
        pthread_join(thread[rank], NULL);
    }
}

int oh_perf_work(void *user, int member)
{
    const struct oh_perf_job *workload = user;
    switch (workload->options->layout) {
    case OH_PERF_THREADS:
        run_threads(workload);
        break;
    case OH_PERF_GROUP:
        run_crew(new_crew(workload, 0, workload->options->ranks));
        break;
    default:
        run_crew(new_crew(workload, member, 1));
        break;
    }
    return EXIT_SUCCESS;
}
