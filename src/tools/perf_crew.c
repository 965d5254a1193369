/* SPDX-License-Identifier: MIT */
/*
 * perf_crew.c - opens devices, libraries, communicators and buffers of a crew, and closes them
 *
 * All sides run on one communicator and one stream for each rank: stock and windows are pncclAllReduce of the real
 * library, onehop is ncclAllReduce of libonehop.so.
 */
#include "tools/perf_crew.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WINDOW_SYMMETRIC 0x01 /* NCCL_WIN_COLL_SYMMETRIC */

bool oh_crew_sit(struct oh_crew *crew, const struct oh_seat *seat)
{
    if (crew->seats > 1) {
        OH_CREW_CU(crew, ctx_set_current(seat->context));
    }
    return true;
}

void oh_crew_barrier(struct oh_crew *crew)
{
    oh_team_barrier(&crew->shared->board, crew->parties);
}

bool oh_crew_leads(const struct oh_crew *crew)
{
    return crew->seat[0].rank == 0;
}

void oh_crew_group_start(struct oh_crew *crew, enum oh_perf_side side)
{
    OH_CREW_NCCL(crew, "ncclGroupStart", api[side].group_start());
}

void oh_crew_group_end(struct oh_crew *crew, enum oh_perf_side side)
{
    OH_CREW_NCCL(crew, "ncclGroupEnd", api[side].group_end());
}

/* --- opening ---------------------------------------------------------------------------------------------------- */

static void open_device(struct oh_crew *crew, struct oh_seat *seat)
{
    struct oh_perf_rank *self = &crew->shared->rank[seat->rank];
    OH_CREW_CU(crew, device_get(&seat->device, seat->rank));
    OH_CREW_CU(crew, device_get_name(self->name, sizeof self->name, seat->device));
    OH_CREW_CU(crew, device_get_pci_bus_id(self->bus_id, sizeof self->bus_id, seat->device));
    OH_CREW_CU(crew, primary_ctx_retain(&seat->context, seat->device));
    OH_CREW_CU(crew, ctx_set_current(seat->context));
    OH_CREW_CU(crew, stream_create(&seat->stream, CU_STREAM_NON_BLOCKING));
    OH_CREW_CU(crew, event_create(&seat->begin, CU_EVENT_DEFAULT));
    OH_CREW_CU(crew, event_create(&seat->end, CU_EVENT_DEFAULT));
    self->pid = getpid();
}

static void open_devices(struct oh_crew *crew)
{
    if (oh_driver_get(&crew->driver) != ncclSuccess) {
        OH_CREW_FAIL(crew, "no usable CUDA driver: %s", oh_driver_error());
    }
    for (int i = 0; i < crew->seats; i++) {
        open_device(crew, &crew->seat[i]);
    }
}

static void *open_library(struct oh_crew *crew, const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        OH_CREW_FAIL(crew, "cannot load %s", dlerror());
    }
    return library;
}

/* Sets a function pointer of the crew to what `library` exports under that name. */
static bool find(void *library, const char *name, void *pointer_p)
{
    void *address = dlsym(library, name);
    memcpy(pointer_p, &address, sizeof address);
    return address != NULL;
}

static void look_up(struct oh_crew *crew, void *library, const char *name, void *pointer_p)
{
    if (!find(library, name, pointer_p)) {
        OH_CREW_FAIL(crew, "%s", dlerror());
    }
}

/* Ends it all where NCCL is too old for what `option` asks for. */
static void refuse_nccl(struct oh_crew *crew, const char *option, const char *needed, const char *lacking)
{
    int version = 0;
    crew->get_version(&version);
    OH_CREW_FAIL(crew, "%s needs NCCL %s or later; %s is %d.%d.%d and has no %s", option, needed, crew->options->nccl,
                 version / 10000, version / 100 % 100, version % 100, lacking);
}

static void open_memory_api(struct oh_crew *crew, void *nccl)
{
    const struct oh_perf_options *options = crew->options;
    bool memory = find(nccl, "ncclMemAlloc", &crew->mem_alloc) && find(nccl, "ncclMemFree", &crew->mem_free);
    bool windows = find(nccl, "ncclCommWindowRegister", &crew->window_register) &&
                   find(nccl, "ncclCommWindowDeregister", &crew->window_deregister);
    if (options->side[OH_PERF_WINDOWS] && !(memory && windows)) {
        refuse_nccl(crew, "--compare windows", "2.27", "windows");
    }
    if (options->memory == OH_PERF_NCCL_MEMORY && !memory) {
        refuse_nccl(crew, "--memory nccl", "2.19", "ncclMemAlloc");
    }
}

static void open_libraries(struct oh_crew *crew)
{
    const struct oh_perf_options *options = crew->options;
    struct oh_perf_api *stock = &crew->api[OH_PERF_STOCK], *ours = &crew->api[OH_PERF_ONEHOP];
    void *nccl = open_library(crew, options->nccl);
    look_up(crew, nccl, "ncclGetVersion", &crew->get_version);
    look_up(crew, nccl, "ncclGetUniqueId", &crew->get_unique_id);
    look_up(crew, nccl, "ncclGetErrorString", &crew->error_string);
    look_up(crew, nccl, "pncclAllReduce", &stock->all_reduce);
    look_up(crew, nccl, "pncclGroupStart", &stock->group_start);
    look_up(crew, nccl, "pncclGroupEnd", &stock->group_end);
    crew->api[OH_PERF_WINDOWS] = *stock;
    open_memory_api(crew, nccl);

    void *onehop = open_library(crew, options->onehop);
    look_up(crew, onehop, "ncclCommInitRank", &crew->comm_init_rank);
    look_up(crew, onehop, "ncclCommDestroy", &crew->comm_destroy);
    look_up(crew, onehop, "ncclRedOpCreatePreMulSum", &crew->op_create);
    look_up(crew, onehop, "ncclRedOpDestroy", &crew->op_destroy);
    look_up(crew, onehop, "ncclAllReduce", &ours->all_reduce);
    look_up(crew, onehop, "ncclGroupStart", &ours->group_start);
    look_up(crew, onehop, "ncclGroupEnd", &ours->group_end);
    look_up(crew, onehop, "onehopVersion", &crew->onehop_version);
    look_up(crew, onehop, "onehopCommInfo", &crew->onehop_info);
    look_up(crew, onehop, "onehopAlgorithmName", &crew->algorithm_name);
}

static void open_communicators(struct oh_crew *crew)
{
    struct oh_perf_shared *shared = crew->shared;
    if (oh_crew_leads(crew)) {
        OH_CREW_NCCL(crew, "ncclGetUniqueId", get_unique_id(&shared->id));
    }
    oh_crew_barrier(crew);
    if (crew->seats > 1) {
        oh_crew_group_start(crew, OH_PERF_ONEHOP);
    }
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_NCCL(crew, "ncclCommInitRank",
                     comm_init_rank(&seat->comm, crew->options->ranks, shared->id, seat->rank));
    }
    if (crew->seats > 1) {
        oh_crew_group_end(crew, OH_PERF_ONEHOP);
    }
    if (oh_crew_leads(crew)) {
        OH_CREW_NCCL(crew, "ncclGetVersion", get_version(&shared->nccl_version));
        shared->onehop_version = crew->onehop_version();
    }
    oh_crew_barrier(crew);
}

static void *allocate(struct oh_crew *crew, size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory) {
        OH_CREW_FAIL(crew, "no %zu bytes of host memory: %s", bytes, strerror(errno));
    }
    return memory;
}

static CUdeviceptr new_buffer(struct oh_crew *crew, enum oh_perf_memory memory, size_t bytes)
{
    CUdeviceptr address = 0;
    void *buffer = NULL;
    if (memory == OH_PERF_CUDA_MEMORY) {
        OH_CREW_CU(crew, mem_alloc(&address, bytes));
        return address;
    }
    OH_CREW_NCCL(crew, "ncclMemAlloc", mem_alloc(&buffer, bytes));
    return (CUdeviceptr)(uintptr_t)buffer;
}

static void free_buffer(struct oh_crew *crew, enum oh_perf_memory memory, CUdeviceptr buffer)
{
    if (memory == OH_PERF_CUDA_MEMORY) {
        OH_CREW_CU(crew, mem_free(buffer));
    } else {
        OH_CREW_NCCL(crew, "ncclMemFree", mem_free((void *)(uintptr_t)buffer));
    }
}

/* Two buffers of memory that NCCL may map on all ranks, registered on all ranks together. */
static void open_windows(struct oh_crew *crew)
{
    size_t bytes = crew->options->max_bytes + OH_PERF_GUARD;
    OH_CREW_EACH(crew, seat)
    {
        seat->send[OH_PERF_WINDOWS] = new_buffer(crew, OH_PERF_NCCL_MEMORY, bytes);
        seat->recv[OH_PERF_WINDOWS] = new_buffer(crew, OH_PERF_NCCL_MEMORY, bytes);
    }
    oh_crew_group_start(crew, OH_PERF_STOCK);
    OH_CREW_EACH(crew, seat)
    {
        const CUdeviceptr memory[2] = {seat->send[OH_PERF_WINDOWS], seat->recv[OH_PERF_WINDOWS]};
        for (int i = 0; i < 2; i++) {
            OH_CREW_NCCL(
                crew, "ncclCommWindowRegister",
                window_register(seat->comm, (void *)(uintptr_t)memory[i], bytes, &seat->window[i], WINDOW_SYMMETRIC));
        }
    }
    oh_crew_group_end(crew, OH_PERF_STOCK);
    OH_CREW_EACH(crew, seat)
    {
        if (!seat->window[0] || !seat->window[1]) {
            OH_CREW_FAIL(crew, "NCCL makes no windows here: they need P2P between all GPUs and CUDA's virtual memory "
                               "(NCCL_CUMEM_ENABLE, NCCL_WIN_ENABLE)");
        }
    }
}

#ifndef __clang__ /* gcc 12's -fanalyzer loses sight of what seats hold; close_all frees it */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif
static void open_buffers(struct oh_crew *crew)
{
    enum oh_perf_memory memory = crew->options->memory;
    size_t bytes = crew->options->max_bytes;
    size_t slack = OH_PERF_SLACK * sizeof(uint64_t);
    OH_CREW_EACH(crew, seat)
    {
        seat->send[OH_PERF_STOCK] = new_buffer(crew, memory, bytes);
        seat->recv[OH_PERF_STOCK] = new_buffer(crew, memory, bytes + OH_PERF_GUARD);
        seat->send[OH_PERF_ONEHOP] = seat->send[OH_PERF_STOCK];
        seat->recv[OH_PERF_ONEHOP] = seat->recv[OH_PERF_STOCK];
        seat->input = allocate(crew, bytes + slack);
    }
    if (crew->options->side[OH_PERF_WINDOWS]) {
        open_windows(crew);
    }
    crew->expected = allocate(crew, bytes + slack);
    crew->got = allocate(crew, bytes + OH_PERF_GUARD);
}
#ifndef __clang__
#pragma GCC diagnostic pop
#endif

/* A first call, with which onehop sets the communicator up; then it says whether it serves it. */
static void call_first(struct oh_crew *crew)
{
    struct oh_perf_shared *shared = crew->shared;
    if (crew->seats > 1) {
        oh_crew_group_start(crew, OH_PERF_ONEHOP);
    }
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_NCCL(crew, "ncclAllReduce",
                     api[OH_PERF_ONEHOP].all_reduce((const void *)(uintptr_t)seat->send[OH_PERF_ONEHOP],
                                                    (void *)(uintptr_t)seat->recv[OH_PERF_ONEHOP], 1, ncclInt8, ncclSum,
                                                    seat->comm, (cudaStream_t)seat->stream));
    }
    if (crew->seats > 1) {
        oh_crew_group_end(crew, OH_PERF_ONEHOP);
    }
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_CU(crew, stream_synchronize(seat->stream));
    }
    if (oh_crew_leads(crew) && crew->onehop_info(crew->seat[0].comm, &shared->info, sizeof shared->info) != 0) {
        snprintf(shared->info.reason, sizeof shared->info.reason, "the communicator is unknown to onehop");
    }
}

/* --- closing ---------------------------------------------------------------------------------------------------- */

static void close_windows(struct oh_crew *crew)
{
    for (int i = 0; i < 2; i++) {
        oh_crew_group_start(crew, OH_PERF_STOCK);
        OH_CREW_EACH(crew, seat)
        {
            OH_CREW_NCCL(crew, "ncclCommWindowDeregister", window_deregister(seat->comm, seat->window[i]));
        }
        oh_crew_group_end(crew, OH_PERF_STOCK);
    }
    OH_CREW_EACH(crew, seat)
    {
        free_buffer(crew, OH_PERF_NCCL_MEMORY, seat->send[OH_PERF_WINDOWS]);
        free_buffer(crew, OH_PERF_NCCL_MEMORY, seat->recv[OH_PERF_WINDOWS]);
    }
}

static void close_all(struct oh_crew *crew)
{
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_CU(crew, stream_synchronize(seat->stream));
    }
    if (crew->options->side[OH_PERF_WINDOWS]) {
        close_windows(crew);
    }
    OH_CREW_EACH(crew, seat)
    {
        OH_CREW_NCCL(crew, "ncclCommDestroy", comm_destroy(seat->comm));
    }
    OH_CREW_EACH(crew, seat)
    {
        free_buffer(crew, crew->options->memory, seat->send[OH_PERF_STOCK]);
        free_buffer(crew, crew->options->memory, seat->recv[OH_PERF_STOCK]);
        OH_CREW_CU(crew, event_destroy(seat->begin));
        OH_CREW_CU(crew, event_destroy(seat->end));
        OH_CREW_CU(crew, stream_destroy(seat->stream));
        OH_CREW_CU(crew, primary_ctx_release(seat->device));
        free(seat->input);
    }
    free(crew->expected);
    free(crew->got);
}

/* --- life ------------------------------------------------------------------------------------------------------- */

static void work(struct oh_crew *crew)
{
    struct oh_perf_shared *shared = crew->shared;
    open_devices(crew);
    open_libraries(crew);
    open_communicators(crew);
    open_buffers(crew);
    oh_perf_open_program(crew);
    call_first(crew);
    if (crew->options->floor) {
        oh_perf_measure_floor(crew);
    }
    oh_crew_barrier(crew);
    if (oh_crew_leads(crew)) {
        atomic_store(&shared->ready, true);
    }
    for (size_t i = 0; i < shared->rows; i++) {
        oh_perf_measure(crew, &shared->task[i]);
    }
    oh_crew_barrier(crew);
    close_all(crew);
}

static struct oh_crew *new_crew(const struct oh_perf_job *job, int first_rank, int seats)
{
    struct oh_crew *crew = calloc(1, sizeof *crew);
    if (crew) {
        crew->options = job->options;
        crew->shared = job->shared;
        crew->seats = seats;
        crew->parties = job->options->ranks / seats;
        for (int i = 0; i < seats; i++) {
            crew->seat[i].rank = first_rank + i;
        }
        return crew;
    }
    oh_team_fail(&job->shared->board, first_rank, "out of memory");
}

static void *run_crew(void *crew)
{
    work(crew);
    free(crew);
    return NULL;
}

/* One process, a thread for each rank. */
static void run_threads(const struct oh_perf_job *job)
{
    pthread_t thread[OH_PERF_RANKS];
    for (int rank = 0; rank < job->options->ranks; rank++) {
        int error = pthread_create(&thread[rank], NULL, run_crew, new_crew(job, rank, 1));
        if (error) {
            oh_team_fail(&job->shared->board, rank, "no thread: %s", strerror(error));
        }
    }
    for (int rank = 0; rank < job->options->ranks; rank++) {
        pthread_join(thread[rank], NULL);
    }
}

int oh_perf_work(void *user, int member)
{
    const struct oh_perf_job *job = user;
    switch (job->options->layout) {
    case OH_PERF_THREADS:
        run_threads(job);
        break;
    case OH_PERF_GROUP:
        run_crew(new_crew(job, 0, job->options->ranks));
        break;
    default:
        run_crew(new_crew(job, member, 1));
        break;
    }
    return EXIT_SUCCESS;
}
